"""Wheels that are not what they must be. tests/package builds real ones and checks them."""

import base64
import hashlib
import json
import random
import re
import struct
import zipfile
import zlib

import pytest

from aot.core.errors import AotError, ManifestError, PackageError
from aot.package import wheel_check
from aot.package.manifest import MANIFEST_VERSION, to_json
from aot.package.wheel_check import check_wheel, read_wheel_manifest
from tests.golden.manifest import golden_manifest, with_grids

NAME = "aot_gemm-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
MANIFEST = "aot_gemm/manifest.json"
BUILD = "aot_gemm/_build.json"
LIBRARY = "aot_gemm/libaot_gemm.so.1"
RECORD = "aot_gemm-0.1.0.dist-info/RECORD"
METADATA = {"aot_gemm-0.1.0.dist-info/METADATA": b"Name: aot-gemm\n"}


def with_build(files):
    """Add what the installed package checks itself by."""
    entries = {
        name.removeprefix("aot_gemm/"): {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
        if name.startswith("aot_gemm/")
    }
    return {BUILD: json.dumps(entries).encode(), **files}


FILES = with_build({LIBRARY: b"\x7fELF" + bytes(range(256)), MANIFEST: to_json(golden_manifest()).encode()})


def row(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(content)}"


def member(name, mode=0o100644, date=(2020, 1, 1, 0, 0, 0)):
    info = zipfile.ZipInfo(name, date)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, mode << 16
    return info


def wheel_of(directory, files=FILES, recorded=FILES, name=NAME, record=None, **changes):
    rows = [*(row(*item) for item in {**recorded, **METADATA}.items()), f"{RECORD},,"]
    record = "\n".join(rows).encode() if record is None else record
    with zipfile.ZipFile(directory / name, "w") as archive:
        for file, content in {**files, **METADATA, RECORD: record}.items():
            archive.writestr(member(file, **changes), content)
    return directory / name


def refusal(wheel):
    with pytest.raises(PackageError) as caught:
        list(check_wheel(wheel))
    return str(caught.value)


def test_reads_the_manifest(tmp_path):
    golden = golden_manifest()
    assert with_grids(read_wheel_manifest(wheel_of(tmp_path)), golden) == golden


def test_each_check_gives_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel_check, "inspect_wheel", lambda *_: None)
    monkeypatch.setattr(wheel_check, "cubins", lambda _: [b"code"] * 5)
    monkeypatch.setattr(wheel_check, "cubin_sm", lambda _: 90)
    names = b"\0".join(x.name.encode() for x in golden_manifest().kernels)
    files = with_build({LIBRARY: b"\x7fELF" + names + b"\0", MANIFEST: FILES[MANIFEST]})
    assert list(check_wheel(wheel_of(tmp_path, files, files))) == [
        "archive: 5 files, each header as the build writes it",
        "manifest: aot-gemm 0.1.0, 5 kernels; tables: h200 predicted",
        "states: 2 of 5 kernels ran on the device, 1 executed in the interpreter, 2 compiled only",
        "hashes: 5 files as RECORD says, 2 as the installed package will check them",
        "libraries: manylinux_2_28_x86_64, needs, symbols and versions as expected",
        "kernels: 5 device images for sm_90a, and their names",
    ]


@pytest.mark.parametrize(
    ("images", "sm", "message"),
    [
        (4, 90, "its library has 4 device images, for sm 90; expected 5 for sm_90a"),
        (6, 90, "its library has 6 device images, for sm 90; expected 5 for sm_90a"),
        (5, 110, "its library has 5 device images, for sm [110]; expected 5 for sm_90a"),
    ],
)
def test_device_code_is_that_of_the_manifest(tmp_path, monkeypatch, images, sm, message):
    monkeypatch.setattr(wheel_check, "inspect_wheel", lambda *_: None)
    monkeypatch.setattr(wheel_check, "cubins", lambda _: [b"code"] * images)
    monkeypatch.setattr(wheel_check, "cubin_sm", lambda _: sm)
    names = b"\0".join(x.name.encode() for x in golden_manifest().kernels)
    files = with_build({LIBRARY: b"\x7fELF" + names + b"\0", MANIFEST: FILES[MANIFEST]})
    assert refusal(wheel_of(tmp_path, files, files)) == f"{NAME}: {message}; build or download it again"
    files = with_build({LIBRARY: b"\x7fELF" + names, MANIFEST: FILES[MANIFEST]})
    last = golden_manifest().kernels[-1].name
    assert refusal(wheel_of(tmp_path, files, files)) == (
        f"{NAME}: its library does not name kernel {last} of its manifest; build or download it again"
    )


def test_a_library_that_is_none_is_a_typed_error(tmp_path):
    for content in (b"\x7fELF", FILES[LIBRARY]):
        files = {LIBRARY: content, MANIFEST: FILES[MANIFEST]}
        files = with_build(files)
        assert re.match(
            rf"{NAME}: a library cannot be read: .*; build or download it again$",
            refusal(wheel_of(tmp_path, files, files)),
        )


def test_what_is_no_archive_is_refused(tmp_path):
    path = tmp_path / NAME
    path.write_text("not a wheel")
    assert refusal(path) == f"{NAME} is not a wheel: File is not a zip file; build or download it again"


@pytest.mark.parametrize("kept", [0, 1, 40, -1, -30])
def test_a_truncated_wheel_is_refused(tmp_path, kept):
    path = wheel_of(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    assert refusal(path) == f"{NAME} is not a wheel: File is not a zip file; build or download it again"


def is_found(wheel):
    try:
        list(check_wheel(wheel))
    except AotError:
        return True
    return False


@pytest.mark.slow
def test_every_flipped_bit_that_changes_anything_is_found(tmp_path, monkeypatch):
    """All bits of all headers and of the directory, and many of the content; other errors than AotError are raised."""
    monkeypatch.setattr(wheel_check, "inspect_wheel", lambda *_: None)
    monkeypatch.setattr(wheel_check, "_check_code", lambda *_: 0)
    path = wheel_of(tmp_path)
    assert not is_found(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        members, start = archive.infolist(), archive.start_dir
        read = {x.filename: archive.read(x) for x in members}
    heads = [(x.header_offset, x.header_offset + 30 + len(x.filename)) for x in members]
    # The last byte of a member's code may end in bits that say nothing.
    ends = {x.header_offset + 30 + len(x.filename) + x.compress_size - 1 for x in members}
    places = [at for head in [*heads, (start, len(whole))] for at in range(*head)]
    content = [at for at in range(start) if at not in ends and not any(a <= at < b for a, b in heads)]
    rng = random.Random(4)
    for at, bit in [*((at, rng.randrange(8)) for at in places), *((rng.choice(content), x % 8) for x in range(400))]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        if not is_found(path):
            with zipfile.ZipFile(path) as archive:  # another code of the same bytes
                assert at in content
                assert {x.filename: archive.read(x) for x in archive.infolist()} == read, (at, bit)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": 0o100600}, f"{BUILD} has mode 100600"),
        ({"mode": 0o120755}, f"{BUILD} has mode 120755"),
        ({"date": (2020, 1, 2, 0, 0, 0)}, f"the header of {BUILD} is damaged"),
    ],
)
def test_headers_are_as_the_build_writes_them(tmp_path, changes, message):
    assert refusal(wheel_of(tmp_path, **changes)) == (
        f"{NAME}: {message}; expected a wheel that `aot build` made, whole; build or download it again"
    )


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "aot_gemm/\u00e9.py"])
def test_a_member_lies_inside(tmp_path, name):
    files = {**FILES, name: b""}
    assert f"the name of its member {name!a} is not one that the build gives" in refusal(
        wheel_of(tmp_path, files, files)
    )


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_are_deflated(tmp_path, method):
    info = member(MANIFEST)
    info.compress_type = method
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr(info, b"{}")
    assert f"{MANIFEST} is not deflated" in refusal(tmp_path / NAME)


def test_a_member_is_there_once(tmp_path):
    path = wheel_of(tmp_path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(member(LIBRARY), b"other")
    assert "it has two members of one name" in refusal(path)


def test_bytes_between_members_are_found(tmp_path):
    path = wheel_of(tmp_path)
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert f"the header of {BUILD} is damaged" in refusal(path)
    path = wheel_of(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"more"
    assert "its directory is damaged" in refusal(path)


def stated(name, content, size):
    """Return an archive of one member whose headers state another size than its content has."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = deflate.compress(content) + deflate.flush()
    common = (20, 0, 8, 0, 40 << 9 | 33, zlib.crc32(content[:size]), len(deflated), size, len(name), 0)
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, *common) + name.encode()
    entry = (
        struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 3 << 8 | 20, *common, 0, 0, 0, 0o100644 << 16, 0) + name.encode()
    )
    offset = len(local) + len(deflated)
    return local + deflated + entry + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, len(entry), offset, 0)


def test_a_member_is_as_long_as_its_headers_say(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(stated(MANIFEST, b"{}" * 500, 10))
    assert f"{MANIFEST} is damaged" in refusal(path)


def test_a_member_of_another_place_is_not_inflated(tmp_path):
    path = wheel_of(tmp_path)
    content = path.read_bytes()
    size = struct.unpack_from("<I", content, 18)[0]
    start = 30 + struct.unpack_from("<H", content, 26)[0]
    path.write_bytes(content[:start] + bytes([255]) * size + content)
    assert "is not a wheel: " in refusal(path)


def test_more_members_than_an_archive_has_room_for_are_refused(tmp_path):
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(65_536):
            archive.writestr(member(f"aot_gemm/{i}"), b"")
    assert "is not a wheel: " in refusal(path)


def test_a_wheel_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    path = wheel_of(tmp_path)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        at = archive.start_dir + 24
    path.write_bytes(content[:at] + struct.pack("<I", 2**32 - 2) + content[at + 4 :])
    assert re.search(r"its members have 4,294,\d+,\d+ bytes, more than 2,000,000,000", refusal(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "says None of libaot_gemm.so.1, which is {'num_bytes': 260"),
        (b"[]", "holds a list, expected an object"),
        (b"{", "cannot be read: "),
        (b"\xff", "cannot be read: 'utf-8' codec"),
        (b"[" * 100_000, "cannot be read: maximum recursion depth"),
    ],
)
def test_what_the_installed_package_checks_itself_by_is_right(tmp_path, content, message):
    files = {**FILES, BUILD: content}
    assert refusal(wheel_of(tmp_path, files, files)).startswith(f"{NAME}: {BUILD} {message}")


@pytest.mark.parametrize("record", [b"\xff", b'"' + b"x" * 200_000, b"\0,,"])
def test_a_record_that_cannot_be_read_is_a_typed_error(tmp_path, record):
    assert refusal(wheel_of(tmp_path, record=record)).endswith("; build or download it again")


@pytest.mark.parametrize("names", [[], [MANIFEST, "other/manifest.json"]])
def test_a_wheel_has_one_manifest(tmp_path, names):
    files = dict.fromkeys(names, b"{}")
    message = f"{NAME}: it has {len(names)} manifests; expected a wheel that `aot build` made, whole"
    assert refusal(wheel_of(tmp_path, files, files)) == message


def test_a_damaged_manifest_is_named(tmp_path):
    with pytest.raises(
        ManifestError,
        match=rf"{NAME}: {MANIFEST}: manifest_version: expected {MANIFEST_VERSION}, got None; build it again",
    ):
        read_wheel_manifest(wheel_of(tmp_path, {**FILES, MANIFEST: b"{}"}))


def test_a_changed_manifest_is_refused(tmp_path):
    changed = FILES[MANIFEST].replace(b'"target":"h200"', b'"target":"h100"')
    assert changed != FILES[MANIFEST]
    message = refusal(wheel_of(tmp_path, {**FILES, MANIFEST: changed}))
    found, recorded = (row(MANIFEST, x).split(",", 1)[1].replace(",", " ") for x in (changed, FILES[MANIFEST]))
    assert message == f"{NAME}: {MANIFEST} has {found}, RECORD says {recorded}; build or download it again"


def test_files_are_those_of_the_record(tmp_path):
    more = {**FILES, "aot_gemm/more.py": b"x"}
    assert refusal(wheel_of(tmp_path, more)).endswith("RECORD says none; build or download it again")
    message = f"{NAME} lacks aot_gemm/more.py, which RECORD names; build or download it again"
    assert refusal(wheel_of(tmp_path, FILES, more)) == message


def test_a_renamed_wheel_is_refused(tmp_path):
    for other in ("my.whl", NAME.replace("0.1.0", "0.1.1"), NAME.replace("aot_gemm", "mine"), NAME + ".bak"):
        assert refusal(wheel_of(tmp_path, name=other)) == (
            f"the wheel is named {other}; expected {NAME}: the file is whole and was renamed, so that pip takes it for "
            "no wheel, or for another version; rename it back"
        )


def test_a_wheel_named_for_another_platform_is_refused(tmp_path):
    other = NAME.replace("x86_64", "aarch64")
    assert other != NAME
    assert refusal(wheel_of(tmp_path, name=other)) == (
        f"the wheel is named {other}; expected {NAME}: its content is for manylinux_2_28_x86_64, so that under this "
        "name pip installs it where it cannot load; rename it back, and build a wheel for the other platform"
    )


def test_a_wheel_of_functions_without_kernels_is_compared_with_its_hashes(tmp_path):
    files = with_build({"aot_gemm/_packs.py": b"", "aot_gemm/__init__.py": b"import sys"})
    wheel = wheel_of(tmp_path, files, files)
    assert list(check_wheel(wheel))[1:] == [
        "functions: aot_gemm, for packs of kernels; it has none of its own",
        "hashes: 5 files as RECORD says, 2 as the installed package will check them",
    ]
    with pytest.raises(PackageError, match="it has the functions of packs and no kernels; expected a pack's wheel"):
        read_wheel_manifest(wheel)
    files["aot_gemm/__init__.py"] = b"import os"
    assert "_build.json says" in refusal(wheel_of(tmp_path, files, files))
