"""The interpreter beside a Hopper GPU: kernels of every family give the bits that `tests.device.fixtures` recorded."""

import warnings

import pytest

from tests.compiling import EVERY, some
from tests.unit.emulate.agreement import FIXTURE, Interpreter, listed_by_name, recorded, summary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FIXTURE.exists(), reason="no results of a GPU are recorded"),
]
SAMPLE = (
    "bf16_kk_residual_sm90_one_tile_64x64_c1x1_direct",
    "e4m3_bf16_kk_gathered_sm90_grouped_64x32_c2x1_pingpong",
    "fp16_rotary_row_scalar_32x8_v1x1",
    "bf16_silu_mul_row_scalar_256x1_v1x4",
    "bf16_e4m3_block_quantize_row_scalar_32x8_v1x4",
)
"""What `make test` executes: small kernels, with TMA, wgmma, clusters, gathers, FP8 and rows among them.

Those on rows are compiled for other tests too.
"""
NUM_CASES = None if EVERY else 3
"""Of each kernel."""


def names():
    return list(listed_by_name()) if EVERY else list(SAMPLE)


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    return Interpreter(names(), tmp_path_factory.mktemp("hopper"))


@pytest.fixture(scope="module")
def agreements():
    """Collect what the kernels' tests find, for the tests behind them."""
    return {}


@pytest.mark.parametrize("name", some(names(), 3) if FIXTURE.exists() else [])
def test_a_kernel_gives_what_the_gpu_recorded(name, interpreter, agreements):
    if not interpreter.is_as_recorded(name):
        warnings.warn(f"{name} has another PTX than was recorded: its values must agree all the same", stacklevel=1)
    found = agreements[name] = interpreter.agreements(name, NUM_CASES)
    assert found
    assert [x for x in found if x.fault] == []
    assert [x for x in found if x.is_known and x.num_equal != x.num_elements] == []


def test_nearly_all_elements_are_equal(agreements):
    found = [x for of_kernel in agreements.values() for x in of_kernel]
    print("\n".join([f"{recorded().device}, {recorded().date}", *summary(found)]))
    kept = [x for x in found if x.num_equal is not None]
    assert sum(x.num_equal for x in kept) >= 0.99 * sum(x.num_elements for x in kept), summary(found)
