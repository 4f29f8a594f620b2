"""Refuses what is no tensor of torch, in the functions that compute by torch's own operators."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import errors


def check_tensor(function: str, name: str, value: Any, *, has_memory: bool = False) -> None:
    """Refuse an argument that is no tensor.

    Args:
        function: whose argument it is.
        name: of the argument.
        value: the argument.
        has_memory: whether its elements are read, so that one of the meta device will not do.

    Raises:
        OperandError: it is no torch.Tensor, is sparse, or has no elements.
    """
    if not isinstance(value, torch.Tensor):
        kind = "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
        raise errors.OperandError(f"{function}: {name} is {kind}; expected a torch.Tensor; torch.as_tensor makes one")
    if value.layout is not torch.strided:
        raise errors.OperandError(
            f"{function}: {name} has the layout {value.layout}; expected a dense tensor; tensor.to_dense() makes one"
        )
    if has_memory and (value.is_meta or isinstance(value, FakeTensor)):
        raise errors.OperandError(
            f"{function}: {name} is on the meta device, which has no elements; expected one on the CPU or a GPU; load "
            "it first"
        )
