"""Corrected quotients are the exact ones: all significands of X's types, random float32, ties, and far-out values."""

import ctypes

import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.numerics import encode
from aot.kinds.rows.quantization import CORRECTED_SCALES, LEAST_QUOTIENT, MOST_QUOTIENT
from tests import native

SIGNIFICAND = {"bfloat16": 8, "float16": 11}
LEAST, MOST = CORRECTED_SCALES
POINTER = ctypes.POINTER(ctypes.c_float)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    source = native.ROOT / "tests" / "unit" / "families" / "rows" / "quotient.cc"
    # Nothing is contracted: each operation below is one of the kernel's.
    flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared"]
    made = native.link([source], tmp_path_factory.mktemp("quotient") / "quotient.so", native.GCC, flags, [])
    found = ctypes.CDLL(str(made))
    found.count_of_significands.restype = found.count_of_random.restype = ctypes.c_uint64
    return found


def quotients(library, x, scale):
    """Compute corrected and exact quotients."""
    arrays = [np.ascontiguousarray(v, np.float32) for v in (x, scale, np.empty_like(x), np.empty_like(x))]
    library.quotients(ctypes.c_int64(x.size), *(v.ctypes.data_as(POINTER) for v in arrays))
    return arrays[2:]


@pytest.mark.slow
@pytest.mark.parametrize(("element", "step"), [("bfloat16", 1), ("float16", 8)])
def test_every_quotient_of_an_elements_significands_is_exact(library, element, step):
    """Of float16 every eighth here; all of them were compared on 2026-11-22, and were equal."""
    bits = SIGNIFICAND[element]
    assert library.count_of_significands(bits, ctypes.c_uint32(7 % step), ctypes.c_uint32(step)) == 0


@pytest.mark.slow
def test_two_corrections_are_exact_for_random_float32_and_none_is_not(library):
    count = ctypes.c_uint64(10**7)
    assert library.count_of_random(count, ctypes.c_uint64(7), 2) == 0
    assert library.count_of_random(count, ctypes.c_uint64(7), 0) > 10**6


def check(library, x, scale):
    """Compare quotients where they are of an ordinary size, and what is left of them in 8 bits everywhere."""
    with np.errstate(over="ignore", invalid="ignore"):
        ordinary = (scale >= LEAST) & (scale <= MOST) & (np.abs(x) <= scale * np.float32(MOST_QUOTIENT))
    x, scale = x[ordinary], scale[ordinary]
    found, exact = quotients(library, x, scale)
    large = np.abs(exact) >= LEAST_QUOTIENT
    np.testing.assert_array_equal(found[large], exact[large])
    assert (np.abs(found[~large]) < 2 * LEAST_QUOTIENT).all()
    np.testing.assert_array_equal(np.signbit(found), np.signbit(exact))
    for element in (ElementType.E4M3, ElementType.INT8):
        np.testing.assert_array_equal(encode(element, found), encode(element, exact))
    return int(large.sum()), int((~large).sum())


@pytest.mark.slow
def test_quotients_of_every_size_are_exact_or_round_to_0_with_their_sign(library):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 1_000_000, np.uint32)
    scale = np.ldexp(rng.uniform(1, 2, bits.size), rng.integers(-64, 64, bits.size)).astype(np.float32)
    least = np.finfo(np.float32).smallest_subnormal
    x = np.concatenate([bits.view(np.float32), np.array([0.0, -0.0, least, -least], np.float32)])
    assert min(check(library, x, np.append(scale, np.float32([1.5, 1.5, LEAST, MOST])))) > 10_000
    # Near the scale, as by far the most are.
    near = np.ldexp(rng.uniform(-2, 2, scale.size), rng.integers(-24, 9, scale.size)) * scale
    assert min(check(library, near.astype(np.float32), scale)) > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("divisor", [448, 127])
def test_what_lies_next_to_a_tie_is_rounded_as_the_exact_quotient_is(library, divisor):
    rng = np.random.default_rng(divisor)
    ties = np.arange(0.5, 127) if divisor == 127 else np.outer(2.0 ** np.arange(-10, 8), 1 + (np.arange(8) + 0.5) / 8)
    largest = np.float32(rng.uniform(0, 1, (20_000, 1))) * np.exp2(rng.integers(-40, 40, (20_000, 1)))
    scale = np.float32(largest.astype(np.float32) / np.float32(divisor))
    x = (ties.reshape(1, -1) * scale).astype(np.float32)
    for steps in (-2, -1, 0, 1, 2):
        beside = (x.view(np.int32) + steps).view(np.float32)
        assert check(library, beside.ravel(), np.broadcast_to(scale, x.shape).ravel())[0] > 10_000
