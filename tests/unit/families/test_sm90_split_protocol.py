"""The loads of `sm90_cluster_split_k` that two tiles share: no stage is lost, or waited for in vain."""

from dataclasses import replace

import pytest

from tests.unit.families.split_protocol import FaultError, Protocol, explore


@pytest.mark.parametrize("announces_shared", [True, False])
@pytest.mark.parametrize(("lag", "num_blocks"), [(1, 2), (1, 3), (1, 5), (0, 2), (0, 3), (0, 4)])
def test_no_stage_is_overwritten_or_waited_for_in_vain(lag, num_blocks, announces_shared):
    assert explore(Protocol(2, num_blocks, announces_shared, lag=lag)) > 10_000


def test_the_model_sees_a_stage_that_is_freed_before_it_is_read():
    with pytest.raises(FaultError, match="overwritten"):
        explore(replace(Protocol(2, 5, announces_shared=True, lag=0), read_lag=1))


def test_the_model_sees_a_stage_that_one_cta_frees_alone():
    with pytest.raises(FaultError, match="overwritten"):
        explore(replace(Protocol(2, 5, announces_shared=True), arrivals=1))


def test_the_model_sees_a_stage_that_nobody_frees():
    with pytest.raises(FaultError, match="wait for ever"):
        explore(replace(Protocol(2, 5, announces_shared=True), arrivals=3))
