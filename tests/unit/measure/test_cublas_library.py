"""What cuBLAS is called with, computed by numpy as its documentation says."""

import ctypes

import numpy as np
import pytest

from aot.core.errors import DeviceError
from aot.core.operands import GemmCall, Tensor, operands
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.measure.cublas_library import OP_T, CublasLibrary, load_cublas

LAYOUTS = [Operation.BF16_KK, Operation.BF16_KN, Operation.BF16_MK, Operation.BF16_MN, Operation.FP16_KK]


class Function:
    def __init__(self, call):
        self._call = call

    def __call__(self, *arguments):
        return self._call(*arguments)


class Twin:
    """libcublas over host memory of 16-bit integers, which it multiplies as numbers."""

    def __init__(self, status=0):
        self.calls = []
        self.cublasCreate_v2 = Function(lambda handle: self._set(handle._obj, 5))
        self.cublasGetVersion_v2 = Function(lambda _, version: self._set(version._obj, 120805))
        self.cublasSetStream_v2 = Function(lambda *x: self.calls.append(("stream", x[1])) or 0)
        self.cublasSetWorkspace_v2 = Function(lambda *x: self.calls.append(("workspace", x[1])) or 0)
        self.cublasGemmEx = Function(lambda *x: status or self._multiply(*x))

    def _set(self, place, value):
        place.value = value
        return 0

    def _multiply(self, _, op_x, op_y, n, m, k, alpha, x, kind, ldx, y, kind_y, ldy, beta, c, kind_c, ldc, *rest):
        assert (alpha.value, beta.value, kind_y, kind_c, rest) == (1.0, 0.0, kind, kind, (68, -1))
        self.kind = kind

        def read(address, op, rows, columns, leading):
            held_rows, held_columns = (columns, rows) if op == OP_T else (rows, columns)
            flat = np.ctypeslib.as_array((ctypes.c_int16 * (leading * held_columns)).from_address(address))
            found = flat.reshape(held_columns, leading)[:, :held_rows].T  # column-major
            return found.T if op == OP_T else found

        product = read(x, op_x, n, k, ldx) @ read(y, op_y, k, m, ldy)
        out = np.ctypeslib.as_array((ctypes.c_int16 * (ldc * m)).from_address(c))
        out.reshape(m, ldc)[:, :n] = product.T
        return 0


@pytest.mark.parametrize("operation", LAYOUTS, ids=str)
def test_a_product_of_each_layout_is_the_operations(operation):
    twin = Twin()
    library = CublasLibrary(twin, 77, 4096)
    assert library.names == ("cuBLAS 12.8.5",)
    assert twin.calls == [("stream", 77), ("workspace", 4096)]
    problem = Problem(operation, 3, 5, 4)
    rng = np.random.default_rng(3)
    memory = {x: rng.integers(-9, 9, 64).astype(np.int16) for x in (Argument.A, Argument.B, Argument.D)}
    placed = operands(problem, 0)
    call = GemmCall(problem, {x: Tensor(memory[x].ctypes.data, placed[x]) for x in memory})
    library.launch(0, library.bind(call), 0, 0, 77)

    def values(x):
        matrix = placed[x]
        return memory[x][matrix.positions(np.arange(matrix.num_rows), np.arange(matrix.num_columns))]

    np.testing.assert_array_equal(values(Argument.D), values(Argument.A) @ values(Argument.B).T)
    assert twin.kind == (2 if operation is Operation.FP16_KK else 14)


def test_it_has_a_baseline_of_plain_products_of_16_bits_alone():
    library = CublasLibrary(Twin(), 77, 4096)
    assert [library.baseline(x) is not None for x in LAYOUTS] == [True] * len(LAYOUTS)
    others = (Operation.BF16_KK_BIAS, Operation.BF16_KK_SILU, Operation.E4M3_BF16_KK)
    assert [library.baseline(x) for x in others] == [None] * len(others)


def test_a_failure_is_an_error_with_its_status():
    library = CublasLibrary(Twin(status=15), 77, 4096)
    problem = Problem(Operation.BF16_KK, 3, 5, 4)
    call = GemmCall(problem, {x: Tensor(0, y) for x, y in operands(problem, 0).items()})
    with pytest.raises(DeviceError, match="cublasGemmEx failed with status 15"):
        library.launch(0, library.bind(call), 0, 0, 77)


def test_a_machine_without_it_says_so(monkeypatch):
    monkeypatch.setattr("aot.measure.cublas_library._places", lambda: iter(["libno_cublas.so.13"]))
    said = []
    assert load_cublas(77, lambda _: 4096, said.append) is None
    assert said == [
        "cuBLAS's times are not taken beside the wheel's: there is no libcublas.so.13 and no libcublas.so.12"
    ]
