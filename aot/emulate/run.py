"""Execute many kernels in several processes, and keep each result, so that a run that is interrupted carries on."""

from __future__ import annotations

import hashlib
import json
import signal
from contextlib import closing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.process_pool import Died, Pool
from aot.core.errors import ResourceError
from aot.core.execution import interpreter_sha256
from aot.emulate.build import HOST_CACHE
from aot.emulate.execute import SEED, ExecutionOptions, Executor
from aot.emulate.results import KernelResult, read_result, write_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aot.emulate.kernels import EmulatedSet

RESULTS = HOST_CACHE / "results"
"""Where results are kept, below the working directory."""

_executors: list[Executor] = []
"""The one of a worker process."""


@cache
def _sources_sha256() -> str:
    """Hash the sources that decide a result: the interpreter, and what verifies."""
    package = Path(__file__).parents[1]
    parts = [interpreter_sha256(package / name) for name in ("emulate", "measure", "kinds", "core")]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _place(name: str, kernels: EmulatedSet, options: ExecutionOptions) -> Path:
    """Return the file of a kernel's result: by all that decides it."""
    found = {x.kernel.name: x.kernel for x in kernels.products} | {x.kernel.name: x.kernel for x in kernels.rows}
    inputs = {
        "kernel": name,
        "object": found[name].object_sha256,
        "ptx": found[name].ptx_sha256,
        "target": asdict(kernels.target),
        "options": asdict(options),
        "seed": SEED,
        "sources": _sources_sha256(),
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return RESULTS / digest[:2] / f"{digest[2:]}.json"


def kept_results(kernels: EmulatedSet, options: ExecutionOptions) -> dict[str, KernelResult]:
    """Return the results of an earlier run of the same kernels, sources and options, by the kernels' names."""
    found = {name: read_result(_place(name, kernels, options)) for name in kernels.names}
    return {name: result for name, result in found.items() if result is not None}


def _start(kernels: EmulatedSet, options: ExecutionOptions) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends these processes
    _executors[:] = [Executor(kernels, options)]


def _execute(name: str) -> KernelResult:
    return _executors[0].execute(name)


def execute_kernels(
    names: Sequence[str], kernels: EmulatedSet, options: ExecutionOptions, num_processes: int
) -> Iterator[KernelResult]:
    """Execute kernels of a set; give each result as it is there, after keeping it.

    Args:
        names: the kernels.
        kernels: the set.
        options: how they are executed.
        num_processes: worker processes.

    Raises:
        ResourceError: a process was killed, or crashed.
        OutputError: a result cannot be kept.
    """
    if not names:
        return
    pool: Pool[str, KernelResult] = Pool(min(num_processes, len(names)), _start, (kernels, options), _execute)
    with closing(pool.run(names)) as results:
        for name, result in results:
            if isinstance(result, Died):
                raise ResourceError(
                    f"executing {name} stopped: its process ended with exit code {result.exit_code}; is memory short? "
                    "A smaller --jobs needs less; what is done is kept"
                )
            write_result(_place(name, kernels, options), result)
            yield result
