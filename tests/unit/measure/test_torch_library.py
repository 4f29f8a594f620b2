import ctypes
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.errors import DeviceError
from aot.core.numerics import decode, encode
from aot.core.operands import GemmCall, matrices
from aot.core.operation import Operation
from aot.measure.torch_library import TorchLibrary, load_torch
from tests.unit.twins import ALL_LAYOUTS, problem_of


class FakeTensor:
    """What torch makes of memory that tells its address: a view of it, whose strides torch takes in bytes."""

    def __init__(self, bits, kind=None):
        self.bits, self.kind = bits, kind

    def view(self, kind):
        return FakeTensor(self.bits, kind)

    def t(self):
        return FakeTensor(self.bits.T, self.kind)


class FakeTorch:
    __version__ = "2.11.0+cu130"
    bfloat16, float16 = ElementType.BFLOAT16, ElementType.FLOAT16

    def __init__(self, is_available=True):
        self.streams, self.calls = [], []
        self.cuda = SimpleNamespace(
            is_available=lambda: is_available,
            ExternalStream=lambda handle: ("stream", handle),
            set_stream=self.streams.append,
        )

    def as_tensor(self, memory, device):
        found = memory.__cuda_array_interface__
        assert (device, found["typestr"], found["version"], found["data"][1]) == ("cuda", "<i2", 3, False)
        last = sum((extent - 1) * stride for extent, stride in zip(found["shape"], found["strides"], strict=True))
        flat = np.ctypeslib.as_array((ctypes.c_uint16 * (last // 2 + 1)).from_address(found["data"][0]))
        return FakeTensor(np.lib.stride_tricks.as_strided(flat, found["shape"], found["strides"]))

    def mm(self, a, b, *, out):
        self.calls.append("mm")
        product = decode(a.kind, a.bits) @ decode(b.kind, b.bits)
        out.bits[:] = encode(out.kind, product.astype(np.float32))

    def addmm(self, bias, a, b, *, out):
        self.calls.append("addmm")
        product = decode(a.kind, a.bits) @ decode(b.kind, b.bits) + decode(bias.kind, bias.bits)
        out.bits[:] = encode(out.kind, product.astype(np.float32))


@pytest.mark.parametrize("operation", [*ALL_LAYOUTS, Operation.BF16_KK_BIAS], ids=lambda x: x.tag)
def test_the_product_is_of_the_operands_in_place_in_every_layout(operation):
    problem, rng, torch = problem_of(5, 16, 24, operation), np.random.default_rng(1), FakeTorch()
    placed = matrices(problem)
    values = [rng.standard_normal((x.num_rows, x.num_columns), dtype=np.float32) for x in placed[:2]]
    memory = [np.zeros(x.num_elements, np.uint16) for x in placed]
    for bits, value, x in zip(memory, values, placed, strict=False):
        strides = (2 * x.row_stride, 2 * x.column_stride)
        np.lib.stride_tricks.as_strided(bits, value.shape, strides)[:] = encode(operation.element, value)
    bias = encode(operation.element, rng.standard_normal(16, dtype=np.float32))
    library = TorchLibrary(torch, 77)
    call = GemmCall(problem, *(x.ctypes.data for x in memory), *placed, bias.ctypes.data if operation.has_bias else 0)
    library.launch(0, library.bind(call), 0, 0, 77)
    added = decode(operation.element, bias) if operation.has_bias else 0.0
    found = decode(operation.element, memory[2]).reshape(5, 16)
    assert np.abs(found - (values[0] @ values[1].T + added)).max() < 0.15
    assert torch.calls == (["addmm"] if operation.has_bias else ["mm"])
    assert torch.streams == [("stream", 77)]
    assert library.names == ("torch 2.11.0+cu130",)


def test_what_torch_refuses_is_a_device_error():
    torch = FakeTorch()

    def refuse(*_arguments, **_options):
        raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

    library = TorchLibrary(torch, 77)
    torch.as_tensor = refuse
    with pytest.raises(DeviceError, match=r"^torch 2\.11\.0\+cu130: CUDA error: out of memory Compile with"):
        library.bind(GemmCall(problem_of(1, 8, 8), 0, 0, 0, *matrices(problem_of(1, 8, 8))))


def load(monkeypatch, found):
    def import_module(name):
        assert name == "torch"
        if isinstance(found, Exception):
            raise found
        return found

    said = []
    monkeypatch.setattr(importlib, "import_module", import_module)
    return load_torch(77, said.append), said


def test_torch_is_used_where_it_is_there(monkeypatch):
    library, said = load(monkeypatch, FakeTorch())
    assert library.names == ("torch 2.11.0+cu130",)
    assert said == []


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (ImportError("No module named 'torch'"), "No module named 'torch'"),
        (OSError("libcudart.so.13: cannot open shared object file"), "libcudart.so.13: cannot open shared object file"),
        (FakeTorch(is_available=False), "torch 2.11.0+cu130 finds no GPU"),
    ],
)
def test_where_it_is_not_one_line_says_so(monkeypatch, found, why):
    library, said = load(monkeypatch, found)
    assert library is None
    assert said == [f"torch's times are not recorded beside the kernels: {why} ({sys.executable})"]
