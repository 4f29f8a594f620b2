"""Kernels of packed weights by many rows of x, and their fallback, are executed through a wheel's host code.

`make test` executes a kernel each on `tcgen05` of those that promote sums, that do not, and that read a weight in rows,
on small cases; `make walk` executes kernels of every format, and an H200's, on more.
"""

import pytest

from aot.core.candidate import Accepted, KernelKey
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.emulate.execute import ExecutionOptions, Executor
from aot.emulate.schedule import Mode, Schedule
from aot.families import families_of
from aot.families.sm90_weight_only import FAMILY as OF_HOPPER
from aot.families.sm90_weight_only import is_promoted
from aot.families.sm100_weight_only import FAMILY as OF_THOR
from aot.space.legality import check
from tests.compiling import EVERY
from tests.emulated import emulated_set

pytestmark = pytest.mark.slow
TILES = ("128x48_c2x1_direct", "256x48_c1x1_direct", "64x64_c1x1_direct_cluster4", "64x48_c1x1_direct")
PROMOTED = ("128x48_c1x1_pingpong_direct", "128x48_c1x1_pingpong_direct_cluster2")
FEW = {
    "h200": (
        ("sm90_weight_only_64x48_c1x1_direct_cluster2_swap", Operation.BF16_INT4_G128_KK),
        ("sm90_weight_only_128x48_c1x1_direct_swap", Operation.BF16_NVFP4_KK),
        ("weight_only_simt_64x64_c1x1_direct", Operation.BF16_MXFP4_KK),
        ("weight_only_simt_64x64_c1x1_direct", Operation.FP16_NVFP4_ROWS_KK),
        ("weight_only_simt_64x64_c1x1_direct", Operation.BF16_MXFP4_ROWS_KK),
        ("weight_only_simt_64x64_c1x1_direct", Operation.BF16_NVFP4_KK_GEGLU),
        ("weight_only_blocks1_columns8_stages2_tiles2_warps4", Operation.FP16_INT4_G64_ZEROS_KK_SWIGLU),
    ),
    "thor": (
        ("sm100_weight_only_128x32_c1x1_direct_swap", Operation.BF16_INT4_G128_KK),
        ("sm100_weight_only_128x64_c1x1_direct_swap", Operation.FP16_INT8_KK),
        ("sm100_weight_only_128x32_c1x1_direct_swap", Operation.BF16_NVFP4_ROWS_KK),
        ("sm100_weight_only_128x32_c1x1_direct_swap", Operation.BF16_MXFP4_ROWS_KK),
        ("sm100_weight_only_128x32_c1x1_direct_swap", Operation.BF16_INT4_G128_KK_SWIGLU),
        ("sm100_weight_only_128x64_c1x1_direct_swap", Operation.FP16_NVFP4_KK_GEGLU),
        ("weight_only_blocks1_columns16_stages2_tiles4_warps4", Operation.BF16_NVFP4_ROWS_KK_SWIGLU),
    ),
}
OF_GATES = 64
"""Columns of the tiles of gates that are executed."""
MODES = tuple(Mode)
MOST = 20_000 if EVERY else 8_000
"""Warp instructions of a case."""


def key(name, operation, target):
    """Give the kernel of a name."""
    device = load_target(target)
    candidates = (x for family in families_of(operation, device) for x in family.candidates(operation, device))
    return KernelKey(operation, next(x for x in candidates if x.name == name))


def every(target):
    """List kernels of every format."""
    device, dense = load_target(target), [x for x in Operation if x.grouping is Grouping.DENSE]
    if target == "thor":
        operations = [x for x in dense if x.types in OF_THOR.types and x.epilogue in OF_THOR.epilogues]
        found = [KernelKey(x, y) for x in operations for y in OF_THOR.candidates(x, device)]
        found = [x for x in found if isinstance(check(x.candidate, x.operation, device), Accepted)]
        return [x for x in found if x.operation.gate is None or x.candidate.gemm.tile_n == OF_GATES]
    found = []
    for operation in [x for x in dense if x.types in OF_HOPPER.types and x.epilogue in OF_HOPPER.epilogues]:
        names = (*TILES, *(PROMOTED if is_promoted(operation) else ()))
        found += [key(f"sm90_weight_only_{name}_swap", operation, target) for name in names]
    return found


def keys(target):
    """List what is executed."""
    return [*(key(*x, target) for x in FEW[target]), *(every(target) if EVERY else ())]


@pytest.mark.parametrize("target", FEW if EVERY else ["thor"])
def test_they_are_right(target, tmp_path):
    """Each is executed in orders of one kind, the next one of the next."""
    made = emulated_set(list(dict.fromkeys(keys(target))), target, tmp_path)
    for i, each in enumerate(keys(target)):
        schedule = Schedule(MODES[i % len(MODES)], i)
        result = Executor(made, ExecutionOptions((schedule,), max_instructions=MOST)).execute(each.name)
        assert result.is_right, [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right]
        assert result.cases
