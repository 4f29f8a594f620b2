"""The studies' commands: they are listed, and say what `aot` says of options that do not go together."""

import pytest

from tests.unit.invoked import study, succeed


def test_the_studies_are_listed():
    listed = succeed("-h", run=study).partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == ["census", "formats", "prior", "search"]


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
