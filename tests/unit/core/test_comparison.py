import numpy as np
import pytest

from aot.core.comparison import ERROR_BOUND, Comparison, compare, worst
from aot.core.element import ElementType
from aot.core.numerics import encode
from aot.core.operation import Operation
from aot.core.reference import Expected, is_16_bit_product

BF16, FP16 = Operation.BF16_KK, Operation.FP16_KK


def expect(values, radius=0.0):
    return Expected(values, np.full_like(values, radius))


def bits(operation, values):
    return encode(operation.d, np.asarray(values, np.float32))


@pytest.mark.parametrize(("operation", "typical"), [(BF16, 1.65e-3), (FP16, 2.06e-4)])
def test_correct_rounding_passes_well_within_the_bound(operation, typical):
    expected = np.random.default_rng(1).standard_normal((300, 400)) * 20
    outcome = compare(operation, bits(operation, expected), expect(expected))
    assert outcome.fault == ""
    assert outcome.relative_error == pytest.approx(typical, rel=0.05)
    assert outcome.relative_error < ERROR_BOUND[operation.d] / 2


def test_one_wrong_element_among_many_is_found_though_the_norm_hardly_moves():
    expected = np.random.default_rng(2).standard_normal((1000, 1000))
    result = bits(BF16, expected)
    result[17, 31] = bits(BF16, [expected[17, 31] + 1])[0]
    outcome = compare(BF16, result, expect(expected))
    assert outcome.relative_error < ERROR_BOUND[ElementType.BFLOAT16]
    assert "1 of 1000000 elements are wrong, most at (17, 31)" in outcome.fault


def test_unwritten_and_infinite_elements_are_named():
    expected = np.ones((2, 3))
    result = bits(FP16, expected)
    result[1, 2] = 0xFFFF
    assert compare(FP16, result, expect(expected)).fault == (
        "1 of 6 elements are not finite; the first, (1, 2), was not written"
    )
    result[1, 2] = 0x7C00
    assert compare(FP16, result, expect(expected)).fault.endswith("(1, 2), is inf")


def test_integers_are_exact_and_what_was_not_written_is_named():
    expected = np.array([[5.0, -7.0]])
    operation = Operation.INT8_INT32_KK
    assert compare(operation, np.array([[5, -7]], np.int32).view(np.uint32), expect(expected)).fault == ""
    off = compare(operation, np.array([[5, -6]], np.int32).view(np.uint32), expect(expected))
    assert "1 of 2 elements are wrong, most at (0, 1): got -6, expected -7, between -7 and -7" in off.fault
    unwritten = np.array([[5, -2139062144]], np.int32).view(np.uint32)
    assert compare(operation, unwritten, expect(expected)).fault == (
        "1 of 2 elements are not written; the first, (0, 1), was not written"
    )


@pytest.mark.parametrize("operation", [Operation.E4M3_FP16_KK, Operation.BF16_KK_SILU, Operation.E4M3_E4M3_KK])
def test_an_element_may_be_what_any_value_within_the_radius_rounds_to(operation):
    """1 + half a unit in the last place is a tie: both neighbours are right, and no third."""
    unit = {11: 2.0**-10, 8: 2.0**-7, 4: 2.0**-3}[{"fp16": 11, "bf16": 8, "e4m3": 4}[operation.d.tag]]
    expected = expect(np.array([[1 + unit / 2]]), unit / 64)
    for value, is_right in ((1.0, True), (1 + unit, True), (1 + 2 * unit, False), (1 - unit, False)):
        assert (compare(operation, bits(operation, [[value]]), expected).fault == "") is is_right


def test_the_radius_does_not_depend_on_other_elements():
    """A wrong small element beside a huge one is found: with a bound on the norm it would not be."""
    expected = expect(np.array([[1e4, 1e-3]]), 1e-6)
    assert compare(Operation.E4M3_BF16_KK, bits(Operation.E4M3_BF16_KK, [[1e4, 1e-3]]), expected).fault == ""
    assert "(0, 1)" in compare(Operation.E4M3_BF16_KK, bits(Operation.E4M3_BF16_KK, [[1e4, 2e-3]]), expected).fault


def test_fp8_saturates():
    expected = expect(np.array([[1e4, -460.0, np.inf, 463.0]]), 0.5)
    right = bits(Operation.E4M3_E4M3_KK, [[448, -448, 448, 448]])
    outcome = compare(Operation.E4M3_E4M3_KK, right, expected)
    assert outcome == type(outcome)(0.0)
    assert (
        "(0, 0): got 416, expected 448"
        in compare(Operation.E4M3_E4M3_KK, bits(Operation.E4M3_E4M3_KK, [[416, -448, 448, 448]]), expected).fault
    )


@pytest.mark.parametrize("operation", [BF16, FP16, Operation.FP16_KK_SILU, Operation.TF32_KK, Operation.E4M3_BF16_KK])
def test_what_is_not_finite_is_compared_by_kind(operation):
    expected = expect(np.array([[np.nan, np.inf, -np.inf, 1.0]]))
    right = [[np.nan, np.inf, -np.inf, 1.0]]
    assert compare(operation, bits(operation, right), expected).fault == ""
    for column, value in ((0, 1.0), (0, np.inf), (1, np.nan), (1, -np.inf), (1, 3.0), (2, np.inf), (3, np.nan)):
        wrong = np.array(right)
        wrong[0, column] = value
        assert f"(0, {column})" in compare(operation, bits(operation, wrong), expected).fault


def test_what_is_open_may_be_anything():
    expected = Expected(np.array([[np.nan, 1.0]]), np.array([[np.inf, 0.0]]))
    for value in (np.nan, np.inf, -np.inf, 3.0):
        assert compare(Operation.BF16_KK_SWIGLU, bits(BF16, [[value, 1.0]]), expected).fault == ""


def test_a_sum_that_float16_does_not_hold_is_infinite():
    expected = expect(np.array([[70000.0, 65519.0]]), 0.0)
    for operation in (FP16, Operation.FP16_KK_SILU):
        assert compare(operation, np.array([[0x7C00, 0x7BFF]], np.uint16), expected).fault == ""
        assert "(0, 0)" in compare(operation, np.array([[0x7BFF, 0x7BFF]], np.uint16), expected).fault


def test_only_products_of_16_bits_have_the_bound_of_their_type():
    assert sorted(x.tag for x in Operation if is_16_bit_product(x)) == sorted(
        [f"{x}_{layout}" for x in ("bf16", "fp16") for layout in ("kk", "kn", "mk", "mn")]
        + [f"{x}_{layout}_batched" for x in ("bf16", "fp16") for layout in ("kk", "kn", "mk", "mn")]
        + [f"{x}_{more}" for x in ("bf16", "fp16") for more in ("kk_bias", "kk_grouped", "kn_grouped", "kk_gathered")]
        + ["bf16_mn_kgrouped", "fp16_mn_kgrouped"]
    )


def test_the_largest_error_is_told_by_the_error_allowed():
    """The bound of a bf16 element is 5e-3 of its magnitude and of the root mean square, here 4 each."""
    expected = np.full((2, 2), 4.0)
    assert compare(BF16, bits(BF16, expected), expect(expected)).share_of_bound == 0
    off = expected.copy()
    off[0, 1] += 2.0**-5  # one unit in the last place, of a bound of 0.04; of all four the norm is off by less
    assert compare(BF16, bits(BF16, off), expect(expected)).share_of_bound == pytest.approx(2.0**-5 / 0.04)
    off[0, 1] += 2.0**-5
    assert compare(BF16, bits(BF16, off), expect(expected)).share_of_bound == np.inf


def test_the_rounding_of_a_right_result_takes_no_share_of_a_bound_by_radius():
    operation = Operation.BF16_KK_SILU
    expected = expect(np.array([[1.003, -1.003]]), 2.0**-8)
    assert compare(operation, bits(operation, expected.values), expected).share_of_bound == 0
    one_off = np.array([[1.003 + 2.0**-7, -1.003]])
    assert compare(operation, bits(operation, one_off), expected).share_of_bound == pytest.approx(1)


def test_of_several_outcomes_the_worst_counts():
    outcomes = [Comparison(0.1, share_of_bound=0.7), Comparison(0.3), Comparison(0.2, "is wrong", np.inf)]
    assert worst(outcomes[:2]) == Comparison(0.3, share_of_bound=0.7)
    assert worst(outcomes) == outcomes[2]
