import pytest

from aot.select.portfolio import curve as module
from aot.select.portfolio.choose import Budget, choose
from aot.select.portfolio.curve import SIZES, curve, portfolio_bytes
from tests.unit.twins import BF16, kernel_of, problem_of

A, B, C, D, E = (kernel_of(tile).key.candidate for tile in (16, 32, 48, 64, 80))
P = [problem_of(2**i, 64, 64) for i in range(4)]
# A problem each for A to D; E is a compromise.
TIMES = {
    p: {c: 10.0 if c == own else 10.9 if c == E else 12.0 for c in (A, B, C, D, E)}
    for p, own in zip(P, (A, B, C, D), strict=True)
}


def curve_of(times=TIMES, beside=None, chosen=4, sizes=None, **more):
    options = {"kernel_bytes": sizes or {}, "is_general": lambda _: True, **more}
    found = curve(BF16, times, beside or {}, chosen, options.pop("kernel_bytes"), **options)
    assert found.operation == BF16
    return found.points


def test_points_ascend_to_what_every_problem_wants():
    points = curve_of()
    assert [x.num_kernels for x in points] == [1, 2, 4]
    assert [x.mean for x in points] == [0.09, pytest.approx(0.0675, abs=1e-5), 0]
    assert [x.worst for x in points] == [0.09, 0.09, 0]
    assert [x.mean_bound for x in points] == [0.09, 0.06, 0]  # by two thirds of E and a third of each other one


def test_a_point_is_what_choosing_that_size_gives():
    for size, point in zip((1, 2), curve_of(), strict=False):
        found = choose(TIMES, Budget(size))
        assert (point.num_kernels, point.mean, point.worst) == (
            len(found.candidates),
            round(found.mean_regret, 5),
            round(found.worst_regret, 5),
        )


def test_the_size_that_was_chosen_has_a_point():
    assert 3 not in SIZES
    assert [x.num_kernels for x in curve_of(chosen=3)] == [1, 2, 3, 4]


def test_each_size_is_told_until_no_more_kernels_help(monkeypatch):
    tried = []
    curve_of(progress=tried.append)
    assert tried == [1, 2, 4, 6]
    monkeypatch.setattr(module, "SIZES", (2, 3))
    tried.clear()
    assert [x.num_kernels for x in curve_of(progress=tried.append, chosen=2)] == [2, 3]
    assert tried == [2, 3]


def test_problems_beside_count_in_the_choice():
    beside = {problem_of(2**i, 128, 64): {c: 10.0 if c == A else 20.0 for c in (A, B, C, D, E)} for i in range(20)}
    (first, *_) = curve_of(beside=beside)
    assert (first.num_kernels, first.mean, first.worst) == (1, 0.15, 0.2)  # A, not E


def test_the_general_kernel_is_among_them():
    (first, *_) = curve_of(is_general=lambda x: x == B)
    assert (first.mean, first.worst) == (0.15, 0.2)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({A: 100, B: 300, D: 1000}, (400, False)),
        ({A: 100, D: 301}, (100 + 200, True)),  # the mean of 100 and 301 is 200.5
        ({C: 70}, (140, True)),
        ({}, (0, True)),
    ],
)
def test_bytes_of_kernels_that_are_not_compiled_are_the_others_mean(known, expected):
    assert portfolio_bytes((A, B), known) == expected


def test_points_have_their_bytes():
    points = curve_of(sizes={A: 1000, B: 1000, C: 1000, D: 1000})
    assert [(x.wheel_bytes, x.is_estimate) for x in points] == [(1000, True), (2000, True), (4000, False)]
