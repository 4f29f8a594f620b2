"""Row operations as torch's operators, with no GPU: of fake tensors, under a compiler, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tests.runtime import host, torch_reference
from tests.runtime.exchange import Framework
from tests.runtime.rows import Rows, row_manifest
from tests.runtime.tensors import BFLOAT16, E4M3, E5M2, E8M0, FLOAT16, FLOAT32, INT8, INT32, UINT8

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4, E5, I8, I32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32
GPU = {BF16: BFLOAT16, F16: FLOAT16, F32: FLOAT32, E4: E4M3, E5: E5M2, I8: INT8, I32: INT32}
GPU |= {torch.uint8: UINT8, torch.float8_e8m0fnu: E8M0}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return host.compile_package(replace(row_manifest(), package="torch-rows"), tmp_path_factory.mktemp("torch_rows"))


@pytest.fixture(scope="module")
def module(package):
    return import_module(f"{package.__name__}.torch")


@pytest.fixture
def computed(package, module, monkeypatch):
    """Have torch compute on the CPU what the package's norm and gate would on a GPU."""
    calls = []

    def rms_norm(x, weight=None, **options):
        calls.append("rms_norm")
        return torch_reference.rms_norm(x, weight, **options)

    def silu_mul(x, *, interleaved=False, out_dtype=None, scale=None):
        calls.append("silu_mul")
        gate, line = x.float().chunk(2, -1)
        return (functional.silu(gate) * line).to(x.dtype)

    monkeypatch.setattr(package._rows, "rms_norm", rms_norm)
    monkeypatch.setattr(package._rows, "silu_mul", silu_mul)
    monkeypatch.setattr(import_module(f"{package.__name__}._torch_result"), "DEVICES", ("cpu", "meta"))
    return calls


CALLS = [
    ("rms_norm", {"x": ((2, 3, 64), BF16)}, {}),
    ("rms_norm", {"x": ((2, 3, 64), BF16), "weight": ((64,), BF16), "residual": ((2, 3, 64), BF16)}, {"eps": 0.5}),
    ("rms_norm", {"x": ((6, 64), F16), "residual": ((6, 64), F16)}, {"out_dtype": E4}),
    ("rms_norm", {"x": ((6, 64), BF16), "scale": ((6, 1), F32)}, {"out_dtype": E4}),
    ("layer_norm", {"x": ((6, 64), BF16), "weight": ((64,), BF16), "bias": ((64,), BF16)}, {}),
    ("layer_norm", {"x": ((6, 64), BF16)}, {"out_dtype": E4}),
    ("silu_mul", {"x": ((2, 3, 64), BF16)}, {"interleaved": True}),
    ("silu_mul", {"x": ((2, 3, 64), BF16)}, {"out_dtype": E4}),
    ("gelu_tanh_mul", {"x": ((6, 64), F16)}, {}),
    ("rotary", {"x": ((2, 3, 4, 64), BF16), "cos": ((3, 32), BF16), "sin": ((3, 32), BF16)}, {}),
    ("rotary", {"x": ((3, 4, 64), F16), "cos": ((3, 16), F16), "sin": ((3, 16), F16)}, {"rotary_dim": 16}),
    ("quantize", {"x": ((2, 3, 300), BF16)}, {"dtype": E4}),
    ("quantize", {"x": ((2, 3, 300), BF16)}, {"dtype": I8}),
    ("quantize", {"x": ((2, 3, 300), BF16)}, {"dtype": E4, "granularity": "block"}),
    ("quantize", {"x": ((2, 3, 300), BF16), "scale": ((1,), F32)}, {"dtype": E4, "granularity": "tensor"}),
    ("quantize", {"x": ((2, 3, 300), BF16)}, {"dtype": E4, "granularity": "tensor"}),
    ("quantize", {"x": ((6, 64), F16)}, {"dtype": E5, "granularity": "tensor"}),
    ("quantize", {"x": ((6, 64), BF16)}, {"dtype": E5}),
    ("quantize", {"x": ((2, 65, 304), BF16), "scale": ((1,), F32)}, {"dtype": "nvfp4"}),
    ("quantize", {"x": ((130, 304), BF16)}, {"dtype": "mxfp4"}),
    ("quantize", {"x": ((9, 304), BF16), "offsets": ((4,), I32)}, {"dtype": "mxfp8", "groups": 3}),
    (
        "quantize",
        {"x": ((9, 304), BF16), "scale": ((1,), F32), "offsets": ((4,), I32), "index": ((150,), I32)},
        {"dtype": "nvfp4"},
    ),
    ("rms_norm", dict.fromkeys(("x", "residual"), ((6, 64), BF16)) | {"scale": ((), F32)}, {"out_dtype": "nvfp4"}),
    ("rms_norm", {"x": ((6, 64), BF16)}, {"out_dtype": "mxfp8", "round_norm": True}),
    ("silu_mul", {"x": ((6, 128), BF16), "scale": ((1,), F32)}, {"out_dtype": "nvfp4", "interleaved": True}),
    ("silu_mul", {"x": ((6, 128), BF16), "offsets": ((4,), I32)}, {"out_dtype": "mxfp8"}),
    ("rows", {"x": ((6, 128), BF16)}, {"function": "silu_mul"}),
    ("rows", {"x": ((6, 128), BF16)}, {"function": "quantize", "out_dtype": E4, "granularity": "block"}),
    ("rows", {"x": ((6, 64), BF16), "weight": ((64,), BF16)}, {"function": "rms_norm", "out_dtype": "mxfp8"}),
    # And what is refused.
    ("rms_norm", {"x": ((6, 64), BF16)}, {"out_dtype": "nvfp4"}),
    ("rms_norm", {"x": ((6, 64), F16)}, {"out_dtype": "mxfp8"}),
    ("silu_mul", {"x": ((6, 126), BF16), "scale": ((1,), F32)}, {"out_dtype": "nvfp4"}),
    ("silu_mul", {"x": ((6, 128), BF16), "offsets": ((4,), F32)}, {"out_dtype": "mxfp8"}),
    ("silu_mul", {"x": ((6, 128), BF16), "offsets": ((4,), I32)}, {"out_dtype": E4}),
    ("silu_mul", {"x": ((6, 128), BF16), "offsets": ((4,), I32)}, {"out_dtype": "mxfp8", "groups": 2}),
    ("quantize", {"x": ((9, 304), BF16), "offsets": ((4,), I32), "index": ((2, 2), I32)}, {"dtype": "mxfp8"}),
    ("rows", {"x": ((6, 128), BF16), "weight": ((128,), BF16)}, {"function": "silu_mul"}),
    ("rms_norm", {"x": ((6, 64), F32)}, {}),
    ("rms_norm", {"x": ((6, 64), BF16)}, {"out_dtype": I8}),
    ("rms_norm", {"x": ((6, 64), BF16), "weight": ((63,), BF16)}, {}),
    ("rms_norm", {"x": ((6, 64), BF16), "weight": ((64,), F16)}, {}),
    ("rms_norm", {"x": ((6, 64), BF16), "residual": ((64,), BF16)}, {}),
    ("rms_norm", {"x": ((6, 64), BF16), "scale": ((6, 1), F32)}, {}),
    ("rms_norm", {"x": ((6, 64), BF16), "scale": ((5, 1), F32)}, {"out_dtype": E4}),
    ("silu_mul", {"x": ((6, 63), BF16)}, {}),
    ("rotary", {"x": ((64,), BF16), "cos": ((3, 32), BF16), "sin": ((3, 32), BF16)}, {}),
    ("rotary", {"x": ((3, 4, 64), BF16), "cos": ((2, 32), BF16), "sin": ((2, 32), BF16)}, {}),
    ("rotary", {"x": ((3, 4, 64), BF16), "cos": ((3, 32), BF16), "sin": ((3, 64), BF16)}, {}),
    ("rotary", {"x": ((3, 4, 64), BF16), "cos": ((3, 40), BF16), "sin": ((3, 40), BF16)}, {}),
    ("quantize", {"x": ((6, 64), BF16)}, {"dtype": I8, "granularity": "block"}),
    ("quantize", {"x": ((6, 64), BF16)}, {"dtype": E5, "granularity": "block"}),
    ("quantize", {"x": ((6, 64), BF16), "scale": ((6, 1), F32)}, {"dtype": E4, "granularity": "block"}),
]


def outcome(call):
    try:
        found = call()
    except Exception as error:  # noqa: BLE001 - the kind is what is compared
        return type(error).__name__, str(error)
    found = found if isinstance(found, tuple) else (found,)
    found = [y for x in found for y in (x if isinstance(x, tuple) else (x,))]
    return [(tuple(x.shape), GPU.get(x.dtype, x.dtype)) for x in found]


@pytest.mark.parametrize(("name", "tensors", "options"), CALLS)
def test_fake_tensors_give_what_the_call_would(package, module, name, tensors, options):
    """Compare with the binding over tensors of a framework of the tests: shapes, types, and errors with their texts."""
    framework = Framework()
    real = {key: framework.Tensor(shape, GPU[dtype]) for key, (shape, dtype) in tensors.items()}
    expected = outcome(lambda: getattr(package, name)(**real, **options))
    with FakeTensorMode():
        fakes = {key: torch.empty(shape, dtype=dtype, device="cuda") for key, (shape, dtype) in tensors.items()}
        found = outcome(lambda: getattr(module, name)(**fakes, **options))
    assert found == expected


def test_a_compiler_takes_the_operators_without_a_break(module, computed):
    def layer(x, residual, weight):
        y, z = module.rms_norm(x, weight, residual=residual)
        return module.silu_mul(y) + 1, z

    x, residual, weight = torch.randn(4, 16).to(BF16), torch.randn(4, 16).to(BF16), torch.randn(16).to(BF16)
    expected = layer(x, residual, weight)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, residual, weight)
    for one, other in zip(expected, compiled, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert computed == ["rms_norm", "silu_mul"] * 2


def test_torch_checks_the_operators(module, package, computed):
    operators = getattr(torch.ops, package.__name__)
    torch.library.opcheck(
        operators.rms_norm.default,
        (torch.randn(4, 16).to(BF16), None, torch.randn(4, 16).to(BF16)),
        test_utils=("test_schema", "test_autograd_registration"),
    )


def test_a_recorded_gradient_is_refused(package, module, computed):
    x = torch.randn(4, 16).to(BF16).requires_grad_()
    with pytest.raises(package.GradientError, match="rms_norm: an operand requires a gradient"):
        module.rms_norm(x)
    with torch.no_grad():
        assert module.rms_norm(x).shape == (4, 16)


def test_what_is_written_is_not_where_a_compiler_traces(package, module):
    with FakeTensorMode():
        x = torch.empty(4, 16, dtype=BF16, device="cuda")
        with pytest.raises(package.UnsupportedError, match="rms_norm: got out where torch traces"):
            module.rms_norm(x, out=x)


def test_an_eager_call_is_the_packages_own(package, module):
    from tests.runtime.test_torch_operands import gpu_tensor

    rows = Rows(host.Library(package._library.LIBRARY))
    x = gpu_tensor(4, 16, address=1 << 42)
    assert module.rms_norm(x, out=x) is x
    assert len(rows.launches()) == 1


@pytest.fixture
def rounding(package, module, monkeypatch):
    """Have CPU tensors stand for a GPU's, which the kernel rounds as torch does; give what it is called with."""
    blocks, calls = import_module(f"{package.__name__}._torch_blocks"), []

    def quantize(x, name, *, scale=None, **where):
        calls.append((tuple(x.shape), name, {key: value for key, value in where.items() if value is not None}))
        with monkeypatch.context() as here:
            here.setattr(blocks, "_on_gpu", lambda x: False)
            return blocks.round_here(x, name, scale, where)

    monkeypatch.setattr(package._rows, "quantize", quantize)
    monkeypatch.setattr(blocks, "_on_gpu", lambda x: True)
    monkeypatch.setattr(import_module(f"{package.__name__}._torch_result"), "DEVICES", ("cpu", "meta"))
    return calls


def codes(found):
    values, scale = found
    scales = scale if isinstance(scale, tuple) else (scale,)
    return [x if x.dtype == F32 else x.view(torch.uint8) for x in (values, *scales)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_a_compiler_takes_the_kernel_that_rounds_in_groups(module, rounding, name, backend):
    x, ends = torch.randn(5, 64).to(BF16), torch.tensor([2, 2, 140])
    index = torch.arange(140) % 7 - 1  # -1 and 5 are no rows

    def quantize(x, ends, index):
        return codes(module.quantize(x, name, offsets=ends, index=index))

    expected = quantize(x, ends, index)
    found = torch.compile(quantize, backend=backend, fullgraph=True)(x, ends, index)
    assert all(map(torch.equal, found, expected))
    found = [(shape, asked, sorted(where)) for shape, asked, where in rounding]
    assert found == [((5, 64), name, ["index", "offsets"])] * 2
    assert all(y.dtype == I32 for *_, where in rounding for y in where.values())


def test_an_operator_gives_formats_of_blocks_beside_what_it_was_given(module, rounding):
    x, own = torch.randn(6, 64).to(BF16), torch.tensor([0.01])
    with torch.no_grad():
        values, (atoms, same) = torch.compile(module.quantize, backend="eager", fullgraph=True)(x, "nvfp4", scale=own)
    assert (values.shape, atoms.shape, same.item()) == ((6, 32), (512,), own.item())
    assert len(rounding) == 1


def test_the_operator_of_nvfp4_is_given_the_tensors_own_factor(package, module, rounding):
    operator = getattr(torch.ops, package.__name__).quantize.default
    with pytest.raises(package.OperandError, match="quantize: scale is missing; expected the tensor's own factor"):
        operator(torch.randn(6, 64).to(BF16), form="nvfp4")
