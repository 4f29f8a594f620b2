"""The study `search`, as users meet it."""

import json
from pathlib import Path

import pytest

from aot.core.candidate import KernelKey
from aot.core.measurement import Measurement, Record
from aot.select.record import write_record
from tests.unit.invoked import study
from tests.unit.twins import BF16, CONDITIONS


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def record(h200_times):
    """Write a record of a few of the H200's problems, thirty kernels each; gives its path."""
    problems = [x for x in sorted(h200_times[BF16]) if x.m in (1, 300) and x.n in (4096, 5120)]
    rows = [
        Measurement(KernelKey(BF16, candidate), problem, us, us, us, 7, 1e-3)
        for problem in problems
        for candidate, us in sorted(h200_times[BF16][problem].items())[:30]
    ]
    write_record(Path("few.jsonl.gz"), Record("h200", (CONDITIONS,), tuple(rows)))
    return "few.jsonl.gz"


def test_search_prints_and_writes_the_curves(record):
    result = study(
        "search", "--record", record, "--strategy", "model", "--strategy", "exhaustive", "--budget", "10,100"
    )
    assert (result.exit_code, result.exception) == (0, None), result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines[2:5]] == [["model", "10%"], ["model", "100%"], ["exhaustive", "100%"]]
    assert lines[4][2:] == ["100.0%", *lines[4][3:5], "0.00%", "0.0%", "0.0%", "100%"]
    content = json.loads(Path("build/search/h200.json").read_text())
    assert [x["strategy"] for x in content["points"]] == ["model", "model", "exhaustive"]
    assert content["record"] == "few"


@pytest.mark.parametrize(
    ("budget", "message"), [("x", "give percentages, such as"), ("0", "are above 0 and at most 100")]
)
def test_budgets_are_percentages(budget, message):
    result = study("search", "--budget", budget)
    assert result.exit_code == 2
    assert message in result.output
