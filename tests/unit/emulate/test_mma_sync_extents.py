"""Kernels of `mma_sync` in the interpreter: poison behind every extent, and buffers that end where an operand ends.

The kernels take operands of any alignment, and mask what lies behind m, n and k themselves, where others leave that to
TMA. So each layout, each number of bytes that a load brings and each epilogue meets problems that end inside of a load,
inside of a tile and at its edge, in rows that are longer than their extent and begin at any element.
"""

import re
from itertools import product

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.epilogue import OF_ONE_WEIGHT, Epilogue
from aot.core.errors import VerificationError
from aot.core.grouping import Grouping
from aot.core.operands import Arrangement
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.core.types import BF16, FP16
from aot.emulate.faults import Fault
from aot.emulate.schedule import Mode, Schedule
from aot.kinds.gemm.edge_shapes import EdgeShape
from tests.compiling import EVERY
from tests.emulated import EditedKernels
from tests.equivalence.operand_kernels import UNALIGNED

pytestmark = pytest.mark.slow
LOADS = (16, 8, 4, 2)
"""Bytes."""
WHOLE = (16, 16, 64)
"""A tile of 16 x 16 by a block of k: nothing is masked."""
EXTENTS = ((1, 1, 1), WHOLE, (17, 15, 33), (31, 33, 70), (5, 2, 63))
"""(m, n, k) below, at and past the edges of that."""
SCHEDULES = (Schedule(Mode.RANDOM, 1), Schedule(Mode.LAZY, 1))[: 2 if EVERY else 1]
OPERATIONS = [x for x in Operation if x.types in (BF16, FP16) and x.grouping is Grouping.DENSE and not x.has_parts]
BATCHED = [x for x in Operation if x.types in (BF16, FP16) and x.grouping is Grouping.BATCHED]
ARRANGEMENTS = (Arrangement(), Arrangement(shares_b=True), Arrangement(shares_a=True))
"""What the cases of a batch take in turn."""


def of(operation, loads):
    return KernelKey(operation, gemm_candidate("mma_sync", 16, 16, schedule=f"a{loads}k4", use_tma_store=False))


FEW = (
    of(Operation.BF16_KK_SWIGLU, 16),
    of(Operation.FP16_KN, 8),
    of(Operation.BF16_MK, 4),
    of(Operation.FP16_MN, 2),
    KernelKey(Operation.BF16_KN_BATCHED, UNALIGNED),
)
"""Each number of bytes, layout and type once, an epilogue of two halves, and a batch whose k two CTAs share."""


def every():
    """List each layout with each number of bytes, each epilogue and each batch with one of them; all of both types."""
    plain = [x for x in OPERATIONS if x.epilogue is Epilogue.NONE]
    others = [x for x in OPERATIONS if x.epilogue is not Epilogue.NONE]
    found = [
        *(of(*x) for x in product(plain, LOADS)),
        *(of(x, LOADS[i % len(LOADS)]) for i, x in enumerate(others)),
        *(of(x, 2) for x in others if x.gate is not None),  # rows of either half may begin in front of both
        *(of(x, LOADS[i % len(LOADS)]) for i, x in enumerate(BATCHED)),
        FEW[-1],
    ]
    return list(dict.fromkeys(found))


KEYS = every() if EVERY else FEW

OWN = tuple(
    KernelKey(operation, gemm_candidate("mma_sync", *tile, schedule=schedule, use_tma_store=False))
    for operation, tile, schedule in (
        (Operation.BF16_KN_BATCHED, (64, 80), "o4k1"),  # of 12 rows of 10 pieces 128 threads have 120
        (Operation.FP16_MN, (64, 96), "o2k1"),
        (Operation.BF16_KK, (16, 32), "r2k4"),
    )
)
"""Tiles of other widths, whose operands are loaded each by its own rows, and one that moves those that there are."""

ALIGNED = {(67, 72, 70): "B", (70, 81, 40): "A", (3, 83, 70): ""}
"""(m, n, k) past the edges of those tiles, and which operand's rows begin at multiples of 16 bytes in layout kn."""

FEW_ROWS = {(1, 33, 70): "", (17, 5, 131): ""}
"""Of the tile that moves few rows."""


def shapes(key):
    """List the cases of a kernel: rows padded by a few loads, from an address that is no more aligned than it asks."""
    loads = int(re.match(r"a(\d+)k", key.candidate.gemm.schedule)[1])
    step, is_batch = loads // 2, key.operation.grouping is Grouping.BATCHED
    return [
        EdgeShape(
            Problem(key.operation, m, n, k, 2 if is_batch else 1),
            padding=(1 + i % 3) * step,
            offset=step if loads < 16 else 0,
            arrangement=ARRANGEMENTS[i % 3]
            if is_batch
            else Arrangement(is_linear_first=key.operation.gate is not None and i % 2 == 0),
            stride_multiple=step,
            stores_anywhere=True,
        )
        for i, (m, n, k) in enumerate(EXTENTS)
    ]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return EditedKernels([*KEYS, *OWN], "thor", tmp_path_factory.mktemp("mma_sync"))


def test_all_that_there_is_is_among_them():
    keys = every()
    assert {(x.operation.layout, x.operation.types) for x in keys} == set(product(Layout, (BF16, FP16)))
    assert {(x.operation.epilogue, x.operation.types) for x in keys} >= set(product(OF_ONE_WEIGHT, (BF16, FP16)))
    plain = [x for x in keys if x.operation.epilogue is Epilogue.NONE and x.operation in OPERATIONS]
    assert len(plain) == len(set(Layout)) * 2 * len(LOADS)
    assert {x.operation for x in keys} == {*OPERATIONS, *BATCHED}
    assert {x.candidate.gemm.schedule for x in FEW} == {f"a{loads}k4" for loads in LOADS}


@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_rows_are_longer_than_their_extents(key):
    for shape in shapes(key):
        matrices = shape.matrices()
        for argument, is_row_major in (
            (Argument.A, key.operation.a.is_k_major),
            (Argument.B, key.operation.b.is_k_major),
        ):
            matrix = matrices[argument]
            run = matrix.num_columns if is_row_major else matrix.num_rows
            assert max(matrix.row_stride, matrix.column_stride) > run
        assert matrices[Argument.D].row_stride > shape.problem.n


@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_nothing_behind_an_extent_is_used(kernels, key):
    for shape in shapes(key):
        assert kernels.run(key, shape, SCHEDULES) == [], shape


def whole_pieces(text):
    """Let each copy bring all of its bytes, wherever the operand ends."""
    found, count = re.subn(r"(cp\.async\.c[ag]\.shared\.global [^;]*, \d+), %r\d+;", r"\1;", text)
    assert count
    return found


@pytest.mark.parametrize("key", FEW, ids=lambda x: x.name)
def test_a_kernel_that_masks_nothing_is_found_on_every_problem_that_ends_inside_of_a_load(kernels, key):
    """The proof can fail: what lies behind is poison, or no memory at all."""
    for shape in shapes(key):
        if (shape.problem.m, shape.problem.n, shape.problem.k) != WHOLE:
            with pytest.raises((Fault, VerificationError), match=r"address outside of an allocation|not finite"):
                kernels.run(key, shape, SCHEDULES, whole_pieces)


def without_pieces(text):
    """Leave out the copies of 16 bytes."""
    found, count = re.subn(r"cp\.async\.cg\.shared\.global [^;]*;", "", text)
    assert count
    return found


@pytest.mark.parametrize("key", OWN, ids=lambda x: x.name)
def test_operands_are_loaded_by_their_own_rows(kernels, key):
    """Those of 4 bytes bring by 16 what is aligned alone, and are wrong without; those of 2 bytes do always."""
    loads = int(key.candidate.gemm.schedule[1])
    groups = 2 if key.operation.grouping is Grouping.BATCHED else 1
    for sizes, aligned in (FEW_ROWS if key.operation is Operation.BF16_KK else ALIGNED).items():
        shape = EdgeShape(
            Problem(key.operation, *sizes, groups),
            padding=0,
            offset=0,
            stride_multiple=loads // 2,
            stores_anywhere=True,
        )
        assert kernels.run(key, shape, SCHEDULES) == [], shape
        if loads == 4 and not aligned:
            assert kernels.run(key, shape, SCHEDULES[:1], without_pieces) == [], shape
        else:
            with pytest.raises(VerificationError):
                kernels.run(key, shape, SCHEDULES[:1], without_pieces)
