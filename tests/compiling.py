"""Compile kernels for tests into the store that `aot` uses: each once, by a process that is kept for the next ones.

CUTLASS takes seconds to import. `aot` starts compilers for a run and ends them with it; a test module asks for a few
kernels, many modules do, and each process that runs tests needs no more than one compiler at a time.
"""

from __future__ import annotations

import atexit
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from aot.compile.compiler import SCRATCH, ArtifactStore, _start_worker, compile_one
from aot.compile.kinds import verdict_of
from aot.core.candidate import Accepted
from aot.core.scratch import scratch_folder
from tests import native

STORE = Path(__file__).parents[1] / "build" / "artifacts"


@dataclass
class _Compiler:
    """The process that compiles; CuTe DSL takes an architecture once, so another one needs another process."""

    arch: str = ""
    process: ProcessPoolExecutor | None = None
    workplace: Path = STORE
    held: ExitStack = field(default_factory=ExitStack)

    def end(self):
        if self.process is not None:
            self.process.shutdown()
        self.held.close()

    def run(self, key, target):
        if target.arch != self.arch:
            self.end()
            STORE.mkdir(parents=True, exist_ok=True)
            self.arch, self.workplace = target.arch, self.held.enter_context(scratch_folder(SCRATCH, STORE.resolve()))
            start = (target.arch, self.workplace)
            context = multiprocessing.get_context("spawn")
            self.process = ProcessPoolExecutor(1, context, _start_worker, start)
        return self.process.submit(compile_one, key, target, STORE.resolve(), self.workplace).result()


@cache
def _compiler():
    found = _Compiler()
    atexit.register(found.end)
    return found


def compile_kernels(keys, target):
    """Return the artifacts of kernels, of products or of row operations, in the order of their keys."""
    store = ArtifactStore(STORE)
    for key in dict.fromkeys(keys):
        assert isinstance(verdict_of(key, target), Accepted), key.name
        if store.get_any(key, target) is None:
            with native.locked(native.STORE / f"{store.directory(key, target).name}.lock"):
                if store.get_any(key, target) is None:
                    outcome = _compiler().run(key, target)
                    assert (outcome.failure, outcome.machine, outcome.missing) == (None, "", ""), (key.name, outcome)
    return [store.get_any(key, target) for key in keys]
