"""XLA on a CPU in the place of one on a GPU: it calls the library's handlers, whose launches NumPy computes."""

from __future__ import annotations

import ctypes
import math
import threading
import traceback

import ml_dtypes
import numpy as np

from tests.later import Later

jax = Later("jax")

STREAM = 0x5550
DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
    "tf32": np.float32,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "int8": np.int8,
    "int32": np.int32,
}
_GET_STREAM = 10
"""Which word of XLA_FFI_Api is XLA_FFI_Stream_Get: test_xla.py compares the struct in C++ with jaxlib's own."""
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


class Frame(ctypes.Structure):
    """The leading fields of XLA_FFI_CallFrame."""

    _fields_ = (
        ("struct_bytes", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("api", ctypes.c_void_p),
    )


class GetStream(ctypes.Structure):
    _fields_ = (
        ("struct_bytes", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))
GET_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(GetStream))


@GET_STREAM
def give_stream(asked):
    asked.contents.stream = STREAM


def array_at(address, shape, strides, dtype):
    """Look at memory as an array, whose strides are in elements."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    itemsize = np.dtype(dtype).itemsize
    num_bytes = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * itemsize
    memory = np.asarray((ctypes.c_uint8 * num_bytes).from_address(address)).view(dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, [s * itemsize for s in strides])


def matrix(tensor, dtype, *, is_contiguous_along_rows, num_strides):
    """Look at an operand as its kernel does."""
    if num_strides == 2:
        strides = tuple(tensor.strides)
    else:
        strides = (1, tensor.strides[0]) if is_contiguous_along_rows else (tensor.strides[0], 1)
    return array_at(tensor.data, tuple(tensor.shape), strides, dtype)


def compute(launch, kernel):
    """Write what a launch's kernel would, but for gates and factors of blocks."""
    operation, types = kernel.operation, kernel.operation.types
    a, b, d = (DTYPES[x.value] for x in (types.a, types.b, types.d))
    by_rows = operation.layout.value[0] == "m", operation.layout.value[1] == "n"
    left = matrix(launch.a, a, is_contiguous_along_rows=by_rows[0], num_strides=kernel.num_strides)
    right = matrix(launch.b, b, is_contiguous_along_rows=by_rows[1], num_strides=kernel.num_strides)
    sums = left.astype(np.float32) @ right.astype(np.float32).T
    if launch.scale_a.vector.data:
        rows, columns = launch.scale_a.vector, launch.scale_b.vector
        sums *= array_at(rows.data, tuple(rows.shape), tuple(rows.strides), np.float32)[:, None]
        sums *= array_at(columns.data, tuple(columns.shape), tuple(columns.strides), np.float32)[None]
    if launch.bias.data:
        element = DTYPES[operation.bias.value]
        sums += array_at(launch.bias.data, tuple(launch.bias.shape), (1,), element).astype(np.float32)
    sums = ACTIVATIONS.get(operation.epilogue.value, lambda x: x)(sums)
    if launch.residual.data:
        sums += matrix(launch.residual, d, is_contiguous_along_rows=False, num_strides=kernel.num_strides)
    out = matrix(launch.d, d, is_contiguous_along_rows=False, num_strides=kernel.num_strides)
    out[...] = sums.astype(d)


class CpuXla:
    """A package's handlers as those of XLA's CPU, for whose streams and kernels others stand in."""

    def __init__(self, manifest, library):
        self.kernels = manifest.kernels
        self.library = library
        self.launches = []
        self.computes = True
        self.failures = []
        self._kept = []
        self._lock = threading.Lock()

    def register(self, name, target):
        """Register the handler of a product."""
        handler = getattr(self.library.c, f"aot_gemm_xla_{name}")
        handler.restype = ctypes.c_void_p

        def call(frame):
            if frame.contents.extensions:
                return handler(frame)
            with self._lock:
                try:
                    return self._call(handler, frame)
                except Exception:  # noqa: BLE001 - into which ctypes would return a number of its own
                    self.failures.append(traceback.format_exc())
                    return None

        self._kept.append(HANDLER(call))
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(self._kept[-1]), platform="cpu")

    def _call(self, handler, frame):
        self.library.c.recorder_reset()
        given = frame.contents.api
        num_bytes = ctypes.c_size_t.from_address(given).value
        words = (ctypes.c_size_t * (num_bytes // 8)).from_buffer_copy(ctypes.string_at(given, num_bytes))
        words[_GET_STREAM] = ctypes.cast(give_stream, ctypes.c_void_p).value
        frame.contents.api = ctypes.addressof(words)
        try:
            error = handler(frame)
        finally:
            frame.contents.api = given
        for launch in self.library.fake_launches():
            self.launches.append(launch)
            if self.computes:
                compute(launch, self.kernels[launch.kernel])
        return error
