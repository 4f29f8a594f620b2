"""How a problem may be computed: a candidate of a kernel family, and what legality says of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass, replace
from enum import Enum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

from aot.core.constraints import FamilyName, Range
from aot.core.knobs import Cluster, GemmKnobs, Knobs, PlainKnobs, SplitK, Splits, Tile
from aot.core.operation import Operation
from aot.core.strict_json import DecodeError, decode, shown

if TYPE_CHECKING:
    from collections.abc import Callable

Clusters = Annotated[int, Range(1, 4096)]


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
    """One point of a family's space: the family, and what it sets of a kernel."""

    family: FamilyName
    knobs: Knobs
    """Those of the kind, such as `GemmKnobs`, or, of a family that has others, `PlainKnobs`: the same wherever the
    family is installed or not."""

    def __post_init__(self) -> None:
        """Keep knobs of a family's own by their names."""
        if not self.knobs.is_of_kind and type(self.knobs) is not PlainKnobs:
            values = tuple((name, str(x) if isinstance(x, str) else x) for name, x in self.knobs.items())
            object.__setattr__(self, "knobs", PlainKnobs(values))

    @cached_property
    def _hash(self) -> int:
        return hash((self.family, self.knobs))

    def __hash__(self) -> int:
        """Return the hash, which is worked out once: a selection looks candidates up millions of times."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Leave the hash here: another process hashes texts in another way."""
        return {name: x for name, x in vars(self).items() if name != "_hash"}

    @property
    def name(self) -> str:
        """Return the name that users see and filter by: the family's, and the text of its knobs."""
        return f"{self.family}_{self.knobs.name}"

    @property
    def gemm(self) -> GemmKnobs:
        """Return the knobs of a family whose knobs are `GemmKnobs`.

        Raises:
            CandidateError: the family has others.
        """
        return self.knobs if isinstance(self.knobs, GemmKnobs) else GemmKnobs.of(self)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for manifests and records: knobs of the kind beside the family, others under `knobs`."""
        values = {name: str(x) if isinstance(x, str) else x for name, x in self.knobs.items()}
        return {"family": self.family, **(values if self.knobs.is_of_kind else {"knobs": values})}

    @staticmethod
    def read_json(value: object) -> Candidate:
        """Make a candidate of what `as_json` returned of one whose kind's knobs are `GemmKnobs`.

        Raises:
            DecodeError: it is none.
        """
        return _read_gemm(value)


@dataclass(frozen=True)
class _Candidate:
    """A candidate whose knobs are read apart."""

    family: FamilyName


@cache
def flat(knobs: type[Knobs]) -> Any:
    """Make the dataclass that a candidate is written as whose knobs are its kind's: they lie beside the family."""
    hints = get_type_hints(knobs, include_extras=True)
    own = [(x.name, hints[x.name]) for x in fields(cast("Any", knobs))]
    return make_dataclass("_Candidate", [("family", FamilyName), *own], frozen=True)


def reader(knobs: type[Knobs]) -> Callable[[object], Candidate]:
    """Return what makes a candidate of what `as_json` returned, which raises DecodeError where it is none.

    Args:
        knobs: those of the candidate's kind, whose fields stand beside the family's name.
    """

    def read(value: object) -> Candidate:
        if not isinstance(value, dict) or "knobs" not in value:
            values: dict[str, Any] = dict(vars(decode(flat(cast("Any", knobs)), value)))
            return Candidate(values.pop("family"), knobs(**values))
        plain = decode(_Candidate, {name: x for name, x in value.items() if name != "knobs"})
        if not isinstance(value["knobs"], dict):
            raise DecodeError(f"expected an object of Knobs, got {shown(value['knobs'])}", ("knobs",))
        try:
            return Candidate(plain.family, PlainKnobs(tuple(value["knobs"].items())))
        except ValueError as error:
            raise DecodeError(str(error), ("knobs",)) from error

    return read


_read_gemm = reader(GemmKnobs)


def gemm_candidate(family: str, tile_m: int, tile_n: int, *rest: Any, **knobs: Any) -> Candidate:
    """Make a candidate of a family whose knobs are `GemmKnobs`."""
    return Candidate(family, GemmKnobs(tile_m, tile_n, *rest, **knobs))


def changed(candidate: Candidate, *, family: str = "", **knobs: Any) -> Candidate:
    """Return a candidate with other values of some of its `GemmKnobs`, and of another family where one is given."""
    return Candidate(family or candidate.family, replace(candidate.gemm, **knobs))


@dataclass(frozen=True, order=True)
class KernelKey:
    """A candidate for one operation: what is compiled, measured, shipped and named."""

    operation: Operation
    candidate: Candidate

    @property
    def name(self) -> str:
        """Return the kernel's stable name and symbol prefix, such as `bf16_kk_sm90_quack_128x256_c2x1_pingpong`."""
        return f"{self.operation.tag}_{self.candidate.name}"


def _in_eights(extent: int) -> int:
    return -(-extent // 8) * 8


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
    copies: bool = False
    """Whether there has to be room for a copy of A and of B, whose rows begin at multiples of 16 bytes."""

    @property
    def is_needed(self) -> bool:
        """Say whether a kernel needs any, of some problem."""
        return self.copies or self.mode != SplitK.NONE

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

    def num_bytes(self, m: int, n: int, k: int, num_products: int = 1) -> int:
        """Return the bytes needed for a problem; 16-byte alignment is expected of the start.

        A copy has rows along k or across it: room for either is a whole number of 8 elements both ways.
        """
        if self.copies:
            return num_products * _in_eights(k) * (_in_eights(m) + _in_eights(n)) * 2
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
        return self.num_bytes(m, n, 1) if self.mode == SplitK.PARALLEL else 0


@dataclass(frozen=True)
class Resources:
    """What one CTA of a candidate takes, by the family's own arithmetic."""

    smem_bytes: int
    """Shared memory of a block, with what is set aside for barriers: an upper bound of what the launch asks for."""
    stage_bytes: int
    """The part of it that one A/B stage takes."""
    num_threads: int
    num_stages: int
    """0 of a kernel that has none."""
    tmem_columns: int = 0
    registers: int = 0
    """Those that a thread cannot do without; 0 where the family leaves it to the compiler."""
    flight_bytes: int = 0
    """Bytes that the loads of all CTAs on an SM have under way at once, where these are no stages; 0 if not said."""


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
    OPERATION = "operation not computed by the family"
    COMBINATION = "combination not supported by the family"
    FEATURE = "the chip lacks what the family needs"
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
