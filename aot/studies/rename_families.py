"""Rename families and fields in files that an earlier version wrote: `python -m aot.studies.rename_families FILE...`.

Records (`.jsonl.gz`), selections (`.json`, `.json.gz`) and censuses (`.json`) are rewritten in place, each as a whole. A
file that has none of the old names keeps its bytes. A store of measurements is to be imported by the version that made
it: its kernels are other objects under their new names and would be measured again.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

from aot.core.whole_file import write_whole

FAMILIES = {"sm90_bounded": "sm90_partial_tile", "sm90_overlap": "sm90_prefetch_b", "fallback": "simt"}
"""The names of families until 2026-11-22, and those since."""
FIELDS = {"rounding_mean": "bucketing_loss_mean", "rounding_worst": "bucketing_loss_worst"}
"""Fields of a selection, likewise."""

_FAMILY = re.compile(rf'("family": ?")({"|".join(FAMILIES)})(?=")')
_NAME = re.compile(rf'("|[a-z]_)({"|".join(FAMILIES)})(?=_\d+x\d)')
_FIELD = re.compile(rf'(?<=")({"|".join(FIELDS)})(?=":)')


def renamed(text: str) -> str:
    """Return a document's text with the names of today."""
    for pattern in (_FAMILY, _NAME):
        text = pattern.sub(lambda match: match[1] + FAMILIES[match[2]], text)
    return _FIELD.sub(lambda match: FIELDS[match[0]], text)


def rename(path: Path) -> None:
    """Bring one file to the names of today.

    Raises:
        OutputError: it cannot be written.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    new = renamed(text)
    if new != text:
        write_whole(
            path, gzip.compress(new.encode(), compresslevel=9, mtime=0) if path.suffix == ".gz" else new.encode()
        )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        rename(Path(argument))
