from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey
from aot.core.element import ElementType
from aot.core.measurement import OK, Measurement, Outcome, Record, Status
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.select.times.known import measured_times, split, spreads, with_imputed_times
from tests.unit.accepted import named
from tests.unit.twins import BF16, CONDITIONS, problem_of

PLAIN = named("sm90_quack_128x128_c1x1_pingpong")
SMALL = named("sm90_quack_64x16_c1x1_pingpong_swap")
OTHER = named("sm90_quack_64x32_c1x1_pingpong_swap")
FAILED = Status(Outcome.FAILED, "wrong result")


def measured(candidate, m, median_us, status=OK):
    problem = problem_of(m, 4096, 4096)
    return Measurement(KernelKey(BF16, candidate), problem, median_us, median_us, median_us, 7, 1e-3, status)


def test_only_sound_measurements_count():
    items = (measured(PLAIN, 1, 20.0), measured(PLAIN, 4096, 200.0), measured(SMALL, 4096, 0.0, FAILED))
    small, big = problem_of(1, 4096, 4096), problem_of(4096, 4096, 4096)
    assert measured_times(Record("h200", (CONDITIONS,), items)) == {BF16: {small: {PLAIN: 20.0}, big: {PLAIN: 200.0}}}


def test_times_of_the_other_type_stand_in():
    bf16, fp16 = Operation.of(ElementType.BFLOAT16), Operation.of(ElementType.FLOAT16)
    sizes = (64, 4096, 4096)
    times = {bf16: {Problem(bf16, *sizes): {SMALL: 12.0, PLAIN: 10.0}}, fp16: {Problem(fp16, *sizes): {SMALL: 11.0}}}
    filled = with_imputed_times(times)
    levelled = {SMALL: 11.0, PLAIN: pytest.approx(10.0 * 11 / 12)}
    assert filled[fp16] == {Problem(fp16, *sizes): levelled}
    assert filled[bf16] == times[bf16]


def test_times_of_the_other_type_stand_in_as_they_are_where_nothing_levels_them():
    fp16 = Operation.of(ElementType.FLOAT16)
    sizes = (64, 4096, 4096)
    times = {BF16: {Problem(BF16, *sizes): {PLAIN: 10.0}}, fp16: {Problem(fp16, *sizes): {SMALL: 11.0}}}
    assert with_imputed_times(times)[fp16] == {Problem(fp16, *sizes): {SMALL: 11.0, PLAIN: 10.0}}


def test_spreads_are_half_the_distance_of_the_quartiles_over_the_median():
    full = replace(measured(PLAIN, 1, 20.0), low_us=19.0, high_us=22.0)
    items = (
        full,
        replace(full, kernel=KernelKey(BF16, SMALL), median_us=10.0, low_us=10.0, high_us=10.0),
        replace(full, problem=problem_of(2, 4096, 4096), num_rounds=1),  # one round has no quartiles
        replace(full, problem=problem_of(3, 4096, 4096), status=FAILED),
    )
    found = spreads(Record("h200", (CONDITIONS,), items))
    assert found == {BF16: {problem_of(1, 4096, 4096): {PLAIN: pytest.approx(3 / 40), SMALL: 0.0}}}
    assert spreads(Record("h200", (CONDITIONS,), items[2:])) == {}


def test_what_is_held_out_is_told_by_n_k_and_m():
    fp16 = Operation.of(ElementType.FLOAT16)
    rows = {sizes: {PLAIN: float(i)} for i, sizes in enumerate([(1, 64, 128), (1, 128, 64), (2, 64, 128)], 1)}
    times = {operation: {Problem(operation, *x): row for x, row in rows.items()} for operation in (BF16, fp16)}
    inside, outside = split(times, frozenset({(64, 128, 1), (64, 64, 64)}))
    for operation in (BF16, fp16):
        assert outside[operation] == {Problem(operation, 1, 64, 128): {PLAIN: 1.0}}
        assert inside[operation] == {
            Problem(operation, 1, 128, 64): {PLAIN: 2.0},
            Problem(operation, 2, 64, 128): {PLAIN: 3.0},
        }
    assert split(times, frozenset()) == (times, {})
    everything = frozenset((n, k, m) for m, n, k in rows)
    assert split(times, everything) == ({}, times)


def test_times_without_a_bias_are_imputed_to_those_with_one_and_not_back():
    plain, bias = Operation.BF16_KK, Operation.BF16_KK_BIAS
    sizes = (64, 4096, 4096)
    times = {
        plain: {Problem(plain, *sizes): {SMALL: 12.0, PLAIN: 10.0}},
        bias: {Problem(bias, *sizes): {SMALL: 18.0, OTHER: 7.0}},
    }
    filled = with_imputed_times(times)
    assert filled[bias] == {Problem(bias, *sizes): {SMALL: 18.0, OTHER: 7.0, PLAIN: pytest.approx(15.0)}}
    assert filled[plain] == times[plain]


def test_a_problem_that_only_an_equivalent_operation_was_timed_on_is_imputed_as_a_whole():
    bf16, fp16, bias = Operation.BF16_KK, Operation.FP16_KK, Operation.BF16_KK_BIAS
    here, there = (64, 4096, 4096), (128, 4096, 4096)
    times = {
        bf16: {Problem(bf16, *here): {SMALL: 12.0, PLAIN: 10.0}, Problem(bf16, *there): {PLAIN: 20.0}},
        fp16: {Problem(fp16, *here): {SMALL: 11.0}},
        bias: {Problem(bias, *here): {OTHER: 9.0}},
    }
    filled = with_imputed_times(times)
    # Nothing levels them, nothing being common.
    assert filled[fp16][Problem(fp16, *there)] == {PLAIN: 20.0}
    assert filled[bias][Problem(bias, *there)] == {PLAIN: 20.0}
    assert {operation: set(rows) for operation, rows in filled.items()} == {
        x: {Problem(x, *here), Problem(x, *there)} for x in (bf16, fp16, bias)
    }
    # An operation that has no time at all is given none, and what was timed in all is imputed to none as a whole.
    assert bf16 not in with_imputed_times({fp16: times[fp16]})
    assert filled[bf16] == {Problem(bf16, *here): {SMALL: 12.0, PLAIN: 10.0}, Problem(bf16, *there): {PLAIN: 20.0}}


def test_of_two_equivalent_operations_the_nearest_stands_in():
    bf16, fp16, bias = Operation.BF16_KK, Operation.FP16_KK, Operation.BF16_KK_BIAS
    sizes = (64, 4096, 4096)
    times = {
        bias: {Problem(bias, 1, 64, 64): {PLAIN: 1.0}},
        bf16: {Problem(bf16, *sizes): {PLAIN: 10.0}},
        fp16: {Problem(fp16, *sizes): {PLAIN: 11.0, SMALL: 13.0}},
    }
    assert with_imputed_times(times)[bias][Problem(bias, *sizes)] == {PLAIN: 10.0, SMALL: 13.0}


def test_a_gate_takes_the_times_of_the_product_of_both_halves():
    plain, gate = Operation.BF16_KK, Operation.BF16_KK_SWIGLU
    times = {plain: {Problem(plain, 64, n, 4096): {PLAIN: float(n)} for n in (512, 1024, 24)}, gate: {}}
    # Of n 24, D would have 12 columns, which no tensor-core kernel stores.
    assert with_imputed_times(times)[gate] == {
        Problem(gate, 64, 256, 4096): {PLAIN: 512.0},
        Problem(gate, 64, 512, 4096): {PLAIN: 1024.0},
    }
