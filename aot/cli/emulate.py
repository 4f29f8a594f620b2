"""The command `aot emulate`: execute compiled kernels in an interpreter of their PTX."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from aot.cli import emulate_tables
from aot.cli.emulate_record import RecordFile
from aot.cli.options import (
    ANY_OPERATIONS_TYPE,
    OUTPUT_FILE,
    TARGET,
    Axis,
    Command,
    jobs_option,
    kernels_option,
    option,
    options,
    shapes_option,
)
from aot.cli.output import JSON, is_json, show
from aot.cli.selection import COMMITTED as OF_COMMITTED
from aot.cli.selection import (
    MODES,
    NAMED,
    PREDICTED,
    UNSELECTED,
    selection_for,
    selection_with,
    shipped_mode,
)
from aot.compile.compiler import Processes
from aot.compile.legal_keys import legal_keys
from aot.compile.workplace import Workplace
from aot.core.candidate import Accepted, KernelKey
from aot.core.errors import CandidateError, CompileError, VerificationError
from aot.core.execution import COMMITTED, executions_path
from aot.core.scratch import scratch_folder
from aot.core.target import load_target
from aot.core.whole_file import check_output
from aot.emulate.build import emulated_target
from aot.emulate.execute import MAX_INSTRUCTIONS, ExecutionOptions, Executor
from aot.emulate.kernels import compile_emulated
from aot.emulate.run import execute_kernels, kept_results
from aot.emulate.schedule import Mode, Schedule
from aot.emulate.sight import Sight, Sighting, num_mutants, sight
from aot.emulate.trace import TracedWarp, trace_line
from aot.kinds.named_operations import DEFAULT_PRESET, HELP, all_named_operations
from aot.select.pipeline import committed_selections
from aot.select.selection import read_selection
from aot.space.enumeration import Patterns
from aot.space.legality import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aot.core.target import Target
    from aot.core.work import AnyKey
    from aot.emulate.kernels import EmulatedSet
    from aot.emulate.ptx import Instruction
    from aot.emulate.results import KernelResult
    from aot.emulate.running import Trace, Warp

LEGAL = "with --legal"
WITH_OPERATIONS = "with --operations and without --legal"
SOURCES = (LEGAL, WITH_OPERATIONS, *MODES)
ON_PROBLEM, ON_EDGES = "with --problem", "without --problem"
DEFAULT_MODES = (Mode.RANDOM, Mode.LAZY, Mode.BEHIND_ITSELF)


def _source(values: Mapping[str, Any]) -> str:
    """Say where the kernels come from."""
    if values["legal"]:
        return LEGAL
    if values["operations"]:
        return WITH_OPERATIONS
    if values["selection"]:
        return NAMED
    return shipped_mode(load_target(values["target"]), is_predicted=values["predicted"])


def _cases(values: Mapping[str, Any]) -> str:
    return ON_PROBLEM if values["problem"] else ON_EDGES


class _Extents(click.ParamType[tuple[int, ...]]):
    """Extents with commas between."""

    name = "M,N,K"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8}){1,2}", value):
            self.fail(f"{value!r} is no problem; write m,n,k such as 40,136,200, of rows rows,cols", param, ctx)
        return tuple(map(int, value.split(",")))


class _Record(click.ParamType[Path]):
    """A file of executions to write; COMMITTED stands for the target's own."""

    name = "FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return COMMITTED if value == COMMITTED else OUTPUT_FILE.convert(value, param, ctx)


class _Modes(click.ParamType[tuple[Mode, ...]]):
    """Modes with commas between, or all."""

    name = "MODE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Mode, ...]:
        if not isinstance(value, str):
            return tuple(value)
        if value == "all":
            return tuple(Mode)
        unknown = [x for x in value.split(",") if x not in list(Mode)]
        if unknown:
            self.fail(f"no mode {unknown[0]!r}; there are: all, {', '.join(Mode)}", param, ctx)
        return tuple(dict.fromkeys(map(Mode, value.split(","))))


def _keys(context: click.Context, device: Target, emulated: Target) -> list[AnyKey]:
    """List the kernels that are asked for.

    Raises:
        CandidateError: none is.
    """
    values, source = context.params, _source(context.params)
    named = values["operations"]
    keys: list[AnyKey] = []
    patterns = Patterns.parse(values["kernels"])
    if source == LEGAL:
        asked = named or all_named_operations(DEFAULT_PRESET)
        keys += legal_keys(asked.operations, emulated, values["sample"], patterns)
    elif source == WITH_OPERATIONS:
        keys += selection_with(context, device, named, is_predicted=values["predicted"]).all_kernels
    else:
        keys += selection_for(context, source, device, values["selection"]).all_kernels
    kept = [x for x in keys if patterns.keep(x.candidate.name)]
    legal = [x for x in kept if isinstance(check(x.candidate, x.operation, emulated), Accepted)]
    if len(legal) < len(kept):
        click.echo(f"{len(kept) - len(legal)} kernels are not legal with {emulated.num_sms} SMs: left out", err=True)
    if not legal:
        example = f"; there are {len(keys)}, such as {keys[0].candidate.name}" if keys else ""
        raise CandidateError(
            f"--kernels {values['kernels']!r} leaves no kernel{example}; give another pattern, such as 'sm100_*', or "
            "--legal for those that do not ship"
        )
    return legal


def _options(values: Mapping[str, Any], keys: Sequence[AnyKey]) -> ExecutionOptions:
    """Return how the kernels are executed.

    Raises:
        click.UsageError: the problem is not of the kernels' kind.
    """
    schedules = tuple(Schedule(mode, seed) for seed in range(values["seeds"]) for mode in values["modes"])
    problem = values["problem"]
    if problem is not None:
        kinds = {3 if isinstance(x, KernelKey) else 2 for x in keys}
        if kinds != {len(problem)}:
            raise click.UsageError(
                f"--problem has {len(problem)} extents; a product has m,n,k and an operation on rows rows,cols: the "
                f"kernels have {' or '.join(map(str, sorted(kinds)))}; narrow --kernels or --operations"
            )
    return ExecutionOptions(schedules, problem, values["max_instructions"], counts=problem is not None)


def _tracer(text: str) -> Trace:
    """Return what prints the instructions of a warp, or of all."""
    wanted = TracedWarp.parse(text)
    to_error = is_json()

    def trace(warp: Warp, instruction: Instruction) -> None:
        if wanted is None or wanted.is_of(warp):
            click.echo(trace_line(warp, instruction), err=to_error)

    return trace


def _execute(kernels: EmulatedSet, asked: ExecutionOptions, values: Mapping[str, Any]) -> Iterator[KernelResult]:
    """Execute kernels; give what is kept of an earlier run of the same first."""
    if values["trace"]:
        executor = Executor(kernels, asked, _tracer(values["trace"]))
        yield from (executor.execute(name) for name in kernels.names)
        return
    kept = {} if values["fresh"] else kept_results(kernels, asked)
    if kept:
        click.echo(f"{len(kept)} kernels were executed before, by the same sources: kept; --fresh repeats", err=True)
    yield from kept.values()
    left = [name for name in kernels.names if name not in kept]
    yield from execute_kernels(left, kernels, asked, values["jobs"] or os.cpu_count() or 1)


def _record_file(values: Mapping[str, Any], device: Target) -> RecordFile | None:
    """Return the file that results are noted in, if any, which can be read and written.

    Raises:
        StoreError: it is damaged, or of another target.
        OutputError: it cannot be written.
    """
    path = values["record"]
    if path is None:
        return None
    path = executions_path(device.name) if path == COMMITTED else path
    return RecordFile(check_output(path), device.name).checked()


def _forget_others(record: RecordFile | None, device: Target, values: Mapping[str, Any]) -> None:
    """Forget kernels that ship no more, in the target's own file of executions.

    They are those that no committed selection of the target has. Only a command that executed a whole committed
    selection forgets them: what another one executed says nothing of what ships.
    """
    is_narrowed = values["kernels"] or _source(values) != OF_COMMITTED
    if record is None or values["record"] != COMMITTED or is_narrowed:
        return
    kept = {x.name for path in committed_selections(device) for x in read_selection(path).all_kernels}
    count = record.keep_only(kept)
    if count:
        click.echo(f"{count} kernels that ship no more were taken out of {record.path}", err=True)


def _left_to_execute(kernels: EmulatedSet, record: RecordFile | None, values: Mapping[str, Any]) -> EmulatedSet:
    """Leave out kernels that the record has, where that is asked for."""
    if record is None or not values["unrecorded"]:
        return kernels
    left = record.unrecorded(kernels)
    click.echo(f"{len(kernels.names) - len(left.names)} kernels are in the record with this PTX: left out", err=True)
    return left


def _refuse_contradictions(values: Mapping[str, Any]) -> None:
    """Refuse options that do not go together (click.UsageError), and a warp that is none (CandidateError)."""
    if values["trace"]:
        TracedWarp.parse(values["trace"])
    if values["record"] is not None and values["num_sms"]:
        raise click.UsageError("--record means nothing with --num-sms: other kernels ship; leave one of the two out")
    if values["unrecorded"] and values["record"] is None:
        raise click.UsageError("--unrecorded says nothing without --record; give both, or leave it out")
    if values["mutants"] and values["trace"]:
        raise click.UsageError("--mutants and --trace do not go together; leave one of the two out")


@click.command(cls=Command, axes=(Axis(SOURCES, _source), Axis((ON_PROBLEM, ON_EDGES), _cases)))
@options(TARGET, kernels_option())
@option("--operations", type=ANY_OPERATIONS_TYPE, only=[LEGAL, WITH_OPERATIONS], help=f"{HELP} What they ship.")
@option("--legal", is_flag=True, help=f"Every legal kernel of --operations (default {DEFAULT_PRESET}), shipped or not.")
@option("--sample", only=[LEGAL], metavar="N", type=click.IntRange(1), help="Up to N of each operation and family.")
@option("--selection", type=click.Path(path_type=Path), only=[NAMED], help="The kernels of this selection.")
@option(
    "--predicted",
    only=[PREDICTED, WITH_OPERATIONS],
    is_flag=True,
    help="What the cost model selects for --shapes.",
)
@shapes_option(only=[PREDICTED, UNSELECTED, WITH_OPERATIONS], text="What is selected for, where there is no selection.")
@option("--problem", type=_Extents(), help="Execute this problem, and count its instructions; else edge cases.")
@option("--modes", type=_Modes(), default=DEFAULT_MODES, show_default=",".join(DEFAULT_MODES), help="Or all.")
@option("--seeds", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Schedules of each mode.")
@option("--num-sms", type=click.IntRange(1, 1024), help="Compile for so many SMs: of few, CTAs take many tiles each.")
@option(
    "--max-instructions",
    only=[ON_EDGES],
    type=click.IntRange(1),
    default=MAX_INSTRUCTIONS,
    show_default=True,
    help="Leave out a case that would execute more warp instructions.",
)
@option(
    "--trace",
    only=[ON_PROBLEM],
    is_flag=False,
    flag_value="all",
    metavar="X,Y,Z:WARP",
    help="Print each instruction of a CTA's warp with the values of its registers; alone, of all warps.",
)
@option(
    "--mutants",
    only=[ON_PROBLEM],
    is_flag=True,
    help="Make faults in each kernel, one at a time, and say which of them executing it shows, in modes of their own.",
)
@option(
    "--record",
    only=[ON_EDGES],
    is_flag=False,
    flag_value=COMMITTED,
    type=_Record(),
    help="Note what was found in a file of executions; by default the one that the target's wheels are built with, "
    "which forgets kernels that ship no more where all of a committed selection are executed.",
)
@option("--unrecorded", is_flag=True, help="Only kernels whose PTX the file of --record does not have.")
@option("--fresh", is_flag=True, help="Execute again what was executed before.")
@options(jobs_option())
@JSON
@click.pass_context
def emulate(context: click.Context, /, **values: Any) -> None:
    """Execute kernels without a GPU: right or wrong, races, deadlocks, accesses outside of operands.

    Compiles kernels for the target, launches them through the library's own host code, and interprets their PTX:
    warps, CTAs, clusters, shared and tensor memory, copies by TMA and products. Results are held against float64
    references, on the edge cases that `aot verify --device` runs on a GPU, or on one --problem.
    Each case is executed under several schedules: seeded orders in which warps and asynchronous operations take their
    turns. --modes names the kinds, which complete operations as late or as early as they can, hold one kind back, or
    favour some warps. What no barrier or fence orders is reported, whether or not a result was wrong.
    By default the kernels are those that `aot build` would ship. Results are kept in build/emulate, so that an
    interrupted command carries on.
    """
    device = load_target(values["target"])
    emulated = emulated_target(device, values["num_sms"])
    _refuse_contradictions(values)
    record = _record_file(values, device)
    keys = _keys(context, device, emulated)
    if values["trace"] and len(keys) != 1:
        raise click.UsageError(f"--trace prints the instructions of one kernel, not of {len(keys)}; narrow --kernels")
    asked = _options(values, keys)
    results: list[KernelResult] = []
    with scratch_folder("aot-emulate-") as scratch:
        kernels = compile_emulated(keys, emulated, scratch, Workplace(compilers=Processes(values["jobs"])))
        kernels = _left_to_execute(kernels, record, values)
        if values["mutants"]:
            _show_mutants(kernels, asked, values["seeds"])
            return
        interval = 0.1 if sys.stderr.isatty() else 15.0  # a log gets a line now and then
        is_quiet = bool(values["trace"])
        bar = tqdm(total=len(kernels.names), desc="execute", unit="kernel", mininterval=interval, disable=is_quiet)
        try:
            with bar:
                for result in _execute(kernels, asked, values):
                    results.append(result)
                    if record is not None:
                        record.add(result)
                    bar.update()
            _forget_others(record, device, values)
        finally:  # of a command that is interrupted, what was done
            if results:
                num_left = len(kernels.names) - len(results)
                facts = emulate_tables.facts(emulated, asked, results, kernels.failures)
                show(lambda: {**facts, "num_left": num_left}, lambda: emulate_tables.text(results, asked, num_left))
    _judge(results, kernels)


def _show_mutants(kernels: EmulatedSet, asked: ExecutionOptions, num_seeds: int) -> None:
    """Execute the mutants of each kernel on the problem; show which were found, of an interrupted command so far."""
    problems = [asked.problem or ()]
    sights: list[Sight] = []
    for name in kernels.names:
        sightings: list[Sighting] = []
        bar = tqdm(total=num_mutants(kernels, name), desc=name, unit="mutant", mininterval=0.1)
        try:
            with bar:
                for sighting in sight(kernels, name, problems, num_seeds):
                    sightings.append(sighting)
                    bar.update()
        finally:
            sights.append(Sight(name, tuple(sightings)))
            if len(sights) == len(kernels.names) or len(sightings) < num_mutants(kernels, name):
                show(lambda: {"kernels": emulate_tables.sight_facts(sights)}, lambda: emulate_tables.sight_text(sights))


def _judge(results: Sequence[KernelResult], kernels: EmulatedSet) -> None:
    """End with an error where a kernel is wrong, could not be executed, or did not compile."""
    wrong = [x for x in results if not x.is_right]
    if wrong:
        first = wrong[0]
        reason = first.error or next((x.fault for x in first.cases if x.fault), "findings")
        raise VerificationError(
            f"{len(wrong)} of {len(results)} kernels are wrong or could not be executed; the first: {first.name}: "
            f"{reason:.400}; `aot emulate --kernels ... --problem ... --trace` shows what it does"
        )
    if kernels.failures:
        first_lost = kernels.failures[0]
        raise CompileError(
            f"{len(kernels.failures)} kernels did not compile; the first: {first_lost.name}: {first_lost.reason}"
        )
