from dataclasses import replace

import pytest

from aot.bench.compare import Difference, Ratio, compare
from aot.core.errors import ReceiptError
from tests.unit.bench.receipts import PROBLEM, WHEEL, product_of, receipt_of

THEN = receipt_of()


def test_ratios_are_taken_round_by_round():
    assert Ratio.of((30.0, 44.0, 33.0), (20.0, 22.0, 30.0)) == Ratio(1.5, 1.1, 2.0)


def test_a_ratio_differs_where_all_its_rounds_do():
    slower = product_of(wheel_us=(25.0, 25.5, 26.0))
    (row,) = compare(THEN, receipt_of(slower)).rows
    assert row.wheel_us_is_apart
    assert row.speedup_is_apart
    assert (row.speedup_then.median, row.speedup_now.median) == (1.5, pytest.approx(30.75 / 25.5))
    near = product_of(wheel_us=(20.5, 20.6, 21.5), library_us=(30.2, 31.0, 31.4))
    found = compare(THEN, receipt_of(near))
    assert not found.rows[0].wheel_us_is_apart
    assert not found.rows[0].speedup_is_apart
    assert found.apart == ()


def test_a_speedup_of_a_slower_clock_is_the_same_though_the_times_are_not():
    throttled = product_of(wheel_us=(40.0, 41.0, 42.0), library_us=(60.0, 61.5, 63.0))
    (row,) = compare(THEN, receipt_of(throttled)).rows
    assert row.wheel_us_is_apart
    assert not row.speedup_is_apart


def test_without_a_library_on_one_side_a_ratio_is_not_known():
    (row,) = compare(THEN, receipt_of(product_of(library_us=()))).rows
    assert row.speedup_now is None
    assert row.speedup_is_apart is None


def test_what_differs_of_machines_and_wheels_is_listed_and_dates_are_not():
    now = receipt_of(
        product_of(library_us=()),
        wheel=replace(WHEEL, sha256="ef" * 32),
        device="NVIDIA H200",
        date="2026-12-01",
        power_mode=None,
    )
    assert compare(THEN, now).differences == (
        Difference("wheel's sha256", "ab" * 32, "ef" * 32),
        Difference("device", "NVIDIA H100", "NVIDIA H200"),
        Difference("power_mode", "700 W", "None"),
        Difference("library", "torch 2.13.0", "none"),
    )


def test_receipts_of_other_products_are_not_compared():
    other = receipt_of(product_of(problem=replace(PROBLEM, m=1)))
    with pytest.raises(ReceiptError, match="the receipts are of 1 and of 1 products, which are not the same"):
        compare(THEN, other)
