"""The commit that a release is built from, and a copy of it whose files' modes are everywhere the same."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aot.core.errors import PackageError
from aot.core.process import run

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, if this is one."""
NUM_SHOWN = 5
MODES = {True: 0o755, False: 0o644}
"""Of a file, by whether it may be run; whatever the umask was when it was checked out."""


@dataclass(frozen=True)
class Source:
    """What a release is built from."""

    commit: str
    """Its SHA-1 or SHA-256, in hexadecimal digits."""
    date: datetime
    """When it was committed, in UTC."""


def _git(root: Path, *words: str) -> str:
    return run(["git", "-C", str(root), *words], f"git {words[0]}")


def read_source(root: Path = ROOT) -> Source:
    """Return the commit that is checked out.

    Raises:
        PackageError: this is no checkout, git is not there, or files differ from the commit.
    """
    if not (root / ".git").exists():
        raise PackageError(f"{root} is no git checkout; a release is built from a commit: clone the repository")
    changed = _git(root, "status", "--porcelain").splitlines()
    if changed:
        shown = ", ".join(x[3:] for x in changed[:NUM_SHOWN])
        raise PackageError(
            f"{len(changed)} files differ from the commit ({shown}); a release is built from what is committed; "
            "commit or stash them, and run again"
        )
    commit, seconds = _git(root, "show", "--no-patch", "--format=%H %ct", "HEAD").split()
    return Source(commit, datetime.fromtimestamp(int(seconds), UTC))


def export(directory: Path, root: Path = ROOT) -> None:
    """Write the files of the commit into a folder, with modes that do not depend on the umask.

    Raises:
        PackageError: git fails.
    """
    archive = directory.with_name(f"{directory.name}.tar")
    _git(root, "archive", "--format=tar", f"--output={archive.resolve()}", "HEAD")
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as members:
        members.extractall(directory, filter="data")
    archive.unlink()
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(MODES[bool(path.stat().st_mode & 0o100)])
