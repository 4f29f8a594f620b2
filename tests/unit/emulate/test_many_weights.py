"""Kernels of several weights are executed, each weight and result in memory of its own, beside those of one product."""

from __future__ import annotations

import numpy as np
import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.element import ElementType
from aot.core.knobs import SplitK
from aot.core.numerics import decode, encode
from aot.core.operands import GemmCall
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.emulate.schedule import Mode, Schedule
from aot.kinds.gemm.trial import made_up
from aot.measure.call_structs import PartStruct, TensorStruct
from tests.compiling import EVERY
from tests.emulated import emulated_set
from tests.runtime.test_cluster_split_k import TWO_CTAS

pytestmark = pytest.mark.slow
SIMT = gemm_candidate("simt", 64, 64, use_tma_store=False)
ANY = (TWO_CTAS, SIMT)
"""They store elements: to any D."""
IN_PIECES = (
    gemm_candidate("sm90_one_tile", 64, 16, swap_ab=True, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 64, 32, 2, 1, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 64, 40, 2, 1, swap_ab=True, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 64, 40, 1, 2, use_tma_store=False),
    *(
        gemm_candidate(
            "sm90_cluster_split_k",
            *(64, 32, *cluster),
            swap_ab=swap_ab,
            use_tma_store=False,
            split_k=splits,
            split_k_mode=SplitK.CLUSTER if splits > 1 else SplitK.NONE,
        )
        for cluster, splits, swap_ab in (((1, 1), 2, True), ((1, 2), 1, False), ((2, 1), 2, True), ((4, 1), 2, True))
    ),
)
"""They store pieces of 16 bytes, to a D whose rows begin at multiples of these; some share loads."""
PAIRS = [
    (KernelKey(Operation.BF16_KK_MANY, candidate), KernelKey(Operation.BF16_KK, candidate))
    for candidate in (*ANY, *IN_PIECES)
]
K = 72
POISON = 0x7FC0
"""Of bfloat16 a NaN, which a D holds before it is written, and what lies behind each row of it."""
CASES = [
    (9, (49, 0, 3), (True, False, True)),
    *([(1, (40,), (True,)), (7, (100, 24), (False, True))] if EVERY else []),
    *([(32, (8, 1, 56, 17), (False, False, True, True))] if EVERY else []),
    *([(5, (0, 48, 0, 5), (False, True, False, False))] if EVERY else []),
]
"""Rows of x, those of each weight, ragged ones among them, and which have a bias."""
CASES_IN_PIECES = [
    (9, (48, 0, 8), (True, False, True)),
    (70, (8, 136, 64, 24), (False, True, True, False)),
    *([(1, (40,), (True,)), (33, (72, 200), (False, True))] if EVERY else []),
]
LAUNCHES = [
    *((pair, case, 3) for pair in PAIRS[: len(ANY)] for case in CASES),
    *((pair, case, 8) for pair in PAIRS[len(ANY) :] for case in CASES_IN_PIECES),
]
"""A kernel of several weights and that of one, a case, and the elements behind each row of D, which must stay."""


class Kernels:
    """The kernels in an interpreter, and memory that they work on."""

    def __init__(self, folder):
        keys = [key for pair in PAIRS for key in pair]
        self._set = emulated_set(keys, "h200", folder)
        self._names = [x.kernel.name for x in self._set.products]
        codes = [DeviceCode.of(x) for x in self._set.products]
        self.gpu = EmulatedGpu(self._set.target.l2_bytes, (Schedule(Mode.RANDOM, 3),))
        self._kernels = EmulatedKernels(self._set.library, codes, self.gpu, self._set.target)

    def put(self, bits):
        address = self.gpu.alloc(max(bits.nbytes, 2))
        self.gpu.upload(address, bits)
        return address

    def start(self, key, m, n, *, b_is_constant=False):
        """Return the struct of a product of made-up operands."""
        problem = Problem(key.operation, m, n, K)
        return self._kernels.bind(GemmCall(problem, made_up(problem)), b_is_constant=b_is_constant)

    def run(self, key, bound):
        self._kernels.launch(self._names.index(key.name), bound, 0, 0, self.gpu.stream)
        self.gpu.synchronize()
        faults = [x for execution in self.gpu.executions for x in execution.report.findings if x.kind.is_fault]
        self.gpu.forget()
        assert faults == []

    def take(self, address, m, stride):
        found = np.zeros((m, stride), np.uint16)
        self.gpu.download(address, found)
        return found


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(tmp_path_factory.mktemp("many_weights"))


def drawn(rng, *shape):
    return encode(ElementType.BFLOAT16, rng.standard_normal(shape).astype(np.float32))


def wide(bits):
    return decode(ElementType.BFLOAT16, bits).astype(np.float64)


@pytest.mark.parametrize(
    ("pair", "case", "behind"), LAUNCHES, ids=[f"{x[0].candidate.name}-{case[0]}" for x, case, _ in LAUNCHES]
)
def test_each_weight_gets_what_a_product_of_its_own_gives(kernels, pair, case, behind):
    (many, one), (m, sizes, have_bias) = pair, case
    rng = np.random.default_rng(sum(sizes) + m)
    x = drawn(rng, m, K)
    weights, biases = [drawn(rng, n, K) for n in sizes], [drawn(rng, n) for n in sizes]
    of_x = kernels.put(x)
    parts, results = [], []
    for n, weight, bias, has_bias in zip(sizes, weights, biases, have_bias, strict=True):
        stride = n + behind
        results.append((kernels.put(np.full((m, stride), POISON, np.uint16)), stride))
        added = TensorStruct(kernels.put(bias), (0, 1)) if has_bias else TensorStruct()
        parts.append(
            PartStruct(n, TensorStruct(kernels.put(weight), (K, 1)), TensorStruct(results[-1][0], (stride, 1)), added)
        )
    bound = kernels.start(many, m, sum(sizes), b_is_constant=all(sizes))
    bound.a = TensorStruct(of_x, (K, 1))
    bound.parts, bound.num_parts = (PartStruct * len(parts))(*parts), len(parts)
    kernels.run(many, bound)
    for n, weight, bias, has_bias, (address, stride) in zip(sizes, weights, biases, have_bias, results, strict=True):
        found = kernels.take(address, m, stride)
        assert (found[:, n:] == POISON).all()
        wanted = wide(x) @ wide(weight).T + (wide(bias) if has_bias else 0.0)
        np.testing.assert_allclose(wide(found[:, :n]), wanted, rtol=2**-7, atol=1e-2)
        if n == 0 or has_bias:
            continue
        alone = kernels.start(one, m, n)
        target = kernels.put(np.full((m, stride), POISON, np.uint16))
        alone.a, alone.b = bound.a, TensorStruct(kernels.put(weight), (K, 1))
        alone.d = TensorStruct(target, (stride, 1))
        kernels.run(one, alone)
        assert (kernels.take(target, m, stride) == found).all()
