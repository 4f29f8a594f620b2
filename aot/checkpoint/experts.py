"""Weights of a mixture's experts in a checkpoint: stacks of all, as GPT-OSS has them, and Linears that go together.

GPT-OSS's experts that were made Linears, so that they could be quantised, become the stacks again that its modules
have: row 2 j of the first weight is row j of the gate, and row 2 j + 1 that of the linear half, and so are the biases.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aot.checkpoint.stored import EXPERT_ENDS, WIDE, StackedTensor, Stored, StoredLayer
from aot.core.errors import CheckpointError, FormatError
from aot.core.packed_folder import PackedLayer
from aot.core.safetensors_file import short
from aot.core.weight_format import MXFP4

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from aot.core.safetensors_file import StoredTensor

BLOCK_BYTES = MXFP4.group // 2
"""Of the codes that a factor is of."""
STACKED = "experts of 16 bits in one tensor: copied as it is; quantize of the model that has them rounds them"
GPT_OSS = "gpt_oss"
"""The `model_type` of a configuration. Source: openai/gpt-oss-20b, config.json."""
STACKS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""GPT-OSS's stacks, and the Linears of an expert that are in them. Source: llm-compressor, modeling/gpt_oss.py and
modeling/moe/gpt_oss.py, of which the first has all experts of a layer in a list `experts` of their module's."""
_LINEAR = re.compile(r"((?:.*?\.)?experts)(?:\.experts)?\.(\d+)\.(gate_proj|up_proj|down_proj)")
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


@dataclass(frozen=True)
class Restacked:
    """The experts of GPT-OSS that a checkpoint has as Linears."""

    stacks: tuple[StoredLayer, ...]
    members: dict[str, StoredLayer]
    """The Linears that are in them, by name."""
    biases: dict[str, tuple[tuple[str, ...], ...]]
    """By the name of a stack, those of each expert's Linears."""


def restacked(layers: Mapping[str, StoredLayer], model_type: object) -> Restacked:
    """Return the stacks that Linears of experts are to become; of other models than GPT-OSS none.

    A mixture of which a Linear is left, or has another format or size than the others, stays as it is. Factors of
    inputs are dropped: experts with biases have none rounded.

    Args:
        layers: what is packed, by name.
        model_type: of the checkpoint's configuration.
    """
    places: dict[str, dict[tuple[int, str], StoredLayer]] = defaultdict(dict)
    for name, layer in layers.items() if model_type == GPT_OSS else ():
        found = _LINEAR.fullmatch(name)
        if found is not None:
            bare = replace(layer, packed=replace(layer.packed, input_scale=None))
            places[found[1]][int(found[2]), found[3]] = bare
    stacks: list[StoredLayer] = []
    members: dict[str, StoredLayer] = {}
    biases: dict[str, tuple[tuple[str, ...], ...]] = {}
    for prefix, linears in places.items():
        count = len({expert for expert, _ in linears})
        if count <= max(expert for expert, _ in linears):
            continue  # one is missing; a number may be as large as a name has room for
        parts = {x: [[linears.get((i, y)) for y in ends] for i in range(count)] for x, ends in STACKS.items()}
        made = {x: _stacked(f"{prefix}.{x}", each) for x, each in parts.items()}
        if None in made.values():
            continue
        stacks += [x for x in made.values() if x is not None]
        members |= {x.name: x for x in linears.values()}
        of_each = {
            x: tuple(tuple(y.name for y in those if y is not None) for those in each) for x, each in parts.items()
        }
        biases |= {f"{prefix}.{x}": names for x, names in of_each.items()}
    return Restacked(tuple(stacks), members, biases)


def _stacked(name: str, linears: Sequence[Sequence[StoredLayer | None]]) -> StoredLayer | None:
    """Return a stack of the weights of each expert, of one Linear or of two; None where they do not go together."""
    first = linears[0][0]
    if first is None or (len(linears[0]) > 1 and first.packed.format == "fp8_block"):  # a factor of many rows
        return None
    (n, k), weights = first.packed.matrix, list[StoredLayer]()
    tensors: dict[str, StoredTensor] = {}
    for expert, those in enumerate(linears):
        held = [replace(x, is_in_stack=True) for x in those if x is not None]
        if len(held) != len(those) or any((x.packed, x.stored) != (first.packed, first.stored) for x in held):
            return None
        tensors |= {f"{expert}.{i}.{end}": y for i, x in enumerate(held) for end, y in x.tensors.items()}
        packed = replace(first.packed, shape=(n * len(held), k))
        one = replace(held[0], name=f"{name}, expert {expert}", packed=packed)
        weights.append(one if len(held) == 1 else replace(one, halves=tuple(held)))
    packed = replace(first.packed, shape=(len(weights), n * len(linears[0]), k))
    return StoredLayer(name, first.stored, packed, tensors, linears=tuple(weights))


def stacked_biases(found: Restacked, plain: Sequence[StoredTensor]) -> tuple[StoredTensor | StackedTensor, ...]:
    """Return tensors that are copied, of which the biases of experts' Linears become those of stacks.

    Raises:
        CheckpointError: a Linear has none where another has, or one of another size or type.
    """
    tensors, made = {x.name: x for x in plain}, []
    for name, linears in found.biases.items():
        each = tuple(tuple(f"{x}.bias" for x in those) for those in linears)
        known = [tensors[x] for those in each for x in those if x in tensors]
        if not known:
            continue
        first = known[0]
        are_alike = len(first.shape) == 1 and all((x.dtype, x.shape) == (first.dtype, first.shape) for x in known)
        if not are_alike or len(known) != sum(map(len, each)):
            raise CheckpointError(
                f"{first.file}: {first.text}, and not each Linear of its mixture has such a bias; expected one of one "
                "size and type of all, or none; fetch the checkpoint's files again"
            )
        made.append(StackedTensor(f"{name}_bias", tuple(tuple(tensors.pop(x) for x in those) for those in each)))
    return (*tensors.values(), *made)
