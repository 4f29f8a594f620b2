"""Kernels of `gemv` in the interpreter: buffers that end where an operand ends, and poison behind every extent.

They load B by 16 bytes from multiples of 16 on, and leave out what lies outside of it. So each layout meets rows of B
that begin at every place between two such multiples, are shorter than a load, and end where the buffer does.
"""

import re
from itertools import product

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.errors import VerificationError
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.emulate.faults import Fault
from aot.emulate.schedule import Mode, Schedule
from aot.kinds.gemm.edge_shapes import EdgeShape
from tests.compiling import EVERY
from tests.emulated import EditedKernels

pytestmark = pytest.mark.slow
SCHEDULES = (Schedule(Mode.RANDOM, 1), Schedule(Mode.LAZY, 1))[: 2 if EVERY else 1]
EXTENTS = ((1, 1, 1), (1, 7, 5), (1, 3, 9), (1, 70, 33), (2, 9, 63), (1, 25, 300), (3, 1, 70))
"""(m, n, k): below a load, past one, and past what the lanes of a row have."""
LONG = {"r4k1l4": (1, 17, 200), "r1k8": (1, 2, 17001), "r2k4": (2, 3, 4501), "k8": (1, 60, 4203), "k16": (1, 9, 4203)}
"""(m, n, k) past what a thread has of k at once, by schedules: it takes a second turn."""


def rows(schedule, columns, operation=Operation.BF16_KK):
    return KernelKey(operation, gemm_candidate("gemv", 1, columns, schedule=schedule, use_tma_store=False))


def columns(schedule, tile_n, splits=1, operation=Operation.BF16_KN):
    mode = SplitK.CLUSTER if splits > 1 else SplitK.NONE
    knobs = {"use_tma_store": False, "split_k": splits, "split_k_mode": mode}
    return KernelKey(operation, gemm_candidate("gemv", 1, tile_n, schedule=schedule, **knobs))


KEYS = (
    rows("r4k1l4", 128),
    rows("r1k8", 1),
    rows("r2k4", 2, Operation.FP16_MK),
    columns("k8", 8),
    columns("k16", 24, 2, Operation.FP16_MN),
    columns("k8", 56, 4),
    rows("r4k1l4", 128, Operation.BF16_KK_BIAS),
    rows("r2k4", 2, Operation.FP16_KK_RESIDUAL),
)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return EditedKernels(KEYS, "h200", tmp_path_factory.mktemp("gemv"))


def shapes(key):
    """Give each extent addresses that begin at other elements, and rows as long as their extent or longer."""
    extents = (*EXTENTS, LONG[key.candidate.gemm.schedule])
    for i, ((m, n, k), offset) in enumerate(product(extents, (0, 1, 3, 6) if EVERY else (1, 6))):
        padding = (0, 1, 5)[i % 3]
        yield EdgeShape(
            Problem(key.operation, m, n, k),
            padding=padding,
            offset=offset,
            stride_multiple=1,
            stores_anywhere=True,
        )


@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_nothing_outside_of_an_operand_is_used(kernels, key):
    for shape in shapes(key):
        assert kernels.run(key, shape, SCHEDULES) == [], shape


def always(text):
    """Let each load of 16 bytes be done, wherever it lies."""
    found, count = re.subn(r"@there (ld\.global\.v4\.b32)", r"\1", text)
    assert count
    return found


@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_a_kernel_that_loads_whatever_lies_there_is_found(kernels, key):
    """The proof can fail: what lies behind is poison, or no memory at all."""
    found = 0
    for shape in shapes(key):
        try:
            kernels.run(key, shape, SCHEDULES[:1], always)
        except (Fault, VerificationError):
            found += 1
    assert found > len(EXTENTS) // 2
