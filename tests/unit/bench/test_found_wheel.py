import hashlib
import json
import sys

import pytest

from aot.bench.found_wheel import found_wheel, installed_folder
from aot.core.errors import PackageError
from tests.runtime.host import record_build

TABLES = [{"target": "h100"}]


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "own_gemm"
    found.mkdir()
    (found / "__init__.py").write_text("")
    (found / "libown_gemm.so.1").write_bytes(b"code")
    (found / "libown_gemm.so").write_bytes(b"INPUT(-l:libown_gemm.so.1)")
    (found / "manifest.json").write_text(json.dumps({"package": "own-gemm", "tables": TABLES}))
    record_build(found)
    return found


def test_an_installed_package_is_told_by_its_files_and_by_its_tables(folder):
    with found_wheel(folder) as wheel:
        assert (wheel.library, wheel.package) == (folder / "libown_gemm.so.1", "own-gemm")
        assert wheel.sha256 == hashlib.sha256((folder / "_build.json").read_bytes()).hexdigest()
        assert wheel.tables_sha256 == hashlib.sha256(b'[{"target":"h100"}]').hexdigest()


def test_what_python_caches_is_not_of_the_package(folder):
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"0")
    with found_wheel(folder) as wheel:
        assert wheel.package == "own-gemm"


def refused(folder):
    with pytest.raises(PackageError) as caught, found_wheel(folder):
        pass
    return str(caught.value)


def test_a_damaged_package_is_refused(folder):
    (folder / "libown_gemm.so.1").write_bytes(b"Code")
    assert "_build.json says" in refused(folder)
    (folder / "libown_gemm.so.1").unlink()
    assert "it has 0 files libown_gemm.so.*, expected 1" in refused(folder)


def test_a_manifest_that_cannot_be_read_is_refused(folder):
    (folder / "manifest.json").write_text("[]")
    record_build(folder)
    assert "manifest.json cannot be read" in refused(folder)


def test_a_package_is_found_without_being_imported(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder.parent)
    assert installed_folder("own_gemm") == folder
    assert "own_gemm" not in sys.modules
    with pytest.raises(PackageError, match="no package not_there is installed here; install the wheel"):
        installed_folder("not_there")


def test_functions_without_kernels_are_refused_with_where_the_kernels_are(folder):
    for name in ("libown_gemm.so.1", "libown_gemm.so", "manifest.json"):
        (folder / name).unlink()
    (folder / "_packs.py").write_text("")
    record_build(folder)
    assert "expected a pack's wheel, or the folder of one that is installed; `python -m own_gemm`" in refused(folder)
