import hashlib
import json
import tomllib
from dataclasses import replace

import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.package.build import read_templates
from aot.package.pack import PackFor, lock_text, pack_name, render_api, render_pack
from aot.package.render import render, runtime_of
from tests.golden.manifest import golden_manifest

TEMPLATES = read_templates()
PACK = replace(golden_manifest(), package="aot-gemm-sm90a")
FOLDER = "python/aot_gemm_sm90a/"


def test_a_pack_is_named_by_its_architecture():
    assert pack_name("aot-gemm", "sm_90a") == "aot-gemm-sm90a"


def test_a_pack_has_the_library_of_a_wheel_and_no_function():
    pack, whole = render_pack(PACK, PackFor("aot-gemm"), TEMPLATES), render(PACK, TEMPLATES)
    sources = {path for path in whole if not path.startswith("python/")} - {"README.md", "pyproject.toml"}
    assert all(pack[path] == whole[path] for path in sources - {"src/library_sha256.h"})
    assert {path for path in pack if path.startswith("python/")} == {
        f"{FOLDER}__init__.py",
        f"{FOLDER}pack.json",
        f"{FOLDER}manifest.json",
    }
    assert json.loads(pack[f"{FOLDER}pack.json"]) == {
        "package": "aot-gemm-sm90a",
        "version": PACK.version,
        "arch": "sm_90a",
        "abi_version": 1,
        "runtime": runtime_of(TEMPLATES),
        "answers": "all",
    }


def test_a_pack_is_found_by_the_entry_point_of_its_functions():
    project = tomllib.loads(render_pack(PACK, PackFor("own-gemm"), TEMPLATES)["pyproject.toml"].decode())["project"]
    assert project["name"] == "aot-gemm-sm90a"
    assert project["entry-points"] == {"own_gemm.packs": {"aot-gemm-sm90a": "aot_gemm_sm90a"}}


def test_the_functions_have_no_kernels_and_are_those_of_a_wheel():
    api, whole = render_api("aot-gemm", "0.1.0", TEMPLATES), render(golden_manifest(), TEMPLATES)
    assert not [path for path in api if path.startswith(("src/", "include/", "cmake/"))]
    assert "CMakeLists.txt" not in api
    rendered = {f"python/aot_gemm/{x}.py" for x in ("_version", "_catalogue", "_enumerations")}
    functions = {path for path in whole if path.startswith("python/")} - {"python/aot_gemm/manifest.json"}
    assert all(api[path] == whole[path] for path in functions - rendered)
    values = {}
    exec(api["python/aot_gemm/_version.py"].decode(), values)
    assert (values["__version__"], values["HAS_KERNELS"], values["ABI_VERSION"]) == ("0.1.0", False, 1)
    exec(whole["python/aot_gemm/_version.py"].decode(), values)
    assert values["HAS_KERNELS"] is True
    assert f'RUNTIME = "{runtime_of(TEMPLATES)}"' in api["python/aot_gemm/_runtime.py"].decode()


def test_the_functions_are_recorded_for_the_check_of_the_installed_package():
    api = render_api("aot-gemm", "0.1.0", TEMPLATES)
    record = json.loads(api["python/aot_gemm/_build.json"])
    own = {path.removeprefix("python/aot_gemm/"): x for path, x in api.items() if path.startswith("python/")}
    assert set(record) == set(own) - {"_build.json"}
    for name, entry in record.items():
        assert entry == {"num_bytes": len(own[name]), "sha256": hashlib.sha256(own[name]).hexdigest()}


@pytest.mark.parametrize("path", ["src/call.cc", "include/aot_gemm.h", "python/aot_gemm/_routes.py"])
def test_other_code_is_another_runtime(path):
    assert runtime_of({**TEMPLATES, path: b""}) != runtime_of(TEMPLATES)


def test_a_lock_pins_wheels_by_their_hashes(tmp_path):
    wheel = tmp_path / "aot_gemm_sm90a-0.1.0+h200.0.predicted.h1-py3-none-manylinux_2_28_x86_64.whl"
    wheel.write_bytes(b"wheel")
    sha256 = hashlib.sha256(b"wheel").hexdigest()
    assert lock_text([wheel]) == f"aot-gemm-sm90a==0.1.0+h200.0.predicted.h1 --hash=sha256:{sha256}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--pack-name", "mine"], "--pack-name means nothing without --pack; give --pack too"),
        (["--pack", "--pack-name", "aot-gemm"], "--pack-name is aot-gemm, as --package is; expected another name"),
        (["--pack", "--pack-name", "Mine"], "--pack-name 'Mine' (4 characters, at most 64); expected lower-case words"),
    ],
)
def test_a_name_that_no_pack_can_have_is_refused_before_anything_is_selected(words, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("aot.cli.build._source", None)
    done = CliRunner().invoke(main, ["build", *words, "--dist", str(tmp_path)])
    assert done.exit_code != 0
    assert expected in " ".join(done.output.split())
