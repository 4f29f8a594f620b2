"""What tests compile of C and C++, each source once: kept by content, for all workers of a run and for later runs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from aot.package.build import NO_CXX_LIBRARY, ZIG_CACHE
from aot.package.compile_once import texts
from aot.package.toolchain import TOOLCHAIN_CACHE

ROOT = Path(__file__).parents[1]
STORE = ROOT / "build" / "tests"
GCC = ("g++",)
SOURCES = {".c", ".cc"}
CXX_LIBRARY = Path(__file__).with_name("cxx_library.cc")
"""What is linked in place of zig's C++ library."""


def zig(target, language="c++"):
    """Return the words of the compiler that builds the wheels, for a target."""
    cpu = target.host_cpu.replace("-", "_")
    machine = ("-target", f"{target.machine}-linux-gnu.{target.glibc}", f"-mcpu={cpu}")
    machine = (*machine, "-D_LIBCPP_REMOVE_TRANSITIVE_INCLUDES")  # as the wheels are compiled
    return (sys.executable, "-m", "ziglang", language, *machine)


def environment():
    """Return an environment in which zig takes what it has built for the wheels."""
    return {"ZIG_GLOBAL_CACHE_DIR": str(ROOT / TOOLCHAIN_CACHE / ZIG_CACHE)} | os.environ


def run(command, **options):
    """Run a compiler or linker."""
    done = subprocess.run(
        list(map(str, command)), env=environment(), capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr[-4000:]


@contextmanager
def locked(path):
    """Hold a file's lock; other processes wait for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing leaves it locked while a child that was forked meanwhile lives


def once(suffix, parts, make):
    """Return what `make` makes at the path that it is called with, a file or a folder: for equal `parts` once."""
    path = STORE / f"{hashlib.sha256(chr(0).join(map(str, parts)).encode()).hexdigest()}{suffix}"
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=STORE) as scratch:
                made = Path(scratch) / f"made{suffix}"
                make(made)
                made.rename(path)
    return path


def digest(folder, paths):
    """Hash files, by their names below a folder and by what is in them."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(f"{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


@cache
def _version(compiler):
    words = [*compiler[:3], "version"] if "ziglang" in compiler else [*compiler, "--version"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def object_of(source, compiler, flags, includes=()):
    """Compile a source, unless an equal one was compiled before; return the object.

    Args:
        source: a C or C++ file.
        compiler: the words of the compiler.
        flags: its options; they name no file.
        includes: folders of headers. What the source includes of them is part of what is equal, but for comments.
    """
    folder = source.parent
    parts = [_version(compiler), *compiler, *flags, *texts(source, includes)]
    # An object does not say where its source was, so that it is the same from every folder.
    words = [*compiler, *flags, f"-ffile-prefix-map={folder}=.", *(f"-I{x}" for x in includes), "-c", source]
    return once(".o", parts, lambda path: run([*words, "-o", path]))


GROUP = re.compile(r"^ *set\((CORE|OF_PRODUCTS)\s(.*?)\)$", re.MULTILINE | re.DOTALL)
"""A group of the library's sources in its CMakeLists.txt."""

OF_ITS_OWN = "src/devices.cc"
"""The source that knows the hash of its library."""


def in_groups(sources, project):
    """Write the sources of each group of a rendered project as one file, as its CMakeLists.txt has them compiled.

    What differs with the manifest is compiled alone, so that the group's object serves every manifest.

    Args:
        sources: files of the project and others.
        project: the folder of the project.

    Returns:
        The files to compile: those of the groups, and the sources that are in none.
    """
    left = {x.relative_to(project).as_posix() if x.is_relative_to(project) else str(x): x for x in sources}
    found = []
    for name, members in GROUP.findall((project / "CMakeLists.txt").read_text()):
        texts = [left.pop(x).read_text() for x in members.split() if x in left and x != OF_ITS_OWN]
        if texts:
            found.append(project / f"{name.lower()}.cc")
            found[-1].write_text("".join(texts))
    assert found
    return [*found, *left.values()]


def link(files, out, compiler, flags, links, includes=()):
    """Make a program or a library of sources, each compiled once, and of objects; return its path.

    Args:
        files: sources, and whatever else is linked.
        out: the result.
        compiler: the words of the compiler.
        flags: its options for compiling, and for linking too.
        links: options for linking alone.
        includes: folders of headers.
    """
    if "ziglang" in compiler:
        files, links = [*files, CXX_LIBRARY], [*links, NO_CXX_LIBRARY]
    files = [x if x.suffix not in SOURCES else object_of(x, compiler, flags, includes) for x in map(Path, files)]
    run([*compiler, *flags, *files, *links, "-o", out])
    return Path(out)
