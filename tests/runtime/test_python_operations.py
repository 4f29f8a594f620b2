"""The Python package over the recorder: the arguments of every operation, as they reach the C API."""

from __future__ import annotations

import random

import pytest
import torch

from aot.core.element import ElementType
from aot.core.epilogue import Step
from aot.core.formats import SCALE_BLOCK, FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.signature import Argument
from tests.runtime import host
from tests.runtime.exchange import Framework
from tests.runtime.stating import IN_ATOMS, QUANTIZED, by_call
from tests.runtime.tensors import (
    BFLOAT16,
    E4M3,
    E5M2,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    FakeTensor,
    install_cupy,
    install_jax,
)
from tests.runtime.test_torch_operands import gpu_tensor
from tests.runtime.ways import IN_EXCHANGE

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


def call_of(manifest, launch):
    """Name the operation whose kernel was launched."""
    return manifest.kernels[launch.kernel].operation.call


def scales_of(operation, tensor):
    """Make the factors of an operation: vectors, or blocks."""
    if operation.types.factors is None:
        return {}
    rows = operation.num_rows_of_b(N)
    shapes = (M, 1), (1, rows)
    if operation.types.factors is FactorLayout.BLOCK:
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


@IN_EXCHANGE
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
        scales="block" if operation.types.factors is FactorLayout.BLOCK else None,
        out_dtype=d.value,
        allow_tf32=is_tf32,
        use_fast_accum=operation.types.is_fast,
    )
    assert (plan.operation, plan.kernel) == (operation.call, every_manifest.kernels[launch.kernel].name)


@IN_EXCHANGE
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


def test_a_gate_may_have_two_weights_wherever_they_lie(every_package, every, tensor):
    x, out = tensor((2, 3, K)), tensor((2, 3, N))
    one, other = tensor((N, K)), tensor((N, K))
    for gate, linear in ((one, other), (other, one)):
        every_package.gated_linear(x, (gate, linear), out=out)
        launch = every.fake_launches()[-1]
        step = (linear.address - gate.address) // 2
        assert (launch.b.parts.data, tuple(launch.b.parts.shape)) == (gate.address, (2, N, K))
        assert tuple(launch.b.parts.strides)[:2] == (step, K)
    with pytest.raises(every_package.ShapeError, match="got 3 weights; expected two"):
        every_package.gated_linear(x, (one, other, other), out=out)
    with pytest.raises(every_package.ShapeError, match=r"gated_linear: weight 1 has shape \(\d+, \d+\)"):
        every_package.gated_linear(x, (one, tensor((N, K + 1))), out=out)


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


def test_an_explanation_names_the_operation(every_package):
    text = every_package.explain(M, N, K, "float8_e4m3fn", activation="silu", bias=True)
    first = "float8_e4m3fn m 48 n 64 k 256, layout kk, with a bias, operation e4m3_bf16_silu, on sm_90a"
    assert text.startswith(first)


@pytest.mark.parametrize("is_gated", [False, True])
def test_a_constant_weight_is_read_early_beside_other_operands(every_package, every, every_manifest, tensor, is_gated):
    early = {x.name for x in every_manifest.kernels if Argument.PREFETCH_B in x.signature}
    rng = random.Random(5)
    shapes = (tuple(8 * rng.randint(1, 2500) for _ in range(3)) for _ in range(500))
    options = {"activation": "silu", "bias": True, "gated": is_gated}
    m, n, k = next(x for x in shapes if every_package.plan(*x, **options).kernel in early)
    rows = 2 * n if is_gated else n
    x, weight, bias, out = tensor((m, k)), tensor((rows, k)), tensor((rows,)), tensor((m, n))
    function = every_package.gated_linear if is_gated else every_package.linear
    for right in (weight, every_package.constant(weight)):
        function(x, right, bias, activation="silu", out=out)
    found = [(launch.b.data, launch.reads_early) for launch in every.fake_launches()]
    assert found == [(weight.address, 0), (weight.address, 1)]


@pytest.mark.parametrize(("dtype", "expected", "operation"), [(INT8, INT32, "int8_int32"), (FLOAT32, FLOAT32, "fp32")])
def test_matmul_takes_types_that_need_no_factors(
    every_package, every, every_manifest, tensor, dtype, expected, operation
):
    out = every_package.matmul(tensor((M, K), dtype), tensor((K, N), dtype))
    (launch,) = every.fake_launches()
    assert (out.dtype, out.shape, call_of(every_manifest, launch)) == (expected, (M, N), operation)
    assert (tuple(launch.b.shape), tuple(launch.b.strides)) == ((N, K), (1, N))
    with pytest.raises(every_package.OperandError, match=r"^matmul: float8_e4m3fn operands .* need factors"):
        every_package.matmul(tensor((M, K), E4M3), tensor((K, N), E4M3))


def test_factors_have_the_leading_dimensions_of_an_x_that_is_copied(every_package, every, monkeypatch):
    array = install_cupy(monkeypatch, 0x8880).ndarray
    x = array((2, 3, K), INT8, strides=(8 * K, K, 1))
    scale_x, scale_w = array((2, 3), FLOAT32), array((N, 1), FLOAT32)
    out = array((2, 3, N))
    every_package.linear(x, array((N, K), INT8), scale_x=scale_x, scale_w=scale_w, out=out)
    (launch,) = every.fake_launches()
    assert (launch.a.data != x.address, launch.scale_a.vector.data, launch.scale_a.vector.shape[0]) == (
        True,
        scale_x.address,
        6,
    )


def test_an_empty_product_launches_nothing(every_package, every, tensor):
    for m, n in ((0, N), (M, 0), (0, 0)):
        x, weight, out = tensor((m, K), E4M3), tensor((n, K), E4M3), tensor((m, n))
        scales = {"scale_x": tensor((m, 1), FLOAT32), "scale_w": tensor((n,), FLOAT32)}
        assert every_package.linear(x, weight, out=out, **scales) is out
    assert every.fake_launches() == []


def test_torch_hears_that_out_was_written_beside_other_operands(every_package, every):
    x, weight, out, residual = (
        gpu_tensor(*shape, address=place << 42) for place, shape in enumerate(((M, K), (N, K), (M, N), (M, N)), 1)
    )
    assert every_package.linear(x, weight, residual=residual, out=out) is out
    assert [t._version for t in (x, weight, out, residual)] == [0, 0, 1, 0]
    assert len(every.fake_launches()) == 1


def test_the_packages_catalogue_is_the_toolchains(every_package):
    rows = every_package._catalogue.CATALOGUE
    asked = [x for x in Operation if x is x.layouts[0] and x.grouping is not Grouping.BATCHED]
    assert [(x.call, x.tag, x.grouping) for x in rows] == [(x.call, x.tag, x.grouping.value) for x in asked]
    own = {*IN_ATOMS, *QUANTIZED}
    dense = [x for x in Operation if x.grouping is Grouping.DENSE]
    others = {x.call for x in dense if x in own or x.b.weight is not None or x.has_parts}
    assert {x.call for x in rows if x.grouping == "dense"} == {x.call for x in by_call()} | others
    by_tag = {x.tag: x for x in Operation}
    for row in rows:
        operation = by_tag[row.tag]
        weight = operation.types.weight
        types = [operation.types.a.value, weight.name if weight else operation.types.b.value, operation.types.d.value]
        types.append(operation.types.scaling)
        assert [row.a, row.b, row.d, row.scale] == types
        form = operation.factors_of_d
        assert row.factor_d == ("float32" if form is None else form.element.value)
        assert (row.epilogue, row.has_bias, row.is_fast) == (
            operation.epilogue.value,
            operation.has_bias,
            operation.types.is_fast,
        )
