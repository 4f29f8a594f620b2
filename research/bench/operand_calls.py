"""torch's calls that research/bench/operands.py times beside each operation of the wheel, and operands for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aot.core.element import ElementType
from aot.core.epilogue import Step
from aot.core.formats import FactorLayout
from aot.core.operands import GemmCall, Tensor, element_of, operands
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.kinds.gemm.inputs import SCALE_D
from aot.kinds.gemm.timed import timed_arrangement
from aot.kinds.inputs import INT8_DEVIATION, MAX_INT8
from aot.measure.protocol import set_bytes
from research.bench.protocol import L2_MULTIPLE, MAX_CALLS

Call = Callable[["Tensors"], object]
"""Enqueues an operation of some operands on the current stream."""

LEAST_INT_MM_ROWS = 17
"""Rows of A that torch._int_mm wants. Source: its error message, torch 2.11."""


@dataclass(frozen=True)
class Tensors:
    """One set of a problem's operands: A (m, k), B (rows, k), D (m, n) and what else there is, by argument."""

    problem: Problem
    by_argument: Mapping[Argument, torch.Tensor]

    def __getitem__(self, argument: Argument) -> torch.Tensor:
        """Return an operand."""
        return self.by_argument[argument]

    @property
    def bias(self) -> torch.Tensor | None:
        """Return the bias (rows), if there is one."""
        return self.by_argument[Argument.BIAS][0] if Argument.BIAS in self.by_argument else None

    def call(self) -> GemmCall:
        """Return the call of the C API."""
        placed = operands(self.problem, 0, timed_arrangement(self.problem.operation))
        return GemmCall(self.problem, {x: Tensor(self[x].data_ptr(), matrix) for x, matrix in placed.items()})


def torch_type(dtype: ElementType) -> torch.dtype:
    """Return torch's type of an element type in memory."""
    found: torch.dtype = getattr(torch, "float32" if dtype is ElementType.TFLOAT32 else dtype.value)
    return found


def _drawn(operation: Operation, argument: Argument, shape: tuple[int, int], device: str) -> torch.Tensor:
    dtype = element_of(operation, argument)
    if argument in (Argument.SCALE_A, Argument.SCALE_B):
        size = INT8_DEVIATION if operation.a.element is ElementType.INT8 else 1.0
        return torch.exp2(torch.rand(shape, device=device) * 4 - 4) / size
    if argument is Argument.SCALE_D:
        return torch.full(shape, SCALE_D, device=device)
    if dtype is ElementType.INT8:
        return torch.randint(-MAX_INT8, MAX_INT8 + 1, shape, dtype=torch.int8, device=device)
    return torch.randn(shape, device=device).to(torch_type(dtype))


def make_sets(problem: Problem, l2_bytes: int, device: str = "cuda") -> list[Tensors]:
    """Draw operands, as many sets as exceed the L2 three times over, two at least."""
    placed = operands(problem, 0, timed_arrangement(problem.operation))
    count = max(2, min(MAX_CALLS, -(-L2_MULTIPLE * l2_bytes // set_bytes(problem))))
    return [
        Tensors(
            problem,
            {
                x: torch.empty((y.num_rows, y.num_columns), dtype=torch_type(problem.operation.d), device=device)
                if x is Argument.D
                else _drawn(problem.operation, x, (y.num_rows, y.num_columns), device)
                for x, y in placed.items()
            },
        )
        for _ in range(count)
    ]


def _activated(step: Step, x: torch.Tensor) -> torch.Tensor:
    functions: dict[Step, Callable[[torch.Tensor], torch.Tensor]] = {
        Step.RELU: torch.nn.functional.relu,
        Step.GELU: torch.nn.functional.gelu,
        Step.GELU_TANH: lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
        Step.GEGLU: lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
        Step.SILU: torch.nn.functional.silu,
        Step.SWIGLU: torch.nn.functional.silu,
    }
    return functions[step](x)


def _finished(x: Tensors, sums: torch.Tensor) -> torch.Tensor:
    """Do the steps behind the product, as eager mode does."""
    operation = x.problem.operation
    if operation.gate is not None:
        gate, linear = sums.chunk(2, dim=1)
        return _activated(operation.gate, gate) * linear
    if operation.activation is not None:
        return _activated(operation.activation, sums)
    return sums + x[Argument.RESIDUAL] if operation.has_residual else sums


def _scaled_mm(x: Tensors, *, by_row: bool) -> torch.Tensor:
    scale_a, scale_b = x[Argument.SCALE_A], x[Argument.SCALE_B].t()
    scales = (scale_a, scale_b) if by_row else (scale_a[0], scale_b[0, :1])
    sums: torch.Tensor = torch._scaled_mm(  # noqa: SLF001 - what torch has, and users call
        x[Argument.A],
        x[Argument.B].t(),
        *scales,
        bias=x.bias,
        scale_result=x[Argument.SCALE_D][0] if Argument.SCALE_D in x.by_argument else None,
        out_dtype=torch_type(x.problem.operation.d),
        use_fast_accum=x.problem.operation.types.is_fast,
    )
    return sums


def _linear(x: Tensors) -> torch.Tensor:
    if x.problem.operation.d is ElementType.FLOAT32:
        torch.backends.cuda.matmul.allow_tf32 = x.problem.operation.a.element is ElementType.TFLOAT32
    return torch.nn.functional.linear(x[Argument.A], x[Argument.B], x.bias)


def baselines(problem: Problem, *, compiles: bool = False) -> dict[str, Call]:
    """Return torch's calls for a problem, by the name that their times have.

    `scaled_mm` has one factor for all of each operand, `scaled_mm_rowwise` one for each row; `int_mm` makes int32 sums
    alone; `eager` is the product and its further steps, each a call; `compiled` the same under torch.compile.
    """
    operation, types = problem.operation, problem.operation.types
    if types.factors is FactorLayout.BLOCK:
        return {}
    if operation.accumulator is ElementType.INT32:
        found: dict[str, Call] = {"int_mm": lambda x: torch._int_mm(x[Argument.A], x[Argument.B].t())}  # noqa: SLF001
        return found if problem.m >= LEAST_INT_MM_ROWS else {}
    calls: dict[str, Callable[[Tensors], torch.Tensor]] = {"mm": _linear}
    if types.is_scaled:
        calls = {"scaled_mm": lambda x: _scaled_mm(x, by_row=False)}
        if operation.d is ElementType.BFLOAT16 and types.a is types.b:
            calls["scaled_mm_rowwise"] = lambda x: _scaled_mm(x, by_row=True)
    is_alone = operation.gate is None and operation.activation is None and not operation.has_residual
    if is_alone:
        return dict(calls)
    eager = {f"eager {name}": lambda x, multiply=call: _finished(x, multiply(x)) for name, call in calls.items()}
    compiled = {f"compiled {name}": _compiled(problem, call) for name, call in calls.items()} if compiles else {}
    return eager | compiled


def _compiled(problem: Problem, multiply: Callable[[Tensors], torch.Tensor]) -> Call:
    """Compile the product and its further steps, as a function of tensors alone: for each size anew, and all sets."""
    order = list(operands(problem, 0, timed_arrangement(problem.operation)))
    torch.compiler.reset()  # or after eight sizes the compiler gives up, and what is timed is eager

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        x = Tensors(problem, dict(zip(order, tensors, strict=True)))
        return _finished(x, multiply(x))

    compiled: Any = torch.compile(run, dynamic=False, fullgraph=True)
    return lambda x: compiled(*(x[argument] for argument in order))
