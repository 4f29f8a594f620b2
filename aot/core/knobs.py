"""What a family can set of a kernel: values with names, which all but the family treats as opaque."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, cast

from aot.core.constraints import MAX_EXTENT, Range, Schedule, Word
from aot.core.errors import CandidateError
from aot.core.strict_json import DecodeError, decode, shown

if TYPE_CHECKING:
    from typing import Self

Tile = Annotated[int, Range(1, 4096)]
Cluster = Annotated[int, Range(1, 16)]
Stages = Annotated[int, Range(0, 256)]
Splits = Annotated[int, Range(1, 4096)]

Value = bool | int | str
"""What a knob is set to: a word of lower case, a switch, or a number from 0 to 2^31 - 1."""

_NAME = re.compile(r"[a-z][a-z_]{0,39}")
_WORD = re.compile(r"[a-z0-9_]{0,40}")
MAX_KNOBS = 16


class HasKnobs(Protocol):
    """A candidate, as knobs know it."""

    @property
    def family(self) -> str:
        """Return the name of its family."""

    @property
    def knobs(self) -> Knobs:
        """Return what it sets."""

    @property
    def name(self) -> str:
        """Return its name."""


class Knobs:
    """The knobs of a family: a frozen dataclass of its own, whose fields are numbers, switches and words.

    Numbers have a `Range` and words a `Grammar` or are a `Word`, as fields of files do, so that what is read is
    checked. A family makes its candidates of them, `Candidate(name, Knobs(block=128))`, and asks for them again by
    `Knobs.of(candidate)`.
    """

    is_of_kind: ClassVar[bool] = False
    """Whether they are those of a kind of work, which are known wherever the family is installed or not."""

    @property
    def name(self) -> str:
        """Return the text that, behind the family's name, is the candidate's: `block128_vector4`."""
        return PlainKnobs(self.items()).name

    def items(self) -> tuple[tuple[str, Value], ...]:
        """Return the names and values."""
        return tuple((x.name, getattr(self, x.name)) for x in fields(cast("Any", self)))

    @classmethod
    def of(cls, candidate: HasKnobs) -> Self:
        """Return a candidate's knobs as the family's own.

        Raises:
            CandidateError: they are another family's, or a value is not in its range.
        """
        found = candidate.knobs
        if isinstance(found, cls):
            return found
        made: Self = _made(*cast("Any", (cls, candidate)))
        return made


@lru_cache(maxsize=1 << 16)
def _made(kind: Any, candidate: Any) -> Any:
    try:
        return decode(kind, dict(candidate.knobs.items()))
    except DecodeError as error:
        names = ", ".join(x.name for x in fields(kind))
        text = f"{candidate.name}: {error}; the knobs of {candidate.family} are {names}"
        raise CandidateError(text) from error


@dataclass(frozen=True, order=True)
class PlainKnobs(Knobs):
    """The knobs of any family by their names, as a candidate keeps them wherever the family is not installed."""

    values: tuple[tuple[str, Value], ...]
    """By name."""

    def __post_init__(self) -> None:
        """Bring them in order; refuse names and values that no kernel's name and no file can have (ValueError)."""
        object.__setattr__(self, "values", tuple(sorted(self.values, key=lambda x: str(x[0]))))
        if not 0 < len(self.values) <= MAX_KNOBS:
            raise ValueError(f"expected 1 to {MAX_KNOBS} knobs, got {len(self.values)}")
        for name, value in self.values:
            if not _NAME.fullmatch(name):
                raise ValueError(f"expected the name of a knob, such as block, got {shown(name)}")
            is_word = isinstance(value, str) and _WORD.fullmatch(value)
            if not (is_word or type(value) is bool or (type(value) is int and 0 <= value <= MAX_EXTENT)):
                raise ValueError(
                    f"{name}: expected a switch, a word of lower case, or a number from 0 on, got {shown(value)}"
                )

    @property
    def name(self) -> str:
        """Return each knob by its name and value; a switch by its name, and not at all where it is off."""
        parts = []
        for name, value in self.values:
            if isinstance(value, bool):
                parts += [name] if value else []
            else:
                parts.append(f"{name}_{value}" if isinstance(value, str) else f"{name}{value}")
        return "_".join(parts) or "plain"

    def items(self) -> tuple[tuple[str, Value], ...]:
        """Return the names and values."""
        return self.values


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


def split_mode(knobs: Knobs) -> SplitK:
    """Say how knobs split k: those that are not `GemmKnobs` do not."""
    return SplitK(knobs.split_k_mode) if isinstance(knobs, GemmKnobs) else SplitK.NONE


@dataclass(frozen=True, order=True)
class GemmKnobs(Knobs):
    """The knobs that the families of tiled products share; what a field means is the family's to say.

    `tile_m` and `tile_n` are the kernel's own: with `swap_ab` the kernel computes the transpose, so that `tile_m` runs
    along the problem's n. Sizes are in elements or CTAs.
    """

    is_of_kind = True

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
        """Return tile and cluster, then what differs from the default: `128x256_c2x1_pingpong`."""
        parts = [f"{self.tile_m}x{self.tile_n}", f"c{self.cluster_m}x{self.cluster_n}"]
        parts += [self.schedule] if self.schedule else []
        parts += [f"st{self.num_stages}"] if self.num_stages else []
        parts += ["2cta"] if self.use_2cta else []
        parts += [] if self.use_tma_store else ["direct"]
        parts += [f"{self.split_k_mode}{self.split_k}"] if self.split_k > 1 else []
        parts += ["swap"] if self.swap_ab else []
        return "_".join(parts)
