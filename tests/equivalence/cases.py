"""Problems to launch: at random, the same every time, with what is rare or at an edge in good number."""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass
from itertools import chain

from tests.compiling import EVERY

COUNT = 220 if EVERY else 60
"""Problems for each kernel."""
STEP = 8
"""Elements of 16 bytes: what addresses and leading strides of the fast kernels are multiples of."""
MAX_EXTENT = 2**31 - 1
MAX_STRIDE = 2**39 - STEP
"""Elements: a descriptor's stride is below 2^40 bytes."""
MAX_BLOCKS = 65535
"""Blocks along y and z of a grid. Source: CUDA C++ Programming Guide, technical specifications."""
TILES = (8, 16, *range(32, 257, 32))
MAX_ELEMENTS = 2**39
"""Of D, 1 TiB: tiles are counted in 32 bits, and 2^31 of the smallest would be more memory than there is."""
MAX_REACH = 2**41
"""Elements from a matrix's first to its last, 4 TiB: less than the bases are apart, since D may not overlap A or B."""
BASES = {"a": 0x7F1000000000, "b": 0x7A3000000000, "d": 0x6E5000000000}


@dataclass(frozen=True)
class Operand:
    """An operand as the C API takes it: strides in elements from row to row and from column to column."""

    address: int
    strides: tuple[int, int]

    @property
    def transposed(self):
        return Operand(self.address, self.strides[::-1])


@dataclass(frozen=True)
class Case:
    """A problem as the C API takes it."""

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    d: Operand
    stream: int
    tile_order: int = 0

    @property
    def exchanged(self):
        """State the same product as D^T = B A^T: D is then column-major, and the runtime has to turn it back."""
        return Case(self.n, self.m, self.k, self.b, self.a, self.d.transposed, self.stream)


def _extent(rng):
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice((1, 2, 3, 7, 8, 9))
    if kind == 1:
        return rng.choice((16, 32, 64, 128, 256)) * rng.randrange(1, 9) + rng.choice((-1, 0, 1))
    if kind == 2:
        return rng.randrange(1, 10) * 1024
    return int(math.exp(rng.uniform(0, math.log(40000))))


def _extents(rng):
    """Give m, n and k; now and then one of them is large, up to as large as an extent may be."""
    while True:
        extents = [_extent(rng) for _ in range(3)]
        if rng.randrange(12) == 0:
            extents[rng.randrange(3)] = rng.choice((2**20 + 1, 2**24, 2**27 + 8, MAX_EXTENT, MAX_EXTENT))
        m, n, k = extents
        if m * n <= MAX_ELEMENTS and max(m, n) * (k + STEP) <= MAX_REACH:
            return extents


def _longest():
    """Give extents of as many tiles as a grid can have along y, one fewer for clusters of two, and an element more."""
    for extent in (MAX_BLOCKS * tile + more for tile in TILES for more in (-tile, 0, 1)):
        yield extent, 64, 64
        yield 64, extent, 64


def _leading(rng, inner, outer):
    """Return a leading stride for `outer` runs of `inner` elements: packed, padded a little, or far apart."""
    packed = -(-inner // STEP) * STEP
    largest = min(MAX_STRIDE, MAX_REACH // outer // STEP * STEP)
    kind = rng.randrange(6)
    if kind < 3 or largest <= packed:
        return packed
    if kind < 5:
        return min(packed + STEP * rng.randrange(1, 70), largest)
    return rng.randrange(packed, largest, STEP)


def _aligned(rng, name, rows, columns, columns_contiguous):
    address = BASES[name] + 16 * rng.randrange(2**28)
    outer, inner = (rows, columns) if columns_contiguous else (columns, rows)
    # The stride of a single run is not looked at, nor are those of single elements.
    leading = _leading(rng, inner, outer) if outer > 1 else rng.randrange(1, 2**20)
    unit = 1 if inner > 1 else rng.randrange(1, 9)
    return Operand(address, (leading, unit) if columns_contiguous else (unit, leading))


def aligned(name, layout):
    """Make a kernel's problems: what a kernel of one leading stride and of this layout takes.

    Some are stated with a column-major D, and A and B in each other's place.
    """
    rng = random.Random(zlib.crc32(name.encode()))
    for m, columns, k in chain((_extents(rng) for _ in range(COUNT)), _longest()):
        n = min(-(-columns // STEP) * STEP, MAX_EXTENT // STEP * STEP)  # a store ends at a multiple of 16 bytes
        case = Case(
            m,
            n,
            k,
            _aligned(rng, "a", m, k, layout.a_k_major),
            _aligned(rng, "b", n, k, layout.b_k_major),
            _aligned(rng, "d", m, n, columns_contiguous=True),
            stream=rng.randrange(2**47),
        )
        # A D of one row or column is both row- and column-major: the runtime would take it as stated.
        yield case.exchanged if m > 1 and n > 1 and rng.randrange(5) == 0 else case


def _strided(rng, name):
    """Make an operand of any alignment and strides; D's elements must not overlap, A's and B's may."""

    def operand(rows, columns):
        address = BASES[name] + 2 * rng.randrange(2**31)
        kind = rng.randrange(5)
        if kind == 0 and name != "d":
            return Operand(address, (rng.choice((0, 1, 5)), rng.choice((0, 1, 7))))
        runs = columns if kind < 3 else rows
        unit = rng.choice((1, 1, 2, 3, rng.randrange(1, max(MAX_REACH // max(rows * columns, 1), 2))))
        outer = unit * max(rows if kind < 3 else columns, 1)
        room = max(MAX_REACH // max(runs, 1) - outer, 0)
        outer += rng.choice((0, min(1, room), min(5, room), rng.randrange(min(2**30, room) + 1)))
        return Operand(address, (unit, outer) if kind < 3 else (outer, unit))

    return operand


def strided(name):
    """Make the fallback's problems: no stride and no address aligned, and k down to 0."""
    rng = random.Random(zlib.crc32(name.encode()))
    for _ in range(COUNT):
        m, n, k = _extents(rng)
        k = 0 if rng.randrange(20) == 0 else k
        a, b, d = (_strided(rng, x) for x in "abd")
        yield Case(m, n, k, a(m, k), b(n, k), d(m, n), stream=rng.randrange(2**47))
