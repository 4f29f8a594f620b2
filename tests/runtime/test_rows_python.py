"""Row operations of the Python package over the recorder: what reaches kernels, what comes back, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.signature import RowFlag
from tests.runtime import host
from tests.runtime.rows import Rows, row_manifest
from tests.runtime.tensors import BFLOAT16, CPU, E4M3, E5M2, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, INT64
from tests.runtime.test_torch_operands import gpu_tensor

ROWS, COLS = 6, 256


@pytest.fixture(scope="module")
def manifest():
    return replace(row_manifest(), package="rows-gemm")


@pytest.fixture(scope="module")
def package(manifest, tmp_path_factory):
    return host.compile_package(manifest, tmp_path_factory.mktemp("rows_package"))


@pytest.fixture
def rows(package):
    return Rows(host.Library(package._library.LIBRARY))


def names(manifest, rows):
    return [manifest.row_kernels[x.kernel].operation.tag for x in rows.launches()]


def test_a_norm_gives_what_torch_gives(package, manifest, rows, tensor):
    x, weight = tensor((2, 3, COLS)), tensor((COLS,))
    y = package.rms_norm(x, weight)
    assert (y.shape, y.dtype) == ((2, 3, COLS), BFLOAT16)
    assert names(manifest, rows) == ["bf16_rms_norm"]
    (got,) = rows.launches()
    assert (got.x.data, *got.x.shape, *got.x.strides) == (x.address, ROWS, COLS, COLS, 1)
    assert (got.weight.data, *got.weight.shape) == (weight.address, COLS)
    assert got.y.data == y.address
    assert (got.flags, got.eps, got.weight_offset) == (RowFlag.HAS_WEIGHT, pytest.approx(1e-6), 0.0)


def test_a_residual_is_added_and_given_back(package, rows, tensor):
    x, residual, out, kept = (tensor((ROWS, COLS), FLOAT16) for _ in range(4))
    y, z = package.rms_norm(x, residual=residual, eps=0.5, weight_offset=1.0)
    assert (y.shape, z.shape, z.dtype) == ((ROWS, COLS), (ROWS, COLS), FLOAT16)
    assert package.rms_norm(x, residual=residual, out=out, residual_out=kept) == (out, kept)
    assert package.rms_norm(x, residual=residual, residual_out=residual)[1] is residual
    got = rows.launches()
    assert [x.residual_out.data for x in got] == [z.address, kept.address, residual.address]
    assert {x.residual.data for x in got} == {residual.address}
    assert {x.flags for x in got} == {RowFlag.HAS_RESIDUAL | RowFlag.HAS_RESIDUAL_OUT}
    assert (got[0].eps, got[0].weight_offset) == (0.5, 1.0)
    package.rms_norm(x, round_norm=True)
    assert rows.launches()[-1].flags == RowFlag.ROUNDS_NORM


def test_a_layer_norm_has_a_bias(package, manifest, rows, tensor):
    x, weight, bias = tensor((ROWS, COLS)), tensor((COLS,)), tensor((COLS,))
    package.layer_norm(x, weight, bias)
    (got,) = rows.launches()
    assert names(manifest, rows) == ["bf16_layer_norm"]
    assert (got.bias.data, got.eps) == (bias.address, pytest.approx(1e-5))
    assert got.flags == RowFlag.HAS_WEIGHT | RowFlag.HAS_BIAS


@pytest.mark.parametrize(
    ("function", "operands", "options"),
    [
        ("rms_norm", ("weight",), {"residual": "x", "eps": 0.5, "weight_offset": 1.0, "round_norm": True}),
        ("layer_norm", ("weight", "weight"), {"eps": 0.25, "out_dtype": "float8_e4m3fn"}),
        ("silu_mul", (), {"interleaved": True}),
        ("gelu_tanh_mul", (), {}),
    ],
)
def test_rows_computes_a_function_by_its_name(package, rows, tensor, function, operands, options):
    given = {"x": tensor((2, 3, 2 * COLS)), "weight": tensor((2 * COLS,))}
    operands, options = [given[x] for x in operands], {k: given.get(x, x) for k, x in options.items()}
    by_name = package.rows(function, given["x"], *operands, **options)
    itself = getattr(package, function)(given["x"], *operands, **options)
    shapes = [[y.shape for y in (x if isinstance(x, tuple) else (x,))] for x in (by_name, itself)]
    assert shapes[0] == shapes[1]
    first, second = rows.launches()
    assert (first.kernel, first.flags, first.eps, first.weight_offset) == (
        *(second.kernel, second.flags, second.eps),
        second.weight_offset,
    )
    assert (first.x.data, *first.x.shape, *first.y.shape) == (second.x.data, *second.x.shape, *second.y.shape)


def test_rows_quantises_by_row_block_or_tensor(package, manifest, rows, framework):
    for granularity in ("row", "block", "tensor"):
        _, scale = package.rows(
            "quantize", framework.Tensor((3, 300)), out_dtype="float8_e4m3fn", granularity=granularity
        )
        assert scale.shape == {"row": (3, 1), "block": (3, 3), "tensor": (1, 1)}[granularity]
    assert names(manifest, rows) == ["bf16_e4m3_quantize", "bf16_e4m3_block_quantize", "bf16_e4m3_tensor_quantize"]


@pytest.mark.parametrize(
    ("function", "options", "error", "text"),
    [
        ("rotary", {}, "UnsupportedError", "rows: function is 'rotary'; expected one of 'rms_norm', 'layer_norm'"),
        (["silu_mul"], {}, "UnsupportedError", "rows: function is"),
        ("silu_mul", {"weight": True}, "OperandError", "rows: got weight, which silu_mul does not take; leave it away"),
        ("layer_norm", {"interleaved": True}, "OperandError", "rows: got interleaved, which layer_norm does not take"),
        ("silu_mul", {"eps": "small"}, "OperandError", "rows: eps is 'small'; expected a number"),
        ("quantize", {}, "DtypeError", "quantize: there is none of bfloat16 to bfloat16"),
        ("quantize", {"granularity": "rows"}, "UnsupportedError", "granularity is 'rows'"),
    ],
)
def test_what_a_function_does_not_take_is_refused_by_name(package, tensor, function, options, error, text):
    options = {k: tensor((COLS,)) if k == "weight" else x for k, x in options.items()}
    with pytest.raises(package.AotGemmError) as refusal:
        package.rows(function, tensor((ROWS, 2 * COLS)), **options)
    assert type(refusal.value).__name__ == error
    assert text in str(refusal.value)


def test_a_float8_result_comes_with_its_scales(package, manifest, rows, tensor):
    x = tensor((2, 3, COLS))
    y, scale = package.rms_norm(x, out_dtype="float8_e4m3fn")
    assert (y.shape, y.dtype, scale.shape, scale.dtype) == ((2, 3, COLS), E4M3, (2, 3, 1), FLOAT32)
    _, z, scales = package.rms_norm(x, residual=x, out_dtype="float8_e4m3fn")
    assert (z.dtype, scales.shape) == (BFLOAT16, (2, 3, 1))
    one = tensor((1,), FLOAT32)
    assert package.rms_norm(x, out_dtype="float8_e4m3fn", scale=one)[1] is one
    assert set(names(manifest, rows)) == {"bf16_e4m3_rms_norm"}
    computed, _, given = rows.launches()
    assert (computed.scale.data, *computed.scale.shape, computed.flags) == (scale.address, ROWS, 1, 0)
    assert computed.scale.strides[0] == 1
    assert (given.scale.data, given.scale.strides[0], given.flags) == (one.address, 0, RowFlag.SCALE_IS_GIVEN)


def test_out_says_the_type_and_scale_out_where_scales_go(package, manifest, rows, tensor):
    x, out, scale_out = tensor((ROWS, COLS)), tensor((ROWS, COLS), E4M3), tensor((ROWS, 1), FLOAT32)
    assert package.layer_norm(x, out=out, scale_out=scale_out) == (out, scale_out)
    assert names(manifest, rows) == ["bf16_e4m3_layer_norm"]


@pytest.mark.parametrize("function", ["silu_mul", "gelu_tanh_mul"])
def test_a_gate_has_half_the_columns(package, manifest, rows, tensor, function):
    y = getattr(package, function)(tensor((ROWS, 2 * COLS)), interleaved=True)
    assert y.shape == (ROWS, COLS)
    (got,) = rows.launches()
    assert names(manifest, rows) == [f"bf16_{function}"]
    assert (*got.x.shape, *got.y.shape, got.flags) == (ROWS, 2 * COLS, ROWS, COLS, RowFlag.IS_INTERLEAVED)


@pytest.mark.parametrize(
    ("dtype", "granularity", "tag", "shape"),
    [
        ("float8_e4m3fn", "row", "bf16_e4m3_quantize", (2, 3, 1)),
        ("int8", "row", "bf16_int8_quantize", (2, 3, 1)),
        ("float8_e4m3fn", "block", "bf16_e4m3_block_quantize", (2, 3, 3)),
        ("float8_e5m2", "row", "bf16_e5m2_quantize", (2, 3, 1)),
    ],
)
def test_quantize_gives_scales(package, manifest, rows, framework, dtype, granularity, tag, shape):
    y, scale = package.quantize(framework.Tensor((2, 3, 300)), dtype, granularity)
    assert (y.shape, y.dtype) == ((2, 3, 300), {"int8": INT8, "float8_e5m2": E5M2}.get(dtype, E4M3))
    assert (scale.shape, scale.dtype) == (shape, FLOAT32)
    assert names(manifest, rows) == [tag]
    (got,) = rows.launches()
    assert (*got.scale.shape, got.scale.strides[0]) == (ROWS, shape[-1], shape[-1])


@pytest.mark.parametrize(
    ("dtype", "tag"),
    [
        ("float8_e4m3fn", "bf16_e4m3_tensor_quantize"),
        ("float8_e5m2", "bf16_e5m2_tensor_quantize"),
        ("int8", "bf16_int8_tensor_quantize"),
    ],
)
def test_a_tensor_has_one_scale(package, manifest, rows, framework, dtype, tag):
    y, scale = package.quantize(framework.Tensor((2, 3, 300)), dtype, "tensor")
    assert (y.shape, scale.shape, scale.dtype) == ((2, 3, 300), (1, 1, 1), FLOAT32)
    assert names(manifest, rows) == [tag]
    (got,) = rows.launches()
    assert (*got.scale.shape, got.scale.data, got.flags) == (1, 1, scale.address, 0)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_a_scale_of_a_tensor_may_be_written_to_any_one_element(package, rows, tensor, shape):
    scale_out = tensor(shape, FLOAT32)
    assert package.quantize(tensor((2, 3, COLS)), granularity="tensor", scale_out=scale_out)[1] is scale_out
    (got,) = rows.launches()
    assert got.scale.data == scale_out.address


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (ROWS,), (ROWS, 1), (2, 3), (2, 3, 1)])
def test_a_scale_is_one_or_one_for_each_row(package, rows, tensor, shape):
    scale = tensor(shape, FLOAT32)
    y, given = package.quantize(tensor((2, 3, COLS)), granularity="tensor", scale=scale)
    assert given is scale
    assert y.dtype == E4M3
    (got,) = rows.launches()
    assert (got.scale.data, got.scale.strides[0]) == (scale.address, 0 if scale.shape in ((), (1,), (1, 1)) else 1)


def test_a_rotary_embedding_reads_heads(package, manifest, rows, tensor):
    x, cos, sin = tensor((2, 7, 5, 64)), tensor((7, 32)), tensor((1, 7, 32))
    sin.shape, sin.strides = (7, 32), (32, 1)
    y = package.rotary(x, cos, sin)
    assert y.shape == x.shape
    assert package.rotary(x, cos, sin, out=x) is x
    got, in_place = rows.launches()
    assert names(manifest, rows) == ["bf16_rotary"] * 2
    assert (*got.x.heads.shape, *got.x.heads.strides) == (14, 5, 64, 320, 64, 1)
    assert (got.cos.data, *got.cos.shape, *got.cos.strides) == (cos.address, 7, 32, 32, 1)
    assert (got.sin.data, got.flags) == (sin.address, 0)
    assert in_place.y.data == x.address


def test_heads_may_lie_in_a_wider_row(package, rows, framework):
    x = framework.Tensor((4, 5, 64), strides=(1000, 64, 1))
    package.rotary(x, framework.Tensor((4, 32)), framework.Tensor((4, 32)))
    (got,) = rows.launches()
    assert (*got.x.heads.strides, *got.y.heads.strides) == (1000, 64, 1, 320, 64, 1)


def of_cache(tensor, **changes):
    """Give keys and values of two sequences of three tokens, two heads and caches of nine positions."""
    sizes = {"keys": (2, 3, 2, 64), "values": (2, 3, 2, 64), "key_cache": (2, 2, 9, 64), "value_cache": (2, 2, 9, 64)}
    found = {name: tensor(changes.get(name, shape)) for name, shape in sizes.items()}
    return found | {"cache_position": tensor(changes.get("cache_position", (3,)), changes.get("dtype", INT64))}


def test_keys_and_values_go_to_a_cache(package, rows, tensor):
    x, angles, given = tensor((2, 3, 5, 64)), tensor((3, 64)), of_cache(tensor)
    y = package.rotary(x, angles, tensor((3, 64)), **given)
    assert y.shape == x.shape
    (got,) = rows.launches()
    assert (got.keys.heads.data, *got.keys.heads.shape) == (given["keys"].address, 6, 2, 64)
    assert (got.key_cache.data, *got.key_cache.shape) == (given["key_cache"].address, 2, 9, 2, 64)
    assert (*got.value_cache.strides,) == (1152, 64, 576)
    assert (got.cache_position.data, *got.cache_position.shape) == (given["cache_position"].address, 3)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"keys": (2, 3, 2, 32)}, "ShapeError", r"keys has shape \(2, 3, 2, 32\), beside x"),
        ({"keys": (6, 2, 64)}, "ShapeError", "keys has shape"),
        ({"values": (2, 3, 1, 64)}, "ShapeError", "values has shape"),
        ({"key_cache": (2, 3, 9, 64)}, "ShapeError", "key_cache has shape"),
        ({"key_cache": (1, 2, 9, 64), "value_cache": (1, 2, 9, 64)}, "ShapeError", "tokens are batch times"),
        (
            {"value_cache": (2, 2, 8, 64)},
            "ShapeError",
            r"value_cache has shape \(2, 2, 8, 64\), and key_cache \(2, 2, 9, 64\)",
        ),
        ({"cache_position": (2,)}, "ShapeError", "and 2 positions"),
        ({"cache_position": (3, 1)}, "ShapeError", "expected a vector"),
        ({"dtype": INT32}, "DtypeError", "cache_position is int32; expected int64"),
    ],
)
def test_what_does_not_go_to_a_cache_is_refused(package, rows, framework, changes, error, text):
    tensor = framework.Tensor
    with pytest.raises(getattr(package, error), match=text):
        package.rotary(tensor((2, 3, 5, 64)), tensor((3, 64)), tensor((3, 64)), **of_cache(tensor, **changes))
    assert rows.launches() == []


def test_keys_come_with_all_that_goes_with_them(package, rows, framework):
    x, angles = framework.Tensor((2, 3, 5, 64)), framework.Tensor((3, 64))
    for name in of_cache(framework.Tensor):
        given = of_cache(framework.Tensor) | {name: None}
        with pytest.raises(package.OperandError, match=f"{name} is missing"):
            package.rotary(x, angles, framework.Tensor((3, 64)), **given)
    assert rows.launches() == []


@pytest.mark.parametrize(
    ("width", "asked", "interleaved", "half", "stride"),
    [
        (64, None, False, 32, 1),
        (64, None, True, 32, 2),
        (32, None, False, 32, 1),
        (16, None, False, 16, 1),
        (32, 32, False, 16, 1),
        (32, 32, True, 16, 2),
        (32, 64, True, 32, 1),
    ],
)
def test_angles_are_halves_or_there_twice(package, rows, framework, width, asked, interleaved, half, stride):
    x, angles = framework.Tensor((4, 5, 64)), framework.Tensor((4, width))
    other = framework.Tensor((4, width))
    package.rotary(x, angles, other, rotary_dim=asked, interleaved=interleaved)
    (got,) = rows.launches()
    assert (*got.cos.shape, *got.cos.strides) == (4, half, width, stride)
    assert (*got.sin.shape, *got.sin.strides) == (4, half, width, stride)
    assert got.flags == (RowFlag.IS_INTERLEAVED if interleaved else 0)


def test_rows_that_do_not_join_are_copied_first(package, rows, monkeypatch, framework):
    copy = framework.Tensor((4, 3, COLS))
    monkeypatch.setattr(package._routes, "framework_of", lambda tensor: type("F", (), {"compact": lambda s, t: copy})())
    y = package.rms_norm(framework.Tensor((4, 3, COLS), strides=(5 * COLS, COLS, 1)))
    (got,) = rows.launches()
    assert (got.x.data, y.shape) == (copy.address, (4, 3, COLS))


def test_torch_hears_of_every_write_and_of_no_gradient(package, rows):
    x, residual = (gpu_tensor(ROWS, COLS, address=place << 42) for place in (1, 2))
    assert package.rms_norm(x, residual=residual, out=x, residual_out=residual) == (x, residual)
    assert [tensor._version for tensor in (x, residual)] == [1, 1]
    x.requires_grad_()
    with pytest.raises(package.GradientError, match="rms_norm: an operand of shape"):
        package.rms_norm(x)
    with torch.no_grad():
        package.rms_norm(x, out=residual)
    assert len(rows.launches()) == 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda p, t: p.rms_norm(t((4, 8), FLOAT64)), "DtypeError", "rms_norm: x is float64"),
        (
            lambda p, t: p.rms_norm(t((4, 8), E4M3)),
            "DtypeError",
            "rms_norm: there is none of float8_e4m3fn to float8_e4m3fn",
        ),
        (
            lambda p, t: p.rms_norm(t((4, 8)), out_dtype="int8"),
            "DtypeError",
            "there is none of bfloat16 to int8; expected",
        ),
        (lambda p, t: p.rms_norm(t(())), "ShapeError", r"x has shape \(\); expected \(..., cols\)"),
        (lambda p, t: p.rms_norm(t((4, 8)), t((4, 8))), "ShapeError", r"weight has shape \(4, 8\); expected \(8,\)"),
        (lambda p, t: p.rms_norm(t((4, 8)), t((8,), FLOAT32)), "DtypeError", "weight is float32; expected bfloat16"),
        (
            lambda p, t: p.rms_norm(t((4, 8)), residual=t((8,))),
            "ShapeError",
            r"residual has shape \(8,\); expected \(4, 8\)",
        ),
        (
            lambda p, t: p.rms_norm(t((4, 8)), residual_out=t((4, 8))),
            "OperandError",
            "got residual_out and no residual",
        ),
        (
            lambda p, t: p.rms_norm(t((4, 8)), scale=t((1,), FLOAT32)),
            "OperandError",
            "got scale, which goes with a result of 8",
        ),
        (
            lambda p, t: p.rms_norm(t((4, 8)), scale_out=t((1,), FLOAT32)),
            "OperandError",
            "got scale_out, which goes with",
        ),
        (lambda p, t: p.rms_norm(t((4, 8)), eps="small"), "OperandError", "eps is 'small'; expected a number"),
        (lambda p, t: p.rms_norm(t((4, 8)), out=t((8, 8))), "ShapeError", r"out has shape \(8, 8\); expected \(4, 8\)"),
        (lambda p, t: p.rms_norm(t((4, 8)), out=t((4, 8), strides=(1, 1))), "StrideError", "overlaps itself"),
        (lambda p, t: p.rms_norm(t((4, 8), device=(CPU, 0))), "DeviceError", "not in GPU memory"),
        (lambda p, t: p.rms_norm(t((4, 8)), t((8,), device=(2, 1))), "DeviceError", "weight is on GPU 1, x on GPU 0"),
        (lambda p, t: p.rms_norm(3), "DtypeError", "got a int; expected a tensor that speaks DLPack"),
        (lambda p, t: p.silu_mul(t((4, 7))), "ShapeError", "expected an even last extent"),
        (lambda p, t: p.quantize(t((4, 8)), "bfloat16"), "DtypeError", "there is none of bfloat16 to bfloat16"),
        (
            lambda p, t: p.quantize(t((4, 8)), "int8", "block"),
            "DtypeError",
            "int8 with scales of blocks; expected one of",
        ),
        (lambda p, t: p.quantize(t((4, 8)), granularity="column"), "UnsupportedError", "granularity is 'column'"),
        (
            lambda p, t: p.quantize(t((4, 8)), "float8_e5m2", "block"),
            "DtypeError",
            "float8_e5m2 with scales of blocks; expected one of .*int8 with one scale",
        ),
        (
            lambda p, t: p.quantize(t((4, 8)), granularity="tensor", scale_out=t((4, 1), FLOAT32)),
            "ShapeError",
            r"scale_out has shape \(4, 1\); expected \(1, 1\)",
        ),
        (lambda p, t: p.quantize(t((0, 8)), granularity="tensor"), "ShapeError", "expected at least 1 element"),
        (
            lambda p, t: p.quantize(t((4, 8)), scale=t((3,), FLOAT32)),
            "ShapeError",
            r"scale has shape \(3,\); expected one",
        ),
        (lambda p, t: p.quantize(t((4, 8)), scale=t((4,))), "DtypeError", "scale is bfloat16; expected float32"),
        (
            lambda p, t: p.quantize(t((4, 8)), scale=t((4,), FLOAT32), scale_out=t((4, 1), FLOAT32)),
            "OperandError",
            "got scale_out",
        ),
        (lambda p, t: p.quantize(t((4, 0))), "ShapeError", "expected at least 1 column"),
        (lambda p, t: p.rotary(t((8,)), t((4,)), t((4,))), "ShapeError", r"expected \(..., heads, dim\)"),
        (lambda p, t: p.rotary(t((4, 2, 8)), None, t((4, 4))), "OperandError", "cos is missing"),
        (lambda p, t: p.rotary(t((4, 2, 8)), t((4, 4)), t((4, 8))), "ShapeError", "cos has shape"),
        (
            lambda p, t: p.rotary(t((4, 2, 8)), t((3, 4)), t((3, 4))),
            "ShapeError",
            "the tokens are as many as the positions",
        ),
        (lambda p, t: p.rotary(t((4, 2, 8)), t((4, 5)), t((4, 5))), "ShapeError", "cos has shape"),
        (lambda p, t: p.rotary(t((4, 2, 8)), t((4, 4)), t((4, 4)), rotary_dim=-2), "ShapeError", "rotary_dim is -2"),
        (lambda p, t: p.rotary(t((4, 2, 8)), t((4, 4)), t((4, 4)), rotary_dim="8"), "ShapeError", "rotary_dim is '8'"),
    ],
)
def test_what_is_refused_is_said(package, rows, framework, call, error, text):
    with pytest.raises(getattr(package, error), match=text):
        call(package, framework.Tensor)
    assert rows.launches() == []


def test_a_wheel_without_an_operation_says_how_one_is_built(package, framework, tmp_path_factory):
    from tests.runtime.rows import with_rows

    only = with_rows(row_manifest(), (row_operation("fp16_rms_norm"),))
    other = host.compile_package(replace(only, package="few-gemm"), tmp_path_factory.mktemp("few"))
    with pytest.raises(other.UnsupportedError) as caught:
        other.rms_norm(framework.Tensor((4, 8)))
    assert str(caught.value) == (
        "rms_norm: this wheel has no kernels for bf16_rms_norm; of rms_norm it has fp16_rms_norm; build a wheel with "
        "it: aot build --target h200 --operations default,bf16_rms_norm"
    )
