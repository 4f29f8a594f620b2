"""Weights of checkpoints, by the names that their tensors have there, packed for the kernels of `packed_linear`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import errors
from ._torch_packed import DTYPES, PackedWeight, bits_of, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    _Reader = Callable[[Any, Mapping[str, Any], Any], Any]

_KNOWN = (
    "qweight, qzeros and scales (GPTQ, with g_idx; or AWQ)",
    "weight_packed and weight_scale (compressed-tensors; with weight_zero_point, or weight_global_scale of NVFP4)",
    "weight, weight_scale and weight_scale_2 (ModelOpt's NVFP4)",
    "blocks and scales (GPT-OSS's MXFP4, of one expert)",
)


def load_packed(tensors: Mapping[str, Any], dtype: Any = None) -> PackedWeight:
    """Pack a weight that a checkpoint holds in a narrow format: its tensors, by the ends of their names.

        with safetensors.safe_open(path, "pt") as file:
            prefix = "model.layers.0.mlp.down_proj."
            names = [x for x in file.keys() if x.startswith(prefix)]
            tensors = {x.removeprefix(prefix): file.get_tensor(x) for x in names}
        packed = aot_gemm.torch.load_packed(tensors, torch.bfloat16).to("cuda")

    Nothing is rounded but factors of int4 that are given another type. A GPTQ weight whose groups are in another order
    along k (desc_act) is refused.

    Args:
        tensors: on the CPU, of one weight: of GPTQ and AWQ `qweight`, `qzeros` and `scales`; of compressed-tensors
            `weight_packed`, `weight_scale` and what else there is; of ModelOpt's NVFP4 `weight`, `weight_scale` and
            `weight_scale_2`; of GPT-OSS's MXFP4 `blocks` and `scales`.
        dtype: of int4's factors, and so of x: bfloat16 or float16; by default as they are.

    Raises:
        OperandError: `tensors` is no mapping.
        FormatError: the tensors are those of no such checkpoint, or say what no format of packed weights can.
    """
    if not isinstance(tensors, Mapping):
        raise errors.OperandError(
            f"load_packed: got a {type(tensors).__qualname__}; expected a dict of one weight's tensors, by the ends of "
            "their names; `pack` takes codes and factors"
        )
    if dtype is not None and dtype not in DTYPES:
        raise errors.FormatError(f"load_packed: dtype is {dtype}; expected torch.bfloat16 or torch.float16")
    reader = _reader_of(tensors.keys())
    if reader is None:
        held = ", ".join(sorted(tensors)) or "none"
        raise errors.FormatError(
            f"load_packed: got the tensors {held}; expected those of a weight: {'; '.join(_KNOWN)}"
        )
    from . import _weight_checkpoints as checkpoints  # which needs numpy

    try:
        return reader(checkpoints, tensors, dtype)
    except KeyError as error:
        raise errors.FormatError(f"load_packed: there is no tensor {error}; expected {'; or '.join(_KNOWN)}") from error


def _reader_of(names: Any) -> _Reader | None:
    by_name: dict[str, _Reader] = {
        "qweight": _of_words,
        "weight_packed": _compressed,
        "weight_scale_2": _modelopt,
        "blocks": _mxfp4,
    }
    return next((reader for name, reader in by_name.items() if name in names), None)


def _factors(scales: Any, dtype: Any) -> Any:
    if scales.dtype in DTYPES and dtype in (None, scales.dtype):
        return scales
    return scales.to(dtype or torch.float16)


def _packed(read: Any, dtype: Any) -> PackedWeight:
    """Pack what a reader of checkpoints gave, whose factors of 16 bits are of a type."""
    parts = read.parts
    factors = None if parts.factors is None else torch.from_numpy(parts.factors.copy().view("i2" if dtype else "u1"))
    factors = factors.view(dtype) if dtype else factors
    zeros = None if parts.zeros is None else torch.from_numpy(parts.zeros.copy())
    scale = None if read.factor is None else torch.tensor([float(read.factor)])
    return pack(torch.from_numpy(parts.codes.copy()), factors, zeros, format=read.form.name, scale=scale)


def _of_words(checkpoints: Any, tensors: Mapping[str, Any], dtype: Any) -> PackedWeight:
    """Read GPTQ's (k / 8, n) or AWQ's (k, n / 8) words."""
    scales = _factors(tensors["scales"], dtype)
    words, zeros = (tensors[x].numpy() for x in ("qweight", "qzeros"))
    if words.shape[1] == scales.shape[1]:
        order = tensors["g_idx"].numpy() if "g_idx" in tensors else None
        read = checkpoints.from_gptq(words, zeros, bits_of(scales), order)
    else:
        read = checkpoints.from_awq(words, zeros, bits_of(scales))
    return _packed(read, scales.dtype)


def _compressed(checkpoints: Any, tensors: Mapping[str, Any], dtype: Any) -> PackedWeight:
    held = tensors["weight_packed"]
    if held.dtype == torch.uint8:
        whole = 1.0 / float(tensors["weight_global_scale"])
        return _packed(checkpoints.from_nvfp4(held.numpy(), bits_of(tensors["weight_scale"]), whole), None)
    scales = _factors(tensors["weight_scale"], dtype)
    zeros = tensors["weight_zero_point"].numpy() if "weight_zero_point" in tensors else None
    return _packed(checkpoints.from_compressed_int4(held.numpy(), bits_of(scales), zeros), scales.dtype)


def _modelopt(checkpoints: Any, tensors: Mapping[str, Any], dtype: Any) -> PackedWeight:
    del dtype
    whole = float(tensors["weight_scale_2"])
    return _packed(checkpoints.from_nvfp4(tensors["weight"].numpy(), bits_of(tensors["weight_scale"]), whole), None)


def _mxfp4(checkpoints: Any, tensors: Mapping[str, Any], dtype: Any) -> PackedWeight:
    del dtype
    return _packed(checkpoints.from_mxfp4(tensors["blocks"].numpy(), bits_of(tensors["scales"])), None)
