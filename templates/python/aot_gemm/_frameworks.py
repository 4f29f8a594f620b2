"""Streams, memory and capsules of the frameworks that operands belong to."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from . import _library, errors

_NO_SYNCHRONISATION = -1
"""Stream argument of `__dlpack__` by which a producer is told not to order its stream before another: we do that, so
that what cannot be ordered is refused before a capture is spoilt by the attempt."""
_LEGACY_STREAM = 1
"""Stream argument of `__dlpack__` for CUDA's legacy default stream, whose address is 0, which DLPack reserves."""


def _order(device: int, first: int, second: int) -> None:
    """Have later work of the second stream wait for what the first one has by now."""
    if first != second:
        _library.binding()["order_streams"](device, first, second)


class Framework(Protocol):
    """What a product needs of the framework that its operands belong to."""

    def stream(self, device: int) -> int:
        """Return the stream of a GPU that the framework works on, as an address."""

    def capsule(self, tensor: Any, stream: int) -> Any:
        """Return a tensor's DLPack capsule, ready on a stream of any framework."""

    def dtype(self, name: str) -> Any:
        """Return an element type, by torch's name."""

    def empty(self, shape: tuple[int, ...], dtype: Any, device: int) -> Any:
        """Allocate a tensor on a GPU, whichever is the current one."""

    def compact(self, tensor: Any) -> Any:
        """Copy a tensor to memory without gaps."""

    def finish(self, device: int, stream: int) -> None:
        """Have the framework's later work wait for what is on a stream now."""


class _Streamed:
    """A framework whose work goes to a stream that it tells."""

    def capsule(self, tensor: Any, stream: int) -> Any:
        device = tensor.__dlpack_device__()[1]
        _order(device, self.stream(device), stream)
        return tensor.__dlpack__(stream=_NO_SYNCHRONISATION)

    def stream(self, device: int) -> int:
        raise NotImplementedError

    def finish(self, device: int, stream: int) -> None:
        _order(device, stream, self.stream(device))


class _CuPy(_Streamed):
    """CuPy: its current stream and its memory pool."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream(device).ptr)

    def dtype(self, name: str) -> Any:
        return name

    def empty(self, shape: tuple[int, ...], dtype: Any, device: int) -> Any:
        try:
            with self._cupy.cuda.Device(device):
                return self._cupy.empty(shape, dtype)
        except TypeError as error:
            raise errors.DtypeError(
                f"CuPy has no {errors.show(dtype)} ({error}); pass out= or another out_dtype"
            ) from error

    def compact(self, tensor: Any) -> Any:
        with self._cupy.cuda.Device(tensor.__dlpack_device__()[1]):
            return self._cupy.ascontiguousarray(tensor)


class _Torch(_Streamed):
    """torch, beside a left operand of another framework, or without DLPack's C exchange API."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def capsule(self, tensor: Any, stream: int) -> Any:
        with self._torch.cuda.device(tensor.__dlpack_device__()[1]):  # torch exports tensors of its current GPU alone
            return super().capsule(tensor.detach(), stream)

    def dtype(self, name: str) -> Any:
        return getattr(self._torch, name)

    def empty(self, shape: tuple[int, ...], dtype: Any, device: int) -> Any:
        return self._torch.empty(shape, dtype=self._torch.uint8 if dtype == "uint8" else dtype, device=f"cuda:{device}")

    def compact(self, tensor: Any) -> Any:
        return tensor.contiguous()


class _Waiting:
    """A framework whose streams are its own: its operands are waited for before, and the result after."""

    def stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def finish(self, device: int, stream: int) -> None:
        _library.check(_library.library().aot_gemm_synchronize(ctypes.c_int32(device), ctypes.c_void_p(stream)))


class _Jax(_Waiting):
    def __init__(self) -> None:
        import jax.numpy

        self._jax, self._numpy = jax, jax.numpy

    def capsule(self, tensor: Any, stream: int) -> Any:
        _order(tensor.__dlpack_device__()[1], 0, stream)
        return tensor.block_until_ready().__dlpack__()

    def dtype(self, name: str) -> Any:
        return getattr(self._numpy, name)

    def empty(self, shape: tuple[int, ...], dtype: Any, device: int) -> Any:
        of_gpu = next(x for x in self._jax.local_devices(backend="gpu") if x.local_hardware_id == device)
        with self._jax.default_device(of_gpu):
            return self._numpy.empty(shape, dtype)

    def compact(self, tensor: Any) -> Any:
        return tensor  # JAX arrays have no gaps


class _WithoutMemory:
    """A framework that is not known to allocate: the caller gives an `out` that needs no copy."""

    def dtype(self, name: str) -> Any:
        return name

    def empty(self, shape: tuple[int, ...], dtype: Any, device: int) -> Any:  # noqa: ARG002
        raise errors.AotGemmError(f"cannot allocate {shape} for this type of tensor; pass out=, or use torch or CuPy")

    def compact(self, tensor: Any) -> Any:
        raise errors.StrideError(
            f"a {type(tensor).__name__} of shape {tuple(tensor.shape)} is not one matrix in memory; expected leading "
            "dimensions that join into rows of one stride; make it contiguous"
        )


class _OtherFramework(_WithoutMemory, _Waiting):
    """A framework that only speaks DLPack: the legacy default stream."""

    def capsule(self, tensor: Any, stream: int) -> Any:
        _order(tensor.__dlpack_device__()[1], 0, stream)
        return tensor.__dlpack__(stream=stream or _LEGACY_STREAM)


class _TvmFfi(_WithoutMemory, _Streamed):
    """TVM-FFI's own tensors: the stream of its environment."""

    def __init__(self) -> None:
        import tvm_ffi

        self._tvm_ffi = tvm_ffi

    def stream(self, device: int) -> int:
        return int(self._tvm_ffi.get_raw_stream(self._tvm_ffi.device("cuda", device)))


_frameworks: dict[type, Framework] = {}


def roots_of(kind: type) -> set[str]:
    return {base.__module__.split(".")[0] for base in kind.__mro__}


def framework_of(tensor: Any) -> Framework:
    kind = type(tensor)
    if kind not in _frameworks:
        roots = roots_of(kind)
        if "cupy" in roots:
            found: Framework = _CuPy()
        elif roots & {"jax", "jaxlib"}:
            found = _Jax()
        elif "torch" in roots:
            found = _Torch()
        else:
            found = _TvmFfi() if "tvm_ffi" in roots else _OtherFramework()
        _frameworks[kind] = found
    return _frameworks[kind]
