"""An installed package that is damaged: what an import, `check`, `info` and `plan` say, each in a process of its own.

Two things are allowed: the right answer, and an error of the package that names the file.
"""

from __future__ import annotations

import _ctypes
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiling import EVERY
from tests.runtime.host import copy_package, record_build, sha256

SEED = 12
LIBRARY = "libaot_gemm.so.1"
RUN = """
import ctypes, os, sys
# Root reads what nobody may read unless it gives up its capabilities (capset, version 3, none).
ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
os.environ.pop("AOT_GEMM_MISSES", None)
calls = {
    "check": lambda: aot_gemm.check(),
    # Which table answers is asked of the library; the rest of it needs none.
    "info": lambda: [x for x in str(aot_gemm.info()).splitlines() if not x.startswith(("here: ", "choices here: "))],
    "plan": lambda: aot_gemm.plan(16, 4096, 4096),
    "explain": lambda: aot_gemm.explain(16, 4096, 4096),
    "products": lambda: sorted(aot_gemm._library.binding())[:1],
}
try:
    import aot_gemm
except ImportError as error:
    print("import", type(error).__name__, ascii(str(error)), sep="|")
    sys.exit()
for name in sys.argv[2:]:
    try:
        print(name, "right", ascii(str(calls[name]())), sep="|", flush=True)
    except aot_gemm.AotGemmError as error:
        print(name, type(error).__name__, ascii(str(error)), sep="|", flush=True)
"""
CALLS = ("check", "info", "plan", "explain", "products")


def ask(folder, *calls):
    """Import a package in a process of its own and call it; gives (what it said, message) of each call."""
    command = [sys.executable, "-c", RUN, str(folder.parent), *calls]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    answers = {}
    for line in done.stdout.splitlines():
        name, kind, text = line.split("|", 2)
        answers[name] = kind, text[1:-1]
    return answers


@pytest.fixture
def folder(package, tmp_path):
    return copy_package(package, tmp_path)


@pytest.fixture(scope="module")
def right(package, tmp_path_factory):
    """Give what a package that is whole answers, less where it lies."""
    whole = copy_package(package, tmp_path_factory.mktemp("whole"))
    answers = ask(whole, *CALLS)
    assert {kind for kind, _ in answers.values()} == {"right"}
    return {name: text.replace(str(whole), "HERE") for name, (_, text) in answers.items()}


def assert_right_or_refused(folder, right, path):
    """Ask everything of a damaged package: right, or an error that names the file; `check` must find the damage."""
    answers = ask(folder, *CALLS)
    assert answers
    for name, (kind, text) in answers.items():
        if kind == "right":
            assert name != "check"
            assert text.replace(str(folder), "HERE") == right[name]
        else:
            assert kind == "CorruptLibraryError", (name, kind, text)
            assert str(path) in text or "_build.json" in text
            assert "reinstall the package" in text
    assert "check" in answers or "import" in answers
    return answers


def files_of(package):
    folder = Path(package.__file__).parent
    return sorted(str(x.relative_to(folder)) for x in folder.rglob("*") if x.is_file() and "__pycache__" not in x.parts)


def test_a_whole_package_is_reported(folder):
    entries = json.loads((folder / "_build.json").read_text())
    size = sum(x["num_bytes"] for x in entries.values())
    said = f"{folder}: {len(entries)} files, {size:,} bytes, each as it was built"
    assert ask(folder, "check") == {"check": ("right", said)}
    assert set(entries) == {str(x.relative_to(folder)) for x in folder.rglob("*") if x.is_file()} - {"_build.json"}


def _remove(path):
    path.unlink()


def _make_a_directory(path):
    path.unlink()
    path.mkdir()


def _leave_a_dangling_link(path):
    path.unlink()
    path.symlink_to("nowhere")


def _make_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def _empty(path):
    path.write_bytes(b"")


def _cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: random.Random(SEED).randrange(len(content))])


def _append(path):
    path.write_bytes(path.read_bytes() + b"\n")


UNCHECKED_AT_IMPORT = {"__init__.py", "errors.py", "_files.py", "_version.py"}
"""What runs before the sizes are compared: Python itself says what is wrong with these."""


@pytest.mark.parametrize(
    "damage", [_remove, _make_a_directory, _leave_a_dangling_link, _make_a_pipe, _empty, _cut, _append]
)
def test_each_file_gone_cut_or_of_another_kind_is_named_at_import(package, tmp_path, right, damage):
    for name in files_of(package) if EVERY else one_of_each_kind(package):
        path = copy_package(package, tmp_path / name.replace("/", "_")) / name
        is_empty = path.stat().st_size == 0
        if name in UNCHECKED_AT_IMPORT or (is_empty and damage in {_empty, _cut}):
            continue
        if name == "_build.json" and damage is _append:  # a line more at the end of JSON says nothing
            continue
        damage(path)
        kind, text = assert_right_or_refused(path.parents[name.count("/")], right, path)["import"]
        assert kind == "CorruptLibraryError"
        assert str(path) in text


def one_of_each_kind(package):
    """Give a file of each suffix, the library, and the file that says what the others are."""
    named = {Path(x).suffix: x for x in files_of(package) if x not in UNCHECKED_AT_IMPORT}
    return sorted({*named.values(), "_build.json", LIBRARY})


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_flipped_bit_of_data_or_a_library_is_found_by_check(package, tmp_path, right):
    rng = random.Random(SEED)
    folder = copy_package(package, tmp_path)
    for name in [LIBRARY, LIBRARY, "manifest.json", "include/aot_gemm.h", "_build.json"] * (6 if EVERY else 1):
        path = folder / name
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        # A damaged library may do anything once it is loaded: only what loads none is asked.
        answers = ask(folder, "check", "info")
        assert answers.get("check", answers.get("import"))[0] == "CorruptLibraryError", (name, bit)
        kind, text = answers.get("info", ("right", right["info"]))
        assert kind == "CorruptLibraryError" or text.replace(str(folder), "HERE") == right["info"]
        flip(path, bit)
    assert ask(folder, "check")["check"][0] == "right"


def test_a_flipped_bit_of_the_code_is_found_by_check_or_by_python(package, tmp_path):
    rng = random.Random(SEED)
    folder = copy_package(package, tmp_path)
    command = [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import aot_gemm as x"]
    sources = [x for x in files_of(package) if x.endswith(".py")]
    few = [x for i, x in enumerate(sources) if i % 4 == 0 or x in {*UNCHECKED_AT_IMPORT, "_check.py"}]
    for name in sources * 4 if EVERY else few:
        path = folder / name
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        done = subprocess.run([*command[:-1], command[-1] + "; x.check()"], capture_output=True, text=True, check=False)
        assert done.returncode == 1, (name, bit)
        if name not in {*UNCHECKED_AT_IMPORT, "_check.py"}:
            assert re.search(rf"CorruptLibraryError: .*{re.escape(name)} is damaged: sha256", done.stderr), (name, bit)
        flip(path, bit)


def test_each_unreadable_file_is_named(package, tmp_path, right):
    folder = copy_package(package, tmp_path)
    for name in ("manifest.json", "_build.json", "include/aot_gemm.h", "_table.py", "_operations.py", LIBRARY):
        (folder / name).chmod(0)
        answers = assert_right_or_refused(folder, right, folder / name)
        assert "cannot be read (Permission denied)" in answers.get("check", answers.get("import"))[1]
        (folder / name).chmod(0o644)


RECORDS = [
    (b"", "is damaged: Expecting value: line 1 column 1"),
    (b"{}", "is damaged: it does not list libaot_gemm.so.1, manifest.json"),
    (b"[]", "is damaged: expected an object, got []"),
    (b"null", "is damaged: expected an object, got None"),
    (b'{"a": ', "is damaged: Expecting value: line 1 column 7"),
    (b"\xff\xfe{}", "is damaged: 'utf-8' codec can't decode byte 0xff"),
    (b"[" * 100_000, "is damaged: maximum recursion depth exceeded"),
    (b" " * (1 << 20) + b"{}", "is damaged: it has more than 1048576 bytes"),
    (b'{"a": 1}', "is damaged: the entry of a is 1; expected num_bytes and sha256"),
    (b'{"a": {"num_bytes": 1}}', "is damaged: the entry of a is {'num_bytes': 1}; expected num_bytes and sha256"),
    (b'{"../x": {}}', "is damaged: '../x' is not the path of a file of the package"),
    (b'{"\\ud800": {}}', r"is damaged: '\ud800' is not the path of a file of the package"),
    (b'{"a": {"num_bytes": true, "sha256": ""}}', "is damaged: num_bytes of a is True; expected a number of bytes"),
    (b'{"a": {"num_bytes": -1, "sha256": ""}}', "is damaged: num_bytes of a is -1; expected a number of bytes"),
    (b'{"a": {"num_bytes": 1e9, "sha256": ""}}', "is damaged: num_bytes of a is 1000000000.0; expected a number"),
    (b'{"a": {"num_bytes": ' + b"9" * 5000 + b', "sha256": ""}}', "is damaged: Exceeds the limit"),
    (b'{"a": {"num_bytes": 1, "sha256": "x"}}', "is damaged: sha256 of a is 'x'; expected 64 hexadecimal digits"),
]


@pytest.mark.parametrize(("content", "message"), RECORDS)
def test_a_record_that_the_build_did_not_write_is_refused(folder, content, message):
    (folder / "_build.json").write_bytes(content)
    kind, text = ask(folder)["import"]
    assert kind == "CorruptLibraryError"
    assert text.replace("\\\\", "\\").replace("\\'", "'").startswith(f"{folder}/_build.json {message}"[:150])
    assert text.endswith("; reinstall the package")


def test_a_manifest_that_is_damaged_at_its_size_is_refused_by_all_that_reads_it(folder):
    path = folder / "manifest.json"
    expected = sha256(path)
    path.write_bytes(path.read_bytes().replace(b'"version"', b'"versiom"', 1))
    said = (
        "CorruptLibraryError",
        f"{path} is damaged: sha256 {sha256(path)}; expected {expected}; reinstall the package",
    )
    assert ask(folder, "check", "info", "plan", "explain") == dict.fromkeys(("check", "info", "plan", "explain"), said)


def test_damage_is_listed_file_by_file(folder):
    for name in ("manifest.json", "include/aot_gemm.h"):
        flip(folder / name, 800)
    _, text = ask(folder, "check")["check"]
    assert [line.split(" is damaged")[0] for line in text.split("\\n")] == [
        f"{folder}/include/aot_gemm.h",
        f"{folder}/manifest.json",
    ]


def header(path, offset, value):
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, offset, value)
    path.write_bytes(content)
    record_build(path.parent)


def test_a_library_of_another_machine_is_named_with_both(folder):
    here, other, number = ("x86_64", "aarch64", 183) if os.uname().machine == "x86_64" else ("aarch64", "x86_64", 62)
    header(folder / LIBRARY, 18, number)
    answers = ask(folder, *CALLS)
    assert (answers["check"][0], answers["info"][0]) == ("right", "right")
    text = f"{folder}/libaot_gemm.so.1 is for {other}; this machine is {here}; install the wheel for this machine"
    said = "CorruptLibraryError", text
    assert {name: answers[name] for name in ("plan", "explain", "products")} == dict.fromkeys(
        ("plan", "explain", "products"), said
    )


@pytest.mark.parametrize(("offset", "value"), [(0, 0x457E), (4, 0x0101), (5, 0x0102), (16, 2), (18, 3)])
def test_a_library_whose_header_is_not_one_is_not_loaded(folder, offset, value):
    path, expected = folder / LIBRARY, sha256(folder / LIBRARY)
    header(path, offset, value)
    kind, text = ask(folder, "plan")["plan"]
    text_of_build = f"{path} is no library for a machine that is known; reinstall the package"
    assert (kind, text) == ("CorruptLibraryError", text_of_build)
    entries = json.loads((folder / "_build.json").read_text())
    entries[path.name]["sha256"] = expected
    (folder / "_build.json").write_text(json.dumps(entries))
    kind, text = ask(folder, "plan")["plan"]
    damaged = f"{path} is damaged: sha256 {sha256(path)}; expected {expected}; reinstall the package"
    assert (kind, text) == ("CorruptLibraryError", damaged)


def test_a_library_that_does_not_load_is_hashed(folder):
    path = folder / LIBRARY
    expected = sha256(path)
    path.write_bytes(path.read_bytes()[:64].ljust(path.stat().st_size, b"\0"))
    kind, text = ask(folder, "products")["products"]
    damaged = f"{path} is damaged: sha256 {sha256(path)}; expected {expected}; reinstall the package"
    assert (kind, text) == ("CorruptLibraryError", damaged)
    record_build(folder)
    kind, text = ask(folder, "products")["products"]
    assert kind == "CorruptLibraryError"
    assert re.fullmatch(rf"{path} does not load \(.*\); the file is as it was built, so that it is not for .*", text)


def test_another_library_at_the_place_of_one_is_refused(folder):
    shutil.copy(_ctypes.__file__, folder / LIBRARY)
    kind, text = ask(folder)["import"]
    assert (kind, f"{folder}/libaot_gemm.so.1 has " in text) == ("CorruptLibraryError", True)
    record_build(folder)
    for name in ("plan", "products"):
        assert ask(folder, name)[name][0] == "CorruptLibraryError"


def test_a_manifest_of_another_build_is_refused_by_what_asks_the_library(folder, manifest):
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    num = len(values["kernels"])
    values["kernels"][1]["name"] += "x"
    path.write_text(json.dumps(values))
    record_build(folder)
    text = (
        f"{folder}/libaot_gemm.so.1 is 0.1.0 with {num} kernels; {path} is of 0.1.0 with {num}, or names others; "
        "reinstall the package"
    )
    assert ask(folder, "plan")["plan"] == ("CorruptLibraryError", text)
    values["kernels"][1]["name"] = values["kernels"][1]["name"][:-1]
    values["tables"][0]["table"]["sections"] = []
    path.write_text(json.dumps(values))
    record_build(folder)
    text = f"{folder}/libaot_gemm.so.1 answers from a place that {path} does not have; reinstall the package"
    assert ask(folder, "plan")["plan"] == ("CorruptLibraryError", text)


def test_info_needs_no_library(folder):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.platform = 'darwin'; import aot_gemm; "
        "assert aot_gemm.info().misses_file == '/x/misses.log'; print(aot_gemm.info().version); "
        "assert 'libaot_gemm' not in open('/proc/self/maps').read(); aot_gemm.plan(1, 1, 1)"
    )
    environment = {**os.environ, "AOT_GEMM_MISSES": "/x/misses.log"}
    command = [sys.executable, "-B", "-c", code, str(folder.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "0.1.0\n"
    assert done.stderr.splitlines()[-1] == (
        f"aot_gemm.errors.CorruptLibraryError: {folder}/libaot_gemm.so.1 is for {os.uname().machine}; this machine is "
        "darwin; install the wheel for this machine"
    )


VALUES = ["", "misses.log", "/x/%p/misses.toml", "%p%p%%p.toml", "x" * 4070, "x" * 5000, "%p" * 500, "\udcff.toml"]


def test_the_file_of_the_miss_log_is_said_as_the_library_has_it(folder):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import aot_gemm; from aot_gemm import _library; "
        "before = _library.misses_file(); _library.library(); after = _library.misses_file(); "
        "assert before == after, (before, after); print(before is None)"
    )
    off = []
    for value in VALUES:
        for directory in (str(folder), "/"):
            command = [sys.executable, "-B", "-c", code, str(folder.parent)]
            environment = {**os.environ, "AOT_GEMM_MISSES": value}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=directory)
            assert done.returncode == 0, (value, done.stderr)
            off.append(done.stdout == "True\n")
    assert off == [True, True, *[False] * 6, True, False, True, True, True, True, False, False]
