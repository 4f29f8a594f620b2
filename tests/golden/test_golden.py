"""Whole rendered files, as committed."""

from __future__ import annotations

from tests.golden.update import EXPECTED, golden_files


def test_rendered_files_are_those_committed():
    expected = {x.relative_to(EXPECTED).as_posix(): x.read_bytes() for x in EXPECTED.rglob("*") if x.is_file()}
    files = dict(golden_files())
    assert sorted(files) == sorted(expected)
    for path, content in files.items():
        assert content.decode() == expected[path].decode(), f"{path} changed; see tests/golden/update.py"
