import click
import pytest
from click.testing import CliRunner

from aot.cli.options import MAX_HELDOUT_REGRET, REGRETS, options, regrets_text
from aot.core.errors import OutputError, StoreError
from aot.kinds.named_operations import HELP
from tests.unit.invoked import aot

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
    assert regrets_text(MAX_HELDOUT_REGRET) == "3%,100%"


def refused(*arguments):
    """Give the message of a usage error."""
    result = aot(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert lines[0].startswith("Usage: ")
    return lines[-1].removeprefix("Error: ")


DATA = "where the cost model selects, as with --predicted"
COMMITTED = "with the committed selection, which is taken by default"
LAST = "with the last selection in build/selections, which is taken by default"


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text("{}")
    return tmp_path


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "build --target h200 --shapes none.toml",
            f"--shapes means nothing {COMMITTED}; leave it out, or use it {DATA}",
        ),
        (
            "build --selection s.json --shapes x",
            f"--shapes means nothing with --selection; leave it out, or use it {DATA}",
        ),
        (
            "build --selection s.json --predicted",
            "--predicted means nothing with --selection; leave it out, or use it with targets of which some",
        ),
        (
            "build --predicted --max-heldout-regret none",
            f"--max-heldout-regret means nothing {DATA}; leave it out, or use it with --selection or {LAST}",
        ),
        ("explain 1 1 1 --target h200 --shapes x", f"--shapes means nothing {COMMITTED}; leave it out"),
        ("explain 1 1 1 --selection s.json --shapes x", "--shapes means nothing with --selection; leave it out"),
        ("explain 1 1 1 --predicted --record r", f"--record means nothing {DATA}; leave it out, or use it with"),
        ("report --shapes x", f"--shapes means nothing {COMMITTED}; leave it out"),
        ("report --predicted --heldout x", f"--heldout means nothing {DATA}; leave it out"),
        (
            "select --target h200 --calibration c",
            f"--calibration means nothing where a record is selected from; leave it out, or use it {DATA}",
        ),
        ("select --predicted --record r", f"--record means nothing {DATA}; leave it out, or use it where a record is"),
        ("select --predicted --heldout x", f"--heldout means nothing {DATA}; leave it out"),
        ("select --target thor --heldout x", f"--heldout means nothing {DATA}; leave it out"),
        (
            "select --no-incumbent --incumbent s.json",
            "--incumbent means nothing with --no-incumbent; leave it out, or use it without --no-incumbent",
        ),
        *(
            (
                f"select --target h200 --like s.json {option}",
                f"{option.split()[0]} means nothing with --like; leave it out, or use it ",
            )
            for option in (
                *("--max-kernels 5", "--max-layout-kernels 5", "--max-epilogue-kernels 5", "--max-regret 2%,10%"),
                *("--named-weight 1", "--kernels sm90_*", "--epilogue bias", "--incumbent s.json", "--no-incumbent"),
                *("--batch-invariant", "--curve", "--no-curve"),
            )
        ),
        ("tune --on ssh://x --bundle b", "--bundle means nothing with --on; leave one of the two out"),
        ("tune --record r", "--record means nothing without --on and --bundle; leave it out, or use it with --on"),
        ("tune --bundle b --record r", "--record means nothing with --bundle; leave it out, or use it with --on"),
        (
            "tune --bundle b --budget-seconds 3",
            "--budget-seconds means nothing with --bundle; leave it out, or use it without --on and --bundle or with",
        ),
        (
            "tune --selection s.json --limit 3",
            "--limit means nothing with --selection; leave it out, or use it without",
        ),
        (
            "tune --per-problem 3",
            "--per-problem means nothing without --learn-from; leave it out, or use it with --learn-from",
        ),
        (
            "tune --learn-from s.json --prune 3",
            "--prune means nothing with --learn-from; leave it out, or use it without --learn-from",
        ),
        *(
            (
                f"{command} --operations bf16_kk {option}",
                f"{option.split()[0]} means nothing with --operations; leave it out, or use it without --operations",
            )
            for command in ("compile", "tune", "space", "explain 1 1 1")
            for option in ("--dtype float16", "--layout kn", "--epilogue bias")
        ),
        ("select --target h200 --operations bf16_kk --epilogue bias", "--epilogue means nothing with --operations"),
        ("build --selection s.json --operations bf16_kk", "--operations means nothing with --selection; leave it out"),
        ("build --target h200 --shapes x", f"--shapes means nothing {COMMITTED}; leave it out, or use it {DATA}"),
        ("explain 1 1 1 --target h200 --operations fp8", "--operations names e4m3_bf16_kk, e4m3_bf16_block_kk, "),
        ("space --list --explain", "--explain means nothing with --list; leave it out, or use it without --list"),
        ("smem --stages 2", "--stages means nothing without --tile; leave it out, or use it with --tile"),
        ("smem --two-cta", "--two-cta means nothing without --tile"),
        ("smem --dtype bf16", "--dtype means nothing without --tile"),
    ],
)
def test_an_option_that_means_nothing_is_refused(arguments, message):
    assert refused(*arguments.split()).startswith(message)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "-1", "x", ""])
@pytest.mark.parametrize(
    "option", ["select --named-weight", "tune --prune", "tune --search-budget", "tune --budget-seconds"]
)
def test_a_number_that_is_none_is_refused(option, value):
    assert refused(*f"{option}={value}".split(" ", 1)).startswith(f"Invalid value for '{option.split()[1]}': ")


def test_the_scores_need_two_folds():
    assert refused("calibrate", "--folds", "1") == (
        "Invalid value for '--folds': 1 leaves nothing to fit to; give 0, to leave the scores out, or 2 and more"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["select", "-o"],
        ["report", "-o"],
        ["calibrate", "-o"],
        ["import", "r.sqlite", "--record"],
        ["tune", "--on", "ssh://x", "--record"],
    ],
)
@pytest.mark.parametrize("path", ["folder", "file/x", "/proc/x", "x" * 300])
def test_an_output_is_tried_before_anything_is_done(workplace, monkeypatch, arguments, path):
    monkeypatch.setattr("aot.core.whole_file.write_whole", lambda *_: pytest.fail("worked first"))
    (workplace / "folder").mkdir()
    for name in ("file", "r.sqlite"):
        (workplace / name).write_text("")
    before = sorted(workplace.rglob("*"))
    result = aot(*arguments, path)
    assert result.exit_code == OutputError.exit_code, result.output
    assert result.stderr.startswith(f"aot: error: cannot write {path}: ")
    assert sorted(workplace.rglob("*")) == before


@pytest.mark.parametrize("arguments", [["build", "--target", "h200", "--dist"], ["tune", "--bundle"]])
@pytest.mark.parametrize("path", ["file", "file/x", "/proc/x"])
def test_a_folder_for_outputs_is_tried_before_anything_is_done(workplace, monkeypatch, arguments, path):
    monkeypatch.setattr("aot.tune.tuning.compile_all", lambda *_: pytest.fail("compiled first"))
    (workplace / "file").write_text("")
    result = aot(*arguments, path)
    assert result.exit_code == OutputError.exit_code, result.output
    assert result.stderr.startswith(f"aot: error: cannot write {path}: ")


@pytest.mark.slow
def test_a_default_output_is_tried_too(workplace):
    (workplace / "build").write_text("")
    for arguments in (["select", "--predicted"], ["tune", "--target", "thor"], ["report"]):
        result = aot(*arguments)
        assert result.exit_code == OutputError.exit_code, result.output
        assert result.stderr.startswith("aot: error: cannot write build/")


def test_a_folder_that_is_no_bundle_is_refused_before_anything_is_compiled(workplace, monkeypatch):
    monkeypatch.setattr("aot.tune.tuning.compile_all", lambda *_: pytest.fail("compiled first"))
    result = aot("tune", "--bundle", ".")
    assert (result.exit_code, result.stderr) == (
        StoreError.exit_code,
        "aot: error: . is there and is no bundle; give another directory\n",
    )


@pytest.mark.parametrize("command", ["compile", "tune", "select", "build", "space", "explain 1 1 1"])
def test_every_command_says_the_same_of_operations_and_refuses_what_is_none(command):
    words = command.split()
    assert " ".join(HELP.split()) in " ".join(aot(words[0], "-h").stdout.split())
    result = aot(*words, "--operations", "bf16_kk_sil")
    near = "did you mean bf16_kk_silu or bf16_kk_swiglu or fp16_kk_silu?"
    assert result.exit_code == 18
    assert result.stderr == f"aot: error: no operation is called 'bf16_kk_sil', and no preset; {near}\n"
