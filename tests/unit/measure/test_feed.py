"""What a run is handed while it goes on: in order, once, until the end or until nobody hands it anything."""

import pytest

from aot.core.errors import StoreError
from aot.measure import background
from aot.measure.background import beside, last_done
from aot.measure.feed import LOOK_S, Portion, line_of, note_done, portions

FIRST = Portion(1, kernels=(0, 2), sound=(1,), failed=((3, 'hung: "m8" µs'),))
SECOND = Portion(2, problems=(5, 4))


def hand_over(out, portion):
    background.hand_over(out, line_of(portion))


class Clock:
    """A clock on which a wait takes a second, and what is done at each wait."""

    def __init__(self, *actions):
        self.now, self.actions, self.slept = 0.0, list(actions), []

    def sleep(self, seconds):
        self.slept.append(seconds)

    def wait(self):
        self.now += 1.0
        if self.actions:
            self.actions.pop(0)()

    def __call__(self):
        return self.now


def test_portions_come_in_order_until_the_end(tmp_path):
    out = tmp_path / "r.sqlite"
    clock = Clock(lambda: hand_over(out, SECOND), lambda: hand_over(out, Portion(3, is_end=True)))
    for _ in range(2):
        hand_over(out, FIRST)
    assert list(portions(out, clock.wait, clock, clock.sleep)) == [FIRST, SECOND]
    assert clock.now == 2.0


def test_what_is_done_is_not_done_again(tmp_path):
    out = tmp_path / "r.sqlite"
    for portion in (FIRST, SECOND):
        hand_over(out, portion)
    assert last_done(out) == 0
    note_done(out, FIRST)
    assert last_done(out) == 1
    clock = Clock()
    assert list(portions(out, clock.wait, clock, clock.sleep, idle_s=1.0)) == [SECOND]
    background.beside(out, "portion").unlink()
    assert last_done(out) == 0


def test_a_run_that_is_handed_nothing_ends(tmp_path):
    clock = Clock()
    assert list(portions(tmp_path / "r.sqlite", clock.wait, clock, clock.sleep, idle_s=5.0)) == []
    assert clock.now == 6.0
    assert clock.slept == [LOOK_S] * 6  # it does not turn idly


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    out = tmp_path / "r.sqlite"
    hand_over(out, FIRST)
    with beside(out, "feed").open("a") as file:
        file.write('{"number": 2')
    clock = Clock()
    assert list(portions(out, clock.wait, clock, clock.sleep, idle_s=1.0)) == [FIRST]


def test_a_damaged_line_is_told(tmp_path):
    out = tmp_path / "r.sqlite"
    beside(out, "feed").write_text('{"number": -1}\n')
    with pytest.raises(StoreError, match=r"cannot read a portion that was handed over: .*; start the worker again"):
        next(portions(out, Clock().wait))
