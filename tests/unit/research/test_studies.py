"""The studies' commands: they are listed, and say what `aot` says of options that do not go together."""

import pytest

from aot.select.selection import read_selection, write_selection
from tests.unit.invoked import study, succeed
from tests.unit.selections import SELECTION


def test_the_studies_are_listed():
    listed = succeed("-h", run=study).partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == ["census", "formats", "prior", "run", "search", "tiles"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("prior --operations bf16_kk --part points", "--part means nothing with --operations; leave it out, or use it"),
        ("census --count-only --sample 3", "--sample means nothing with --count-only; leave it out, or use it"),
        ("census --count-only --jobs 1", "--jobs means nothing with --count-only; leave it out"),
        ("search --live r.sqlite --seeds 2", "--seeds means nothing with --live; leave it out, or use it without"),
        ("search --live r.sqlite --record r", "--record means nothing with --live; leave it out, or use it without"),
        (
            "search --strategy exhaustive --budget 5",
            "--budget means nothing with --strategy exhaustive alone",
        ),
    ],
)
def test_an_option_that_means_nothing_is_refused(arguments, message):
    result = study(*arguments.split())
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith(f"Error: {message}")


def test_a_selection_from_before_it_said_how_it_was_made_is_told(tmp_path):
    path = tmp_path / "s.json"
    write_selection(path, SELECTION)
    tag, predicted = SELECTION.operations[0].tag, ("--target", SELECTION.target, "--predicted")
    succeed("run", path, "--", *predicted, "--max-kernels", "96", "--operations", tag, run=study)
    (found,) = read_selection(path).runs
    assert found.command == f"aot select --target h200 --max-kernels 96 --operations {tag} --predicted"
    files = ["aot/selections/h200.json.gz", "aot/shapes/representative.toml"]  # the first for ties
    assert (found.operations, [*found.inputs]) == (SELECTION.operations, files)
    refused = study("run", path, "--", "--target", "thor", "--predicted")
    assert (refused.exit_code, "of h200 bf16_kk; expected some that the command selects" in refused.stderr) == (9, True)
    succeed("run", "--no-inputs", path, "--", *predicted, "--operations", tag, run=study)
    (again,) = read_selection(path).runs
    assert (again.inputs, again.operations, "--max-kernels" in again.defaults) == ({}, found.operations, True)
