"""A Hopper GEMM of our own for small outputs with a long k: the CTAs of a cluster share the k of one tile.

Where tiles that suit the tensor cores are too few for the device's SMs, 2, 4 or 8 CTAs take one tile, each every
second, fourth or eighth block of k, and add their sums through distributed shared memory in a fixed order: no
workspace, no flags and no second kernel. Where the tiles fill one wave, a CTA may take a tile alone, without the
scheduler of a persistent kernel. `split_k` is the number of CTAs of a tile; `cluster_m` and `cluster_n` count the tiles
of a cluster, which has up to 8 CTAs. The products of a batch each have their own tiles, one's behind the other's.

Every epilogue is computed of the sums that a CTA has added up, before they are rounded once.

FP8 operands, both contiguous along k as wgmma takes them, have 128 of k in a stage. Their sums are promoted: each
stage's is added to a thread's sums in float32, unless all may stay in the tensor cores' accumulator (`Types.is_fast`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, Resources, Workspace, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.feature import Feature
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.types import BF16, FP16
from aot.families import Defaults
from aot.families._epilogue import FP8, has_own_epilogue
from aot.families._sm90_split_tile import BARRIER_BYTES, GROUP, SWIZZLED, ScaledTile, Tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.core.types import Types
    from aot.families import Entry

WARPGROUPS = {64: 1, 128: 2, 192: 3, 256: 2}
"""Multiplying warpgroups of each tile_m."""

TILE_N = tuple(range(16, 257, 16))

MAX_ACCUMULATORS = {1: 128, 2: 128, 3: 96}
"""Accumulator registers of a thread that leave room for addresses, by warpgroups. Source: a thread gets 255, 168 and
128 registers of one, two and three warpgroups, nvidia-cutlass-dsl 4.8.1; a tile has at most 256 columns."""

EPILOGUE_ACCUMULATORS = {1: 96, 2: 88, 3: 64}
"""The same with a residual, and of FP8. Source: with 128, 96 and 80 kernels with a residual spill, nvidia-cutlass-dsl
4.8.1, 2026-11-22."""

EPILOGUE_SUMS = {1: 80, 2: 64, 3: 40}
"""Most sums of those that it multiplied that a thread finishes itself, by warpgroups, where they lie beside a residual
and a bias. Source: as above; with 96, 88 and 48 some spill."""

SCALED_SUMS = {1: 96, 2: 80, 3: 56}
"""Most such sums of FP8 without a residual: all that `PROMOTED_SUMS` leaves. Source: of 56 kernels of `sm90_one_tile`
between 80, 64 and 40 and these, with no activation, SiLU or SwiGLU, and of 8 with GELU, none spills, nvidia-cutlass-dsl
4.8.1, 2026-11-30."""

ACTIVATION_ACCUMULATORS = {1: 112, 2: 88, 3: 64}
"""Accumulators of a thread with an activation: of one warpgroup as many as it may finish itself, else as with a
residual."""

ACTIVATION_SUMS = {1: 112, 2: 80, 3: 64}
"""Most such sums of 16 bits where nothing but a bias is read. Source: of 54 kernels of `sm90_one_tile` with GELU, its
tanh form or SiLU within these none spills, past them 38 of 100 spill 8 to 208 bytes, nvidia-cutlass-dsl 4.8.1,
2026-11-30."""

GATE_SUMS = {1: 128, 2: 104, 3: 80}
"""Most such sums, and most accumulators, of a gate, whose results are half as many. Source: as above, of 90 kernels
with SwiGLU or GeGLU within these none spills, past them 10 of 32 spill 8 to 32 bytes."""

PROMOTED_SUMS = {1: 192, 2: 160, 3: 112}
"""Registers of a thread for promoted sums, and as many for those of a stage, by warpgroups. Source: 128x160 and 192x112
compile without spills, 128x176 and 192x128 spill 120 and 64 bytes, nvidia-cutlass-dsl 4.8.1, 2026-11-23; one warpgroup
has no more than an epilogue leaves."""

RESIDUAL_SUMS = {1: 240, 2: 160, 3: 112}
"""Registers of a thread for promoted sums, for those of a stage, and for those that it finishes, beside a residual that
it holds all the while, by warpgroups. Source: of 100 kernels at and about the limit the 56 within it spill nothing, and
37 of the 44 past it spill 8 to 168 bytes, nvidia-cutlass-dsl 4.8.1, 2026-11-23."""

MAX_CTAS = 8
"""Of a cluster. Source: CUDA C++ Programming Guide, the portable cluster size."""

CLUSTERS = (
    *((m, n, splits) for m, n in ((1, 1), (2, 1), (1, 2)) for splits in (1, 2, 4, 8) if m * n * splits <= MAX_CTAS),
    (4, 1, 2),
    (1, 4, 2),
)
"""(tiles along m, tiles along n, splits of k). Four tiles that are not split are left to `sm90_one_tile`; four as 2x2
won on 6 of 360 products (research/log/2026-11-24-eight-ctas.md)."""

MIN_STAGES = 2
"""Fewest stages with which loads overlap the multiplication."""

ELEMENTS = "elements"
"""The schedule of a kernel that stores D by elements, whose rows may then begin at any of them."""

ELEMENT_TILES = tuple(range(32, 257, 32))
"""The columns of its tiles. It is for products whose n is odd, fewer than those that fit other kernels."""


def filled(bare: Tile, candidate: Candidate, target: Target) -> Tile:
    """Give a tile the stages that a candidate names, or those that fill the shared memory."""
    left = target.smem_bytes_per_block - bare.fixed_bytes
    fit = left // (bare.stage_bytes + 2 * BARRIER_BYTES)
    return replace(bare, num_stages=candidate.gemm.num_stages or max(fit, MIN_STAGES))


def _mode(splits: int) -> SplitK:
    """Return the mode of a number of CTAs that share a tile's k."""
    return SplitK.CLUSTER if splits > 1 else SplitK.NONE


def _check_tile(tile: Tile) -> Rejected | None:
    """Apply the limits of the instruction, of the exchange and of the stages."""
    name = f"{tile.rows}x{tile.columns}"
    if tile.rows not in WARPGROUPS or tile.columns % GROUP or not GROUP <= tile.columns <= 256:
        text = f"a tile has {', '.join(map(str, WARPGROUPS))} rows and up to 256 columns in steps of {GROUP}"
        return Rejected(Reason.TILE, f"{text}, got {name}")
    if (tile.splits - 1) * tile.share >= tile.num_groups:
        text = f"{tile.num_groups} groups of {GROUP} columns leave one of {tile.splits} CTAs none to store"
        return Rejected(Reason.TILE, f"{name}: {text}")
    sides = zip((tile.rows, tile.columns), tile.sharing, tile.takes_turns, strict=True)
    if any(extent % (GROUP * sharing) and not in_turns for extent, sharing, in_turns in sides):
        text = f"{max(tile.sharing)} tiles cannot share a load in parts of whole groups of {GROUP}"
        return Rejected(Reason.TILE, f"{name}: {text}")
    if tile.num_stages < MIN_STAGES:
        text = f"{tile.num_stages} stages, expected 0 for as many as fit or at least {MIN_STAGES}"
        return Rejected(Reason.COMBINATION, text)
    return None


def _limits(operation: Operation) -> tuple[dict[int, int], dict[int, int]]:
    """Return how many accumulators a thread may have, and how many sums that it finishes itself, by warpgroups."""
    if not has_own_epilogue(operation):
        return MAX_ACCUMULATORS, MAX_ACCUMULATORS
    if operation.has_residual:
        return EPILOGUE_ACCUMULATORS, EPILOGUE_SUMS
    if operation.types.is_scaled:
        return EPILOGUE_ACCUMULATORS, SCALED_SUMS
    if operation.gate is not None:
        return GATE_SUMS, GATE_SUMS
    return ACTIVATION_ACCUMULATORS, ACTIVATION_SUMS


def _check_registers(tile: Tile, operation: Operation) -> Rejected | None:
    """Ask that a thread has registers for its sums, and for those that it finishes beside what an epilogue reads."""
    name, has_epilogue = f"{tile.rows}x{tile.columns}", has_own_epilogue(operation)
    most = PROMOTED_SUMS[tile.num_warpgroups]
    if operation.types.is_promoted and 2 * tile.num_accumulators > most:
        text = f"{name} needs {2 * tile.num_accumulators} registers a thread, twice its sums since they are promoted"
        return Rejected(Reason.REGISTERS, f"{text} every 128 of k; {most} fit")
    of_all, of_own = _limits(operation)
    fit = of_all[tile.num_warpgroups]
    if tile.num_accumulators > fit:
        text = f"{name} needs {tile.num_accumulators} accumulator registers a thread; {fit} fit"
        return Rejected(Reason.REGISTERS, text)
    own, fit = 4 * tile.num_vectors, of_own[tile.num_warpgroups]
    if has_epilogue and own > fit:
        text = f"{name} leaves a thread {own} sums for the epilogue; {fit} fit; split k over more CTAs"
        return Rejected(Reason.REGISTERS, text)
    held, fit = 2 * tile.num_accumulators + own, RESIDUAL_SUMS[tile.num_warpgroups]
    if operation.types.is_promoted and operation.has_residual and held > fit:
        text = f"{name} needs {held} registers a thread for promoted sums and those that it finishes; {fit} fit beside"
        return Rejected(Reason.REGISTERS, f"{text} a residual; take a smaller tile, or split k over more CTAs")
    return None


def are_k_major(candidate: Candidate, operation: Operation) -> tuple[bool, bool]:
    """Say whether the operand of a tile's rows is contiguous along k, and whether that of its columns is."""
    a, b = operation.a.is_k_major, operation.b.is_k_major
    return (b, a) if candidate.gemm.swap_ab else (a, b)


def _check_layout(tile: Tile, majors: tuple[bool, bool]) -> Rejected | None:
    """Ask for whole swizzled rows: what is not contiguous along k lies in rows along its side of the tile."""
    extents = zip((tile.rows, tile.columns), majors, strict=True)
    if any(not is_k_major and extent % SWIZZLED for extent, is_k_major in extents):
        text = f"an operand that is not contiguous along k takes a side of a multiple of {SWIZZLED}"
        return Rejected(Reason.LAYOUT, f"{text}, got {tile.rows}x{tile.columns}")
    return None


def check_tile(tile: Tile, candidate: Candidate, operation: Operation) -> Rejected | None:
    """Apply the limits on a candidate's tile, registers and layout."""
    fault = _check_tile(tile)
    registers = _check_registers(tile, operation) if fault is None else None
    return fault or registers or _check_layout(tile, are_k_major(candidate, operation))


def schedules(operation: Operation, tile_n: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """List (schedule, columns of a tile): those of whole pieces, and those that store by elements."""
    yield from (("", x) for x in tile_n)
    if not operation.types.is_scaled and not operation.has_parts:
        yield from ((ELEMENTS, x) for x in ELEMENT_TILES)


def check_schedule(candidate: Candidate, operation: Operation) -> Rejected | None:
    """Ask that a kernel that stores D by elements multiplies operands of 16 bits, by one weight."""
    if candidate.gemm.schedule == ELEMENTS and operation.types.is_scaled:
        text = f"kernels of the schedule {ELEMENTS} take operands of 16 bits, got {operation.types.tag}"
        return Rejected(Reason.TYPES, text)
    if candidate.gemm.schedule == ELEMENTS and operation.has_parts:
        return Rejected(Reason.COMBINATION, f"kernels of the schedule {ELEMENTS} multiply by one weight")
    return None


class Sm90ClusterSplitK(Defaults):
    """The family `sm90_cluster_split_k`."""

    name = "sm90_cluster_split_k"
    needs = (Feature.WGMMA, Feature.TMA, Feature.CLUSTERS, Feature.DEPENDENT_LAUNCH)
    loads_outside = True
    prefetches_b = True
    types: tuple[Types, ...] = (BF16, FP16, *FP8)
    epilogues = tuple(Epilogue)
    groupings = (Grouping.DENSE, Grouping.BATCHED)

    def tile(self, candidate: Candidate, operation: Operation, target: Target) -> Tile:
        """Return a candidate's tile."""
        sizes = (
            candidate.gemm.tile_m,
            candidate.gemm.tile_n,
            candidate.gemm.split_k,
            WARPGROUPS.get(candidate.gemm.tile_m, 1),
            0,
        )
        cluster = candidate.gemm.cluster_m, candidate.gemm.cluster_n
        bare = (
            ScaledTile(*sizes, *cluster, candidate.gemm.swap_ab)
            if operation.types.is_scaled
            else Tile(*sizes, *cluster)
        )
        return filled(bare, candidate, target)

    def kernel_classes(self, candidate: Candidate) -> tuple[Any, Any, Any]:
        """Return the classes of kernels with a bias at most, with more of an epilogue, and of FP8 with factors."""
        from aot.families._sm90_element_store import ElementEpilogueSplitGemmSm90, ElementSplitGemmSm90
        from aot.families._sm90_split_epilogue import EpilogueSplitGemmSm90
        from aot.families._sm90_split_kernel import SplitGemmSm90
        from aot.families._sm90_split_scaled import ScaledSplitGemmSm90

        if candidate.gemm.schedule == ELEMENTS:
            return ElementSplitGemmSm90, ElementEpilogueSplitGemmSm90, None
        return SplitGemmSm90, EpilogueSplitGemmSm90, ScaledSplitGemmSm90

    def class_of_parts(self) -> Any:
        """Return the class of kernels of several weights."""
        from aot.families._sm90_parts_kernel import PartsSplitGemmSm90

        return PartsSplitGemmSm90

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, clusters and swap, and those that store D by elements."""
        del target
        for tile_m, (cluster_m, cluster_n, splits), swap_ab in product(WARPGROUPS, CLUSTERS, (False, True)):
            for schedule, tile_n in schedules(operation, TILE_N):
                yield gemm_candidate(
                    family=self.name,
                    tile_m=tile_m,
                    tile_n=tile_n,
                    cluster_m=cluster_m,
                    cluster_n=cluster_n,
                    schedule=schedule,
                    swap_ab=swap_ab,
                    use_tma_store=False,
                    split_k=splits,
                    split_k_mode=_mode(splits),
                )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on layout, cluster, tile, registers and stages."""
        if (
            candidate.gemm.use_2cta
            or candidate.gemm.use_tma_store
            or candidate.gemm.schedule not in ("", ELEMENTS)
            or SplitK(candidate.gemm.split_k_mode) is not _mode(candidate.gemm.split_k)
        ):
            text = f"{self.name} splits k over the CTAs of a cluster and stores without TMA"
            return Rejected(Reason.COMBINATION, text)
        cluster = (candidate.gemm.cluster_m, candidate.gemm.cluster_n, candidate.gemm.split_k)
        if cluster not in CLUSTERS:
            allowed = ", ".join(f"{m}x{n} in {splits}" for m, n, splits in CLUSTERS)
            text = f"{cluster[0]}x{cluster[1]} tiles whose k is split in {cluster[2]} are not a cluster"
            return Rejected(Reason.CLUSTER, f"{text}; expected {allowed}")
        fault = check_schedule(candidate, operation)
        return fault or check_tile(self.tile(candidate, operation, target), candidate, operation)

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the stages, the sums that a CTA receives, factors, and the barriers."""
        tile = self.tile(candidate, operation, target)
        return Resources(tile.smem_bytes, tile.stage_bytes, tile.num_threads, tile.num_stages)

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none: sums travel through distributed shared memory."""
        del candidate
        return Workspace()

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Take all: the store is predicated."""
        del candidate
        return 1, 1

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take operands as TMA loads them, and D as pieces of 16 bytes or elements store it."""
        return Alignment(stores=1, only_unaligned=True) if candidate.gemm.schedule == ELEMENTS else Alignment()

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order in which CTAs take every second, fourth or eighth block of k, and add up their sums.

        A block is of 64 elements of 16 bits or 128 of 8, and the promoted sums of FP8 follow k in any tile.
        """
        return f"wgmma, blocks of k by turns of {candidate.gemm.split_k}"

    def configured(self, candidate: Candidate, operation: Operation, target: Target) -> tuple[Any, ...]:
        """Return what each class of kernels is made of."""
        from aot.families._arguments import cutlass_type
        from aot.families._next_start import Places

        tile = self.tile(candidate, operation, target)
        places, majors = Places.of(target, tile.num_ctas), are_k_major(candidate, operation)
        return cutlass_type(operation.d), tile, candidate.gemm.swap_ab, places, majors

    def of_16_bits(self, candidate: Candidate, operation: Operation, target: Target) -> tuple[Any, bool]:
        """Return the kernel of an operation of 16 bits and one weight, and whether it takes `Vectors`."""
        configured = self.configured(candidate, operation, target)
        plain, with_epilogue, _ = self.kernel_classes(candidate)
        has_vectors = has_own_epilogue(operation)
        return (with_epilogue(*configured, operation) if has_vectors else plain(*configured)), has_vectors

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import signature
        from aot.families._arguments import cutlass_type

        arguments, configured = (
            signature(KernelKey(operation, candidate)),
            self.configured(candidate, operation, target),
        )
        stores = self.alignment(candidate).stores
        if operation.has_parts:
            from aot.families._parts import parts_entry

            return parts_entry(self.class_of_parts()(*configured), arguments, operation, stores)
        from aot.families._skinny_entry import skinny_epilogue_entry

        if operation.types.is_scaled:
            a, b = (cutlass_type(x.element) for x in (operation.a, operation.b))
            _, _, scaled = self.kernel_classes(candidate)
            gemm = scaled(*configured, operation, (b, a) if candidate.gemm.swap_ab else (a, b))
            return skinny_epilogue_entry(gemm, arguments, operation)
        from aot.families._prefetch_entry import prefetch_entry

        gemm, has_vectors = self.of_16_bits(candidate, operation, target)
        made = skinny_epilogue_entry if has_vectors else prefetch_entry
        return made(gemm, arguments, operation, stores)


FAMILY = Sm90ClusterSplitK()
