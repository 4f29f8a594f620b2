"""Every operation's cases: a right kernel passes, by torch on the CPU, and each of many wrong ones is found."""

import numpy as np
import pytest

from aot.core.alignment import is_aligned
from aot.core.element import ElementType
from aot.core.errors import VerificationError
from aot.core.grouping import Grouping
from aot.core.numerics import decode, encode
from aot.core.operands import plain_arrangement
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.core.weight_format import PackedLayout
from aot.kinds.gemm import edge_shapes as cases
from aot.measure.verify import Verifier
from tests.compiling import some
from tests.unit.torch_twin import compute
from tests.unit.twins import TwinGpu, TwinKernels, kernel_of

A, B, BIAS, RESIDUAL = Argument.A, Argument.B, Argument.BIAS, Argument.RESIDUAL
SCALE_A, SCALE_B, SCALE_D = Argument.SCALE_A, Argument.SCALE_B, Argument.SCALE_D
FEW = cases.ALIGNED_SHAPES[1:6]
DENSE = [x for x in Operation if x.grouping is Grouping.DENSE and x.factors_of_d is None]
"""Without those that write factors with D, which are executed: tests/equivalence/test_quantized_results.py."""
NEW = [x for x in DENSE if x.layout.value == "kk" and x not in (Operation.BF16_KK, Operation.FP16_KK)]


def verify(operation, product=None, *, is_fallback=False):
    gpu = TwinGpu()
    kernels = TwinKernels(gpu, [kernel_of(operation=operation, is_fallback=is_fallback)])
    if product is not None:
        kernels.product = product
    verifier = Verifier(gpu, kernels, np.random.default_rng(6))
    try:
        return verifier.verify(kernels.kernels[0], 0)
    finally:
        verifier.close()
        assert gpu.num_allocations == 0


OF_EACH_TYPES = list({x.types: x for x in reversed(NEW)}.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "is_fallback"),
    [*((x, False) for x in some(NEW, 12)), *((x, True) for x in some(OF_EACH_TYPES))],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_a_right_kernel_passes(operation, is_fallback, monkeypatch):
    monkeypatch.setattr(cases, "ALIGNED_SHAPES", FEW)
    error = verify(operation, is_fallback=is_fallback)
    largest = {ElementType.INT32: 0, ElementType.FLOAT32: 3e-7, ElementType.FLOAT16: 5e-4, ElementType.E4M3: 0.04}
    assert error <= largest.get(operation.d, 4e-3)
    assert error > 0 or operation.d is ElementType.INT32


def wrong(change=lambda operation, operands: operands, **options):
    """Return a kernel that computes right with other operands, or another step."""

    def product(operation, operands, is_interleaved):
        changed = change(operation, {x: y.copy() for x, y in operands.items()})
        return compute(operation, changed, **{"is_interleaved": is_interleaved, **options})

    return product


def without(argument):
    return wrong(lambda _, operands: {x: y for x, y in operands.items() if x is not argument})


def shifted(argument, axis=0):
    return wrong(lambda _, operands: operands | {argument: np.roll(operands[argument], 1, axis)})


def first_alone(argument):
    return wrong(
        lambda _, operands: operands | {argument: np.broadcast_to(operands[argument][:1], operands[argument].shape)}
    )


def unscaled(operation, operands):
    one = encode(ElementType.FLOAT32, np.float32([1.0]))[0]
    return operands | {SCALE_D: np.full_like(operands[SCALE_D], one)}


def factor_behind_bias(operation, operands):
    """Have the tensors' own factor multiply the bias too."""
    bias, factor = decode(operation.bias, operands[BIAS]), decode(ElementType.FLOAT32, operands[SCALE_D])
    return operands | {BIAS: encode(operation.bias, (bias * factor).astype(np.float32))}


def without_last_k(operation, operands):
    operands[A][:, -1] = 0
    return operands


def bytes_turned(operation, operands):
    codes = operands[A]
    turned = codes[:, : codes.shape[1] // 2 * 2].reshape(len(codes), -1, 2)[:, :, ::-1]
    codes[:, : codes.shape[1] // 2 * 2] = turned.reshape(len(codes), -1)
    return operands


def factor_changed(operation, operands):
    """Change the first block's factors of a packed weight, by an exponent less."""
    layout = PackedLayout(operation.b.weight)
    start, end = layout.code_bytes, layout.code_bytes + layout.factor_bytes
    operands[B][:, start:end] ^= 0x08
    return operands


def atoms_changed(operation, operands):
    """Change the factors of the last rows of a weight in rows likewise: those of 128 rows are 16 rows of bytes."""
    operands[B][-PackedLayout(operation.b.weight).rows_of_atoms :] ^= 0x08
    return operands


def halves_exchanged(operation, operands):
    half = len(operands[B]) // 2
    return operands | {B: np.roll(operands[B], half, axis=0)}


def turns_exchanged(operation, operands):
    """Exchange row 2 j of a weight, and its factors, with row 2 j + 1."""
    turned = {
        x: operands[x].reshape(-1, 2, operands[x].shape[1])[:, ::-1].reshape(operands[x].shape) for x in (B, SCALE_B)
    }
    return operands | turned


def in_fewer_bits(operation, operands):
    """Cut float32 to TF32, as its tensor cores do."""
    return operands | {x: operands[x] & np.uint32(0xFFFFE000) for x in (A, B)}


def in_bf16(operation, operands):
    return operands | {x: operands[x] & np.uint32(0xFFFF0000) for x in (A, B)}


def without_subnormals(operation, operands):
    for x in (A, B):
        codes = operands[x] & 0x7F
        operands[x][codes < (8 if operation.a.element is ElementType.E4M3 else 4)] = 0
    return operands


def nan_is_zero(operation, operands, is_interleaved):
    bits = compute(operation, operands, is_interleaved=is_interleaved)
    bits[np.isnan(decode(operation.d, bits))] = 0
    return bits


def overflows_to_nan(operation, operands, is_interleaved):
    bits = compute(operation, operands, is_interleaved=is_interleaved)
    bits[(bits & 0x7F) == 0x7E] |= 1
    return bits


WRONG = {
    "scales of A shifted": (Operation.E4M3_BF16_KK, shifted(SCALE_A)),
    "scales of B shifted": (Operation.INT8_BF16_KK, shifted(SCALE_B)),
    "one scale of A": (Operation.E4M3_BF16_KK, first_alone(SCALE_A)),
    "one scale of B": (Operation.E5M2E4M3_BF16_KK, first_alone(SCALE_B)),
    "blocks of A shifted along k": (Operation.E4M3_BF16_BLOCK_KK, shifted(SCALE_A, 1)),
    "blocks of B shifted": (Operation.E4M3_BF16_BLOCK_KK, shifted(SCALE_B)),
    "narrow factors of A shifted along k": (Operation.NVFP4_BF16_KK, shifted(SCALE_A, 1)),
    "narrow factors of B shifted": (Operation.MXFP4_BF16_KK, shifted(SCALE_B)),
    "no factor of the tensors": (Operation.NVFP4_BF16_KK, wrong(unscaled)),
    "the tensors' factor behind the bias": (Operation.NVFP4_BF16_KK_BIAS, wrong(factor_behind_bias)),
    "no residual beside narrow factors": (Operation.MXFP8_BF16_KK_RESIDUAL, without(RESIDUAL)),
    "gelu by tanh for gelu beside narrow factors": (Operation.NVFP4_BF16_KK_GELU, wrong(activation="gelu_tanh")),
    "relu for silu beside narrow factors": (Operation.MXFP8_BF16_KK_SILU, wrong(activation="relu")),
    "linear rows before the gate's": (Operation.MXFP8_BF16_KK_SWIGLU, wrong(turns_exchanged)),
    "turns read as halves": (Operation.NVFP4_BF16_KK_GEGLU, wrong(is_interleaved=False)),
    "halves of a byte exchanged": (Operation.MXFP4_BF16_KK, wrong(bytes_turned)),
    "no bias": (Operation.E4M3_BF16_KK, without(BIAS)),
    "no bias beside a packed weight": (Operation.BF16_INT4_G128_KK, without(BIAS)),
    "rows of a packed weight shifted by a tile": (Operation.BF16_MXFP4_KK, shifted(B)),
    "factors of a packed weight's rows shifted": (Operation.FP16_INT8_KK, shifted(SCALE_B)),
    "one byte of a packed weight": (Operation.BF16_NVFP4_KK, wrong(factor_changed)),
    "rows of a weight in rows shifted": (Operation.BF16_NVFP4_ROWS_KK, shifted(B)),
    "factors of a weight in rows": (Operation.FP16_NVFP4_ROWS_KK, wrong(atoms_changed)),
    "bias shifted": (Operation.FP16_KK_SILU, shifted(BIAS, 1)),
    "no residual": (Operation.BF16_KK_RESIDUAL, without(RESIDUAL)),
    "no scale of D": (Operation.E4M3_E4M3_KK, wrong(unscaled)),
    "overflow to NaN": (Operation.E4M3_E4M3_KK, overflows_to_nan),
    "gate and linear half exchanged": (Operation.BF16_KK_SWIGLU, wrong(halves_exchanged)),
    "interleaved read as halves": (Operation.BF16_KK_GEGLU, wrong(is_interleaved=False)),
    "halves read as interleaved": (Operation.E4M3_BF16_KK_SWIGLU, wrong(is_interleaved=True)),
    "gelu for silu": (Operation.BF16_KK_SILU, wrong(activation="gelu")),
    "gelu by tanh for gelu": (Operation.FP16_KK_GELU, wrong(activation="gelu_tanh")),
    "relu for gelu by tanh": (Operation.E4M3_BF16_KK_GELU_TANH, wrong(activation="relu")),
    "one step of k left out": (Operation.E4M3_BF16_FAST_KK, wrong(without_last_k)),
    "one step of k left out of int8": (Operation.INT8_INT32_KK, wrong(without_last_k)),
    "subnormals flushed": (Operation.E4M3_FP32_KK, wrong(without_subnormals)),
    "tf32 for fp32": (Operation.FP32_KK, wrong(in_fewer_bits)),
    "bf16 for tf32": (Operation.TF32_KK, wrong(in_bf16)),
    "a NaN becomes 0": (Operation.BF16_KK_RELU, nan_is_zero),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(name, monkeypatch):
    monkeypatch.setattr(cases, "ALIGNED_SHAPES", FEW)
    operation, product = WRONG[name]
    with pytest.raises(VerificationError, match=f"wrong result on {operation.tag} "):
        verify(operation, product)


def test_what_int8_kernels_read_outside_an_operand_shows(monkeypatch):
    """Padding and guards hold -128: a kernel that reads a row of A past its end takes that for the last element."""
    monkeypatch.setattr(cases, "ALIGNED_SHAPES", FEW)
    seen = []

    class Kernels(TwinKernels):
        def _compute(self, call, fault):
            seen.append(call)
            super()._compute(call, fault)

    gpu, kernel = TwinGpu(), kernel_of(operation=Operation.INT8_INT32_KK)
    kernels = Kernels(gpu, [kernel])
    verifier = Verifier(gpu, kernels, np.random.default_rng(6))
    verifier.verify(kernel, 0)
    for call in seen:
        for argument in (A, B):
            tensor = call.tensors[argument]
            owned = next(x for start, x in gpu._owned.items() if start <= tensor.address < start + len(x))
            start = tensor.address - owned.ctypes.data
            rows, columns, stride = tensor.matrix.num_rows, tensor.matrix.num_columns, tensor.matrix.row_stride
            for row in range(rows):
                end = start + row * stride + columns
                assert (owned[end : start + (row + 1) * stride] == 0x80).all()
            assert (owned[start - 2048 : start] == 0x80).all()
    verifier.close()


def test_the_messages_say_what_was_arranged():
    texts = [str(x) for x in cases.edge_shapes(kernel_of(operation=Operation.E4M3_BF16_KK_SWIGLU))]
    one = "with one factor for all of"
    assert texts[:4] == [
        "e4m3_bf16_kk_swiglu m1 n8 k16, strides padded by 0",
        "e4m3_bf16_kk_swiglu m2 n136 k64, strides padded by 16, with linear rows in front of the gate's",
        "e4m3_bf16_kk_swiglu m7 n24 k528, strides padded by 0, without a bias, with interleaved gates",
        f"e4m3_bf16_kk_swiglu m17 n520 k48, strides padded by 16, {one} A, {one} B",
    ]
    assert texts[-1] == "e4m3_bf16_kk_swiglu m40 n136 k208, strides padded by 0, with special values"


@pytest.mark.parametrize("operation", some(DENSE, 12), ids=lambda x: x.tag)
def test_aligned_cases_are_aligned_and_have_every_arrangement(operation):
    shapes = cases.edge_shapes(kernel_of(operation=operation, m_multiple=64, n_multiple=48))
    for shape in shapes:
        assert is_aligned(shape.problem) or shape.stride_multiple > 1
        assert (shape.problem.m % 64, shape.problem.n % 48, shape.offset) == (0, 0, 0)
    if operation in NEW and operation not in (Operation.BF16_KK_BIAS, Operation.FP16_KK_BIAS):
        arranged = cases.ARRANGEMENTS if operation.gate is None else cases.GATE_ARRANGEMENTS
        if operation.gate is not None and not operation.may_interleave:
            arranged = [x for x in arranged if not x.is_interleaved]
        arranged = cases.PART_ARRANGEMENTS if operation.has_parts else arranged
        if operation.is_interleaved:
            arranged = [plain_arrangement(operation), *(x for x in cases.ARRANGEMENTS if x.is_interleaved)]
        assert {x.arrangement for x in shapes} == set(arranged)
        has_special = cases.Content.SPECIAL in {x.content for x in shapes}
        assert has_special == (operation.b.weight is None)
    else:
        assert {(x.arrangement, x.content) for x in shapes} == {(cases.PLAIN, cases.Content.RANDOM)}


def test_gates_with_factors_of_blocks_are_never_interleaved():
    for operation in (Operation.E4M3_BF16_BLOCK_KK_GROUPED_SWIGLU, Operation.E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU):
        found = {x.arrangement for x in cases.edge_shapes(kernel_of(operation=operation))}
        assert found == {x for x in cases.ARRANGEMENTS if not x.is_interleaved}
        assert len(found) == 3
