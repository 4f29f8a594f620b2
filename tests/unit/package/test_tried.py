"""How far a kernel of a selection was tried, by the PTX in a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aot.compile.artifact import Artifact, CompileFailure
from aot.core.candidate import KernelKey, changed, gemm_candidate
from aot.core.dispatch import Ladder, Row
from aot.core.target import load_target
from aot.package import tried as module
from aot.package.tried import Tried, tried
from tests.golden.manifest import KK, execution, kernel
from tests.unit.selections import SELECTION

H200 = load_target("h200")
NAMED = next(x for x in SELECTION.kernels if x.operation == KK)
ABSENT = Tried(None, "not compiled here, so that no record is compared with its PTX; `aot build` compiles it")
FOUND = execution(NAMED.name)


@pytest.fixture
def predicted():
    """Give a selection without a measured row."""
    (section,) = SELECTION.table.sections
    ladders = [replace(x, rows=tuple(replace(y, provenance="predicted") for y in x.rows)) for x in section.ladders]
    table = replace(SELECTION.table, sections=(replace(section, ladders=tuple(ladders)),))
    return replace(SELECTION, provenance="predicted", table=table)


def stored(monkeypatch, found, executions=()):
    """Have the store hold one thing, and the records say what they say; gives the keys that are asked for."""
    asked = []
    monkeypatch.setattr(module.ArtifactStore, "get", lambda _, key, __: asked.append(key) or found)
    monkeypatch.setattr(module, "committed_executions", lambda: executions)
    return asked


def test_a_kernel_that_was_measured_ran(monkeypatch):
    stored(monkeypatch, None)
    (section,) = SELECTION.table.sections
    ladder = Ladder(64, 64, (16,), (Row(1, 1, 5.0, "measured", 1, 5.0),))
    chosen = replace(SELECTION, table=replace(SELECTION.table, sections=(replace(section, ladders=(ladder,)),)))
    assert tried(SELECTION.kernels[1], chosen, {}, H200, Path("x")) == Tried(
        "run", "run: a time of it was taken on the device"
    )


@pytest.mark.parametrize("found", [None, CompileFailure("k", "why")])
def test_of_a_kernel_that_is_not_compiled_here_nothing_is_known(monkeypatch, predicted, found):
    stored(monkeypatch, found)
    assert tried(NAMED, predicted, {}, H200, Path("x")) == ABSENT


@pytest.mark.parametrize(
    ("executions", "expected"),
    [
        ((), Tried("compiled", "compiled: no record speaks of its PTX")),
        ((replace(FOUND, ptx_sha256="7" * 64),), Tried("compiled", "compiled: no record speaks of its PTX")),
        (
            (FOUND,),
            Tried(
                "executed",
                "executed: executed in the interpreter on 2026-11-26, 12 runs of 4 cases in 3 orders, worst error 38% "
                "of what is allowed",
            ),
        ),
        (
            (replace(FOUND, num_findings=1),),
            Tried(
                "compiled",
                "compiled: executed in the interpreter on 2026-11-26, 12 runs of 4 cases in 3 orders, 1 faults found, "
                "worst error 38% of what is allowed",
            ),
        ),
    ],
)
def test_a_record_is_compared_with_the_ptx_in_the_store(monkeypatch, predicted, executions, expected):
    asked = stored(monkeypatch, Artifact(kernel(KK, NAMED.candidate), Path("kernel.o")), executions)
    assert tried(NAMED, predicted, {}, H200, Path("x")) == expected
    assert asked == [NAMED]


def test_a_kernel_that_shares_an_object_is_looked_for_by_it(monkeypatch, predicted):
    tile = gemm_candidate("sm90_one_tile", 64, 128, 4, 1, use_tma_store=False)
    keys = [KernelKey(KK, x) for x in (tile, changed(tile, tile_n=104))]
    asked = stored(monkeypatch, None)
    chosen = replace(predicted, kernels=(*predicted.kernels, *keys))
    assert tried(keys[1], chosen, {}, H200, Path("x")) == ABSENT
    assert asked == [KernelKey(KK, changed(tile, schedule="widths"))]
