"""Groups whose B lie apart are executed: a table of places is written in front, and each group multiplied by its own B.

The matrices of a case's stack stand in for separate allocations, in the opposite order, so that no step leads from one
to the next. Atoms of factors have an order of their own, each two groups' exchanged, so that factors which are found
by B's place, or as if all were one run, are another group's. `make walk` executes more kernels.
"""

import ctypes

import numpy as np
import pytest

from aot.compile.tuned import tuned_kernel
from aot.core.candidate import KernelKey
from aot.core.formats import FactorLayout
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
MIXED = Operation.MXFP8_MXFP4_BF16_KK_GROUPED
GROUPS = 7
REVERSED, EXCHANGED = list(reversed(range(GROUPS))), [1, 0, 3, 2, 5, 4, 6]
"""Which matrix of the stack is each group's, and which atoms."""
BOTH, OF_B, OF_FACTORS = ("b", "scale_b"), ("b",), ("scale_b",)
SOME = ((NVFP4, grouped_in_atoms(128, 64, "static"), BOTH),)
MORE = (
    (NVFP4, None, BOTH),
    *((BF16, groups.sm100(128, 64), OF_B), (BF16, None, OF_B)),
    *((MXFP8, grouped_in_atoms(128, 128), BOTH), (MXFP8, None, BOTH)),
    *((MIXED, grouped_in_atoms(128, 64, "static"), BOTH), (MIXED, None, BOTH)),
    *((NVFP4, grouped_in_atoms(128, 64, "static"), x) for x in (OF_B, OF_FACTORS)),
    *((NVFP4, None, x) for x in (OF_B, OF_FACTORS)),
)
EXTENTS = (6, 24, 96)
"""m, n and k of each of 7 groups."""


class Separate(EmulatedKernels):
    """Kernels that are called with the addresses of the matrices of a stack, of its atoms of factors, or of both."""

    apart = BOTH

    def bind(self, call, *, b_is_constant=False):
        bound = super().bind(call, b_is_constant=b_is_constant)
        operation = call.problem.operation
        b = call.tensors[Argument.B]
        assert b.matrix.num_groups == GROUPS
        self.first = {"b": b.address}
        steps = {"b": operation.b.element.size_of(b.matrix.group_stride)}
        if operation.types.factors is FactorLayout.ATOMS:
            self.first["scale_b"], steps["scale_b"] = bound.scale_b.data, bound.group_strides.scale_b
        self.first = {name: address for name, address in self.first.items() if name in self.apart}
        for name, first in self.first.items():
            order = REVERSED if name == "b" else EXCHANGED
            addresses = (ctypes.c_void_p * GROUPS)(*(first + i * steps[name] for i in order))
            setattr(bound, f"{name}_of_groups", addresses)
            getattr(bound, name).data = None
            setattr(bound.group_strides, name, 0)
        return bound

    def _declare(self, bound, workspace):
        for name, first in self.first.items():
            getattr(bound, name).data = first
        super()._declare(bound, workspace)
        for name in self.first:
            getattr(bound, name).data = None


def of_groups(operation, drawn, order_of_b, order_of_factors):
    """Return the operands of a case as its groups have them."""
    found = {Argument.B: drawn[Argument.B][order_of_b]}
    if operation.types.factors is FactorLayout.ATOMS:
        found[Argument.SCALE_B] = drawn[Argument.SCALE_B][order_of_factors]
    return drawn | found


@pytest.mark.parametrize(
    ("operation", "candidate", "apart"),
    SOME + MORE if EVERY else SOME,
    ids=lambda x: "fallback" if x is None else "-".join(x) if isinstance(x, tuple) else getattr(x, "tag", "") or x.name,
)
def test_each_group_is_multiplied_by_the_b_at_its_address(operation, candidate, apart, tmp_path):
    candidate = candidate or next(iter(FALLBACK.candidates(operation, load_target("thor"))))
    kernels = emulated_set([KernelKey(operation, candidate)], "thor", tmp_path)
    gpu, trial = EmulatedGpu(kernels.target.l2_bytes), trial_of(operation)
    library = Separate(kernels.library, [DeviceCode.of(x) for x in kernels.products], gpu, kernels.target)
    library.apart = apart
    case = shape_of(tuned_kernel(kernels.products[0].kernel), EXTENTS)
    drawn = {}

    def draw(case, rng):
        drawn.update(trial.draw(case, rng))
        return dict(drawn)

    edge = EdgeCase(gpu, library, case, np.random.default_rng(5), 0, draw)
    in_order = edge.compare
    of_b = REVERSED if "b" in apart else list(range(GROUPS))
    of_factors = EXCHANGED if "scale_b" in apart else list(range(GROUPS))
    edge.compare = trial.check(case, of_groups(operation, drawn, of_b, of_factors))
    verifier = Verifier(gpu, library, np.random.default_rng(5), num_guards=0)
    found = verifier._run(0, edge, edge.bound)
    assert edge.compare(found).fault == ""
    assert in_order(found).fault
    if operation.types.factors is FactorLayout.ATOMS:
        assert trial.check(case, of_groups(operation, drawn, of_b, of_b))(found).fault or of_b == of_factors
