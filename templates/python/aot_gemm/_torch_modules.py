"""An nn.Linear whose product is the package's: the class that `patch` gives it, and why another keeps its own."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import Proxy, Tracer

from . import _library, errors
from ._gain import mean_gain
from ._table import plan
from ._torch_products import PLAIN, is_plain, linear
from ._torch_promises import promised
from ._torch_transforms import is_transformed

DEVICES = ["cuda"]
"""Where the weights are that are served."""
DTYPES = (torch.bfloat16, torch.float16)
ALIGNMENT = 16
"""Bytes that a weight's address is to be a multiple of, without which the fallback answers."""
FASTER = 8
"""Bytes that rows of x and weight are to begin at multiples of, for their product to be taken without asking what was
measured. Source: an H200, 125 products that no selection saw, by kernels for what is not aligned: of 8 bytes 1.36 times
as fast as torch.mm and none slower; of 4 and of 2 bytes some are slower
(research/log/2026-11-28-mma-sync.md of the toolchain)."""
ROWS = (1, 16, 256, 4096)
"""Numbers of rows that a weight is to be served at."""
REFUSALS = (
    errors.DtypeError,
    errors.ShapeError,
    errors.StrideError,
    errors.DeviceError,
    errors.OperandError,
    errors.GradientError,
    errors.UnsupportedError,
    errors.ArchitectureError,
)
"""Errors of calls that the package does not serve, raised before anything is launched: torch computes those."""


_is_autocast_enabled = torch.is_autocast_enabled
_is_compiling = torch.compiler.is_compiling
_is_deterministic = torch.are_deterministic_algorithms_enabled
_tracing_state = torch._C._get_tracing_state  # noqa: SLF001 - what torch.jit.is_tracing asks


def multiply(x: Any, weight: Any, bias: Any) -> Any:
    """Compute x @ weight^T + bias of an input (..., k) by this package, or by torch where it would refuse or differ."""
    if is_served(x, weight.dtype, bias):
        if _is_compiling():
            is_whole = bias is None or bias.shape == weight.shape[:1]  # else torch spreads it
            if is_whole and _is_traced(weight) and weight.ndim == 2 and weight.device == x.device:
                return linear(x, weight, bias)
        elif is_plain(weight):
            try:
                return linear(x, promised(weight), bias)
            except REFUSALS:  # torch takes it, or has an error of its own for it
                pass
    return nn.functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """An nn.Linear whose product is this package's, and torch's own wherever that would refuse or differ.

    It has nothing that nn.Linear has not: parameters, buffers, hooks and state dicts are those of the module, which was
    given this class. Torch computes what is not bfloat16 or float16 of one type in GPU memory, what is under an
    autocast to another type, under a transform of torch.func or with tangents of forward mode, what torch.jit traces,
    and all products while deterministic algorithms are asked for.
    """

    def forward(self, input: Any) -> Any:  # noqa: A002 - nn.Linear's name of it
        """Compute input @ weight^T + bias for an input (..., in_features)."""
        if isinstance(input, Proxy):
            return traced_call(self, input)
        return multiply(input, self.weight, self.bias)

    def __prepare_scriptable__(self) -> nn.Linear:
        """Return the plain nn.Linear that torch.jit.script compiles, of the same parameters."""
        plain = nn.Linear.__new__(nn.Linear)
        object.__setattr__(plain, "__dict__", self.__dict__)
        return plain


_STOCK = nn.Linear(1, 1, device="meta")
"""An nn.Linear to ask tracers about."""


def traced_call(module: Any, x: Proxy) -> Any:
    """Note the call of a module in a graph that torch.fx traces, as the tracer does of an nn.Linear.

    A tracer tells leaves by the names of their classes' modules, so that it comes here with a class of this package.
    """
    tracer = x.tracer
    if isinstance(tracer, Tracer) and tracer.root is not module:
        path = tracer.path_of_module(module)
        if tracer.is_leaf_module(_STOCK, path):
            return tracer.create_proxy("call_module", path, (x,), {})
    return nn.functional.linear(x, module.weight, module.bias)


def is_served(x: Any, dtype: Any, bias: Any) -> bool:
    """Say whether the package computes a call as torch would, of a weight of an element type that it may yet refuse."""
    if not isinstance(x, torch.Tensor) or dtype not in DTYPES or x.dtype is not dtype:
        return False
    if bias is not None and bias.dtype is not dtype:
        return False
    device = x.device.type
    if device not in DEVICES or x.layout is not torch.strided or x.is_nested or _is_deterministic():
        return False
    if is_transformed() or (_is_autocast_enabled(device) and torch.get_autocast_dtype(device) is not dtype):
        return False
    return _is_traced(x) if _is_compiling() else is_plain(x) and _tracing_state() is None


def _is_traced(tensor: Any) -> bool:
    """Say whether a tensor of a trace stands for a plain one: those of torch.compile have the type of the real one."""
    return type(tensor) in PLAIN or isinstance(tensor, (FakeTensor, FunctionalTensor))


def why_no_linear(module: Any) -> str | None:
    """Say why a module is none whose product may be computed for it; None where it is a plain Linear."""
    kind = type(module)
    if kind not in (nn.Linear, Linear):
        return f"it is a {kind.__module__}.{kind.__qualname__}, whose forward may be its own; expected nn.Linear itself"
    if "forward" in vars(module):
        return "its forward was replaced on the module itself"
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")  # noqa: SLF001
    if weight is None:
        return "its weight is no parameter, but computed, as weight_norm and wrappers do"
    if bias is None and module.bias is not None:
        return "its bias is no parameter, but computed"
    for name, tensor in (("weight", weight), ("bias", bias)):
        reason = None if tensor is None else _why_no_matrix(name, tensor, weight, module)
        if reason is not None:
            return reason
    return None


def _why_no_matrix(name: str, tensor: Any, weight: Any, module: Any) -> str | None:
    kind, shape = type(tensor), (module.out_features, module.in_features)[: 2 if name == "weight" else 1]
    reason = None
    if not (is_plain(tensor) or isinstance(tensor, FakeTensor)):
        reason = f"is a {kind.__module__}.{kind.__qualname__}, no plain tensor, as quantized ones"
    elif tensor.dtype not in DTYPES:
        reason = f"is {tensor.dtype}; expected torch.bfloat16 or torch.float16"
    elif tensor.dtype != weight.dtype:
        reason = f"is {tensor.dtype}, its weight {weight.dtype}; expected one type"
    elif tuple(tensor.shape) != shape:
        reason = f"has shape {tuple(tensor.shape)}; expected {shape}, as before an engine shards or offloads it"
    elif not tensor.is_contiguous():
        reason = f"of shape {tuple(tensor.shape)} has the strides {tensor.stride()}; expected a contiguous one"
    return None if reason is None else f"its {name} {reason}"


def why_left(module: Any) -> str | None:
    """Say why `patch` leaves an nn.Linear as it is; None where it does not."""
    reason = why_no_linear(module)
    if reason is not None:
        return reason
    weight, bias = module.weight, module.bias
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.device.type not in DEVICES:
            return f"its {name} is on {tensor.device}; expected a GPU; move the model there first"
    if not isinstance(weight, FakeTensor):
        if weight.data_ptr() % ALIGNMENT != 0:
            return f"its weight has an address that is not a multiple of {ALIGNMENT} bytes"
        reason = _why_not_here(weight.device.index)
        if reason is not None:
            return reason
    return why_not_planned(*weight.shape, weight.dtype, bias=bias is not None)


def why_not_planned(n: int, k: int, dtype: Any, rows: int | None = None, **options: Any) -> str | None:
    """Say why a weight's products are not for the table's kernels; None where they are.

    Args:
        n: rows of the weight.
        k: columns of it.
        dtype: of x.
        rows: of x, where they are known.
        options: others that `plan` has.
    """
    try:
        tiers = [plan(m, n, k, dtype, **options).tier for m in ROWS]
    except (errors.UnsupportedError, errors.DtypeError, errors.ShapeError) as error:
        return str(error)
    if "fallback" not in tiers:
        return None if k * dtype.itemsize % FASTER == 0 else _why_slower(n, k, dtype, rows, **options)
    return f"n {n} and k {k} get the fallback; expected rows of weight and result of multiples of {ALIGNMENT} bytes"


def _why_slower(n: int, k: int, dtype: Any, rows: int | None, **options: Any) -> str | None:
    """Say why a weight whose rows begin at no multiple of FASTER bytes is torch's; None where it is not slower here."""
    gain = mean_gain(n, k, dtype, rows, **options)
    if gain is not None and gain >= 1:
        return None
    narrow = f"k {k} makes rows that begin at no multiple of {FASTER} bytes"
    if gain is None:
        return f"{narrow}, and the table has no times of torch's beside which it could be seen to be as fast"
    return f"{narrow}, and of such weights torch's kernels were measured to be {1 / gain:.2f} times as fast"


def _why_not_here(device: int | None) -> str | None:
    """Say why the kernels do not run on a GPU; None where they do."""
    try:
        _device_table(-1 if device is None else device)
    except (errors.NoGpuError, errors.ArchitectureError, errors.CudaError) as error:
        return str(error)
    return None


@cache
def _device_table(device: int) -> None:
    _library.device_table(device)
