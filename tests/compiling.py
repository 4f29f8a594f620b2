"""Compile kernels for tests into the store that `aot` uses: each once, by a process that is kept for the next ones.

CUTLASS takes seconds to import. `aot` starts compilers for a run and ends them with it; a test module asks for a few
kernels, and many modules do. CuTe DSL takes an architecture once, so that there is a compiler for each.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from aot.compile.compiler import SCRATCH, ArtifactStore, compile_one, start_compiler
from aot.core.candidate import Accepted
from aot.core.scratch import scratch_folder
from aot.space.legality import check
from tests import native

STORE = Path(__file__).parents[1] / "build" / "artifacts"
EVERY = "AOT_EVERY_CANDIDATE" in os.environ
"""Whether tests compile all kernels and try all cases that they know, as `make walk` does, or those that show each
property once."""


def some(cases, most=8):
    """Give all cases where `EVERY`, else so many of them: the first, the last, and what lies evenly between."""
    found = list(cases)
    if EVERY or len(found) <= most:
        return found
    return [found[i * (len(found) - 1) // (most - 1)] for i in range(most)]


class _Compiler:
    """A process that compiles for one architecture."""

    def __init__(self, arch):
        STORE.mkdir(parents=True, exist_ok=True)
        self._held = ExitStack()
        self._workplace = self._held.enter_context(scratch_folder(SCRATCH, STORE.resolve()))
        context = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, context, start_compiler, (arch, self._workplace))

    def end(self):
        self._process.shutdown()
        self._held.close()

    def run(self, key, target):
        return self._process.submit(compile_one, key, target, STORE.resolve(), self._workplace).result()


_compilers = {}
"""By architecture and the folders of Python's path that say what families each has found."""


@cache
def _has_distributions(folder):
    return any(Path(folder).glob("*.dist-info"))


def _compiler(arch):
    if not _compilers:
        atexit.register(end_compilers)
    # A folder that a test puts in front for a package that it has built changes no family: no new process, of seconds.
    key = (arch, *filter(_has_distributions, sys.path))
    if key not in _compilers:
        _compilers[key] = _Compiler(arch)
    return _compilers[key]


def end_compilers(place=None):
    """End the processes: all, or those that look for packages in this place."""
    for key in [x for x in _compilers if place is None or place in x]:
        _compilers.pop(key).end()


def compile_kernels(keys, target):
    """Return the artifacts of kernels of any kind, in the order of their keys."""
    store = ArtifactStore(STORE)
    for key in dict.fromkeys(keys):
        assert isinstance(check(key.candidate, key.operation, target), Accepted), key.name
        if store.get(key, target) is None:
            with native.locked(native.STORE / f"{store.directory(key, target).name}.lock"):
                if store.get(key, target) is None:
                    outcome = _compiler(target.arch).run(key, target)
                    assert (outcome.failure, outcome.machine, outcome.missing) == (None, "", ""), (key.name, outcome)
    return [store.get(key, target) for key in keys]
