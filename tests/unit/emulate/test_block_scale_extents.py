"""Kernels of `sm120_block_scale` in the interpreter: NaN behind every extent, factors that differ in every block.

What fills the rows of atoms up is NaN, and so is what lies behind k in a row; where a row's last atom ends behind k,
it is zero, as the format has it. The extents end inside of pieces of 16 bytes, of instructions, atoms and tiles.
"""

import re

import pytest

from aot.core.candidate import KernelKey
from aot.core.errors import VerificationError
from aot.core.operands import plain_arrangement
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.emulate.faults import Fault
from aot.emulate.schedule import Mode, Schedule
from aot.families.sm120_block_scale import FAMILY
from aot.kinds.gemm.edge_shapes import EdgeShape
from tests.compiling import EVERY
from tests.emulated import EditedKernels, target_of
from tests.unit.accepted import named

pytestmark = pytest.mark.slow
SCHEDULES = tuple(Schedule(x, 1) for x in ((Mode.RANDOM, Mode.LAZY) if EVERY else (Mode.RANDOM,)))


def of(operation, tile):
    return KernelKey(operation, named(f"sm120_block_scale_{tile}_direct"))


FEW = {
    of(Operation.NVFP4_BF16_KK_BIAS, "16x32_c1x1_b128k4"): ((17, 33, 1824),),
    of(Operation.MXFP4_FP16_KK, "16x64_c1x1_b64k2"): ((7, 70, 416),),
    of(Operation.MXFP8_BF16_KK_SWIGLU, "16x64_c1x1_b64k2"): ((3, 67, 389),),
    of(Operation.MXFP8_MXFP4_BF16_KK_RESIDUAL, "16x128_c1x1_b128k1"): ((7, 137, 384),),
}
"""A kernel of each format, and (m, n, k): k in one, two and four warps, more blocks of it than stages, and words of
factors that stay, that are moved, and that serve two stages."""


def every():
    """List each kernel that is legal for plain products, and each operation with one of them."""
    target = target_of("gb10")
    operations = [x for x in Operation if x.types in FAMILY.types and x.epilogue in FAMILY.epilogues]
    keys = [KernelKey(x, c) for x in operations for c in FAMILY.candidates(x, target)]
    fits = [x for x in keys if FAMILY.resources(x.candidate, x.operation, target).smem_bytes <= 101_376]
    plain = [x for x in fits if x.operation.tag in ("nvfp4_bf16_kk", "mxfp4_bf16_kk", "mxfp8_bf16_kk")]
    one = [next(x for x in fits if x.operation is y) for y in operations if y.grouping.value == "dense"]
    return dict.fromkeys((*plain, *one), ((37, 72, 384), (131, 136, 640)))


CASES = {**every(), **FEW} if EVERY else FEW


def shape(key, extents):
    """Give a case whose rows are padded by a load and more, and begin at multiples of what TMA takes; D's anywhere."""
    return EdgeShape(
        Problem(key.operation, *extents),
        padding=32,
        offset=0,
        arrangement=plain_arrangement(key.operation),
        stride_multiple=32,
        stores_anywhere=True,
    )


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return EditedKernels(list(CASES), "gb10", tmp_path_factory.mktemp("block_scale"))


@pytest.mark.parametrize("key", CASES, ids=lambda x: x.name)
def test_nothing_behind_an_extent_is_used(kernels, key):
    for extents in CASES[key]:
        assert kernels.run(key, shape(key, extents), SCHEDULES) == [], extents


@pytest.mark.parametrize(
    ("index", "old", "new"),
    [
        (0, r"(cp\.async\.c[ag]\.shared\.global [^;]*, \d+), %r\d+;", r"\1;"),
        (3, r"\{2, 0\}", "{1, 0}"),
    ],
    ids=["all bytes of a piece are copied", "factors of another block are taken"],
)
def test_a_kernel_with_a_fault_is_found(kernels, index, old, new):
    """The proof can fail: what lies behind an extent is poison, or no memory, and no block has another's factor."""
    key = list(FEW)[index]

    def edit(text):
        found, count = re.subn(old, new, text)
        assert count
        return found

    with pytest.raises((Fault, VerificationError)):
        kernels.run(key, shape(key, FEW[key][0]), SCHEDULES, edit)
