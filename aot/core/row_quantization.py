"""How a row operation finds the scale of a row or a block."""

from __future__ import annotations

LEAST_SCALE = 2.0**-126
"""The least scale of values that are not all 0: the least normal number of float32, of which 1 over it is finite."""
