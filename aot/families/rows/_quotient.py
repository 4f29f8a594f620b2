"""The exact quotient of a row's values and its scale, by one reciprocal for all of them. Imports CUTLASS.

q = x r, with r the rounded 1 / s, is within 1.5 units in the last place of x / s. Twice it is corrected by its exact
remainder, q + (x - q s) r: the first time to within one unit, from where the second gives the rounded quotient, as long
as nothing underflows or overflows. Source: P. Markstein, Computation of elementary functions on the IBM RISC
System/6000 processor, IBM Journal of Research and Development 34 (1), 1990. The remainders have their signs turned, so
that a quotient of -0 stays -0.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from typing import Any

from cutlass import Boolean, Float32, cute, range_constexpr

from aot.kinds.rows.quantization import CORRECTED_SCALES, MOST_QUOTIENT


def is_corrected(scale: Any, magnitude: Any) -> Any:
    """Say whether a row's quotients can be found so: not where its scale or its values are far out, infinite or NaN."""
    least, most = CORRECTED_SCALES
    is_near = Boolean(scale >= least) & Boolean(scale <= most)
    return is_near & Boolean(magnitude <= scale * MOST_QUOTIENT)


@cute.jit
def divide(values: Any, scale: Float32, magnitude: Float32) -> None:
    """Divide a thread's values by its row's scale, in place: each is the quotient rounded to float32.

    Args:
        values: in registers.
        scale: of the row, or of its block.
        magnitude: the largest of the row's values, or of the block's; NaN where there is one.
    """
    if is_corrected(scale, magnitude):
        minus_inverse = -in_float32("rcp.rn.f32 {$w0}, {$r0};", scale)
        for i in range_constexpr(cute.size(values)):
            x = Float32(values[i])
            found = in_float32("mul.rn.f32 {$w0}, {$r0}, {$r1};", x, -minus_inverse)
            for _ in range_constexpr(2):
                found = _fma(_fma(found, scale, -x), minus_inverse, found)
            values[i] = found
    else:
        for i in range_constexpr(cute.size(values)):
            values[i] = in_float32("div.rn.f32 {$w0}, {$r0}, {$r1};", values[i], scale)


def _fma(a: Any, b: Any, c: Any) -> Any:
    return in_float32("fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};", a, b, c)


def in_float32(code: str, *arguments: Any) -> Any:
    """Execute an instruction of float32, which keeps subnormal numbers."""
    return cute.arch.inline_ptx(
        code, write_only_types=[Float32], read_only_args=[Float32(argument) for argument in arguments]
    )
