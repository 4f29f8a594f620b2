import ctypes

import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.errors import DeviceError, VerificationError
from aot.core.numerics import decode, encode
from aot.kinds.rows.candidate import RowLimits
from aot.kinds.rows.operation import RowFunction, RowOperation, RowScale
from aot.kinds.rows.reference import RowParameters, expected_scales, row_reference, scaled
from aot.kinds.rows.signature import RowArgument
from aot.measure.row_library import INTERLEAVED, ROUND_NORM, SCALE_GIVEN, RowLibrary, RowsProblemStruct
from aot.measure.row_verify import HEADS, RowVerifier, row_cases
from tests.unit.twins import TwinGpu, memory

VECTORS = RowLimits(16, 8, 1024)


def view(tensor, rows, cols, element):
    """Return a matrix of host memory as bits; `strides[0]` from row to row."""
    stride = max(tensor.strides[0], cols)
    flat = memory(tensor.data, (rows - 1) * stride + cols, element)
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (flat.itemsize * stride, flat.itemsize))


class TwinRows:
    """A library whose kernels compute by the reference, on host memory; `damage` spoils what they write."""

    def __init__(self, damage=None):
        self.damage, self.launched = damage, []

    def problem(self, operation):
        self.operation = operation
        return RowsProblemStruct(ctypes.sizeof(RowsProblemStruct), 1, -1)

    def _heads(self, problem):
        """Return X and Y as a row for each head, and the angles of each."""
        op, rows = self.operation, problem.rows * problem.heads
        problem.x.strides[0], problem.y.strides[0] = problem.x.strides[1], problem.y.strides[1]
        half = problem.rotary_dim // 2
        names = ((RowArgument.COS, problem.cos), (RowArgument.SIN, problem.sin))
        angles = {x: decode(op.x, view(tensor, problem.positions, half, op.x)) for x, tensor in names}
        return rows, {x: np.repeat(values, problem.heads, 0) for x, values in angles.items()}

    def launch(self, kernel, problem, stream):
        problem = RowsProblemStruct.from_buffer_copy(problem)
        op, rows, cols = self.operation, problem.rows, problem.cols
        self.launched.append((kernel, stream, rows, cols))
        values = {}
        if op.function is RowFunction.ROTARY:
            rows, values = self._heads(problem)
        values[RowArgument.X] = decode(op.x, view(problem.x, rows, op.num_columns_of_x(cols), op.x))
        for argument in (RowArgument.RESIDUAL, RowArgument.WEIGHT, RowArgument.BIAS):
            tensor = getattr(problem, argument.value)
            if tensor.data:
                count = rows if argument is RowArgument.RESIDUAL else 1
                values[argument] = decode(op.x, view(tensor, count, cols, op.x))
        parameters = RowParameters(
            problem.eps, problem.weight_offset, bool(problem.flags & INTERLEAVED), bool(problem.flags & ROUND_NORM)
        )
        expected = row_reference(op, values, parameters)
        y = expected.values
        if op.is_quantized:
            shape = (
                (1, 1) if op.scale is RowScale.TENSOR else (rows, -(-cols // 128) if op.scale is RowScale.BLOCK else 1)
            )
            scales = view(problem.scale, *shape, ElementType.FLOAT32).view(np.float32)
            if not problem.flags & SCALE_GIVEN:
                scales[:] = expected_scales(op, y).values
            y = scaled(op, y, scales.astype(np.float64))
        out = view(problem.y, rows, cols, op.y)
        out[:] = encode(op.y, y.values.astype(np.float32))
        if problem.residual_out.data:
            view(problem.residual_out, rows, cols, op.x)[:] = encode(op.x, expected.residual_out.astype(np.float32))
        if self.damage is not None:
            self.damage(problem, out, op)


@pytest.mark.parametrize("operation", list(RowOperation))
@pytest.mark.parametrize("limits", [VECTORS, RowLimits()], ids=["vectors", "scalar"])
def test_a_right_kernel_is_found_right(operation, limits):
    gpu, kernels = TwinGpu(), TwinRows()
    count = RowVerifier(gpu, kernels, np.random.default_rng(1)).verify(operation, limits, 5)
    assert count >= 4
    assert len(kernels.launched) == 2 * count
    assert {(index, stream) for index, stream, _, _ in kernels.launched} == {(5, gpu.stream)}
    assert gpu._owned == {}


def test_cases_are_those_that_the_kernel_takes():
    cases = list(row_cases(VECTORS))
    assert all(VECTORS.takes(case.cols) for case in cases)
    assert {case.rows for case in cases} == {1, 37}
    assert max(case.cols for case in cases) == 1024
    assert max(case.cols for case in row_cases(RowLimits())) == 20000
    assert HEADS > 1


def last_element(problem, out, op):
    out[-1, -1] ^= 0x40


def beyond(problem, out, op):
    memory(problem.y.data - op.y.num_bytes, 1, op.y)[:] = 7


def between_rows(problem, out, op):
    if out.shape[0] > 1:
        memory(problem.y.data + op.y.size_of(out.shape[1]), 1, op.y)[:] = 7


def of_x(problem, out, op):
    memory(problem.x.data, 1, op.x)[:] ^= 1


def no_row(problem, out, op):
    out[0] = 0xFFFF if op.y.bits == 16 else 0xFF


def residual(problem, out, op):
    if problem.residual_out.data:
        memory(problem.residual_out.data, 1, op.x)[:] ^= 1


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (last_element, "wrong result on RowCase.*: y: 1 of"),
        (no_row, "wrong result on RowCase"),
        (beyond, "wrote 1 elements outside y"),
        (between_rows, "wrote 1 elements outside y"),
        (of_x, "wrote x, which it is to read"),
        (residual, "residual_out: 1 of"),
    ],
)
def test_a_wrong_kernel_is_found_out(damage, text):
    verifier = RowVerifier(TwinGpu(), TwinRows(damage), np.random.default_rng(2))
    with pytest.raises(VerificationError, match=text):
        verifier.verify(RowOperation.BF16_RMS_NORM, VECTORS, 0)


def test_a_wrong_scale_is_found_out():
    def damage(problem, out, op):
        if not problem.flags & SCALE_GIVEN:
            memory(problem.scale.data, 1, ElementType.FLOAT32).view(np.float32)[:] *= 1.01

    verifier = RowVerifier(TwinGpu(), TwinRows(damage), np.random.default_rng(3))
    with pytest.raises(VerificationError, match="scales: 1 of"):
        verifier.verify(RowOperation.BF16_E4M3_QUANTIZE, VECTORS, 0)


def test_results_that_differ_are_found_out():
    state = []

    def damage(problem, out, op):
        state.append(1)
        # A unit in the last place of a value that may be rounded either way.
        if len(state) % 2 == 0:
            out[0, 0] ^= 1

    verifier = RowVerifier(TwinGpu(), TwinRows(damage), np.random.default_rng(4))
    with pytest.raises(VerificationError, match="two runs differ on RowCase"):
        verifier.verify(RowOperation.BF16_RMS_NORM, VECTORS, 0)


def test_a_library_that_is_none_is_refused(tmp_path):
    (tmp_path / "no.so").write_text("no library")
    with pytest.raises(DeviceError, match="cannot load"):
        RowLibrary(tmp_path / "no.so")
