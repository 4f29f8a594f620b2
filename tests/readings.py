"""Selections and records that tests read: those of equal content are parsed once for all workers of a run.

What is committed is large: the H200's selection takes four seconds to parse, and commands, which tests run in their own
process, read it dozens of times. What is parsed is frozen, so that all may share it; other workers take it from a file.
"""

from __future__ import annotations

import gc
import hashlib
import pickle
from functools import cache, wraps

import pytest

from aot.select import selection
from aot.select.times import record
from tests import native

LARGE = 1 << 18
"""Bytes or characters below which nothing is kept: it is parsed as fast, and may be what a test spoils."""


@cache
def code_digest():
    """Hash the code that parses."""
    return native.digest(native.ROOT, (native.ROOT / "aot").rglob("*.py"))


def parsed_once(parse, content, where, key):
    """Parse, or read what another worker has parsed."""
    found = []

    def make(path):
        found.append(parse(content, where))
        path.write_bytes(pickle.dumps(found[0], pickle.HIGHEST_PROTOCOL))

    path = native.once(".parsed", [parse.__name__, code_digest(), key], make)
    if not found:
        gc.disable()  # it would look at the objects again and again as they come
        try:
            found.append(pickle.loads(path.read_bytes()))
        finally:
            gc.enable()
    return found[0]


def kept(parse):
    """Wrap a parser of (content, where it was), to parse equal contents once; errors, and parts of one, are not kept.

    One that is wrapped stays as it is, for two folders of tests may each have the fixture: a parser that waits for the
    file that it is about to write would wait for ever.
    """
    if hasattr(parse, "__wrapped__"):
        return parse
    found = {}

    @wraps(parse)
    def read(content, where, *wanted):
        if len(content) < LARGE or any(wanted):
            return parse(content, where, *wanted)
        key = hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()
        if key not in found:
            found[key] = parsed_once(parse, content, where, key)
            gc.freeze()  # millions of objects that stay: a collection that walks them stops every thread for seconds
        return found[key]

    return read


@pytest.fixture(scope="session", autouse=True)
def readings():
    """Have what reads selections and records keep what it parsed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "parse_selection", kept(selection.parse_selection))
        patch.setattr(record, "parse_record", kept(record.parse_record))
        yield
