"""Compile candidates to objects, in parallel, into a store addressed by all that went in: resumable, no GPU needed.

The only caller of `cute.compile` and `export_to_c`. Workers are fresh processes: CuTe DSL and quack read their
architecture from the environment once, at import.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tqdm import tqdm

from aot.compile.artifact import PTX_NAME, Artifact, CompileFailure
from aot.compile.binary import launcher_sha256, write_binary
from aot.compile.exported import Exported, write_exported
from aot.compile.kinds import OBJECT_NAME, RESULT_NAME, code_of, described, read_artifact
from aot.compile.process_pool import Died, Pool
from aot.compile.quack_alone import import_quack_alone
from aot.compile.sources import code_sources, family_sources, sources_changed
from aot.core.candidate import Accepted, KernelKey
from aot.core.constraints import one_line
from aot.core.errors import REPAIR, CompileError, DependencyError, ResourceError, is_of_the_machine
from aot.core.garbage import collect_seldom
from aot.core.json_text import plain_json
from aot.core.scratch import scratch_folder
from aot.core.strict_json import DecodeError
from aot.families import Entry, any_family_of, compilers_of
from aot.families._entry_points import OWN, registrations
from aot.space.legality import check

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from aot.core.target import Target
    from aot.core.work import AnyKey

TOOLCHAIN = ("nvidia-cutlass-dsl", "quack-kernels", "nvidia-cutlass-operators")
"""Distributions whose version decides what an object contains."""

SCRATCH = ".compiling-"
"""How the folders are called that kernels are compiled in, beside the store's own."""

MIN_FREE_BYTES = 16 * 2**20
"""Below so much free disk, no failure is believed to be a kernel's own. An assumption: twenty times a large object."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""The DSL colours its messages, terminal or not."""


@cache
def toolchain_versions() -> dict[str, str]:
    """Return the installed versions of what compiles the kernels."""
    return {name: version(name) for name in TOOLCHAIN}


@cache
def versions_of(compilers: tuple[str, ...]) -> dict[str, str]:
    """Return the installed versions of a family's own compilers."""
    return {name: version(name) for name in compilers}


def _made_by(key: AnyKey) -> dict[str, str]:
    """Return the versions of what makes a kernel's object."""
    compilers = compilers_of(key.candidate)
    return versions_of(compilers) | {"launcher": launcher_sha256()} if compilers else toolchain_versions()


_NOT_COMPILED = ("sources", "device_names", "nominal_bandwidth_bytes_per_s", "clock_hz", "default_operations")
"""Entries of a target that no object depends on."""


@dataclass(frozen=True)
class ArtifactStore:
    """A directory of objects, each under the hash of its candidate, operation, target, toolchain and sources."""

    root: Path

    def directory(self, key: AnyKey, target: Target) -> Path:
        """Return the place of one kernel's object."""
        inputs = {
            "kernel": key.name,
            "candidate": key.candidate.as_json(),
            "target": {name: value for name, value in asdict(target).items() if name not in _NOT_COMPILED},
            "toolchain": _made_by(key),
            "sources": family_sources(key.candidate.family),
        }
        code = code_of(key.operation)
        inputs |= {"code": code_sources(code)} if code else {}
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        return self.root / digest[:2] / digest[2:]

    def get(self, key: AnyKey, target: Target) -> Artifact[Any] | CompileFailure | None:
        """Return what an earlier run made of a kernel, or None; a damaged entry counts as none."""
        try:
            return read_artifact(self.directory(key, target), key, target.num_sms)
        except (OSError, DecodeError):
            return None


def _export(key: AnyKey, target: Target, directory: Path) -> Path:
    """Compile one kernel, and write its object and the PTX that its device code was assembled from.

    Raises:
        CompileError: the compiler did not keep one file of PTX, or a kernel of another compiler is refused.
    """
    entry = any_family_of(key.candidate).entry(key.candidate, key.operation, target)
    if isinstance(entry, Entry):
        _export_entry(entry, key, target, directory)
    elif isinstance(key, KernelKey):
        if isinstance(entry, Exported):
            write_exported(entry, key, target, directory / OBJECT_NAME)
        else:
            write_binary(entry, key, target, directory / OBJECT_NAME)
        (directory / PTX_NAME).write_text(entry.ptx, encoding="utf-8")
    else:
        raise CompileError(f"{key.name} is a Binary, which operations on rows do not take yet; expected an Entry")
    return directory / OBJECT_NAME


def _export_entry(entry: Entry, key: AnyKey, target: Target, directory: Path) -> None:
    """Compile a kernel of CuTe DSL.

    Imports CUTLASS, which keeps PTX in a file that it names by all arguments of the entry. Keeping it changes no byte
    of the object.
    """
    from cutlass import cute

    host = f"llvm -mtriple={target.host_triple} -mcpu={target.host_cpu}"
    with tempfile.TemporaryDirectory(dir=directory) as kept:
        options = f"--gpu-arch {target.arch} --host-target '{host}' --keep-ptx --dump-dir {shlex.quote(kept)}"
        compiled = cute.compile(entry.function, *entry.arguments, options=options)
        compiled.export_to_c(file_path=str(directory), file_name="kernel", function_prefix=key.name)
        files = list(Path(kept).glob("*.ptx"))
        if len(files) != 1:
            raise CompileError(f"{key.name}: the compiler kept {len(files)} files of PTX, expected 1")
        files[0].rename(directory / PTX_NAME)


@dataclass(frozen=True)
class Compiled:
    """What became of compiling a kernel, in whichever process it was compiled."""

    failure: CompileFailure | None = None
    """The kernel's, stored or not; None where there is an artifact in the store now."""
    machine: str = ""
    """What the machine lacks, for which no kernel is to blame; empty where it lacks nothing."""
    missing: str = ""
    """The package that cannot be imported; likewise."""
    changed: bool = False
    """Whether the family's sources changed meanwhile, so that what was compiled is of neither state."""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """List an error and those that it was raised for."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        found = todo.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found
            todo += [found.__cause__, found.__context__, *getattr(found, "exceptions", ())]


def _is_own(error: BaseException) -> bool:
    """Say whether an error is one by which the compiler, or the second gate, refuses a kernel."""
    return isinstance(error, CompileError) or any(
        kind.__name__ == "DSLBaseError" and kind.__module__.startswith("cutlass.") for kind in type(error).__mro__
    )


def _judge(error: Exception, key: AnyKey, seconds: float, scratch: Path) -> tuple[Compiled, bool]:
    """Say what an error of the compiler means, and whether it is the kernel's own, so that it may be stored.

    An error is the kernel's own only where it is recognised as such. What is not recognised is this run's result, and
    is tried again by the next.
    """
    chain = list(_causes(error))
    reason = f"{type(error).__name__}: {one_line(_COLOUR.sub('', str(error)), 600)}"
    missing = next((x for x in chain if isinstance(x, ImportError)), None)
    if missing is not None:
        return Compiled(missing=str(missing)), False
    is_short = shutil.disk_usage(scratch).free < MIN_FREE_BYTES
    if is_short or any(isinstance(x, OSError | MemoryError) or is_of_the_machine(str(x)) for x in chain):
        told = next((str(x) for x in chain if isinstance(x, OSError | MemoryError)), "")
        return Compiled(machine=f"{key.name}: {reason}{f' ({told})' if told and told not in reason else ''}"), False
    return Compiled(CompileFailure(key.name, reason, seconds)), _is_own(error)


def _store(scratch: Path, directory: Path, result: dict[str, Any]) -> None:
    """Put a result, and what else is in a scratch folder, where the store keeps it."""
    (scratch / RESULT_NAME).write_text(json.dumps(result, sort_keys=True), encoding="utf-8")
    put_entry(scratch, directory)


def put_entry(scratch: Path, directory: Path) -> None:
    """Move an entry that is whole to its place; what stands there is replaced.

    Raises:
        OSError: it cannot be moved.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    try:
        scratch.rename(directory)
    except OSError:
        if not directory.is_dir():  # else another process compiled the same meanwhile: its entry is as good
            raise


def compile_one(key: AnyKey, target: Target, root: Path, workplace: Path) -> Compiled:
    """Compile one kernel into the store at `root`; a failure of its own is stored with its reason.

    Runs in a worker process whose environment `start_compiler` has set. `workplace` is a folder on the file system of
    the store, which somebody else removes.
    """
    start = time.process_time()
    directory = ArtifactStore(root).directory(key, target)
    try:
        scratch = Path(tempfile.mkdtemp(dir=workplace))
        try:
            result = {"kernel": plain_json(described(key, target, _export(key, target, scratch)))}
            outcome, is_stored = Compiled(), True
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises is judged
            outcome, is_stored = _judge(error, key, round(time.process_time() - start, 3), workplace)
            result = {"failure": outcome.failure.reason if outcome.failure else ""}
        if sources_changed(key.candidate.family, code_of(key.operation)):
            return Compiled(changed=True)
        if is_stored:
            _store(scratch, directory, {**result, "seconds": round(time.process_time() - start, 3)})
    except OSError as error:
        return Compiled(machine=f"{key.name}: {error}")
    return outcome


def start_compiler(arch: str, workplace: Path) -> None:
    """Make a fresh process one that compiles for an architecture."""
    collect_seldom()
    if all(x.distribution == OWN for x in registrations().values()):  # others' may be made of quack's own operations
        import_quack_alone()
    # The parent ends these processes; SIGINT is blocked in them from their first moment on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["CUTE_DSL_ARCH"] = arch
    os.environ["QUACK_ARCH"] = arch.removeprefix("sm_").rstrip("af")
    os.environ["TMPDIR"] = tempfile.tempdir = str(workplace)  # what a killed compiler leaves goes with the folder


class Compilers(Protocol):
    """Where kernels are compiled: in processes of this machine, or by the workers of a cluster."""

    def compile(
        self, keys: Sequence[AnyKey], target: Target, root: Path, workplace: Path
    ) -> Generator[tuple[AnyKey, Compiled | Died], None, None]:
        """Compile each key into the store at `root`; give it with what became of it, as it is known.

        `workplace` is a scratch folder on the file system of the store. Where the caller stops early, nothing goes on.
        """


@dataclass(frozen=True)
class Processes:
    """Fresh processes of this machine; with nothing said one a core."""

    num_processes: int | None = None

    def compile(
        self, keys: Sequence[AnyKey], target: Target, root: Path, workplace: Path
    ) -> Generator[tuple[AnyKey, Compiled | Died], None, None]:
        """Compile in as many processes as there are, and no more than there are kernels."""
        do = partial(compile_one, target=target, root=root, workplace=workplace)
        count = min(self.num_processes or os.cpu_count() or 1, len(keys))
        pool: Pool[AnyKey, Compiled] = Pool(count, start_compiler, (target.arch, workplace), do)
        return pool.run(keys)


THIS_MACHINE = Processes()


def _refuse_illegal(keys: Sequence[AnyKey], target: Target) -> None:
    for key in keys:
        verdict = check(key.candidate, key.operation, target)
        if not isinstance(verdict, Accepted):
            raise CompileError(f"{key.name} is not legal on {target.name}: {verdict.message}")


def compile_kernels(
    keys: Sequence[AnyKey], target: Target, root: Path, *, compilers: Compilers = THIS_MACHINE, progress: bool = True
) -> list[Artifact[Any] | CompileFailure]:
    """Compile kernels that the store does not have yet.

    Args:
        keys: what to compile, of any kind; each must be legal on the target.
        target: device and host.
        root: the store's directory; made if missing. What is done stays, whenever this is interrupted.
        compilers: where; by default processes of this machine, one a core.
        progress: whether to show a bar on standard error.

    Returns:
        What became of each key, in their order.

    Raises:
        CompileError: a key is not legal.
        DependencyError: a compiler's package is not installed, or cannot be imported.
        ResourceError: the machine is short of disk or memory, or a compiler was killed.
    """
    _refuse_illegal(keys, target)
    store = ArtifactStore(root)
    todo = [key for key in dict.fromkeys(keys) if store.get(key, target) is None]
    failed: dict[AnyKey, CompileFailure] = {}
    if todo:
        root.mkdir(parents=True, exist_ok=True)
        with scratch_folder(SCRATCH, root.resolve()) as workplace:
            results_of = compilers.compile(todo, target, root.resolve(), workplace)
            failed = _take(results_of, len(todo), target, progress=progress)
    results = [failed.get(key) or store.get(key, target) for key in keys]
    lost = [key.name for key, result in zip(keys, results, strict=True) if result is None]
    if lost:
        raise ResourceError(f"no result for {', '.join(lost)}: something else removes files from {root}; run again")
    return [result for result in results if result is not None]


def _of_the_dead(key: AnyKey, died: Died) -> Compiled:
    """Say what it means that a compiler died: its own crash is this run's result, being killed is the machine's."""
    number = -(died.exit_code or 0)
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
        return Compiled(CompileFailure(key.name, f"the compiler crashed with signal {number}", 0.0))
    how = f"was killed by signal {number}" if number > 0 else f"ended with exit code {died.exit_code}"
    return Compiled(machine=f"{key.name}: the compiler {how}; is memory short? A smaller --jobs needs less")


def _take(
    results_of: Generator[tuple[AnyKey, Compiled | Died], None, None], count: int, target: Target, *, progress: bool
) -> dict[AnyKey, CompileFailure]:
    """Wait for all results; return the failures of this run.

    Raises:
        DependencyError: a compiler's package is not installed, or cannot be imported.
        ResourceError: the machine is short of disk or memory, or a compiler was killed.
        CompileError: the sources of a kernel's family changed meanwhile.
    """
    interval = 0.1 if sys.stderr.isatty() else 15.0  # a log gets a line now and then
    failed = {}
    with (
        tqdm(
            total=count, desc=f"compile {target.name}", unit="kernel", mininterval=interval, disable=not progress
        ) as bar,
        closing(results_of) as results,
    ):
        for key, result in results:
            outcome = _of_the_dead(key, result) if isinstance(result, Died) else result
            if outcome.missing:
                raise DependencyError(f"cannot compile: {outcome.missing}; {REPAIR}")
            if outcome.machine:
                raise ResourceError(
                    f"compiling stopped: {outcome.machine}; free memory or disk and run again: what is done is kept"
                )
            if outcome.changed:
                text = f"the sources of {key.candidate.family} changed while {key.name} was compiled"
                raise CompileError(f"compiling stopped: {text}; run again: what was compiled before is kept")
            if outcome.failure:
                failed[key] = outcome.failure
            bar.update()
    return failed
