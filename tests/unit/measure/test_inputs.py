import numpy as np

from aot.core.element import ElementType
from aot.core.numerics import decode
from aot.measure.inputs import RandomPool
from tests.unit.twins import TwinGpu, memory


def test_host_knows_what_the_device_holds():
    gpu = TwinGpu()
    pool = RandomPool(gpu, ElementType.BFLOAT16, np.random.default_rng(3), num_elements=4096)
    address = gpu.alloc(2 * 9001)
    tiling = pool.tile(address, 9001)
    assert np.array_equal(memory(address, 9001), tiling.gather(np.arange(9001)))
    assert len(set(tiling.offsets.tolist())) > 1


def test_values_are_standard_normal_and_differ_between_runs():
    first = RandomPool(TwinGpu(), ElementType.FLOAT16, np.random.default_rng(4), num_elements=1 << 16).source
    second = RandomPool(TwinGpu(), ElementType.FLOAT16, np.random.default_rng(5), num_elements=1 << 16).source
    values = decode(ElementType.FLOAT16, first)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert (first == second).mean() < 0.01
