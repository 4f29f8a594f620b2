"""Products of packed weights over the recorder: what the C API takes, what kernels get, what Python's calls become."""

from __future__ import annotations

import ctypes

import pytest

from aot.core.weight_format import PackedLayout
from aot.measure.call_structs import ProblemStruct, TensorStruct
from tests.runtime import host
from tests.runtime.exchange import Framework
from tests.runtime.stating import PACKED
from tests.runtime.tensors import BFLOAT16, FLOAT16, FLOAT32, UINT8

M, N, K = 48, 72, 256
X, B, D, SCALE, BIAS, WORKSPACE = (i << 44 for i in range(1, 7))
STATUS = {"argument": 1, "shape": 3, "stride": 4}


@pytest.fixture
def library(packed_package):
    library = host.Library(packed_package._library.LIBRARY)
    library.c.recorder_reset()
    return library


def stated(library, operation, *, n=N, k=K, b=B, scale=SCALE, bias=BIAS, d=(D, (N, 1)), m=M, **others):
    """State a problem of a packed weight; strides of B are nonsense, and not looked at."""
    number = library.c.aot_gemm_operation(operation.call.encode())
    tensors = TensorStruct(X, (k, 1)), TensorStruct(b, (-3, 7)), TensorStruct(*d)
    problem = ProblemStruct(ctypes.sizeof(ProblemStruct), number, -1, m, n, k, *tensors)
    if operation.types.scale_b is not None:
        problem.scale_b = TensorStruct(scale, (1, 0))
    if bias:
        problem.bias = TensorStruct(bias, (0, 1))
    for name, value in others.items():
        setattr(problem, name, value)
    return problem


def launch(library, problem):
    workspace = ctypes.c_void_p(WORKSPACE), ctypes.c_size_t(1 << 40)
    status = library.c.aot_gemm_launch(ctypes.byref(problem), *workspace, None)
    return status, library.c.aot_gemm_last_error().decode() if status else ""


@pytest.mark.parametrize("operation", PACKED, ids=lambda x: x.tag)
def test_a_kernel_gets_the_matrix_of_bytes(library, operation):
    assert launch(library, stated(library, operation)) == (0, "")
    (got,) = library.fake_launches()
    rows, columns = PackedLayout(operation.b.weight).shape(N, K)
    b = got.b.matrix
    assert (b.data, tuple(b.shape), tuple(b.strides)[:1]) == (B, (rows, columns), (columns,))
    assert (got.a.data, got.d.data, got.bias.data) == (X, D, BIAS)
    assert got.scale_b.vector.data == (SCALE if operation.types.scale_b else None)
    assert got.scale_a.vector.data is None


def test_a_bias_may_be_left_away(library):
    assert launch(library, stated(library, PACKED[0], bias=None)) == (0, "")
    (got,) = library.fake_launches()
    assert (got.bias.data, got.bias.vector.shape[0]) == (None, 0)


def test_what_is_not_aligned_is_computed_by_the_fallback_as_it_is(library, packed_manifest):
    problem = stated(library, PACKED[0], n=N - 1, d=(D + 2, (N + 3, 1)))
    assert launch(library, problem) == (0, "")
    (got,) = library.fake_launches()
    kernel = packed_manifest.kernels[got.kernel]
    assert (kernel.num_strides, kernel.operation) == (2, PACKED[0])
    assert (tuple(got.d.matrix.strides), got.d.data) == ((N + 3, 1), D + 2)
    assert got.b.matrix.data == B


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"k": 200}, "shape", "k is 200; expected a multiple of 128, of which weights of int4g128 are packed"),
        (
            {"b": B + 8},
            "stride",
            f"B is at address {B + 8:#x}; expected a multiple of 16, which packed weights begin at",
        ),
        ({"b": D + 32}, "stride", "D at address 0x300000000000 overlaps B at address 0x300000000020"),
        ({"num_groups": 3}, "argument", "a batch of 3 products of operation bf16xint4g128_bf16"),
        (
            {"scale_b": TensorStruct(SCALE, (1, 0))},
            "argument",
            "got scale_b, which operation bf16xint4g128_bf16",
        ),
        (
            {"scale_a": TensorStruct(SCALE, (1, 0))},
            "argument",
            "got scale_a, which operation bf16xint4g128_bf16",
        ),
    ],
)
def test_what_no_packed_weight_is_is_refused(library, changes, status, text):
    got, said = launch(library, stated(library, PACKED[0], **changes))
    assert (got, said[: len(text)]) == (STATUS[status], text)
    assert library.fake_launches() == []


def test_a_k_of_0_reads_no_weight(library):
    assert launch(library, stated(library, PACKED[0], k=0, b=0)) == (0, "")
    assert len(library.fake_launches()) == 1


# Python.


def bytes_of(framework, operation, n=N, k=K):
    return framework.Tensor(PackedLayout(operation.b.weight).shape(n, k), UINT8)


def call(package, framework, operation, *, x=(M, K), n=N, bias=True, **changes):
    dtype = FLOAT16 if operation.a.element.value == "float16" else BFLOAT16
    given = {"scale_w": framework.Tensor((n,), FLOAT32)} if operation.types.scale_b else {}
    operands = [framework.Tensor(x, dtype), bytes_of(framework, operation, n, x[-1])]
    named = given | {"weight_format": operation.b.weight.name, "columns": n} | changes
    added = framework.Tensor((n,), dtype) if bias else None
    return package.packed_linear(*operands, added, **named), operands, named


@pytest.mark.parametrize("operation", PACKED, ids=lambda x: x.tag)
def test_a_call_is_launched_with_what_it_was_given(packed_package, packed_manifest, library, operation):
    framework = Framework()
    out, (x, weight), named = call(packed_package, framework, operation, x=(6, 8, K))
    (got,) = library.fake_launches()
    assert packed_manifest.kernels[got.kernel].operation == operation
    assert (got.a.data, got.b.data, got.d.data) == (x.address, weight.address, out.address)
    assert (tuple(out.shape), tuple(got.d.matrix.shape)) == ((6, 8, N), (M, N))
    if operation.types.scale_b:
        assert got.scale_b.vector.data == named["scale_w"].address


@pytest.mark.parametrize("operation", PACKED, ids=lambda x: x.tag)
def test_the_plan_is_asked_by_the_format_s_name(packed_package, packed_manifest, library, operation):
    call(packed_package, Framework(), operation)
    (got,) = library.fake_launches()
    plan = packed_package.plan(M, N, K, operation.a.element.value, weight_dtype=operation.b.weight.name, bias=True)
    assert (plan.operation, plan.kernel) == (operation.call, packed_manifest.kernels[got.kernel].name)
    assert plan.roofline_us > 0


def test_the_roofline_counts_the_packed_bytes(packed_package):
    wide = {"int4g128": 4 + 16 / 128, "nvfp4": 4 + 8 / 16, "int8": 8}
    for name, bits in wide.items():
        dtype = "float16" if name == "int8" else "bfloat16"
        plan = packed_package.plan(1, 4096, 4096, dtype, weight_dtype=name)
        rates = packed_package._manifest.manifest()["tables"][0]["bandwidth_bytes_per_s"]
        moved = 4096 * 4096 * bits / 8 + 2 * 4096 * 3 + (4 * 4096 if name != "int4g128" else 0)
        assert plan.roofline_us == pytest.approx(1e6 * moved / rates, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        (
            {"weight_format": "int3"},
            "UnsupportedError",
            "packed_linear: weight_format is 'int3'; expected one of int4",
        ),
        ({"weight_format": "mxfp4"}, "ShapeError", "packed_linear: weight has shape (5, 2112); expected (5, 2176)"),
        (
            {"columns": 90},
            "ShapeError",
            "packed_linear: weight has shape (5, 2112); expected (6, 2112), the bytes",
        ),
        (
            {"columns": "90"},
            "ShapeError",
            "packed_linear: columns is '90'; expected the rows of the weight that was packed",
        ),
        (
            {"columns": 1 << 40},
            "ShapeError",
            "packed_linear: columns is 1099511627776; expected the rows of the weight",
        ),
        ({"x": (M, 200)}, "ShapeError", "packed_linear: x (48, 200) has k 200; expected a multiple of 128"),
        (
            {"out_dtype": "float32"},
            "DtypeError",
            "packed_linear: there is no product of bfloat16 by int4g128 into",
        ),
    ],
)
def test_a_call_that_does_not_fit_is_refused(packed_package, library, changes, kind, text):
    with pytest.raises(packed_package.AotGemmError) as error:
        call(packed_package, Framework(), PACKED[0], **changes)
    assert (type(error.value).__name__, str(error.value)[: len(text)]) == (kind, text)
    assert library.fake_launches() == []


def test_a_format_that_the_wheel_lacks_is_named(packed_package, library):
    framework = Framework()
    x = framework.Tensor((M, K), FLOAT16)
    weight = framework.Tensor((5, 2 * PackedLayout(PACKED[0].b.weight).block_bytes), UINT8)
    with pytest.raises(packed_package.UnsupportedError) as error:
        packed_package.packed_linear(x, weight, weight_format="int4g128", columns=N)
    assert "this wheel has no kernels for fp16xint4g128_fp16" in str(error.value)
    assert "aot build --target h200 --operations default,fp16xint4g128_fp16_kk" in str(error.value)


def test_factors_that_a_format_has_not_are_refused(packed_package, library):
    framework = Framework()
    with pytest.raises(packed_package.OperandError, match="got scale_w; expected none, as weights of int4g128 have"):
        call(packed_package, framework, PACKED[0], scale_w=framework.Tensor((1,), FLOAT32))
    with pytest.raises(packed_package.OperandError, match="got no scale_w; expected float32 factors, one or one"):
        call(packed_package, framework, PACKED[1], scale_w=None)
