"""Tasks and workers, on a clock of the test's own."""

from dataclasses import replace

from aot.fleet.ledger import Ledger, Limits

LIMITS = Limits(silence_s=10.0, slow_ratio=3.0, slow_s=5.0, max_losses=2)


def ledger_of(tasks, **workers):
    found = Ledger(LIMITS, tasks)
    found.set_workers(workers)
    return found


def given(attempts):
    return [(x.task, x.worker) for x in attempts]


def test_each_worker_has_as_many_tasks_as_it_has_seats_and_the_emptier_is_first():
    ledger = ledger_of("abcd", x=1, y=2)
    first = ledger.next(0.0)
    assert given(first) == [("a", "x"), ("b", "y"), ("c", "y")]
    assert ledger.next(1.0) == []
    assert ledger.finish(first[2].number, 1.0)
    assert given(ledger.next(1.0)) == [("d", "y")]
    assert not ledger.is_over
    for attempt in ledger.running:
        ledger.finish(attempt.number, 2.0)
    assert ledger.is_over


def test_what_a_worker_had_that_is_gone_goes_to_another_at_once():
    ledger = ledger_of("ab", x=1, y=1)
    ledger.next(0.0)
    assert given(ledger.set_workers({"y": 1, "z": 1})) == [("a", "x")]
    assert given(ledger.next(1.0)) == [("a", "z")]
    assert ledger.losses == {"a": 1}


def test_a_silent_worker_loses_its_task_and_gets_nothing_before_it_speaks():
    ledger = ledger_of("ab", x=1, y=1)
    silent, spoke = ledger.next(0.0)
    ledger.heard(spoke.number, 9.0)
    assert ledger.overdue(10.0) == []
    assert given(ledger.overdue(10.5)) == [("a", "x")]
    assert ledger.finish(spoke.number, 11.0)
    (again,) = ledger.next(11.0)
    assert (again.task, again.worker) == ("a", "y")
    assert ledger.next(12.0) == []
    assert ledger.finish(silent.number, 13.0)  # it comes first after all
    assert not ledger.finish(again.number, 14.0)
    assert ledger.is_over


def test_a_silent_worker_that_speaks_is_used_again():
    ledger = ledger_of("abc", x=1, y=1)
    silent, _ = ledger.next(0.0)
    ledger.overdue(10.5)
    ledger.heard(silent.number, 11.0)
    ledger.finish(silent.number, 12.0)
    assert [x.worker for x in ledger.next(12.0)] == ["x"]


def test_where_nothing_is_left_a_slow_task_is_begun_once_more_and_the_first_result_counts():
    ledger = ledger_of("abc", x=1, y=1)
    slow, quick = ledger.next(0.0)
    ledger.finish(quick.number, 1.0)
    (last,) = ledger.next(1.0)
    ledger.finish(last.number, 2.0)
    assert ledger.next(5.0) == []
    (copy,) = ledger.next(5.1)
    assert (copy.task, copy.worker) == ("a", "y")
    assert ledger.next(20.0) == []
    assert ledger.finish(copy.number, 6.0)
    assert ledger.is_over
    assert not ledger.finish(slow.number, 7.0)


def test_a_worker_does_not_get_what_it_failed_at_unless_all_have():
    ledger = ledger_of("a", x=1, y=1)
    (first,) = ledger.next(0.0)
    ledger.fail(first.number)
    assert not ledger.give_up("a")
    (second,) = ledger.next(0.0)
    assert {first.worker, second.worker} == {"x", "y"}
    ledger.set_workers({second.worker: 1})
    ledger.fail(second.number)
    assert given(ledger.next(0.0)) == [("a", second.worker)]


def test_a_task_that_fails_everywhere_is_given_up_once_nobody_has_it():
    ledger = ledger_of("ab", x=1, y=1)
    for _ in range(2):
        attempt = next(x for x in ledger.next(0.0) or ledger.running if x.task == "a")
        ledger.fail(attempt.number)
        for other in ledger.running:
            ledger.finish(other.number, 0.0)
    assert ledger.give_up("a")
    assert not ledger.give_up("a")
    assert ledger.is_over


def test_what_is_not_its_fault_is_not_held_against_a_task_or_a_worker():
    ledger = ledger_of("a", x=1)
    for _ in range(5):
        (attempt,) = ledger.next(0.0)
        ledger.fail(attempt.number, blames=False)
    assert ledger.losses == {}


def test_a_resting_worker_gets_nothing_and_then_is_waited_for():
    ledger = ledger_of("a", x=1)
    ledger.rest("x", 5.0)
    assert ledger.next(4.0) == []
    assert ledger.waits(4.0)
    assert given(ledger.next(5.0)) == [("a", "x")]
    assert not ledger.waits(5.0)


def test_a_result_that_no_longer_counts_is_made_again():
    ledger = ledger_of("a", x=1)
    (attempt,) = ledger.next(0.0)
    ledger.finish(attempt.number, 1.0)
    ledger.again("a")
    ledger.again("a")
    assert not ledger.is_over
    (second,) = ledger.next(1.0)
    assert ledger.next(1.0) == []
    assert ledger.finish(second.number, 2.0)
    assert ledger.is_over


def test_a_worker_that_does_one_task_at_a_time_holds_its_next_while_there_are_more_than_workers():
    ledger = Ledger(replace(LIMITS, is_serial=True), "abcdefgh")
    ledger.set_workers({"x": 2, "y": 2})
    first = ledger.next(0.0)
    assert given(first) == [("a", "x"), ("b", "y")]  # neither has shown yet that it can
    ledger.finish(first[0].number, 1.0)
    assert given(ledger.next(1.0)) == [("c", "x"), ("d", "x")]
    ledger.finish(first[1].number, 1.0)
    second = ledger.next(1.0)
    assert given(second) == [("e", "y"), ("f", "y")]
    ledger.finish(second[0].number, 2.0)
    assert ledger.next(2.0) == []  # g and h are left for whoever has nothing
    ledger.finish(second[1].number, 3.0)
    assert given(ledger.next(3.0)) == [("g", "y")]
    assert {x.task for x in ledger.set_workers({"y": 2})} == {"c", "d"}
    assert given(ledger.next(4.0)) == [("d", "y")]


def test_what_a_silent_worker_holds_goes_to_others_together():
    ledger = Ledger(replace(LIMITS, is_serial=True), "abcdef")
    ledger.set_workers({"x": 2, "y": 1})
    first = ledger.next(0.0)
    ledger.finish(first[0].number, 1.0)
    assert given(ledger.next(1.0)) == [("c", "x"), ("d", "x")]
    ledger.heard(first[1].number, 11.0)
    assert {x.task for x in ledger.overdue(11.5)} == {"c", "d"}
