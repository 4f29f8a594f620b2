"""The command `aot report`, as users meet it."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from aot.cli import main as cli
from aot.cli import report as cli_report
from aot.core.errors import SelectionError, StoreError
from aot.report import searches
from aot.select.selection import write_selection
from aot.select.times.record import write_record
from research.studies.replay import CurvePoint, write_curves
from tests.unit.reported import CURVE, RECORD, SELECTION


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_selection(tmp_path / "s.json", replace(SELECTION, curves=(CURVE,)))
    write_record(tmp_path / "r.jsonl.gz", RECORD)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli.main, ["report", *arguments])


@pytest.mark.slow
def test_the_command_writes_the_page(workplace):
    point = CurvePoint("model", 0.1, 0.1, 9.0, 30.0, 0.002, 0.01, 0.05, 0.9, 2, 1)
    write_curves(cli_report.SEARCHES / "thor.json", "thor", "thor", [point])
    result = run("--selection", "s.json", "--record", "r.jsonl.gz")
    assert result.output == "build/report/thor.html: 0.04 MiB, measured\n"
    found = json.loads(run("--selection", "s.json", "--record", "r.jsonl.gz", "--json").stdout)
    size = (workplace / "build/report/thor.html").stat().st_size
    page = {"page": "build/report/thor.html", "num_bytes": size, "target": "thor", "provenance": "measured"}
    assert found == page
    content = (workplace / "build/report/thor.html").read_text()
    assert "model: 10.0% measured, mean regret 0.20%, 30 s" in content
    assert [x.name for x in (workplace / "build/report").iterdir()] == ["thor.html"]


def test_the_command_names_what_is_wrong(workplace):
    result = run("--selection", "s.json")
    assert (result.exit_code, "the record thor, which is not here" in result.stderr) == (SelectionError.exit_code, True)
    (workplace / "x.json").write_text('{"version": 1}')
    result = run("--selection", "s.json", "--record", "r.jsonl.gz", "--search", "x.json")
    assert (result.exit_code, "cannot read the searches x.json" in result.stderr) == (StoreError.exit_code, True)
    write_curves(workplace / "x.json", "h200", "h200", [])
    result = run("--selection", "s.json", "--record", "r.jsonl.gz", "--search", "x.json")
    assert "x.json is of h200, not of thor; give --search" in result.stderr
    assert not (workplace / "build").exists()


def test_searches_that_are_not_there_are_an_error(tmp_path):
    with pytest.raises(StoreError, match=r"cannot read the searches .*none.json: .*; make it again"):
        searches.read_searches(tmp_path / "none.json", "thor")
