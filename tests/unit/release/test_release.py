"""What stands in a release's folder beside the wheels, and where a release may be put."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from aot.core.errors import OutputError, PackageError
from aot.core.target import load_target
from aot.package.contents import Component
from aot.package.wheel import BuiltWheel
from aot.release import release as module
from aot.release.provenance import Parameters
from aot.release.release import KernelWheel, assemble, build_debs, check_place, put
from aot.release.source import Source
from tests.golden.manifest import golden_manifest

SOURCE = Source("b" * 40, datetime(2026, 11, 20, tzinfo=UTC))
PARAMETERS = Parameters(("h200",), "aot-gemm", "0.1.0", "1577836800", {"h200": "0123456789ab"})
QUACK = Component("quack", "quack-kernels", "0.6.5", "Apache-2.0", "compiled into kernels", b"its licence")


@pytest.fixture
def assembled(tmp_path, monkeypatch):
    """Assemble a release of one wheel and a Debian package, whose contents are stand-ins."""
    monkeypatch.setattr(module, "fetch_toolchain", lambda _target: module)
    monkeypatch.setattr(module, "cuda_dir", tmp_path, raising=False)
    monkeypatch.setattr(module, "components", lambda *_: (QUACK,))
    folder = tmp_path / "release"
    folder.mkdir()
    for name in ("aot_gemm-0.1.0.whl", "aot_kernels-0.1.0.whl"):
        (folder / name).write_text(f"content of {name}")
    (tmp_path / "aot-gemm.deb").write_text("a package")
    (tmp_path / "h200.json.gz").write_text("a selection")
    built = BuiltWheel(folder / "aot_gemm-0.1.0.whl", golden_manifest())
    inputs = {"aot/selections/h200.json.gz": tmp_path / "h200.json.gz"}
    wheel = KernelWheel(built, load_target("h200"), inputs, PARAMETERS.selections)
    extras = [tmp_path / "aot-gemm.deb"]
    assemble(folder, [wheel], folder / "aot_kernels-0.1.0.whl", extras, PARAMETERS, SOURCE)
    return folder


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_everything_goes_along(assembled):
    assert sorted(x.relative_to(assembled).as_posix() for x in assembled.rglob("*") if x.is_file()) == [
        "SHA256SUMS",
        "aot-gemm.deb",
        "aot_gemm-0.1.0.cdx.json",
        "aot_gemm-0.1.0.whl",
        "aot_kernels-0.1.0.cdx.json",
        "aot_kernels-0.1.0.whl",
        "licenses/quack.txt",
        "provenance.intoto.jsonl",
    ]
    assert (assembled / "licenses" / "quack.txt").read_bytes() == b"its licence"


def test_the_checksums_are_those_of_every_file(assembled):
    rows = dict(reversed(x.split("  ")) for x in (assembled / "SHA256SUMS").read_text().splitlines())
    found = {x.relative_to(assembled).as_posix(): sha256(x.read_bytes()) for x in assembled.rglob("*") if x.is_file()}
    del found["SHA256SUMS"]
    assert rows == found


def test_the_provenance_is_of_wheels_bills_and_packages_and_names_what_they_are_made_of(assembled):
    found = json.loads((assembled / "provenance.intoto.jsonl").read_text())
    names = ["aot-gemm.deb", "aot_gemm-0.1.0.cdx.json", "aot_gemm-0.1.0.whl"]
    names += ["aot_kernels-0.1.0.cdx.json", "aot_kernels-0.1.0.whl"]
    assert [x["name"] for x in found["subject"]] == names
    assert all(x["digest"]["sha256"] == sha256((assembled / x["name"]).read_bytes()) for x in found["subject"])
    inputs = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert inputs[0] == {"name": "source", "digest": {"gitCommit": "b" * 40}}
    assert inputs[1] == {"name": "aot/selections/h200.json.gz", "digest": {"sha256": sha256(b"a selection")}}
    uris = {x["uri"] for x in inputs[2:]}
    assert f"pkg:pypi/ziglang@{version('ziglang')}" in uris
    assert "pkg:pypi/nvidia-cuda-runtime@13.0.96" in uris
    assert {f"pkg:pypi/{name}@{number}" for name, number in golden_manifest().toolchain.items()} <= uris


def test_the_bills_are_of_what_is_inside_and_of_what_is_installed_with_it(assembled):
    kernels, toolchain = (json.loads((assembled / f"aot_{x}-0.1.0.cdx.json").read_text()) for x in ("gemm", "kernels"))
    assert [x["name"] for x in kernels["components"]] == ["quack-kernels"]
    wheel = (assembled / "aot_gemm-0.1.0.whl").read_bytes()
    assert kernels["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": sha256(wheel)}]
    found = {x["name"]: x["version"] for x in toolchain["components"]}
    assert found["nvidia-cutlass-dsl"] == version("nvidia-cutlass-dsl")
    assert found["click"] == version("click")
    assert toolchain["metadata"]["component"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]


def test_debian_packages_are_made_of_the_wheel_with_its_date(tmp_path, monkeypatch):
    asked, packages = [], [SimpleNamespace(name="a.deb"), SimpleNamespace(name="b.deb")]
    monkeypatch.setattr(module, "packages_of", lambda *words: asked.append(words) or packages)
    monkeypatch.setattr(module, "to_bytes", lambda package, epoch: f"{package.name} of {epoch}".encode())
    made = build_debs(tmp_path / "x.whl", "Ann Lee <ann@company.com>", tmp_path)
    assert asked == [(tmp_path / "x.whl", "Ann Lee <ann@company.com>", 1577836800)]
    assert [(x.name, x.read_text()) for x in made] == [
        ("a.deb", "a.deb of 1577836800"),
        ("b.deb", "b.deb of 1577836800"),
    ]


def test_two_files_of_one_name_are_refused(assembled, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "aot_kernels-0.1.0.whl").write_text("another")
    (assembled / "licenses" / "quack.txt").unlink()
    (assembled / "licenses").rmdir()
    wheel, files = assembled / "aot_kernels-0.1.0.whl", [other / "aot_kernels-0.1.0.whl"]
    with pytest.raises(PackageError, match=r"^two files of the release are called aot_kernels-0.1.0.whl; expected one"):
        assemble(assembled, [], wheel, files, PARAMETERS, SOURCE)


def test_a_release_takes_the_place_of_an_earlier_one_and_of_nothing_else(tmp_path):
    scratch, folder = tmp_path / "scratch", tmp_path / "build" / "release"
    (scratch / "licenses").mkdir(parents=True)
    (scratch / "SHA256SUMS").write_text("sums")
    (scratch / "licenses" / "a.txt").write_text("terms")
    put(scratch, folder)
    (folder / "old.whl").write_text("of an earlier release")
    put(scratch, folder)
    assert sorted(x.name for x in folder.rglob("*")) == ["SHA256SUMS", "a.txt", "licenses"]
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(OutputError, match="holds other things than a release; give an empty folder, or remove it"):
        put(scratch, folder)
    assert (folder / "licenses" / "a.txt").read_text() == "terms"
    with pytest.raises(OutputError, match="holds other things than a release"):
        check_place(folder / "licenses" / "a.txt")
