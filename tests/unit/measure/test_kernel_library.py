import _ctypes
import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from aot.core.element import ElementType
from aot.core.errors import DeviceError
from aot.core.operands import Arrangement, GemmCall, Matrix, Tensor, operands
from aot.core.operation import Layout, Operation
from aot.kinds.rows.call import RowCall
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.reference import RowParameters
from aot.kinds.rows.signature import RowArgument
from aot.measure.call_structs import (
    INTERLEAVED,
    ROUND_NORM,
    SCALE_GIVEN,
    ProblemStruct,
    RowsProblemStruct,
    TensorStruct,
    rows_struct,
)
from aot.measure.kernel_library import KernelLibrary, operation_of
from tests.compiling import some
from tests.struct_layout import INCLUDE, layout_of_ctypes, layout_of_header
from tests.unit.twins import problem_of

TWIN = r"""
#include <string.h>
#include "aot_gemm_tuning.h"
static aot_gemm_problem_t last;
static size_t last_bytes;
static void *last_workspace, *last_stream;
static int32_t last_order;
int32_t aot_gemm_num_kernels(void) { return 2; }
int32_t aot_gemm_operation(const char* tag) {
  return strcmp(tag, "bf16") == 0 ? 70 : strcmp(tag, "fp16") == 0 ? 71 : strcmp(tag, "bf16_bias") == 0 ? 72 :
         strcmp(tag, "e4m3_e4m3") == 0 ? 73 : strcmp(tag, "e4m3_bf16_block") == 0 ? 74 :
         strcmp(tag, "bf16_residual") == 0 ? 75 : strcmp(tag, "e4m3_bf16_swiglu") == 0 ? 76 : -2;
}
const char* aot_gemm_kernel_name(int32_t i) { return i == 0 ? "first" : i == 1 ? "second" : 0; }
int32_t aot_rows_num_kernels(void) { return 1; }
const char* aot_rows_kernel_name(int32_t i) { return i == 0 ? "third" : 0; }
int32_t aot_rows_operation(const char* tag) { return strcmp(tag, "bf16_rms_norm") == 0 ? 90 : -2; }
static aot_rows_problem_t last_rows;
static int32_t last_rows_kernel;
aot_gemm_status_t aot_rows_launch_kernel(int32_t kernel, const aot_rows_problem_t* p, void* s) {
  if (p->cols % 2) return AOT_GEMM_ERROR_SHAPE;
  last_rows = *p; last_rows_kernel = kernel; last_stream = s;
  return AOT_GEMM_OK;
}
const aot_rows_problem_t* twin_last_rows(void) { return &last_rows; }
int32_t twin_last_rows_kernel(void) { return last_rows_kernel; }
const char* aot_gemm_last_error(void) { return "k is odd"; }
const char* aot_gemm_arch(void) { return "sm_90a"; }
aot_gemm_status_t aot_gemm_kernel_workspace_bytes(int32_t kernel, const aot_gemm_problem_t* p, size_t* n) {
  if (p->k % 2) return AOT_GEMM_ERROR_SHAPE;
  *n = (size_t)(p->m * p->n) << (kernel * 32);
  return AOT_GEMM_OK;
}
aot_gemm_status_t aot_gemm_launch_kernel_in_order(int32_t kernel, int32_t order, const aot_gemm_problem_t* p, void* w,
                                                  size_t n, void* s) {
  if (p->k % 2) return AOT_GEMM_ERROR_STRIDE;
  last = *p; last_workspace = w; last_bytes = n + (size_t)kernel; last_stream = s; last_order = order;
  return AOT_GEMM_OK;
}
aot_gemm_status_t aot_gemm_kernel_max_active_clusters(int32_t kernel, const aot_gemm_problem_t* p, void* w, size_t n,
                                                      int32_t* clusters) {
  if (p->k % 2 || w != (void*)4096 || n != 8) return AOT_GEMM_ERROR_SHAPE;
  *clusters = kernel == 0 ? -1 : 0;
  return AOT_GEMM_OK;
}
int32_t twin_order(void) { return last_order; }
int twin_b_constant(void) { return (int)AOT_GEMM_B_CONSTANT; }
int twin_interleaved(void) { return (int)AOT_GEMM_GATE_INTERLEAVED; }
int twin_parts(void) { return (int)AOT_GEMM_GATE_PARTS; }
const aot_gemm_problem_t* twin_last(void) { return &last; }
int twin_has(void* w, size_t n, void* s) { return w == last_workspace && n == last_bytes && s == last_stream; }
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("twin")
    (folder / "twin.c").write_text(TWIN)
    command = [compiler, "-Wall", "-Werror", "-shared", "-fPIC", f"-I{INCLUDE}", "-o", "twin.so", "twin.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "twin.so"


def call_of(problem, arrangement=Arrangement()):  # noqa: B008
    placed = operands(problem, 8, arrangement)
    tensors = {x: Tensor((i + 1) << 40, matrix) for i, (x, matrix) in enumerate(placed.items())}
    return GemmCall(problem, tensors, arrangement.is_interleaved, arrangement.is_linear_first)


def test_library_tells_its_kernels(path):
    library = KernelLibrary(path)
    assert (library.names, library.arch) == (("first", "second", "third"), "sm_90a")


@pytest.mark.parametrize("struct", [ProblemStruct, TensorStruct])
def test_the_structs_are_those_of_the_header(struct, tmp_path):
    c_name = {ProblemStruct: "aot_gemm_problem_t", TensorStruct: "aot_gemm_tensor_t"}[struct]
    assert layout_of_ctypes(struct) == layout_of_header(struct, c_name, tmp_path)


def test_every_value_arrives(path):
    library, twin = KernelLibrary(path), ctypes.CDLL(str(path))
    problem = problem_of(5, 6, 8, Operation.of(ElementType.FLOAT16, Layout.MN))
    bound = library.bind(call_of(problem), b_is_constant=True)
    library.launch(1, bound, 4096, 99, 1 << 45)
    twin.twin_last.restype = ctypes.POINTER(ProblemStruct)
    last = twin.twin_last().contents
    assert (last.operation, last.device, last.m, last.n, last.k) == (71, -1, 5, 6, 8)
    assert last.struct_bytes == ctypes.sizeof(ProblemStruct)
    tensors = (last.a, last.b, last.d)
    assert [x.data for x in tensors] == [1 << 40, 2 << 40, 3 << 40]
    assert [list(x.strides) for x in tensors] == [[1, 13], [1, 14], [14, 1]]
    assert last.flags == twin.twin_b_constant()
    twin.twin_has.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert (twin.twin_has(4096, 100, 1 << 45), twin.twin_order()) == (1, 0)
    library.launch(1 + 3 * 5, bound, 4096, 99, 1 << 45)
    assert (twin.twin_has(4096, 100, 1 << 45), twin.twin_order()) == (1, 5)
    library.launch(0, library.bind(call_of(problem)), 4096, 99, 1 << 45)
    assert last.flags == 0
    library.launch(0, bound, 0, 0, 7)
    assert twin.twin_has(None, 0, 7)


def test_a_bias_arrives(path):
    library, twin = KernelLibrary(path), ctypes.CDLL(str(path))
    problem = problem_of(5, 6, 8, Operation.BF16_KK_BIAS)
    library.launch(0, library.bind(call_of(problem)), 4096, 99, 1 << 45)
    twin.twin_last.restype = ctypes.POINTER(ProblemStruct)
    last = twin.twin_last().contents
    assert (last.operation, last.bias.data, list(last.bias.strides)) == (72, 4 << 40, [0, 1])
    library.launch(0, library.bind(call_of(problem_of(5, 6, 8))), 4096, 99, 1 << 45)
    assert (last.operation, last.bias.data, list(last.bias.strides)) == (70, None, [0, 0])


def launched(path, operation, *arrangement):
    """Return the struct that the library gets of a problem (5, 256, 384)."""
    library, twin = KernelLibrary(path), ctypes.CDLL(str(path))
    library.launch(0, library.bind(call_of(problem_of(5, 256, 384, operation), *arrangement)), 0, 0, 7)
    twin.twin_last.restype = ctypes.POINTER(ProblemStruct)
    return twin, twin.twin_last().contents


def told(tensor):
    return tensor.data and tensor.data >> 40, list(tensor.strides)


def test_factors_arrive_as_columns_whose_row_stride_is_1_or_0(path):
    _, last = launched(path, Operation.E4M3_E4M3_KK)
    found = [told(x) for x in (last.scale_a, last.scale_b, last.bias, last.residual, last.scale_d)]
    assert found == [(4, [1, 1]), (5, [1, 1]), (6, [0, 1]), (None, [0, 0]), (7, [1, 1])]
    one_for_all = Arrangement(has_bias=False, has_scales_of_a=False, has_scales_of_b=False)
    _, last = launched(path, Operation.E4M3_E4M3_KK, one_for_all)
    found = [told(x) for x in (last.scale_a, last.scale_b, last.bias, last.scale_d)]
    assert found == [(4, [0, 1]), (5, [0, 1]), (None, [0, 0]), (6, [1, 1])]


def test_factors_of_blocks_arrive_by_rows_or_by_columns(path):
    _, last = launched(path, Operation.E4M3_BF16_BLOCK_KK)
    assert [told(x) for x in (last.scale_a, last.scale_b)] == [(4, [11, 1]), (5, [11, 1])]
    _, last = launched(path, Operation.E4M3_BF16_BLOCK_KK, Arrangement(has_row_major_blocks=False))
    assert [told(x) for x in (last.scale_a, last.scale_b)] == [(4, [1, 13]), (5, [1, 10])]


def test_a_residual_arrives(path):
    _, last = launched(path, Operation.BF16_KK_RESIDUAL)
    assert [told(x) for x in (last.d, last.bias, last.residual)] == [(3, [264, 1]), (4, [0, 1]), (5, [264, 1])]


def test_interleaved_gates_have_their_flag(path):
    twin, last = launched(path, Operation.E4M3_BF16_KK_SWIGLU, Arrangement(is_interleaved=True))
    assert last.flags == twin.twin_interleaved()
    _, last = launched(path, Operation.E4M3_BF16_KK_SWIGLU)
    assert last.flags == 0


def test_linear_rows_in_front_are_a_step_below_0_from_the_gates(path):
    twin, last = launched(path, Operation.E4M3_BF16_KK_SWIGLU, Arrangement(is_linear_first=True))
    stride = last.b.strides[0]
    assert last.flags == twin.twin_parts()
    assert (last.b.data, last.group_strides.b) == ((2 << 40) + last.n * stride, -last.n * stride)
    assert told(last.bias) == (6, [0, 1])


def test_an_operation_that_the_library_lacks_is_refused(path):
    with pytest.raises(DeviceError, match=r"^the operation fp16_bias: k is odd$"):
        KernelLibrary(path).bind(call_of(problem_of(5, 6, 8, Operation.FP16_KK_BIAS)))


def test_workspace_of_more_than_four_gib(path):
    library = KernelLibrary(path)
    assert library.workspace_bytes(0, library.bind(call_of(problem_of(5, 6, 8)))) == 30
    assert library.workspace_bytes(1, library.bind(call_of(problem_of(5, 6, 8)))) == 30 << 32


def test_active_clusters(path):
    library = KernelLibrary(path)
    bound = library.bind(call_of(problem_of(5, 6, 8)))
    assert library.max_active_clusters(0, bound, 4096, 8) is None
    assert library.max_active_clusters(1, bound, 4096, 8) == 0
    with pytest.raises(DeviceError, match="the query of active clusters of second gave status 3: k is odd"):
        library.max_active_clusters(1, library.bind(call_of(problem_of(5, 6, 7))), 4096, 8)


def test_status_and_text_become_an_error(path):
    library = KernelLibrary(path)
    bound = library.bind(call_of(problem_of(5, 6, 7)))
    with pytest.raises(DeviceError, match="the launch of second gave status 4: k is odd"):
        library.launch(1, bound, 0, 0, 0)
    with pytest.raises(DeviceError, match="the workspace query of first gave status 3: k is odd"):
        library.workspace_bytes(0, bound)


def test_file_that_is_no_library_is_refused(tmp_path):
    with pytest.raises(DeviceError, match="cannot load the kernel library"):
        KernelLibrary(tmp_path / "absent.so")
    with pytest.raises(DeviceError, match="aot_gemm_num_kernels"):
        KernelLibrary(Path(_ctypes.__file__))


@pytest.mark.parametrize("operation", some(Operation))
def test_a_kernels_name_begins_with_its_operation(operation):
    assert operation_of(f"{operation.tag}_sm90_quack_64x16_c1x1_pingpong") is operation


def test_a_call_on_rows_arrives(path):
    library, twin = KernelLibrary(path), ctypes.CDLL(str(path))
    twin.twin_last_rows.restype = ctypes.POINTER(RowsProblemStruct)
    problem = RowProblem(row_operation("bf16_rms_norm"), 3, 8)
    tensors = {
        RowArgument.X: Tensor(1 << 40, Matrix(3, 8, 16, 1)),
        RowArgument.WEIGHT: Tensor(2 << 40, Matrix(1, 8, 8, 1)),
    }
    parameters = RowParameters(0.5, 1.0, is_interleaved=True, rounds_norm=True)
    bound = library.bind(RowCall(problem, tensors, parameters, scale_is_given=True))
    library.launch(2, bound, 0, 0, 77)
    last = twin.twin_last_rows().contents
    assert (last.struct_bytes, last.operation, last.device) == (ctypes.sizeof(RowsProblemStruct), 90, -1)
    assert (last.rows, last.cols, last.eps, last.weight_offset) == (3, 8, 0.5, 1.0)
    assert last.flags == INTERLEAVED | ROUND_NORM | SCALE_GIVEN
    assert (last.x.data, list(last.x.strides), last.weight.data, last.y.data) == (1 << 40, [16, 1, 0], 2 << 40, None)
    assert twin.twin_last_rows_kernel() == 0
    odd = library.bind(RowCall(RowProblem(row_operation("bf16_rms_norm"), 3, 7), tensors))
    with pytest.raises(DeviceError, match="the launch of third gave status 3: k is odd"):
        library.launch(2, odd, 0, 0, 77)
    with pytest.raises(DeviceError, match="the operation bf16_rotary: k is odd"):
        library.bind(RowCall(RowProblem(row_operation("bf16_rotary"), 6, 8), tensors))


def test_heads_of_tokens_arrive(path):
    whole, angles = Matrix(3, 8, 12, 1, 2, 40), Matrix(2, 2, 4, 1)
    tensors = {x: Tensor((i + 1) << 40, whole) for i, x in enumerate((RowArgument.X, RowArgument.Y))}
    tensors |= {x: Tensor((i + 3) << 40, angles) for i, x in enumerate((RowArgument.COS, RowArgument.SIN))}
    bound = rows_struct(RowCall(RowProblem(row_operation("bf16_rotary"), 6, 8), tensors), 5)
    assert (bound.rows, bound.heads, bound.cols, bound.positions, bound.rotary_dim) == (2, 3, 8, 2, 4)
    assert [list(getattr(bound, x).strides) for x in ("x", "y", "cos", "sin")] == [[40, 12, 1]] * 2 + [[4, 1, 0]] * 2
