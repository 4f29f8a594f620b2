"""What an epilogue computes for one element of D, whatever numbers are. Imports neither CUDA nor CUTLASS.

The kernels trace these functions on float32 registers, the tests call them with numpy's float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aot.core import types
from aot.core.epilogue import Epilogue, Step

if TYPE_CHECKING:
    from aot.core.operation import Operation

FP8 = (
    types.E4M3_BF16,
    types.E4M3_FP16,
    types.E4M3_FP32,
    types.E4M3_E4M3,
    types.E5M2E4M3_BF16,
    types.E4M3E5M2_BF16,
    types.E4M3_BF16_FAST,
)
"""FP8 with vectors of scales."""

INT8 = (types.INT8_INT32, types.INT8_BF16, types.INT8_FP16)

_LOG2_E = math.log2(math.e)
_GELU_CUBE = 0.044715
"""Source: torch.nn.functional.gelu with approximate="tanh"."""

_ERFC_STEP = 0.375
_ERFC = (
    0.21161441504955292,
    0.21063350141048431,
    0.20543041825294495,
    0.12103898823261261,
    0.27484405040740967,
    -0.23107630014419556,
    0.4338936507701874,
    -0.28807532787323,
    0.061696603894233704,
)
"""erfc(z) = exp(-z * z) * t * (c0 + c1 t + ... + c8 t^8) with t = 1 / (1 + 0.375 z), for z from 0. Source: our own
minimax fit over z from 0 to 9.5, relative error 1.2e-8; evaluated in float32 with z * z rounded, 7e-6 at the most."""


class Functions(Protocol):
    """What numbers need beside + and *."""

    def exp2(self, x: Any) -> Any:
        """Return 2 to the power of x."""

    def reciprocal(self, x: Any) -> Any:
        """Return 1 / x."""

    def absolute(self, x: Any) -> Any:
        """Return |x|."""

    def maximum(self, x: Any, y: float) -> Any:
        """Return the larger, or NaN where x is NaN."""

    def where_negative(self, x: Any, then: Any, otherwise: Any) -> Any:
        """Return `then` where x < 0."""


@dataclass(frozen=True)
class Terms:
    """What an epilogue reads for one sum; None where the operation has none of it."""

    scale_a: Any = None
    scale_b: Any = None
    bias: Any = None
    whole: Any = None
    """The factor of all of A times that of all of B."""


def has_own_epilogue(operation: Operation) -> bool:
    """Say whether an operation's epilogue is more than a bias; of several weights each has no more."""
    return operation.types.is_scaled or operation.epilogue not in (Epilogue.NONE, Epilogue.BIAS, Epilogue.MANY)


def _sigmoid(x: Any, functions: Functions) -> Any:
    """Return 1 / (1 + exp(-x)): relative error below 1e-5, also where the result is tiny."""
    return functions.reciprocal(functions.exp2(x * -_LOG2_E) + 1.0)


def _relu(x: Any, functions: Functions) -> Any:
    return functions.maximum(x, 0.0)


def _silu(x: Any, functions: Functions) -> Any:
    return x * _sigmoid(x, functions)


def _gelu_tanh(x: Any, functions: Functions) -> Any:
    """Return x * (1 + tanh(u)) / 2, which is x * sigmoid(2 u): no digits cancel where tanh(u) is near -1."""
    u = x * (x * x * _GELU_CUBE + 1.0) * math.sqrt(2.0 / math.pi)
    return x * _sigmoid(u * 2.0, functions)


def _gelu(x: Any, functions: Functions) -> Any:
    """Return x * (1 + erf(x / sqrt(2))) / 2, by erfc of |x| / sqrt(2): no digits cancel where erf is near -1."""
    t = functions.reciprocal(functions.absolute(x) * (_ERFC_STEP * math.sqrt(0.5)) + 1.0)
    polynomial = t * _ERFC[-1] + _ERFC[-2]
    for coefficient in _ERFC[-3::-1]:
        polynomial = polynomial * t + coefficient
    erfc = polynomial * t * functions.exp2(x * x * (-0.5 * _LOG2_E))
    return x * 0.5 * functions.where_negative(x, erfc, erfc * -1.0 + 2.0)


_FUNCTIONS = {
    Step.RELU: _relu,
    Step.GELU: _gelu,
    Step.GELU_TANH: _gelu_tanh,
    Step.SILU: _silu,
    Step.SWIGLU: _silu,
    Step.GEGLU: _gelu_tanh,
}
"""What is applied to the sum; of a gate's two, to the gate's."""


def finish_sum(accumulator: Any, terms: Terms) -> Any:
    """Return accumulator * scale_a * scale_b * whole + bias."""
    x = accumulator
    for factor in (terms.scale_a, terms.scale_b, terms.whole):
        x = x if factor is None else x * factor
    return x if terms.bias is None else x + terms.bias


def finish(operation: Operation, total: Any, functions: Functions, residual: Any = None, scale_d: Any = None) -> Any:
    """Return an element of D before it is rounded, of a sum that `finish_sum` made."""
    x = total if operation.activation is None else _FUNCTIONS[operation.activation](total, functions)
    x = x if residual is None else x + residual
    return x if scale_d is None else x * scale_d


def finish_gate(step: Step, gate: Any, linear: Any, functions: Functions) -> Any:
    """Return an element of D before it is rounded, of the two sums of a gate."""
    return _FUNCTIONS[step](gate, functions) * linear
