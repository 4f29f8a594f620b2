"""Files are whole or not there."""

import pytest

from aot.whole_file import write_whole


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
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "new")
    assert path.read_text() == "old"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["a.txt", "folder"]
