"""One self-contained HTML page about a tuning: no network, no script. Pure: facts in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from aot.kinds.registry import kind_of
from aot.report import charts as report_charts
from aot.report import maps as report_maps
from aot.report import on_rows
from aot.report import tables as report_tables
from aot.report.parts import Figure, Table, operation_name, share

if TYPE_CHECKING:
    from aot.core.target import Target
    from aot.report.facts import Facts, OperationFacts

PAGE = ("report", "pages", "report.html.j2")
"""The template, below the package."""


@dataclass(frozen=True)
class Tile:
    """A number to see first."""

    value: str
    text: str


@dataclass(frozen=True)
class Part:
    """A section: figures, then tables with a heading and a text each."""

    title: str
    text: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[tuple[str, str, Table], ...] = ()


@dataclass(frozen=True)
class OperationPage:
    """What the page tells of one operation."""

    tag: str
    name: str
    parts: tuple[Part, ...]


def _figures(*figures: Figure | None) -> tuple[Figure, ...]:
    return tuple(figure for figure in figures if figure is not None)


def _losers(facts: OperationFacts) -> Part:
    failed, runners = report_tables.failed(facts), report_tables.runners(facts)
    tables = []
    if runners:
        text = (
            "Measured, verified, and not shipped: what the mean regret in sample would lose if the kernel were added. "
            f"{len(facts.unchosen)} kernels would help somewhere; the first {len(runners.rows)} are here. "
            "By measured times; where the operation has none, those of an equivalent one are imputed."
        )
        tables.append(("Closest to being chosen", text, runners))
    if failed:
        text = "Kernels and problems that the record has no time for."
        tables.append(("Without a time: quarantined, failed, not tried", text, failed))
    text = "By arithmetic, before any compiler. What did not compile is not in a record; aot tune prints it."
    tables.append(("Rejected by legality", text, report_tables.rejected(facts)))
    said = "" if failed or facts.provenance != "measured" else "Whatever was tried has a time in the record."
    return Part("The losers and their reasons", said, (), tuple(tables))


def _regret(facts: OperationFacts) -> Part:
    if facts.provenance != "measured":
        return Part("Regret", "Not known: nothing was measured, and a model's regret by its own times says nothing.")
    figures = _figures(report_charts.regrets(facts), report_charts.roundings(facts))
    said = "" if facts.outside else "No problem was held out of this selection: the bucketing loss is not known."
    return Part("Regret", said, figures)


def _portfolio(facts: OperationFacts) -> Part:
    if facts.curve is None or facts.regret is None:
        said = "No curve was worked out for this selection: aot select does, without --no-curve, of many problems."
        return Part("How many kernels", said)
    is_predicted = facts.provenance != "measured"
    return Part("How many kernels", "", report_charts.portfolio(facts.curve, facts.regret, is_predicted=is_predicted))


def _slowest(facts: OperationFacts) -> Part:
    tables = [(f"Furthest from the roofline. {title}", "", table) for title, table in report_tables.slowest(facts)]
    largest = report_tables.largest(facts)
    tables += [("Largest regrets", "", largest)] if largest else []
    return Part("The slowest cells", "", (), tuple(tables))


def _operation(facts: OperationFacts, target: Target) -> OperationPage:
    parts = (
        Part("Roofline", "", _figures(report_charts.roofline(facts, target), report_maps.reached(facts))),
        Part("Kernel chosen", "", _figures(report_maps.chosen(facts), report_maps.grid_map(facts))),
        _regret(facts),
        _portfolio(facts),
        _losers(facts),
        _slowest(facts),
    )
    return OperationPage(facts.operation.tag, operation_name(facts), parts)


def _rows(facts: Facts) -> Part:
    found, slowest = on_rows.operations(facts.selection), on_rows.slowest(facts.selection, facts.target)
    tables = [("Kernels and regrets", "", found)] if found else []
    tables += [("Furthest from the roofline", "", slowest)] if slowest else []
    return Part("Operations on rows", "", (), tuple(tables))


def _tiles(facts: Facts) -> list[Tile]:
    selection = facts.selection
    first = facts.operations[0].operation if facts.operations else selection.operations[0]
    regret = next((x for x in selection.regrets if x.operation == first), None)
    kernels = Tile(str(len(selection.all_kernels)), f"kernels shipped, {len(selection.operations)} operations")
    if facts.is_predicted or regret is None:
        return [
            kernels,
            Tile("not known", "regret: nothing was measured"),
            Tile(f"{sum(len(x.cells) for x in facts.operations):,}", "rows of tier 1, predicted"),
        ]
    counts = f"{first.tag}: {regret.num_kernels} kernels, {regret.num_problems} problems"
    tiles = [
        kernels,
        Tile(share(regret.mean, 2), f"mean regret in sample, {counts}"),
        Tile(share(regret.mean_bound, 2), "least mean that so many kernels could have, proven"),
        Tile(share(regret.worst), f"worst regret in sample, {first.tag}"),
    ]
    heldout = [x for x in selection.heldout if x.operation == first]
    for held in heldout:
        what, loss = kind_of(first).held_out[held.tier], share(held.bucketing_loss_mean, 2)
        tiles.append(Tile(share(held.mean, 2), f"mean regret held out, {what}; rounding alone costs {loss}"))
    return tiles if heldout else [*tiles, Tile("not known", "regret held out: nothing was held out")]


def _lead(facts: Facts) -> str:
    if facts.is_predicted:
        return f"Nothing on this page was measured: every time is the cost model's, {facts.selection.record}."
    runs = facts.selection.conditions
    devices = ", ".join(dict.fromkeys(f"{x.device}, driver {x.driver}" for x in runs))
    return f"{devices}, {max((x.date for x in runs), default='')}; record {facts.selection.record}."


def page(facts: Facts) -> str:
    """Write the page; equal facts give equal text."""
    template = resources.files("aot").joinpath(*PAGE).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    products = [_operation(x, facts.target) for x in facts.operations]
    figures: Sequence[Figure] = _figures(report_charts.search_curves(facts.searches))
    return environment.from_string(template).render(
        title=f"Kernels for {facts.selection.target}",
        provenance=facts.selection.provenance,
        lead=_lead(facts),
        tiles=_tiles(facts),
        conditions=report_tables.conditions(facts),
        operations=report_tables.operations(facts),
        main=products[0] if products else None,
        others=products[1:],
        rows=_rows(facts),
        searches=Part("Search strategies", "", tuple(figures)),
        made="Written by aot report.",
    )
