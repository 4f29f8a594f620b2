"""How a problem may be computed: a candidate of a kernel family, and what legality says of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Annotated, Any

from aot.core.constraints import FamilyName, Range, Schedule, Word
from aot.core.operation import Operation

Tile = Annotated[int, Range(1, 4096)]
Cluster = Annotated[int, Range(1, 16)]
Stages = Annotated[int, Range(0, 256)]
Splits = Annotated[int, Range(1, 4096)]
Clusters = Annotated[int, Range(1, 4096)]


class SplitK(Word):
    """How the partial sums of a split-K candidate are brought together."""

    NONE = "none"
    SERIAL = "serial"
    """Splits add to a float32 region of the tile in order, guarded by a flag: deterministic."""
    PARALLEL = "parallel"
    """Splits add atomically in order of arrival: not deterministic; the workspace starts at zero."""
    SEPARATE = "separate"
    """Splits write float32 partials, a second kernel sums them in order: deterministic."""
    TAIL = "tail"
    """Only tiles that fill no whole wave are split, in as many as `tail_splits` says; splits write float32 partials,
    which the last one of a tile sums in order, in the same launch: deterministic."""
    CLUSTER = "cluster"
    """Splits are the CTAs of a cluster, which add up through distributed shared memory in order: deterministic."""


MIN_SPLITS_OF_TWO_WAVES = 3
"""Fewest splits by which a tail that fills more than half of a wave is shortened: two waves of thirds."""


def tail_splits(tail: int, num_clusters: int, most: int) -> int:
    """Return the splits of each tile that fills no whole wave.

    They are as many as fit in one wave, or three where one wave takes no two but two waves take three.

    Args:
        tail: tiles of clusters that are left over by whole waves.
        num_clusters: clusters of a whole wave.
        most: the candidate's `split_k`.
    """
    if tail == 0:
        return 1
    splits = min(most, num_clusters // tail)
    if splits == 1 and most >= MIN_SPLITS_OF_TWO_WAVES and MIN_SPLITS_OF_TWO_WAVES * tail <= 2 * num_clusters:
        return MIN_SPLITS_OF_TWO_WAVES
    return splits


@dataclass(frozen=True, order=True)
class Candidate:
    """One point of a family's space. What a field means is the family's to say; sizes are in elements or CTAs.

    `tile_m` and `tile_n` are the kernel's own: with `swap_ab` the kernel computes the transpose, so that `tile_m` runs
    along the problem's n.
    """

    family: FamilyName
    tile_m: Tile
    tile_n: Tile
    cluster_m: Cluster = 1
    cluster_n: Cluster = 1
    schedule: Schedule = ""
    num_stages: Stages = 0
    """Stages of the A/B pipeline; 0 leaves the number to the family, which fills the shared memory."""
    swap_ab: bool = False
    use_2cta: bool = False
    use_tma_store: bool = True
    split_k: Splits = 1
    split_k_mode: SplitK = SplitK.NONE

    def __post_init__(self) -> None:
        """Refuse a tile that two CTAs cannot share (ValueError): families halve it."""
        if self.use_2cta and self.tile_m % 2:
            raise ValueError(f"two CTAs cannot share a tile of {self.tile_m} rows; expected an even number")

    @property
    def name(self) -> str:
        """Return the name that users see and filter by: family, tile, cluster, then what differs from the default."""
        parts = [self.family, f"{self.tile_m}x{self.tile_n}", f"c{self.cluster_m}x{self.cluster_n}"]
        parts += [self.schedule] if self.schedule else []
        parts += [f"st{self.num_stages}"] if self.num_stages else []
        parts += ["2cta"] if self.use_2cta else []
        parts += [] if self.use_tma_store else ["direct"]
        parts += [f"{self.split_k_mode}{self.split_k}"] if self.split_k > 1 else []
        parts += ["swap"] if self.swap_ab else []
        return "_".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values, for manifests and records."""
        return asdict(self)


@dataclass(frozen=True, order=True)
class KernelKey:
    """A candidate for one operation: what is compiled, measured, shipped and named."""

    operation: Operation
    candidate: Candidate

    @property
    def name(self) -> str:
        """Return the kernel's stable name and symbol prefix, such as `bf16_kk_sm90_quack_128x256_c2x1_pingpong`."""
        return f"{self.operation.tag}_{self.candidate.name}"


@dataclass(frozen=True)
class Workspace:
    """What a kernel needs beside A, B and D: one float32 tensor, sized from the problem.

    The C++ twin is `workspace_bytes` in templates/src/runtime.cc; tests/runtime compares the two.
    """

    mode: SplitK = SplitK.NONE
    split_k: Splits = 1
    tile_m: Tile = 1
    tile_n: Tile = 1
    cluster_m: Cluster = 1
    cluster_n: Cluster = 1
    swap_ab: bool = False
    num_clusters: Clusters = 1
    """Clusters of a whole wave, in the mode `tail`; else 1."""

    @property
    def waits(self) -> bool:
        """Say whether CTAs wait for what others of their launch add to the same tile: then all must be resident.

        A launch of more CTAs than the device holds at once could then wait for ever.
        """
        return self.mode in (SplitK.SERIAL, SplitK.PARALLEL, SplitK.TAIL)

    def _num_tiles(self, m: int, n: int) -> int:
        m, n = (n, m) if self.swap_ab else (m, n)
        tiles_m = -(-m // (self.tile_m * self.cluster_m)) * self.cluster_m
        tiles_n = -(-n // (self.tile_n * self.cluster_n)) * self.cluster_n
        return tiles_m * tiles_n

    def _num_tail_regions(self, m: int, n: int) -> int:
        """Count the partial tiles that splits write: none where no tile is split."""
        cluster = self.cluster_m * self.cluster_n
        tail = self._num_tiles(m, n) // cluster % self.num_clusters
        return tail * (tail_splits(tail, self.num_clusters, self.split_k) - 1) * cluster

    def _tail_flag_bytes(self) -> int:
        return -(-self.num_clusters * self.cluster_m * self.cluster_n * 4 // 16) * 16

    def num_bytes(self, m: int, n: int) -> int:
        """Return the bytes needed for a problem of m by n; 16-byte alignment is expected of the start."""
        if self.mode == SplitK.NONE:
            return 0
        if self.mode == SplitK.SEPARATE:
            return self.split_k * m * (-(-n // 4) * 4) * 4
        if self.mode == SplitK.TAIL:
            regions = self._num_tail_regions(m, n)
            return regions and self._tail_flag_bytes() + regions * self.tile_m * self.tile_n * 4
        flags = -(-self._num_tiles(m, n) * 4 // 16) * 16
        return flags + self._num_tiles(m, n) * self.tile_m * self.tile_n * 4

    def num_zero_bytes(self, m: int, n: int) -> int:
        """Return the leading bytes that must be zero before each launch (the flags; in parallel mode, everything).

        In the mode `tail` the kernel clears its flags itself.
        """
        if self.mode == SplitK.SERIAL:
            return -(-self._num_tiles(m, n) * 4 // 16) * 16
        return self.num_bytes(m, n) if self.mode == SplitK.PARALLEL else 0


@dataclass(frozen=True)
class Resources:
    """What one CTA of a candidate takes, by the family's own arithmetic."""

    smem_bytes: int
    """Shared memory of a block, with what is set aside for barriers: an upper bound of what the launch asks for."""
    stage_bytes: int
    """The part of it that one A/B stage takes."""
    num_threads: int
    num_stages: int
    tmem_columns: int = 0


@dataclass(frozen=True)
class Alignment:
    """What a kernel asks of its operands' addresses and leading strides, in bytes."""

    loads: int = 16
    """Those of A and B are multiples of this."""
    stores: int = 16
    """Those of D and of what the epilogue reads are multiples of this; 1 where any element may begin a row."""
    only_unaligned: bool = False
    """Whether it is for problems that are not aligned alone: kernels that ask for 16 bytes are faster on the others."""


class Reason(Enum):
    """Why a candidate is rejected before compiling."""

    SMEM = "shared memory exceeded"
    TMEM = "tensor memory exceeded"
    CLUSTER = "cluster not allowed"
    THREADS = "too many threads"
    REGISTERS = "too many registers"
    TILE = "tile not supported by the family"
    LAYOUT = "layout not supported by the family"
    TYPES = "element types not supported by the family"
    EPILOGUE = "epilogue not supported by the family"
    GROUPING = "grouping not supported by the family"
    COMBINATION = "combination not supported by the family"
    FEATURE = "the chip lacks what the family needs"
    ARCHITECTURE = "family is for another architecture"
    PATTERN = "excluded by --kernels"


@dataclass(frozen=True)
class Accepted:
    """A candidate that may be compiled."""

    resources: Resources


@dataclass(frozen=True)
class Rejected:
    """A candidate that may not, with the reason and the figures in the message."""

    reason: Reason
    message: str


Verdict = Accepted | Rejected
