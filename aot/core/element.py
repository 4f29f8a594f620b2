"""Element types: their widths, and the names by which others know them. Nothing else states an element's size."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

BYTE_BITS = 8


class _Facts(NamedTuple):
    tag: str
    bits: int
    cutlass: str


class ElementType(Enum):
    """Type of the elements of an operand, an accumulator or a scale factor.

    The value is torch's name, also used in files and on the command line; `tf32` is float32 of which the tensor cores
    read 19 bits, and has no name in torch. Source of the widths: PTX ISA, fundamental types and alternate
    floating-point formats; IEEE 754-2019.
    """

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    TFLOAT32 = "tf32"
    E4M3 = "float8_e4m3fn"
    E5M2 = "float8_e5m2"
    E2M1 = "float4_e2m1fn"
    E8M0 = "float8_e8m0fnu"
    INT8 = "int8"
    INT32 = "int32"
    UINT8 = "uint8"
    """Of the bytes of a packed weight alone."""

    @property
    def tag(self) -> str:
        """Return the short name used in kernel names, such as `bf16`."""
        return _FACTS[self].tag

    @property
    def bits(self) -> int:
        """Return the bits of one element in memory."""
        return _FACTS[self].bits

    @property
    def num_bytes(self) -> int:
        """Return the bytes of one element.

        Raises:
            ValueError: several elements share a byte; `size_of` counts those.
        """
        if self.bits % 8:
            raise ValueError(f"an element of {self.value} has {self.bits} bits, no whole number of bytes")
        return self.bits // 8

    def size_of(self, num_elements: int) -> int:
        """Return the bytes of a number of packed elements."""
        return -(-num_elements * self.bits // 8)

    @property
    def num_sharing(self) -> int:
        """Return how many elements share a byte; 1 where each has one or more to itself."""
        return max(BYTE_BITS // self.bits, 1)

    def num_in(self, num_bytes: int) -> int:
        """Return how many packed elements a number of bytes hold."""
        return num_bytes * 8 // self.bits

    def bytes_of(self, num_elements: int) -> int:
        """Return the bytes of a number of elements that end with a byte, as a stride does.

        Raises:
            ValueError: they do not.
        """
        if num_elements * self.bits % 8:
            text = f"{num_elements} elements of {self.value} end inside a byte"
            raise ValueError(f"{text}; give a multiple of {self.num_sharing}")
        return num_elements * self.bits // 8

    @property
    def code(self) -> int:
        """Return the type's number among the features of a learned time."""
        return list(ElementType).index(self)

    @property
    def cutlass_name(self) -> str:
        """Return the name of the class in `cutlass`, such as `BFloat16`."""
        return _FACTS[self].cutlass


_FACTS = {
    ElementType.BFLOAT16: _Facts("bf16", 16, "BFloat16"),
    ElementType.FLOAT16: _Facts("fp16", 16, "Float16"),
    ElementType.FLOAT32: _Facts("fp32", 32, "Float32"),
    ElementType.TFLOAT32: _Facts("tf32", 32, "TFloat32"),
    ElementType.E4M3: _Facts("e4m3", 8, "Float8E4M3FN"),
    ElementType.E5M2: _Facts("e5m2", 8, "Float8E5M2"),
    ElementType.E2M1: _Facts("e2m1", 4, "Float4E2M1FN"),
    ElementType.E8M0: _Facts("e8m0", 8, "Float8E8M0FNU"),
    ElementType.INT8: _Facts("int8", 8, "Int8"),
    ElementType.INT32: _Facts("int32", 32, "Int32"),
    ElementType.UINT8: _Facts("uint8", 8, "Uint8"),
}
