"""The format that a checkpoint's weights are stored in, as its config.json says, and the products that multiply it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.core import types
from aot.core.constraints import one_line
from aot.core.formats import SCALE_BLOCK
from aot.core.types import Types
from aot.models.linears import REPLICATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.models.configuration import Configuration

MAX_LABEL = 80
WHOLE = ("lm_head", *REPLICATED)
"""Linears that are taken to be left in 16 bits. An assumption: configurations name modules, not these."""


@dataclass(frozen=True)
class StoredFormat:
    """How a checkpoint's weights are stored."""

    label: str
    """Such as `compressed-tensors, 4 bits in groups of 128`; empty where they are stored as they are computed with."""
    types: Types | None = None
    """The element types of the products that take weights and activations so; None where there are none."""

    def holds(self, name: str) -> bool:
        """Say whether the weights of a name, or of names joined by commas, are stored so."""
        return bool(self.label) and not all(x.rpartition(" ")[2] in WHOLE for x in name.split(", "))


PLAIN = StoredFormat("")


def stored_format(config: Configuration) -> StoredFormat:
    """Read the format of a checkpoint from its configuration.

    The keys are those that transformers, compressed-tensors and NVIDIA's ModelOpt write in `quantization_config`. What
    is not known is named, and has no products.
    """
    found = config.values.get("quantization_config")
    if not isinstance(found, dict):
        return PLAIN
    method = str(found.get("quant_method", "quantised"))
    read = {"fp8": _fp8, "compressed-tensors": _compressed, "modelopt": _modelopt, "modelopt_fp4": _modelopt}
    label, computed = read.get(method, _bits)(found)
    return StoredFormat(one_line(f"{method}, {label}" if label else method, MAX_LABEL), computed)


def _fp8(found: Mapping[str, Any]) -> tuple[str, Types | None]:
    """Read transformers' `fp8`: e4m3 with a factor for each block of a weight, or for the whole of it."""
    block = found.get("weight_block_size")
    if block is None:
        return "e4m3", types.E4M3_BF16
    is_ours = block == [SCALE_BLOCK, SCALE_BLOCK]
    return f"e4m3 in blocks of {_joined(block)}", types.E4M3_BF16_BLOCK if is_ours else None


def _compressed(found: Mapping[str, Any]) -> tuple[str, Types | None]:
    """Read compressed-tensors: the first group of layers stands for all."""
    groups = found.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    group = first if isinstance(first, dict) else {}
    weights, inputs = (x if isinstance(x, dict) else {} for x in (group.get("weights"), group.get("input_activations")))
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    label = f"{bits} bits of type {kind}" + (f" by {strategy}" if strategy else "")
    label += f" of {weights['group_size']}" if weights.get("group_size") else ""
    if bits != 8 or inputs.get("num_bits") != bits:
        return label + ("" if inputs else ", activations in 16 bits"), None
    if strategy == "block":
        block = weights.get("block_structure")
        is_ours = kind == "float" and block in ([SCALE_BLOCK, SCALE_BLOCK], f"{SCALE_BLOCK}x{SCALE_BLOCK}")
        return f"{label} of {_joined(block)}", types.E4M3_BF16_BLOCK if is_ours else None
    computed = {"float": types.E4M3_BF16, "int": types.INT8_BF16}.get(str(kind))
    return label, computed if strategy in ("tensor", "channel") else None


def _modelopt(found: Mapping[str, Any]) -> tuple[str, Types | None]:
    """Read NVIDIA's ModelOpt: the algorithm has a name."""
    algorithm = str(found.get("quant_algo") or "of no stated algorithm")
    return algorithm, types.E4M3_BF16 if algorithm == "FP8" else None


def _bits(found: Mapping[str, Any]) -> tuple[str, Types | None]:
    """Read what has bits and groups: AWQ, GPTQ, MXFP4, bitsandbytes and others. None of them has products."""
    bits = found.get("bits", 4 if found.get("load_in_4bit") else 8 if found.get("load_in_8bit") else None)
    group = found.get("group_size")
    return (f"{bits} bits" if bits else "") + (f" in groups of {group}" if bits and group else ""), None


def _joined(block: object) -> str:
    return " x ".join(map(str, block)) if isinstance(block, list) else str(block)
