import click
import pytest
from click.testing import CliRunner

from aot.cli_options import MAX_HELDOUT_REGRET, REGRETS, options, regrets_text

INFINITE = (float("inf"), float("inf"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2%,10%", (0.02, 0.1)),
        ("0.02,0.1", (0.02, 0.1)),
        ("2%,0.1", (0.02, 0.1)),
        ("0,0", (0, 0)),
        ("50%,inf", (0.5, float("inf"))),
        ("none", INFINITE),
    ],
)
def test_regrets_are_percentages_or_fractions(text, value):
    assert REGRETS.convert(text, None, None) == pytest.approx(value)


def test_a_default_that_is_a_pair_stays():
    assert REGRETS.convert(MAX_HELDOUT_REGRET, None, None) == MAX_HELDOUT_REGRET


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2%", "'2%' is not a mean and a worst regret, such as 2%,10%"),
        ("2%,10%,1", "'2%,10%,1' is not a mean and a worst regret, such as 2%,10%"),
        ("two,ten", "'two,ten' is not a mean and a worst regret, such as 2%,10%"),
        ("", "'' is not a mean and a worst regret, such as 2%,10%"),
        ("10%,2%", "'10%,2%': the mean must be at least 0 and at most the worst"),
        ("-1%,2%", "'-1%,2%': the mean must be at least 0 and at most the worst"),
        ("nan,2%", "'nan,2%': the mean must be at least 0 and at most the worst"),
    ],
)
def test_other_regrets_are_refused(text, message):
    with pytest.raises(click.BadParameter) as caught:
        REGRETS.convert(text, None, None)
    assert caught.value.message == message


def test_options_are_listed_in_the_order_given():
    @click.command()
    @options(click.option("--first"), click.option("--second"))
    def command(first, second):
        click.echo(f"{first} {second}")

    assert [x.name for x in command.params] == ["first", "second"]
    assert CliRunner().invoke(command, ["--second", "2", "--first", "1"]).output == "1 2\n"


@pytest.mark.parametrize("regrets", [MAX_HELDOUT_REGRET, (0.0, 0.07), (0.005, 1.0), INFINITE])
def test_regrets_are_written_as_they_are_read(regrets):
    assert REGRETS.convert(regrets_text(regrets), None, None) == pytest.approx(regrets)


def test_the_default_regrets_are_percentages():
    assert regrets_text(MAX_HELDOUT_REGRET) == "2%,20%"
