"""What a launch asks of the operating system and of the heap: nothing, once its kernel is loaded."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.objects import small_manifest
from tests.runtime.host import compile_library

SOURCE = Path(__file__).with_name("hot_path.cc")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Build it over real kernel objects and the recorder, which records nothing while it is paused."""
    directory = tmp_path_factory.mktemp("hot_path")
    manifest, objects = small_manifest("h200")
    library = compile_library(manifest, directory, list(objects.values()))
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic", f"-I{directory}/include"]
    links = [library, f"-Wl,-rpath,{library.parent}", "-pthread"]
    subprocess.run(["g++", *flags, SOURCE, *links, "-o", directory / "hot_path"], check=True)
    return directory / "hot_path"


def run(program, what):
    """Run it; gives the exit status, and the launches that failed, the uses of the heap and of locks."""
    done = subprocess.run([program, what], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split(), done.stderr


def test_a_launch_uses_no_heap_no_lock_and_no_system_call(program):
    assert run(program, "launch") == (0, ["0", "0", "0"], "")


@pytest.mark.parametrize(("what", "found"), [("allocate", ["0", "2", "0"]), ("lock", ["0", "0", "1"])])
def test_the_heap_and_locks_would_be_found(program, what, found):
    assert run(program, what) == (0, found, "")


def test_a_system_call_would_be_found(program):
    assert run(program, "call")[0] == -signal.SIGKILL
