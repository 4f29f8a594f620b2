"""The commands that decide, and say what was decided: select, diff, explain."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import selection_tables
from aot.cli.interrupt import begin_again, forget_command
from aot.cli.options import (
    ANY_OPERATIONS_TYPE,
    CROSSED_OPERATIONS,
    EPILOGUES,
    OPERATIONS_AXIS,
    OUTPUT_FILE,
    RECORDS,
    REGRETS,
    SELECTIONS,
    SHAPES,
    TARGET,
    Axis,
    Command,
    FiniteFloat,
    calibration_option,
    is_given,
    kernels_option,
    option,
    options,
)
from aot.cli.output import JSON, show, tell
from aot.cli.request import Request, select
from aot.cli.run import run_of
from aot.cli.selection import PREDICTED
from aot.core.epilogue import Epilogue
from aot.core.progress import waiting
from aot.core.target import Target, load_target
from aot.core.whole_file import check_output
from aot.kinds.named_operations import HELP, NamedOperations
from aot.select import pipeline
from aot.select.portfolio.objective import NAMED_WEIGHT, SelectionLimits
from aot.select.renew import Renewed
from aot.select.score import gate
from aot.select.selection import Selection, write_selection

if TYPE_CHECKING:
    from collections.abc import Mapping

MEASURED = "where a record is selected from"
TIES, NO_INCUMBENT = "without --no-incumbent", "with --no-incumbent"
CHOSEN, TAKEN = "without --like", "with --like"

LIMITS = (
    option(
        "--max-kernels",
        only=[CHOSEN],
        type=click.IntRange(1),
        default=SelectionLimits.max_kernels,
        show_default=True,
        help="Kernels of layout kk.",
    ),
    option(
        "--max-layout-kernels",
        only=[CHOSEN],
        type=click.IntRange(4),
        default=SelectionLimits.max_layout_kernels,
        show_default=True,
        help="Of each other layout.",
    ),
    option(
        "--max-epilogue-kernels",
        only=[CHOSEN],
        type=click.IntRange(4),
        default=SelectionLimits.max_epilogue_kernels,
        show_default=True,
        help="Of each operation with an epilogue, among those of the operation without.",
    ),
    option(
        "--max-row-kernels",
        only=[CHOSEN],
        type=click.IntRange(1),
        default=SelectionLimits.max_row_kernels,
        show_default=True,
        help="Of each operation on rows, beside its fallback.",
    ),
    option(
        "--max-grid-kernels",
        only=[CHOSEN],
        type=click.IntRange(0),
        default=SelectionLimits.max_grid_kernels,
        show_default=True,
        help="More than those of its operation that a grid has, where it is for rows that begin at odd multiples of 16 "
        "bytes or chosen by --only-grids or --only-between-sectors.",
    ),
    option(
        "--max-regret",
        only=[CHOSEN],
        type=REGRETS,
        help="Mean and worst regret of layout kk, such as 2%,10%: as few kernels as reach it, up to --max-kernels.",
    ),
    option(
        "--named-weight",
        only=[CHOSEN],
        type=FiniteFloat(1.0),
        default=NAMED_WEIGHT,
        show_default=True,
        help="How often a problem of --shapes counts beside others measured.",
    ),
)


def _source(values: Mapping[str, Any]) -> str:
    is_predicted = values["predicted"] or not (
        values["records"] or pipeline.default_record(load_target(values["target"]), RECORDS)
    )
    return PREDICTED if is_predicted else MEASURED


def _ties(values: Mapping[str, Any]) -> str:
    return NO_INCUMBENT if values["no_incumbent"] else TIES


def _choice(values: Mapping[str, Any]) -> str:
    return TAKEN if values["like"] else CHOSEN


AXES = (
    Axis((MEASURED, PREDICTED), _source),
    Axis((CHOSEN, TAKEN), _choice),
    Axis((TIES, NO_INCUMBENT), _ties),
    OPERATIONS_AXIS,
)


def _only(values: Mapping[str, Any]) -> Renewed | None:
    """Return the only tables that are to be chosen anew; None for all."""
    flags = {
        "--only-unaligned": Renewed.UNALIGNED,
        "--only-grids": Renewed.GRIDS,
        "--only-between-sectors": Renewed.BETWEEN,
    }
    given = [flag for flag in flags if values[flag.removeprefix("--").replace("-", "_")]]
    if {"--only-grids", "--only-between-sectors"} <= {*given}:
        raise click.UsageError("--only-grids chooses the grids of --only-between-sectors too: give one of them")
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are two runs: give the second the first's file with --keep")
    if given and values["keep"] is None:
        raise click.UsageError(f"{given[0]} keeps all else of a selection: give it with --keep")
    only = flags[given[0]] if given else None
    if only in {Renewed.GRIDS, Renewed.BETWEEN} and not values["records"]:
        raise click.UsageError(f"{given[0]} chooses by measured times: give it a --record, without --predicted")
    return only


def request_of(context: click.Context) -> Request:
    """Return what the options of `aot select` ask for."""
    values = context.params
    named = values["operations"] or NamedOperations(())
    mean, worst = values["max_regret"] or (None, None)
    device = load_target(values["target"])
    is_measured = _source(values) == MEASURED
    return Request(
        device,
        values["shapes"],
        not is_given(context, "shapes"),
        (values["records"] or tuple(filter(None, [pipeline.default_record(device, RECORDS)]))) if is_measured else (),
        SelectionLimits(
            values["max_kernels"],
            values["max_layout_kernels"],
            values["max_epilogue_kernels"],
            mean,
            worst,
            max_row_kernels=values["max_row_kernels"],
            max_grid_kernels=values["max_grid_kernels"],
        ),
        incumbent=None if values["no_incumbent"] else values["incumbent"] or pipeline.committed_selection(device),
        like=values["like"],
        keep=values["keep"],
        kernels=values["kernels"],
        calibration=values["calibration"],
        heldout=values["heldout"],
        named_weight=values["named_weight"],
        epilogues=tuple(map(Epilogue, values["epilogues"])),
        operations=named.products,
        others=named.others,
        other_records=_other_records(values, device),
        other_incumbents=_other_incumbents(values, device),
        curve=values["curve"],
        batch_invariant=values["batch_invariant"],
        unaligned=values["unaligned"],
        only=_only(values),
    )


@click.command(name="select", cls=Command, axes=AXES)
@options(TARGET, SHAPES, kernels_option(only=[CHOSEN]), *LIMITS)
@option("--operations", type=ANY_OPERATIONS_TYPE, help=HELP)
@option(
    "--record",
    "records",
    only=[MEASURED],
    multiple=True,
    type=click.Path(path_type=Path),
    help="Record to select from; by default the committed one. Several are read as one.",
)
@option("--predicted", only=[PREDICTED], is_flag=True, help="Select by the cost model, as where there is no record.")
@calibration_option(only=[PREDICTED])
@option(
    "--heldout",
    only=[MEASURED],
    default="atlas_heldout",
    show_default=True,
    help="Shape set to keep out and to score on; '' for none.",
)
@option(
    "--epilogue",
    "epilogues",
    only=[MEASURED, CHOSEN, CROSSED_OPERATIONS],
    multiple=True,
    type=click.Choice(list(EPILOGUES)),
    help="Choose kernels with this epilogue too, by the times of the product alone. May be given again.",
)
@option(
    "--incumbent",
    only=[TIES, CHOSEN],
    type=click.Path(path_type=Path),
    help="Selection that ties go to; by default the committed.",
)
@option(
    "--like",
    only=[MEASURED],
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Choose nothing: take kernels and table of this selection of another target, which has the same cores and as "
    "many of them. Times and scores are the record's; limits, and what else decides a choice, are refused beside it.",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Selection of the same target whose other operations are kept as they are, kernels and tables; what is "
    "selected now takes the place of its own.",
)
@option(
    "--unaligned/--no-unaligned",
    only=[CHOSEN],
    default=True,
    show_default=True,
    help="Give 16-bit products tables for operands that are not aligned to 16 bytes; without, the general kernel "
    "computes these, many times slower, and the wheel is smaller; tables of --keep for them stay.",
)
@click.option(
    "--only-unaligned",
    is_flag=True,
    help="Choose anew only the tables of --keep for operands that are not aligned to 16 bytes, by a --record of such "
    "problems or --predicted; of --operations, or of all.",
)
@click.option(
    "--only-grids",
    is_flag=True,
    help="Choose anew only the grids of --keep for aligned single products, and for those of them whose rows begin at "
    "odd multiples of 16 bytes, each time with up to --max-grid-kernels more for each, by records that have enough "
    "times; of --operations, or of all.",
)
@click.option(
    "--only-between-sectors",
    is_flag=True,
    help="Choose anew only the grids of --keep for aligned single products whose rows begin at odd multiples of 16 "
    "bytes, as --only-grids does, which chooses the others too.",
)
@option("--no-incumbent", only=[CHOSEN], is_flag=True, help="Let ties go to no earlier selection.")
@option(
    "--batch-invariant",
    only=[CHOSEN],
    is_flag=True,
    help="Add tables by which a row's bits do not depend on m or on the other rows, and say what they cost.",
)
@option("--curve/--no-curve", only=[CHOSEN], default=True, show_default=True, help="Work out kernels against regret.")
@click.option("-o", "--output", type=OUTPUT_FILE, help="Where to write; default build/selections/.")
@JSON
@click.pass_context
def select_command(context: click.Context, /, **values: Any) -> None:
    """Choose the kernels to ship and build the dispatch table, from a record or from the cost model.

    Says how: exactly, or by greedy choice and exchange beside a proven bound; what each number of kernels would cost;
    the bucketing loss on the problems that were held out; and how the problems of --shapes are answered. By the cost
    model, a --shapes that is given has kernels of the layouts it asks for; the general kernel answers the others.

    An operation of --operations that was not measured gets some of the kernels of an equivalent one, where that was,
    and else what the cost model selects; its rows say that they are predicted. Operations on rows are selected by all
    records of the target, unless --record names one, and scored on measured sizes that are left out in turn.
    """
    begin_again()
    request = request_of(context)
    path = values["output"] or check_output(SELECTIONS / f"{request.target.name}.json")
    selection = select(replace(request, run=run_of(context, request.files)))
    write_selection(path, selection)
    forget_command()
    show(lambda: {"path": path, **selection_facts(selection)}, lambda: selection_tables.selection_summary(selection))
    if selection.table.sections:
        tell(f"wrote {path}; next: aot build --target {selection.target} --selection {path}")
        tell(gate.coverage_text(selection.coverage))
    else:
        tell(f"wrote {path}; --keep joins what it has with the products of a selection, of which every wheel has some")


def _other_records(values: Mapping[str, Any], device: Target) -> tuple[Path, ...]:
    """List the records that operations of other kinds than products are selected by."""
    if values["records"] or values["predicted"]:
        return () if values["predicted"] else values["records"]
    return tuple(pipeline.records_of(device, RECORDS))


def _other_incumbents(values: Mapping[str, Any], device: Target) -> tuple[Path, ...]:
    """List the selections that ties of those may go to."""
    if values["no_incumbent"] or values["incumbent"]:
        return () if values["no_incumbent"] else (values["incumbent"],)
    return tuple(reversed(pipeline.committed_selections(device)))


def selection_facts(selection: Selection) -> dict[str, object]:
    """Return what a selection is and how good it is; its dispatch table is in its file."""
    return {x.name: getattr(selection, x.name) for x in fields(selection) if x.name != "table"}


@click.command()
@click.argument("old", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("new", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--record", "records", multiple=True, type=click.Path(path_type=Path), help="Times to judge by; may repeat."
)
@click.option("--show", "num_shown", type=click.IntRange(0), default=20, show_default=True, help="Changes to list.")
@JSON
def diff(old: Path, new: Path, records: tuple[Path, ...], num_shown: int, as_json: bool) -> None:
    """Say what selection NEW dispatches otherwise than OLD, and what that costs.

    By default judged by the committed record of the target; a change's cost is learned where it was not measured.
    """
    del as_json
    with waiting("compare what two selections dispatch") as at:
        found = pipeline.compare_selections(old, new, records, RECORDS, at)
    show(lambda: vars(found), lambda: selection_tables.difference_table(found, num_shown))
