"""The Python package over the recorder: what its products refuse, by both routes, with the exact message."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.tensors import BFLOAT16, CUDA, E4M3, E5M2, FLOAT16, FLOAT32, INT8, install_cupy
from tests.runtime.test_torch_operands import KINDS, gpu_tensor
from tests.runtime.ways import IN_EXCHANGE

M, N, K = 48, 64, 256


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
            "bf16_relu, bf16_gelu, bf16_gelu_tanh, bf16_silu, bf16_residual, bf16_swiglu, bf16_geglu, bf16_many; of "
            "these types this one has bf16, bf16_bias, bf16_relu, bf16_gelu, bf16_gelu_tanh, bf16_silu, bf16_residual, "
            "bf16_swiglu, bf16_geglu, bf16_many; the nearest that it has is bf16_relu: add the residual to its result"
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


@IN_EXCHANGE
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
            "a wheel with it: aot build --target h200 --operations default,bf16_kk_silu; an output is named by "
            "keyword, out=, since the third argument is a bias"
        ),
    ),
    (
        lambda package, tensor: package.linear(tensor((M, K)), tensor((N, K)), residual=tensor((M, N))),
        (
            "linear: this wheel has no kernels for bf16_residual (bfloat16 by bfloat16 into bfloat16 with residual); "
            "of these types it has bf16, bf16_bias; the nearest that it has is bf16: add the residual to its result; "
            "build a wheel with it: aot build --target h200 --operations default,bf16_kk_residual"
        ),
    ),
    (
        lambda package, tensor: package.gated_linear(tensor((M, K)), tensor((2 * N, K))),
        (
            "gated_linear: this wheel has no kernels for bf16_swiglu (bfloat16 by bfloat16 into bfloat16 with silu "
            "gate); of these types it has bf16, bf16_bias; the nearest that it has is bf16: compute both halves by "
            "linear, and silu(gate) * linear of them; build a wheel with it: aot build --target "
            "h200 --operations default,bf16_kk_swiglu"
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
            "--target h200 --operations default,e4m3_bf16_kk"
        ),
    ),
    (
        lambda package, tensor: package.linear(tensor((M, K), FLOAT32), tensor((N, K), FLOAT32), allow_tf32=True),
        (
            "linear: this wheel has no kernels for tf32 (float32 by float32 into float32); it has bf16, fp16, "
            "bf16_bias, none of these types; the nearest that it has is bf16: convert the operands to bfloat16; build "
            "a wheel with it: aot build --target h200 --operations default,tf32_kk"
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
    ({"scales": torch.zeros(2)}, "scales is tensor([0., 0.]); expected None, 'vector' or 'block'"),
    ({"activation": [1]}, "linear: activation is [1]; expected one of None, 'relu', 'gelu', 'gelu_tanh', 'silu'"),
]


@pytest.mark.parametrize(("options", "message"), PLANS)
def test_a_plan_refuses_what_the_call_would(package, options, message):
    with pytest.raises(package.UnsupportedError) as caught:
        package.plan(M, N, K, **options)
    assert str(caught.value).startswith(message)
    with pytest.raises(package.UnsupportedError):
        package.explain(M, N, K, **options)


@pytest.mark.parametrize("name", ["residual", "bias", "scale_x", "scale_w", "scale_out"])
def test_an_operand_that_out_overlaps_is_refused(every_package, every, tensor, name):
    x, weight, out = tensor((M, K), E4M3), tensor((N, K), E4M3), tensor((M, N), E4M3)
    operands = {part: tensor((), FLOAT32) for part in ("scale_x", "scale_w", "scale_out")}
    if name in ("residual", "bias"):
        x, weight, out, operands = tensor((M, K)), tensor((N, K)), tensor((M, N)), {}
        operands[name] = tensor((M, N) if name == "residual" else (N,))
    operands[name].address = out.address + (M - 1) * N
    with pytest.raises(every_package.StrideError, match="expected a D that shares no element with an operand"):
        every_package.linear(x, weight, out=out, **operands)
    assert every.fake_launches() == []


def test_a_residual_that_is_out_is_refused(every_package, every, tensor):
    out = tensor((M, N))
    with pytest.raises(every_package.StrideError, match=r"^D at address .* overlaps the residual at address"):
        every_package.linear(tensor((M, K)), tensor((N, K)), residual=out, out=out)
    assert every.fake_launches() == []
