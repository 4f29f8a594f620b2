"""Compile candidates to objects, in parallel, into a store addressed by all that went in: resumable, no GPU needed.

The only caller of `cute.compile` and `export_to_c`. Workers are fresh processes: CuTe DSL and quack read their
architecture from the environment once, at import.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from aot.artifact import Artifact, CompileFailure, read_result
from aot.candidate import Accepted
from aot.constraints import one_line
from aot.errors import CompileError
from aot.families import family_of
from aot.legality import check
from aot.manifest import ManifestKernel
from aot.object_file import inspect
from aot.strict_json import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.candidate import KernelKey
    from aot.target import Target

TOOLCHAIN = ("nvidia-cutlass-dsl", "quack-kernels", "nvidia-cutlass-operators")
"""Distributions whose version decides what an object contains."""

OBJECT_NAME = "kernel.o"
RESULT_NAME = "result.json"

FAMILIES = Path(__file__).parent / "families"

_BESIDE = re.compile(rb"^ *from aot\.families\.(\w+) import ", re.MULTILINE)
"""How a family's module imports another of the folder."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""The DSL colours its messages, terminal or not."""


@cache
def toolchain_versions() -> dict[str, str]:
    """Give the installed versions of what compiles the kernels."""
    return {name: version(name) for name in TOOLCHAIN}


@cache
def family_sources(family: str, folder: Path = FAMILIES) -> str:
    """Hash a family's module and what it imports from beside it, so that a changed entry is compiled again."""
    found, todo = {}, {"__init__", family}
    while todo:
        name = todo.pop()
        found[name] = (folder / f"{name}.py").read_bytes()
        todo |= {match.decode() for match in _BESIDE.findall(found[name])} - set(found)
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(found[name])
    return digest.hexdigest()


def _read_result(directory: Path, key: KernelKey) -> Artifact | CompileFailure | None:
    """Read an entry of the store; it is damaged where this raises OSError or DecodeError, or returns None."""
    result, path = read_result(directory / RESULT_NAME), directory / OBJECT_NAME
    if result.kernel is None:
        return CompileFailure(key.name, result.failure or "", result.seconds)
    if result.kernel.key != key or hashlib.sha256(path.read_bytes()).hexdigest() != result.kernel.object_sha256:
        return None
    return Artifact(result.kernel, path, result.seconds)


@dataclass(frozen=True)
class ArtifactStore:
    """A directory of objects, each under the hash of its candidate, operation, target, toolchain and sources."""

    root: Path

    def directory(self, key: KernelKey, target: Target) -> Path:
        """Give the place of one kernel's object."""
        inputs = {
            "kernel": key.name,
            "candidate": key.candidate.as_json(),
            "target": asdict(target),
            "toolchain": toolchain_versions(),
            "sources": family_sources(key.candidate.family),
        }
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        return self.root / digest[:2] / digest[2:]

    def get(self, key: KernelKey, target: Target) -> Artifact | CompileFailure | None:
        """Give what an earlier run made of a kernel, or None; a damaged entry counts as none."""
        try:
            return _read_result(self.directory(key, target), key)
        except (OSError, DecodeError):
            return None


def _export(key: KernelKey, target: Target, directory: Path) -> Path:
    """Compile one kernel and write its object; imports CUTLASS."""
    from cutlass import cute

    family = family_of(key.candidate)
    entry = family.entry(key.candidate, key.operation, target)
    host = f"llvm -mtriple={target.host_triple} -mcpu={target.host_cpu}"
    options = f"--gpu-arch {target.arch} --host-target '{host}'"
    compiled = cute.compile(entry.function, *entry.arguments, options=options)
    compiled.export_to_c(file_path=str(directory), file_name="kernel", function_prefix=key.name)
    return directory / OBJECT_NAME


def _describe(key: KernelKey, target: Target, path: Path) -> ManifestKernel:
    family = family_of(key.candidate)
    resources = family.resources(key.candidate, key.operation, target)
    report = inspect(path, key.name, target, resources.num_threads)
    m_multiple, n_multiple = family.multiples(key.candidate)
    return ManifestKernel(
        name=key.name,
        operation=key.operation,
        candidate=key.candidate,
        object_sha256=report.sha256,
        object_bytes=report.num_bytes,
        entry_symbol=report.entry_symbol,
        init_symbol=report.init_symbol,
        load_symbol=report.load_symbol,
        num_strides=family.num_strides,
        m_multiple=m_multiple,
        n_multiple=n_multiple,
        workspace=family.workspace(key.candidate),
        smem_bytes=resources.smem_bytes,
        tmem_columns=resources.tmem_columns,
        num_threads=resources.num_threads,
        registers=report.registers,
        spill_bytes=report.spill_bytes,
    )


def compile_one(key: KernelKey, target: Target, root: Path) -> None:
    """Compile one kernel into the store at `root`; a failure is stored with its reason.

    Runs in a worker process whose environment `_start_worker` has set.
    """
    directory = ArtifactStore(root).directory(key, target)
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=directory.parent, prefix="."))
    result: dict[str, Any]
    start = time.process_time()
    try:
        result = {"kernel": asdict(_describe(key, target, _export(key, target, scratch)))}
    except (OSError, MemoryError, ImportError):  # the machine's doing, not the candidate's: another run may succeed
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is this candidate's recorded result
        reason = one_line(_COLOUR.sub("", str(error)), 600)
        result = {"failure": f"{type(error).__name__}: {reason}"}
    result["seconds"] = round(time.process_time() - start, 3)
    (scratch / RESULT_NAME).write_text(json.dumps(result, sort_keys=True), encoding="utf-8")
    shutil.rmtree(directory, ignore_errors=True)
    try:
        scratch.rename(directory)
    except OSError:  # another process compiled the same kernel meanwhile: its entry is as good
        shutil.rmtree(scratch)


def _start_worker(arch: str) -> None:
    # Ctrl-C reaches every process of the terminal; the parent ends these in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["CUTE_DSL_ARCH"] = arch
    os.environ["QUACK_ARCH"] = arch.removeprefix("sm_").rstrip("af")


def _refuse_illegal(keys: Sequence[KernelKey], target: Target) -> None:
    for key in keys:
        verdict = check(key.candidate, key.operation, target)
        if not isinstance(verdict, Accepted):
            raise CompileError(f"{key.name} is not legal on {target.name}: {verdict.message}")


def compile_kernels(
    keys: Sequence[KernelKey], target: Target, root: Path, *, jobs: int | None = None, progress: bool = True
) -> tuple[list[Artifact], list[CompileFailure]]:
    """Compile kernels that the store does not have yet.

    Args:
        keys: what to compile; each must be legal on the target.
        target: device and host.
        root: the store's directory; made if missing. What is done stays, whenever this is interrupted.
        jobs: worker processes; by default one a core.
        progress: whether to show a bar on standard error.

    Returns:
        The artifacts in the order of `keys`, without the failures, and the failures.

    Raises:
        CompileError: a key is not legal, or a worker process died.
        ImportError: a compiler's package is not installed, or cannot be imported.
    """
    _refuse_illegal(keys, target)
    store = ArtifactStore(root)
    todo = [key for key in keys if store.get(key, target) is None]
    if todo:
        _run_workers(todo, target, root, min(jobs or os.cpu_count() or 1, len(todo)), progress=progress)
    results = [store.get(key, target) for key in keys]
    lost = [key.name for key, result in zip(keys, results, strict=True) if result is None]
    if lost:
        raise CompileError(f"no result for {', '.join(lost)}: a worker process died (out of memory?); run again")
    artifacts = [result for result in results if isinstance(result, Artifact)]
    return artifacts, [result for result in results if isinstance(result, CompileFailure)]


def _run_workers(todo: Sequence[KernelKey], target: Target, root: Path, jobs: int, *, progress: bool) -> None:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(target.arch,))
    interval = 0.1 if sys.stderr.isatty() else 15.0  # a log gets a line now and then
    with (
        pool,
        tqdm(
            total=len(todo), desc=f"compile {target.name}", unit="kernel", mininterval=interval, disable=not progress
        ) as bar,
    ):
        futures: list[Future[None]] = [pool.submit(compile_one, key, target, root) for key in todo]
        try:
            for future in as_completed(futures):
                future.result()
                bar.update()
        except BrokenProcessPool as error:
            raise CompileError(
                "a compiler process died, out of memory or by a crash; what was compiled is kept; run again, with a "
                "smaller --jobs if memory is short"
            ) from error
        except (OSError, MemoryError) as error:
            pool.shutdown(wait=False, cancel_futures=True)
            raise CompileError(
                f"compiling stopped: {error}; free memory or disk and run again: it carries on"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
