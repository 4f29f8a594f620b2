"""What the binding asks of the frameworks that operands belong to, in Python.

For a left operand of a framework without DLPack's C exchange API, `run` asks for stream and memory, and hands tensors
over as capsules. Beside a left operand that has the API, `capsule` and `release` order another framework's operand
before and after the launch. The rest says what is no plain memory, and what torch would have recorded.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from typing import Any, NoReturn

from . import _library, errors
from ._constant import ConstantWeight
from ._enumerations import DETERMINISTIC, ELEMENTS, FIELDS, NUM_PLAIN, ON_ROWS, READ, WRITTEN
from ._frameworks import framework_of, roots_of

_GPU_DEVICES = (2, 13)
"""kDLCUDA and kDLCUDAManaged of dlpack.h."""


ONLY_TUNED = False
"""Whether the library answers for tuned sizes alone: of one of several packs `_in_turn.passing_on` says so."""
OF_SOME_GPUS = False
"""Whether the process has GPUs of another architecture, which other packs are for: `_in_turn.for_some_gpus` says so."""
LISTS = ("weights", "factors")
"""The fields of a call that are tuples of tensors, where there are any."""
_DEFAULTS = {"epilogue": 0, "element": -1, "flags": 0, "rotary_dim": -1, "eps": 0.0, "weight_offset": 0.0}
"""What a field that is no tensor says where there is nothing to say."""


def run(product: str, values: tuple[Any, ...]) -> Any:
    """Run a call with stream and memory of the left operand's framework.

    Args:
        product: the name of the function.
        values: those of its record, or where it is plain of the first fields.
    """
    call: dict[str, Any] = dict.fromkeys(FIELDS[product]) | _DEFAULTS
    call = {name: call[name] for name in FIELDS[product]} | dict(zip(FIELDS[product], values, strict=False))
    promised = _take_promise(call)
    given = [call[name] for name in WRITTEN if call.get(name) is not None]
    framework = _check(product, call, given)
    device = call["left"].__dlpack_device__()[1]
    stream = framework.stream(device)
    record = call | {name: _capsule(product, call[name], stream) for name in _tensors_of(call)}
    for name in LISTS:
        if call.get(name):
            record[name] = tuple(_capsule(product, x, stream) for x in call[name])
    written, operation = _library.binding()[f"{product}_result"](tuple(record.values()))
    for name in _in_rows(operation, call):
        call[name] = pack_factors(product, call[name])
        record[name] = _capsule(product, call[name], stream)
    for name, (*shape, element) in written.items():
        if call[name] is None:
            dtype = call["left"].dtype if element < 0 else framework.dtype(ELEMENTS[element])
            call[name] = framework.empty(tuple(shape), dtype, device)
            record[name] = _capsule(product, call[name], stream)
    stated = tuple(record.values()), promised
    if len(values) == NUM_PLAIN[product] and _is_left_to_torch(product, call, stated):
        return multiply_by_torch(product, call["left"], call["right"], call["out"])
    _launch(product, stated, framework, device, stream)
    for each in dict.fromkeys(map(framework_of, _all_tensors(call))):
        each.finish(device, stream)
    for tensor in given:
        if examine(type(tensor)):
            note_write(tensor)
    results = [call[name] for name in written]
    # Of NVFP4 what is given is no scale of the results, which are written.
    results += [] if call.get("scale") is None or "scale_out" in written else [call["scale"]]
    return results[0] if len(results) == 1 else tuple(results)


def _check(product: str, call: dict[str, Any], given: list[Any]) -> Any:
    """Check the tensors of a call, of which some are given to be written; return the left operand's framework.

    Where torch is to be deterministic, the call asks for it; a left operand that is not one matrix is copied.
    """
    needed = (call["left"],) if product in ON_ROWS else (call["left"], call["right"])
    for tensor in (*needed, *_all_tensors(call)):
        check_operand(product, tensor)
    for tensor in given:
        check_writable(product, tensor)
    left = call["left"]
    framework = framework_of(left)
    if examine(type(left)) and sys.modules["torch"].are_deterministic_algorithms_enabled():
        call["flags"] |= DETERMINISTIC
    if not (_is_batch(product, call) or is_matrix(left, 2 if product == "rotary" else 1)):
        call["left"] = framework.compact(left)
    return framework


def _launch(product: str, stated: tuple[Any, ...], framework: Any, device: int, stream: int) -> None:
    """Launch a record of capsules, with the promise that goes with it."""
    binding = _library.binding()
    num_bytes = binding[f"{product}_workspace_bytes"](*stated)
    workspace = framework.empty((num_bytes,), "uint8", device) if num_bytes > 0 else None
    scratch = None if workspace is None else framework.capsule(workspace, stream)
    binding[f"{product}_on"](*stated, scratch, stream)


def _tensors_of(call: dict[str, Any]) -> list[str]:
    return [name for name in (*READ, *WRITTEN) if call.get(name) is not None]


def _all_tensors(call: dict[str, Any]) -> list[Any]:
    """List them, with those of lists."""
    return [*(call[name] for name in _tensors_of(call)), *(x for name in LISTS for x in call.get(name) or ())]


def _in_rows(operation: str, call: dict[str, Any]) -> list[str]:
    """List the factors that an operation takes in atoms, and that lie in rows of blocks."""
    given = [x for x in ("scale_x", "scale_w") if call.get(x) is not None]
    if not given:
        return []
    from ._catalogue import IN_ATOMS  # here, since a call without factors does not need it

    return [x for x in given if operation in IN_ATOMS and len(call[x].shape) > 1]


def _take_promise(call: dict[str, Any]) -> int:
    """Have the tensor stand for a right operand that is promised to be constant; return the address of the promise."""
    right = call.get("right")
    if not isinstance(right, ConstantWeight):
        return 0
    call["right"] = right.tensor
    return right.address if right.is_kept else 0


def _is_batch(product: str, call: dict[str, Any]) -> bool:
    return product == "matmul" and len(call["right"].shape) > 2


def _is_left_to_torch(product: str, call: dict[str, Any], stated: tuple[Any, ...]) -> bool:
    """Say whether torch takes the place of a launch for each product: all are its own, of 16 bits or more."""
    if not _is_batch(product, call) or call["flags"] != 0:
        return False
    dtype = call["left"].dtype
    are_of_torch = all(examine(type(call[name])) for name in ("left", "right", "out"))
    if not are_of_torch or not dtype.is_floating_point or dtype.itemsize == 1:
        return False
    num_launches: int = _library.binding()["matmul_launches"](*stated)
    return num_launches > 1


def multiply_by_torch(product: str, left: Any, right: Any, out: Any) -> Any:  # noqa: ARG001 - the binding passes it
    """Have torch compute a batch that the wheel has no kernels for in one launch, where it would be one a product."""
    return sys.modules["torch"].matmul(left, right, out=out)


def note_write(tensor: Any) -> None:
    """Tell torch that a tensor of its own was written."""
    torch_hooks()[_INCREMENT_VERSION]((tensor,))


def refuse_request(text: str) -> NoReturn:
    """Raise that this wheel has no operation for what the binding was asked for, and what there is instead."""
    from . import _request, _row_request  # here, since a call that is served does not need it

    if text.startswith(_row_request.PREFIX):
        _row_request.refuse(text)
    _request.refuse(_request.parse(text))


def is_matrix(tensor: Any, num_last: int = 1) -> bool:
    """Say whether all dimensions but the last join into rows of one stride; where strides are not told, they do."""
    shape, strides = tensor.shape, getattr(tensor, "stride", None) or getattr(tensor, "strides", None)
    if callable(strides):
        strides = strides()
    if strides is None or 0 in shape:
        return True
    modes = [(x, s) for x, s in zip(shape[:-num_last], strides[:-num_last], strict=True) if x != 1]
    return all(outer[1] == inner[1] * inner[0] for outer, inner in itertools.pairwise(modes))


def settle(product: str, weight: Any) -> int:
    """Wait until what a weight's framework has enqueued so far is done; return the weight's address."""
    check_operand(product, weight)
    framework = framework_of(weight)
    device = weight.__dlpack_device__()[1]
    stream = framework.stream(device)
    address: int = _library.binding()["address"](_capsule(product, weight, stream))
    _library.check(_library.library().aot_gemm_synchronize(ctypes.c_int32(device), ctypes.c_void_p(stream)))
    return address


def capsule(product: str, tensor: Any, stream: int, out: Any = None) -> Any:
    """Return the capsule of an operand without an exchange API, ready on the stream of the launch.

    `out` is given where the operand is it.
    """
    check_operand(product, tensor)
    if out is not None:
        check_writable(product, out)
    return _capsule(product, tensor, stream)


def _capsule(product: str, tensor: Any, stream: int) -> Any:
    try:
        found = framework_of(tensor).capsule(tensor, stream)
    except (errors.AotGemmError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a framework says of a tensor that it does not hand out
        return refuse_unreadable(product, tensor, error)
    if type(found).__name__ != "PyCapsule":  # before the next operand's framework orders its stream behind another
        raise errors.OperandError(
            f"{product}: the __dlpack__ of a {type(tensor).__name__} gave a {type(found).__name__}; expected a DLPack "
            "capsule; pass a tensor of a framework that speaks DLPack"
        )
    return found


def release(product: str, tensor: Any, stream: int) -> None:  # noqa: ARG001 - the binding passes it to all of these
    """Have the framework of such an operand wait for the launch before it writes, reads or frees it."""
    framework_of(tensor).finish(tensor.__dlpack_device__()[1], stream)


def compact(product: str, tensor: Any) -> Any:  # noqa: ARG001
    """Copy a left operand that is not one matrix in memory, as torch's own products do."""
    return framework_of(tensor).compact(tensor)


def pack_factors(product: str, factors: Any) -> Any:
    """Put factors that lie in rows of blocks into the atoms that kernels take: of groups, those of the weights."""
    from . import _factors  # here, since most calls have none

    if product == "grouped_linear" and len(factors.shape) == 2:
        return _factors.run_of(factors)
    return _factors.pack_factors(factors, **({"stacked": True} if product == "grouped_linear" else {}))


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
        torch.are_deterministic_algorithms_enabled,
        getattr(torch.cuda, "OutOfMemoryError", RuntimeError),
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
        recording = f"; {__package__}.torch.{product} records it" if product in ("linear", "matmul") else ""
        raise errors.GradientError(
            f"{product}: an operand of shape {tuple(tensor.shape)} requires a gradient, which this would not record; "
            f"run it under torch.no_grad() or torch.inference_mode(), or pass tensor.detach(){recording}"
        )
    if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        raise errors.GradientError(
            f"{product}: an operand of shape {tuple(tensor.shape)} has a tangent of forward-mode differentiation, "
            "which this would not carry on; use torch's own product there"
        )


def check_operand(product: str, tensor: Any) -> None:
    """Check that an operand is plain GPU memory, of which torch records nothing."""
    try:
        kind, _ = tensor.__dlpack_device__()
        speaks = callable(tensor.__dlpack__) and isinstance(int(kind), int)
    except AttributeError:
        speaks = False
    except Exception as error:  # noqa: BLE001 - whatever a framework says of a tensor without memory
        refuse_unreadable(product, tensor, error)
    if not speaks:
        number = "; a factor is read from GPU memory: pass a float32 tensor of one element that is there"
        hint = number if isinstance(tensor, (int, float)) else ""
        raise errors.DtypeError(f"{product}: got a {type(tensor).__name__}; expected a tensor that speaks DLPack{hint}")
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


def check_writable(product: str, out: Any) -> None:
    """Refuse what is written where its framework's tensors are immutable."""
    if roots_of(type(out)) & {"jax", "jaxlib"}:
        raise errors.OperandError(f"{product}: out= was given, but JAX arrays are immutable; leave it out")
