"""The command `aot shapes`: shape sets, and what they are made of."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import DTYPES, OUTPUT_FILE, SHAPES, Axis, Command, is_given, option, options
from aot.cli.output import JSON, show, tell
from aot.core.constraints import MAX_EXTENT
from aot.core.element import ElementType
from aot.core.errors import ShapeFileError
from aot.core.miss_log import load_miss_log
from aot.core.progress import waiting
from aot.core.scratch import scratch_folder
from aot.core.shape_set import ShapeSet, load_shape_set, parse_shape_set, shape_set_names
from aot.core.whole_file import write_whole
from aot.models import empty, families, walk
from aot.models.atlas import load_architectures
from aot.models.configuration import Configuration, read_configuration
from aot.models.linears import Linear, Part, linears, listed_whole
from aot.models.recorded import read_counts, read_uncounted, recorded_text, run_recorded
from aot.models.shape_text import Ladder, shape_text, unaligned
from aot.models.stored_format import StoredFormat, stored_format
from aot.select.coverage import untuned

if TYPE_CHECKING:
    from collections.abc import Mapping

WITH_M, WITHOUT_M = "with --m", "without --m"
MAX_NUMBERS = 200
"""Most m of a Linear: far more than a dispatch table has edges."""


class _Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers: `1,16,333`, or `1-256` for 1 and its doublings up to 256."""

    name = "NUMBERS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = set[int]()
        for part in value.split(","):
            low, dash, high = part.partition("-")
            if not (_is_number(low) and (_is_number(high) if dash else not high)):
                self.fail(
                    f"{part!a:.80} is neither a number from 1 to {MAX_EXTENT} nor a range of doublings, such as 1-256",
                    param,
                    ctx,
                )
            number = int(low)
            if dash and number > int(high):
                self.fail(f"{part}: the range goes down; expected the smaller number first", param, ctx)
            while number <= int(high or low):
                found.add(number)
                number *= 2
        if len(found) > MAX_NUMBERS:
            self.fail(f"{len(found)} numbers; expected at most {MAX_NUMBERS}", param, ctx)
        return tuple(sorted(found))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= MAX_EXTENT


NUMBERS = _Numbers()


@click.group(invoke_without_command=True)
@SHAPES
@click.option("--problems", is_flag=True, help="List every problem rather than the models.")
@JSON
@click.pass_context
def shapes(context: click.Context, shapes: str, problems: bool, as_json: bool) -> None:
    """List a shape set: models, weights and the ladder of m."""
    del as_json
    if context.invoked_subcommand is not None:
        given = next((x for x in context.command.params if is_given(context, x.name or "")), None)
        if given is not None:
            raise click.UsageError(f"{given.opts[-1]} means nothing with {context.invoked_subcommand}; leave it out")
        return
    shape_set = load_shape_set(shapes)
    show(
        lambda: shape_facts(shape_set, with_problems=problems),
        lambda: tables.problems_table(shape_set) if problems else tables.shapes_table(shape_set),
    )
    for reason, count in untuned(shape_set.operations, shape_set).items():
        tell(f"{count} of them by the slow general kernel, whatever is tuned: {reason}")
    click.echo(f"shipped shape sets: {', '.join(shape_set_names())}", err=True)


def shape_facts(shape_set: ShapeSet, *, with_problems: bool) -> dict[str, object]:
    """Return what a shape set holds: its models, how many problems of each operation, and on request every problem."""
    found = {operation: shape_set.problems(operation) for operation in shape_set.operations}
    facts: dict[str, object] = {
        "models": shape_set.models,
        "num_problems": {operation.tag: len(problems) for operation, problems in found.items()},
    }
    if with_problems:
        facts["problems"] = [
            {
                "operation": x.operation.tag,
                "m": x.m,
                "n": x.n,
                "k": x.k,
                "flops": x.flops,
                "num_bytes": x.num_bytes,
                "launches": shape_set.launches.get(x),
            }
            for problems in found.values()
            for x in problems
        ]
    return facts


@shapes.command("from-misses")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=OUTPUT_FILE, help="Shape set to write, for --shapes.")
@JSON
def from_misses(log: Path, output: Path, as_json: bool) -> None:
    """Make a shape set of LOG, a miss log that a wheel wrote for AOT_GEMM_MISSES."""
    del as_json
    text = load_miss_log(log)
    made = parse_shape_set(text, str(output))
    write_whole(output, text)
    show(lambda: _made_facts(output, made), lambda: f"{output}: {tables.problem_counts(made)}")


def _made_facts(output: Path, made: ShapeSet) -> dict[str, object]:
    """Return what there is to know of a shape set that was written."""
    return {"shapes": output, **shape_facts(made, with_problems=False), "num_launches": sum(made.launches.values())}


def _mode(values: Mapping[str, Any]) -> str:
    return WITH_M if values["m"] else WITHOUT_M


def _ladder(m: tuple[int, ...], batch: tuple[int, ...], sequence: tuple[int, ...]) -> Ladder:
    """Return the m that were asked for, and the atlas's of a language model where none were."""
    rows = load_architectures().rows["language"]
    batches = rows.logits or rows.m
    sequences = tuple(x for x in rows.m if x not in batches)
    return Ladder(batch or batches, sequence or sequences, rows.expert or rows.m, m)


def _element(config: Configuration, dtype: str | None) -> ElementType:
    """Return the type that was asked for, or the configuration's; say so where it is neither."""
    if dtype is not None:
        return ElementType(dtype)
    if config.element is None:
        stated = config.stated_dtype
        why = f"the configuration's {stated!a:.80} is no type of these kernels" if stated else "it states no type"
        click.echo(f"{config.where}: {why}; the shape set is for bfloat16; --dtype says another", err=True)
    return config.element or ElementType.BFLOAT16


CONFIG_OPTIONS = options(
    option("--m", type=NUMBERS, help="Rows that every Linear meets, such as 1,16,512; a range 1-256 is its doublings."),
    option("--batch", only=[WITHOUT_M], type=NUMBERS, help="Sequences decoded, or images, at once; default 1-256."),
    option(
        "--sequence",
        only=[WITHOUT_M],
        type=NUMBERS,
        help="Tokens prefilled at once; default the atlas's, 333 to 16384.",
    ),
    option(
        "--tensor-parallel",
        type=click.IntRange(1, 4096),
        default=1,
        show_default=True,
        help="GPUs that share each layer.",
    ),
    option("--dtype", type=click.Choice(list(DTYPES)), help="Default: the configuration's, or else bfloat16."),
    option(
        "--fused", is_flag=True, help="Of what can be computed as one, such as query, key and value, only the whole."
    ),
    option("--unfused", is_flag=True, help="Only the parts of it; both are listed by default."),
)
"""What a model's shape set is to have beside its Linears."""
CONFIG_AXIS = Axis((WITH_M, WITHOUT_M), _mode)


@dataclass(frozen=True)
class ConfiguredShapes:
    """The shape set of a model's configuration."""

    text: str
    """TOML."""
    notes: tuple[str, ...]
    """What its user should know."""
    num_sizes: int
    library: str
    """What built the model: transformers, diffusers, or nothing."""

    def summary(self, made: ShapeSet, path: Path) -> str:
        """Say in a line what there is."""
        counts = tables.problem_counts(made)
        how = f"built empty with {self.library}" if self.library else "by the table of families"
        return f"{path}: {counts}; {self.num_sizes} sizes of weights, {how}"


@dataclass(frozen=True)
class ConfiguredModel:
    """The Linears of a model's configuration, and the rows that they meet."""

    read: Configuration
    linears: tuple[Linear, ...]
    ladder: Ladder
    element: ElementType
    stored: StoredFormat
    library: str
    """What built the model: transformers, diffusers, or nothing."""
    notes: tuple[str, ...]
    """What its user should know."""


def _parts_of(read: Configuration, library: str) -> tuple[list[Part], bool]:
    """List the blocks of a model, and say whether a library has built it: else the table of families has them.

    Raises:
        ShapeFileError: neither knows it.
    """
    if empty.is_known(read):
        return walk.parts_of(read), True
    if not families.is_known(read) and empty.is_installed(library):
        with suppress(ShapeFileError):
            return families.parts_of(read), False
        return walk.parts_of(read), True  # which says what the library does not know
    return families.parts_of(read), False


def configured_model(config: Path, values: Mapping[str, Any]) -> ConfiguredModel:
    """List the Linears of a config.json, or of a folder that holds one, by the values of `CONFIG_OPTIONS`.

    Raises:
        ShapeFileError: it is no configuration, or of no model that has Linears.
    """
    read = read_configuration(config)
    library = empty.library_of(read)
    with waiting(f"build the model empty with {library}"):
        parts, is_walked = _parts_of(read, library)
    both = values["fused"] == values["unfused"]
    found = linears(
        parts, ways=values["tensor_parallel"], fused=values["fused"] or both, unfused=values["unfused"] or both
    )
    ladder = _ladder(*(values[key] or () for key in ("m", "batch", "sequence")))
    notes = []
    if not is_walked and families.is_joined(read):
        notes.append(
            f"{read.where}: of {read.model_type!a:.80} its {', '.join(families.towers_of(read))} alone are listed, and "
            "not what joins these or is beside them; transformers lists all, where it is installed and knows the family"
        )
    for block in listed_whole(parts) if values["tensor_parallel"] > 1 else ():
        whole = f"{block.name} {block.n} x {block.k}"
        notes.append(f"listed whole, since it is in no block that several GPUs are known to share: {whole}")
    notes += [f"{x} is no multiple of 8: kernels for what is not aligned serve it" for x in unaligned(found)]
    element = _element(read, values["dtype"])
    built = library if is_walked else ""
    return ConfiguredModel(read, tuple(found), ladder, element, stored_format(read), built, tuple(notes))


def configured_shapes(config: Path, values: Mapping[str, Any]) -> ConfiguredShapes:
    """Make the shape set of a config.json, or of a folder that holds one, by the values of `CONFIG_OPTIONS`.

    Raises:
        ShapeFileError: it is no configuration, or of no model that has Linears to tune.
    """
    model = configured_model(config, values)
    read, element = model.read, model.element
    text = shape_text(read.name, read.where, model.linears, model.ladder, element)
    stored = (
        f"{read.where}: its weights are published quantised ({model.stored.label}); the shape set is for "
        f"{element.value}; for other kernels change `operations` in it, whose tags docs/operations.md lists"
    )
    notes = (*((stored,) if model.stored.label else ()), *model.notes)
    return ConfiguredShapes(text, notes, len(model.linears), model.library)


@shapes.command("from-config", cls=Command, axes=(CONFIG_AXIS,))
@click.argument("config", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=OUTPUT_FILE, help="Shape set to write, for --shapes.")
@CONFIG_OPTIONS
@JSON
def from_config(config: Path, output: Path, **values: Any) -> None:
    """Make a shape set of every Linear of a model: CONFIG is a Hugging Face config.json, or a folder that holds one.

    Where transformers is installed, it builds the model empty, of any architecture that it knows; else the families
    that aot knows itself are read. Nothing is downloaded, and no code of a model is run.
    """
    found = configured_shapes(config, values)
    made = parse_shape_set(found.text, str(output))
    write_whole(output, found.text)
    for note in found.notes:
        click.echo(note, err=True)
    show(
        lambda: {**_made_facts(output, made), "built_by": found.library or None, "notes": found.notes},
        lambda: found.summary(made, output),
    )


@shapes.command("record", context_settings={"ignore_unknown_options": True})
@click.option("-o", "--output", required=True, type=OUTPUT_FILE, help="Shape set to write, for --shapes.")
@JSON
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: Path, command: tuple[str, ...], as_json: bool) -> None:
    """Run COMMAND, a Python program, and make a shape set of the products that torch computes in it.

    Put -- in front of the command: aot shapes record -o shapes.toml -- python serve.py. Every thread and process of it
    is watched, and how often each product is computed weighs in aot select. What a wheel computes is counted where its
    module for torch is called, with gates, groups and epilogues. Ctrl-C ends the program, and keeps what was seen. The
    program runs slower, and torch.compile leaves its code as it is; a CUDA graph counts once, when it is captured.
    """
    del as_json
    with scratch_folder("aot-record-") as scratch:
        code = run_recorded(command, scratch)
        counts, uncounted = read_counts(scratch), read_uncounted(scratch)
    text, notes = recorded_text(counts, shlex.join(command))
    write_whole(output, text)
    notes += [f"not counted, since they could not be read: {count} times {name}" for name, count in uncounted.items()]
    for note in notes:
        click.echo(note, err=True)
    if code:
        click.echo(f"{command[0]} ended with exit code {code}; what it computed until then is kept", err=True)
    made = parse_shape_set(text, str(output))
    total = sum(made.launches.values())
    show(
        lambda: {**_made_facts(output, made), "exit_code": code, "notes": notes},
        lambda: f"{output}: {tables.problem_counts(made)}, computed {total} times",
    )
