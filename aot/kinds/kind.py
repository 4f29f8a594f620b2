"""What a kind of work states of itself, for stages of the road that know no kind by name: axes, catalogue, types.

How its kernels are tried is `aot.kinds.trial`. Nothing here needs numpy, without which a bundle can say what it lacks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol

from aot.core.strict_json import DecodeError, decode, shown
from aot.core.work import AnyKey, AnyOperation, AnyProblem, K_co, P_co

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.knobs import Knobs, Value
    from aot.core.measurement import Record
    from aot.core.shape_set import ShapeSet


class Use(Enum):
    """What the table has an axis for."""

    KEY = "key"
    """Sizes of it that were tuned have steps of their own; others are rounded onto a grid."""
    LADDER = "ladder"
    """Steps ascend along it."""
    COUNT = "count"
    """How many of the same there are."""


@dataclass(frozen=True)
class Axis:
    """A size that a kind's problems have, by the name of their field."""

    name: str
    use: Use
    usual: int | None = None
    """What a file leaves away; None where it says each."""


class Tuned(Protocol):
    """A kernel of a tuning library, and what measuring must know of it. Fields beside the key are its JSON."""

    @property
    def key(self) -> AnyKey:
        """Return its operation and candidate."""

    @property
    def object_sha256(self) -> str:
        """Return the digest of the compiled object: a kernel that is compiled anew is measured anew."""

    @property
    def name(self) -> str:
        """Return the kernel's name in the library; of another order of tiles, with that behind it."""

    @property
    def is_fallback(self) -> bool:
        """Say whether it takes operands of any alignment and layout; such a kernel is verified and never timed."""

    @property
    def is_reproducible(self) -> bool:
        """Say whether two runs must give the same bits."""

    @property
    def tile_order(self) -> int:
        """Return the order in which it takes its tiles."""

    def takes(self, problem: Any) -> bool:
        """Say whether the kernel is to be timed on a problem of any kind, with packed operands."""

    def in_order(self, tile_order: int) -> Tuned:
        """Return the kernel with its tiles in another order."""

    def other_orders(self, problem: Any, num_ctas: float) -> list[int]:
        """List the other orders in which it can take a problem's tiles, where there are at most so many CTAs."""


@dataclass(frozen=True)
class Features:
    """How a search compares candidates, by the names of their values (`Kind.values`).

    A family of others may have values of other names. Its candidates are compared with each other by their own numbers,
    by ratio, and by their words and switches, as many as there is room for; with those of other families too, which
    are apart by their family at least.
    """

    ratios: tuple[str, ...]
    """Those that are compared by their ratio: a factor of two is one unit of distance."""
    names: tuple[str, ...]
    """Those that are equal or not; being different is one unit of distance."""
    steps: tuple[tuple[str, float], ...] = ()
    """Those that are compared by their difference, each with what is one unit of distance."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return all of them."""
        return (*self.ratios, *(name for name, _ in self.steps), *self.names)

    @property
    def num_numbers(self) -> int:
        """Count the numbers that a candidate is placed by."""
        return len(self.ratios) + len(self.steps)

    def numbers(self, values: Mapping[str, Any]) -> list[float]:
        """Place a candidate by its numbers, `num_numbers` of them."""
        if self._are_known(values):
            steps = (values[name] / unit for name, unit in self.steps)
            return [*(math.log2(values[name]) for name in self.ratios), *steps]
        own = [math.log2(1 + x) for x in values.values() if type(x) is int]
        return [*own, *[0.0] * self.num_numbers][: self.num_numbers]

    def words(self, values: Mapping[str, Any]) -> list[Hashable]:
        """Return what of a candidate is equal or not, as many as there are `names`."""
        if self._are_known(values):
            return [(name, values[name]) for name in self.names]
        own: list[Hashable] = [(name, x) for name, x in values.items() if type(x) is not int]
        return [*own, *[None] * len(self.names)][: len(self.names)]

    def _are_known(self, values: Mapping[str, Any]) -> bool:
        return values.keys() >= {*self.fields}


class Kind(ABC, Generic[P_co, K_co]):
    """A kind of work."""

    name: str
    axes: tuple[Axis, ...]
    own_operations: tuple[AnyOperation, ...]
    """What of its catalogue is ours."""
    problem_type: type[P_co]
    """A dataclass of the operation and a field for each axis."""
    key_type: type[K_co]
    """A dataclass of an operation and a candidate."""
    knobs: type[Knobs]
    """Those of its families that have none of their own."""
    features: Features
    kernel_type: type[Any]
    """A dataclass of a compiled kernel, as a manifest holds it."""
    held_out: Mapping[int, str]
    """What stands for problems that were held out of a selection, by the tier that answers them."""
    tuned_type: type[Any]
    """A dataclass that satisfies `Tuned`, made of a compiled kernel by `of(kernel, is_fallback=...)`."""

    @property
    def operations(self) -> tuple[AnyOperation, ...]:
        """Return its catalogue, in the order of a table's sections."""
        return self.own_operations

    @property
    def stated_axes(self) -> tuple[str, ...]:
        """Return the names of the axes that every file states."""
        return tuple(axis.name for axis in self.axes if axis.usual is None)

    @property
    def optional_axes(self) -> tuple[str, ...]:
        """Return the names of the others."""
        return tuple(axis.name for axis in self.axes if axis.usual is not None)

    def sizes(self, problem: AnyProblem) -> dict[str, int]:
        """Return a problem's sizes by axis."""
        return {axis.name: getattr(problem, axis.name) for axis in self.axes}

    def problem(self, operation: AnyOperation, sizes: object) -> P_co:
        """Make a problem of its sizes by axis, as a file has them.

        Raises:
            DecodeError: it is no object of sizes, an axis is missing or unknown, or a size is none.
        """
        if not isinstance(sizes, dict):
            raise DecodeError(f"expected an object of sizes by axis, got {shown(sizes)}")
        usual = {axis.name: axis.usual for axis in self.axes if axis.usual is not None}
        return decode(self.problem_type, {"operation": operation.tag, **usual, **sizes})

    def key(self, operation: AnyOperation, candidate: object) -> K_co:
        """Make a kernel of an operation and a candidate's plain values.

        Raises:
            DecodeError: they are no candidate.
        """
        return decode(self.key_type, {"operation": operation.tag, "candidate": candidate})

    def part(self, record: Record[AnyProblem, AnyKey]) -> Record[P_co, K_co]:
        """Return what a record has of this kind."""
        mine = [x for x in record.measurements if isinstance(x.problem, self.problem_type)]
        times = [x for x in record.library_times if isinstance(x.problem, self.problem_type)]
        found: Any = replace(record, measurements=tuple(mine), library_times=tuple(times))
        return found  # type: ignore[no-any-return]

    def values(self, candidate: Candidate) -> dict[str, Value]:
        """Return a candidate's family, first, and its knobs, whichever they are, by name."""
        return {"family": candidate.family, **dict(candidate.knobs.items())}

    def edges(self, operation: Any) -> Mapping[str, tuple[int, ...]]:
        """Return, by axis, where tables have steps beside the sizes that were measured; the last key is the largest.

        None of a kind whose tables have several key axes, of which one grid is chosen by times.
        """
        del operation
        return {}

    @abstractmethod
    def asked(self, operation: Any, shapes: ShapeSet) -> Sequence[P_co]:
        """List the problems of an operation that a wheel for a shape set is to answer, each once."""

    @abstractmethod
    def imputed_from(self, operation: AnyOperation) -> tuple[AnyOperation, ...]:
        """Return the operations whose times may stand for one's, the nearest first."""
