"""Selections and records that tests read: those of equal content are parsed once a process.

What is committed is large: the H200's selection takes four seconds to parse, and commands, which tests run in their own
process, read it dozens of times. What is parsed is frozen, so that all may share it.
"""

from __future__ import annotations

import hashlib
from functools import wraps

import pytest

from aot.select import selection
from aot.select.times import record

LARGE = 1 << 18
"""Bytes or characters below which nothing is kept: it is parsed as fast, and may be what a test spoils."""


def kept(parse):
    """Wrap a parser of (content, where it was), to parse equal contents once; its errors are not kept."""
    found = {}

    @wraps(parse)
    def read(content, where):
        if len(content) < LARGE:
            return parse(content, where)
        key = hashlib.sha256(content if isinstance(content, bytes) else content.encode()).digest()
        if key not in found:
            found[key] = parse(content, where)
        return found[key]

    return read


@pytest.fixture(scope="session", autouse=True)
def readings():
    """Have what reads selections and records keep what it parsed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "parse_selection", kept(selection.parse_selection))
        patch.setattr(record, "parse_record", kept(record.parse_record))
        yield
