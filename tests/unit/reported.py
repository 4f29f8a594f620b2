"""A selection for Thor with its record and its facts: what the reports' tests tell of."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from xml.etree import ElementTree as ET

from aot.core.candidate import KernelKey, changed, gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.measurement import OK, Measurement, Outcome, Record, Status
from aot.core.target import load_target
from aot.report.facts import SearchPoint, facts_of
from aot.select.score.heldout import score
from aot.select.selection import SELECTION_VERSION, Curve, CurvePoint, Regret, Selection
from aot.space.cost import NAME
from tests.unit.twins import BF16, problem_of
from tests.unit.twins import CONDITIONS as TWIN

THOR = load_target("thor")
CONDITIONS = replace(TWIN, arch=THOR.arch)
FALLBACK = gemm_candidate("simt", 64, 64, use_tma_store=False)
TMA = gemm_candidate("sm100_persistent", 128, 128, schedule="clc")
DIRECT = changed(TMA, use_tma_store=False)
WIDE = changed(TMA, tile_n=256)


def row(kernel, runner_up, time_us):
    return Row(kernel, 1, time_us, "measured", runner_up, time_us * 1.25)


GRID = Grid((512, 1024), (128,), (Column((64, 256), (1, 1)), Column((256,), (1,))))
SECTION = Section(BF16, (Ladder(256, 512, (16, 128), (row(1, 2, 4.0), row(2, 1, 6.0))),), GRID, 0)
SELECTION = Selection(
    SELECTION_VERSION,
    "thor",
    "measured",
    "thor",
    (CONDITIONS,),
    (Regret(BF16, 2, 2, 0.0125, 0.1, "exact", 0.01),),
    (),
    (),
    tuple(KernelKey(BF16, x) for x in (FALLBACK, TMA, DIRECT)),
    DispatchTable((SECTION,)),
)

HELD = {problem_of(20, 256, 512): (5.0, 4.0, 4.5), problem_of(64, 512, 128): (10.0, 11.0, 8.0)}
TIMES = {problem_of(16, 256, 512): (4.0, 5.0, 3.2), problem_of(128, 256, 512): (7.5, 6.0, 7.0)}
SIZES = frozenset((problem.n, problem.k, problem.m) for problem in HELD)


def measurement(candidate, problem, time_us, status=OK):
    low, rounds = (time_us, 7) if status is OK else (0.0, 0)
    return Measurement(KernelKey(BF16, candidate), problem, low, low, low, rounds, 0.0, status)


def items(times):
    columns = (TMA, DIRECT, WIDE)
    return [measurement(x, problem, us) for problem, row in times.items() for x, us in zip(columns, row, strict=True)]


def failure(tile_n, status, m=16):
    return measurement(changed(TMA, tile_n=tile_n), problem_of(m, 256, 512), 0.0, status)


FAILURES = (
    failure(32, Status(Outcome.WORKSPACE, "needs 10 bytes, the limit is 5")),
    failure(32, Status(Outcome.WORKSPACE, "needs 20 bytes, the limit is 5"), 128),
    failure(64, Status(Outcome.QUARANTINED, "<wrong> & unsafe")),
)
RECORD = Record("thor", (CONDITIONS,), (*items(TIMES), *items(HELD), *FAILURES))
CURVE = Curve(BF16, (CurvePoint(1, 0.4, 9.0, 0.2, 4096, False), CurvePoint(2, 0.0125, 0.1, 0.0, 8192, True)))
SEARCHES = (SearchPoint("model", 0.1, 30.0, 0.002, 0.05), SearchPoint("exhaustive", 1.0, 300.0, 0.0, 0.0))


def scored():
    """Give the selection with a curve, and scored on what was held out."""
    times = {problem: dict(zip((TMA, DIRECT, WIDE), row, strict=True)) for problem, row in HELD.items()}
    return replace(SELECTION, curves=(CURVE,), heldout=score(SECTION, SELECTION.kernels, times))


def with_section(**changes):
    """Give the selection with something else in its table's one section."""
    return replace(SELECTION, table=DispatchTable((replace(SECTION, **changes),)))


def predicted():
    """Give the selection as the cost model makes one."""

    def of_model(x):
        return replace(x, provenance="predicted")

    ladders = tuple(replace(x, rows=tuple(map(of_model, x.rows))) for x in SECTION.ladders)
    return replace(with_section(ladders=ladders), provenance="predicted", record=NAME, conditions=())


@cache
def measured_facts():
    """Give all that there is to tell of a measured selection."""
    return facts_of(scored(), THOR, RECORD, SIZES, SEARCHES)


@cache
def predicted_facts():
    """Give what there is to tell of a predicted one."""
    return facts_of(predicted(), THOR, None)


def drawn(figure, css):
    """List the attributes of a chart's elements that have a class, each with its title's text as `title`."""
    found = []
    for mark in ET.fromstring(figure.svg).iter():
        if css in mark.get("class", "").split():
            title = mark.find("title")
            found.append({**mark.attrib, "title": "" if title is None else title.text})
    return found
