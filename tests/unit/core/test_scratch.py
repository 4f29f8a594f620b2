"""Scratch folders go with their owners, however those end."""

import os
import subprocess
import sys

import pytest

from aot.core import scratch
from aot.core.scratch import scratch_folder, sweep

OWN = """
import sys, time
from pathlib import Path
from aot.core.scratch import scratch_folder
with scratch_folder("x-", Path(sys.argv[1])) as folder:
    (folder / "content").write_text("half")
    print(folder.name, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(scratch, "MIN_AGE_S", 0.0)


@pytest.fixture
def owner(tmp_path):
    """Start a process with a scratch folder."""
    process = subprocess.Popen([sys.executable, "-c", OWN, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def names(folder):
    return [x.name for x in folder.iterdir()]


def test_a_folder_goes_with_its_block_and_with_an_error(tmp_path):
    def fail(folder):
        (folder / "a").mkdir()
        (folder / "a" / "b").write_text("")
        raise KeyError

    with pytest.raises(KeyError), scratch_folder("x-", tmp_path) as folder:
        fail(folder)
    assert names(tmp_path) == []


@pytest.mark.usefixtures("at_once")
def test_what_a_killed_owner_left_is_swept_and_what_is_in_use_is_not(tmp_path, owner):
    (used,) = names(tmp_path)
    with scratch_folder("x-", tmp_path) as mine:
        assert sorted(names(tmp_path)) == sorted([used, mine.name])
        sweep("x-", tmp_path)
        assert sorted(names(tmp_path)) == sorted([used, mine.name])
    owner.kill()
    owner.wait()
    sweep("y-", tmp_path)
    assert names(tmp_path) == [used]
    with scratch_folder("x-", tmp_path) as mine:
        assert names(tmp_path) == [mine.name]
    assert names(tmp_path) == []


def test_a_folder_that_may_not_be_locked_yet_is_left_alone(tmp_path):
    (tmp_path / "x-new").mkdir()
    sweep("x-", tmp_path)
    assert names(tmp_path) == ["x-new"]


@pytest.mark.usefixtures("at_once")
def test_files_links_and_folders_of_others_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "x-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "x-file").write_text("")
    sweep("x-", tmp_path)
    assert sorted(names(tmp_path)) == ["elsewhere", "x-file", "x-link"]
    (tmp_path / "x-folder").mkdir()
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    sweep("x-", tmp_path)
    assert "x-folder" in names(tmp_path)


@pytest.mark.usefixtures("at_once")
def test_all_folders_of_a_process_can_be_removed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "_open", set())  # this process may keep a compiler, whose folder other tests need
    with scratch_folder("x-", tmp_path), scratch_folder("y-", tmp_path):
        assert len(names(tmp_path)) == 2
        scratch.remove_all()
        assert names(tmp_path) == []
