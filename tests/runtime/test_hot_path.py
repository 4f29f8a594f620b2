"""What a launch asks of the operating system and of the heap: nothing, once its kernel is loaded, or after preload."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.objects import small_manifest
from tests.runtime.host import compile_library
from tests.runtime.stating import by_call

SOURCE = Path(__file__).with_name("hot_path.cc")


def build(library, directory):
    """Build it over a library and the recorder, which records nothing while it is paused."""
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic", f"-I{directory}/include"]
    links = [library, f"-Wl,-rpath,{library.parent}", "-pthread"]
    subprocess.run(["g++", *flags, SOURCE, *links, "-o", directory / "hot_path"], check=True)
    return directory / "hot_path"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Build it over real kernel objects."""
    directory = tmp_path_factory.mktemp("hot_path")
    manifest, objects = small_manifest("h200")
    return build(compile_library(manifest, directory, list(objects.values())), directory)


def run(program, what, *operations):
    """Run it; gives the exit status, and the launches that failed, the uses of the heap and of locks."""
    done = subprocess.run([program, what, *(operations or ["bf16"])], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split(), done.stderr


def test_a_launch_uses_no_heap_no_lock_and_no_system_call(program):
    assert run(program, "launch") == (0, ["0", "0", "0"], "")


def test_nor_does_the_first_launch_after_preload(program):
    """Not even one: kernels are loaded, the device is known, all sections of the table were looked at."""
    assert run(program, "preload") == (0, ["0", "0", "0"], "")


def test_nor_does_one_of_any_operation(every_manifest, tmp_path):
    program = build(compile_library(every_manifest, tmp_path), tmp_path)
    calls = [x.call for x in by_call()]
    assert run(program, "launch", *calls) == (0, ["0", "0", "0"], "")
    assert run(program, "preload", *calls) == (0, ["0", "0", "0"], "")
    assert run(program, "lock", *calls) == (0, ["0", "0", "1"], "")
    assert run(program, "launch", "e4m3_bf16", "no_such_operation")[0] == 2


@pytest.mark.parametrize(("what", "found"), [("allocate", ["0", "2", "0"]), ("lock", ["0", "0", "1"])])
def test_the_heap_and_locks_would_be_found(program, what, found):
    assert run(program, what) == (0, found, "")


def test_a_system_call_would_be_found(program):
    assert run(program, "call")[0] == -signal.SIGKILL
