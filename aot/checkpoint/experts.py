"""Weights of a mixture's experts in a checkpoint: stacks of all, as GPT-OSS has them, and Linears that go together."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from aot.checkpoint.stored import EXPERT_ENDS, WIDE, Stored, StoredLayer
from aot.core.errors import CheckpointError, FormatError
from aot.core.packed_folder import PackedLayer
from aot.core.safetensors_file import short
from aot.core.weight_format import MXFP4

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from aot.core.safetensors_file import StoredTensor

BLOCK_BYTES = MXFP4.group // 2
"""Of the codes that a factor is of."""
STACKED = "experts of 16 bits in one tensor: copied as it is; quantize of the model that has them rounds them"
_NUMBERED = re.compile(r"(.*\.experts)\.\d+(\..+)")


def owner_of(name: str, names: Container[str]) -> tuple[str, str]:
    """Return whose tensor one is, and what it is called there: of GPT-OSS's experts not what stands before a dot.

    Args:
        name: the tensor.
        names: those of the whole checkpoint.
    """
    prefix, _, end = name.rpartition("_")
    if name.endswith(EXPERT_ENDS) and f"{prefix}_blocks" in names:
        return prefix, end
    prefix, _, end = name.rpartition(".")
    return prefix, end


def stack_of(name: str, tensors: Mapping[str, StoredTensor]) -> StoredLayer:
    """Read MXFP4 of all experts: blocks (experts, n, k / 32, 16), and scales (experts, n, k / 32).

    Raises:
        CheckpointError: there are no scales, or the tensors do not go together.
    """
    blocks, scales = tensors["blocks"], tensors.get("scales")
    if scales is None:
        raise CheckpointError(f"{blocks.text}, and there is no {short(f'{name}_scales')}; fetch the checkpoint again")
    is_right = blocks.dtype == "U8" and len(blocks.shape) == 4 and blocks.shape[-1] == BLOCK_BYTES
    if not is_right or scales.dtype not in ("U8", "F8_E8M0") or scales.shape != blocks.shape[:-1]:
        raise CheckpointError(
            f"{blocks.text}, {scales.text}; expected U8 of (experts, n, k / {MXFP4.group}, {BLOCK_BYTES}), and of the "
            "first three; no known layout has these; fetch the checkpoint again"
        )
    experts, n, groups, _ = blocks.shape
    packed = PackedLayer(MXFP4.name, (experts, n, groups * MXFP4.group))
    try:
        packed.check()
    except FormatError as error:
        raise CheckpointError(f"{short(name)}: {error}; or leave it by --skip {short(name)}") from error
    return StoredLayer(name, Stored.EXPERTS, packed, {"weight_packed": blocks, "weight_scale": scales})


def is_wide_stack(tensor: StoredTensor) -> bool:
    """Say whether a tensor has weights of 16 bits of all experts."""
    return len(tensor.shape) == 3 and tensor.dtype in WIDE and ".experts." in tensor.name


def alike(layers: Mapping[str, StoredLayer]) -> dict[str, StoredLayer]:
    """Return layers of which the experts of a mixture have one format, so that they can be one stack.

    Weights of int4 have zero points where one of them is not 8; where some experts have and others have not, all get
    them.
    """
    formats: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for name, layer in layers.items():
        formats[_place(name)].add(layer.packed.format)
    found = {}
    for name, layer in layers.items():
        form = layer.packed.format
        with_zeros = f"{form}z"
        if layer.packed.form is not None and formats[_place(name)] == {form, with_zeros}:
            found[name] = replace(layer, packed=replace(layer.packed, format=with_zeros))
        else:
            found[name] = layer
    return found


def _place(name: str) -> tuple[str, ...]:
    """Return what the names of a mixture's experts have in common; of anything else the name."""
    numbered = _NUMBERED.fullmatch(name)
    return (numbered[1],) if numbered else ("", name)
