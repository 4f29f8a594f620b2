"""Layers under the wheel: an nn.Linear that has its forward through `linear`, and why another is not to be one."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from . import _library, errors
from ._table import plan
from ._torch_products import PLAIN, is_plain, is_transformed, linear

DEVICES = ["cuda"]
"""Where the weights are that are served."""
DTYPES = (torch.bfloat16, torch.float16)
ALIGNMENT = 16
"""Bytes that a weight's address is to be a multiple of, without which the fallback answers."""
ROWS = (1, 16, 256, 4096)
"""Numbers of rows that a weight is to be served at."""


_is_autocast_enabled = torch.is_autocast_enabled
_is_compiling = torch.compiler.is_compiling
_is_deterministic = torch.are_deterministic_algorithms_enabled


class Linear(nn.Linear):
    """An nn.Linear whose product is this package's, and torch's own wherever that would refuse or differ.

    Parameters, names, state dicts and hooks are those of nn.Linear. Torch computes what is not bfloat16 or float16 of
    one type in GPU memory, what is under an autocast to another type, under a transform of torch.func or with tangents
    of forward mode, and all products while deterministic algorithms are asked for.
    """

    def forward(self, input: Any) -> Any:  # noqa: A002 - nn.Linear's name of it
        """Compute input @ weight^T + bias for an input (..., in_features)."""
        weight, bias = self.weight, self.bias
        if is_served(input, weight, bias):
            return linear(input, weight, bias)
        return nn.functional.linear(input, weight, bias)


def is_served(x: Any, weight: Any, bias: Any) -> bool:
    """Say whether a call is one that the package computes as torch would."""
    dtype = weight.dtype
    if dtype not in DTYPES or x.dtype is not dtype or (bias is not None and bias.dtype is not dtype):
        return False
    device = x.device.type
    if device not in DEVICES or x.layout is not torch.strided or x.is_nested or _is_deterministic():
        return False
    if is_transformed() or (_is_autocast_enabled(device) and torch.get_autocast_dtype(device) is not dtype):
        return False
    if _is_compiling():
        return _is_traced(x) and _is_traced(weight)
    return is_plain(x) and is_plain(weight)


def _is_traced(tensor: Any) -> bool:
    """Say whether a tensor of a trace stands for a plain one: those of torch.compile have the type of the real one."""
    return type(tensor) in PLAIN or isinstance(tensor, (FakeTensor, FunctionalTensor))


def is_watched(module: Any) -> bool:
    """Say whether calling a module is more than the forward of its class: it has hooks, or a forward of its own."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)  # noqa: SLF001


def why_left(module: Any, *, may_pad: bool = False) -> str | None:
    """Say why an nn.Linear is left as it is; None where it is not. Rows of zeros may be added to it, or not."""
    kind = type(module)
    if kind is not nn.Linear:
        return f"it is a {kind.__module__}.{kind.__qualname__}, whose forward may be its own; expected nn.Linear itself"
    if "forward" in vars(module):
        return "its forward was replaced on the module itself"
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")  # noqa: SLF001
    if weight is None:
        return "its weight is no parameter, but computed, as weight_norm and wrappers do"
    if bias is None and module.bias is not None:
        return "its bias is no parameter, but computed"
    for name, tensor in (("weight", weight), ("bias", bias)):
        reason = None if tensor is None else _why_not_served(name, tensor, weight)
        if reason is not None:
            return reason
    return _why_not_tuned(weight, bias, may_pad=may_pad)


def _why_not_served(name: str, tensor: Any, weight: Any) -> str | None:
    kind = type(tensor)
    reason = None
    if not (is_plain(tensor) or isinstance(tensor, FakeTensor)):
        reason = f"is a {kind.__module__}.{kind.__qualname__}, no plain tensor, as quantised ones"
    elif tensor.dtype not in DTYPES:
        reason = f"is {tensor.dtype}; expected torch.bfloat16 or torch.float16"
    elif tensor.dtype != weight.dtype:
        reason = f"is {tensor.dtype}, its weight {weight.dtype}; expected one type"
    elif tensor.device.type not in DEVICES:
        reason = f"is on {tensor.device}; expected a GPU; move the model there first"
    elif not tensor.is_contiguous():
        reason = f"of shape {tuple(tensor.shape)} has the strides {tensor.stride()}; expected a contiguous one"
    elif name == "weight" and not isinstance(tensor, FakeTensor) and tensor.data_ptr() % ALIGNMENT != 0:
        reason = f"has an address that is not a multiple of {ALIGNMENT} bytes"
    return None if reason is None else f"its {name} {reason}"


def _why_not_tuned(weight: Any, bias: Any, *, may_pad: bool) -> str | None:
    if not isinstance(weight, FakeTensor):
        reason = _why_not_here(weight.device.index)
        if reason is not None:
            return reason
    n, k = weight.shape
    columns = n + num_padded(n, weight) if may_pad else n
    reason = why_not_planned(columns, k, weight.dtype, bias=bias is not None)
    return reason.replace(f"n {columns} and", f"n {n} and") if reason else None


def num_padded(rows: int, weight: Any) -> int:
    """Return how many rows of zeros make a weight's rows such that the result has aligned ones."""
    return -rows % (ALIGNMENT // weight.element_size())


def why_not_planned(n: int, k: int, dtype: Any, **options: Any) -> str | None:
    """Say why the table has no tuned kernel of a product (m, n, k), options as `plan` has them; None where it has."""
    try:
        tiers = [plan(m, n, k, dtype, **options).tier for m in ROWS]
    except (errors.UnsupportedError, errors.DtypeError, errors.ShapeError) as error:
        return str(error)
    if "fallback" not in tiers:
        return None
    return f"n {n} and k {k} get the fallback; expected rows of weight and result of multiples of {ALIGNMENT} bytes"


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
