from pathlib import Path

import pytest

from aot.core.errors import StoreError
from aot.measure import runner as bundle_runner
from aot.measure.preflight import Machine
from aot.measure.runner import Options, _command, main


def test_worker_command_carries_the_options():
    options = Options(Path("b"), Path("r.sqlite"), "m1 ", "st4", 5.0, 30.0, 2.5)
    first = ["b", "--out", "r.sqlite", "--silence-seconds", "30", "--problems", "m1 ", "--kernels", "st4"]
    last = ["--settle-seconds", "2.5", "--worker", "--budget-seconds", "2.500"]
    assert _command(options, 2.5, "--worker")[4:] == [*first, *last]
    assert _command(Options(Path("b"), Path("r")), None)[4:] == ["b", "--out", "r", "--silence-seconds", "60"]


def test_a_part_of_the_problems_and_no_reference_are_asked_for(tmp_path, capsys):
    options = Options(Path("b"), Path("r"), has_reference=False, shard=(2, 8))
    words = ["b", "--out", "r", "--silence-seconds", "60", "--shard", "2/8", "--no-reference"]
    assert _command(options, None)[4:] == words
    assert main([str(tmp_path), "--out", str(tmp_path / "r"), "--shard", "2/8", "--no-reference"]) != 0
    assert "make the bundle again" in capsys.readouterr().err


@pytest.mark.parametrize("shard", ["0/8", "9/8", "8", "1/x", "-1/2", "1/0"])
def test_a_part_that_there_is_not_is_refused(tmp_path, shard, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--out", str(tmp_path / "r"), f"--shard={shard}"])
    assert f"is {shard!r}; expected I/N with I from 1 to N: 2/8 for the second of eight" in capsys.readouterr().err


def test_errors_become_exit_codes(tmp_path, capsys):
    assert main([str(tmp_path), "--out", str(tmp_path / "r")]) == StoreError.exit_code
    assert "make the bundle again" in capsys.readouterr().err


def test_check_prints_the_machine(tmp_path, capsys):
    assert main([str(tmp_path), "--check"]) == 0
    machine = Machine.from_json(bundle_runner.json.loads(capsys.readouterr().out))
    assert machine.has_numpy
    assert machine.num_cpus > 0


def test_results_need_a_name(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "--out is needed" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["0.1", "10%", "1", "100%"])
def test_a_search_budget_is_read_as_a_fraction_or_in_percent(tmp_path, share, capsys):
    assert main([str(tmp_path), "--out", str(tmp_path / "r"), "--search-budget", share]) != 0
    assert "make the bundle again" in capsys.readouterr().err  # it is the empty directory that is refused


@pytest.mark.parametrize("share", ["10", "0", "-0.1", "nan", "101%", "0%"])
def test_a_search_budget_is_a_share(tmp_path, capsys, share):
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--out", str(tmp_path / "r"), "--search-budget", share])
    assert f"is {share}; expected a share above 0 and at most 1: 0.1 or 10% for a tenth" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--budget-seconds", "--silence-seconds", "--settle-seconds"])
@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "-inf", "x"])
def test_seconds_are_counted_from_nothing(tmp_path, capsys, option, seconds):
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path), "--out", str(tmp_path / "r"), f"{option}={seconds}"])
    assert caught.value.code == 2
    expected = "is {}; expected a number of seconds, 0 or more" if seconds != "x" else "invalid _seconds value: 'x'"
    assert expected.format(seconds) in capsys.readouterr().err
