"""The name and the version of a wheel: what they may be, and what a version says of the wheel's selection."""

from __future__ import annotations

import hashlib
import keyword
import re
import sys
from typing import TYPE_CHECKING, Annotated

from packaging.version import InvalidVersion, Version

from aot.core.constraints import Grammar
from aot.core.errors import PackageError
from aot.core.json_text import json_line
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED
from aot.select.coverage import called

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.select.coverage import Coverage
    from aot.select.selection import Selection

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
Package = Annotated[str, Grammar(_NAME.pattern, "a distribution's name, such as aot-gemm", 80)]
WheelVersion = Annotated[
    str,
    Grammar(r"[0-9]+(\.[0-9]+)*[a-z0-9.]*(\+[a-z0-9]+(\.[a-z0-9]+)*)?", "a version, such as 0.1.0+h200", 200),
]
MAX_NAME = 64
"""Longest name in characters: the wheel's file name has three more parts within the 255 bytes of a file system."""
MAX_VERSION = 30
HASH_DIGITS = 12

_OURS = {"aot", "torch", "numpy", "jax", "cupy", "pip"}
"""Import names that such a wheel would take from the packages that it is used with, or that install it."""


def check_name(name: str, option: str = "--package") -> str:
    """Check the name of a distribution, from which its import name is made; return it.

    Args:
        name: the name.
        option: which said so.

    Raises:
        PackageError: a wheel of this name could not be built, installed or imported.
    """
    expected = f"expected lower-case words with hyphens between, such as aot-gemm; give another {option}"
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..."
        raise PackageError(f"{option} {shown!r} ({len(name)} characters, at most {MAX_NAME}); {expected}")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise PackageError(f"{option} {name!r} is a keyword of Python, so that it cannot be imported; {expected}")
    if module in sys.stdlib_module_names or module in _OURS:
        raise PackageError(f"{option} {name!r} would hide the module {module} that Python has already; {expected}")
    return name


def check_version(version: str) -> str:
    """Check the version that a wheel gets before the part that says what its table is; return it.

    Raises:
        PackageError: it is no public version of PEP 440 in normal form.
    """
    what = f"--version {version[:MAX_VERSION]!r}"
    try:
        found = Version(version) if len(version) <= MAX_VERSION else None
    except InvalidVersion:
        found = None
    if found is None:
        raise PackageError(f"{what} is no version of PEP 440; expected one such as 1.2.0 or 1.2.0rc1")
    if found.epoch:
        raise PackageError(f"{what} has an epoch; expected a version without one, such as 1.2.0")
    if found.local:
        raise PackageError(f"{what} has a local part, +{found.local}; what the table is stands there; leave it out")
    if str(found) != version:
        raise PackageError(f"{what} is not in normal form; expected {str(found)!r}")
    return version


def selection_hash(*selections: Selection) -> str:
    """Return the first digits of the SHA-256 of one selection's canonical JSON, or of those of several."""
    contents = [json_line(x) for x in selections]
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:HASH_DIGITS]


def _last_date(selections: Sequence[Selection]) -> int:
    """Return the day of the latest measurement as a number, such as 20261121; 0 where none is known."""
    days = [x.date.replace("-", "") for selection in selections for x in selection.conditions]
    return max((int(day) for day in days if len(day) == 8 and day.isascii() and day.isdigit()), default=0)


def _words(target: str) -> str:
    """Write a target's name as parts of a version have it."""
    return target.replace("_", ".").replace("-", ".")


def wheel_version(
    version: str,
    *selections: Selection,
    coverages: Sequence[Coverage | None] = (),
) -> str:
    """Return the version of a wheel: the toolchain's, or the user's, and what its tables are.

    `0.1.0+thor.0.predicted.h0a1b2c3d4e5f` sorts below `0.1.0+thor.1.measured.20261121.h5f4e3d2c1b0a`: a measured
    table above a predicted one, later measurements above earlier ones. Of several tables the number is how many are
    measured, and where not all are, those follow the day: `0.1.0+h100.h200.1.measured.20261121.h200.h5f4e3d2c1b0a`.
    A table is measured where most of the problems that it was made for are. Different selections have different
    versions, so that installing another one replaces what is there. A changed
    runtime is a changed toolchain: another `version`.

    Args:
        version: the toolchain's, or the user's.
        selections: one for each table.
        coverages: how each table answers what it was made for; where none are given, by the selections' own account.
    """
    known = coverages or [x.coverage for x in selections]
    pairs = zip(selections, known, strict=True)
    measured = [x for x, found in pairs if called(x.provenance, found) == PROVENANCE_MEASURED]
    parts = [*(_words(x.target) for x in selections), str(len(measured))]
    if measured:
        parts += [str(PROVENANCE_MEASURED), str(_last_date(measured))]
        parts += [_words(x.target) for x in measured] if len(measured) < len(selections) else []
    else:
        parts += [str(PROVENANCE_PREDICTED)]
    return f"{version}+{'.'.join([*parts, f'h{selection_hash(*selections)}'])}"
