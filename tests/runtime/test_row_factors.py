"""Row operations that write factors in atoms, over the recorder: by the C API and by the Python package."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.signature import RowFlag
from tests.runtime import host
from tests.runtime.rows import Rows, row_manifest, row_problem
from tests.runtime.tensors import CPU, E2M1_PAIR, E4M3, E8M0, FLOAT16, FLOAT32, UINT8
from tests.runtime.test_rows import ARGUMENT, OK, SCALE_GIVEN, SHAPE, STRIDE, norm

X, Y, SCALE, TENSOR_SCALE = (x << 30 for x in range(1, 5))


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    manifest = replace(row_manifest(), package="factors-gemm")
    return host.compile_package(manifest, tmp_path_factory.mktemp("factors"))


@pytest.fixture
def rows(package):
    return Rows(host.Library(package._library.LIBRARY))


NVFP4 = row_operation("bf16_nvfp4_quantize")


def factors(operation=NVFP4, num_rows=50, cols=304, **changes):
    """Make a problem of factors in atoms whose X and Y are packed."""
    known = {"x": (X, (cols, 1)), "y": (Y, (cols, 1)), "scale": (SCALE, ())}
    if operation.has_tensor_scale:
        known["tensor_scale"] = (TENSOR_SCALE, ())
    return row_problem(operation, num_rows, cols, **(known | changes))


def test_factors_lie_in_atoms_and_elements_of_four_bits_in_bytes(rows):
    assert rows.launch(factors(num_rows=130, y=(Y, (320, 1)))) == OK, rows.error()
    assert rows.launch(factors(row_operation("bf16_mxfp8_quantize"), num_rows=130)) == OK, rows.error()
    nvfp4, mxfp8 = rows.launches()
    assert (nvfp4.y.data, *nvfp4.y.shape, *nvfp4.y.strides) == (Y, 130, 304, 320, 1)
    # 19 factors of 16 elements take five atoms of 512 bytes for each 128 rows; 10 of 32 take three.
    assert (nvfp4.scale.data, *nvfp4.scale.shape, *nvfp4.scale.strides) == (SCALE, 2, 5 * 512, 5 * 512, 1)
    assert (nvfp4.tensor_scale.data, *nvfp4.tensor_scale.shape) == (TENSOR_SCALE, 1)
    assert (mxfp8.scale.data, *mxfp8.scale.shape, *mxfp8.scale.strides) == (SCALE, 2, 3 * 512, 3 * 512, 1)
    assert (nvfp4.num_arguments, mxfp8.num_arguments) == (9, 8)


@pytest.mark.parametrize(
    ("change", "tier"),
    [
        ({}, 2),
        ({"y": (Y + 4, (304, 1))}, 2),
        ({"y": (Y + 2, (304, 1))}, 3),
        ({"y": (Y, (306, 1))}, 3),
        ({"x": (X, (304, 2))}, 3),
        ({"x": (X + 2, (304, 1))}, 3),
        ({"cols": 302}, 3),
    ],
)
def test_elements_of_four_bits_are_aligned_to_as_many_of_x(rows, change, tier):
    status, found = rows.select(factors(**change))
    assert (status, found.tier) == (OK, tier), rows.error()


@pytest.mark.parametrize(
    ("problem", "status", "text"),
    [
        (factors(cols=303), SHAPE, "cols is 303; expected an even number of elements of 4 bits"),
        (factors(y=(Y, (305, 1))), STRIDE, "y of elements of 4 bits has the strides (305, 1); expected an even one"),
        (factors(y=(Y, (608, 2))), STRIDE, "y of elements of 4 bits has the strides (608, 2)"),
        (factors(y=(Y, (302, 1))), STRIDE, "overlaps itself"),
        (factors(y=(X, (304, 1))), STRIDE, "overlaps x at address"),
        (factors(scale=(SCALE + 8, ())), STRIDE, "expected a multiple of 16 bytes, as products take factors in atoms"),
        (factors(scale=(X + 16, ())), STRIDE, "overlaps x at address"),
        (factors(scale=(0, ())), ARGUMENT, "`scale.data` is null"),
        (factors(scale=(Y + 128, ())), STRIDE, "overlaps the scale"),
        (factors(tensor_scale=(0, ())), ARGUMENT, "`tensor_scale.data` is null"),
        (factors(tensor_scale=(TENSOR_SCALE + 2, ())), STRIDE, "expected a multiple of 4"),
        (factors(tensor_scale=(SCALE + 64, ())), STRIDE, "overlaps the tensor's scale"),
        (factors(flags=SCALE_GIVEN), ARGUMENT, "bf16_nvfp4_quantize takes of"),
        (factors(num_rows=1 << 22, cols=1 << 14), SHAPE, "takes 4294967296 bytes; expected at most 2147483647"),
        (
            factors(row_operation("bf16_mxfp8_quantize"), tensor_scale=(TENSOR_SCALE, ())),
            ARGUMENT,
            "got tensor_scale, which operation bf16_mxfp8_quantize does not take",
        ),
        (norm(tensor_scale=(TENSOR_SCALE, ())), ARGUMENT, "got tensor_scale, which operation bf16_rms_norm does not"),
        (factors(row_operation("bf16_mxfp8_quantize"), cols=303), OK, ""),
        (factors(num_rows=0), OK, ""),
    ],
)
def test_what_a_launch_of_factors_refuses(rows, problem, status, text):
    assert rows.launch(problem) == status, rows.error()
    assert text in (rows.error() or "")


@pytest.mark.parametrize("out", [None, UINT8, E2M1_PAIR])
def test_nvfp4_gives_bytes_and_factors_in_atoms(package, rows, tensor, out):
    x, own = tensor((2, 65, 304)), tensor((1,), FLOAT32)
    given = None if out is None else tensor((2, 65, 152), out)
    y, (scale, same) = package.quantize(x, "nvfp4", scale=own, out=given)
    assert same is own
    assert y is given or (y.shape, y.dtype) == ((2, 65, 152), UINT8)
    assert (scale.shape, scale.dtype) == ((2 * 5 * 512,), E4M3)
    (got,) = rows.launches()
    assert (got.x.data, *got.x.shape) == (x.address, 130, 304)
    assert (got.y.data, *got.y.shape, *got.y.strides) == (y.address, 130, 304, 304, 1)
    assert (got.scale.data, *got.scale.shape) == (scale.address, 2, 5 * 512)
    assert (got.tensor_scale.data, got.flags) == (own.address, 0)


def test_mxfp8_gives_powers_of_two_in_atoms(package, rows, tensor):
    x, out, scale_out = tensor((130, 304)), tensor((130, 304), E4M3), tensor((2 * 3 * 512,), E8M0)
    y, scale = package.quantize(x, "mxfp8")
    assert (y.shape, y.dtype, scale.shape, scale.dtype) == ((130, 304), E4M3, (2 * 3 * 512,), E8M0)
    assert package.quantize(x, "mxfp8", out=out, scale_out=scale_out) == (out, scale_out)
    assert [x.tensor_scale.data for x in rows.launches()] == [None, None]


def test_a_norm_gives_factors_behind_the_sum(package, rows, tensor):
    x, residual, weight, own = tensor((2, 65, 64)), tensor((2, 65, 64)), tensor((64,)), tensor((1,), FLOAT32)
    y, total, (scale, same) = package.rms_norm(
        x, weight, residual=residual, out_dtype="nvfp4", scale=own, round_norm=True
    )
    assert (y.shape, y.dtype, total.shape, scale.shape, scale.dtype) == ((2, 65, 32), UINT8, x.shape, (1024,), E4M3)
    assert same is own
    (got,) = rows.launches()
    assert (got.y.data, *got.y.shape, got.scale.data) == (y.address, 130, 64, scale.address)
    assert (got.tensor_scale.data, got.residual_out.data) == (own.address, total.address)
    wanted = RowFlag.HAS_RESIDUAL | RowFlag.HAS_WEIGHT | RowFlag.HAS_RESIDUAL_OUT | RowFlag.ROUNDS_NORM
    assert got.flags == wanted
    y, scale = package.rms_norm(x, out_dtype="mxfp8")
    assert (y.shape, y.dtype, scale.shape, scale.dtype) == ((2, 65, 64), E4M3, (1024,), E8M0)


def test_a_gate_gives_factors_of_half_the_columns(package, rows, tensor):
    y, (scale, _) = package.silu_mul(tensor((130, 128)), out_dtype="nvfp4", scale=tensor((), FLOAT32), interleaved=True)
    assert (y.shape, y.dtype, scale.shape) == ((130, 32), UINT8, (1024,))
    assert package.silu_mul(tensor((130, 128)), out_dtype="mxfp8")[1].dtype == E8M0
    (nvfp4, mxfp8) = rows.launches()
    assert (*nvfp4.x.shape, *nvfp4.y.shape, nvfp4.flags) == (130, 128, 130, 64, RowFlag.IS_INTERLEAVED)
    assert (*mxfp8.x.shape, *mxfp8.y.shape) == (130, 128, 130, 64)


def test_mxfp4_gives_bytes_and_powers_of_two(package, rows, tensor):
    y, scale = package.quantize(tensor((130, 304)), "mxfp4")
    assert (y.shape, y.dtype, scale.shape, scale.dtype) == ((130, 152), UINT8, (2 * 3 * 512,), E8M0)
    assert len(rows.launches()) == 1


def test_nothing_is_launched_without_rows(package, rows, tensor):
    y, (scale, _) = package.quantize(tensor((0, 64)), "nvfp4", scale=tensor((), FLOAT32))
    assert (y.shape, scale.shape, rows.launches()) == ((0, 32), (0,), [])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda p, t: p.quantize(t((1 << 56, 64)), "mxfp8"),
            "ShapeError",
            "whose factors take more than 2147483647 bytes",
        ),
        (lambda p, t: p.quantize(t((1 << 24, 8192)), "mxfp8"), "ShapeError", "whose factors take more than 2147483647"),
        (
            lambda p, t: p.quantize(t((4, 64)), "mxfp4", out=t((4, 32), UINT8, strides=(2**63 - 1, 1))),
            "StrideError",
            "reaches past the end of the address space",
        ),
        (lambda p, t: p.rms_norm(t((4, 64)), out_dtype="nvfp4"), "OperandError", "rms_norm: scale is missing"),
        (
            lambda p, t: p.silu_mul(t((4, 126)), out_dtype="nvfp4", scale=t((1,), FLOAT32)),
            "ShapeError",
            r"x has shape \(4, 126\), for rows of 63 elements of 4 bits",
        ),
        (
            lambda p, t: p.layer_norm(t((4, 64)), out_dtype="mxfp8"),
            "DtypeError",
            "layer_norm: there is none of bfloat16 to float8_e4m3fn with powers of two in atoms",
        ),
        (lambda p, t: p.quantize(t((4, 64)), "nvfp4"), "OperandError", "scale is missing; expected the tensor's own"),
        (
            lambda p, t: p.quantize(t((4, 64)), "mxfp8", scale=t((1,), FLOAT32)),
            "OperandError",
            "got scale, which goes with nvfp4; bf16_mxfp8_quantize has factors of blocks alone",
        ),
        (
            lambda p, t: p.quantize(t((4, 64)), "nvfp4", scale=t((4,), FLOAT32)),
            "ShapeError",
            r"scale has shape \(4,\); expected one element",
        ),
        (lambda p, t: p.quantize(t((4, 64)), "nvfp4", scale=t((1,))), "DtypeError", "scale is bfloat16"),
        (
            lambda p, t: p.quantize(t((4, 64)), "nvfp4", scale=t((1,), FLOAT32, device=(CPU, 0))),
            "DeviceError",
            "scale is not in GPU memory",
        ),
        (
            lambda p, t: p.quantize(t((4, 63)), "nvfp4", scale=t((1,), FLOAT32)),
            "ShapeError",
            r"x has shape \(4, 63\), for rows of 63 elements of 4 bits; expected an even number",
        ),
        (
            lambda p, t: p.quantize(t((4, 64)), "nvfp4", scale=t((1,), FLOAT32), out=t((4, 64), UINT8)),
            "ShapeError",
            r"out has shape \(4, 64\); expected \(4, 32\)",
        ),
        (
            lambda p, t: p.quantize(t((4, 64)), "nvfp4", scale=t((1,), FLOAT32), out=t((4, 32), E4M3)),
            "DtypeError",
            "out is float8_e4m3fn and dtype float4_e2m1fn; expected one type",
        ),
        (
            lambda p, t: p.quantize(t((4, 64)), "mxfp8", scale_out=t((4, 2), E8M0)),
            "ShapeError",
            r"scale_out has shape \(4, 2\); expected \(512,\), the bytes of the factors' atoms",
        ),
        (
            lambda p, t: p.quantize(t((4, 64)), "mxfp8", scale_out=t((512,), E4M3)),
            "DtypeError",
            "scale_out is float8_e4m3fn; expected float8_e8m0fnu",
        ),
        (
            lambda p, t: p.quantize(t((4, 64), FLOAT16), "nvfp4", scale=t((1,), FLOAT32)),
            "DtypeError",
            "there is none of float16 to float4_e2m1fn as nvfp4; expected one of .*bfloat16 to nvfp4",
        ),
    ],
)
def test_what_is_refused_is_said(package, rows, framework, call, error, text):
    with pytest.raises(getattr(package, error), match=text):
        call(package, framework.Tensor)
    assert rows.launches() == []


class OnGpu(torch.Tensor):
    """A tensor that says that it is in GPU memory."""

    is_cuda = True


@pytest.fixture
def called(package, monkeypatch):
    """Give torch's package, and a list of what its `quantize` has the package's round."""
    calls, blocks = [], import_module(f"{package.__name__}._torch_blocks")

    def quantize(x, name, *, scale=None, **where):
        assert where == dict.fromkeys(("offsets", "index", "groups"))
        calls.append((tuple(x.shape), name, scale))
        if isinstance(calls[0], Exception):
            raise calls[0]
        return blocks.quantize(x.as_subclass(torch.Tensor), name, scale=scale)

    monkeypatch.setattr(package._rows, "quantize", quantize)
    return import_module(f"{package.__name__}.torch"), calls


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "mxfp4"])
def test_torch_rounds_by_the_kernel_where_there_is_one(called, name):
    blocks, calls = called
    x = torch.randn(2, 65, 64, dtype=torch.bfloat16)
    expected = blocks.quantize(x, name)
    assert calls == []
    values, scale = blocks.quantize(x.as_subclass(OnGpu), name)
    ((shape, asked, own),) = calls
    assert (shape, asked, values.shape) == ((130, 64), name, expected[0].shape)
    assert torch.equal(values.view(torch.uint8), expected[0].view(torch.uint8))
    if name == "nvfp4":
        assert own.item() == expected[1][1].item() == (x.float().abs().max() / 2688).item()
        assert torch.equal(scale[0].view(torch.uint8), expected[1][0].view(torch.uint8))
        given = torch.tensor([0.5])
        assert blocks.quantize(x.as_subclass(OnGpu), name, scale=given)[1][1].item() == 0.5
    else:
        assert own is None


@pytest.mark.parametrize(
    ("shape", "name", "dtype"),
    [((4, 64), "nvfp4", torch.float16), ((0, 64), "nvfp4", torch.bfloat16), ((4, 0), "mxfp8", torch.bfloat16)],
)
def test_torch_rounds_by_itself_what_there_is_no_kernel_for(called, shape, name, dtype):
    blocks, calls = called
    x = torch.randn(shape, dtype=dtype)
    values, _ = blocks.quantize(x.as_subclass(OnGpu), name)
    assert torch.equal(values.view(torch.uint8), blocks.quantize(x, name)[0].view(torch.uint8))
    assert calls == []


def test_a_gpu_that_the_wheel_is_not_for_has_torch_round(package, called):
    blocks, calls = called
    calls.append(package.ArchitectureError("another"))
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    values, _ = blocks.quantize(x.as_subclass(OnGpu), "mxfp8")
    assert torch.equal(values.view(torch.uint8), blocks.quantize(x, "mxfp8")[0].view(torch.uint8))
    assert len(calls) == 2


@pytest.mark.parametrize("function", ["rms_norm", "silu_mul"])
def test_a_gradient_of_formats_of_blocks_is_refused(called, package, function):
    blocks, _ = called
    x = torch.randn(4, 128, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(package.GradientError, match=f"{function}: an operand requires a gradient, of which there is"):
        getattr(blocks, function)(x, out_dtype="mxfp8")
