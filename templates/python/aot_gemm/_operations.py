"""The products: `linear` and `matmul` over tensors of any framework that speaks DLPack.

The first call for a type of tensor finds its route; later calls take it from a dictionary. Tensors with DLPack's C
exchange API (torch) go straight into the binding, which asks their framework for stream and memory. For others the
stream and the memory are asked for here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from . import _library, errors

Route = Callable[[Any, Any, Any], Any]

_GPU_DEVICES = (2, 13)
"""kDLCUDA and kDLCUDAManaged of dlpack.h."""
_NO_SYNCHRONISATION = -1
"""Stream argument of `__dlpack__` by which a producer is told not to wait: the work goes to its own stream."""


class _Framework(Protocol):
    """What a product needs of the framework that its operands belong to."""

    def stream(self) -> int:
        """Give the stream to run on, as an address."""

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

    def stream(self) -> int:
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

    def stream(self) -> int:
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

    def stream(self) -> int:
        return int(self._torch.cuda.current_stream().cuda_stream)

    def capsule(self, tensor: Any) -> Any:
        return tensor.detach().__dlpack__(stream=_NO_SYNCHRONISATION)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._torch.empty(shape, dtype=self._torch.uint8 if dtype == "uint8" else dtype, device="cuda")

    def finish(self, device: int) -> None:
        """Leave it to the stream."""


class _OtherFramework:
    """A framework that only speaks DLPack: the legacy default stream, and an `out` that the caller allocates."""

    def stream(self) -> int:
        return 0

    def capsule(self, tensor: Any) -> Any:
        return tensor.__dlpack__()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:  # noqa: ARG002
        raise errors.AotGemmError(f"cannot allocate {shape} for this type of tensor; pass out=, or use torch or CuPy")

    def finish(self, device: int) -> None:
        """Leave it to the stream."""


def _run_on(framework: _Framework, product: str, left: Any, right: Any, out: Any) -> Any:
    """Run a product with stream and memory of a framework; `product` is the binding's name for it."""
    import tvm_ffi

    for tensor in (left, right) if out is None else (left, right, out):
        _check_device(product, tensor)
    if out is not None and isinstance(framework, _Jax):
        raise errors.AotGemmError(f"{product}: out= was given, but JAX arrays are immutable; leave it out")
    binding = _library.binding()
    result = out
    if out is None:
        columns = right.shape[:1] if product == "linear" else right.shape[1:]
        result = framework.empty((*left.shape[:-1], *columns), left.dtype)
    tensors = [tvm_ffi.from_dlpack(framework.capsule(x)) for x in (left, right, result)]
    num_bytes = binding[f"{product}_workspace_bytes"](*tensors)
    workspace = framework.empty((num_bytes,), "uint8") if num_bytes > 0 else None
    scratch = None if workspace is None else tvm_ffi.from_dlpack(framework.capsule(workspace))
    binding[f"{product}_on"](*tensors, scratch, framework.stream())
    framework.finish(left.__dlpack_device__()[1])
    return result


def _check_device(product: str, tensor: Any) -> None:
    if not hasattr(tensor, "__dlpack_device__"):
        raise errors.DtypeError(f"{product}: got a {type(tensor).__name__}; expected a tensor that speaks DLPack")
    kind, _ = tensor.__dlpack_device__()
    if kind not in _GPU_DEVICES:
        raise errors.DeviceError(
            f"{product}: got a {type(tensor).__name__} that is not in GPU memory (DLPack device type {int(kind)}); "
            "expected a CUDA tensor; move it there first"
        )


def _make_route(product: str, kind: type) -> Route:
    binding = _library.binding()
    if hasattr(kind, "__dlpack_c_exchange_api__") or kind.__module__.startswith("tvm_ffi"):
        route: Route = binding[product]
        return route
    roots = {base.__module__.split(".")[0] for base in kind.__mro__}
    framework: _Framework
    if "cupy" in roots:
        framework = _CuPy()
    elif roots & {"jax", "jaxlib"}:
        framework = _Jax()
    elif "torch" in roots:
        framework = _OldTorch()
    else:
        framework = _OtherFramework()
    return partial(_run_on, framework, product)


def _first(routes: dict[type, Route], product: str, left: Any, right: Any, out: Any) -> Any:
    route = routes[type(left)] = _make_route(product, type(left))
    return route(left, right, out)


_linear: dict[type, Route] = {}
_matmul: dict[type, Route] = {}
_first_linear = partial(_first, _linear, "linear")
_first_matmul = partial(_first, _matmul, "matmul")


def linear(x: Any, weight: Any, out: Any = None) -> Any:
    """Compute x @ weight^T, as torch.nn.functional.linear without a bias.

    The sum is taken in float32 and rounded once. Work goes to the current stream of the tensors' framework, where
    a CUDA graph may capture it; with JAX it is waited for. Gradients are not recorded: operands that require them are
    taken as data.

    The weight is taken for constant: on GPUs with programmatic dependent launch it may be read while the kernel in
    front on the stream still runs, unless it is the result of this thread's last product. Where another kernel in
    front writes the weight, use `matmul(x, weight.T)`, which waits for it, or switch this off: `early_weights(False)`,
    or AOT_GEMM_EARLY_WEIGHTS=0 in the environment. x and out are never touched before the kernel in front has ended.

    Args:
        x: (..., k), bfloat16 or float16, in GPU memory; leading dimensions must join into rows of one stride.
        weight: (n, k), of the same type and GPU.
        out: (..., n), of the same type and GPU, written to; allocated where it is not given.

    Returns:
        `out`, or the new tensor, of the type of tensor that x is.

    Raises:
        DtypeError: an operand is no tensor, or of another element type.
        ShapeError: the shapes do not make a product.
        StrideError: a tensor is not one matrix in memory, or out overlaps itself.
        DeviceError: an operand is not in GPU memory, or not on the same GPU.
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that this wheel is for.
        CudaError: CUDA failed.
    """
    result = _linear.get(type(x), _first_linear)(x, weight, out)
    return result if out is None else out


def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Compute a @ b, as torch.matmul for a `b` of one or two dimensions.

    Args:
        a: (..., m, k) or (k,), bfloat16 or float16, in GPU memory; leading dimensions must join into rows.
        b: (k, n) or (k,), of the same type and GPU. A batched b is not supported.
        out: (..., m, n), less the modes that a vector lacks; written to; allocated where it is not given.

    Returns:
        `out`, or the new tensor, of the type of tensor that a is.

    Raises:
        AotGemmError: one of the classes that `linear` lists.
    """
    result = _matmul.get(type(a), _first_matmul)(a, b, out)
    return result if out is None else out


def early_weights(enabled: bool) -> bool:
    """Say whether `linear` may read weights before the kernel in front has ended, in every thread from now on.

    A CUDA graph keeps what held when it was captured.

    Returns:
        What held before: at first True, unless the environment has AOT_GEMM_EARLY_WEIGHTS=0.
    """
    return bool(_library.binding()["exchange_early_weights"](bool(enabled)))


def preload(device: int = -1) -> None:
    """Load every kernel onto a GPU now (-1: the current one), instead of each at its first use.

    Raises:
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that this wheel is for.
        CudaError: CUDA failed.
    """
    _library.check(_library.library().aot_gemm_preload(ctypes.c_int32(device)))
