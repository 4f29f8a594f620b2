"""The command `aot smem`: what a kernel takes of shared memory, and what fits."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import Axis, Command, option
from aot.cli.output import JSON, show
from aot.core.errors import CandidateError
from aot.families._tcgen05 import TILE_K_BYTES
from aot.space import smem

if TYPE_CHECKING:
    from collections.abc import Mapping

TILES = {
    smem.Engine.TCGEN05: (
        *((m, n, False) for m in (64, 128) for n in (64, 128, 256)),
        *((256, n, True) for n in (64, 128, 256)),
    ),
    smem.Engine.WARP: tuple((m, n, False) for m in (64, 128, 256) for n in (64, 128, 256)),
}
"""The lines of the table: tile_m, tile_n, two CTAs."""


def parse_tile(text: str) -> tuple[int, int]:
    """Read `256x128` as (256, 128).

    Raises:
        CandidateError: the text is not a tile.
    """
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise CandidateError(
            f"--tile is {text!r}; expected tile_m and tile_n, such as 256x128; leave it out for a table"
        )
    return int(parts[0]), int(parts[1])


def _alike() -> list[list[smem.Element]]:
    """Group the element types that take the same bytes."""
    return [list(group) for _, group in groupby(smem.ELEMENTS.values(), key=lambda x: (x.bits, x.scale_vector))]


def _fit(kernel: smem.Kernel) -> int | None:
    """Count the stages that fit; None where the MMA has no such tile."""
    rows, columns = smem.tiles(kernel.arch, smem.ELEMENTS[kernel.element], use_2cta=kernel.use_2cta)
    if kernel.tile_m not in rows or kernel.tile_n not in columns:
        return None
    return smem.count(kernel).num_stages_fit


KERNEL, TABLE = "with --tile", "without --tile"


def _form(values: Mapping[str, Any]) -> str:
    return TABLE if values["tile"] is None else KERNEL


@click.command(name="smem", cls=Command, axes=(Axis((KERNEL, TABLE), _form),))
@click.option(
    "--arch", default="sm_110a", show_default=True, help=f"One of {', '.join(smem.ENGINES)}, a behind or not."
)
@click.option("--tile", help="tile_m x tile_n of the MMA, such as 256x128; without it, a table of tiles and types.")
@option("--two-cta", only=[KERNEL], is_flag=True, help="Two CTAs to an MMA: each holds half of A's rows and half of B.")
@option(
    "--dtype", only=[KERNEL], default="bf16", show_default=True, help=f"Type of A and B: {', '.join(smem.ELEMENTS)}."
)
@click.option("--out", default="bf16", show_default=True, help=f"Type of D: {', '.join(smem.OUTPUT_BYTES)}.")
@click.option("--source", default="", help="Type of the C that the epilogue loads; by default it loads none.")
@click.option("--k-bytes", default=TILE_K_BYTES, show_default=True, help="Bytes of k in a stage.")
@option("--stages", only=[KERNEL], type=int, help="Stages of A and B; by default as many as fit.")
@JSON
def smem_command(**values: Any) -> None:
    """Count a kernel's shared memory in bytes, for FP4, FP8, FP16 and FP32, and say what fits: docs/smem.md."""
    arch, limit = values["arch"], smem.SMEM_BYTES[smem.base_arch(values["arch"])]
    epilogue = values["out"], values["source"], values["k_bytes"]
    if values["tile"] is not None:
        kernel = smem.Kernel(arch, values["dtype"], *parse_tile(values["tile"]), values["two_cta"], *epilogue)
        usage = smem.count(kernel, values["stages"])
        verdict = smem.explain(usage)
        show(lambda: {"usage": usage, "verdict": verdict}, lambda: tables.smem_report(usage, verdict))
        return
    groups = _alike()
    rows = [
        (f"{m}x{n}{' 2cta' if two else ''}", [_fit(smem.Kernel(arch, x[0].name, m, n, two, *epilogue)) for x in groups])
        for m, n, two in TILES[smem.ENGINES[smem.base_arch(arch)]]
    ]
    header = ["/".join(element.name for element in group) for group in groups]
    show(
        lambda: {
            "arch": arch,
            "limit_bytes": limit,
            "num_stages_fit": {x: dict(zip(header, y, strict=True)) for x, y in rows},
        },
        lambda: tables.smem_table(arch, limit, header, rows),
    )
