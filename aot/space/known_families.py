"""The families of every kind of work, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aot.core.errors import CandidateError
from aot.core.operation import KIND as GEMM
from aot.families import families
from aot.kinds.rows.operation import KIND as ROWS
from aot.row_families import row_families

if TYPE_CHECKING:
    from collections.abc import Mapping


class Built(Protocol):
    """What any family says of itself."""

    @property
    def name(self) -> str:
        """Return the prefix of its candidates' names."""

    @property
    def archs(self) -> tuple[str, ...]:
        """Return the architectures that it compiles for."""


def families_of_kind(kind: str) -> Mapping[str, Built]:
    """Return the families of a kind of work, by name."""
    found: dict[str, Mapping[str, Built]] = {GEMM: families(), ROWS: row_families()}
    return found[kind]


def known_family(kind: str, name: str) -> Built:
    """Return a family by its kind and name.

    Raises:
        CandidateError: there is none.
    """
    known = families_of_kind(kind)
    if name not in known:
        raise CandidateError(f"no kernel family {name!r}; there are: {', '.join(sorted(known))}")
    return known[name]
