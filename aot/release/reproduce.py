"""Build a release again, in another folder, umask, locale and time zone, with tools installed anew."""

from __future__ import annotations

import json
import locale
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.errors import PackageError
from aot.core.process import run
from aot.package.debian import check_maintainer
from aot.release.release import PROVENANCE, SUMS
from aot.release.source import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCALES = ("tr_TR.UTF-8", "de_DE.UTF-8", "C.UTF-8", "C")
"""The first that is installed and is not the present one is taken: Turkish has letters of its own, German a comma."""
ZONES = ("Pacific/Chatham", "America/St_Johns")
"""Neither is a whole number of hours from Greenwich."""
UMASKS = ("077", "027")
_WORD = re.compile(r"[A-Za-z0-9][\w.,:/@-]*")
"""What is given to make: nothing that a shell would obey."""
FOLDER = "again/at/another/depth"


@dataclass(frozen=True)
class Surroundings:
    """What a second build runs in, none of which may reach its files."""

    umask: str
    locale: str
    zone: str

    def __str__(self) -> str:
        """Return what is printed of it."""
        return f"umask {self.umask}, locale {self.locale}, time zone {self.zone}"


def _has_locale(name: str) -> bool:
    present = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, name)
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_ALL, present)
    return True


def other_surroundings() -> Surroundings:
    """Return surroundings that differ from these in every part."""
    present = os.umask(0)
    os.umask(present)
    here = next((os.environ[x] for x in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(x)), "C")
    return Surroundings(
        next(x for x in UMASKS if int(x, 8) != present),
        next(x for x in LOCALES if x.lower() != here.lower() and _has_locale(x)),
        next(x for x in ZONES if x != os.environ.get("TZ") and x not in time.tzname),
    )


@dataclass(frozen=True)
class Request:
    """What a release says that it was made of."""

    commit: str
    targets: tuple[str, ...]
    builder: str
    name: str = ""
    """Of who answers for the Debian packages; empty where there are none."""
    address: str = ""
    """Of the same."""


def read_request(release: Path) -> Request:
    """Read in a release's provenance what was asked for.

    Raises:
        PackageError: it has no provenance, or one that cannot be read.
    """
    path = release / PROVENANCE
    try:
        predicate = json.loads(path.read_text(encoding="utf-8"))["predicate"]
        definition = predicate["buildDefinition"]
        commit = next(x["digest"]["gitCommit"] for x in definition["resolvedDependencies"] if x.get("name") == "source")
        asked = definition["externalParameters"]
        targets, maintainer = asked["targets"], asked.get("maintainer", "")
        builder = predicate["runDetails"]["builder"]["id"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise PackageError(f"{path} cannot be read: {error!r:.200}; make the release with `make release`") from error
    words = [commit, builder, *(targets if isinstance(targets, list) else [None])]
    if not all(isinstance(x, str) and _WORD.fullmatch(x) for x in words):
        raise PackageError(f"{path} asks for {words!a:.200}; expected names; make the release with `make release`")
    name, _, address = str(check_maintainer(maintainer) if maintainer else "").partition(" <")
    return Request(commit, tuple(targets), builder, name, address.removesuffix(">"))


def build_again(
    release: Path, scratch: Path, surroundings: Surroundings, each_line: Callable[[str], None], root: Path = ROOT
) -> Path:
    """Clone the commit of a release and run `make release` there; return the second release's folder.

    Args:
        release: the first release.
        scratch: where the second is built; its cache of compiled kernels is its own.
        surroundings: what it is built in.
        each_line: called with each line that it prints.
        root: the checkout to clone.

    Raises:
        PackageError: the first release is none, or the second build fails.
    """
    request = read_request(release)
    clone = scratch / FOLDER
    under = ["sh", "-c", 'umask "$0" && exec "$@"', surroundings.umask]
    run([*under, "git", "clone", "--quiet", "--no-checkout", str(root), str(clone)], "cloning the repository")
    run([*under, "git", "-C", str(clone), "checkout", "--quiet", request.commit], "checking out the commit")
    again = clone / "build" / "release"
    command = [shutil.which("make") or "make", "-C", str(clone), "release", f"BUILDER={request.builder}"]
    command.append(f"RELEASE={' '.join(request.targets)}")
    env = os.environ | {"LC_ALL": surroundings.locale, "TZ": surroundings.zone, "PYTHONHASHSEED": "1"}
    env = {name: value for name, value in env.items() if not name.startswith(("MAKE", "MFLAGS", "DEB"))}
    env |= {"DEBFULLNAME": request.name, "DEBEMAIL": request.address} if request.name else {}
    run([*under, *command], "building the release again", env=env, each_line=each_line)
    if not (again / SUMS).is_file():
        raise PackageError(f"the second build left no {SUMS} in build/release; expected a release; run `make release`")
    return again
