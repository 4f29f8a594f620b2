"""Weights of checkpoints, by the names that their tensors have there, packed for the kernels of `packed_linear`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import errors
from ._torch_check import check_tensor
from ._torch_experts import stack
from ._torch_packed import DTYPES, PackedWeight, bits_of, pack
from ._weight_format import GPTQ_ZERO_OFFSETS

if TYPE_CHECKING:
    from collections.abc import Callable

    _Reader = Callable[[Any, Mapping[str, Any], Any, int], Any]

_KNOWN = (
    "qweight, qzeros and scales (GPTQ, with g_idx; or AWQ)",
    "weight_packed and weight_scale (compressed-tensors int4, with weight_zero_point, and MXFP4)",
    "weight_packed, weight_scale and weight_global_scale (compressed-tensors NVFP4)",
    "weight, weight_scale and weight_scale_2 (ModelOpt's NVFP4)",
    "blocks and scales (GPT-OSS's MXFP4, of one expert or of all)",
)


def load_packed(tensors: Mapping[str, Any], dtype: Any = None, *, checkpoint_format: str = "gptq") -> Any:
    """Pack a weight that a checkpoint holds in a narrow format: its tensors, by the ends of their names.

        with safetensors.safe_open(path, "pt") as file:
            prefix = "model.layers.0.mlp.down_proj."
            names = [x for x in file.keys() if x.startswith(prefix)]
            tensors = {x.removeprefix(prefix): file.get_tensor(x) for x in names}
        packed = aot_gemm.torch.load_packed(tensors, torch.bfloat16).to("cuda")

    Nothing is rounded but factors of int4 that are given another type. A weight whose groups are in another order
    along k (desc_act) is refused, and so is what has a tensor beside it by which its product is another.

    Args:
        tensors: of one weight: of GPTQ and AWQ `qweight`, `qzeros` and `scales`; of compressed-tensors
            `weight_packed`, `weight_scale` and what else there is; of ModelOpt's NVFP4 `weight`, `weight_scale` and
            `weight_scale_2`; of GPT-OSS's MXFP4 `blocks` and `scales`, of one expert or of all.
        dtype: of int4's factors, and so of x: bfloat16 or float16; by default as they are.
        checkpoint_format: as the checkpoint's quantization_config says it of GPTQ: "gptq", whose zero points are less
            by 1 than they stand for, or "gptq_v2".

    Returns:
        A PackedWeight; of the blocks of all experts, (experts, n, k / 32, 16), PackedExperts.

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
    if not isinstance(checkpoint_format, str) or checkpoint_format not in GPTQ_ZERO_OFFSETS:
        got, known = errors.show(checkpoint_format), " or ".join(map(repr, GPTQ_ZERO_OFFSETS))
        raise errors.FormatError(f"load_packed: checkpoint_format is {got}; expected {known}")
    for name, held in tensors.items():
        check_tensor("load_packed", name, held, has_memory=True)
    found = _reader_of(tensors.keys())
    if found is None:
        held = ", ".join(sorted(tensors)) or "none"
        raise errors.FormatError(
            f"load_packed: got the tensors {held}; expected those of a weight: {'; '.join(_KNOWN)}"
        )
    from . import _weight_checkpoints as checkpoints  # which needs numpy

    reader, taken = found
    unknown = sorted(set(tensors) - {*taken, "bias", *checkpoints.INPUT_SCALES})
    if unknown:
        raise errors.FormatError(
            f"load_packed: got {', '.join(unknown)} beside {', '.join(x for x in taken if x in tensors)}; expected "
            "nothing else, for the product by the weight alone may be another; fold it into the weight"
        )
    try:
        return reader(checkpoints, tensors, dtype, GPTQ_ZERO_OFFSETS[checkpoint_format])
    except KeyError as error:
        raise errors.FormatError(f"load_packed: there is no tensor {error}; expected {'; or '.join(_KNOWN)}") from error


def _reader_of(names: Any) -> tuple[_Reader, tuple[str, ...]] | None:
    """Return what reads a weight by the tensor that tells it, and which tensors it takes."""
    words = ("qweight", "qzeros", "scales", "g_idx")
    compressed = ("weight_packed", "weight_scale", "weight_global_scale", "weight_zero_point", "weight_shape")
    by_name: dict[str, tuple[_Reader, tuple[str, ...]]] = {
        "qweight": (_of_words, words),
        "weight_packed": (_compressed, (*compressed, "weight_g_idx")),
        "weight_scale_2": (_modelopt, ("weight", "weight_scale", "weight_scale_2")),
        "blocks": (_mxfp4, ("blocks", "scales")),
    }
    return next((reader for name, reader in by_name.items() if name in names), None)


def _factors(scales: Any, dtype: Any) -> Any:
    if scales.dtype in DTYPES and dtype in (None, scales.dtype):
        return scales
    if dtype is None:
        raise errors.FormatError(
            f"load_packed: factors are {scales.dtype}; expected torch.bfloat16 or torch.float16; say which they are "
            "rounded to by dtype="
        )
    return scales.to(dtype)


def _matrix(tensors: Mapping[str, Any], name: str) -> Any:
    """Return a tensor that has rows and columns."""
    held = tensors[name]
    if held.ndim != 2:
        raise errors.FormatError(f"load_packed: {name} is of {tuple(held.shape)}; expected two dimensions")
    return held


def _whole(tensors: Mapping[str, Any], name: str) -> float:
    """Return the factor of a whole weight."""
    held = tensors[name]
    if held.numel() != 1 or not bool(held.isfinite().all()) or not bool(held.any()):
        got = f"{held.numel()} elements" if held.numel() != 1 else f"{held.item()}"
        raise errors.FormatError(f"load_packed: {name} is {got}; expected one finite number other than 0")
    return float(held)


def _packed(read: Any, dtype: Any) -> PackedWeight:
    """Pack what a reader of checkpoints gave, whose factors of 16 bits are of a type."""
    parts = read.parts
    factors = None if parts.factors is None else torch.from_numpy(parts.factors.copy().view("i2" if dtype else "u1"))
    factors = factors.view(dtype) if dtype else factors
    zeros = None if parts.zeros is None else torch.from_numpy(parts.zeros.copy())
    scale = None if read.factor is None else torch.tensor([float(read.factor)])
    return pack(torch.from_numpy(parts.codes.copy()), factors, zeros, format=read.form.name, scale=scale)


def _bits(tensors: Mapping[str, Any], name: str) -> Any:
    """Return a tensor's elements as numpy has them; None where there is no such tensor."""
    return tensors[name].detach().cpu().numpy() if name in tensors else None


def _of_words(checkpoints: Any, tensors: Mapping[str, Any], dtype: Any, zero_offset: int) -> PackedWeight:
    """Read GPTQ's (k / 8, n) or AWQ's (k, n / 8) words."""
    scales = _factors(_matrix(tensors, "scales"), dtype)
    words, zeros = (_bits({x: _matrix(tensors, x)}, x) for x in ("qweight", "qzeros"))
    order = _bits(tensors, "g_idx")
    if words.shape[1] == scales.shape[1]:
        return _packed(checkpoints.from_gptq(words, zeros, bits_of(scales), order, zero_offset), scales.dtype)
    checkpoints.check_order(order, words.shape[0], scales.shape[0], "g_idx")
    return _packed(checkpoints.from_awq(words, zeros, bits_of(scales)), scales.dtype)


def _compressed(checkpoints: Any, tensors: Mapping[str, Any], dtype: Any, zero_offset: int) -> PackedWeight:
    del zero_offset
    held = _matrix(tensors, "weight_packed")
    if held.dtype == torch.uint8:
        scales, codes = _matrix(tensors, "weight_scale"), _bits(tensors, "weight_packed")
        if scales.dtype != torch.float8_e4m3fn:
            return _packed(checkpoints.from_mxfp4(codes, bits_of(scales)), None)
        whole = 1.0 / _whole(tensors, "weight_global_scale")
        return _packed(checkpoints.from_nvfp4(codes, bits_of(scales), whole), None)
    scales = _factors(_matrix(tensors, "weight_scale"), dtype)
    words, zeros, order = (_bits(tensors, x) for x in ("weight_packed", "weight_zero_point", "weight_g_idx"))
    shape = tuple(tensors["weight_shape"].tolist()) if "weight_shape" in tensors else None
    return _packed(checkpoints.from_compressed_int4(words, bits_of(scales), zeros, shape, order), scales.dtype)


def _modelopt(checkpoints: Any, tensors: Mapping[str, Any], dtype: Any, zero_offset: int) -> PackedWeight:
    del dtype, zero_offset
    whole, scales = _whole(tensors, "weight_scale_2"), bits_of(_matrix(tensors, "weight_scale"))
    return _packed(checkpoints.from_nvfp4(_bits({"weight": _matrix(tensors, "weight")}, "weight"), scales, whole), None)


def _mxfp4(checkpoints: Any, tensors: Mapping[str, Any], dtype: Any, zero_offset: int) -> Any:
    blocks, scales = tensors["blocks"], tensors["scales"]
    if blocks.ndim not in (3, 4) or scales.ndim != blocks.ndim - 1:
        raise errors.FormatError(
            f"load_packed: blocks are of {tuple(blocks.shape)} and scales of {tuple(scales.shape)}; expected (n, k / "
            "32, 16) and (n, k / 32), or the same with all experts in front"
        )
    if blocks.ndim == 3:
        return _packed(checkpoints.from_mxfp4(_bits(tensors, "blocks"), bits_of(scales)), None)
    if len(blocks) != len(scales):
        raise errors.FormatError(
            f"load_packed: blocks are of {len(blocks)} experts, and scales of {len(scales)}; expected as many"
        )
    each = ({"blocks": x, "scales": y} for x, y in zip(blocks, scales, strict=True))
    return stack([_mxfp4(checkpoints, x, dtype, zero_offset) for x in each])
