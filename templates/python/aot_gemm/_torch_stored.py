"""Tensors of files of safetensors as torch's."""

from __future__ import annotations

from ctypes import c_ubyte
from typing import TYPE_CHECKING, Any

import torch

from . import errors

if TYPE_CHECKING:
    from ._safetensors_file import StoredTensor

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
ELEMENTS = {name: getattr(torch, x) for name, x in _NAMES.items() if hasattr(torch, x)}
"""Element types by safetensors' names, as far as this version of torch has them."""


def read(tensor: StoredTensor, device: Any, dtype: Any = None) -> Any:
    """Return a tensor of a file in memory of its own."""
    held = torch.empty(tensor.shape, dtype=ELEMENTS[tensor.dtype])
    if held.numel():
        with open(tensor.file, "rb", buffering=0) as file:  # noqa: PTH123 - read into the tensor's own memory
            file.seek(tensor.start)
            view, done = memoryview((c_ubyte * tensor.num_bytes).from_address(held.data_ptr())).cast("B"), 0
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise errors.CheckpointError(f"{tensor.file}: it ended within {tensor.name!a}; fetch it again")
                done += count
    return held.to(device=device, dtype=dtype or held.dtype)
