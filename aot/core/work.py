"""What every kind of work has: operations, problems, candidates and kernels, as the stages of the road know them.

A stage that asks no more than this serves any kind: `aot.kinds` has what there is to know of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.feature import Feature


class AnyOperation(Protocol):
    """A line of a kind's catalogue."""

    @property
    def tag(self) -> str:
        """Return the stable name, which no two operations of any kinds share."""

    @property
    def position(self) -> int:
        """Return the place in its catalogue."""

    @property
    def kind(self) -> str:
        """Return the name of its kind."""

    @property
    def needs(self) -> tuple[Feature, ...]:
        """Return what of a chip its element types ask for, whichever family computes it."""

    def __hash__(self) -> int:
        """Return the hash, as of what tables are looked up by."""


class AnyProblem(Protocol):
    """An operation and its sizes. Problems of one kind are ordered."""

    @property
    def operation(self) -> AnyOperation:
        """Return what is computed."""

    @property
    def name(self) -> str:
        """Return the name used in tables and messages."""

    @property
    def num_bytes(self) -> int:
        """Count the fewest bytes that device memory must move."""

    @property
    def flops(self) -> int:
        """Count the arithmetic operations."""


class AnyKey(Protocol):
    """A candidate for one operation: what is compiled, measured, shipped and named."""

    @property
    def operation(self) -> AnyOperation:
        """Return what it computes."""

    @property
    def candidate(self) -> Candidate:
        """Return how."""

    @property
    def name(self) -> str:
        """Return the kernel's stable name."""


P = TypeVar("P", bound=AnyProblem)
P_co = TypeVar("P_co", bound=AnyProblem, covariant=True)
"""The problems of a kind."""
K = TypeVar("K", bound=AnyKey)
K_co = TypeVar("K_co", bound=AnyKey, covariant=True)
"""The kernels of a kind."""


def in_order(problem: AnyProblem) -> tuple[str, AnyProblem]:
    """Return what problems of several kinds are sorted by: the kind, then what is its own."""
    return problem.operation.kind, problem
