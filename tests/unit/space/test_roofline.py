import pytest

from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.space.roofline import Roofline, roofline
from tests.unit.twins import problem_of

H200 = load_target("h200")


def test_a_weight_read_once_is_bound_by_memory():
    # 2 * (1 * 4096 + 4096 * 4096 + 1 * 4096) bytes at 4.3e12 a second
    assert roofline(problem_of(1, 4096, 4096), H200) == Roofline(pytest.approx(33_570_816 / 4.3e6), "memory")


def test_a_large_product_is_bound_by_compute():
    assert roofline(problem_of(8192, 8192, 8192), H200) == Roofline(pytest.approx(2 * 8192**3 / 7.9e8), "compute")


def test_the_bound_changes_where_the_two_are_equal():
    bounds = [roofline(problem_of(m, 4096, 4096), H200).bound for m in range(1, 1000)]
    change = bounds.index("compute")
    assert set(bounds[:change]) == {"memory"}
    assert set(bounds[change:]) == {"compute"}
    assert 200 < change < 240


@pytest.mark.parametrize(
    ("tag", "flops_per_s"),
    [
        ("fp16_kk_residual", 7.9e14),
        ("e4m3_bf16_kk", 1.58e15),
        ("e5m2e4m3_bf16_kk", 1.58e15),
        ("e4m3_bf16_block_kk", 1.58e15),
        ("int8_int32_kk", 1.58e15),
        ("tf32_kk", 3.95e14),
        ("fp32_kk", 6.7e13),
    ],
)
def test_the_rate_is_that_of_the_operands(tag, flops_per_s):
    found = roofline(Problem(Operation(tag), 8192, 8192, 8192), H200)
    assert found == Roofline(pytest.approx(2 * 8192**3 / flops_per_s * 1e6), "compute")


def test_a_gate_multiplies_both_halves():
    found = roofline(Problem(Operation.BF16_KK_SWIGLU, 8192, 8192, 8192), H200)
    assert found == Roofline(pytest.approx(4 * 8192**3 / 7.9e8), "compute")
