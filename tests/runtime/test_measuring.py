"""Verification through the runtime: what the recorder says that a kernel was called with is what is computed here.

So the chain is proven without a GPU: operands in memory, the C struct, the runtime's checks and choice, the arguments
of the kernel, D, and the float64 reference. torch on the CPU stands for the kernel, and reads what the arguments say.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from aot.core.errors import VerificationError
from aot.core.formats import FactorLayout
from aot.core.numerics import bits_type
from aot.core.operands import GemmCall, Tensor, element_of, operands
from aot.core.operation import Operation
from aot.core.signature import Argument, signature_of
from aot.kinds.gemm import edge_shapes as cases
from aot.measure.dispatched import DispatchedLibrary, RefusedError
from aot.measure.verify import Verifier
from tests.compiling import some
from tests.runtime.host import Library
from tests.runtime.stating import DENSE
from tests.unit.torch_twin import compute
from tests.unit.twins import TwinGpu, kernel_of, problem_of

ONE_LAYOUT = [x for x in DENSE if x.layout.value == "kk"]


def view(address, dtype, shape, strides):
    """Return memory as an array; strides are in elements, and below 0 where what follows lies in front."""
    kind = bits_type(dtype)
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    first, last = (sum(x for x in steps if (x < 0) is is_below) for is_below in (True, False))
    start = address + first * kind.itemsize
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * ((last - first + 1) * kind.itemsize)).from_address(start)).view(kind)
    return np.lib.stride_tricks.as_strided(flat[-first:], shape, [kind.itemsize * stride for stride in strides])


class Recorded(DispatchedLibrary):
    """The wheel over the recorder, whose kernels compute what they were called with."""

    def __init__(self, path):
        super().__init__(path)
        self.recorder, self.tiers = Library(path), []

    def launch(self, kernel, bound, workspace, workspace_bytes, stream):
        self.recorder.c.recorder_reset()
        super().launch(kernel, bound, workspace, workspace_bytes, stream)
        (launch,) = self.recorder.fake_launches()
        self.tiers.append(self.recorder.select(bound)[1].tier)
        run(self.operation_of[launch.kernel], launch, self.strides[launch.kernel])


def matrix(dtype, tensor, num_strides, *, is_k_major=True):
    """Return a matrix or a gate's two that a kernel's struct states, by both strides or by the leading ones."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    if num_strides == 1:
        strides = [*strides[: len(shape) - 1], 1]
        if not is_k_major:
            strides[-2:] = [1, strides[-2]]
    return view(tensor.data, dtype, shape, strides)


def factors(operation, launch):
    """Return both operands' factors, (rows, columns), a gate's rows of B behind each other."""
    kind = element_of(operation, Argument.SCALE_A)
    if operation.types.factors is FactorLayout.BLOCK:
        return [matrix(kind, x.matrix, 2) for x in (launch.scale_a, launch.scale_b)]
    of_b = launch.scale_b.vector if operation.gate is None else launch.scale_b.matrix
    vectors = (launch.scale_a.vector, of_b)
    return [view(x.data, kind, list(x.shape), list(x.strides)).reshape(-1, 1) for x in vectors]


def bias_of(operation, launch):
    bias = launch.bias if operation.gate is None else launch.bias.parts
    if not bias.data:
        return {}
    strides = [1] if operation.gate is None else list(bias.strides)
    return {Argument.BIAS: view(bias.data, operation.bias, list(bias.shape), strides).reshape(1, -1)}


def run(operation, launch, num_strides):
    """Compute D as a kernel does: a gate's rows and the linear ones, wherever they lie, are two operands."""
    b = launch.b if operation.gate is None else launch.b.parts
    majors = {"a": operation.a.is_k_major, "b": operation.b.is_k_major}
    operands = {
        Argument.A: matrix(operation.a.element, launch.a, num_strides, is_k_major=majors["a"]),
        Argument.B: matrix(operation.b.element, b, num_strides, is_k_major=majors["b"]).reshape(-1, launch.a.shape[1]),
    }
    if operation.types.is_scaled:
        operands[Argument.SCALE_A], operands[Argument.SCALE_B] = factors(operation, launch)
    operands |= bias_of(operation, launch) if operation.has_bias else {}
    if operation.has_residual:
        operands[Argument.RESIDUAL] = matrix(operation.d, launch.residual, num_strides)
    if Argument.SCALE_D in signature_of(operation, has_workspace=False, prefetches_b=False):
        operands[Argument.SCALE_D] = view(launch.scale_d.data, element_of(operation, Argument.SCALE_D), (1, 1), (1, 1))
    matrix(operation.d, launch.d, num_strides)[:] = compute(operation, operands)


@pytest.fixture
def recorded(every_manifest, every_path):
    library = Recorded(every_path)
    library.operation_of = [x.operation for x in every_manifest.kernels]
    library.strides = [x.num_strides for x in every_manifest.kernels]
    return library


def shapes_of(operation):
    """Return small aligned cases and those of the fallback, each arrangement and content among them."""
    aligned = cases.edge_shapes(kernel_of(operation=operation, m_multiple=1, n_multiple=1))
    unaligned = cases.edge_shapes(kernel_of(operation=operation, is_fallback=True))
    return [x for x in (*aligned, *unaligned) if x.problem.m * x.problem.n <= 20000]


@pytest.mark.slow
@pytest.mark.parametrize("operation", some(ONE_LAYOUT), ids=lambda x: x.tag)
def test_every_operation_is_verified_through_the_runtime(recorded, operation):
    gpu = TwinGpu()
    verifier = Verifier(gpu, recorded, np.random.default_rng(11))
    for shape in shapes_of(operation):
        verifier.run_once(shape)
    assert {3} < set(recorded.tiers)  # the fallback and others
    verifier.close()
    assert gpu.num_allocations == 0


@pytest.mark.slow
def test_a_kernel_that_is_called_with_another_operand_is_found(recorded, monkeypatch):
    """The proof can fail: a runtime that gave a kernel factors of another row would be found."""
    found = factors

    def shifted(operation, launch):
        a, b = found(operation, launch)
        return [np.roll(a, 1, axis=0), b]

    monkeypatch.setitem(globals(), "factors", shifted)
    verifier = Verifier(TwinGpu(), recorded, np.random.default_rng(11))
    shape = next(x for x in shapes_of(Operation.INT8_BF16_KK) if x.problem.m > 1 and x.arrangement.has_scales_of_a)
    with pytest.raises(VerificationError, match="wrong result on int8_bf16_kk"):
        verifier.run_once(shape)


def test_the_wheels_choice_is_named_and_a_refusal_is_told_from_a_failure(recorded):
    problem = problem_of(64, 64, 64, Operation.E4M3_BF16_KK)
    tensors = {x: Tensor((i + 1) << 30, y) for i, (x, y) in enumerate(operands(problem).items())}
    bound = recorded.bind(GemmCall(problem, tensors))
    assert recorded.chosen(bound).startswith("e4m3_bf16_kk_")
    assert recorded.has(Operation.E4M3_BF16_KK)
    onto_a = GemmCall(problem, tensors | {Argument.D: tensors[Argument.A]})
    with pytest.raises(RefusedError, match=r"the (launch|workspace query) gave status 4: "):
        DispatchedLibrary.launch(recorded, 0, recorded.bind(onto_a), 0, recorded.workspace_bytes(0, bound), 7)
