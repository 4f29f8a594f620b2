"""The study `census`, on a space of one kernel that is really compiled."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from aot.core.errors import CompileError, StoreError
from aot.core.target import load_target
from aot.families import families_for
from aot.space import kinds
from research.studies import census
from research.studies.__main__ import main as studies

FAMILIES = tuple(family for family in families_for(load_target("thor")) if family.is_fallback and family.kind == "gemm")


@pytest.fixture
def one_family(monkeypatch, tmp_path):
    """Leave the fallback alone in the space, and run in a fresh folder."""
    monkeypatch.setattr(kinds, "families_of", lambda _, target: [x for x in FAMILIES if not target.lacks(x.needs)])
    monkeypatch.chdir(tmp_path)


@pytest.mark.walk
@pytest.mark.slow
@pytest.mark.usefixtures("one_family")
def test_compiles_counts_and_writes(tmp_path):
    words = ["census", "--operations", "bf16_kk"]
    before = CliRunner().invoke(studies, [*words, "--count-only"])
    assert before.exit_code == 0, before.output
    assert "1 legal, 0 compiled and passed the gate, 0 failed, 1 not compiled" in before.output
    files = ["-o", "new/census.json", "--markdown", "new/census.md"]
    done = CliRunner().invoke(studies, [*words, *files, "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert "1 legal, 1 compiled and passed the gate, 0 failed, 0 not compiled" in done.output
    found = census.read_census(tmp_path / "new" / "census.json")
    (row,) = found.rows
    assert row.num_untried == 0
    assert row.cpu_s
    assert (tmp_path / "new" / "census.md").read_text() == census.markdown(found, "census.json")


@pytest.mark.usefixtures("one_family")
def test_a_surprise_ends_with_an_error(monkeypatch):
    def refuse(keys, *args, **kwargs):
        del keys, args, kwargs

    monkeypatch.setattr("research.studies.census_command.compile_each", refuse)
    real = census.count

    def failing(*args):
        found = real(*args)
        rows = tuple(replace(row, failures={"k": "CompileError: too large"}) for row in found.rows)
        return replace(found, rows=rows)

    monkeypatch.setattr(census, "count", failing)
    done = CliRunner().invoke(studies, ["census", "--operations", "bf16_kk"])
    assert done.exit_code == CompileError.exit_code
    assert "aot: error: 1 legal candidates did not compile or were refused, k among them" in done.output
    assert "- `k`: CompileError: too large" in done.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read the census"),
        (json.dumps({"version": 2}), "Census needs the key arch, which is missing"),
        (
            json.dumps({"version": 9, "target": "t", "arch": "a", "toolchain": {}, "rows": [], "on_rows": []}),
            "version: expected 2, got 9; make it again: python -m research.studies census",
        ),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, content, message):
    path = tmp_path / "census.json"
    path.write_text(content)
    with pytest.raises(StoreError, match=message):
        census.read_census(path)
