"""A rotary embedding that writes keys and values to a cache, executed: positions in the cache, and outside of it."""

from __future__ import annotations

import numpy as np
import pytest

from aot.core.candidate import KernelKey
from aot.core.element import ElementType
from aot.core.numerics import bits_type
from aot.core.operation import Operation
from aot.emulate.code import DeviceCode
from aot.emulate.faults import Fault, FaultKind
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.emulate.schedule import Mode, Schedule
from aot.kinds.rows.cache import FREE_POSITIONS, RowCache
from aot.kinds.rows.call import RowCase
from aot.kinds.rows.candidate import RowKernelKey, row_candidate
from aot.kinds.rows.catalogue import row_operation
from aot.measure.verify import EdgeCase
from tests.emulated import emulated_set
from tests.unit.emulate.test_many_weights import SIMT

pytestmark = pytest.mark.slow
OPERATION = row_operation("bf16_rotary")
KEYS = [RowKernelKey(OPERATION, row_candidate(*x)) for x in (("row_rotary", 8, 16, 8, 1), ("row_scalar", 32, 8, 1, 1))]
TOKENS, SEQUENCES = 6, 2
LENGTH = TOKENS // SEQUENCES + FREE_POSITIONS


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    found = emulated_set([KernelKey(Operation.BF16_KK, SIMT), *KEYS], "h200", tmp_path_factory.mktemp("caches"))
    gpu = EmulatedGpu(found.target.l2_bytes, (Schedule(Mode.RANDOM, 3),))
    codes = [DeviceCode.of(x) for x in (*found.products, *found.rows)]
    names = [x.kernel.name for x in (*found.products, *found.rows)]
    return gpu, EmulatedKernels(found.library, codes, gpu, found.target), [names.index(x.name) for x in KEYS]


def run(kernels, place, positions, monkeypatch):
    """Run a kernel on a case whose tokens have such positions; give what is wrong with what it wrote."""
    gpu, launched, numbers = kernels
    gpu.forget()
    held = np.array(positions, np.int64).view(bits_type(ElementType.INT32)).reshape(1, -1, 2)
    monkeypatch.setattr(RowCache, "draw_position", lambda *_: held)
    case = RowCase(OPERATION, TOKENS, 64, is_full=False, sequences=SEQUENCES)
    edge = EdgeCase(gpu, launched, case, np.random.default_rng(5), 0)
    edge.poison()
    launched.launch(numbers[place], edge.bound, 0, 0, gpu.stream)
    gpu.synchronize()
    return edge.compare(edge.read()).fault


@pytest.mark.parametrize("place", range(len(KEYS)))
@pytest.mark.parametrize("positions", [(0, 1, 2), (LENGTH - 1, 0, 3), (-1, -LENGTH, 2)])
def test_tokens_go_to_their_positions_of_which_some_count_from_the_end(kernels, place, positions, monkeypatch):
    assert run(kernels, place, positions, monkeypatch) == ""


@pytest.mark.parametrize("place", range(len(KEYS)))
@pytest.mark.parametrize("outside", [LENGTH, -LENGTH - 1, 2**31, -(2**40), 2**62])
def test_a_position_outside_ends_the_kernel(kernels, place, outside, monkeypatch):
    with pytest.raises(Fault) as caught:
        run(kernels, place, (1, outside, 0), monkeypatch)
    assert caught.value.kind is FaultKind.TRAP
