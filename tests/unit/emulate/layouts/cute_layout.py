"""CuTe's layout algebra, as far as the tests need it, written without any function of the interpreter."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from math import prod


def size(shape):
    """Count the coordinates of a shape."""
    return shape if isinstance(shape, int) else prod(size(x) for x in shape)


def index_of(coordinate, shape, stride):
    """Map a coordinate to an index: whole numbers are coordinates of nested modes in colexicographic order."""
    if isinstance(shape, int):
        assert isinstance(coordinate, int)
        return coordinate * stride
    if isinstance(coordinate, int):
        index = 0
        for mode, step in zip(shape, stride, strict=True):
            index += index_of(coordinate % size(mode), mode, step)
            coordinate //= size(mode)
        assert coordinate == 0
        return index
    return sum(index_of(c, s, d) for c, s, d in zip(coordinate, shape, stride, strict=True))


@dataclass(frozen=True)
class Layout:
    """A function from coordinates to indices; `swizzle` is applied to byte addresses, as (bits, base, shift)."""

    shape: tuple
    stride: tuple
    swizzle: tuple[int, int, int] = (0, 4, 3)

    def __call__(self, *coordinate):
        return index_of(coordinate if len(coordinate) > 1 else coordinate[0], self.shape, self.stride)

    def address(self, start, element_bits, *coordinate):
        """Return the swizzled byte address of an element of a tensor that begins at `start`."""
        address = start + self(*coordinate) * element_bits // 8
        bits, base, shift = self.swizzle
        source = (1 << bits) - 1 << base + shift
        return address ^ (address & source) >> shift


def parse(text):
    """Read what CuTe DSL prints of a static layout: "S<3,4,3> o 0 o (8,64):(64,1)", or without a swizzle."""
    match = re.fullmatch(r"(?:S<(\d+),(\d+),(\d+)> o 0 o )?(.+):(.+)", text)
    swizzle = tuple(int(x) for x in match.groups()[:3]) if match[1] else (0, 4, 3)
    return Layout(ast.literal_eval(match[4]), ast.literal_eval(match[5]), swizzle)
