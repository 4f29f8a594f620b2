"""How the fallback reads elements that share bytes, and narrow scale factors: by plain integers. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from typing import Any

from cutlass import Constexpr, Float32, Int32, Int64, const_expr, cute, select_
from cutlass._mlir.dialects import arith
from cutlass.cutlass_dsl import T

from aot.core.element import ElementType
from aot.core.factor_atoms import ATOM_BYTES, byte_in_atom
from aot.core.formats import FactorLayout, Operand
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS

EXPONENT_SHIFT = 23
"""Bits of float32 below its exponent, which ue8m0 is. Source: IEEE 754-2019, section 3.4."""
LEAST_E8M0, NAN = 0x00400000, 0x7FC00000
"""2^-127 and a NaN as float32: ue8m0's codes 0 and 255, which its other codes' rule does not give."""
ALL_ONES = 0xFF


@cute.jit
def _byte(source: cute.Tensor, position: Int64) -> Int32:
    """Read a byte of memory, counted from a tensor's first."""
    bytes_of = cute.make_tensor(source.iterator, cute.make_layout(1 << 30))
    return Int32(bytes_of[position].to(Int32) & ALL_ONES)


@cute.jit
def _e2m1(code: Int32) -> Float32:
    """Return the value of an e2m1: twice it is 0, 1, 2, 3, 4, 6, 8 or 12."""
    exponent, fraction = (code >> 1) & 3, code & 1
    doubled = select_(exponent == 0, fraction, (2 + fraction) << select_(exponent == 0, Int32(0), exponent - 1))
    magnitude = Int32(doubled).to(Float32) * 0.5
    return Float32(select_((code & 8) == 0, magnitude, -magnitude))


@cute.jit
def element_at(source: cute.Tensor, row: Int32, k: Int32, form: Constexpr[Operand]) -> Any:
    """Read an element of a (rows, k) operand; of those of 4 bits `source` is bytes, with the strides of elements."""
    if const_expr(form.element.num_sharing == 1):
        return source[row, k]
    position = Int64(row) * Int64(source.stride[0]) + Int64(k)
    return _e2m1(_byte(source, position >> 1) >> (Int32(position & 1) * 4))


@cute.jit
def factor_at(factors: cute.Tensor, row: Int32, k: Int32, extent: Int32, form: Constexpr[Operand]) -> Any:
    """Read the factor of an element of an operand of `extent` elements along k, as float32."""
    scale = const_expr(form.scale)
    if const_expr(scale.layout is not FactorLayout.ATOMS):
        return factors[row // scale.block_m, k // scale.block_k]
    block = k // scale.block_k
    along = cute.ceil_div(extent, scale.block_k * ATOM_COLUMNS)
    atom = row // ATOM_ROWS * along + block // ATOM_COLUMNS
    position = atom * ATOM_BYTES + byte_in_atom(row, block)
    if const_expr(scale.element is not ElementType.E8M0):
        return factors[position].to(Float32)
    code = _byte(factors, Int64(position))
    plain = Int32(select_(code == 0, Int32(LEAST_E8M0), code << EXPONENT_SHIFT))
    bits = Int32(select_(code == ALL_ONES, Int32(NAN), plain))
    return Float32(arith.bitcast(T.f32(), bits.ir_value()))
