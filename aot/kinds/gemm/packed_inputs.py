"""Random packed weights, whose blocks have other factors each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.numerics import encode
from aot.core.weight_format import (
    BLOCK_K,
    E4M3_NAN,
    MAX_ZERO,
    TILE_ROWS,
    Code,
    PackedLayout,
    WeightFormat,
    WeightParts,
)
from aot.core.weight_packing import pack

if TYPE_CHECKING:
    from aot.core.numerics import Bits
    from aot.core.problem import Problem

LEAST_FACTOR, LARGEST_FACTOR = 0.05, 0.2
"""Of groups of int4, whose sums of k = 2^16 then fit float16. Those of e2m1, whose codes are smaller, are up to 1."""
E4M3_FACTORS = 0x28, 0x39
"""Codes from 0.25 to 1."""
E8M0_FACTORS = 124, 130
"""Codes from 2^-3 to 4: the highest bit of those from 2 on is set."""


def draw_parts(form: WeightFormat, element: ElementType, n: int, k: int, rng: np.random.Generator) -> WeightParts:
    """Draw a weight (n, k): codes of all kinds, and a factor of its own for each group.

    Args:
        form: the format.
        element: x's type, which factors of 16 bits have.
        n: rows.
        k: elements along k, which the format has.
        rng: draws them.
    """
    codes = rng.integers(0, 1 << form.code.bits, (n, k), dtype=np.uint8)
    if form.code is Code.E4M3:
        codes[(codes & E4M3_NAN) == E4M3_NAN] = 0
    shape = n, form.num_groups(k)
    if not form.group:
        return WeightParts(codes)
    if form.factor_bits == 16:
        factors = encode(element, rng.uniform(LEAST_FACTOR, LARGEST_FACTOR, shape).astype(np.float32))
    else:
        factors = rng.integers(*_factor_codes(form), shape, dtype=np.uint8)
    zeros = rng.integers(0, MAX_ZERO + 1, shape, dtype=np.uint8) if form.has_zeros else None
    return WeightParts(codes, factors, zeros)


def _factor_codes(form: WeightFormat) -> tuple[int, int]:
    return E8M0_FACTORS if form.is_mxfp4 else E4M3_FACTORS


def draw_packed(form: WeightFormat, element: ElementType, extents: tuple[int, int], rng: np.random.Generator) -> Bits:
    """Draw the bytes of a packed weight of extents (n, k), otherwise as `draw_parts`."""
    return pack(form, draw_parts(form, element, *extents, rng))


def draw_weights(problem: Problem, rng: np.random.Generator) -> Bits:
    """Draw the bytes of a problem's packed weight, or of a gate's two, one behind the other."""
    operation, extents = problem.operation, (problem.n, problem.k)
    form, count = operation.b.weight, operation.num_rows_of_b(1)
    if form is None:
        raise ValueError(f"{operation.tag} has no packed weight; expected an operation with one")
    return np.concatenate([draw_packed(form, operation.a.element, extents, rng) for _ in range(count)])


@dataclass(frozen=True)
class PackedBlocks:
    """Blocks of packed weights, which any row of bytes may be made of; satisfies `aot.kinds.inputs.Content`."""

    form: WeightFormat
    of_x: ElementType
    element: ElementType = ElementType.UINT8

    @property
    def run(self) -> int:
        """Return the bytes of a block."""
        return PackedLayout(self.form).run_bytes

    def draw(self, rng: np.random.Generator, num_elements: int) -> Bits:
        """Draw as many whole blocks as fit, at least two; in rows, where any byte may be one of factors, such bytes."""
        if self.form.in_rows:
            count = max(num_elements // BLOCK_SHARE, 2 * self.run)
            return rng.integers(*_factor_codes(self.form), count, dtype=np.uint8)
        count = max(num_elements // self.run // BLOCK_SHARE, 2)
        return draw_packed(self.form, self.of_x, (TILE_ROWS, count * BLOCK_K), rng).reshape(-1)


BLOCK_SHARE = 4
"""What the elements that are asked for are divided by: as of other types of 8 bits, a few MiB do."""
