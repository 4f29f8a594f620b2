"""Groups whose B lie apart are executed: a table of places is written in front, and each group multiplied by its own B.

The matrices of a case's stack stand in for separate allocations, in the opposite order, so that no step leads from one
to the next. `make walk` executes more kernels.
"""

import ctypes

import numpy as np
import pytest

from aot.compile.tuned import tuned_kernel
from aot.core.candidate import KernelKey
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.core.target import load_target
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.families.simt import FAMILY as FALLBACK
from aot.kinds.gemm.edge_shapes import shape_of
from aot.kinds.trials import trial_of
from aot.measure.verify import EdgeCase, Verifier
from tests.compiling import EVERY
from tests.emulated import emulated_set
from tests.equivalence.operand_kernels import grouped_in_atoms
from tests.runtime import test_grouped_kernels as groups

pytestmark = pytest.mark.slow
NVFP4, MXFP8, BF16 = (
    Operation.NVFP4_BF16_KK_GROUPED,
    Operation.MXFP8_BF16_KK_GROUPED_SWIGLU,
    Operation.BF16_KK_GROUPED,
)
SOME = ((NVFP4, grouped_in_atoms(128, 64, "static")), (NVFP4, None))
MORE = ((BF16, groups.sm100(128, 64)), (BF16, None), (MXFP8, grouped_in_atoms(128, 128)), (MXFP8, None))
EXTENTS = (6, 24, 96)
"""m, n and k of each of 7 groups."""


class SeparateB(EmulatedKernels):
    """Kernels that are called with the addresses of the matrices of a stack, from the last to the first."""

    def bind(self, call, *, b_is_constant=False):
        bound = super().bind(call, b_is_constant=b_is_constant)
        b = call.tensors[Argument.B]
        step = call.problem.operation.b.element.size_of(b.matrix.group_stride)
        self.first = b.address
        addresses = [b.address + i * step for i in reversed(range(b.matrix.num_groups))]
        bound.b_of_groups = (ctypes.c_void_p * len(addresses))(*addresses)
        bound.b.data, bound.group_strides.b = None, 0
        return bound

    def _declare(self, bound, workspace):
        bound.b.data = self.first
        super()._declare(bound, workspace)
        bound.b.data = None


@pytest.mark.parametrize(
    ("operation", "candidate"),
    SOME + MORE if EVERY else SOME,
    ids=lambda x: "fallback" if x is None else x.tag if isinstance(x, Operation) else x.name,
)
def test_each_group_is_multiplied_by_the_b_at_its_address(operation, candidate, tmp_path):
    candidate = candidate or next(iter(FALLBACK.candidates(operation, load_target("thor"))))
    kernels = emulated_set([KernelKey(operation, candidate)], "thor", tmp_path)
    gpu, trial = EmulatedGpu(kernels.target.l2_bytes), trial_of(operation)
    library = SeparateB(kernels.library, [DeviceCode.of(x) for x in kernels.products], gpu, kernels.target)
    case = shape_of(tuned_kernel(kernels.products[0].kernel), EXTENTS)
    drawn = {}

    def draw(case, rng):
        drawn.update(trial.draw(case, rng))
        return dict(drawn)

    edge = EdgeCase(gpu, library, case, np.random.default_rng(5), 0, draw)
    in_order = edge.compare
    edge.compare = trial.check(case, drawn | {Argument.B: drawn[Argument.B][::-1]})
    verifier = Verifier(gpu, library, np.random.default_rng(5), num_guards=0)
    found = verifier._run(0, edge, edge.bound)
    assert edge.compare(found).fault == ""
    assert in_order(found).fault
