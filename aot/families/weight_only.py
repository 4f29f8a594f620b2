"""Few rows of x by a weight of 4 or 8 bits that is packed for this kernel: what a product costs is reading the weight.

A CTA has some rows of the weight and all of k, for as many rows of x as it has room for; further rows of x are further
CTAs, so that any m is right. Its warps take blocks of k in turn, and bring the codes to operands of `mma.sync` in
registers. docs/weights.md has the formats, and what is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated

from aot.core.candidate import Alignment, Candidate, Reason, Rejected, Resources
from aot.core.constraints import Range
from aot.core.epilogue import Epilogue
from aot.core.errors import CandidateError
from aot.core.feature import Feature
from aot.core.grouping import Grouping
from aot.core.knobs import GemmKnobs, Knobs
from aot.core.operation import Operation
from aot.core.weight_format import BLOCK_K, Code, WeightFormat
from aot.families import Defaults
from aot.families._weight_only_tile import MMA_N, Tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.target import Target
    from aot.families import Entry

WEIGHT_EPILOGUES = (Epilogue.NONE, Epilogue.SWIGLU, Epilogue.GEGLU)
"""Of products of packed weights."""
WEIGHT_GROUPINGS = (Grouping.DENSE, Grouping.GROUPED, Grouping.GATHERED)
TILES = (1, 2, 3, 4, 5, 7)
"""Tiles of 16 rows of the weight in a CTA: so many that n of usual weights is one wave of CTAs."""
GATE_TILES = (2, 4, 6, 8)
"""The same with a gate, half of them of each weight."""
COLUMNS = (1, 4, 8, 16, 32, 64)
"""Rows of x that a CTA has room for."""
PIPELINES = ((4, 2, 1), (4, 3, 1), (8, 2, 1), (8, 3, 1), (8, 5, 1), (8, 3, 2), (12, 2, 1), (16, 2, 1))
"""Warps, stages of each warp's ring, and blocks of 128 along k in a stage. Source: those that won on an H100, driver
580.159.04, 2026-11-27 (docs/weights.md)."""
GROUP_TILES, GROUP_COLUMNS, GROUP_PIPELINES = (2, 3), (8, 16, 32, 64), ((4, 2, 1), (4, 3, 1))
"""The same of groups of rows, whose CTAs are many, and each of which waits for offsets before it asks for anything:
small ones, of which several fit an SM, hide that. With 8 warps kernels take 1.1 to 1.9 times as long, with 4 tiles 1.05
to 1.1; room for 4 rows gains 1%, and loses 1.3 to 1.6 times where groups have 8. Source: 13 kernels of MXFP4 and of
NVFP4 on an H200, driver 580.159.04, 2026-11-29 (research/log/2026-11-29-packed-experts.md)."""
MAX_REGISTERS = 255
"""Of a thread. Source: CUDA C++ Programming Guide, technical specifications."""
TILE_REGISTERS, OTHER_REGISTERS = 8, 44
"""Those that a thread takes for each tile and 8 rows of x, and beside these and x of a block. Source: ptxas 13.4 took
60 to 237 of int4's kernels of 1 to 7 tiles and 8 to 32 rows, within 14 of that, and spilt where it says 268
(nvidia-cutlass-dsl 4.8.1, 2026-11-27)."""
BYTES_A_CLOCK = {
    "int4": 25.0,
    "int4z": 24.0,
    "nvfp4": 17.0,
    "nvfp4rows": 16.0,
    "mxfp4": 15.0,
    "mxfp4rows": 15.0,
    "int8": 34.0,
    "e4m3": 28.0,
}
"""Packed bytes that an SM multiplies with 8 rows of x in a clock. Source: 0.7 of what instructions a clock allow by the
machine code for sm_90a (docs/weights.md, "The kernel"); of int4 an H100 ran 23 to 27, 2026-11-26. What the model
chose by them of the kernels of a bench took 4 to 9% more than the best there (H100, 2026-11-27, means over seven
weights and four formats)."""
ALONE = 2.3
"""How much longer a tile takes that a warp has alone: what it does then waits for itself. Source: with one tile and 8
rows of x an H100 multiplied 7.3 packed bytes of nvfp4 a clock of an SM, at n 28672, k 4096: 39 us, where seven tiles
took 24 (driver 580.159.04, 2026-11-27)."""
MMA_CLOCKS = 4.5
"""That each further instruction of m16n8k16 takes an SM, with what reads x for it. Source: with 16 rows of x products
take 1.3 to 1.4 times as long as with 2 clocks, which is the rate of mma.sync, and with 32 rows 1.3 to 1.75 times (H100,
driver 580.159.04, 2026-11-27)."""


@dataclass(frozen=True, order=True)
class WeightOnlyKnobs(Knobs):
    """What can be set of a kernel."""

    blocks: Annotated[int, Range(1, 4)]
    """Of 128 elements along k, in a stage."""
    columns: Annotated[int, Range(1, 64)]
    """Rows of x that a CTA has room for."""
    stages: Annotated[int, Range(1, 16)]
    """Of the ring of each warp."""
    tiles: Annotated[int, Range(1, 8)]
    """Of 16 rows of the weight; with a gate half of them are of each."""
    warps: Annotated[int, Range(1, 16)]
    """Of a CTA, which share k."""


def tile_of(candidate: Candidate, form: WeightFormat) -> Tile:
    """Return what a CTA of a candidate works on."""
    knobs = WeightOnlyKnobs.of(candidate)
    return Tile(form, knobs.tiles, knobs.columns, knobs.warps, knobs.stages, knobs.blocks)


def _order_of_warps(candidate: Candidate) -> str:
    knobs = WeightOnlyKnobs.of(candidate)
    return f"mma.sync of packed weights, {knobs.blocks} blocks by turns of {knobs.warps}"


def _format_of(operation: Operation) -> WeightFormat:
    if operation.b.weight is None:
        raise CandidateError(f"{operation.tag} has no packed weight; expected an operation with one")
    return operation.b.weight


def registers_of(tile: Tile) -> int:
    """Count the registers of a thread, about: x of a block, what each tile takes, and the rest."""
    x = 2 * BLOCK_K // 16 * tile.column_tiles
    return x + TILE_REGISTERS * tile.column_tiles * tile.tiles + OTHER_REGISTERS


def bytes_a_clock(form: WeightFormat) -> float:
    """Return the packed bytes that an SM multiplies with 8 rows of x in a clock."""
    name = form.name if form.code is Code.E2M1 else form.code.value
    return BYTES_A_CLOCK[f"{name}z" if form.has_zeros else name]


class WeightOnly(Defaults):
    """The family `weight_only`."""

    name = "weight_only"
    knobs = WeightOnlyKnobs
    needs = (Feature.CP_ASYNC, Feature.MMA_SYNC, Feature.TMA)
    prefetches_b = True
    types = tuple(dict.fromkeys(x.types for x in Operation if x.types.weight is not None))
    epilogues = WEIGHT_EPILOGUES
    groupings = WEIGHT_GROUPINGS

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate rows of the weight and of x, and pipelines."""
        del target
        tiles_of: tuple[int, ...] = TILES if operation.gate is None else GATE_TILES
        columns_of: tuple[int, ...] = COLUMNS
        pipelines: tuple[tuple[int, int, int], ...] = PIPELINES
        if operation.grouping.groups_rows:
            tiles_of, columns_of, pipelines = GROUP_TILES, GROUP_COLUMNS, GROUP_PIPELINES
        found = product(tiles_of, columns_of, pipelines) if operation.types in self.types else ()
        for tiles, columns, (warps, stages, blocks) in found:
            yield Candidate(self.name, WeightOnlyKnobs(blocks, columns, stages, tiles, warps))

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limit on registers, of as many CTAs as are to fit an SM."""
        tile = tile_of(candidate, _format_of(operation))
        if operation.gate is not None and tile.tiles % 2:
            text = f"{candidate.name} has {tile.tiles} tiles of rows; expected an even number with a gate"
            return Rejected(Reason.TILE, f"{text}, half of each weight")
        there = min(MAX_REGISTERS, target.registers_per_sm // (tile.num_threads * tile.blocks_per_sm))
        if registers_of(tile) > there:
            text = f"{candidate.name} takes some {registers_of(tile)} registers a thread, and {there} are there"
            return Rejected(Reason.REGISTERS, f"{text}; take fewer tiles, columns or warps")
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the rings of all warps, over which their sums lie in the end."""
        del target
        tile = tile_of(candidate, _format_of(operation))
        return Resources(tile.smem_bytes, tile.num_warps * tile.stage_bytes, tile.num_threads, tile.num_stages)

    def tiling(self, candidate: Candidate) -> GemmKnobs:
        """Describe a CTA's part of D."""
        knobs = WeightOnlyKnobs.of(candidate)
        return GemmKnobs(knobs.columns, 16 * knobs.tiles, use_tma_store=False)

    def tile_clocks(self, candidate: Candidate, operation: Operation) -> float:
        """Return the clocks of an SM that a CTA's arithmetic takes for each element along k: see `aot.space.cost`."""
        tile = tile_of(candidate, _format_of(operation))
        decoded = tile.layout.block_bytes / bytes_a_clock(tile.form)
        more = (tile.column_tiles - 1) * BLOCK_K // 16 * MMA_CLOCKS
        return tile.tiles * (decoded + more) * (ALONE if tile.tiles == 1 else 1) / BLOCK_K

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take any D, and rows of x that begin at multiples of 16 bytes; the weight does."""
        del candidate
        return Alignment(stores=1)

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order in which warps take blocks of k, and how the offset of codes is taken: `adds_offset`."""
        offset = "apart" if WeightOnlyKnobs.of(candidate).columns <= MMA_N else "before"
        return f"{_order_of_warps(candidate)}, offset {offset}"

    def order_in(self, candidate: Candidate, operation: Operation) -> str:
        """Name the order of an operation, of whose codes an offset that is one number alone is taken in two ways."""
        form = _format_of(operation)
        has_ways = form.code is Code.INT4 and not form.has_zeros
        return self.sum_order(candidate) if has_ways else _order_of_warps(candidate)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import Entry
        from aot.families._arguments import cutlass_type
        from aot.families._weight_only_entry import weight_only_entry

        function, arguments = weight_only_entry(
            tile_of(candidate, _format_of(operation)),
            cutlass_type(operation.a.element),
            is_scaled=operation.types.is_scaled,
            is_dependent=Feature.DEPENDENT_LAUNCH in target.features,
            gate=operation.gate,
            grouping=operation.grouping,
        )
        return Entry(function, arguments)


FAMILY = WeightOnly()
