import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, Grid, Ladder, Row, Section
from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.select.score.heldout import against, score
from aot.select.selection import AgainstReference, HeldOut
from tests.unit.accepted import named
from tests.unit.twins import BF16, problem_of

FALLBACK = named("simt_64x64_c1x1_direct")
BIG = named("sm90_quack_128x128_c1x1_pingpong")
SMALL = named("sm90_quack_64x16_c1x1_pingpong_swap")
UNSHIPPED = named("sm90_quack_128x256_c2x1_cooperative")
KERNELS = tuple(KernelKey(BF16, x) for x in (FALLBACK, BIG, SMALL))


def row(kernel):
    return Row(kernel, kernel, 1.0, "predicted", kernel, 1.0)


# m up to 16 gets SMALL, above BIG; in the ladder from 64 on.
SECTION = Section(
    BF16,
    (Ladder(512, 512, (64, 128), (row(2), row(1))),),
    Grid((1024,), (1024,), (Column((16, 256), (2, 1)),)),
    0,
)
TUNED = {
    problem_of(32, 512, 512): {SMALL: 10.0, BIG: 12.0, UNSHIPPED: 10.0},  # right
    problem_of(64, 512, 512): {SMALL: 12.0, BIG: 10.0, UNSHIPPED: 8.0},  # rounding 0.2, regret 0.5
    problem_of(65, 512, 512): {SMALL: 16.0, BIG: 11.0, UNSHIPPED: 10.0},  # right, but for what is not shipped: 0.1
}
GRID = {
    problem_of(16, 1024, 512): {SMALL: 5.0, BIG: 4.0},  # 0.25
    problem_of(17, 1024, 512): {SMALL: 5.0, BIG: 4.0},
    problem_of(300, 2048, 2048): {SMALL: 4.0, BIG: 4.4, UNSHIPPED: 9.0},  # beyond every edge: 0.1
    problem_of(400, 2048, 2048): {SMALL: 4.0, UNSHIPPED: 9.0},  # its kernel was not timed
}


def test_rounding_is_over_the_best_shipped_and_regret_over_the_best_of_all():
    (found,) = score(SECTION, KERNELS, TUNED)
    assert found == HeldOut(BF16, 1, 3, 0, round(0.2 / 3, 5), 0.2, 0.2, 0.5, "bf16_kk m64 n512 k512")


def test_tiers_are_scored_apart_and_what_was_not_timed_is_counted():
    tuned, grid = score(SECTION, KERNELS, {**GRID, **TUNED})
    assert (tuned,) == score(SECTION, KERNELS, TUNED)
    assert grid == HeldOut(BF16, 2, 3, 1, round(0.35 / 3, 5), 0.25, round(0.35 / 3, 5), 0.25, "bf16_kk m16 n1024 k512")


def test_a_tier_of_which_nothing_was_timed_has_no_regret():
    (found,) = score(SECTION, KERNELS, {problem_of(1, 1024, 512): {BIG: 4.0}})
    assert found == HeldOut(BF16, 2, 0, 1, 0.0, 0.0, 0.0, 0.0, "")


def test_nothing_held_out_and_what_only_the_fallback_takes_is_nothing():
    assert score(SECTION, KERNELS, {}) == ()
    assert score(SECTION, KERNELS, {problem_of(16, 1023, 512): {SMALL: 5.0}, problem_of(16, 512, 511): {}}) == ()


def test_kernels_of_another_operation_are_not_what_could_have_been_picked():
    other = KernelKey(Operation.of(ElementType.FLOAT16), UNSHIPPED)
    assert score(SECTION, (*KERNELS, other), TUNED) == score(SECTION, KERNELS, TUNED)


def test_a_kernel_of_whole_tiles_is_scored_by_the_one_that_stands_in():
    direct = named("sm100_persistent_128x128_c1x1_clc_direct")
    general = named("sm100_persistent_128x128_c1x1_clc")
    kernels = tuple(KernelKey(BF16, x) for x in (FALLBACK, direct, general))
    ladder = Ladder(1024, 512, (256,), (Row(1, 2, 1.0, "predicted", 2, 1.0),))
    section = Section(BF16, (ladder,), Grid((1024,), (1024,), (Column((256,), (2,)),)), 0)
    times = {
        problem_of(128, 1024, 512): {direct: 4.0, general: 5.0},
        problem_of(129, 1024, 512): {direct: 4.0, general: 5.0},
    }
    (found,) = score(section, kernels, times)
    assert (found.bucketing_loss_mean, found.bucketing_loss_worst, found.worst_problem) == (
        0.125,
        0.25,
        "bf16_kk m129 n1024 k512",
    )


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_scores_do_not_depend_on_the_unit(scale):
    times = {problem: {c: scale * us for c, us in row.items()} for problem, row in {**GRID, **TUNED}.items()}
    assert score(SECTION, KERNELS, times) == score(SECTION, KERNELS, {**GRID, **TUNED})


def test_a_tables_kernels_against_the_reference():
    times = {**TUNED, **GRID}
    # Speeds: 1.1, 0.95, 0.9 and, of the kernel that was not timed, none; the others' reference is not known.
    references = {
        problem_of(32, 512, 512): 11.0,
        problem_of(64, 512, 512): 11.4,
        problem_of(16, 1024, 512): 4.5,
        problem_of(400, 2048, 2048): 4.0,
        problem_of(8, 64, 64): 1.0,
    }
    for is_heldout in (False, True):
        assert against(SECTION, KERNELS, times, references, is_heldout=is_heldout) == AgainstReference(
            BF16, is_heldout, 3, 1, round((1.1 * 0.95 * 0.9) ** (1 / 3), 5), 2, 1, 0.9, "bf16_kk m16 n1024 k512"
        )


def test_where_the_reference_or_the_kernel_was_not_timed_nothing_is_compared():
    assert against(SECTION, KERNELS, TUNED, {}, is_heldout=False) is None
    assert against(SECTION, KERNELS, {}, {problem_of(32, 512, 512): 11.0}, is_heldout=False) is None
    untimed = problem_of(400, 2048, 2048)
    assert against(SECTION, KERNELS, {untimed: GRID[untimed]}, {untimed: 4.0}, is_heldout=False) is None


@pytest.mark.parametrize(("reference", "counts"), [(9.81, (0, 0)), (9.79, (1, 0)), (9.31, (1, 0)), (9.29, (1, 1))])
def test_what_counts_as_slower_than_the_reference(reference, counts):
    problem = problem_of(32, 512, 512)
    found = against(SECTION, KERNELS, {problem: TUNED[problem]}, {problem: reference}, is_heldout=False)
    assert (found.num_below_98, found.num_below_93, found.mean, found.worst) == (
        *counts,
        *[round(reference / 10, 5)] * 2,
    )
