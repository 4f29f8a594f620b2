"""What reads a selection takes every operation of the catalogue: tables, coverage, explanations, diffs, the report."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from aot.cli import selection_tables
from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.kinds.named_operations import named_operations
from aot.report import facts as facts_module
from aot.report.facts import facts_of
from aot.report.page import page
from aot.report.parts import operation_name
from aot.report.tables import conditions
from aot.select.coverage import coverage
from aot.select.score.diff import compare
from aot.select.score.explain import explained
from aot.select.score.tiles import tile_notes
from aot.select.selection import Regret, parse_selection, write_selection
from aot.space.roofline import roofline
from tests.compiling import some
from tests.unit.accepted import named
from tests.unit.selections import SELECTION

H200 = load_target("h200")
PLAIN = named("sm90_quack_128x128_c1x1_pingpong")
OTHER = named("sm90_quack_64x64_c1x1_pingpong")
FALLBACK = gemm_candidate("simt", 64, 64, use_tma_store=False)
SIZES = (16, 4096, 4096)


def selection_of(operations, first=PLAIN, second=OTHER):
    """Make a predicted selection that has two kernels and a row of each operation."""
    kernels, sections = [], []
    for operation in operations:
        own = [KernelKey(operation, first), KernelKey(operation, second)]
        fallback = KernelKey(operation.layouts[0], FALLBACK)
        kernels += [*own, *([] if fallback in kernels else [fallback])]
        i, j = (kernels.index(x) for x in own)
        row = Row(i, i, 100.0, "predicted", j, 110.0)
        ladder = Ladder(4096, 4096, (16, 8192), (row, row))
        grid = Grid((1,), (1,), (Column((1,), (j,)),))
        sections.append(Section(operation, (ladder,), grid, kernels.index(fallback)))
    regrets = tuple(Regret(x, 1, 2, 0.0, 0.0, "exact", 0.0) for x in operations)
    table = DispatchTable(tuple(sections))
    return replace(
        SELECTION, provenance="predicted", conditions=(), kernels=tuple(kernels), table=table, regrets=regrets
    )


@pytest.fixture(autouse=True)
def _no_census(monkeypatch):
    monkeypatch.setattr(facts_module, "census", lambda *_: [])


def of_each(*facets):
    """Return the first operation of each value of some of its facets."""
    found = {(i, facet(x)): x for x in reversed(Operation) for i, facet in enumerate(facets)}
    return [x for x in Operation if x in found.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    some(of_each(lambda x: x.types, lambda x: x.layout, lambda x: x.epilogue, lambda x: x.grouping), 12),
    ids=str,
)
def test_an_operation_is_explained_with_its_roofline_and_bigger_tiles(operation):
    found, problem = selection_of([operation]), Problem(operation, *SIZES)
    text = explained(found, problem, H200, {}).text
    assert f"kernel     {operation.tag}_{PLAIN.name}" in text
    assert f"roofline   {roofline(problem, H200).time_us:.2f} us" in text
    assert tile_notes(found, H200, {}).keys() == {key.name for key in found.kernels if key.candidate != FALLBACK}


@pytest.mark.slow
def test_every_operation_is_told_of_everywhere():
    found, other = selection_of(list(Operation)), selection_of(list(Operation), OTHER, PLAIN)
    problems = [Problem(operation, *SIZES) for operation in Operation]
    assert coverage(found, problems).num_predicted == len(problems)
    assert Counter(x.corner.operation for x in compare(found, other, {}).changes) == dict.fromkeys(Operation, 3)
    facts = facts_of(found, H200, None)
    assert {x.operation for x in facts.operations} == {*Operation}
    summary, written = (set(re.findall(r"\w+", x)) for x in (selection_tables.selection_summary(found), page(facts)))
    for told in facts.operations:
        assert operation_name(told).startswith(f"{told.operation.tag}: ")
        assert told.operation.tag in summary & written


def test_all_of_them_are_one_selection(tmp_path):
    found = selection_of([x for x in Operation if not H200.lacks(x.types.needs)])
    write_selection(tmp_path / "s.json", found)
    assert parse_selection((tmp_path / "s.json").read_bytes(), "s.json") == found
    roofs = dict(conditions(facts_of(found, H200, None)))["Roofs"]
    assert roofs.startswith(
        "790 TFLOP/s of bf16, fp16; 1580 TFLOP/s of e4m3, e5m2, int8; 395 TFLOP/s of tf32; 67 TFLOP/s"
    )
    plain = dict(conditions(facts_of(selection_of(named_operations("default")), H200, None)))["Roofs"]
    assert plain.startswith("790 TFLOP/s, 4.3 TB/s, as the target's file gives them")


def test_an_operation_is_named_by_its_types():
    names = {x.operation: operation_name(x) for x in facts_of(selection_of(list(Operation)), H200, None).operations}
    assert names[Operation.E5M2E4M3_BF16_KK] == (
        "e5m2e4m3_bf16_kk: float8_e5m2 by float8_e4m3fn to bfloat16, A row-major, B (n, k) row-major"
    )
    assert names[Operation.BF16_KK] == "bf16_kk: bfloat16, A row-major, B (n, k) row-major"
