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
from tests.runtime.tensors import BFLOAT16, E4M3, E5M2, FLOAT16, FLOAT32, INT8

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4, E5, I8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
GPU = {BF16: BFLOAT16, F16: FLOAT16, F32: FLOAT32, E4: E4M3, E5: E5M2, I8: INT8}


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
    # And what is refused.
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
