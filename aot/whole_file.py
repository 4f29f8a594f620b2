"""Write a file so that it is there whole or not at all, whatever interrupts the writing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, its folder too if need be; what stood there before stays until all is written.

    Args:
        path: the file.
        content: its bytes, or its text, written as UTF-8.

    Raises:
        OSError: it cannot be written; what stood there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
