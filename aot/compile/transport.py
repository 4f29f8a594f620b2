"""Entries of the artifact store as bytes, to travel: known by their hashes, and checked against them on arrival."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.artifact import PTX_NAME
from aot.compile.compiler import ArtifactStore, put_entry
from aot.compile.kinds import OBJECT_NAME, RESULT_NAME, read_artifact
from aot.core.strict_json import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.target import Target
    from aot.core.work import AnyKey

FILES = (OBJECT_NAME, PTX_NAME, RESULT_NAME)
"""What an entry may have; that of a failure has its result alone."""


def packed(directory: Path) -> dict[str, bytes]:
    """Read the files of an entry, by name."""
    return {name: (directory / name).read_bytes() for name in FILES if (directory / name).is_file()}


def unpack(files: Mapping[str, bytes], key: AnyKey, target: Target, root: Path, workplace: Path) -> str:
    """Put an entry into a store, unless it is there; say what is wrong with it, and then it is not put there.

    Args:
        files: of the entry, by name.
        key: the kernel.
        target: what it is compiled for.
        root: the store.
        workplace: a scratch folder on its file system.
    """
    store = ArtifactStore(root)
    if store.get(key, target) is not None:
        return ""
    unknown = files.keys() - set(FILES)
    if unknown:
        return f"it has a file {min(unknown)!r}, expected {', '.join(FILES)}"
    scratch = Path(tempfile.mkdtemp(dir=workplace))
    for name, content in files.items():
        (scratch / name).write_bytes(content)
    try:
        found = read_artifact(scratch, key, target.num_sms)
    except (OSError, DecodeError) as error:
        return f"it cannot be read: {error}"
    if found is None:
        return "its files are not those that its result names, by kernel or by hash"
    put_entry(scratch, store.directory(key, target))
    return ""
