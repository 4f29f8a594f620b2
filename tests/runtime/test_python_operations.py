"""The Python package over the recorder: every operation's arguments as they reach the C API, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aot.core.element import ElementType
from aot.core.epilogue import Step
from aot.core.types import SCALE_BLOCK, Scale
from tests.runtime import host
from tests.runtime.exchange import Framework
from tests.runtime.stating import by_call
from tests.runtime.tensors import (
    BFLOAT16,
    CUDA,
    E4M3,
    E5M2,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    UINT8,
    FakeTensor,
    install_cupy,
    install_jax,
)
from tests.runtime.test_torch_operands import KINDS, gpu_tensor

M, N, K = 48, 64, 256
DTYPES = {
    ElementType.BFLOAT16: BFLOAT16,
    ElementType.FLOAT16: FLOAT16,
    ElementType.FLOAT32: FLOAT32,
    ElementType.TFLOAT32: FLOAT32,
    ElementType.E4M3: E4M3,
    ElementType.E5M2: E5M2,
    ElementType.INT8: INT8,
    ElementType.INT32: INT32,
}
GATES = {Step.SWIGLU: "silu", Step.GEGLU: "gelu_tanh"}


@pytest.fixture(scope="session")
def every_package(every_manifest, tmp_path_factory):
    """Give a package that has every operation of the catalogue."""
    return host.compile_package(replace(every_manifest, package="every-gemm"), tmp_path_factory.mktemp("every_package"))


@pytest.fixture
def every(every_package):
    library = host.Library(every_package._library.LIBRARY)
    library.c.recorder_reset()
    return library


@pytest.fixture
def framework():
    return Framework()


@pytest.fixture(params=["exchange", "capsules"])
def tensor(request, framework, monkeypatch):
    """Make tensors of a framework with the exchange API, or of a CuPy, which the package asks in Python."""
    if request.param == "exchange":
        return framework.Tensor
    cupy = install_cupy(monkeypatch, 0x8880)
    names = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32, "float8_e4m3fn": E4M3, "int32": INT32}
    cupy.empty = lambda shape, dtype: cupy.ndarray(shape, {**names, "uint8": UINT8}.get(dtype, dtype))
    return cupy.ndarray


def call_of(manifest, launch):
    """Name the operation whose kernel was launched."""
    return manifest.kernels[launch.kernel].operation.call


def scales_of(operation, tensor):
    """Make the factors of an operation: vectors, or blocks."""
    if operation.types.scale is Scale.NONE:
        return {}
    rows = operation.num_rows_of_b(N)
    shapes = (M, 1), (1, rows)
    if operation.types.scale is Scale.BLOCK:
        shapes = (M, K // SCALE_BLOCK), (-(-rows // SCALE_BLOCK), K // SCALE_BLOCK)
    return {name: tensor(shape, FLOAT32) for name, shape in zip(("scale_x", "scale_w"), shapes, strict=True)}


def arguments_of(operation, tensor):
    """Make all that a call of an operation is given: operands, and arguments by keyword."""
    d = DTYPES[operation.d]
    rows = operation.num_rows_of_b(N)
    operands = [tensor((M, K), DTYPES[operation.types.a]), tensor((rows, K), DTYPES[operation.types.b])]
    operands += [tensor((rows,), DTYPES[operation.bias])] if operation.has_bias else []
    named = {"out": tensor((M, N), d), **scales_of(operation, tensor)}
    if operation.gate is not None:
        named |= {"activation": GATES[operation.gate]}
    if operation.activation is not None:
        named |= {"activation": operation.activation.value}
    if operation.has_residual:
        named |= {"residual": tensor((M, N), d)}
    if operation.types.scales_d:
        named |= {"scale_out": tensor((1,), FLOAT32)}
    if operation.types.is_fast:
        named |= {"use_fast_accum": True}
    if operation.types.a is ElementType.TFLOAT32:
        named |= {"allow_tf32": True}
    return operands, named


def call(package, operation, operands, named):
    function = package.linear if operation.gate is None else package.gated_linear
    return function(*operands, **named)


def address(tensor):
    return None if tensor is None else tensor.address


@pytest.mark.parametrize("operation", by_call(), ids=lambda x: x.call)
def test_every_operation_is_launched_with_what_it_was_given(
    every_package,
    every,
    every_manifest,
    tensor,
    operation,
):
    operands, named = arguments_of(operation, tensor)
    assert call(every_package, operation, operands, named) is named["out"]
    (launch,) = every.fake_launches()
    assert call_of(every_manifest, launch) == operation.call
    x, weight, *bias = operands
    assert (launch.a.data, launch.b.data, launch.d.data) == (x.address, weight.address, named["out"].address)
    assert launch.bias.data == (bias[0].address if bias else None)
    factors = [address(named.get(name)) for name in ("scale_x", "scale_w")]
    assert [launch.scale_a.vector.data, launch.scale_b.vector.data] == factors
    assert (launch.residual.data, launch.scale_d.data) == (
        address(named.get("residual")),
        address(named.get("scale_out")),
    )
    if operation.has_residual:
        assert (tuple(launch.residual.shape), launch.residual.strides[0]) == ((M, N), N)


@pytest.mark.parametrize("operation", by_call(), ids=lambda x: x.call)
def test_the_plan_names_the_operation_and_the_kernel_of_the_call(
    every_package, every, every_manifest, framework, operation
):
    operands, named = arguments_of(operation, framework.Tensor)
    call(every_package, operation, operands, named)
    (launch,) = every.fake_launches()
    a, b, d = operation.types.a, operation.types.b, operation.d
    is_tf32 = a is ElementType.TFLOAT32
    plan = every_package.plan(
        M,
        N,
        K,
        "float32" if is_tf32 else a.value,
        bias=operation.has_bias,
        activation=named.get("activation"),
        residual=operation.has_residual,
        gated=operation.gate is not None,
        weight_dtype=None if is_tf32 else b.value,
        scales="block" if operation.types.scale is Scale.BLOCK else None,
        out_dtype=d.value,
        allow_tf32=is_tf32,
        use_fast_accum=operation.types.is_fast,
    )
    assert (plan.operation, plan.kernel) == (operation.call, every_manifest.kernels[launch.kernel].name)


@pytest.mark.parametrize("operation", [x for x in by_call() if x.has_bias and x.epilogue.value != "bias"])
def test_a_bias_may_be_left_away_beside_other_steps(
    every_package,
    every,
    every_manifest,
    tensor,
    operation,
):
    operands, named = arguments_of(operation, tensor)
    call(every_package, operation, operands[:2], named)
    (launch,) = every.fake_launches()
    assert (call_of(every_manifest, launch), launch.bias.data) == (operation.call, None)


VECTORS = [
    ((), (), 0, 0),
    ((1,), (1, 1), 0, 0),
    ((1, 1, 1), (1,), 0, 0),
    ((M,), (N,), 1, 1),
    ((M, 1), (N, 1), 1, 1),
    ((6, 8), (1, N), 1, 1),
    ((6, 8, 1), (), 1, 0),
    ((), (N,), 0, 1),
]


@pytest.mark.parametrize(("shape_x", "shape_w", "step_x", "step_w"), VECTORS)
def test_factors_of_rows_and_of_all_are_vectors(
    every_package,
    every,
    tensor,
    shape_x,
    shape_w,
    step_x,
    step_w,
):
    x, weight, out = tensor((6, 8, K), E4M3), tensor((N, K), E4M3), tensor((6, 8, N))
    scale_x, scale_w = tensor(shape_x, FLOAT32), tensor(shape_w, FLOAT32)
    every_package.linear(x, weight, scale_x=scale_x, scale_w=scale_w, out=out)
    (launch,) = every.fake_launches()
    found = [(x.vector.data, x.vector.shape[0], x.vector.strides[0]) for x in (launch.scale_a, launch.scale_b)]
    assert found == [(scale_x.address, M, step_x), (scale_w.address, N, step_w)]


def test_a_factor_that_is_repeated_is_a_vector_of_stride_0(every_package, every, framework):
    x, weight, out = framework.Tensor((M, K), INT8), framework.Tensor((N, K), INT8), framework.Tensor((M, N))
    scales = [framework.Tensor((count,), FLOAT32, strides=(0,)) for count in (M, N)]
    every_package.linear(x, weight, scale_x=scales[0], scale_w=scales[1], out=out)
    (launch,) = every.fake_launches()
    assert [y.vector.strides[0] for y in (launch.scale_a, launch.scale_b)] == [0, 0]


@pytest.mark.parametrize(("m", "n", "k"), [(48, 64, 256), (6, 200, 130), (1, 64, 129), (48, 300, 128)])
def test_factors_of_blocks_have_their_strides(every_package, every, every_manifest, tensor, m, n, k):
    k_blocks, n_blocks = -(-k // 128), -(-n // 128)
    x, weight, out = tensor((m, k), E4M3), tensor((n, k), E4M3), tensor((m, n))
    scale_x = tensor((m, k_blocks), FLOAT32, strides=(1, m))
    scale_w = tensor((n_blocks, k_blocks), FLOAT32, strides=(k_blocks + 3, 1))
    every_package.linear(x, weight, scale_x=scale_x, scale_w=scale_w, out=out)
    (launch,) = every.fake_launches()
    assert call_of(every_manifest, launch) == "e4m3_bf16_block"
    a, b = launch.scale_a.matrix, launch.scale_b.matrix
    assert (a.data, tuple(a.shape), b.data, tuple(b.shape)) == (
        scale_x.address,
        (m, k_blocks),
        scale_w.address,
        (n_blocks, k_blocks),
    )
    steps = [(y.shape[i] > 1, y.strides[i]) for y in (a, b) for i in (0, 1)]
    expected = (1, m, k_blocks + 3, 1)
    assert all(step == want for (counts, step), want in zip(steps, expected, strict=True) if counts)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_gate_has_its_halves_or_pairs(every_package, every, tensor, interleaved):
    x, weight, bias, out = tensor((2, 3, K)), tensor((2 * N, K)), tensor((2 * N,)), tensor((2, 3, N))
    every_package.gated_linear(x, weight, bias, interleaved=interleaved, out=out)
    (launch,) = every.fake_launches()
    part, row = (1, 2) if interleaved else (N, 1)
    assert (tuple(launch.b.parts.shape), tuple(launch.b.parts.strides)[:2]) == ((2, N, K), (part * K, row * K))
    assert (tuple(launch.bias.parts.shape), tuple(launch.bias.parts.strides)) == ((2, N), (part, row))


ALLOCATED = [
    ({}, E4M3, True, BFLOAT16, "e4m3_bf16"),
    ({"out_dtype": torch.float16}, E4M3, True, FLOAT16, "e4m3_fp16"),
    ({"out_dtype": "float32"}, E4M3, True, FLOAT32, "e4m3_fp32"),
    ({}, INT8, True, BFLOAT16, "int8_bf16"),
    ({"out_dtype": torch.float16}, INT8, True, FLOAT16, "int8_fp16"),
    ({}, INT8, False, INT32, "int8_int32"),
    ({}, FLOAT32, False, FLOAT32, "fp32"),
    ({"allow_tf32": True}, FLOAT32, False, FLOAT32, "tf32"),
    ({"allow_tf32": True, "use_fast_accum": True}, BFLOAT16, False, BFLOAT16, "bf16"),
    ({"use_fast_accum": True}, E4M3, True, BFLOAT16, "e4m3_bf16_fast"),
    ({"use_fast_accum": True, "out_dtype": "float16"}, E4M3, True, FLOAT16, "e4m3_fp16"),
    ({"activation": "silu"}, E4M3, True, BFLOAT16, "e4m3_bf16_silu"),
]


@pytest.mark.parametrize(("options", "dtype", "is_scaled", "expected", "operation"), ALLOCATED)
def test_a_result_is_allocated_of_its_type(
    every_package, every, every_manifest, tensor, options, dtype, is_scaled, expected, operation
):
    scales = {"scale_x": tensor((1,), FLOAT32), "scale_w": tensor((N,), FLOAT32)} if is_scaled else {}
    out = every_package.linear(tensor((M, K), dtype), tensor((N, K), dtype), **scales, **options)
    (launch,) = every.fake_launches()
    assert (out.shape, out.dtype, launch.d.data) == ((M, N), expected, out.address)
    assert call_of(every_manifest, launch) == operation


def test_a_result_of_float8_is_allocated(every_package, every, tensor):
    x, weight = tensor((M, K), E4M3), tensor((N, K), E4M3)
    scales = {name: tensor((), FLOAT32) for name in ("scale_x", "scale_w", "scale_out")}
    out = every_package.linear(x, weight, out_dtype=torch.float8_e4m3fn, **scales)
    assert (out.dtype, every.fake_launches()[0].scale_d.data) == (E4M3, scales["scale_out"].address)


def test_jax_is_asked_for_a_type_of_its_own(every_package, every, monkeypatch):
    jax = install_jax(monkeypatch)
    jax.numpy.bfloat16 = BFLOAT16
    array = jax.Array
    scales = {"scale_x": array((M, 1), FLOAT32), "scale_w": array((1, N), FLOAT32)}
    out = every_package.linear(array((M, K), E4M3), array((N, K), E4M3), **scales)
    assert (type(out), out.dtype, len(every.fake_launches())) == (array, BFLOAT16, 1)


def test_cupy_says_which_type_it_lacks(every_package, every, monkeypatch):
    cupy = install_cupy(monkeypatch, 0x8880)

    def empty(shape, dtype):
        raise TypeError(f"data type '{dtype}' not understood")

    cupy.empty = empty
    x, weight = cupy.ndarray((M, K), E4M3), cupy.ndarray((N, K), E4M3)
    with pytest.raises(every_package.DtypeError) as caught:
        every_package.linear(x, weight, scale_x=cupy.ndarray((), FLOAT32), scale_w=cupy.ndarray((), FLOAT32))
    assert str(caught.value) == (
        "CuPy has no 'bfloat16' (data type 'bfloat16' not understood); pass out= or another out_dtype"
    )
    assert every.fake_launches() == []


def test_operands_of_another_framework_are_ordered_before_and_after(every_package, every, framework):
    other = Framework(stream=0x6660)
    x, weight, out = framework.Tensor((M, K), E4M3), framework.Tensor((N, K), E4M3), framework.Tensor((M, N))
    scales = {"scale_x": other.Tensor((), FLOAT32), "scale_w": framework.Tensor((), FLOAT32)}
    every_package.linear(x, weight, out=out, **scales)
    orders = [(y.first, y.second, y.num_launches) for y in every.orders()]
    assert orders == [(0x6660, 0x5550, 0), (0x5550, 0x6660, 1)]
    every.c.recorder_reset()
    capsule = FakeTensor((M, N))
    every_package.linear(*(framework.Tensor(y) for y in ((M, K), (N, K))), residual=capsule, out=out)
    assert (capsule.streams, every.count(host.SYNCHRONIZE)) == ([0x5550], 1)


PLACES = ("bias", "scale_x", "scale_w", "residual", "scale_out")


def with_place(framework, place, tensor):
    """Make a call's operands of which one is given."""
    operands = {
        "bias": framework.Tensor((N,)),
        "scale_x": framework.Tensor((), FLOAT32),
        "scale_w": framework.Tensor((), FLOAT32),
    }
    return {**operands, place: tensor}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_plain_memory_is_refused_in_every_place(every_package, every, framework, kind, place):
    make, message = KINDS[kind]
    x, weight, out = framework.Tensor((M, K), E4M3), framework.Tensor((N, K), E4M3), framework.Tensor((M, N))
    with pytest.raises(every_package.OperandError) as caught:
        every_package.linear(x, weight, out=out, **with_place(framework, place, make(4, 6)))
    assert message in str(caught.value)
    assert every.fake_launches() == []


@pytest.mark.parametrize("place", PLACES)
def test_a_gradient_that_would_be_lost_is_refused_in_every_place(every_package, every, framework, place):
    x, weight, out = framework.Tensor((M, K), E4M3), framework.Tensor((N, K), E4M3), framework.Tensor((M, N))
    operand = gpu_tensor(M, N, address=1 << 45).requires_grad_()
    operand.dtype = BFLOAT16
    with pytest.raises(every_package.GradientError, match=r"an operand of shape \(48, 64\) requires a gradient"):
        every_package.linear(x, weight, out=out, **with_place(framework, place, operand))
    assert every.fake_launches() == []


@pytest.mark.parametrize("place", ["scale_x", "scale_w", "scale_out"])
def test_a_number_is_no_factor(every_package, every, tensor, place):
    x, weight, out = tensor((M, K), E4M3), tensor((N, K), E4M3), tensor((M, N))
    operands = {"scale_x": tensor((), FLOAT32), "scale_w": tensor((), FLOAT32), place: 0.5}
    with pytest.raises(every_package.DtypeError) as caught:
        every_package.linear(x, weight, out=out, **operands)
    assert str(caught.value) == (
        "linear: got a float; expected a tensor that speaks DLPack; a factor is read from GPU memory: pass a float32 "
        "tensor of one element that is there"
    )
    assert every.fake_launches() == []


def refused(operands, kind, message, named=None):
    return pytest.param(operands, named or {}, kind, message, id=message[:60])


F8 = (((M, K), E4M3), ((N, K), E4M3))
B16 = (((M, K), BFLOAT16), ((N, K), BFLOAT16))
ONE = ((), FLOAT32)
SCALES = {"scale_x": ONE, "scale_w": ONE}
REFUSED = [
    refused(
        F8,
        "OperandError",
        (
            "linear: float8_e4m3fn operands of a bfloat16 result need factors, by which they are multiplied; expected "
            "float32 tensors in GPU memory, of one element, or of one for each row; pass them as linear(x, weight, "
            "scale_x=, scale_w=)"
        ),
        {"out": ((M, N), BFLOAT16)},
    ),
    refused(F8, "OperandError", "linear: got scale_x and no scale_w; expected both, or none", {"scale_x": ONE}),
    refused(F8, "OperandError", "linear: got scale_w and no scale_x; expected both, or none", {"scale_w": ONE}),
    refused(
        B16,
        "OperandError",
        (
            "linear: got scale_x and scale_w, which go with float8 and int8 operands; x is bfloat16 and weight "
            "bfloat16; leave them away"
        ),
        SCALES,
    ),
    refused(
        F8,
        "DtypeError",
        "linear: scale_w is bfloat16; expected float32; convert it",
        {"scale_x": ONE, "scale_w": ((), BFLOAT16)},
    ),
    refused(
        F8,
        "ShapeError",
        (
            "linear: scale_x has shape (47,) and scale_w (), beside x (48, 256) and weight (64, 256); expected one "
            "element or an element for each row: scale_x (1,), (48,) or (48, 1), and scale_w (1,), (64,), (64, 1) or "
            "(1, 64); or one for each block: scale_x (48, 2) and scale_w (1, 2)"
        ),
        {"scale_x": ((47,), FLOAT32), "scale_w": ONE},
    ),
    refused(
        F8,
        "StrideError",
        (
            "linear: scale_x of shape (48,) has the strides (2,); expected elements that are adjacent, or one that is "
            "repeated; make it contiguous"
        ),
        {"scale_x": ((M,), FLOAT32, (2,)), "scale_w": ONE},
    ),
    refused(
        F8,
        "OperandError",
        (
            "linear: a float8_e4m3fn result needs scale_out, by which it is multiplied before it is rounded; expected "
            "a float32 tensor of one element in GPU memory; pass scale_out="
        ),
        {**SCALES, "out": ((M, N), E4M3)},
    ),
    refused(
        F8,
        "OperandError",
        "linear: got scale_out, which goes with a float8 result; the result is bfloat16; leave it away",
        {**SCALES, "scale_out": ONE},
    ),
    refused(
        F8,
        "ShapeError",
        "linear: scale_out has shape (2,); expected one element",
        {**SCALES, "out_dtype": "float8_e4m3fn", "scale_out": ((2,), FLOAT32)},
    ),
    refused(
        B16,
        "ShapeError",
        "linear: residual has shape (64, 48); expected (48, 64), as the result",
        {"residual": ((N, M), BFLOAT16)},
    ),
    refused(
        B16,
        "DtypeError",
        "linear: residual is float16; expected bfloat16; convert it",
        {"residual": ((M, N), FLOAT16)},
    ),
    refused(
        B16,
        "DtypeError",
        "linear: out is bfloat16 and out_dtype float16; expected one type; leave out_dtype away",
        {"out": ((M, N), BFLOAT16), "out_dtype": torch.float16},
    ),
    refused(
        B16,
        "DtypeError",
        (
            "linear: out_dtype is 'float64'; expected one of bfloat16, float16, float32, float8_e4m3fn, float8_e5m2, "
            "int8, int32"
        ),
        {"out_dtype": "float64"},
    ),
    refused(
        B16,
        "UnsupportedError",
        (
            "linear: activation is 'tanh'; expected one of None, 'relu', 'gelu', 'gelu_tanh', 'silu'; apply another to "
            "the result"
        ),
        {"activation": "tanh"},
    ),
    refused(
        B16,
        "DtypeError",
        (
            "linear: there is no product of bfloat16 by bfloat16 into float32; expected one of bfloat16 by bfloat16 "
            "into bfloat16; convert an operand, or give another out_dtype"
        ),
        {"out_dtype": "float32"},
    ),
    refused(
        (((M, K), E5M2), ((N, K), E5M2)),
        "DtypeError",
        (
            "linear: there is no product of float8_e5m2 by float8_e5m2 into bfloat16; expected one of float8_e5m2 by "
            "float8_e4m3fn into bfloat16; convert an operand, or give another out_dtype"
        ),
        SCALES,
    ),
    refused(
        (((M, K), INT8), ((N, K), INT8)),
        "OperandError",
        (
            "linear: int8 operands of a bfloat16 result need factors, by which they are multiplied; expected float32 "
            "tensors in GPU memory, of one element, or of one for each row; pass them as linear(x, weight, scale_x=, "
            "scale_w=)"
        ),
        {"out_dtype": "bfloat16"},
    ),
    refused(
        B16,
        "UnsupportedError",
        (
            "linear: no wheel has bfloat16 by bfloat16 into bfloat16 with relu, residual; there are bf16, bf16_bias, "
            "bf16_relu, bf16_gelu, bf16_gelu_tanh, bf16_silu, bf16_residual, bf16_swiglu, bf16_geglu; of these types "
            "this one has bf16, bf16_bias, bf16_relu, bf16_gelu, bf16_gelu_tanh, bf16_silu, bf16_residual, "
            "bf16_swiglu, bf16_geglu; the nearest that it has is bf16_relu: add the residual to its result"
        ),
        {"activation": "relu", "residual": ((M, N), BFLOAT16)},
    ),
    refused(
        B16,
        "DeviceError",
        "linear: residual is on GPU 1, x on GPU 0; expected one GPU",
        {"residual": ((M, N), BFLOAT16, None, (CUDA, 1))},
    ),
]


@pytest.mark.parametrize(("operands", "named", "kind", "message"), REFUSED)
def test_errors_are_typed_and_exact(every_package, every, tensor, operands, named, kind, message):

    def made(stated):
        if not isinstance(stated, tuple):
            return stated
        shape, dtype, strides, device = (*stated, None, None)[:4] if len(stated) < 4 else stated
        return tensor(shape, dtype, strides, device=device or (CUDA, 0))

    with pytest.raises(getattr(every_package, kind)) as caught:
        every_package.linear(*map(made, operands), **{name: made(x) for name, x in named.items()})
    assert str(caught.value) == message
    assert every.fake_launches() == []


LACKING = [
    (
        lambda package, tensor: package.linear(tensor((M, K)), tensor((N, K)), tensor((N,)), activation="silu"),
        (
            "linear: this wheel has no kernels for bf16_silu (bfloat16 by bfloat16 into bfloat16 with silu, bias); of "
            "these types it has bf16, bf16_bias; the nearest that it has is bf16_bias: apply silu to its result; build "
            "a wheel with it: aot build --operations bf16_silu; an output is named by keyword, out=, since the third "
            "argument is a bias"
        ),
    ),
    (
        lambda package, tensor: package.linear(tensor((M, K)), tensor((N, K)), residual=tensor((M, N))),
        (
            "linear: this wheel has no kernels for bf16_residual (bfloat16 by bfloat16 into bfloat16 with residual); "
            "of these types it has bf16, bf16_bias; the nearest that it has is bf16: add the residual to its result; "
            "build a wheel with it: aot build --operations bf16_residual"
        ),
    ),
    (
        lambda package, tensor: package.gated_linear(tensor((M, K)), tensor((2 * N, K))),
        (
            "gated_linear: this wheel has no kernels for bf16_swiglu (bfloat16 by bfloat16 into bfloat16 with silu "
            "gate); of these types it has bf16, bf16_bias; the nearest that it has is bf16: compute both halves by "
            "linear, and silu(gate) * linear of them; build a wheel with it: aot build --operations bf16_swiglu"
        ),
    ),
    (
        lambda package, tensor: package.linear(
            tensor((M, K), E4M3), tensor((N, K), E4M3), scale_x=tensor((), FLOAT32), scale_w=tensor((N,), FLOAT32)
        ),
        (
            "linear: this wheel has no kernels for e4m3_bf16 (float8_e4m3fn by float8_e4m3fn into bfloat16 with "
            "factors of rows); it has bf16, fp16, bf16_bias, none of these types; the nearest that it has is bf16: "
            "convert the operands to bfloat16, and multiply by the factors; build a wheel with it: aot build "
            "--operations e4m3_bf16"
        ),
    ),
    (
        lambda package, tensor: package.linear(tensor((M, K), FLOAT32), tensor((N, K), FLOAT32), allow_tf32=True),
        (
            "linear: this wheel has no kernels for tf32 (float32 by float32 into float32); it has bf16, fp16, "
            "bf16_bias, none of these types; the nearest that it has is bf16: convert the operands to bfloat16; build "
            "a wheel with it: aot build --operations tf32"
        ),
    ),
]


@pytest.mark.parametrize(("run", "message"), LACKING)
def test_what_this_wheel_lacks_is_refused_with_what_comes_nearest(package, library, tensor, run, message):
    with pytest.raises(package.UnsupportedError) as caught:
        run(package, tensor)
    assert str(caught.value) == message
    assert library.fake_launches() == []


PLANS = [
    ({"activation": "silu"}, "plan: this wheel has no kernels for bf16_silu"),
    ({"gated": True}, "plan: this wheel has no kernels for bf16_swiglu"),
    ({"dtype": "int8"}, "plan: this wheel has no kernels for int8_int32"),
    ({"dtype": torch.float8_e4m3fn, "scales": "block"}, "plan: this wheel has no kernels for e4m3_bf16_block"),
    ({"gated": True, "activation": "relu"}, "gated_linear: activation is 'relu'; expected one of 'silu', 'gelu_tanh'"),
    ({"scales": "rows"}, "scales is 'rows'; expected None, 'vector' or 'block'"),
]


@pytest.mark.parametrize(("options", "message"), PLANS)
def test_a_plan_refuses_what_the_call_would(package, options, message):
    with pytest.raises(package.UnsupportedError) as caught:
        package.plan(M, N, K, **options)
    assert str(caught.value).startswith(message)
    with pytest.raises(package.UnsupportedError):
        package.explain(M, N, K, **options)


def test_an_explanation_names_the_operation(every_package):
    text = every_package.explain(M, N, K, "float8_e4m3fn", activation="silu", bias=True)
    first = "float8_e4m3fn m 48 n 64 k 256, layout kk, with a bias, operation e4m3_bf16_silu, on sm_90a"
    assert text.startswith(first)
