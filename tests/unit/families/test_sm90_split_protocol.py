"""The loads of `sm90_cluster_split_k` that two tiles share: no stage is lost, or waited for in vain."""

from dataclasses import replace
from random import Random

import pytest

from tests.compiling import EVERY, some
from tests.unit.families.split_protocol import FaultError, Protocol, explore, walk

NEIGHBOURS = Protocol(2, 7, announces_shared=True, num_ctas=4)
"""Four tiles side by side, the most that share a load."""


@pytest.mark.slow
@pytest.mark.parametrize("announces_shared", [True, False])
@pytest.mark.parametrize(
    ("lag", "num_blocks"), some([(1, 2), (1, 3), (0, 2), (0, 3), *([(1, 5), (0, 4)] if EVERY else ())], 2)
)
def test_no_stage_is_overwritten_or_waited_for_in_vain(lag, num_blocks, announces_shared):
    assert explore(Protocol(2, num_blocks, announces_shared, lag=lag)) > 1_000


def test_the_model_sees_a_stage_that_is_freed_before_it_is_read():
    with pytest.raises(FaultError, match="overwritten"):
        explore(replace(Protocol(2, 5, announces_shared=True, lag=0), read_lag=1))


def test_the_model_sees_a_stage_that_one_cta_frees_alone():
    with pytest.raises(FaultError, match="overwritten"):
        explore(replace(Protocol(2, 5, announces_shared=True), more_arrivals=-1))


def test_the_model_sees_a_stage_that_nobody_frees():
    with pytest.raises(FaultError, match="wait for ever"):
        explore(replace(Protocol(2, 5, announces_shared=True), more_arrivals=1))


@pytest.mark.walk
@pytest.mark.slow
@pytest.mark.parametrize("announces_shared", [True, False])
@pytest.mark.parametrize(("lag", "num_stages"), some([(1, 2), (1, 3), (0, 2), (0, 3)], 2))
def test_four_neighbours_find_their_stages_on_every_way_that_is_drawn(lag, num_stages, announces_shared):
    protocol = replace(NEIGHBOURS, num_stages=num_stages, announces_shared=announces_shared, lag=lag)
    assert all(walk(protocol, Random(seed)) > 100 for seed in range(25))


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"lag": 0, "read_lag": 1}, "overwritten"),
        ({"more_arrivals": -1}, "overwritten"),
        ({"more_arrivals": 1}, "wait for ever"),
    ],
)
def test_a_way_that_is_drawn_finds_what_is_wrong_with_four_neighbours(wrong, fault):
    with pytest.raises(FaultError, match=fault):
        walk(replace(NEIGHBOURS, **wrong), Random(0))
