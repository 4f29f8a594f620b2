"""The bytes of a Debian package, read back by the formats' own documents; tests/package has Debian's tools read one."""

import hashlib
import io
import lzma
import tarfile

import pytest

from aot.package.deb_file import DebFile, gzipped, to_bytes

EPOCH = 1234567890
FIELDS = {
    "Package": "libx1",
    "Version": "1.2+h200",
    "Architecture": "arm64",
    "Maintainer": "Ann Lee <ann@company.com>",
    "Description": "a library\n that does this\n .\n and that",
}
CONTENT = {"usr/lib/a/libx.so.1": b"\x7fELF" * 700, "usr/share/doc/libx1/copyright": b"free\n"}
DEB = DebFile(FIELDS, CONTENT, {"usr/lib/a/libx.so": "libx.so.1"}, {"triggers": b"activate-noawait ldconfig\n"})


def members(content):
    """Read an ar archive, as ar(5) describes it."""
    assert content.startswith(b"!<arch>\n")
    found, offset = {}, 8
    while offset < len(content):
        header = content[offset : offset + 60]
        assert header[58:] == b"`\n"
        name, *numbers = (header[a:b].decode().strip() for a, b in ((0, 16), (16, 28), (28, 34), (34, 40), (40, 48)))
        assert numbers == [str(EPOCH), "0", "0", "100644"]
        size = int(header[48:58])
        found[name] = content[offset + 60 : offset + 60 + size]
        offset += 60 + size + size % 2
    return found


def unpacked(content):
    return tarfile.open(fileobj=io.BytesIO(lzma.decompress(content)))


def test_a_package_is_an_archive_of_three():
    found = members(to_bytes(DEB, EPOCH))
    assert list(found) == ["debian-binary", "control.tar.xz", "data.tar.xz"]
    assert found["debian-binary"] == b"2.0\n"


def test_files_links_and_folders_are_roots_and_of_one_time():
    with unpacked(members(to_bytes(DEB, EPOCH))["data.tar.xz"]) as archive:
        entries = {x.name: x for x in archive.getmembers()}
        read = {name: archive.extractfile(f"./{name}").read() for name in CONTENT}
    folders = ["usr", "usr/lib", "usr/lib/a", "usr/share", "usr/share/doc", "usr/share/doc/libx1"]
    paths = [*folders, *CONTENT, "usr/lib/a/libx.so"]
    assert list(entries) == [".", *(f"./{x}" for x in sorted(paths))]
    assert read == CONTENT
    assert {(x.uid, x.gid, x.uname, x.gname, x.mtime) for x in entries.values()} == {(0, 0, "root", "root", EPOCH)}
    modes = {name: (x.type, x.mode) for name, x in entries.items()}
    assert {modes[f"./{x}"] for x in folders} == {(tarfile.DIRTYPE, 0o755)}
    assert {modes[f"./{x}"] for x in CONTENT} == {(tarfile.REGTYPE, 0o644)}
    assert modes["./usr/lib/a/libx.so"] == (tarfile.SYMTYPE, 0o777)
    assert entries["./usr/lib/a/libx.so"].linkname == "libx.so.1"


def test_the_control_files_say_what_is_in_it():
    with unpacked(members(to_bytes(DEB, EPOCH))["control.tar.xz"]) as archive:
        read = {x.name: archive.extractfile(x).read().decode() for x in archive.getmembers() if x.isfile()}
    sums = [f"{hashlib.md5(content).hexdigest()}  {path}" for path, content in CONTENT.items()]
    assert read == {
        "./control": (
            "Package: libx1\nVersion: 1.2+h200\nArchitecture: arm64\nMaintainer: Ann Lee <ann@company.com>\n"
            # 2,800 bytes are 3 KiB, 5 bytes are 1; 6 folders and a link.
            "Installed-Size: 11\nDescription: a library\n that does this\n .\n and that\n"
        ),
        "./md5sums": "\n".join(sums) + "\n",
        "./triggers": "activate-noawait ldconfig\n",
    }


def test_the_name_is_that_of_dpkg():
    assert DEB.name == "libx1_1.2+h200_arm64.deb"


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_members_of_every_length_are_padded(size):
    deb = DebFile(FIELDS, {"a": bytes(size)}, {}, {})
    found = members(to_bytes(deb, EPOCH))
    with unpacked(found["data.tar.xz"]) as archive:
        assert archive.extractfile("./a").read() == bytes(size)


def test_bytes_follow_from_the_content_alone():
    backwards = DebFile(FIELDS, dict(reversed(CONTENT.items())), DEB.links, DEB.controls)
    assert to_bytes(backwards, EPOCH) == to_bytes(DEB, EPOCH) != to_bytes(DEB, EPOCH + 1)
    assert gzipped(b"text")[4:10] == bytes(4) + b"\x02\xff"  # no time, best, no system
