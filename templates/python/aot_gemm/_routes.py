"""The route of frameworks without DLPack's C exchange API: stream and memory are asked for here, tensors are capsules.

The binding calls `run` for a left operand of such a framework, and `capsule` for another operand of one. A type's
framework is found with its first tensor.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from . import _library, errors

_GPU_DEVICES = (2, 13)
"""kDLCUDA and kDLCUDAManaged of dlpack.h."""
_NO_SYNCHRONISATION = -1
"""Stream argument of `__dlpack__` by which a producer is told not to wait: the work goes to its own stream."""


class _Framework(Protocol):
    """What a product needs of the framework that its operands belong to."""

    def stream(self, device: int) -> int:
        """Give the stream of a GPU to run on, as an address."""

    def capsule(self, tensor: Any) -> Any:
        """Give a tensor's DLPack capsule, ready on that stream."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Allocate a tensor on the current GPU."""

    def finish(self, device: int) -> None:
        """Make the result visible to the framework."""


class _CuPy:
    """CuPy: its current stream and its memory pool."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def stream(self, device: int) -> int:  # noqa: ARG002
        return int(self._cupy.cuda.get_current_stream().ptr)

    def capsule(self, tensor: Any) -> Any:
        return tensor.__dlpack__(stream=_NO_SYNCHRONISATION)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._cupy.empty(shape, dtype)

    def finish(self, device: int) -> None:
        """Leave it to the stream."""


class _Jax:
    """JAX: its streams are its own, so that operands are waited for before, and the result after."""

    def __init__(self) -> None:
        import jax.numpy

        self._numpy = jax.numpy

    def stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def capsule(self, tensor: Any) -> Any:
        return tensor.block_until_ready().__dlpack__()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._numpy.empty(shape, dtype)

    def finish(self, device: int) -> None:
        _library.check(_library.library().aot_gemm_synchronize(ctypes.c_int32(device), None))


class _OldTorch:
    """A torch without DLPack's C exchange API."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def stream(self, device: int) -> int:  # noqa: ARG002
        return int(self._torch.cuda.current_stream().cuda_stream)

    def capsule(self, tensor: Any) -> Any:
        return tensor.detach().__dlpack__(stream=_NO_SYNCHRONISATION)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._torch.empty(shape, dtype=self._torch.uint8 if dtype == "uint8" else dtype, device="cuda")

    def finish(self, device: int) -> None:
        """Leave it to the stream."""


class _OtherFramework:
    """A framework that only speaks DLPack: the legacy default stream, and an `out` that the caller allocates."""

    def stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def capsule(self, tensor: Any) -> Any:
        return tensor.__dlpack__()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:  # noqa: ARG002
        raise errors.AotGemmError(f"cannot allocate {shape} for this type of tensor; pass out=, or use torch or CuPy")

    def finish(self, device: int) -> None:
        """Leave it to the stream."""


class _TvmFfi(_OtherFramework):
    """TVM-FFI's own tensors: the stream of its environment."""

    def __init__(self) -> None:
        import tvm_ffi

        self._tvm_ffi = tvm_ffi

    def stream(self, device: int) -> int:
        return int(self._tvm_ffi.get_raw_stream(self._tvm_ffi.device("cuda", device)))


_frameworks: dict[type, _Framework] = {}


def _find_framework(kind: type) -> _Framework:
    roots = {base.__module__.split(".")[0] for base in kind.__mro__}
    if "cupy" in roots:
        return _CuPy()
    if roots & {"jax", "jaxlib"}:
        return _Jax()
    if "torch" in roots:
        return _OldTorch()
    return _TvmFfi() if "tvm_ffi" in roots else _OtherFramework()


def run(product: str, left: Any, right: Any, out: Any) -> Any:
    """Run a product with stream and memory of the left operand's framework; `product` is its name."""
    framework = _frameworks.get(type(left))
    if framework is None:
        framework = _frameworks[type(left)] = _find_framework(type(left))
    for tensor in (left, right) if out is None else (left, right, out):
        _check_device(product, tensor)
    if out is not None and isinstance(framework, _Jax):
        raise errors.AotGemmError(f"{product}: out= was given, but JAX arrays are immutable; leave it out")
    binding = _library.binding()
    result = out
    if out is None:
        columns = right.shape[:1] if product == "linear" else right.shape[1:]
        result = framework.empty((*left.shape[:-1], *columns), left.dtype)
    capsules = [framework.capsule(x) for x in (left, right, result)]
    num_bytes = binding[f"{product}_workspace_bytes"](*capsules)
    workspace = framework.empty((num_bytes,), "uint8") if num_bytes > 0 else None
    scratch = None if workspace is None else framework.capsule(workspace)
    device = left.__dlpack_device__()[1]
    binding[f"{product}_on"](*capsules, scratch, framework.stream(device))
    framework.finish(device)
    return result


def capsule(product: str, tensor: Any) -> Any:
    """Give the capsule of an operand without an exchange API beside a left one that has it."""
    _check_device(product, tensor)
    return tensor.__dlpack__()


def _check_device(product: str, tensor: Any) -> None:
    if not hasattr(tensor, "__dlpack_device__"):
        raise errors.DtypeError(f"{product}: got a {type(tensor).__name__}; expected a tensor that speaks DLPack")
    kind, _ = tensor.__dlpack_device__()
    if kind not in _GPU_DEVICES:
        raise errors.DeviceError(
            f"{product}: got a {type(tensor).__name__} that is not in GPU memory (DLPack device type {int(kind)}); "
            "expected a CUDA tensor; move it there first"
        )
