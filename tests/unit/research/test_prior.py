from dataclasses import fields, replace

import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.errors import TargetError
from aot.core.operation import Operation
from aot.core.target import RATES, load_target
from aot.space.cost import DEFAULTS, Constants, estimate
from aot.space.enumeration import legal
from aot.space.roofline import roofline
from research.studies.prior import (
    ASSUMED,
    BY_HAND,
    NEUTRAL,
    ORIGINS,
    Check,
    Point,
    Spread,
    assumptions,
    at_clock,
    check_source,
    load_published,
    parse_published,
    published_names,
    times_us,
)
from tests.unit.accepted import named
from tests.unit.twins import problem_of

H200, THOR = load_target("h200"), load_target("thor")
FOUND = load_published("thor")
BY_NAME = {source.name: source for source in FOUND.source}
LARGE = named("sm100_persistent_256x256_c2x1_static_2cta")
DIRECT = named("sm100_persistent_256x256_c2x1_static_2cta_direct")

TEXT = """target = "thor"
rate = []
[clock]
lowest_hz = 1.0e9
highest_hz = 2
source = "s"
[[source]]
name = "x"
address = "a/b, issue 1"
also = ""
layout = "kn"
conditions = "none stated"
cold_l2 = false
point = [{ dtype = "float16", m = 1000, n = 1000, k = 1000, tflops = 50 }]
"""


def test_every_constant_has_its_unit_and_origin():
    assert list(ORIGINS) == [field.name for field in fields(Constants)]
    neutral = {name for name, (_, origin) in ORIGINS.items() if origin == NEUTRAL}
    assert neutral == {field.name for field in fields(Constants) if field.default == 1.0 and "share" in field.name}
    assert {name for name, (_, origin) in ORIGINS.items() if origin == ASSUMED} == {
        "l2_bytes_a_clock_an_sm",
        "memory_latency_us",
    }
    assert sum(origin.startswith(BY_HAND) for _, origin in ORIGINS.values()) == 7


def test_the_assumptions_are_the_targets_and_the_models_own():
    found = {x.figure: x for x in assumptions(THOR, replace(DEFAULTS, ramp_us=9.5))}
    shown = {name: (x.value, x.unit) for name, x in found.items()}
    assert shown["num_sms"] == (20, "")
    assert shown["flops_per_s"] == (258, "TFLOP/s")
    assert shown["bandwidth_bytes_per_s"] == (273, "GB/s")
    assert shown["smem_bytes_per_block"] == (227, "KiB")
    assert shown["clock_hz"] == (1.575, "GHz")
    assert shown["ramp_us"] == (9.5, "us")
    assert set(shown) - {field.name for field in fields(Constants)} == {*list(shown)[:10]}
    assert (shown["fp8_flops_per_s"], shown["int8_flops_per_s"]) == ((516, "TFLOP/s"), (516, "TOP/s"))
    assert {x.figure: x for x in assumptions(H200)}.keys() - shown.keys() == {"exposed_promotion"}
    assert found["launch_us"].origin == "our own assumption, in want of a Thor."
    assert found["flops_per_s"].origin.startswith("20 SMs x 8192 dense bf16 FLOP a clock an SM x 1.575 GHz")


def test_published_points_are_read_with_their_units():
    assert published_names() == ["thor"]
    assert FOUND.clock.highest_hz == THOR.clock_hz
    square = next(x for x in BY_NAME["TIRx-kernels"].point if (x.dtype, x.m) == (ElementType.BFLOAT16, 4096))
    assert square.times_us() == (1693.179, 1124.945)
    of_torch = next(x for x in BY_NAME["torch-performance"].point if (x.dtype, x.m) == (ElementType.BFLOAT16, 4096))
    assert of_torch.times_us() == pytest.approx((2 * 4096**3 / 135.37e12 * 1e6,))
    assert {name: len(source.point) for name, source in BY_NAME.items()} == {
        "TIRx-kernels": 10,
        "torch-performance": 10,
        "tilelang": 1,
        "ApxInf": 50,
        "ApxInf FP8": 50,
        "Marlin NVFP4": 5,
        "torch-performance TF32": 5,
    }
    cold = {name for name, source in BY_NAME.items() if source.cold_l2}
    assert cold == {"ApxInf", "ApxInf FP8"} == {x.name for x in FOUND.source if "cold L2" in x.conditions}


def test_every_published_problem_can_be_loaded_by_tma():
    for source in FOUND.source:
        for problem in source.problems():
            operation, (n, k) = problem.operation, (problem.n, problem.k)
            strides = {"a": k, "b": k if operation.layout.b_k_major else n, "d": n}
            sizes = {name: getattr(operation, name).element.size_of(x) for name, x in strides.items() if name != "d"}
            assert all(x % 16 == 0 for x in (*sizes.values(), operation.d.size_of(n))), problem.name


def test_a_published_file_is_read():
    (source,) = parse_published(TEXT, "t").source
    assert source.problems() == [problem_of(1000, 1000, 1000, Operation.FP16_KN)]
    assert source.point[0].times_us() == (40.0,)


def test_points_may_be_of_an_operation():
    text = TEXT.replace('layout = "kn"', 'operation = "bf16xnvfp4_bf16_kk"').replace('dtype = "float16", ', "")
    (source,) = parse_published(text, "t").source
    assert source.problems() == [problem_of(1000, 1000, 1000, Operation.BF16_NVFP4_KK)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'layout = "kn"',
            'layout = "nk"',
            "t: source[0].layout: expected one of kk, kn, mk, mn, got 'nk'; mend the entry",
        ),
        ("cold_l2 = false", "cold_l2 = 1", "t: source[0].cold_l2: expected true or false, got 1; mend the entry"),
        ("cold_l2 = false\n", "", "source[0]: Source needs the key cold_l2, which is missing; mend the entry"),
        ("float16", "fp4", "source[0].point[0].dtype: expected one of bfloat16, float16, float32, tf32, "),
        ("tflops = 50", "us = []", "expected `us`, or `tflops`, not () and None"),
        (
            "tflops = 50",
            "us = [1.0, -1.0]",
            "source[0].point[0].us[1]: expected a number above 0, at most 1e+24, got -1.0",
        ),
        ("tflops = 50", "us = [1.0], tflops = 5.0", "not (1.0,) and 5.0"),
        (
            "tflops = 50",
            "tflops = 50, clock = 1",
            "source[0].point[0].clock: there is no such key in Point; it has m, n, k, dtype, us",
        ),
        ("rate = []", "rate = [", "t: "),
        ('layout = "kn"', 'operation = "e4m3_fp16_kk"', "expected `layout`, and `dtype` of each point, or `operation`"),
        (
            'dtype = "float16", ',
            "",
            "expected `layout`, and `dtype` of each point, or `operation` in the place of both",
        ),
    ],
)
def test_a_damaged_file_is_refused(old, new, message):
    assert old in TEXT
    with pytest.raises(TargetError) as caught:
        parse_published(TEXT.replace(old, new), "t")
    assert message in str(caught.value)


def test_nothing_is_published_of_an_h200():
    with pytest.raises(TargetError) as caught:
        load_published("h200")
    assert str(caught.value) == (
        "no published times of 'h200' to hold the prior against; there are of: thor; give --target"
    )


@pytest.mark.slow
def test_checks_are_the_cost_models_own_times():
    checks = check_source(BY_NAME["TIRx-kernels"], THOR, FOUND.clock)
    assert [x.problem for x in checks] == BY_NAME["TIRx-kernels"].problems()
    (check,) = (x for x in checks if x.problem == problem_of(4096, 4096, 4096))
    candidates = legal(check.problem.operation, THOR)
    times = estimate(candidates, [check.problem], THOR).total_us[0]
    assert check.predicted_us == times.min()
    assert check.kernel == candidates[times.argmin()].name == LARGE.name
    assert (check.roofline_us, check.bound) == (roofline(check.problem, THOR).time_us, "compute")
    assert (check.library_us, check.best_us) == (1693.179, 1124.945)
    assert check.ratio == 1124.945 / check.predicted_us


def test_a_lower_clock_slows_tensor_cores_and_l2_but_not_memory():
    assert at_clock(THOR, 1.575e9) == THOR
    slow = at_clock(THOR, 1.05e9)
    rates = {name: pytest.approx(getattr(THOR, name) / 1.5) for name in RATES.values()}
    assert slow == replace(THOR, clock_hz=1.05e9, **rates)
    orin = load_target("orin")
    assert at_clock(orin, orin.clock_hz / 2).fp8_flops_per_s is None
    square, row = problem_of(4096, 4096, 4096), problem_of(1, 4096, 4096)
    ratios = times_us([LARGE], [square, row], slow) / times_us([LARGE], [square, row], THOR)
    assert 1.4 < ratios[0, 0] < 1.5
    assert 1 < ratios[1, 0] < 1.1


def test_a_candidate_that_does_not_take_a_problem_has_no_time():
    times = times_us([LARGE, DIRECT], [problem_of(256, 256, 64), problem_of(255, 256, 64)], THOR)
    assert (times < float("inf")).tolist() == [[True, True], [True, False]]


def check_of(**changes):
    values = {"library_us": 60.0, "best_us": 50.0, "predicted_us": 20.0, "slow_us": 26.0, **changes}
    return Check("x", problem_of(1, 1, 1), roofline_us=1.0, bound="memory", kernel="k", **values)


def test_what_the_clock_explains():
    assert check_of().explained == pytest.approx(0.2)
    assert (check_of().ratio, check_of().slow_ratio) == (2.5, 50 / 26)
    assert check_of(best_us=22.0).explained == pytest.approx(3.0)
    assert check_of(best_us=20.0).explained is None
    assert check_of(best_us=10.0).explained is None


def test_a_spread():
    assert Spread.of([1.0, 4.0, 2.0]) == Spread(
        pytest.approx(2.0), 1.0, 4.0, pytest.approx(np.log([0.5, 1.0, 2.0]).std())
    )


def test_a_point_has_one_kind_of_time():
    assert Point(1, 1, 1, us=(3.0, 2.0)).times_us() == (3.0, 2.0)
    with pytest.raises(ValueError, match="expected `us`, or `tflops`"):
        Point(1, 1, 1)
