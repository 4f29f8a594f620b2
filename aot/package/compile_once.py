"""A program before a compiler's command: takes the object of an equal source, or compiles it and keeps the object.

CMake starts it for each source of a wheel's library. Most are the same in every wheel, whatever its kernels: they are
compiled once for each machine. It imports nothing of ours, for it starts for each source.

    python compile_once.py KEPT ROOT COMPILER [ARGUMENT ...]

`KEPT` is the folder of one version of the compiler. `ROOT` is a scratch folder that sources and objects lie in, whose
path does not count, since no object may depend on it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">]+)[">]', re.MULTILINE)
COMMENT = re.compile(r"^[ \t]*//.*", re.MULTILINE)
"""A line that a compiler sees as an empty one. The first line of a rendered file is one, which names its manifest."""
_PLACES = ("-c", "-o", "-MF", "-MT")
"""Options whose values are where the source lies and the result is put."""
_FOLDERS = ("-I", "-isystem")


def texts(source: Path, folders: Sequence[Path]) -> list[str]:
    """Return a source's text, then the name and text of each header that it may include, without lines of comment.

    Headers that are in none of the folders are the compiler's own. What stands in a branch that is not taken counts.
    """
    found: dict[Path, str] = {}
    left = [source]
    while left:
        path = left.pop()
        if path not in found:
            found[path] = COMMENT.sub("", path.read_text(encoding="utf-8", errors="surrogateescape"))
            for name in INCLUDED.findall(found[path]):
                left += [x / name for x in (path.parent, *folders) if (x / name).is_file()][:1]
    return [found.pop(source), *sorted(f"{path.name} {text}" for path, text in found.items())]


def folders_of(words: list[str]) -> list[Path]:
    """List the folders of headers that a command names."""
    apart = [after for word, after in pairwise(words) if word in _FOLDERS]
    return [Path(x) for x in [*(word[2:] for word in words if word.startswith("-I") and len(word) > 2), *apart]]


def key_of(words: list[str], root: str) -> str:
    """Hash all that decides what a command that compiles one source makes."""
    counted = [x for before, x in pairwise(["", *words]) if before not in _PLACES]
    source = Path(words[words.index("-c") + 1])
    parts = [*counted, source.name, *texts(source, folders_of(words))]
    text = "\0".join(x.replace(root, "@") for x in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def value_of(option: str, words: list[str]) -> Path:
    """Return the path behind an option."""
    return Path(words[words.index(option) + 1])


def main(arguments: list[str]) -> int:
    """Compile, or take what was kept; return the compiler's exit code."""
    kept, root, *words = arguments
    made = value_of("-o", words)
    known = Path(kept, f"{key_of(words, root)}.o")
    if known.is_file():
        shutil.copyfile(known, made)
        value_of("-MF", words).write_text(f"{made}: {value_of('-c', words)}\n", encoding="utf-8")
        return 0
    code = subprocess.run(words, check=False).returncode
    if code == 0:
        known.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=known.parent)
        os.close(handle)
        shutil.copyfile(made, partial)
        Path(partial).chmod(0o644)
        Path(partial).replace(known)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
