"""Tensors that claim to be in GPU memory and speak DLPack, with no GPU: addresses are numbers, nothing is read."""

from __future__ import annotations

import ctypes
import itertools
import sys
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace

CUDA, CPU = 2, 1
FLOAT16, BFLOAT16, FLOAT32, FLOAT64, UINT8 = (2, 16), (4, 16), (2, 32), (2, 64), (1, 8)
E4M3, E5M2, INT8, INT32, INT64, E8M0 = (10, 8), (12, 8), (0, 8), (0, 32), (0, 64), (14, 8)
E2M1_PAIR = (17, 4, 2)
"""Of torch's float4_e2m1fn_x2: the third is the lanes, 1 of those without."""
_addresses = itertools.count(1 << 40, 1 << 36)  # apart by more than any tensor here has
_keep_alive = []


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def type_of(dtype):
    return (*dtype, 1)[:3]


def compact(shape):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


class FakeTensor:
    """A tensor of a framework that only speaks DLPack."""

    def __init__(self, shape, dtype=BFLOAT16, strides=None, *, device=(CUDA, 0), offset=0):
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.strides = compact(shape) if strides is None else tuple(strides)
        self.address, self.offset = next(_addresses), offset
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        count = len(self.shape)
        shape, strides = (ctypes.c_int64 * count)(*self.shape), (ctypes.c_int64 * count)(*self.strides)
        tensor = DLTensor(
            self.address, (ctypes.c_int32 * 2)(*self.device), count, *type_of(self.dtype), shape, strides, self.offset
        )
        managed = DLManagedTensor(tensor, None, None)
        _keep_alive.append((managed, shape, strides))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(managed), b"dltensor", None)


class _Current:
    """The GPU that a framework's new tensors go to."""

    def __init__(self):
        self.index = 0

    @contextmanager
    def on(self, index):
        before, self.index = self.index, index
        yield
        self.index = before

    def empty(self, kind):
        return lambda shape, dtype: kind(shape, UINT8 if dtype == "uint8" else dtype, device=(CUDA, self.index))


def install_cupy(monkeypatch, stream):
    """Put a CuPy of fake tensors, on a current stream of each GPU, where it is imported from."""
    current = _Current()
    cupy = ModuleType("cupy")
    cupy.ndarray = type("ndarray", (FakeTensor,), {"__module__": "cupy"})
    cupy.empty = current.empty(cupy.ndarray)
    cupy.ascontiguousarray = lambda array: cupy.empty(array.shape, array.dtype)
    cupy.cuda = SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=stream), Device=current.on)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


def install_jax(monkeypatch):
    """Put a JAX of fake arrays where it is imported from."""
    jax, numpy = ModuleType("jax"), ModuleType("jax.numpy")
    array = type("Array", (FakeTensor,), {"__module__": "jaxlib.xla", "block_until_ready": lambda self: self})
    current = _Current()
    jax.numpy, numpy.empty, jax.Array = numpy, current.empty(array), array
    jax.local_devices = lambda backend: [SimpleNamespace(local_hardware_id=x) for x in range(2)]
    jax.default_device = lambda device: current.on(device.local_hardware_id)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", numpy)
    return jax


def install_old_torch(monkeypatch, stream):
    """Put a torch of fake tensors, without the C exchange API, where it is imported from."""
    torch = ModuleType("torch")
    torch.uint8 = UINT8
    methods = {"detach": lambda self: self, "contiguous": lambda self: torch.Tensor(self.shape, self.dtype)}
    attributes = {"requires_grad": False, "is_neg": lambda self: False, "storage_offset": lambda self: 0}
    storage = SimpleNamespace(data_ptr=lambda: 1 << 40)
    attributes |= {"__torch_dispatch__": None, "numel": lambda self: 1, "untyped_storage": lambda self: storage}
    torch.Tensor = type("Tensor", (FakeTensor,), {"__module__": "torch", **methods, **attributes})
    torch.is_grad_enabled = lambda: True
    torch.are_deterministic_algorithms_enabled = lambda: False
    torch._C = SimpleNamespace(_get_tracing_state=lambda: None)
    torch.jit = SimpleNamespace(is_tracing=lambda: False)
    written = torch.written = []
    graph = SimpleNamespace(increment_version=written.append)
    forward_ad = SimpleNamespace(unpack_dual=lambda tensor: SimpleNamespace(tangent=None), _current_level=-1)
    torch.autograd = SimpleNamespace(graph=graph, forward_ad=forward_ad)
    monkeypatch.setitem(sys.modules, "torch.autograd", torch.autograd)
    torch.empty = lambda shape, dtype, device: torch.Tensor(shape, dtype, device=(CUDA, int(device[len("cuda:") :])))
    torch.cuda = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=stream), device=lambda _: nullcontext()
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch
