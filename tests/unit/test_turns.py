"""Which files of tests take turns: each has one, none of those that every run has, and a run is told by AOT_TURN."""

import pytest

from tests import turns


@pytest.fixture
def asked(monkeypatch):
    """Give what sets AOT_TURN."""
    yield lambda text: (monkeypatch.setenv("AOT_TURN", text), turns.turn.cache_clear())
    turns.turn.cache_clear()


def test_each_file_is_there_and_has_one_turn():
    names = [name for files in turns.turns() for name in files]
    assert len(turns.turns()) == turns.NUM_TURNS
    assert len(set(names)) == len(names) > 100
    assert [x for x in names if not (turns.ROOT / x).is_file() or x.startswith(turns.ALWAYS)] == []


def test_a_run_has_the_files_of_its_turn_and_those_that_take_none(asked):
    first, second, *_ = (turns.ROOT / min(x) for x in turns.turns())
    always = turns.ROOT / "tests" / "package" / "test_wheels.py"
    asked("0")
    assert [turns.waits(x) for x in (first, second, always)] == [False, True, False]
    asked("1")
    assert [turns.waits(x) for x in (first, second, always)] == [True, False, False]
    asked("all")
    assert [turns.waits(x) for x in (first, second, always)] == [False, False, False]
    asked("commit")
    assert turns.turn() == turns.turn_of_commit()
    assert turns.turn() in range(turns.NUM_TURNS)
    asked("7")
    with pytest.raises(pytest.UsageError, match="AOT_TURN is '7'; expected all, commit, or a turn from 0 to 6"):
        turns.turn()


def test_long_files_are_dealt_out_evenly():
    seconds = {f"tests/runtime/test_{i}.py": float(i) for i in range(40)} | {"tests/package/test_wheels.py": 99.0}
    found = turns.dealt(seconds)
    assert sorted(x for files in found for x in files) == sorted(f"tests/runtime/test_{i}.py" for i in range(1, 40))
    sums = [sum(seconds[x] for x in files) for files in found]
    assert max(sums) - min(sums) <= 2
