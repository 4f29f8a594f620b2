"""Where families come from: the entry points `aot.families` of installed distributions, ours among them.

An entry point has the family's name, and its value names the object: `simt = "aot.families.simt:FAMILY"`. It is loaded
when it is asked for, so that a family that cannot be imported stops no command that does without it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.core.errors import REPAIR, FamilyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GROUP = "aot.families"
OWN = "aot-kernels"
"""The name of our own distribution."""

SOURCE_TREE = Path(__file__).parents[2] / "pyproject.toml"
"""Where our own entry points are stated. What is installed of an editable tree says what it was when it was installed,
so that there the file itself is read. A wheel does not have it."""


@dataclass(frozen=True)
class Registration:
    """An entry point of a family, and the distribution that it is of."""

    entry: EntryPoint
    distribution: str
    version: str

    @property
    def source(self) -> str:
        """Return what messages call it."""
        of = " ".join(x for x in (self.distribution, self.version) if x)
        return f"{of}, entry point {self.entry.name} = {self.entry.value!r}"

    def load(self, members: tuple[str, ...], of_kinds: Mapping[str, tuple[str, ...]]) -> Any:
        """Import the family.

        Args:
            members: what every family has.
            of_kinds: what those of each kind have, by its name.

        Raises:
            FamilyError: it cannot be imported, or is none.
        """
        name = self.entry.name
        try:
            found = self.entry.load()
        except Exception as error:  # whatever a package of others raises when it is imported
            raise FamilyError(
                f"the family {name!r} of {self.source} cannot be loaded: {type(error).__name__}: {error}; install "
                f"{self.distribution} again, or uninstall it"
            ) from error
        kind = getattr(found, "kind", None)
        missing = [x for x in of_kinds.get(str(kind), members) if not hasattr(found, x)]
        if missing:
            text = f"is a {type(found).__name__} without {', '.join(missing)}; expected an aot.families.Family"
            raise FamilyError(f"the family {name!r} of {self.source} {text}")
        if kind not in of_kinds:
            text = f"is of the kind {kind!r}; there are {', '.join(of_kinds)}"
            raise FamilyError(f"the family {name!r} of {self.source} {text}")
        if found.name != name:
            text = f"calls itself {found.name!r}; expected its entry point's name, by which it is found"
            raise FamilyError(f"the family {name!r} of {self.source} {text}")
        return found


def _own() -> Iterator[Registration]:
    """List our own entry points where this is a source tree."""
    if SOURCE_TREE.is_file():
        project = tomllib.loads(SOURCE_TREE.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == OWN:
            for name, value in project["entry-points"][GROUP].items():
                yield Registration(EntryPoint(name, value, GROUP), OWN, project["version"])


def _installed() -> Iterator[Registration]:
    """List the entry points of all that is installed."""
    for entry in entry_points(group=GROUP):
        distribution = entry.dist
        name = distribution.metadata["Name"] if distribution else "an unnamed distribution"
        yield Registration(entry, name, distribution.version if distribution else "")


@cache
def registrations() -> dict[str, Registration]:
    """Find all families' entry points, by name; nothing is imported.

    Raises:
        FamilyError: there is none, or two families have one name.
    """
    own = list(_own())
    found: dict[str, Registration] = {}
    for item in (*own, *(x for x in _installed() if not own or x.distribution != OWN)):
        other = found.setdefault(item.entry.name, item)
        if other is not item:
            raise FamilyError(
                f"two kernel families are called {item.entry.name!r}: that of {other.source}, and that of "
                f"{item.source}; uninstall {item.distribution} or {other.distribution}"
            )
    if not found:
        raise FamilyError(f"no kernel family is installed: expected entry points {GROUP!r} of {OWN}; {REPAIR}")
    return found
