"""`aot tune --rows` and the import of what it measures, as they are called."""

import pytest

from aot.core import errors
from aot.measure.row_results import open_row_results
from aot.tune.bundle import Bundle
from tests.unit.invoked import aot, succeed
from tests.unit.tune.test_row_tuning import BOTH, results


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bundles(monkeypatch):
    """Make no bundle; return the requests."""
    asked = []

    def make(request, target, directory, workplace):
        asked.append((request, target.name, str(directory), workplace.jobs))
        directory.mkdir(parents=True)
        return Bundle(directory, 3 << 20), []

    monkeypatch.setattr("aot.cli.tune_rows.make_row_bundle", make)
    return asked


def test_a_bundle_of_row_operations_is_made_and_says_how_it_is_run(bundles):
    words = ["--target", "h200", "--kernels", "row_looped_*", "--prune", "1.5", "--jobs", "2", "--bundle", "b"]
    text = succeed("tune", "--rows", "bf16_rms_norm,bf16_rotary", *words)
    ((request, *rest),) = bundles
    assert (request.operations, request.patterns.includes, request.ratio) == (BOTH.operations, ("row_looped_*",), 1.5)
    assert rest == ["h200", "b", 2]
    assert text == "b: 3.0 MiB\non the device: python b/run.py --out rows.jsonl\n"


def test_without_a_bundle_this_machine_measures(bundles, monkeypatch):
    measured = []
    monkeypatch.setattr("aot.cli.tune_rows.check_this_machine", lambda target, say: say(f"a {target.name}"))
    monkeypatch.setattr("aot.cli.tune_rows.measure_here", lambda *words: measured.append(words) or 0)
    result = aot("tune", "--rows", "bf16_rms_norm", "--target", "h200", "--budget-seconds", "5")
    assert (result.exit_code, result.stderr) == (0, "a h200\n")
    ((directory, out, budget),) = measured
    assert (str(directory), str(out), budget) == ("build/tuning/h200/rows", f"{directory}/results.jsonl", 5.0)
    assert result.stdout.endswith(f"measured into {out}; next: aot import {out}\n")
    monkeypatch.setattr("aot.cli.tune_rows.measure_here", lambda *words: 130)
    directory.rmdir()
    assert aot("tune", "--rows", "bf16_rms_norm", "--target", "h200").exit_code == 130


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--shapes", "x"], "--shapes means nothing with --rows; leave it out, or use it without --rows"),
        (["--on", "ssh://x"], "--on means nothing with --rows; leave it out, or use it without --rows"),
        (["--dtype", "bfloat16"], "--dtype means nothing with --rows"),
        (["--no-reference"], "--no-reference means nothing with --rows"),
    ],
)
def test_options_of_products_are_refused(bundles, words, text):
    result = aot("tune", "--rows", "bf16_rms_norm", *words)
    assert (result.exit_code, bundles) == (2, [])
    assert text in result.stderr


def test_what_names_no_row_operation_is_refused(bundles):
    result = aot("tune", "--rows", "bf16_kk")
    assert result.exit_code == errors.OperationError.exit_code
    assert "--rows 'bf16_kk' names products alone; write for example" in result.stderr


def test_results_are_imported_into_a_record(workplace):
    results(workplace / "rows.jsonl", 5.0)
    result = aot("import", "rows.jsonl", "--record", "mine.jsonl.gz")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Twin, 1 times\nbf16_rms_norm: 1 sizes\n")
    assert (workplace / "mine.jsonl.gz").exists()
    assert '"times": 1' in succeed("import", "rows.jsonl", "--record", "mine.jsonl.gz", "--json")


def test_results_of_rows_are_neither_levelled_nor_mixed_with_those_of_products(workplace):
    results(workplace / "rows.jsonl", 5.0)
    (workplace / "other.sqlite").write_bytes(b"SQLite format 3")
    assert "--level means nothing for operations on rows" in aot("import", "rows.jsonl", "--level").stderr
    text = aot("import", "rows.jsonl", "other.sqlite").stderr
    assert "rows.jsonl is of operations on rows, others are of products; import them apart" in text
    with open_row_results(workplace / "rows.jsonl") as found:
        assert len(found.runs) == 1
