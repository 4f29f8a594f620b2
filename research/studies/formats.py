"""What each format of weights costs: bytes, and errors of Gaussian weights that are rounded to it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import click
import numpy as np

from aot.cli import tables
from aot.cli.output import JSON, show
from aot.core.element import ElementType
from aot.core.numerics import decode
from aot.core.packed_folder import FORMAT_NAMES, SCALE_BLOCK, PackedLayer
from aot.core.safetensors_file import ELEMENT_BYTES
from aot.core.weight_rounding import by_blocks, by_rows, rounded
from aot.core.weight_values import weight_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SHAPE, SEED = (1024, 4096), 0
HEADER = ("format", "bits a weight", "root mean square", "mean", "worst")


@dataclass(frozen=True)
class Cost:
    """What a format costs. Errors are over the standard deviation of the weights."""

    format: str
    bits: float
    """Of a weight, factors and what fills blocks up included."""
    rms: float
    mean: float
    worst: float

    @property
    def row(self) -> tuple[str, ...]:
        """Return a line of the table."""
        bits = f"{self.bits:.4f}".rstrip("0").rstrip(".")
        return f"`{self.format}`", bits, f"{self.rms:.2%}", f"{self.mean:.2%}", f"{self.worst:.3g}"


def values_of(layer: PackedLayer, wide: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return what a weight stands for once it is rounded to a format."""
    element = ElementType.BFLOAT16
    if layer.form is not None:
        found = rounded(layer.form, wide, element)
        scale = 1.0 if found.scale is None else found.scale.astype(np.float64).reshape(-1, 1)
        return np.asarray(weight_values(layer.form, found.parts, element) * scale)
    if layer.format == "fp8_block":
        codes, scale_of_blocks = by_blocks(wide, SCALE_BLOCK)
        spread = np.repeat(np.repeat(scale_of_blocks, SCALE_BLOCK, 0), SCALE_BLOCK, 1)[: wide.shape[0], : wide.shape[1]]
        return np.asarray(decode(ElementType.E4M3, codes) * spread)
    kind = ElementType.INT8 if layer.format == "int8" else ElementType.E4M3
    codes, scale_of_rows = by_rows(wide, kind)
    return np.asarray(decode(kind, codes) * scale_of_rows)


def costs(shape: tuple[int, int] = SHAPE, seed: int = SEED) -> list[Cost]:
    """Round Gaussian weights to every format."""
    wide = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    found = []
    for name in FORMAT_NAMES:
        layer = PackedLayer(name, shape)
        num_bytes = sum(prod(x) * ELEMENT_BYTES[dtype] for _, dtype, x in layer.tensors)
        error = np.abs(values_of(layer, wide) - wide) / wide.std()
        rms = float(np.sqrt((error**2).mean()))
        found.append(Cost(name, 8 * num_bytes / prod(shape), rms, float(error.mean()), float(error.max())))
    return found


def markdown(found: Sequence[Cost]) -> str:
    """Write the table of docs/weights.md."""
    lines = [HEADER, ("---", *["--:"] * (len(HEADER) - 1)), *(x.row for x in found)]
    return "\n".join(f"| {' | '.join(x)} |".replace(" --- ", "---").replace(" --: ", "--:") for x in lines)


@click.command(name="formats")
@click.option("--markdown", "as_markdown", is_flag=True, help="Write the table of docs/weights.md.")
@JSON
def formats(as_markdown: bool, as_json: bool) -> None:
    """Show what each format of weights costs in bytes, and in errors of Gaussian weights."""
    del as_json
    found = costs()
    show(
        lambda: {"shape": SHAPE, "seed": SEED, "formats": found},
        lambda: markdown(found) if as_markdown else tables.table(HEADER, [x.row for x in found]),
    )
