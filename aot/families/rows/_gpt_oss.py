"""Device code of one element of Y of the gate of GPT-OSS's experts. Imports CUTLASS."""

from typing import Any

import cutlass
from cutlass import Float32

from aot.core.epilogue import Step
from aot.families._epilogue import finish_gate
from aot.families._epilogue_registers import Registers
from aot.kinds.rows.function import GPT_OSS_LIMIT, GPT_OSS_SLOPE


def gpt_oss_mul(gate: Any, linear: Any) -> Any:
    """Return silu(slope * gate) / slope * (linear + 1), both clamped: a NaN, which is not larger, stays one.

    Products and sums are clamped, in whose order the numbers of 16 bits are: these would be compared in 16 bits, by
    instructions of another kind for each chip.
    """
    most = Float32(GPT_OSS_SLOPE) * Float32(GPT_OSS_LIMIT)
    scaled, added = gate * Float32(GPT_OSS_SLOPE), linear + Float32(1.0)
    above, below = Float32(GPT_OSS_LIMIT + 1.0), Float32(1.0 - GPT_OSS_LIMIT)
    scaled = cutlass.select_(scaled > most, most, scaled)
    added = cutlass.select_(added > above, above, cutlass.select_(added < below, below, added))
    return finish_gate(Step.SWIGLU, scaled, added * Float32(1.0 / GPT_OSS_SLOPE), Registers())
