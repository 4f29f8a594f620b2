"""What differs between two builds, and where: in which member, section, line or byte."""

from __future__ import annotations

import zipfile
from io import BytesIO

import pytest
from elftools.elf.elffile import ELFFile

from aot.release.compare import compare, compare_all, read_folder
from tests.objects import compiled


def archive(files, date=(2020, 1, 1, 0, 0, 0)):
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as written:
        for name, text in files.items():
            written.writestr(zipfile.ZipInfo(name, date), text)
    return content.getvalue()


def lines(one, other):
    return [str(x) for x in compare("file", one, other)]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (b"same", b"same", []),
        (b"a\nb\nc\n", b"a\nx\nc\n", ["file: line 2 is 'b', then 'x'"]),
        (b"a\n", b"a\nb\n", ["file: it has 1 lines, then 2"]),
        (b"\xff\x00\x01", b"\xff\x00\x02\x03", ["file: 3 bytes, then 4; the first that differs is byte 2"]),
        (b"\xff\x00", b"\xff\x00\x02", ["file: 2 bytes, then 3; the first that differs is byte 2"]),
        (archive({"a": "1", "b": "2"}), archive({"a": "1", "b": "3"}), ["file: b: line 1 is '2', then '3'"]),
        (
            archive({"a": "1"}),
            archive({"c": "1"}),
            ["file: a: only the first build has it", "file: c: only the second"],
        ),
        (
            archive({"a": "1"}),
            archive({"a": "1"}, (2021, 1, 1, 0, 0, 0)),
            ["file: its parts are equal; their order, times, modes, headers or compression are not"],
        ),
    ],
)
def test_the_place_of_a_difference_is_named(one, other, expected):
    assert [x[: len(y)] for x, y in zip(lines(one, other), expected, strict=True)] == expected


@pytest.mark.slow
def test_the_section_of_a_library_is_named():
    _, objects = compiled("h200")
    one = next(iter(objects.values())).read_bytes()
    sections = [x for x in ELFFile(BytesIO(one)).iter_sections() if x["sh_type"] == "SHT_PROGBITS"]
    section = max(sections, key=lambda x: x["sh_size"])
    other = bytearray(one)
    other[section["sh_offset"] + 200] ^= 0xFF
    size = f"{section['sh_size']:,} bytes, then {section['sh_size']:,}"
    assert lines(one, bytes(other)) == [f"file: {section.name}: {size}; the first that differs is byte 200"]


def test_folders_are_compared_by_their_files(tmp_path):
    for name, files in {"one": {"a": "1", "f/b": "2"}, "other": {"a": "1", "f/c": "2"}}.items():
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
    found = compare_all(read_folder(tmp_path / "one"), read_folder(tmp_path / "other"))
    assert [str(x) for x in found] == ["f/b: only the first build has it", "f/c: only the second build has it"]
