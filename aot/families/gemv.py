"""Our product of a vector and a matrix, for what TMA does not take: one row of x, any address, stride and layout.

Each thread multiplies what it loads, in float32; nothing passes through shared memory but sums. B is loaded by 16 bytes
from multiples of 16 on, wherever its rows begin. Every eighth row begins as far behind such a multiple as the first, so
that a CTA, where B is contiguous along k, or a warp, where it is along n, takes every eighth row: what has to be moved
to fit is the vector, or a sum at the end, and not the matrix. Nothing in front of B's first element or behind its last
is read; what lies between its rows may be, and is never used.

A candidate's schedule says how many warps share k, and where B is contiguous along k how many rows a thread multiplies
at once and, if not over a whole warp, over how many lanes a row is spread: `r4k2`, `r4k1l8`, or `k8`. Where B is
contiguous along n, the CTAs of a cluster may share k besides. A problem of more rows of A gets a CTA for each of them,
which loads B again: right, and slow.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

from aot.core.candidate import (
    Alignment,
    Candidate,
    KernelKey,
    Reason,
    Rejected,
    Resources,
    gemm_candidate,
)
from aot.core.epilogue import Epilogue
from aot.core.feature import Feature
from aot.core.types import BF16, FP16
from aot.families import Defaults
from aot.families._gemv_tile import IN_FLIGHT, PIECE, PIECE_BYTES, WARP, Tile
from aot.families.mma_sync import SPLITS, TIMED, fits, mode_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

AT_ONCE = (1, 2, 4)
"""Rows of B that a thread multiplies by what it loaded of A."""

SHARED_ROWS = ((4, 1), (8, 1), (16, 1), (32, 1), (32, 2), (32, 4), (32, 8))
"""Lanes of a warp that share a row of B, and warps, where B is contiguous along k. Whole warps share long rows."""

MIN_WARPS = 4
"""Warps of a CTA at least, where B is contiguous along k: those that do not share rows have some of their own."""

CLASSES_OF_WARPS = (8, 16)
"""Warps that share k, where B is contiguous along n: one or two for every eighth row."""

LANES = (2, 4, 8, 16, 32)
"""Lanes of a warp along n, where B is contiguous along n."""

THREADS_AT_ONCE = 768
"""Threads on an SM at once: an assumption, 85 of its 65,536 registers for each."""

_ALONG_K = re.compile(r"r([124])k([1248])(?:l(4|8|16))?")
_ALONG_N = re.compile(r"k(8|16)")


def tile_of(candidate: Candidate, operation: Operation) -> Tile | None:
    """Return the tile of a candidate; None where its schedule or its columns are none of ours."""
    knobs, is_k_major = candidate.gemm, operation.b.is_k_major
    found = (_ALONG_K if is_k_major else _ALONG_N).fullmatch(knobs.schedule)
    if not found:
        return None
    if not is_k_major:
        tile = Tile(knobs.tile_n, int(found[1]), splits=knobs.split_k, b_is_k_major=False)
        return tile if tile.lanes in LANES and tile.columns == (tile.lanes - 1) * PIECE else None
    tile = Tile(knobs.tile_n, int(found[2]), int(found[1]), int(found[3] or WARP))
    is_ours = (tile.lanes, tile.along_k) in SHARED_ROWS and tile.columns == _columns(tile)
    return tile if is_ours else None


def _columns(tile: Tile) -> int:
    """Count the columns of a CTA of `MIN_WARPS` warps, or of as many as share k."""
    return tile.at_once * tile.groups * max(1, MIN_WARPS // tile.along_k)


class Gemv(Defaults):
    """The family `gemv`."""

    name = "gemv"
    needs = (TIMED,)
    """It needs no feature but a cluster where CTAs share k: it was timed on an H200, and is enumerated for its kin."""
    max_m = 4
    """An assumption, of an H200: times were taken of 1, 2 and 4 rows, and with 4 half of the best are other kernels."""
    types = (BF16, FP16)
    epilogues = tuple(x for x in Epilogue if x not in (Epilogue.SWIGLU, Epilogue.GEGLU, Epilogue.MANY))

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate warps and rows at once, or lanes along n, warps and CTAs."""
        if operation.b.is_k_major:
            for at_once, (lanes, along_k) in product(AT_ONCE, SHARED_ROWS):
                columns = _columns(Tile(0, along_k, at_once, lanes))
                schedule = f"r{at_once}k{along_k}" + (f"l{lanes}" if lanes < WARP else "")
                yield gemm_candidate(self.name, 1, columns, schedule=schedule, use_tma_store=False)
            return
        for lanes, along_k, splits in product(LANES, CLASSES_OF_WARPS, (x for x in SPLITS if fits(x, target))):
            yield gemm_candidate(
                self.name,
                1,
                (lanes - 1) * PIECE,
                schedule=f"k{along_k}",
                use_tma_store=False,
                split_k=splits,
                split_k_mode=mode_of(splits),
            )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Accept what is enumerated."""
        if candidate not in self.candidates(operation, target):
            kinds = "r2k4 of 2 columns" if operation.b.is_k_major else "k8 of 56 columns"
            text = f"{self.name} multiplies one row, for a B like this by candidates such as {kinds}"
            return Rejected(Reason.COMBINATION, f"{text}; got {candidate.name}")
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the sums. A candidate that is none of ours, which `check` refuses, has a warp for each column."""
        del target
        tile = tile_of(candidate, operation) or Tile(candidate.gemm.tile_n, 1)
        flight = THREADS_AT_ONCE * IN_FLIGHT * PIECE_BYTES
        return Resources(tile.smem_bytes, 0, tile.num_threads, num_stages=0, flight_bytes=flight)

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take any; what TMA takes, others load as fast."""
        del candidate
        return Alignment(loads=2, stores=1, only_unaligned=True)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import signature
        from aot.families._gemv_kernel import gemv_entry

        tile, arguments = tile_of(candidate, operation), signature(KernelKey(operation, candidate))
        if tile is None:
            raise ValueError(f"expected a legal candidate of {self.name}, got {candidate.name}")
        return gemv_entry(tile, operation, arguments, is_dependent=Feature.DEPENDENT_LAUNCH in target.features)


FAMILY = Gemv()
