"""The package's functions for JAX: jaxlib on a CPU calls the library's handlers, over the recorder."""

from __future__ import annotations

import ctypes
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="NOT TESTED: jax is not installed, nor what it brings")

import numpy as np  # noqa: E402

from tests.compiling import some  # noqa: E402
from tests.later import Later  # noqa: E402
from tests.runtime.host import LAUNCH, Library  # noqa: E402
from tests.runtime.xla import DTYPES, STREAM, CpuXla, Frame  # noqa: E402

SOURCES = Path(__file__).parents[2] / "templates" / "src"
jax, jaxlib, jnp = Later("jax"), Later("jaxlib"), Later("jax.numpy")
BF16 = ml_dtypes.bfloat16
M, N, K = 5, 48, 64


@pytest.fixture(scope="session")
def functions(every_package):
    return import_module(f"{every_package.__name__}.jax")


@pytest.fixture(scope="session")
def calls(functions, every_package):
    return import_module(f"{every_package.__name__}._jax_calls")


@pytest.fixture(scope="session")
def registered(calls, every_package, every_manifest):
    xla = CpuXla(every_manifest, Library(every_package._library.LIBRARY))
    for name in calls._LAYOUTS:
        xla.register(name, calls._target(name))
    return xla


@pytest.fixture
def xla(registered, functions, monkeypatch):
    monkeypatch.setattr(functions, "GPU", "cpu")
    registered.launches.clear()
    registered.library.c.recorder_reset()
    yield registered
    registered.computes = True
    assert registered.failures == []


def draw(*shape, dtype=BF16, seed=0):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return jnp.asarray(values, dtype)


def wide(x):
    return np.asarray(x).astype(np.float32)


def check(got, expected, dtype=BF16):
    assert (got.dtype, got.shape) == (np.dtype(dtype), expected.shape)
    np.testing.assert_allclose(wide(got), expected, rtol=2**-7, atol=2**-6 * np.abs(expected).max(initial=1))


# What a program computes.


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("leading", [(), (M,), (2, M), (0,), (2, 0)])
def test_linear_is_x_times_the_transposed_weight(functions, xla, leading, jit):
    x, weight, bias = draw(*leading, K), draw(N, K, seed=1), draw(N, seed=2)
    function = jax.jit(functions.linear) if jit else functions.linear
    check(function(x, weight), wide(x) @ wide(weight).T)
    check(function(x, weight, bias), wide(x) @ wide(weight).T + wide(bias))
    assert [x.stream for x in xla.launches] == ([] if 0 in leading else [STREAM] * 2)


def test_a_weight_is_never_read_early(functions, xla):
    for m in (1, 16, 300, 5000):
        functions.linear(draw(m, K), draw(4096, K)).block_until_ready()
    assert {x.reads_early for x in xla.launches} <= {0, -1}
    assert len(xla.launches) == 4


@pytest.mark.parametrize(
    ("a", "b"), [((M, K), (K, N)), ((2, 3, K), (K, N)), ((K,), (K, N)), ((M, K), (K,)), ((K,), (K,)), ((M, K), (K, 1))]
)
def test_matmul_is_that_of_numpy(functions, xla, a, b):
    left, right = draw(*a), draw(*b, seed=1)
    check(jax.jit(functions.matmul)(left, right), np.asarray(wide(left) @ wide(right)))
    assert len(xla.launches) == 1


def test_a_batch_of_right_operands_is_left_to_vmap(functions, every_package, xla):
    with pytest.raises(every_package.ShapeError, match=r"b has shape \(2, 64, 48\); expected b \(k, n\) or \(k,\)"):
        functions.matmul(draw(2, M, K), draw(2, K, N))
    assert xla.launches == []


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_follow_the_bias(functions, xla, activation):
    x, weight, bias = draw(M, K), draw(N, K, seed=1), draw(N, seed=2)
    plain = jnp.asarray(wide(x) @ wide(weight).T + wide(bias))
    applied = {
        "relu": jax.nn.relu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_tanh": jax.nn.gelu,
        "silu": jax.nn.silu,
    }
    check(functions.linear(x, weight, bias, activation=activation), np.asarray(applied[activation](plain)))


def test_a_residual_and_factors_reach_the_kernel(functions, xla):
    x, weight, residual = draw(M, K), draw(N, K, seed=1), draw(M, N, seed=3)
    check(functions.linear(x, weight, residual=residual), wide(x) @ wide(weight).T + wide(residual))
    x8, weight8 = draw(M, K, dtype=jnp.float8_e4m3fn), draw(N, K, dtype=jnp.float8_e4m3fn, seed=1)
    scale_x, scale_w = abs(draw(M, 1, dtype=jnp.float32, seed=4)), abs(draw(N, dtype=jnp.float32, seed=5))
    expected = (wide(x8) @ wide(weight8).T) * wide(scale_x) * wide(scale_w)
    check(functions.linear(x8, weight8, scale_x=scale_x, scale_w=scale_w), expected)


def test_a_gated_product_says_where_its_halves_are(functions, xla):
    xla.computes = False
    x, weight = draw(M, K), draw(2 * N, K, seed=1)
    for interleaved in (False, True):
        result = functions.gated_linear(x, weight, interleaved=interleaved, activation="gelu_tanh")
        assert result.block_until_ready().shape == (M, N)
    parts = [tuple(x.b.parts.shape) for x in xla.launches]
    strides = [tuple(x.b.parts.strides)[:2] for x in xla.launches]
    assert (parts, strides) == ([(2, N, K)] * 2, [(N * K, K), (K, 2 * K)])


def test_a_workspace_is_a_result_of_the_call(functions, calls, xla, every_package, every_manifest):
    ladders = every_manifest.tables[0].table.sections[0].ladders
    shapes = ((m, x.n, x.k) for x in ladders for m in x.m_edges)
    m, n, k = next(s for s in shapes if every_package.plan(*s).workspace_bytes > 0)
    num_bytes = every_package.plan(m, n, k).workspace_bytes
    xla.computes = False
    functions.linear(jnp.zeros((m, k), BF16), jnp.zeros((n, k), BF16)).block_until_ready()
    (launch,) = xla.launches
    assert 4 * launch.workspace_floats == num_bytes
    assert launch.workspace % 16 == 0 != launch.workspace
    abstract = jax.ShapeDtypeStruct((m, k), BF16), jax.ShapeDtypeStruct((n, k), BF16)
    assert f"tensor<{num_bytes}xui8>" in lowered(functions.linear, *abstract)


# Batches.


def test_a_batch_of_x_alone_is_one_product(functions, xla):
    x, weight, bias = draw(3, 4, M, K), draw(N, K, seed=1), draw(N, seed=2)
    function = jax.vmap(jax.vmap(functions.linear, (0, None, None)), (1, None, None), out_axes=1)
    check(jax.jit(function)(x, weight, bias), wide(x) @ wide(weight).T + wide(bias))
    assert [tuple(x.d.shape) for x in xla.launches] == [(3 * 4 * M, N)]


def test_a_batch_of_weights_is_a_product_each(functions, xla):
    x, weight = draw(M, K), draw(3, N, K, seed=1)
    expected = np.einsum("mk,bnk->bmn", wide(x), wide(weight))
    check(jax.vmap(functions.linear, (None, 0))(x, weight), expected)
    check(jax.vmap(functions.matmul, (None, 0))(x, weight.swapaxes(1, 2)), expected)
    xs = draw(3, M, K, seed=7)
    check(jax.vmap(functions.linear)(xs, weight), np.einsum("bmk,bnk->bmn", wide(xs), wide(weight)))
    assert len(xla.launches) == 9


@pytest.mark.parametrize("axes", some([(0, 0), (0, None), (None, 0), (1, 1)], 2))
@pytest.mark.parametrize("inner", some([(0, 0), (0, None), (None, 0)], 2))
def test_batches_of_batches_are_those_of_jax(functions, xla, axes, inner):
    def shape(which, *rest):
        outer, within = axes[which], inner[which]
        found = [*((3,) if within is not None else ()), *rest]
        if outer is not None:
            found.insert(outer, 2)
        return found

    x, weight = draw(*shape(0, M, K)), draw(*shape(1, N, K), seed=1)
    got = jax.vmap(jax.vmap(functions.linear, inner), axes)(x, weight)
    expected = jax.vmap(jax.vmap(lambda x, w: x @ w.T, inner), axes)(
        jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32)
    )
    check(got, np.asarray(expected))


def test_a_batch_of_everything_has_a_loop(functions, xla):
    x, weight = draw(3, M, K), draw(3, N, K, seed=1)
    bias, residual = draw(3, N, seed=2), draw(3, M, N, seed=3)
    expected = np.einsum("bmk,bnk->bmn", wide(x), wide(weight))
    check(jax.vmap(functions.linear)(x, weight, bias), expected + wide(bias)[:, None])
    got = jax.vmap(lambda x, w, r: functions.linear(x, w, residual=r), (0, None, 0))(x, weight[0], residual)
    check(got, wide(x) @ wide(weight[0]).T + wide(residual))


def test_an_empty_batch_is_empty(functions, xla):
    assert jax.vmap(functions.linear)(draw(0, M, K), draw(0, N, K)).shape == (0, M, N)
    assert xla.launches == []


# Gradients.


def gradients(function, *operands):
    target = draw(*jax.eval_shape(function, *operands).shape, seed=9).astype(jnp.float32)
    return jax.grad(lambda *x: (function(*x).astype(jnp.float32) * target).sum(), range(len(operands)))(*operands)


@pytest.mark.parametrize("leading", some([(), (M,), (2, M)], 2))
@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_of_linear_are_those_of_jax(functions, xla, leading, has_bias):
    operands = draw(*leading, K), draw(N, K, seed=1), *([draw(N, seed=2)] if has_bias else [])

    def reference(x, weight, bias=0):
        return x @ weight.T + bias

    for got, expected in zip(gradients(functions.linear, *operands), gradients(reference, *operands), strict=True):
        check(got, wide(expected))


@pytest.mark.parametrize(
    ("a", "b"), some([((M, K), (K, N)), ((2, 3, K), (K, N)), ((K,), (K, N)), ((M, K), (K,)), ((K,), (K,))], 3)
)
def test_gradients_of_matmul_are_those_of_jax(functions, xla, a, b):
    operands = draw(*a), draw(*b, seed=1)
    pairs = zip(gradients(functions.matmul, *operands), gradients(jnp.matmul, *operands), strict=True)
    for got, expected in pairs:
        check(got, wide(expected))


def test_gradients_and_batches_go_together(functions, xla):
    x, weight = draw(3, M, K), draw(N, K, seed=1)

    def loss(product):
        return lambda weight, x: product(x, weight).astype(jnp.float32).sum()

    got = jax.jit(jax.vmap(jax.grad(loss(functions.linear)), (None, 0)))(weight, x)
    expected = jax.vmap(jax.grad(loss(lambda x, w: x @ w.T)), (None, 0))(weight, x)
    check(got, wide(expected))
    whole = jax.grad(lambda w: jax.vmap(loss(functions.linear), (None, 0))(w, x).sum())(weight)
    check(whole, wide(expected).sum(0))


@pytest.mark.parametrize("options", [{"activation": "relu"}, {"residual": draw(M, N)}])
def test_what_has_no_gradient_is_refused(functions, every_package, xla, options):
    x, weight = draw(M, K), draw(N, K)
    with pytest.raises(every_package.GradientError, match="there are gradients of plain products and a bias alone"):
        jax.grad(lambda x: functions.linear(x, weight, **options).sum().astype(jnp.float32))(x)
    stopped = jax.grad(
        lambda x: functions.linear(jax.lax.stop_gradient(x), weight, **options).astype(jnp.float32).sum()
    )
    check(stopped(x), np.zeros((M, K), np.float32))


# What is lowered for a GPU, without one.


def lowered(function, *abstract):
    return jax.jit(function).trace(*abstract).lower(lowering_platforms=("cuda",)).as_text()


def test_a_product_is_one_custom_call_of_the_packages_name(functions, xla):
    x, weight = jax.ShapeDtypeStruct((2, M, K), BF16), jax.ShapeDtypeStruct((N, K), BF16)
    text = lowered(functions.linear, x, weight)
    (line,) = (line for line in text.splitlines() if "custom_call" in line)
    assert "@every_gemm_linear" in line
    for attribute in ("given = 3", "batched = 0", "num_batches = -1", "epilogue = 0", "flags = 0"):
        assert f"{attribute} : i64" in line
    assert "mhlo.backend_config = {" in line
    # A kernel that needs a workspace has it as a second result.
    assert line.split("->")[-1].strip(" (").startswith(f"tensor<2x{M}x{N}xbf16>")


def test_the_handlers_are_registered_for_cuda(calls, monkeypatch):
    registered = []
    monkeypatch.setattr(
        jax.ffi, "register_ffi_target", lambda name, handler, platform: registered.append((name, platform))
    )
    calls._register.__wrapped__(calls._library.libraries()[0])
    assert registered == [(f"every_gemm_{name}", "CUDA") for name in ("linear", "gated_linear", "matmul")]


def test_xla_takes_the_handlers_version(registered):
    """XLA asks a handler for the version of the interface that it knows, and refuses one that it does not."""
    for name in ("linear", "gated_linear", "matmul"):
        handler = getattr(registered.library.c, f"aot_gemm_xla_{name}")
        jax.ffi.register_ffi_target(f"unused_{name}", jax.ffi.pycapsule(handler), platform="cpu")


class ApiVersion(ctypes.Structure):
    _fields_ = (("head", ctypes.c_size_t * 2), ("major", ctypes.c_int32), ("minor", ctypes.c_int32))


class Api(ctypes.Structure):
    _fields_ = (("head", ctypes.c_size_t * 2), ("version", ApiVersion))


class Metadata(ctypes.Structure):
    _fields_ = (("struct_bytes", ctypes.c_size_t), ("version", ApiVersion), ("traits", ctypes.c_uint32))


class MetadataExtension(ctypes.Structure):
    _fields_ = (
        ("struct_bytes", ctypes.c_size_t),
        ("type", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    )


@pytest.mark.parametrize(("known", "stated"), [(None, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_version_is_the_newest_that_both_know(registered, known, stated):
    """What XLA 0.1 passes has no functions; newer ones tell their version, and handlers of an older one serve them."""
    metadata = Metadata()
    extension = MetadataExtension(ctypes.sizeof(MetadataExtension), 1, None, ctypes.pointer(metadata))
    api = Api(version=ApiVersion(major=0, minor=known or 0))
    frame = Frame(0, ctypes.addressof(extension), None if known is None else ctypes.addressof(api))
    assert registered.library.c.aot_gemm_xla_matmul(ctypes.byref(frame)) is None
    assert (metadata.version.major, metadata.version.minor, metadata.traits) == (0, stated, 1)


# What is refused.


@pytest.mark.parametrize(
    ("kind", "operands", "message"),
    [
        ("ShapeError", ((M, K), (N, K + 1)), "x (5, 64) has k 64, weight (48, 65) has k 65; expected one k"),
        ("ShapeError", ((M, K), (2, N, K)), "expected x (..., k) and weight (n, k)"),
        ("ShapeError", ((M, K), (N, K), (N + 1,)), "bias has shape (49,); expected (48,)"),
    ],
)
def test_shapes_are_refused_while_jax_traces(functions, every_package, xla, kind, operands, message):
    with pytest.raises(getattr(every_package, kind), match=re.escape(message)):
        jax.jit(functions.linear)(*(draw(*shape) for shape in operands))


def test_types_options_and_devices_are_refused(functions, every_package, xla, monkeypatch):
    x, weight = draw(M, K), draw(N, K)
    with pytest.raises(every_package.DtypeError, match="x is int16; expected bfloat16"):
        functions.linear(x.astype(jnp.int16), weight)
    with pytest.raises(every_package.UnsupportedError, match="activation is 'tanh'"):
        functions.linear(x, weight, activation="tanh")
    with pytest.raises(every_package.UnsupportedError, match=re.escape("activation is ['relu']")):
        functions.linear(x, weight, activation=["relu"])
    with pytest.raises(every_package.OperandError, match="weight is 3; expected an array"):
        functions.linear(x, 3)
    with pytest.raises(every_package.DtypeError, match="out_dtype is 'int4'"):
        functions.linear(x, weight, out_dtype="int4")
    monkeypatch.setattr(functions, "GPU", "gpu")
    with pytest.raises(every_package.DeviceError, match="x is on cpu; expected a GPU"):
        functions.linear(x, weight)


def test_what_the_launch_finds_is_xlas_error(functions, xla):
    x, weight = draw(M, K), draw(N, K)
    handle = xla.library.c.recorder_reset
    xla.library.c.recorder_reset = lambda: xla.library.c.recorder_fail(LAUNCH, 719)
    try:
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"INTERNAL: launching kernel .*error 719"):
            functions.linear(x, weight).block_until_ready()
    finally:
        xla.library.c.recorder_reset = handle
        handle()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"given": 1}, "2 operands and 1 results, and `given` is 1"),
        ({"given": 6}, "2 operands and 1 results, and `given` is 6"),
        ({"given": 127}, "2 operands and 1 results, and `given` is 127"),
        ({"num_batches": 3, "batched": 1}, "no first extent of 3, the number of batches"),
        ({"epilogue": 6}, "UNIMPLEMENTED: this library has no kernels for linear bfloat16 bfloat16"),
        ({"flags": None}, "no attribute `flags`"),
        ({"flags": np.int32(1)}, "no attribute `flags` of int64"),
    ],
)
def test_a_call_that_is_not_the_packages_own_is_refused(calls, xla, damage, message):
    attributes = {"given": 3, "batched": 0, "num_batches": -1, "epilogue": 0, "flags": 0} | damage
    given = {k: np.int64(v) if isinstance(v, int) else v for k, v in attributes.items() if v is not None}
    run = jax.ffi.ffi_call(calls._target("linear"), [jax.ShapeDtypeStruct((M, N), BF16)])
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
        run(draw(M, K), draw(N, K), **given)[0].block_until_ready()
    assert xla.launches == []


# The declarations.

COMPARED = """
#include "xla_ffi.h"
#include "xla/ffi/api/c_api.h"
#define SAME(ours, our, theirs, their)                                                                     \\
  static_assert(offsetof(aot::xla::ours, our) == offsetof(XLA_FFI_##theirs, their));                      \\
  static_assert(sizeof(aot::xla::ours::our) == sizeof(XLA_FFI_##theirs::their))
SAME(Extension, type, Extension_Base, type);
SAME(Extension, next, Extension_Base, next);
SAME(ApiVersion, extensions, Api_Version, extension_start);
SAME(ApiVersion, major, Api_Version, major_version);
SAME(ApiVersion, minor, Api_Version, minor_version);
SAME(CreateError, message, Error_Create_Args, message);
SAME(CreateError, code, Error_Create_Args, errc);
SAME(GetStream, context, Stream_Get_Args, ctx);
SAME(GetStream, stream, Stream_Get_Args, stream);
SAME(Api, version, Api, api_version);
SAME(Api, create_error, Api, XLA_FFI_Error_Create);
SAME(Api, get_stream, Api, XLA_FFI_Stream_Get);
SAME(Buffer, type, Buffer, dtype);
SAME(Buffer, data, Buffer, data);
SAME(Buffer, num_dims, Buffer, rank);
SAME(Buffer, extents, Buffer, dims);
SAME(Buffers, size, Args, size);
SAME(Buffers, types, Args, types);
SAME(Buffers, buffers, Args, args);
SAME(Buffers, size, Rets, size);
SAME(Buffers, types, Rets, types);
SAME(Buffers, buffers, Rets, rets);
SAME(Text, characters, ByteSpan, ptr);
SAME(Text, size, ByteSpan, len);
SAME(Scalar, type, Scalar, dtype);
SAME(Scalar, value, Scalar, value);
SAME(Attributes, size, Attrs, size);
SAME(Attributes, types, Attrs, types);
SAME(Attributes, names, Attrs, names);
SAME(Attributes, values, Attrs, attrs);
SAME(CallFrame, api, CallFrame, api);
SAME(CallFrame, context, CallFrame, ctx);
SAME(CallFrame, stage, CallFrame, stage);
SAME(CallFrame, operands, CallFrame, args);
SAME(CallFrame, results, CallFrame, rets);
SAME(CallFrame, attributes, CallFrame, attrs);
SAME(Metadata, version, Metadata, api_version);
SAME(Metadata, traits, Metadata, traits);
SAME(MetadataExtension, metadata, Metadata_Extension, metadata);
static_assert(static_cast<int>(aot::xla::Code::kInvalidArgument) == XLA_FFI_Error_Code_INVALID_ARGUMENT);
static_assert(static_cast<int>(aot::xla::Code::kFailedPrecondition) == XLA_FFI_Error_Code_FAILED_PRECONDITION);
static_assert(static_cast<int>(aot::xla::Code::kUnimplemented) == XLA_FFI_Error_Code_UNIMPLEMENTED);
static_assert(static_cast<int>(aot::xla::Code::kInternal) == XLA_FFI_Error_Code_INTERNAL);
static_assert(static_cast<int>(aot::xla::Stage::kExecute) == XLA_FFI_ExecutionStage_EXECUTE);
static_assert(aot::xla::kScalar == XLA_FFI_AttrType_SCALAR && aot::xla::kMetadata == XLA_FFI_Extension_Metadata);
static_assert(aot::xla::kCanBeCaptured == XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
#define TYPE(ours, theirs) static_assert(static_cast<int>(aot::xla::DataType::ours) == XLA_FFI_DataType_##theirs)
TYPE(kInt8, S8);
TYPE(kInt32, S32);
TYPE(kInt64, S64);
TYPE(kUint8, U8);
TYPE(kFloat16, F16);
TYPE(kFloat32, F32);
TYPE(kBfloat16, BF16);
TYPE(kE5m2, F8E5M2);
TYPE(kE4m3fn, F8E4M3FN);
TYPE(kE8m0fnu, F8E8M0FNU);
"""


def test_the_declarations_are_those_of_jaxlibs_header(tmp_path):
    (tmp_path / "x.cc").write_text(COMPARED)
    includes = [f"-I{SOURCES}", f"-isystem{Path(jaxlib.__file__).parent / 'include'}"]
    command = ["g++", "-std=c++17", "-Wall", "-Werror", *includes, "-fsyntax-only", "x.cc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    declared = set(re.findall(r"^struct (\w+) {", (SOURCES / "xla_ffi.h").read_text(), re.MULTILINE))
    compared = set(re.findall(r"^SAME\((\w+),", COMPARED, re.MULTILINE))
    assert declared == compared


def test_every_element_type_of_the_catalogue_is_known_to_the_handler(functions, xla, every_package):
    names = {row.a for row in every_package._request.CATALOGUE if row.scale != "atoms"} - {"tf32"}
    assert names <= set(DTYPES)
