"""Draw command lines, run them in this process, and see that each ends as it should.

`python -m tests.fuzz.command_line --cases 100000 --seed 1`. Options are drawn from the commands' own declarations, so
that a new one is drawn by itself. What starts outside work is replaced at the one function each that starts it:
compiling, linking, packaging, measuring, looking at this machine, and ssh. Choosing kernels, which is pure and takes
seconds, gives a prepared selection.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from unittest import mock

import click
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from aot.cli import build as cli_build
from aot.cli import select as cli_select
from aot.cli import tune as cli_tune
from aot.cli.main import COMMANDS, main
from aot.compile.artifact import Artifact, CompileFailure
from aot.core import errors
from aot.core.candidate import KernelKey, Reason
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.element import ElementType
from aot.core.errors import AotError, DeviceError, FleetError
from aot.core.measurement import Conditions, Measurement, Record
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.shape_set import shape_set_names
from aot.core.target import load_target, target_names
from aot.emulate.kernels import EmulatedSet
from aot.kinds.gemm.tuned import TunedKernel
from aot.kinds.rows.candidate import RowKernelKey
from aot.measure.preflight import Machine
from aot.measure.store import open_store
from aot.release.source import Source
from aot.select import pipeline
from aot.select.coverage import Coverage
from aot.select.selection import SELECTION_VERSION, Selection, write_selection
from aot.select.selector import fallback_key
from aot.select.times.record import write_record
from aot.space import calibrate
from aot.space import enumeration as space
from aot.space.cost import DEFAULTS
from aot.space.enumeration import legal
from aot.tune.link import Link, LinkError
from tests.golden.manifest import kernel
from tests.seeds import MISS_LOG
from tests.unit.models.cases import CASES

OPERATION = Operation.of(ElementType.BFLOAT16)
PROBLEM = Problem(OPERATION, 16, 4096, 4096)
CONDITIONS = Conditions("NVIDIA H200", "sm_90a", 132, "580.1", 1980, 3201, "700 W", "2026-11-20", "graph-cold-l2-v1")
MACHINE = Machine(
    *("x86_64", "3.12.3", "2.39", True, "", "", None, [], 8, None, "NVIDIA H200", (9, 0), 132, False, "CUDA 13.0", "")
)
HOSTILE = (
    *("", " ", "-", "--", "-1", "0", "1", "2", "nan", "inf", "-inf", "1e999", "0.5", "100", "100.1", "2%,10%", "none"),
    *(
        "9" * 30,
        "9" * 5000,
        "1_0",
        "0x10",
        "\u0661",
        "true",
        "null",
        "None",
        "\n",
        "\t",
        "\x1b[31m",
        "\x07",
    ),
    *("\udcff", "\u202e", "é", "😀", "'", '"', "\\", "`id`", "$(id)", "; id", "&& id", "| id", "%s%n", "{{7*7}}", "{%"),
    *(
        "../../../evil",
        "..",
        ".",
        "/",
        "~",
        "~root",
        "/etc/passwd",
        "/proc/self/mem",
        "/proc/x",
        "/dev/null",
        "/dev/full",
    ),
    *("a" * 300, "a/" * 2000, "*", "*,-*", "-*", "a,,b", "[", "[!", "sm100_*", "-*256x256*", "x" * 64, "con", "a b"),
    *(
        "ssh://x",
        "ssh://-oProxyCommand=id/",
        "ssh://u:p@h",
        "ssh://h:99999",
        "ssh://[::1",
        "http://h",
        "ssh://h/../..",
        "h",
    ),
    *("class", "json", "aot-gemm", "aot_gemm", "A", "1.0", "1.0+x", "v1", "1!2", "256x128", "256x-8", "0x0", "10,20"),
    *(
        "thor",
        "h200",
        "xavier",
        "representative",
        "atlas_heldout",
        "transposed",
        "sm_110a",
        "sm_90a",
        "bf16",
        "nvfp4",
        "fp32",
    ),
)

FILES = (
    *("shapes.toml", "odd.toml", "thor.json", "h200.json", "h200.json.gz", "cut.json", "r.jsonl.gz", "cut.jsonl.gz"),
    *("r.sqlite", "cut.sqlite", "empty", "junk", "list.json", "null.json", "number.json", "deep.json", "deep.toml"),
    *(
        "misses.log",
        "c.toml",
        "x.whl",
        "config.json",
        "model",
        "folder",
        "bundle",
        "link",
        "loop",
        "new",
        "new/folder/file",
        "closed/file",
        "closed",
        "fifo.json",
    ),
)

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
"""What a program can be given as an argument: C's strings end at a NUL, and of the surrogates only those that stand for
bytes that are no UTF-8 can be there, of which HOSTILE has one."""

NUMBERS = st.one_of(st.integers(), st.integers(-3, 40), st.sampled_from([2**31 - 1, 2**31, 2**63, -(2**63), 10**40]))


@cache
def _candidates(target):
    return legal(OPERATION, load_target(target), space.Patterns.parse("*_64x*_c1x1_*"))[:3]


def selection_of(target, provenance):
    found = _candidates(target)
    kernels = (fallback_key(OPERATION, load_target(target)), *(KernelKey(OPERATION, x) for x in found))
    row = Row(1, 1, 9.0, provenance, 2, 9.5)
    grid = Grid((4096,), (4096,), (Column((64,), (1,)),))
    table = DispatchTable((Section(OPERATION, (Ladder(4096, 4096, (16, 4096), (row, row)),), grid, 0),))
    conditions = (CONDITIONS,) if provenance == "measured" else ()
    coverage = Coverage(2, 0, "", {}, {})
    return Selection(
        SELECTION_VERSION, target, provenance, "r", conditions, (), (), (), kernels, table, coverage=coverage
    )


SHAPES = (
    'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [1, 4096]\n'
    '[[model]]\nname = "tiny"\nweights = [{ name = "w", n = 4096, k = 4096 }]\n'
)


def make_files(folder):
    """Write the files that command lines name: good ones, damaged ones, and what is no file."""
    (folder / "shapes.toml").write_text(SHAPES)
    (folder / "misses.log").write_bytes(MISS_LOG)
    (folder / "odd.toml").write_text(SHAPES.replace("n = 4096", "n = 7"))
    write_selection(folder / "thor.json", selection_of("thor", "predicted"))
    write_selection(folder / "h200.json", selection_of("h200", "measured"))
    write_selection(folder / "h200.json.gz", selection_of("h200", "measured"))
    problems = [Problem(OPERATION, m, 4096, 4096) for m in (1, 16, 4096)]
    rows = [
        Measurement(KernelKey(OPERATION, x), problem, 9.0 + i, 8.0 + i, 10.0 + i, 7, 1e-3)
        for problem in problems
        for i, x in enumerate(_candidates("h200"))
    ]
    write_record(folder / "r.jsonl.gz", Record("h200", (CONDITIONS,), tuple(rows)))
    with open_store(folder / "r.sqlite") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        for row in rows:
            store.add_measurement(run, store.kernel_id(TunedKernel(row.kernel, "ab")), row)
        for problem in problems:
            store.finish(run, problem)
    for name in ("json", "jsonl.gz", "sqlite"):
        content = (folder / {"json": "thor.json", "jsonl.gz": "r.jsonl.gz", "sqlite": "r.sqlite"}[name]).read_bytes()
        (folder / f"cut.{name}").write_bytes(content[: len(content) // 2])
    (folder / "empty").write_bytes(b"")
    (folder / "junk").write_bytes(bytes(range(256)) * 8)
    (folder / "list.json").write_text("[]")
    (folder / "null.json").write_text("null")
    (folder / "number.json").write_text("9" * 5000)
    (folder / "deep.json").write_text("[" * 3000)
    (folder / "deep.toml").write_text("a = " + "[" * 3000)
    (folder / "c.toml").write_text('version = 1\ntarget = "h200"\nsource = "x"\n[constants]\n')
    (folder / "x.whl").write_bytes(b"PK\x05\x06" + bytes(18))
    (folder / "config.json").write_text(json.dumps(CASES["qwen2"]["config"]))
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CASES["siglip"]["config"]))
    (folder / "folder").mkdir()
    (folder / "bundle").mkdir()
    (folder / "bundle" / "run.py").write_text("")
    (folder / "closed").mkdir(mode=0o500)
    (folder / "link").symlink_to("shapes.toml")
    (folder / "loop").symlink_to("loop")
    (folder / "records").mkdir()
    shutil.copyfile(folder / "r.jsonl.gz", folder / "records" / "h200.jsonl.gz")
    (folder / "selections").mkdir()
    shutil.copyfile(folder / "h200.json.gz", folder / "selections" / "h200.json.gz")


def compiled(keys, target, root, *, compilers=None, progress=True):
    """Stand in for compiling: some kernels fail, by their names."""
    del target, root, compilers, progress
    return [_outcome(key) for key in keys]


def _outcome(key):
    if isinstance(key, RowKernelKey) or sum(key.name.encode()) % 7 == 0:
        return CompileFailure(key.name, "DSLRuntimeError: no")
    return Artifact(replace(kernel(key.operation, key.candidate), object_sha256="ab"), Path("x.o"))


def linked(manifest, objects, out_dir, target, **_):
    """Stand in for linking and packaging."""
    del objects, target
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / f"{manifest.module}-{manifest.version}.whl"
    path.write_bytes(b"linked")
    return path


def chosen(_measured, target, _wishes, name):
    """Stand in for choosing kernels."""
    return replace(selection_of(target.name, "predicted"), record=name)


def no_link(*_, **__):
    """Stand in for ssh."""
    raise LinkError("no connection")


def no_scheduler(*_, **__):
    """Stand in for reaching a cluster, and for joining one."""
    raise FleetError("no scheduler answers")


def no_gpu(*_):
    """Stand in for running a wheel's kernels."""
    raise DeviceError("no usable NVIDIA driver")
    yield


@contextlib.contextmanager
def replaced(folder):
    """Replace what starts outside work, what takes seconds, and the project's own data by small ones."""
    records = folder / "records"
    patches = [
        mock.patch("aot.compile.workplace.compile_kernels", compiled),
        mock.patch("aot.tune.tuning.build_library", linked),
        mock.patch("aot.package.wheel.build_wheel", linked),
        mock.patch("aot.tune.tuning.run_bundle", lambda options, **_: len(options.strategy) % 2 * 8),
        mock.patch("aot.tune.tuning.read_machine", return_value=MACHINE),
        mock.patch.object(Link, "python", no_link),
        mock.patch("aot.fleet.fleet.open_fleet", no_scheduler),
        mock.patch("aot.fleet.worker.work", no_scheduler),
        mock.patch("aot.fleet.worker.gpus_of_this_host", return_value=("0",)),
        mock.patch("aot.package.wheel_check.check_kernels", no_gpu),
        mock.patch.object(pipeline, "select_kernels", chosen),
        mock.patch.object(pipeline, "COMMITTED", folder / "selections"),
        mock.patch.object(calibrate, "calibrate", return_value=(DEFAULTS, [])),
        mock.patch.object(calibrate, "cross_validate", return_value=[]),
        mock.patch("aot.space.enumeration.judge", _judged),
        mock.patch("aot.cli.space.judge", _judged),
        *(mock.patch.object(x, "RECORDS", records) for x in (cli_build, cli_select, cli_tune)),
        *(mock.patch(f"aot.cli.{x}.RECORDS", records) for x in ("report", "selection", "wheel")),
        mock.patch("aot.cli.shapes.run_recorded", lambda command, folder: len(command)),
        mock.patch("aot.cli.emulate.legal_keys", lambda operations, target, _: [fallback_key(OPERATION, target)]),
        mock.patch("aot.cli.emulate.compile_emulated", lambda _, target, *__: EmulatedSet(target, (), (), (), folder)),
        mock.patch("aot.cli.emulate.Executor"),
        mock.patch("aot.models.empty.is_installed", return_value=False),
        mock.patch("aot.cli.release.read_source", return_value=Source("a" * 40, datetime(2026, 11, 20, tzinfo=UTC))),
        mock.patch("aot.cli.release.build_toolchain_wheel", return_value=None),
        mock.patch("aot.cli.release.assemble", return_value=None),
        mock.patch("aot.cli.release.build_again", side_effect=lambda release, *_: release),
        mock.patch("aot.cli.release.fill", return_value=None),
        mock.patch("aot.cli.completion.place", return_value=folder / "completion"),
    ]
    (record,) = [x for x in main.get_command(None, "calibrate").params if x.name == "record"]
    patches.append(mock.patch.object(record, "default", folder / "r.jsonl.gz"))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


_real_judge = space.judge


class _OneInMany:
    """Keeps one candidate in 97, whatever its name is."""

    def __init__(self):
        self._places = itertools.count()

    def keep(self, _name):
        return next(self._places) % 97 == 0


@cache
def _verdicts(operation, target):
    pairs = _real_judge(operation, target, _OneInMany())
    return [pair for pair in pairs if getattr(pair[1], "reason", None) is not Reason.PATTERN]


def _judged(operation, target, patterns, **_):
    """Judge one candidate in a hundred, as the patterns say."""
    for candidate, verdict in _verdicts(operation, target):
        if patterns.keep(candidate.name):
            yield candidate, verdict


LADDERS = ("1", "1-256", "2,4,8", "333,500-5000", "1-2147483647")
FITTING = {
    "operations": ("bf16_kk", "default", "bf16_kk*,-*glu", "fp8", "-*_kk*"),
    "kernels": ("", "*", "sm100_*", "-*256x256*", "sm90_*,-*_c1x1_*"),
    "config": ("config.json", "model"),
    **dict.fromkeys(("m", "batch", "sequence"), LADDERS),
}
"""Values of parameters that are texts, by the parameter's name."""


def values_of(parameter):
    """Draw a value for an option or argument: fitting ones more often than others."""
    kind = parameter.type
    fitting = st.sampled_from(FILES)
    if isinstance(kind, click.Choice):
        fitting = st.sampled_from(list(kind.choices))
    elif isinstance(kind, click.IntRange | type(click.INT)):
        fitting = st.integers(getattr(kind, "min", None) or 0, min(getattr(kind, "max", None) or 10**5, 10**5)).map(str)
    elif isinstance(kind, click.FloatRange):
        fitting = st.floats(kind.min or 0.0, kind.max or 1e6).map(str)
    elif parameter.name == "target":
        fitting = st.sampled_from(target_names())
    elif parameter.name in ("shapes", "heldout"):
        fitting = st.sampled_from([*shape_set_names(), "shapes.toml", "odd.toml"])
    elif parameter.name in FITTING:
        fitting = st.sampled_from(FITTING[parameter.name])
    other = st.one_of(st.sampled_from(HOSTILE), st.sampled_from(FILES), NUMBERS.map(str), WORDS)
    return st.integers(0, 3).flatmap(lambda x: other if x == 0 else fitting)


@st.composite
def command_lines(draw, name):
    """Draw the words after `aot`, of a command, or of none where the name is empty."""
    if not name:
        return draw(st.lists(st.one_of(st.sampled_from(HOSTILE), st.sampled_from(sorted(COMMANDS))), max_size=4))
    command = main.get_command(None, name)
    words = [name]
    if isinstance(command, click.Group) and draw(st.booleans()):
        words.append(draw(st.sampled_from(sorted(command.commands))))
        command = command.commands[words[-1]]
    options = [x for x in command.params if isinstance(x, click.Option)]
    if options:
        for option in draw(st.lists(st.sampled_from(options), max_size=5, unique=draw(st.integers(0, 5)) > 0)):
            flag = draw(st.sampled_from([*option.opts, *option.secondary_opts]))
            if option.is_flag:
                words.append(flag)
            elif flag.startswith("--") and draw(st.booleans()):
                words.append(f"{flag}={draw(values_of(option))}")
            else:
                words += [flag, draw(values_of(option))]
    for argument in [x for x in command.params if isinstance(x, click.Argument)]:
        for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2])) if argument.nargs != -1 else draw(st.integers(0, 3))):
            words.insert(draw(st.integers(1, len(words))), draw(values_of(argument)))
    return words


MAX_MEMORY_BYTES = 6 * 2**30
"""Of the fuzz's process: a command line that asks for more, as by reading a device without an end, is a fault."""

FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the copies are made: a file system in memory, where there is one."""

CODES = {0, 1, 2} | {x.exit_code for x in vars(errors).values() if isinstance(x, type) and issubclass(x, AotError)}
"""1 is AotError's own, with which `aot compile` says that some kernels failed."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_allowed: list[str] = []
_outside: list[str] = []


def _changed(event, arguments):
    if event == "open":
        path, _, flags = arguments
        return [path] if isinstance(flags, int) and flags & WRITING else []
    if event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree", "sqlite3.connect"):
        return [arguments[0]]
    return list(arguments[:2]) if event in ("os.rename", "os.link", "os.symlink") else []


def _is_inside(real):
    return any(real == folder or real.startswith(f"{folder}/") for folder in _allowed)


def _guard(event, arguments):
    """Refuse, as a read-only disk would, every change outside the folder; and every start of a process.

    The fuzz may run as root, and the words that it draws name the system's own files: nothing that they ask for may
    come to pass. What was tried is noted.
    """
    if not _allowed:
        return
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn") and arguments[0] not in ASKING:
        _outside.append(f"{event} {arguments[0]}")
        raise PermissionError(errno.EACCES, "the fuzz starts no process", str(arguments[0]))
    for path in _changed(event, arguments):
        if isinstance(path, str | bytes | os.PathLike):
            real = os.path.realpath(os.fsdecode(path).removeprefix("file:").partition("?")[0])
            if not _is_inside(real):
                _outside.append(f"{event} {real}")
                raise PermissionError(errno.EACCES, "the fuzz writes in its folder only", real)


ASKING = {"lscpu"}
"""What joblib runs, below scikit-learn, to count the cores."""


def _is_asked_for(attempt, words):
    """Say whether a refused attempt was to write what a word names, or to try whether that can be written."""
    path = Path(attempt.partition(" ")[2])
    for word in words:
        for text in (word, word.partition("=")[2]):
            named = Path(os.path.realpath(text))
            is_probe = path.name.startswith(".") and path.name.endswith(".partial") and path.parent in named.parents
            if is_probe or named in (path, path.parent) or path in named.parents:
                return True
    return False


def run(words, template):
    """Run a command line in a copy of the files; return its exit code and what is wrong with how it ended."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=FAST) as scratch:
        folder = Path(os.path.realpath(scratch)) / "work"
        shutil.copytree(template, folder, symlinks=True)
        (folder / "tmp").mkdir()
        before, temporary = Path.cwd(), tempfile.tempdir
        os.chdir(folder)
        tempfile.tempdir = str(folder / "tmp")
        try:
            with replaced(folder):
                _outside.clear()
                _allowed.append(str(folder))
                result = CliRunner().invoke(main, words)
            _allowed.clear()
            faults = [f"tried to {x}" for x in _outside if not _is_asked_for(x, words)]
        finally:
            _allowed.clear()
            os.chdir(before)
            tempfile.tempdir = temporary
        left = [x.name for x in (folder / "tmp").iterdir()]
        partial = [str(x.relative_to(folder)) for x in folder.rglob("*.partial")]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        faults.append(f"raised {result.exception!r}")
    if result.exit_code not in CODES:
        faults.append(f"exit code {result.exit_code}")
    if "Traceback" in result.output or "internal error" in result.output:
        faults.append("a traceback")
    if "memory ran out" in result.output:
        faults.append("too much memory")
    if result.exit_code not in (0, 1) and not result.stderr.strip():
        faults.append("no message")
    faults += [f"left {x}" for x in (*left, *partial)]
    return result.exit_code, f"{'; '.join(faults)}\n{result.output[-1500:]}" if faults else ""


@cache
def template():
    """Make the files once; they are copied for each case."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-template-"))
    make_files(folder)
    sys.addaudithook(_guard)
    return folder


def fuzz(num_cases, number, report=lambda _code, _words: None):
    """Run so many cases, of each command as many, and of none.

    Raises:
        AssertionError: one of them ended as it should not; the message has its words.
    """

    names = ["", *sorted(COMMANDS)]
    for i, name in enumerate(names):
        _fuzz_command(name, max(num_cases // len(names), 1), number + i, report)


def _fuzz_command(name, num_cases, number, report):
    @settings(
        max_examples=num_cases,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @seed(number)
    @given(command_lines(name))
    def case(words):
        code, fault = run(words, template())
        report(code, words)
        assert not fault, f"aot {words!r}: {fault}"

    case()


def tell(arguments=None):
    """Run from the command line, and count."""
    parser = argparse.ArgumentParser(description="Fuzz the command line.")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    values = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    counts, start = Counter(), time.monotonic()

    def report(code, words):
        name = words[0] if words and words[0] in COMMANDS else "(none)"
        counts[name, code] += 1
        if sum(counts.values()) % 1000 == 0:
            print(f"{sum(counts.values())} cases, {time.monotonic() - start:.0f} s", flush=True)

    try:
        fuzz(values.cases, values.seed, report)
    finally:
        for (name, code), count in sorted(counts.items()):
            print(f"{name:10} exit {code:3}: {count}")
        print(f"{sum(counts.values())} cases, seed {values.seed}, {time.monotonic() - start:.0f} s")
        shutil.rmtree(template(), ignore_errors=True)
    print("no fault")


if __name__ == "__main__":
    tell()
