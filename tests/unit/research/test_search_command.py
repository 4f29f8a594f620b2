"""The study `search`, as users meet it."""

import json
from pathlib import Path

import pytest

from tests.unit.invoked import study


def test_search_prints_and_writes_the_curves(few_record):
    result = study(
        "search", "--record", few_record, "--strategy", "model", "--strategy", "exhaustive", "--budget", "10,100"
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
