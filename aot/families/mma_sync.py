"""A GEMM of our own on tensor cores for what TMA does not take: any address, stride, layout and size.

Operands are loaded by `cp.async` of 16, 8 or 4 bytes, whatever their rows begin at multiples of; rows that begin at any
element by 16 bytes, each from the aligned address in front of it on. A ring of stages, `ldmatrix` and `mma.sync` do the
rest. Bytes behind an operand's extents are never read: they are zeros in shared memory. D is stored by elements, lanes
next to each other storing elements next to each other. All of it is there since sm_80.

A candidate's schedule says how many bytes its loads bring at once, and over how many warps of a CTA k is split, such as
`a16k4`: for few tiles, whose time is that of a chain of loads and steps. One that begins with `o` instead, `o4k1`,
loads an operand by 16 bytes where its own rows begin at multiples of them and those of the other do not; one that
begins with `r`, `r2k8`, moves only those rows in shared memory that the operands have: of 16 of A perhaps one.
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
    Workspace,
    gemm_candidate,
)
from aot.core.dispatch import LOADS
from aot.core.epilogue import OF_ONE_WEIGHT
from aot.core.feature import Feature
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.types import BF16, FP16
from aot.families import Defaults
from aot.families._mma_sync_tile import WARPS, FewRowsTile, OwnTile, Tile, no_tile, warps_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

_LOADS_OF = {"a": LOADS, "o": (4, 2), "r": (2,)}
"""Bytes of a load by how operands are loaded: one is loaded by its own rows beside another of fewer, and rows are moved
in shared memory where they may begin at any element."""

_SCHEDULE = re.compile(r"([aor])(2|4|8|16)k([1248])")

SPLITS = (1, 2, 4, 8)
"""CTAs of a cluster that share a tile's k. Source of the most: CUDA C++ Programming Guide, portable cluster size."""

TIMED = Feature.WGMMA
"""Feature of the chips on which what the cost model cannot tell apart was timed: narrow tiles, and loads and moves of
an operand by its own rows. All chips can have these kernels; elsewhere a model would choose them, and none is
enumerated there until something is timed."""

PLAIN_COLUMNS = (16, 32, 64, 128, 256)
"""Columns of the tiles that are enumerated everywhere."""

FEW_ROWS = 16
"""Rows of the tiles that may move those alone that the operands have."""

MAX_SPLIT_TILE = 64 * 96
"""Elements of the largest tile that CTAs share: larger ones are for products that have enough of them."""


def fits(splits: int, target: Target) -> bool:
    """Say whether clusters of a number of CTAs are among a target's, or were counted on it."""
    return splits == 1 or (splits, 1) in target.clusters or splits in dict(target.active_clusters)


def mode_of(splits: int) -> SplitK:
    """Return the mode of a number of CTAs that share a tile's k."""
    return SplitK.CLUSTER if splits > 1 else SplitK.NONE


def _kinds(tile_m: int, operation: Operation) -> str:
    """List how a tile's operands may be loaded, by the letters that schedules begin with.

    By its own rows not where those of both are of k, and begin at the same multiples.
    """
    own = "" if operation.a.is_k_major and operation.b.is_k_major else "o"
    return "a" + own + ("r" if tile_m == FEW_ROWS and operation.a.is_k_major else "")


def _parts(candidate: Candidate) -> tuple[int, int]:
    """Return the bytes of a load and the warps along k of a candidate; (0, 0) where its schedule is none of ours."""
    found = _SCHEDULE.fullmatch(candidate.gemm.schedule)
    if not found or int(found[2]) not in _LOADS_OF[found[1]]:
        return 0, 0
    return int(found[2]), int(found[3])


def _warps(candidate: Candidate) -> tuple[int, int, int] | None:
    """Return the warps of a candidate's tile; None where there is no such tile."""
    return warps_of(WARPS, (candidate.gemm.tile_m, candidate.gemm.tile_n), _parts(candidate)[1])


def tile_of(candidate: Candidate, operation: Operation) -> Tile:
    """Return the tile of a legal candidate."""
    warps = _warps(candidate) or (1, 1, 1)
    majors = operation.a.is_k_major, operation.b.is_k_major
    knobs, loads = candidate.gemm, _parts(candidate)[0] or LOADS[-1]
    kind = {"o": OwnTile, "r": FewRowsTile}.get(knobs.schedule[:1], Tile)
    return kind(knobs.tile_m, knobs.tile_n, warps, loads, *majors, knobs.split_k)


class MmaSync(Defaults):
    """The family `mma_sync`."""

    name = "mma_sync"
    needs = (Feature.CP_ASYNC, Feature.MMA_SYNC)
    peak_share = 0.6
    """An assumption: mma.sync does not reach wgmma's rate. Not measured."""
    types = (BF16, FP16)
    epilogues = OF_ONE_WEIGHT
    groupings = (Grouping.DENSE, Grouping.BATCHED)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, warps along k, and the bytes of a load."""
        is_timed = TIMED in target.features
        for (tile_m, tile_n), choices in WARPS.items():
            if not (is_timed or tile_n in PLAIN_COLUMNS):
                continue
            kinds = _kinds(tile_m, operation) if is_timed else "a"
            loads = [f"{kind}{x}" for kind in kinds for x in _LOADS_OF[kind]]
            for along_k in dict.fromkeys(x[2] for x in choices):
                splits_of_tile = SPLITS if tile_m * tile_n <= MAX_SPLIT_TILE else (1,)
                for load, splits in product(loads, (x for x in splits_of_tile if fits(x, target))):
                    yield gemm_candidate(
                        self.name,
                        tile_m,
                        tile_n,
                        schedule=f"{load}k{along_k}",
                        use_tma_store=False,
                        split_k=splits,
                        split_k_mode=mode_of(splits),
                    )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on tile and schedule."""
        knobs = candidate.gemm
        cluster = (knobs.cluster_m, knobs.cluster_n, SplitK(knobs.split_k_mode))
        others = knobs.use_2cta or knobs.use_tma_store or knobs.swap_ab or knobs.num_stages
        if cluster != (1, 1, mode_of(knobs.split_k)) or knobs.split_k not in SPLITS or others:
            shared = "in a CTA, or in 2, 4 or 8 of a cluster that share k"
            text = f"{self.name} computes a tile {shared}, with as many stages as pay, and stores elements"
            return Rejected(Reason.COMBINATION, text)
        if not fits(knobs.split_k, target):
            text = f"{knobs.split_k} CTAs share k; {target.name} has no clusters of as many that are known to fill it"
            return Rejected(Reason.CLUSTER, text)
        if _parts(candidate) == (0, 0):
            text = f"{self.name} has schedules such as a16k1: bytes of a load, warps along k"
            return Rejected(Reason.COMBINATION, f"{text}; got {candidate.gemm.schedule!r}")
        if knobs.schedule[0] not in _kinds(knobs.tile_m, operation):
            text = (
                f"{knobs.schedule} is for other layouts than kk, whose rows of A and B need not begin at the same "
                "multiples"
                if knobs.schedule[0] == "o"
                else f"{knobs.schedule} is for tiles of {FEW_ROWS} rows of an A that is contiguous along k"
            )
            return Rejected(Reason.COMBINATION, f"{text}: take a{knobs.schedule[1:]}")
        if _warps(candidate) is None:
            return Rejected(Reason.TILE, no_tile(WARPS, (knobs.tile_m, knobs.tile_n), _parts(candidate)[1]))
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the stages, over which the sums lie in the end."""
        del target
        tile = tile_of(candidate, operation)
        return Resources(tile.smem_bytes, tile.stage_bytes, tile.num_threads, tile.num_stages)

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none."""
        del candidate
        return Workspace()

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Take all: loads and stores are predicated."""
        del candidate
        return 1, 1

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take any D, and rows of A and B that begin at multiples of a load; what TMA takes, others load faster."""
        return Alignment(loads=_parts(candidate)[0], stores=1, only_unaligned=True)

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order in which warps take steps of k by turns, and add up their sums."""
        return f"mma.sync, steps of k by turns of {_parts(candidate)[1]} of {candidate.gemm.split_k}"

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import signature
        from aot.families._mma_sync_kernel import mma_sync_entry

        arguments = signature(KernelKey(operation, candidate))
        is_dependent = Feature.DEPENDENT_LAUNCH in target.features
        return mma_sync_entry(tile_of(candidate, operation), operation, arguments, is_dependent=is_dependent)


FAMILY = MmaSync()
