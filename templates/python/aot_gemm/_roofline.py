"""The least time that a product can take, by the rates of a table's target. Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._plan_groups import Shape

_NARROW_BITS = 8
"""Of a factor in atoms; those of float32 are of squares of B."""


@dataclass(frozen=True)
class Rates:
    """What the rooflines of an operation follow from, by the manifest: the twin of the toolchain's roofline.py."""

    flops_per_s: float
    bytes_per_s: float
    bits: dict[str, int]
    """Of an element of each operand, and how many elements there are: `ElementBits` of the toolchain's manifest.py."""

    def least_us(self, m: int, n: int, k: int) -> dict[str, float]:
        """Return the least times by the rate of the tensor cores, and by that of device memory."""
        rows, block = self.bits["parts"] * n, self.bits["factor_block"]
        of_a = m * self.bits["factors_of_a"]
        is_narrow = self.bits["factor"] == _NARROW_BITS  # of B a row has its own then, where others serve a square
        factors = (of_a + (rows if is_narrow else -(-rows // block))) * -(-k // block) if block else of_a + rows
        groups = rows * (k // self.bits["group"]) if self.bits["group"] else 0
        elements = {"a": m * k, "b": rows * k, "d": m * n, "bias": rows, "residual": m * n, "factor": factors}
        elements["group_bits"] = groups
        num_bytes = sum(-(-count * self.bits[name] // 8) for name, count in elements.items())
        return {"compute": 2e6 * m * n * k / self.flops_per_s, "memory": 1e6 * num_bytes / self.bytes_per_s}

    def roofline_us(self, shape: Shape, batch: int = 1) -> float:
        """Return the least time of a product that is not empty, or of a batch of those."""
        return batch * max(self.least_us(*shape).values())


def rates_of(manifest: dict[str, Any], table: int, call: str) -> Rates:
    """Return the rates of an operation by the target of a manifest's table."""
    values = manifest["tables"][table]
    return Rates(values["peak_flops_per_s"][call], values["bandwidth_bytes_per_s"], manifest["element_bits"][call])
