import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.numerics import decode, encode
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.kinds.gemm.inputs import SCALE_D, content_of, draw_scales
from aot.kinds.inputs import deviation, draw
from aot.measure.inputs import RandomPool, RandomPools
from tests.unit.twins import TwinGpu, memory

TYPES = (
    ElementType.BFLOAT16,
    ElementType.FLOAT16,
    ElementType.FLOAT32,
    ElementType.TFLOAT32,
    ElementType.E4M3,
    ElementType.E5M2,
    ElementType.INT8,
)


@pytest.mark.parametrize("dtype", TYPES)
def test_host_knows_what_the_device_holds(dtype):
    gpu, rng = TwinGpu(), np.random.default_rng(3)
    pool = RandomPool(gpu, dtype, rng, draw(dtype, rng, 4096))
    address = gpu.alloc(dtype.size_of(9001))
    tiling = pool.tile(address, 9001)
    held = memory(address, 9001, dtype)
    assert np.array_equal(held, tiling.gather(np.arange(9001)))
    assert np.array_equal(tiling.values(np.arange(9001)), decode(dtype, held))
    assert len(set(tiling.offsets.tolist())) > 1
    assert all(offset * dtype.num_bytes % 16 == 0 for offset in tiling.offsets.tolist())


@pytest.mark.parametrize("dtype", TYPES)
def test_elements_have_the_deviation_that_is_said_and_none_is_zero(dtype):
    first, second = (draw(dtype, np.random.default_rng(seed), 1 << 16) for seed in (4, 5))
    values = decode(dtype, first)
    assert abs(values.mean()) < 0.02 * deviation(dtype)
    assert abs(values.std() / deviation(dtype) - 1) < 0.02
    assert values.all()
    assert (first == second).mean() < 0.05


def test_int8_takes_all_values_but_what_lies_beside_operands():
    values = decode(ElementType.INT8, draw(ElementType.INT8, np.random.default_rng(6), 1 << 16))
    assert set(values.tolist()) == set(range(-127, 128)) - {0}


def test_tf32_has_no_more_bits_than_the_tensor_cores_read():
    bits = draw(ElementType.TFLOAT32, np.random.default_rng(7), 1 << 12)
    assert np.array_equal(bits & np.uint32(0xFFFFE000), bits)
    assert (draw(ElementType.FLOAT32, np.random.default_rng(7), 1 << 12) & 0x1FFF != 0).mean() > 0.99


def test_factors_differ_over_eight_octaves():
    values = decode(ElementType.FLOAT32, draw_scales(np.random.default_rng(8), 1 << 12, 0.5))
    assert len(set(values.tolist())) > 4000
    assert (0.5 / 16 <= values.min() < 0.04, 7 < values.max() <= 8) == (True, True)


def test_each_operand_has_a_pool_of_its_kind():
    pools, operation = RandomPools(TwinGpu(), np.random.default_rng(9), 1 << 12), Operation.INT8_BF16_KK

    def pool(operation, argument):
        return pools.of(content_of(operation, argument))

    a, scale_a, bias = (pool(operation, x) for x in (Argument.A, Argument.SCALE_A, Argument.BIAS))
    assert pool(operation, Argument.B) is a
    assert pool(Operation.INT8_INT32_KK, Argument.A) is a
    assert pool(operation, Argument.SCALE_B) is scale_a
    assert pool(Operation.E4M3_BF16_KK, Argument.SCALE_B) is not scale_a
    assert content_of(Operation.BF16_KK_GROUPED, Argument.OFFSETS) is None
    assert [x.source.dtype.itemsize for x in (a, scale_a, bias)] == [1, 4, 2]
    # An int8 sum of 65536 products, scaled on both sides, is a float16 number.
    largest = decode(ElementType.FLOAT32, scale_a.source).max() ** 2 * deviation(ElementType.INT8) ** 2
    assert 6 * np.sqrt(65536) * largest < 65504
    scale_d = pool(Operation.E4M3_E4M3_KK, Argument.SCALE_D).source
    assert set(scale_d.tolist()) == set(encode(ElementType.FLOAT32, np.float32([SCALE_D])).tolist())
