"""Groups of rows by packed weights on Hopper: what is legal, and when it is chosen."""

import pytest

from aot.core.candidate import Accepted, Reason, changed
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families.sm90_grouped_weight_only import FAMILY
from aot.families.sm90_weight_only import FAMILY as DENSE
from aot.families.weight_only import FAMILY as FEW
from aot.space.cost import estimate
from aot.space.legality import check

H200 = load_target("h200")
OPERATION = Operation.BF16_NVFP4_KK_GROUPED
LEGAL = [x for x in FAMILY.candidates(OPERATION, H200) if isinstance(check(x, OPERATION, H200), Accepted)]


def test_tiles_are_those_of_a_single_product_that_a_cta_computes_alone():
    dense = [x for x in DENSE.candidates(Operation.BF16_NVFP4_KK, H200) if x.gemm.cluster_m * x.gemm.split_k == 1]
    legal = [x for x in dense if isinstance(check(x, Operation.BF16_NVFP4_KK, H200), Accepted)]
    assert [changed(x, family=DENSE.name) for x in LEGAL] == legal


@pytest.mark.parametrize("changes", [{"cluster_m": 2}, {"split_k": 2, "split_k_mode": "cluster"}])
def test_clusters_are_refused(changes):
    verdict = check(changed(LEGAL[0], **changes), OPERATION, H200)
    assert verdict.reason is Reason.CLUSTER
    assert "expected 1x1 and no split: a CTA computes a group's tile alone" in verdict.message


@pytest.mark.slow
@pytest.mark.parametrize(("m", "family"), [(1, FEW), (64, FAMILY), (512, FAMILY)])
def test_few_rows_of_a_group_are_left_to_weight_only(m, family):
    few = [x for x in FEW.candidates(OPERATION, H200) if isinstance(check(x, OPERATION, H200), Accepted)]
    candidates, problem = [*few, *LEGAL], Problem(OPERATION, m, 1536, 2048, 128)
    assert candidates[int(estimate(candidates, [problem], H200).total_us.argmin())].family == family.name
