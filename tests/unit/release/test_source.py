"""A release is of a commit, of which a copy has the same modes whatever the umask."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from aot.core.errors import PackageError
from aot.release.source import export, read_source
from tests.unit.release.repository import repository

FILES = {"a.txt": "one\n", "folder/run": "#!/bin/sh\n", ".gitignore": "/build/\n"}


def test_the_commit_and_its_date_are_read(tmp_path):
    commit = repository(tmp_path, FILES)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "x").write_text("ignored")
    source = read_source(tmp_path)
    assert (source.commit, source.date) == (commit, datetime(2026, 11, 20, 7, tzinfo=UTC))


def test_changed_and_new_files_are_refused(tmp_path):
    repository(tmp_path, FILES)
    (tmp_path / "a.txt").write_text("two\n")
    (tmp_path / "new").write_text("three\n")
    with pytest.raises(PackageError, match=r"^2 files differ from the commit \(a.txt, new\); a release is built from"):
        read_source(tmp_path)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(PackageError, match="is no git checkout; a release is built from a commit: clone the repositor"):
        read_source(tmp_path)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_copys_modes_do_not_depend_on_the_umask(tmp_path, umask):
    repository(tmp_path / "repository", FILES)
    (tmp_path / "repository" / "a.txt").write_text("not committed\n")
    present = os.umask(umask)
    try:
        export(tmp_path / "copy", tmp_path / "repository")
    finally:
        os.umask(present)
    modes = {x.relative_to(tmp_path / "copy").as_posix(): x.stat().st_mode & 0o777 for x in files(tmp_path / "copy")}
    assert modes == {"a.txt": 0o644, "folder/run": 0o755, ".gitignore": 0o644}
    assert (tmp_path / "copy" / "a.txt").read_text() == "one\n"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["copy", "repository"]


def files(folder):
    return [x for x in folder.rglob("*") if x.is_file()]
