"""Device code of one element of Y, of our functions of pairs. Imports CUTLASS."""

from typing import Any

from aot.core.epilogue import Step
from aot.families._epilogue import finish_gate
from aot.families._epilogue_registers import Registers


def silu_mul(gate: Any, linear: Any) -> Any:
    """Return silu(gate) * linear."""
    return finish_gate(Step.SWIGLU, gate, linear, Registers())


def gelu_tanh_mul(gate: Any, linear: Any) -> Any:
    """Return gelu_tanh(gate) * linear."""
    return finish_gate(Step.GEGLU, gate, linear, Registers())
