"""The record of the kind `gemm`: products of matrices."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from aot.core.candidate import KernelKey
from aot.core.kernel import Kernel
from aot.core.knobs import GemmKnobs
from aot.core.operation import KIND, Operation
from aot.core.problem import Problem
from aot.kinds.gemm.tuned import TunedKernel
from aot.kinds.kind import Axis, Features, Kind, Use

if TYPE_CHECKING:
    from aot.core.shape_set import ShapeSet
    from aot.core.work import AnyOperation


class Gemm(Kind[Problem, KernelKey]):
    """D (m, n) = epilogue(A (m, k) @ B (n, k)^T), of one product, a batch or groups."""

    name = KIND
    axes = (Axis("m", Use.LADDER), Axis("n", Use.KEY), Axis("k", Use.KEY), Axis("num_groups", Use.COUNT, 1))
    own_operations = tuple(Operation)
    problem_type = Problem
    key_type = KernelKey
    knobs = GemmKnobs
    features = Features(
        ("tile_m", "tile_n", "cluster_m", "cluster_n", "split_k"),
        ("family", "schedule", "swap_ab", "use_2cta", "use_tma_store", "split_k_mode"),
        (("num_stages", 4.0),),
    )
    kernel_type = Kernel
    tuned_type = TunedKernel
    held_out = MappingProxyType({1: "tuned n and k, other m", 2: "other n and k"})

    def asked(self, operation: Operation, shapes: ShapeSet) -> list[Problem]:
        """List those of the set's models."""
        return shapes.problems(operation)

    def imputed_from(self, operation: AnyOperation) -> tuple[Operation, ...]:
        """Return the operations of equal sizes and rates, and those without the epilogue."""
        return next(x for x in Operation if x == operation).equivalents


GEMM = Gemm()
