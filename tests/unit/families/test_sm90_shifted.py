"""The Hopper GEMM whose warps move operands in shared memory: its space and tiles, and its kernels when interpreted."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from aot.core.candidate import Accepted, Alignment, KernelKey, Reason, Resources, Workspace, changed, gemm_candidate
from aot.core.grouping import Grouping
from aot.core.operands import Arrangement, operands
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.core.target import load_target
from aot.core.types import BF16, FP16
from aot.emulate.code import DeviceCode
from aot.emulate.execute import is_allowed
from aot.emulate.faults import FindingKind
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.emulate.schedule import Mode, Schedule
from aot.families._sm90_shifted_tile import (
    MAX_RAW,
    MAX_STAGES,
    MIN_RAW,
    MIN_STAGES,
    NUM_COPYING,
    NUM_MOVING,
    ShiftedOneTile,
    ShiftedTile,
    raw_bytes,
)
from aot.families.sm90_cluster_split_k import are_k_major
from aot.families.sm90_shifted import FAMILY, MAX_ACCUMULATORS
from aot.kinds.gemm.edge_shapes import EdgeShape
from aot.measure.verify import Verifier
from aot.space.enumeration import legal, takes_loads, unaligned
from aot.space.legality import check
from tests.compiling import EVERY
from tests.emulated import emulated_set
from tests.unit.accepted import reason

H200 = load_target("h200")
TILE = gemm_candidate("sm90_shifted", 64, 32, use_tma_store=False)
SCHEDULES = (Schedule(Mode.RANDOM, 1), Schedule(Mode.BEHIND_ITSELF, 1))
OPERATIONS = [x for x in Operation if x.types in (BF16, FP16) and not x.has_parts]
LAYOUTS = (Operation.BF16_KK, Operation.BF16_KN, Operation.BF16_MK, Operation.BF16_MN, Operation.BF16_KK_RESIDUAL)
COMBINATION = (
    "sm90_shifted computes a tile in a CTA, or in 2, 4 or 8 of a cluster that share k, with as many stages as fit, and "
    "stores elements"
)
REGISTERS = "{} needs {} accumulator registers a thread; {} fit beside the warps that move rows"
LAYOUT = "an operand that is not contiguous along k takes a side of 64, 128 or 256, got "


def accepted(operation):
    return [x for x in FAMILY.candidates(operation, H200) if isinstance(check(x, operation, H200), Accepted)]


# The space.


def test_its_space_is_every_tile_alone_and_shared_by_a_cluster():
    found = [x.gemm for x in FAMILY.candidates(Operation.BF16_KK, H200)]
    rows, columns = sorted({x.tile_m for x in found}), sorted({x.tile_n for x in found})
    assert rows == [64, 128, 256]
    assert [x for x in columns if x % 16 or not 16 <= x <= 192] == []
    sizes = [(x.tile_m, x.tile_n, x.split_k, x.swap_ab) for x in found]
    assert sorted(sizes) == sorted(product(rows, columns, (1, 2, 4, 8), (False, True)))
    assert {(x.split_k > 1, x.split_k_mode) for x in found} == {(False, "none"), (True, "cluster")}
    assert {(x.cluster_m, x.cluster_n, x.use_tma_store, x.schedule, x.num_stages) for x in found} == {
        (1, 1, False, "", 0)
    }


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: x.tag)
def test_each_number_of_rows_and_of_ctas_is_legal_either_way(layout):
    found = {(x.gemm.tile_m, x.gemm.swap_ab) for x in accepted(layout)}
    assert found == set(product((64, 128, 256), (False, True)))
    assert {x.gemm.split_k for x in accepted(layout)} == {1, 2, 4, 8}


def test_takes_every_layout_and_epilogue_without_a_gate():
    taken = [x for x in OPERATIONS if isinstance(check(changed(TILE, tile_n=64), x, H200), Accepted)]
    assert {x.layout for x in taken} == set(Layout)
    assert {x.types for x in taken} == {BF16, FP16}
    assert {x.grouping for x in taken} == {Grouping.DENSE, Grouping.BATCHED}
    assert taken == [x for x in OPERATIONS if x.gate is None and x.grouping in (Grouping.DENSE, Grouping.BATCHED)]


@pytest.mark.slow
def test_asks_for_no_alignment_and_for_no_workspace():
    assert FAMILY.alignment(TILE) == Alignment(loads=2, stores=1, only_unaligned=True)
    assert (FAMILY.workspace(TILE), FAMILY.multiples(TILE)) == (Workspace(), (1, 1))
    assert all(takes_loads(TILE, loads) for loads in (2, 4, 8, 16))
    assert all(TILE in unaligned(Operation.BF16_KK, H200, loads) for loads in (2, 4, 8, 16))
    assert "sm90_shifted" not in {x.family for x in legal(Operation.BF16_KK, H200)}


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        ({"split_k": 3, "split_k_mode": "cluster"}, Reason.COMBINATION, COMBINATION),
        ({"split_k": 16, "split_k_mode": "cluster"}, Reason.COMBINATION, COMBINATION),
        ({"split_k": 2, "split_k_mode": "serial"}, Reason.COMBINATION, COMBINATION),
        ({"cluster_m": 2}, Reason.COMBINATION, COMBINATION),
        ({"cluster_n": 2}, Reason.COMBINATION, COMBINATION),
        ({"use_tma_store": True}, Reason.COMBINATION, COMBINATION),
        ({"schedule": "elements"}, Reason.COMBINATION, COMBINATION),
        ({"num_stages": 2}, Reason.COMBINATION, COMBINATION),
        ({"tile_m": 96}, Reason.TILE, "a tile has 64, 128, 256 rows, got 96x32"),
        ({"tile_m": 192}, Reason.TILE, "a tile has 64, 128, 256 rows, got 192x32"),
        (
            {"split_k": 8, "split_k_mode": "cluster"},
            Reason.TILE,
            "64x32: 4 groups of 8 columns leave one of 8 CTAs none to store",
        ),
        ({"tile_n": 256}, Reason.REGISTERS, REGISTERS.format("64x256", 128, MAX_ACCUMULATORS[1])),
        ({"tile_m": 128, "tile_n": 200}, Reason.REGISTERS, REGISTERS.format("128x200", 100, MAX_ACCUMULATORS[2])),
    ],
)
def test_what_the_kernel_does_not_have_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "h200") == (why, message)


def test_columns_that_are_no_whole_groups_are_refused():
    assert reason(changed(TILE, tile_n=36), "h200")[0] is Reason.TILE


@pytest.mark.parametrize(
    ("operation", "change", "tile"),
    [
        (Operation.BF16_KN, {}, "64x32"),
        (Operation.BF16_KN, {"tile_n": 192}, "64x192"),
        (Operation.BF16_MK, {"swap_ab": True}, "64x32"),
        (Operation.FP16_MN, {"tile_n": 96}, "64x96"),
        (Operation.FP16_MN_BATCHED, {"tile_n": 96, "swap_ab": True}, "64x96"),
    ],
    ids=str,
)
def test_the_side_of_what_is_not_contiguous_along_k_is_moved_by_whole_warps(operation, change, tile):
    assert reason(changed(TILE, **change), "h200", operation) == (Reason.LAYOUT, f"{LAYOUT}{tile}")


@pytest.mark.parametrize(
    ("operation", "change"),
    [
        (Operation.BF16_KN, {"swap_ab": True}),
        (Operation.BF16_KN, {"tile_n": 128}),
        (Operation.BF16_MK, {"tile_m": 256}),
        (Operation.FP16_MN, {"tile_n": 64}),
    ],
    ids=str,
)
def test_of_what_is_contiguous_along_k_any_columns_are_moved(operation, change):
    assert isinstance(check(changed(TILE, **change), operation, H200), Accepted)


@pytest.mark.parametrize(
    ("operation", "change", "why"),
    [
        (Operation.BF16_KK_SWIGLU, {}, Reason.EPILOGUE),
        (Operation.E4M3_BF16_KK, {}, Reason.TYPES),
        (Operation.BF16_KK_GROUPED, {}, Reason.GROUPING),
        (Operation.BF16_KK, {"tile_m": 256, "tile_n": 96}, Reason.SMEM),
        (Operation.BF16_KK_RESIDUAL, {"tile_n": 192}, Reason.REGISTERS),
    ],
    ids=str,
)
def test_limits_that_other_families_have_too(operation, change, why):
    assert reason(changed(TILE, **change), "h200", operation)[0] is why


# The tile.


@pytest.mark.parametrize("operation", LAYOUTS, ids=lambda x: x.tag)
def test_a_tile_has_what_fits_the_shared_memory(operation):
    """Of all candidates: stages, then blocks under way, of what is left; both as few as must be where nothing fits."""
    room = H200.smem_bytes_per_block
    for candidate in FAMILY.candidates(operation, H200):
        tile = FAMILY.tile(candidate, operation, H200)
        assert type(tile) is (ShiftedOneTile if candidate.gemm.split_k == 1 else ShiftedTile)
        least = replace(tile, num_stages=MIN_STAGES, num_raw=MIN_RAW)
        if tile.smem_bytes > room:
            assert tile == least
            continue
        assert MIN_STAGES <= tile.num_stages <= MAX_STAGES
        assert MIN_RAW <= tile.num_raw <= MAX_RAW
        if tile.num_stages < MAX_STAGES:
            assert replace(least, num_stages=tile.num_stages + 1).smem_bytes > room
        if tile.num_raw < MAX_RAW:
            assert replace(tile, num_raw=tile.num_raw + 1).smem_bytes > room


@pytest.mark.parametrize("operation", LAYOUTS, ids=lambda x: x.tag)
def test_what_a_candidate_takes_is_what_its_tile_counts(operation):
    """A row that is copied has a piece of 8 elements more; a stage, and a block as it lies in memory, two barriers."""
    for candidate in accepted(operation):
        tile = FAMILY.tile(candidate, operation, H200)
        knobs, majors = candidate.gemm, are_k_major(candidate, operation)
        stage = (knobs.tile_m + knobs.tile_n) * 128
        block = sum(
            x * (64 + 8) * 2 if is_k_major else 64 * (x + 8) * 2
            for x, is_k_major in zip((knobs.tile_m, knobs.tile_n), majors, strict=True)
        )
        received = 0 if knobs.split_k == 1 else (knobs.split_k - 1) * tile.stored_bytes + 16
        smem_bytes = 1024 + received + tile.num_stages * (stage + 16) + tile.num_raw * (block + 16)
        warpgroups = 1 if knobs.tile_m == 64 else 2
        threads = 128 * warpgroups + NUM_MOVING + NUM_COPYING + 32
        assert FAMILY.resources(candidate, operation, H200) == Resources(smem_bytes, stage, threads, tile.num_stages)
        assert smem_bytes <= H200.smem_bytes_per_block
        assert (tile.are_k_major, sum(tile.raw_parts)) == (majors, block)
        assert tile.num_accumulators <= MAX_ACCUMULATORS[warpgroups]
        assert tile.num_accumulators + 16 <= min(65536 // threads, 255)


def test_a_small_tile_has_most_blocks_under_way_and_a_large_one_fewest():
    found = [FAMILY.tile(changed(TILE, tile_m=x), Operation.BF16_KK, H200) for x in (64, 256)]
    assert [(x.num_stages, x.num_raw) for x in found] == [(MAX_STAGES, MAX_RAW), (MIN_STAGES, MIN_RAW)]


def test_a_block_as_it_lies_in_memory_has_a_piece_more_in_each_row():
    assert raw_bytes(48, is_k_major=True) == 48 * 144
    assert raw_bytes(128, is_k_major=False) == 64 * 272


# The kernels.


def of(operation, *sizes, splits=1, swap_ab=False):
    knobs = dict(zip(("tile_m", "tile_n"), sizes, strict=False))
    mode = "cluster" if splits > 1 else "none"
    return KernelKey(operation, changed(TILE, **knobs, split_k=splits, split_k_mode=mode, swap_ab=swap_ab))


FEW = (
    of(Operation.BF16_KK),
    of(Operation.BF16_KN_BATCHED, 64, 64, splits=2),
    of(Operation.FP16_MN, 64, 64),
    of(Operation.BF16_KN, 64, 48, swap_ab=True),
    of(Operation.FP16_KK_RESIDUAL, 64, 32, splits=4),
    of(Operation.BF16_KK_RESIDUAL, 128, 16, swap_ab=True),
    of(Operation.BF16_MK, 128, 64, splits=2, swap_ab=True),
    of(Operation.FP16_MK, 256, 16),
    of(Operation.BF16_MN, 64, 128),
)
"""Each layout, 1, 2 and 4 CTAs, operands exchanged and not, a residual of either, a batch, and 128 rows a warpgroup."""
MORE = [of(x, 64, 64) for x in OPERATIONS if x.gate is None and x.grouping in FAMILY.groupings]
KEYS = tuple(dict.fromkeys((*FEW, *MORE))) if EVERY else FEW[:2]
ALIGNMENTS = ((0, 8), (1, 1), (2, 2), (7, 1), (0, 1), (4, 4), (8, 8), (1, 8))
"""Elements behind a multiple of 16 bytes at which operands begin, and of which their strides are multiples: TMA takes
two of them."""
SHARED = Arrangement(), Arrangement(shares_b=True), Arrangement(shares_a=True)
"""What the cases of a batch take in turn."""


@dataclass(frozen=True)
class OneAligned(EdgeShape):
    """A case of which TMA takes one operand, wherever the other lies."""

    aligned: Argument = Argument.A

    def matrices(self):
        """Return where the elements of each operand lie behind its first one."""
        found = super().matrices()
        found[self.aligned] = operands(self.problem, self.padding, self.arrangement, 8)[self.aligned]
        return found

    def offset_of(self, argument):
        """Return how many elements an operand lies behind an aligned address."""
        return 0 if argument is self.aligned else super().offset_of(argument)


def extents(key):
    """List (m, n, k) below, at and past a tile's edge, with k inside of one block and behind many.

    In the fourth and the last, blocks lie inside of the operands' rows; the last two have more blocks than each CTA has
    room for under way. D, or its last tile, has 1, 15, 9, 7 and 8 columns besides whole tiles of them.
    """
    knobs = key.candidate.gemm
    m, n = (knobs.tile_n, knobs.tile_m) if knobs.swap_ab else (knobs.tile_m, knobs.tile_n)
    ring = 64 * (MAX_RAW + 2) * knobs.split_k
    return (1, 1, 1), (m, n, 64), (m + 1, n + 15, 70), (m + 9, n + 9, 200), (5, 7, ring + 5), (m + 8, n + 8, ring + 64)


def case_of(kind, key, sizes, number, alignment, **fields):
    """Make a case whose operands lie at one of ALIGNMENTS, D at any element; of a batch what is shared takes turns."""
    is_batch = key.operation.grouping is Grouping.BATCHED
    offset, multiple = ALIGNMENTS[alignment]
    return kind(
        Problem(key.operation, *sizes, 2 if is_batch else 1),
        padding=(number + alignment) % 2 * multiple,
        offset=offset,
        arrangement=SHARED[(number + alignment) % 3] if is_batch else Arrangement(),
        stride_multiple=multiple,
        stores_anywhere=True,
        **fields,
    )


def shapes(key):
    """List the cases of a kernel: each extent once with both operands alike, and once with one that TMA takes.

    Of the few kernels, where all cases are asked for, each extent but the largest with operands at each of ALIGNMENTS.
    """
    found = []
    for i, sizes in enumerate(extents(key)):
        has_all = EVERY and key in FEW and sizes != extents(key)[-1]
        alike = range(len(ALIGNMENTS)) if has_all else (i,)
        found += [case_of(EdgeShape, key, sizes, i, j) for j in alike]
        found.append(case_of(OneAligned, key, sizes, i, i + 1, aligned=(Argument.A, Argument.B)[i % 2]))
    return found


def executed(kernels, key, shape, edit=lambda text: text):
    """Run a kernel whose PTX is edited on a case under each schedule; B is constant in every second run.

    Returns:
        What is wrong beside results, and the counts of operations in the first run.
    """
    gpu = EmulatedGpu(kernels.target.l2_bytes, SCHEDULES)
    codes = [DeviceCode.of(x) for x in kernels.products]
    index = [x.kernel.name for x in kernels.products].index(key.name)
    codes[index] = replace(codes[index], text=edit(codes[index].text))
    emulated = EmulatedKernels(kernels.library, codes, gpu, kernels.target)
    promises = tuple(bool(i % 2) for i in range(len(SCHEDULES)))
    verifier = Verifier(gpu, emulated, np.random.default_rng(2), num_guards=0)
    verifier.run_each(shape, index, promises, is_reproducible=True)
    wrong = [
        finding
        for run, is_promised in zip(gpu.executions, promises, strict=True)
        for finding in run.report.findings
        if finding.kind.is_fault
        or (finding.kind is FindingKind.EARLY and not is_allowed(finding, run, is_promised=is_promised))
    ]
    return wrong, gpu.executions[0].report.counts


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return emulated_set(KEYS, "h200", tmp_path_factory.mktemp("shifted"))


@pytest.mark.walk
@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_results_are_right_in_whatever_order_the_warps_run(compiled, key):
    """Poison lies behind every extent, and a launch may begin while the one in front runs, whose B is constant."""
    for shape in shapes(key):
        assert executed(compiled, key, shape)[0] == [], shape


@pytest.mark.slow
@pytest.mark.parametrize("key", FEW[:2], ids=lambda x: x.name)
@pytest.mark.parametrize(
    ("alignment", "aligned"),
    [(0, ()), (1, ()), (1, (Argument.A,)), (1, (Argument.B,))],
    ids=["tma", "copies", "tma of a", "tma of b"],
)
def test_tma_loads_what_it_takes_and_warps_copy_the_rest(compiled, key, alignment, aligned):
    """All of the room for blocks under way is used again. D has a row of a tile, and fewer columns than a piece."""
    sizes = 1, 3, extents(key)[4][2]
    kind, fields = (OneAligned, {"aligned": aligned[0]}) if aligned else (EdgeShape, {})
    shape = case_of(kind, key, sizes, 0, alignment, **fields)
    wrong, counts = executed(compiled, key, shape)
    assert wrong == []
    num_blocks = shape.problem.num_groups * -(-sizes[2] // 64)
    num_by_tma = 2 if alignment == 0 else len(aligned)
    assert counts.get("tma.load", 0) == num_blocks * num_by_tma
    assert ("cp.async" in counts) == (num_by_tma < 2)


@pytest.mark.slow
@pytest.mark.parametrize("alignment", [0, 1])
def test_a_cta_that_has_no_block_of_k_waits_before_it_lets_the_next_kernel_start(compiled, alignment):
    """One of two that share a k of 1; B is constant in the second run, so that nothing else makes it wait."""
    shape = case_of(EdgeShape, FEW[1], (1, 1, 1), 0, alignment)
    assert executed(compiled, FEW[1], shape)[0] == []


FENCE = "fence.proxy.async.shared::cta;"


@pytest.mark.slow
def test_what_warps_move_is_fenced_for_wgmma(compiled):
    """The proof can fail: without the fence in front of their arrival the interpreter tells of it."""

    def unfenced(text):
        assert text.count(FENCE) == 1
        return text.replace(FENCE, "")

    shape = case_of(EdgeShape, FEW[0], (5, 3, 200), 0, 1)
    assert executed(compiled, FEW[0], shape)[0] == []
    wrong, _ = executed(compiled, FEW[0], shape, unfenced)
    assert {x.kind for x in wrong} == {FindingKind.PROXY_FENCE}
