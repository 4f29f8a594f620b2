"""Files are whole or not there, and what cannot be written is found out before the work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aot.core.errors import OutputError
from aot.core.whole_file import check_folder, check_output, write_whole, writing_alone

LONG = "x" * 300


def test_writes_text_and_bytes_into_a_new_folder(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_whole(path, "µs\n")
    assert path.read_bytes() == b"\xc2\xb5s\n"
    write_whole(path, b"\0")
    assert path.read_bytes() == b"\0"
    assert [x.name for x in path.parent.iterdir()] == ["a.txt"]


def test_what_stood_there_stays_when_writing_fails(tmp_path):
    path = tmp_path / "a.txt"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*folder: Is a directory; give another path"):
        write_whole(tmp_path / "folder", "new")
    assert path.read_text() == "old"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["a.txt", "folder"]


def test_what_a_link_points_at_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "loop").symlink_to("loop")
    for content in ("new", "newer"):
        assert check_output(tmp_path / "link") == tmp_path / "link"
        write_whole(tmp_path / "link", content)
        assert (tmp_path / "folder" / "file").read_text() == content
    assert (tmp_path / "link").is_symlink()
    for action in (check_output, lambda path: write_whole(path, "x")):
        with pytest.raises(OutputError, match=r"cannot write .*loop: "):
            action(tmp_path / "loop")


def test_a_device_or_a_pipe_is_written_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "null").symlink_to("/dev/null")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (pipe, tmp_path / "null", Path("/dev/null")):
        check_output(path)
        write_whole(path, "content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert (pipe.is_fifo(), Path("/dev/null").is_char_device()) == (True, True)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["null", "pipe"]
    with pytest.raises(OutputError, match="cannot write /dev/full: No space left on device"):
        write_whole(Path("/dev/full"), "content")


def tree(folder):
    return sorted(str(x) for x in folder.rglob("*"))


@pytest.mark.parametrize(
    "name", ["a", "file/a", "folder", LONG, f"{LONG}/a", "new/\0", "/proc/a", "/proc/new/a", ".", "a/" * 2000 + "a"]
)
def test_the_check_and_the_writing_agree(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    before = tree(tmp_path)
    if name == "a":
        assert check_output(Path(name)) == Path(name)
        assert tree(tmp_path) == before
        write_whole(Path(name), "x")
        return
    for action in (check_output, lambda path: write_whole(path, "x")):
        with pytest.raises(OutputError, match=re.escape(f"cannot write {name}: ")):
            action(Path(name))
    assert check_output(Path("new/folder/a")) == Path("new/folder/a")
    assert [x for x in tree(tmp_path) if x not in before] in ([], [str(tmp_path / "new")])


@pytest.mark.parametrize("name", ["file", "file/a", f"{LONG}/a", "/proc/a", "a/" * 2000])
def test_a_folder_that_files_cannot_be_put_into_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write "):
        check_folder(Path(name))
    assert check_folder(Path("new/folder")) == Path("new/folder")
    assert tree(tmp_path) == [str(tmp_path / "file")]


FULL = """
set -e
mkdir {folder}; mount -t tmpfs -o size=4k none {folder}
head -c 4096 /dev/zero > {folder}/filled
exec {python} -c "
from pathlib import Path
from aot.core.errors import OutputError
from aot.core.whole_file import check_folder, check_output, write_whole, writing_alone
for action in (check_output, lambda x: check_folder(x.parent), lambda x: write_whole(x, 'x' * 100)):
    try:
        action(Path('{folder}/a'))
    except OutputError as error:
        print(error)
print(sorted(x.name for x in Path('{folder}').iterdir()))
"
"""


def test_a_full_disk_is_found_out_first(tmp_path):
    """On a file system of one page, in a namespace of its own, which a container may not allow."""
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mounting needs root")
    script = FULL.format(folder=tmp_path / "full", python=os.sys.executable)
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "mount:" in done.stderr:
        pytest.skip(done.stderr)
    full = f"{tmp_path}/full"
    cause = "No space left on device; give another path, or free that one"
    assert done.stdout.splitlines() == [
        f"cannot write {full}/a: {cause}",
        f"cannot write {full}: {cause}",
        f"cannot write {full}/a: {cause}",
        "['filled']",
    ]


COUNTING = """
import sys, time
from pathlib import Path
from aot.core.whole_file import write_whole, writing_alone
path = Path(sys.argv[1])
for _ in range(20):
    with writing_alone(path):
        found = int(path.read_text()) if path.exists() else 0
        time.sleep(0.001)
        write_whole(path, str(found + 1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["a.txt", "new/folder/a.txt", "link"])
def test_processes_that_read_and_replace_a_file_lose_nothing(tmp_path, place):
    (tmp_path / "link").symlink_to("linked.txt")
    path = tmp_path / place
    processes = [subprocess.Popen([sys.executable, "-c", COUNTING, path]) for _ in range(3)]
    assert [x.wait() for x in processes] == [0, 0, 0]
    assert path.read_text() == "60"
    assert {x.name for x in path.parent.iterdir()} <= {"a.txt", "link", "linked.txt"}


def test_a_folder_that_cannot_be_locked_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match=r"cannot write .*file/b: .* is no folder"),
        writing_alone(tmp_path / "file/b"),
    ):
        pass
