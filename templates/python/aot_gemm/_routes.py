"""What the binding asks of the frameworks that operands belong to, in Python.

For a left operand of a framework without DLPack's C exchange API, `run` asks for stream and memory, and hands tensors
over as capsules. Beside a left operand that has the API, `capsule` and `release` order another framework's operand
before and after the launch. The rest says what is no plain memory, and what torch would have recorded.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from typing import Any, NoReturn, Protocol

from . import _library, errors
from ._constant import ConstantWeight

_GPU_DEVICES = (2, 13)
"""kDLCUDA and kDLCUDAManaged of dlpack.h."""
_NO_SYNCHRONISATION = -1
"""Stream argument of `__dlpack__` by which a producer is told not to wait: the work goes to its own stream."""
_LEGACY_STREAM = 1
"""Stream argument of `__dlpack__` for CUDA's legacy default stream, whose address is 0, which DLPack reserves."""


class _Framework(Protocol):
    """What a product needs of the framework that its operands belong to."""

    def stream(self, device: int) -> int:
        """Return the stream of a GPU that the framework works on, as an address."""

    def capsule(self, tensor: Any, stream: int) -> Any:
        """Return a tensor's DLPack capsule, ready on a stream of any framework."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Allocate a tensor on the current GPU."""

    def compact(self, tensor: Any) -> Any:
        """Copy a tensor to memory without gaps."""

    def finish(self, device: int, stream: int) -> None:
        """Have the framework's later work wait for what is on a stream now."""


class _Streamed:
    """A framework whose work goes to a stream that it tells."""

    def capsule(self, tensor: Any, stream: int) -> Any:
        own = stream == self.stream(tensor.__dlpack_device__()[1])
        return tensor.__dlpack__(stream=_NO_SYNCHRONISATION if own else stream or _LEGACY_STREAM)

    def stream(self, device: int) -> int:
        raise NotImplementedError

    def finish(self, device: int, stream: int) -> None:
        own = self.stream(device)
        if own != stream:
            _library.binding()["order_streams"](device, stream, own)


class _CuPy(_Streamed):
    """CuPy: its current stream and its memory pool."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def stream(self, device: int) -> int:  # noqa: ARG002
        return int(self._cupy.cuda.get_current_stream().ptr)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._cupy.empty(shape, dtype)

    def compact(self, tensor: Any) -> Any:
        return self._cupy.ascontiguousarray(tensor)


class _Torch(_Streamed):
    """torch, beside a left operand of another framework, or without DLPack's C exchange API."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def capsule(self, tensor: Any, stream: int) -> Any:
        return super().capsule(tensor.detach(), stream)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._torch.empty(shape, dtype=self._torch.uint8 if dtype == "uint8" else dtype, device="cuda")

    def compact(self, tensor: Any) -> Any:
        return tensor.contiguous()


class _Waiting:
    """A framework whose streams are its own: its operands are waited for before, and the result after."""

    def stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def finish(self, device: int, stream: int) -> None:
        _library.check(_library.library().aot_gemm_synchronize(ctypes.c_int32(device), ctypes.c_void_p(stream)))


class _Jax(_Waiting):
    """JAX."""

    def __init__(self) -> None:
        import jax.numpy

        self._numpy = jax.numpy

    def capsule(self, tensor: Any, stream: int) -> Any:  # noqa: ARG002
        return tensor.block_until_ready().__dlpack__()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._numpy.empty(shape, dtype)

    def compact(self, tensor: Any) -> Any:
        return tensor  # JAX arrays have no gaps


class _WithoutMemory:
    """A framework that is not known to allocate: the caller gives an `out` that needs no copy."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:  # noqa: ARG002
        raise errors.AotGemmError(f"cannot allocate {shape} for this type of tensor; pass out=, or use torch or CuPy")

    def compact(self, tensor: Any) -> Any:
        raise errors.StrideError(
            f"a {type(tensor).__name__} of shape {tuple(tensor.shape)} is not one matrix in memory; expected leading "
            "dimensions that join into rows of one stride; make it contiguous"
        )


class _OtherFramework(_WithoutMemory, _Waiting):
    """A framework that only speaks DLPack: the legacy default stream."""

    def capsule(self, tensor: Any, stream: int) -> Any:
        return tensor.__dlpack__(stream=stream or _LEGACY_STREAM)


class _TvmFfi(_WithoutMemory, _Streamed):
    """TVM-FFI's own tensors: the stream of its environment."""

    def __init__(self) -> None:
        import tvm_ffi

        self._tvm_ffi = tvm_ffi

    def stream(self, device: int) -> int:
        return int(self._tvm_ffi.get_raw_stream(self._tvm_ffi.device("cuda", device)))


_frameworks: dict[type, _Framework] = {}


def _roots(kind: type) -> set[str]:
    return {base.__module__.split(".")[0] for base in kind.__mro__}


def _framework_of(tensor: Any) -> _Framework:
    kind = type(tensor)
    if kind not in _frameworks:
        roots = _roots(kind)
        if "cupy" in roots:
            found: _Framework = _CuPy()
        elif roots & {"jax", "jaxlib"}:
            found = _Jax()
        elif "torch" in roots:
            found = _Torch()
        else:
            found = _TvmFfi() if "tvm_ffi" in roots else _OtherFramework()
        _frameworks[kind] = found
    return _frameworks[kind]


def run(product: str, left: Any, right: Any, bias: Any, out: Any) -> Any:
    """Run a product with stream and memory of the left operand's framework.

    Args:
        product: its name.
        left: the left operand.
        right: the right operand.
        bias: the bias, or None.
        out: what to write to, or None.
    """
    promised = right.address if isinstance(right, ConstantWeight) and right.is_kept else 0
    right = right.tensor if isinstance(right, ConstantWeight) else right
    for tensor in (left, right, *(x for x in (bias, out) if x is not None)):
        _check_operand(product, tensor)
    if out is not None:
        _check_writable(product, out)
    framework = _framework_of(left)
    binding = _library.binding()
    left = left if _is_matrix(left) else framework.compact(left)
    result = out
    if out is None:
        columns = right.shape[:1] if product == "linear" else right.shape[1:]
        result = framework.empty((*left.shape[:-1], *columns), left.dtype)
    device = left.__dlpack_device__()[1]
    stream = framework.stream(device)
    operands = (left, right, bias, result)
    capsules = [None if x is None else _capsule(product, x, stream) for x in operands]
    num_bytes = binding[f"{product}_workspace_bytes"](*capsules, promised)
    workspace = framework.empty((num_bytes,), "uint8") if num_bytes > 0 else None
    scratch = None if workspace is None else framework.capsule(workspace, stream)
    binding[f"{product}_on"](*capsules, promised, scratch, stream)
    for each in dict.fromkeys(_framework_of(x) for x in operands if x is not None):
        each.finish(device, stream)
    if out is not None and examine(type(out)):
        torch_hooks()[_INCREMENT_VERSION]((out,))
    return result


def _is_matrix(tensor: Any) -> bool:
    """Say whether leading dimensions join into rows of one stride; where strides are not told, they do."""
    shape, strides = tensor.shape, getattr(tensor, "stride", None) or getattr(tensor, "strides", None)
    if callable(strides):
        strides = strides()
    if strides is None or 0 in shape:
        return True
    modes = [(x, s) for x, s in zip(shape[:-1], strides[:-1], strict=True) if x != 1]
    return all(outer[1] == inner[1] * inner[0] for outer, inner in itertools.pairwise(modes))


def settle(product: str, weight: Any) -> int:
    """Wait until what a weight's framework has enqueued so far is done; return the weight's address."""
    _check_operand(product, weight)
    framework = _framework_of(weight)
    device = weight.__dlpack_device__()[1]
    stream = framework.stream(device)
    address: int = _library.binding()["address"](_capsule(product, weight, stream))
    _library.check(_library.library().aot_gemm_synchronize(ctypes.c_int32(device), ctypes.c_void_p(stream)))
    return address


def capsule(product: str, tensor: Any, stream: int, out: Any = None) -> Any:
    """Return the capsule of an operand without an exchange API, ready on the stream of the launch.

    `out` is given where the operand is it.
    """
    _check_operand(product, tensor)
    if out is not None:
        _check_writable(product, out)
    return _capsule(product, tensor, stream)


def _capsule(product: str, tensor: Any, stream: int) -> Any:
    try:
        return _framework_of(tensor).capsule(tensor, stream)
    except (errors.AotGemmError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a framework says of a tensor that it does not hand out
        return refuse_unreadable(product, tensor, error)


def release(product: str, tensor: Any, stream: int) -> None:  # noqa: ARG001 - the binding passes it to all of these
    """Have the framework of such an operand wait for the launch before it writes, reads or frees it."""
    _framework_of(tensor).finish(tensor.__dlpack_device__()[1], stream)


def compact(product: str, tensor: Any) -> Any:  # noqa: ARG001
    """Copy a left operand that is not one matrix in memory, as torch's own products do."""
    return _framework_of(tensor).compact(tensor)


def examine(kind: type) -> bool:
    """Say whether a type of tensors is torch's.

    Raises:
        OperandError: its tensors are handled by code of their own, so that what they show as memory may be none:
            DTensor, fake, functional and quantised tensors are such wrappers.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (isinstance(kind, type) and issubclass(kind, torch.Tensor)):
        return False
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise errors.OperandError(
            f"got a {kind.__module__}.{kind.__qualname__}, a wrapper with a __torch_dispatch__ of its own; expected a "
            "plain tensor in GPU memory; pass the tensor that it wraps, such as DTensor.to_local() gives"
        )
    return True


def refuse_unreadable(product: str, tensor: Any, error: BaseException) -> NoReturn:
    """Raise that a tensor cannot be read as plain memory, for the reason that its framework gave."""
    reason = str(error).partition("\n")[0] or type(error).__name__
    raise errors.OperandError(
        f"{product}: got a {type(tensor).__name__} that is no plain strided memory ({reason}); expected a dense tensor "
        "in GPU memory; convert it, as by .to_dense(), .dequantize() or .contiguous()"
    ) from error


_INCREMENT_VERSION = 3
"""Index of the function in what follows."""


def torch_hooks() -> tuple[Any, ...]:
    """Return what the binding asks torch: functions, the module of forward-mode differentiation, attributes' names."""
    import torch
    from torch.autograd import forward_ad, graph

    return (
        torch.is_grad_enabled,
        forward_ad,
        torch.Tensor.is_neg,
        _version_counter(torch, graph),
        torch.Tensor.storage_offset,
        torch._C._get_tracing_state,  # noqa: SLF001 - what torch.jit.is_tracing() asks, at a quarter of its cost
        sys.intern("requires_grad"),
        sys.intern("_current_level"),
    )


def _version_counter(torch: Any, graph: Any) -> Any:
    """Return a function of a tuple of one tensor that counts a write of it.

    It is what the public function calls, at half its cost, where this torch has it and it takes a tuple.
    """
    function = getattr(torch._C, "_increment_version", None)  # noqa: SLF001
    try:
        function((torch.empty(0),))
    except (TypeError, RuntimeError):
        return lambda tensors: graph.increment_version(tensors[0])
    return function


def check_gradient(product: str, tensor: Any) -> None:
    """Refuse a torch tensor whose gradient torch would record.

    Raises:
        GradientError: it would.
    """
    import torch

    if torch.jit.is_tracing():
        raise errors.UnsupportedError(
            f"{product}: torch.jit is tracing, and would take the result for a constant; expected a call outside a "
            "trace; trace with torch's own product"
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise errors.GradientError(
            f"{product}: an operand of shape {tuple(tensor.shape)} requires a gradient, which this would not record; "
            "run it under torch.no_grad() or torch.inference_mode(), or pass tensor.detach()"
        )
    if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        raise errors.GradientError(
            f"{product}: an operand of shape {tuple(tensor.shape)} has a tangent of forward-mode differentiation, "
            "which this would not carry on; use torch's own product there"
        )


def _check_operand(product: str, tensor: Any) -> None:
    try:
        kind, _ = tensor.__dlpack_device__()
        speaks = callable(tensor.__dlpack__) and isinstance(int(kind), int)
    except AttributeError:
        speaks = False
    except Exception as error:  # noqa: BLE001 - whatever a framework says of a tensor without memory
        refuse_unreadable(product, tensor, error)
    if not speaks:
        raise errors.DtypeError(f"{product}: got a {type(tensor).__name__}; expected a tensor that speaks DLPack")
    if kind not in _GPU_DEVICES:
        raise errors.DeviceError(
            f"{product}: got a {type(tensor).__name__} that is not in GPU memory (DLPack device type {int(kind)}); "
            "expected a CUDA tensor; move it there first"
        )
    if examine(type(tensor)):
        check_gradient(product, tensor)
        _check_torch(product, tensor)


def _check_torch(product: str, tensor: Any) -> None:
    try:
        _ = tensor.shape, tensor.dtype
        is_negated = tensor.is_neg()
        has_memory = tensor.numel() == 0 or tensor.untyped_storage().data_ptr() != 0
    except Exception as error:  # noqa: BLE001 - torch raises many classes for tensors without storage
        refuse_unreadable(product, tensor, error)
    if is_negated:
        raise errors.OperandError(f"{product}: got a tensor whose is_neg() is set; pass tensor.resolve_neg()")
    if not has_memory:
        raise errors.OperandError(
            f"{product}: got a tensor that has no memory, as functional and zero tensors; expected one in GPU memory; "
            "pass the tensor that it stands for"
        )


def _check_writable(product: str, out: Any) -> None:
    if _roots(type(out)) & {"jax", "jaxlib"}:
        raise errors.OperandError(f"{product}: out= was given, but JAX arrays are immutable; leave it out")
