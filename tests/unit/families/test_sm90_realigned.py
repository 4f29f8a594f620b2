"""The family of copies in front of a Hopper GEMM: its space and limits, and its kernels in the interpreter."""

from itertools import product

import numpy as np
import pytest

from aot.core.candidate import Accepted, Alignment, KernelKey, Reason, Workspace, changed, gemm_candidate
from aot.core.grouping import Grouping
from aot.core.operands import Arrangement
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.core.types import BF16, FP16
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.emulate.schedule import Mode, Schedule
from aot.families.sm90_cluster_split_k import FAMILY as INNER
from aot.families.sm90_realigned import FAMILY
from aot.kinds.gemm.edge_shapes import EdgeShape
from aot.measure.session_kernels import stated
from aot.measure.verify import Verifier
from aot.space.enumeration import legal, takes_loads, unaligned
from aot.space.legality import check
from tests.compiling import EVERY
from tests.emulated import emulated_set

H200 = load_target("h200")
TILE = gemm_candidate("sm90_realigned", 64, 32, schedule="elements", use_tma_store=False)
SCHEDULES = (Schedule(Mode.RANDOM, 1), Schedule(Mode.BEHIND_ITSELF, 1))
OPERATIONS = [x for x in Operation if x.types in (BF16, FP16) and not x.has_parts]


def test_its_space_is_what_stores_by_elements():
    found = list(FAMILY.candidates(Operation.BF16_KK, H200))
    inner = [x for x in INNER.candidates(Operation.BF16_KK, H200) if x.gemm.schedule == "elements"]
    assert [x.knobs for x in found] == [x.knobs for x in inner]
    assert {x.family for x in found} == {"sm90_realigned"}


def test_takes_every_layout_and_epilogue_without_a_gate():
    taken = [x for x in OPERATIONS if isinstance(check(changed(TILE, tile_n=64), x, H200), Accepted)]
    assert {x.layout for x in taken} == set(Layout)
    assert {x.grouping for x in taken} == {Grouping.DENSE, Grouping.BATCHED}
    dense = [x for x in OPERATIONS if x.grouping is Grouping.DENSE]
    assert {x for x in dense if x not in taken} == {x for x in dense if x.gate is not None}


@pytest.mark.slow
def test_asks_for_no_alignment_and_for_room_for_two_copies():
    assert FAMILY.alignment(TILE) == Alignment(loads=2, stores=1, only_unaligned=True)
    assert FAMILY.workspace(TILE) == Workspace(copies=True)
    assert all(takes_loads(TILE, loads) for loads in (2, 4, 8, 16))
    assert TILE in unaligned(Operation.BF16_KK, H200, 2)
    assert "sm90_realigned" not in {x.family for x in legal(Operation.BF16_KK, H200)}


def test_refuses_what_stores_whole_pieces():
    verdict = check(changed(TILE, schedule=""), Operation.BF16_KK, H200)
    assert verdict.reason is Reason.COMBINATION
    assert "the schedule elements alone, got ''" in verdict.message


def of(operation, *sizes, **knobs):
    return KernelKey(operation, changed(TILE, **dict(zip(("tile_m", "tile_n"), sizes, strict=False)), **knobs))


FEW = (
    of(Operation.BF16_KK),
    of(Operation.FP16_MN, 64, 64),
    of(Operation.BF16_KN_BATCHED, 64, 64, split_k=2, split_k_mode="cluster"),
)
MORE = [of(x, 64, 64) for x in OPERATIONS if x.gate is None and x.grouping in FAMILY.groupings]
KEYS = (*FEW, *MORE) if EVERY else FEW[1:2]
EXTENTS = ((1, 1, 1), (8, 40, 64), (17, 15, 33), (65, 33, 70), (5, 72, 517))
"""(m, n, k): below, at and past the edges of a tile, of 16 bytes and of what a warp copies of a row."""
OFFSETS = (0, 1, 2, 4, 8)
"""Elements behind a multiple of 16 bytes at which operands begin, with strides that are multiples of as many."""


def shapes(key):
    """List cases whose operands are both copied, or neither; of a batch one is shared by all products in turn."""
    is_batch = key.operation.grouping is Grouping.BATCHED
    shared = Arrangement(), Arrangement(shares_b=True), Arrangement(shares_a=True)
    return [
        EdgeShape(
            Problem(key.operation, m, n, k, 3 if is_batch else 1),
            padding=(i + j) % 2 * max(offset, 1),
            offset=offset,
            arrangement=shared[(i + j) % 3] if is_batch else Arrangement(),
            stride_multiple=offset or 8,
            stores_anywhere=True,
        )
        for (i, (m, n, k)), (j, offset) in product(enumerate(EXTENTS), enumerate(OFFSETS))
        if EVERY or i == j
    ]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return emulated_set(KEYS, "h200", tmp_path_factory.mktemp("realigned"))


@pytest.mark.walk
@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_results_are_right_in_whatever_order_the_copy_and_the_product_run(compiled, key):
    """Poison lies behind every extent, and a launch may begin while the one in front runs."""
    gpu = EmulatedGpu(compiled.target.l2_bytes, SCHEDULES)
    codes = [DeviceCode.of(x) for x in compiled.products]
    index = [x.kernel.name for x in compiled.products].index(key.name)
    kernels = EmulatedKernels(compiled.library, codes, gpu, compiled.target)
    verifier = Verifier(gpu, kernels, np.random.default_rng(2), num_guards=0)
    for shape in shapes(key):
        problem, bound = shape.problem, kernels.bind(stated(shape.problem))
        needed = FAMILY.workspace(key.candidate).num_bytes(problem.m, problem.n, problem.k, problem.num_groups)
        assert kernels.workspace_bytes(index, bound) == needed
        verifier.run_each(shape, index, (False,) * len(SCHEDULES), is_reproducible=True)
    assert [x for run in gpu.executions for x in run.report.findings if x.kind.is_fault] == []
