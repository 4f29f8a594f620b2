import pytest

from aot.bench.summary import Speed, speeds
from aot.core.operation import Operation
from aot.core.problem import Problem
from tests.unit.bench.receipts import product_of, receipt_of


def test_each_operation_has_its_mean_and_its_least():
    fp16 = Problem(Operation.FP16_KK, 16, 4096, 4096)
    slower = product_of(wheel_us=(40.0, 41.0, 42.0))
    found = speeds(receipt_of(product_of(), slower, product_of(problem=fp16), product_of(library_us=())))
    assert found == (
        Speed(Operation.BF16_KK, 2, pytest.approx((1.5 * 0.75) ** 0.5), 0.75, 1),
        Speed(Operation.FP16_KK, 1, pytest.approx(1.5), 1.5, 0),
    )


def test_without_a_library_there_is_nothing_to_say():
    assert speeds(receipt_of(product_of(library_us=()))) == ()
