"""The loads that the CTAs of a cluster share, in drawn orders of events."""

import pytest

from tests.compiling import EVERY, some
from tests.unit.families.cluster_protocol import FaultError, Run

pytestmark = pytest.mark.slow

CLUSTERS = [(2, 1), (1, 4), (2, 2), (4, 2), (2, 4)]


@pytest.mark.parametrize("columns", [128, 104])
@pytest.mark.parametrize("cluster", some(CLUSTERS, 3))
@pytest.mark.parametrize(("num_stages", "num_blocks"), some([(2, 1), (2, 5), (3, 8), (4, 4)], 2))
def test_no_stage_is_overwritten_or_waited_for_in_vain(cluster, num_stages, num_blocks, columns):
    """Of 104 columns CTAs that share them have no equal parts of 8, and load them in turns."""
    for seed in range(60 if EVERY else 20):
        Run(cluster, num_stages, num_blocks, seed, columns=columns).go()


def run_all(seeds, arrivals):
    for seed in seeds:
        Run((2, 2), 2, 6, seed, arrivals=arrivals).go()


def test_the_model_sees_a_stage_that_one_cta_frees_alone():
    with pytest.raises(FaultError, match="overwritten"):
        run_all(range(500), arrivals=1)


def test_the_model_sees_a_stage_that_nobody_frees():
    with pytest.raises(FaultError, match="wait for ever"):
        run_all([0], arrivals=5)
