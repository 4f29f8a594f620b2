"""Wheels that are not what they must be. tests/package builds real ones and checks them."""

import base64
import hashlib
import zipfile

import pytest

from aot import wheel_check
from aot.errors import ManifestError, PackageError
from aot.manifest import to_json
from aot.wheel_check import check_wheel, read_wheel_manifest
from tests.golden.manifest import golden_manifest

NAME = "aot_gemm-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
MANIFEST = "aot_gemm/manifest.json"
RECORD = "aot_gemm-0.1.0.dist-info/RECORD"
FILES = {MANIFEST: to_json(golden_manifest()).encode(), "aot_gemm/libaot_gemm.so": b"\x7fELF"}


def row(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(content)}"


def wheel_of(directory, files=FILES, recorded=FILES, name=NAME):
    rows = [*(row(*item) for item in recorded.items()), f"{RECORD},,"]
    with zipfile.ZipFile(directory / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in {**files, RECORD: "\n".join(rows).encode()}.items():
            archive.writestr(file, content)
    return directory / name


def refusal(wheel):
    with pytest.raises(PackageError) as caught:
        list(check_wheel(wheel))
    return str(caught.value)


def test_reads_the_manifest(tmp_path):
    assert read_wheel_manifest(wheel_of(tmp_path)) == golden_manifest()


def test_each_check_gives_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel_check, "inspect_wheel", lambda *_: None)
    assert list(check_wheel(wheel_of(tmp_path))) == [
        "manifest: aot-gemm 0.1.0, 5 kernels, measured",
        "hashes: 3 files as RECORD says",
        "libraries: manylinux_2_28_x86_64, needs, symbols and versions as expected",
    ]


def test_what_is_no_archive_is_refused(tmp_path):
    path = tmp_path / NAME
    path.write_text("not a wheel")
    assert refusal(path) == f"{NAME} is not a wheel: File is not a zip file; build or download it again"


@pytest.mark.parametrize("kept", [0, 1, 40, -1, -30])
def test_a_truncated_wheel_is_refused(tmp_path, kept):
    path = wheel_of(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    assert refusal(path) == f"{NAME} is not a wheel: File is not a zip file; build or download it again"


@pytest.mark.parametrize("at", [60, 200, 1000])
def test_a_wheel_with_a_flipped_bit_is_refused(tmp_path, at):
    path = wheel_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    assert refusal(path).startswith(
        (f"{NAME} is not a wheel: ", f"{NAME}: {MANIFEST} is damaged; expected a wheel that")
    )


@pytest.mark.parametrize("names", [[], [MANIFEST, "other/manifest.json"]])
def test_a_wheel_has_one_manifest(tmp_path, names):
    wheel = wheel_of(tmp_path, dict.fromkeys(names, b"{}"))
    assert refusal(wheel) == f"{NAME}: it has {len(names)} manifests; expected a wheel that `aot build` made, whole"


def test_a_damaged_manifest_is_named(tmp_path):
    with pytest.raises(ManifestError, match=rf"{NAME}: {MANIFEST}: version None, expected 2; build it again"):
        list(check_wheel(wheel_of(tmp_path, {**FILES, MANIFEST: b"{}"})))


def test_a_changed_manifest_is_refused(tmp_path):
    changed = FILES[MANIFEST].replace(b'"time_us": 5.5', b'"time_us": 4.5')
    assert changed != FILES[MANIFEST]
    message = refusal(wheel_of(tmp_path, {**FILES, MANIFEST: changed}))
    found, recorded = (row(MANIFEST, x).split(",")[1] for x in (changed, FILES[MANIFEST]))
    assert message == f"{NAME}: {MANIFEST} has {found}, RECORD says {recorded}; build or download it again"


def test_files_are_those_of_the_record(tmp_path):
    more = {**FILES, "aot_gemm/more.py": b"x"}
    assert refusal(wheel_of(tmp_path, more)).endswith("RECORD says None; build or download it again")
    message = f"{NAME} lacks aot_gemm/more.py, which RECORD names; build or download it again"
    assert refusal(wheel_of(tmp_path, FILES, more)) == message


def test_a_renamed_wheel_is_refused(tmp_path):
    other = NAME.replace("2_28", "2_39")
    assert refusal(wheel_of(tmp_path, name=other)) == f"the wheel is named {other}; expected {NAME}"
