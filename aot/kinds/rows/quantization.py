"""How a row operation finds the scale of a row or a block."""

from __future__ import annotations

LEAST_SCALE = 2.0**-126
"""The least scale of values that are not all 0: the least normal number of float32, of which 1 over it is finite."""

CORRECTED_SCALES = 2.0**-64, 2.0**64
"""Scales whose quotients are found from one rounded reciprocal, with two corrections; others are divided by. In between
the reciprocal is a normal number, and the remainder of each quotient from `LEAST_QUOTIENT` on is exact: a multiple of
the product of the units in the last place of the quotient and the scale, which is at least 2^-130."""

LEAST_QUOTIENT = 2.0**-20
"""Below it the corrected quotient may be off, by less than itself: every type of Y rounds it to 0 either way."""

MOST_QUOTIENT = 2.0**20
"""The largest quotient that is found so; none overflows. By a scale that the kernel finds it is 448, or 127."""
