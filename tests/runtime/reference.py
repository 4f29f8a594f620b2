"""Canonical form stated a second time, by enumerating every reading of a problem; shares nothing with the C++."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd

from aot.core.operation import Layout


@dataclass(frozen=True)
class Matrix:
    """A logical matrix in memory: address, (rows, columns), strides in elements."""

    address: int
    extents: tuple[int, int]
    strides: tuple[int, int]
    element_bytes: int = 2

    @property
    def transposed(self):
        return Matrix(self.address, self.extents[::-1], self.strides[::-1], self.element_bytes)


@dataclass(frozen=True)
class Reading:
    """One way to give a problem to a kernel of one stride."""

    exchanged: bool
    layout: str
    a: Matrix
    b: Matrix
    d: Matrix


def takes(matrix, contiguous):
    """Say whether TMA takes a matrix whose mode 0 or 1 is contiguous."""
    inner, outer = matrix.extents[contiguous], matrix.extents[1 - contiguous]
    if inner > 1 and matrix.strides[contiguous] != 1:
        return False
    if matrix.address % 16:
        return False
    leading = matrix.strides[1 - contiguous]
    step = leading * matrix.element_bytes
    return outer <= 1 or (leading >= inner and step % 16 == 0 and step < 2**40)


def readings(a, b, d, layouts):
    """Give the readings that are legal, the preferred first: as stated before exchanged, k-major before m and n."""
    for exchanged, layout in product((False, True), ("kk", "kn", "mk", "mn")):
        left, right, result = (b, a, d.transposed) if exchanged else (a, b, d)
        majors = (1 if layout[0] == "k" else 0), (1 if layout[1] == "k" else 0)
        legal = takes(left, majors[0]) and takes(right, majors[1]) and takes(result, 1)
        legal = legal and result.extents[1] * result.element_bytes % 16 == 0  # a store ends at a multiple of 16 bytes
        if legal and left.extents[1] > 0 and layout in layouts:
            yield Reading(exchanged, layout, left, right, result)


def loaded_bytes(reading):
    """Return of how many bytes, at most 16, addresses and steps from run to run of A and B are multiples."""
    found = 16
    for matrix, mode in ((reading.a, reading.layout[0]), (reading.b, reading.layout[1])):
        runs = int(mode != "k")
        found = gcd(found, matrix.address)
        if matrix.extents[runs] > 1:
            found = gcd(found, matrix.element_bytes * matrix.strides[runs])
    return found


def lies_between_sectors(reading):
    """Say whether runs of A or B are odd multiples of 16 bytes apart, of operands that TMA takes."""
    sides = (reading.a, int(reading.layout[0] != "k")), (reading.b, int(reading.layout[1] != "k"))
    return any(x.extents[runs] > 1 and x.element_bytes * x.strides[runs] % 32 for x, runs in sides)


def plain_layout(a, b):
    """Name the layout of operands that need not be aligned, or None."""

    def letter(matrix, rows):
        if matrix.extents[1] <= 1 or matrix.strides[1] == 1:
            return "k"
        return rows if matrix.extents[0] <= 1 or matrix.strides[0] == 1 else None

    letters = letter(a, "m"), letter(b, "n")
    return None if None in letters else "".join(letters)


def matrices(problem):
    """Read a C problem."""
    extents = (problem.m, problem.k), (problem.n, problem.k), (problem.m, problem.n)
    tensors = problem.a, problem.b, problem.d
    return tuple(Matrix(x.data or 0, pair, tuple(x.strides)) for x, pair in zip(tensors, extents, strict=True))


def code(layout):
    return -1 if layout is None else Layout(layout).code
