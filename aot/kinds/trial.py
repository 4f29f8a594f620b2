"""How the kernels of a kind of work are tried: verified on edge cases, and timed beside what torch has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from aot.core.comparison import Comparison
    from aot.core.element import ElementType
    from aot.core.numerics import Bits
    from aot.core.operands import Matrix, Tensor
    from aot.core.work import AnyProblem
    from aot.kinds.inputs import Content, Tiling

APART = 1 << 40
"""Bytes between operands that are stated and never read: more than any device has, so that no case overlaps."""

AnyArgument: TypeAlias = Any
"""An argument of a kind's kernels: a member of its enumeration of them."""
AnyCall: TypeAlias = Any
"""A call of a kind: its problem, tensors by argument and options, which a library makes its own struct of."""


@dataclass(frozen=True)
class Placed:
    """An operand of a call: what its elements are, and where they lie behind an aligned address."""

    element: ElementType
    matrix: Matrix
    offset: int = 0
    """Elements by which the first one lies behind an aligned address."""
    is_written: bool = False
    """Whether the kernel writes it, and does not read it."""


class Case(Protocol):
    """A case that kernels are verified on; equal ones are one, which kernels share. Its text is that of messages."""

    @property
    def problem(self) -> AnyProblem:
        """Return what is computed."""

    @property
    def is_own(self) -> bool:
        """Say whether it is one kernel's alone, so that its operands are freed after it."""


Check: TypeAlias = Callable[[Mapping[AnyArgument, "Bits"]], "Comparison"]
"""Holds what a kernel wrote, (group, row, column) by argument, against the float64 reference."""


class Agreement(Enum):
    """How far a baseline's result is the operation's own."""

    EXACT = "exact"
    """It keeps the same bounds as a kernel's."""
    NEAR = "near"
    """It is the same but for roundings between its steps, or bounds of its own on the sum."""
    NONE = "none"
    """It is a part of the operation alone, whose result is not looked at."""


class Baseline(Protocol):
    """What a library has for an operation, to be timed beside the kernels."""

    @property
    def arrangement(self) -> Any:
        """Return how it reads the operands; see `Kind.arrangement`."""

    @property
    def agreement(self) -> Agreement:
        """Return how far its result is the operation's own."""

    def name(self, library: str) -> str:
        """Return the name that times of it are recorded under."""


@dataclass(frozen=True)
class Span:
    """Elements in a row of an operand that a kernel wrote: the first one's place, and how many."""

    argument: AnyArgument
    start: int
    count: int


class Sample(Protocol):
    """A part of a timed problem's results with a float64 reference, computed once for all kernels."""

    @property
    def spans(self) -> Sequence[Span]:
        """Return what is read."""

    def compare(self, bits: Sequence[Bits]) -> Comparison:
        """Hold the elements of the spans against the reference. What was not written, or is not finite, is a fault."""

    @property
    def near(self) -> float:
        """Return the relative error that a baseline keeps whose result is near alone."""


@dataclass(frozen=True)
class SampleLimits:
    """How much a sample reads and computes."""

    rows: int
    columns: int
    elements: int
    """Elements of operands that the reference reads: about 10 ms of host time with numpy on one core for 2^20."""


class Trial(ABC):
    """How kernels of a kind are tried. The methods are pure."""

    @abstractmethod
    def edge_cases(self, kernel: Any) -> Sequence[Case]:
        """List the cases that a kernel, one of `tuned_type`, is verified on."""

    @abstractmethod
    def operands(self, case: Any) -> Mapping[AnyArgument, Placed]:
        """Return the operands of a case."""

    @abstractmethod
    def draw(self, case: Any, rng: np.random.Generator) -> dict[AnyArgument, Bits]:
        """Draw the operands of a case that are read, each (group, row, column)."""

    @abstractmethod
    def check(self, case: Any, bits: Mapping[AnyArgument, Bits]) -> Check:
        """Compute the reference of a case from its operands."""

    @abstractmethod
    def call(self, case: Any, tensors: Mapping[AnyArgument, Tensor]) -> AnyCall:
        """Return the call of a case."""

    @abstractmethod
    def timed(self, problem: Any) -> Mapping[AnyArgument, Placed]:
        """Return the operands, packed, that kernels are timed with: those that are there where it is used most."""

    @abstractmethod
    def content(self, operation: Any, argument: AnyArgument) -> Content | None:
        """Return what an operand holds that is read; None where `positions` says it."""

    @abstractmethod
    def positions(self, problem: Any, number: int, rng: np.random.Generator) -> Mapping[AnyArgument, Bits]:
        """Draw what the operands hold in a set, by its number, that are no random elements."""

    @abstractmethod
    def arrangement(self, operation: Any) -> Any:
        """Return how kernels read the timed operands; a baseline may read the same memory in another way."""

    @abstractmethod
    def timed_call(self, problem: Any, addresses: Mapping[AnyArgument, int], arrangement: Any) -> AnyCall:
        """Return the call of a timed problem, with its operands at addresses on the device."""

    @abstractmethod
    def sample(
        self,
        problem: Any,
        tilings: Mapping[AnyArgument, Tiling],
        limits: SampleLimits,
        rng: np.random.Generator,
        arrangement: Any,
    ) -> Sample:
        """Choose what of a timed problem's results is looked at; operands are tiled so."""

    @abstractmethod
    def cluster_call(self, kernel: Any) -> AnyCall | None:
        """Return a call by which to ask a device whether it has room for a kernel's clusters; None without them."""

    @abstractmethod
    def baseline(self, operation: Any) -> Baseline | None:
        """Return what torch has for an operation; None where it has nothing."""
