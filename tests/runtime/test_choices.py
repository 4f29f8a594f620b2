"""The hash of all that decides which kernel a problem gets: the same at every start, another where anything differs."""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aot.package.build import read_templates
from aot.package.choices import CHOICES_FILE
from aot.package.render import render
from tests import native
from tests.golden.manifest import golden_manifest
from tests.runtime.host import CAPABILITY
from tests.runtime.test_devices import H100, H200, SLICE, fresh, package, several

__all__ = ["package"]

NO_GPU = 100
SOURCES = Path(__file__).parents[2] / "templates" / "src"

SHA256 = r"""
#include "sha256.h"
extern "C" void hash(const char* bytes, unsigned long num_bytes, char* text) {
  aot::write_sha256(bytes, num_bytes, *reinterpret_cast<char(*)[aot::kSha256Text]>(text));
}
"""


def identity(files):
    return re.search(r'kLibrarySha256\[\] = "([0-9a-f]{64})"', files[CHOICES_FILE].decode())[1]


def expected(library_sha256, table, num_sms, weight_prefetch=1):
    text = f"{library_sha256}\ntable {table}\nsms {num_sms}\nweight_prefetch {weight_prefetch}\n"
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def own_sha256():
    return identity(render(several(), read_templates()))


@pytest.fixture
def library(package, tmp_path):
    return fresh(Path(package._library.LIBRARY), tmp_path)


def test_the_hash_is_of_library_table_and_sms(library, own_sha256):
    for device, facts in enumerate((H200, H100, SLICE, ("NVIDIA H200", 120, 4917))):
        library.set_device(device, *facts)
    found = [library.choices(device) for device in range(4)]
    tables = (("h200", 132), ("h100", 132), ("h200_16sm", 16), ("h200", 120))
    assert found == [(0, expected(own_sha256, *x)) for x in tables]
    assert [library.choices(device) for device in range(4)] == found


def test_every_start_has_the_same(package, own_sha256):
    """Of a process whose environment turns early reads off, it is another."""
    code = (
        "import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); text = ctypes.c_char_p(); "
        "assert c.aot_gemm_choices(-1, ctypes.byref(text)) == 0; print(text.value.decode())"
    )

    def start(**environment):
        command = [sys.executable, "-c", code, package._library.LIBRARY]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert start() == start(HOME="/", LANG="C") == expected(own_sha256, "h200", 132)
    assert start(AOT_GEMM_WEIGHT_PREFETCH="0") == expected(own_sha256, "h200", 132, 0)


def test_python_says_the_same(package, own_sha256):
    """In a process of its own, whose device no other test has set."""
    name = package.__name__
    code = f"import {name} as p; i = p.info(); print(i.choices_sha256, p._library.libraries()[0].choices()); print(i)"
    folder = str(Path(package.__file__).parents[1])
    command, environment = [sys.executable, "-c", code], {"PYTHONPATH": folder}
    first, *rest = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    found = expected(own_sha256, "h200", 132)
    assert first.split() == [found, found]
    assert any(f"choices here: sha256 {found}" in line for line in rest)


def test_without_a_device_there_is_none(library):
    library.c.recorder_fail(CAPABILITY, NO_GPU)
    assert library.choices(0) == (5, "")
    assert library.c.aot_gemm_choices(0, None) == 1


def test_a_library_has_another_where_a_table_a_kernel_or_the_code_differs():
    templates, golden = read_templates(), golden_manifest()
    (table,) = golden.tables
    same = identity(render(golden, templates))
    elsewhere = (replace(table, record="another", heldout=(), bigger_tiles={}),)
    assert identity(render(replace(golden, tables=elsewhere), templates)) == same
    section, *rest = table.table.sections
    other = replace(table.table, sections=(replace(section, ladders=()), *rest))
    changed = {
        "table": (replace(golden, tables=(replace(table, table=other),)), templates),
        "device": (replace(golden, tables=(replace(table, device_names=("NVIDIA H300",)),)), templates),
        "default": (replace(golden, batch_invariant=True), templates),
        "C++": (golden, templates | {"src/dispatch.cc": templates["src/dispatch.cc"] + b"\n"}),
        "Python": (golden, templates | {"python/aot_gemm/_routes.py": b"\n"}),
    }
    found = {name: identity(render(*x)) for name, x in changed.items()}
    assert len({same, *found.values()}) == 1 + len(found)


@pytest.fixture(scope="module")
def hashed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sha256")
    (folder / "hash.cc").write_text(SHA256)
    sources = [SOURCES / "sha256.cc", folder / "hash.cc"]
    return ctypes.CDLL(native.link(sources, folder / "hash.so", native.GCC, ["-O1", "-fPIC"], ["-shared"], [SOURCES]))


@pytest.mark.parametrize("num_bytes", [0, 1, 3, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129, 1000])
def test_the_hash_is_sha256(hashed, num_bytes):
    content = bytes(range(256)) * 4
    text = ctypes.create_string_buffer(65)
    hashed.hash(content, num_bytes, text)
    assert text.value.decode() == hashlib.sha256(content[:num_bytes]).hexdigest()
