"""The format that a checkpoint's weights are stored in, as its config.json says, and the products that multiply it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.core import types
from aot.core.constraints import one_line
from aot.core.element import ElementType
from aot.core.formats import SCALE_BLOCK
from aot.core.operation import Operation
from aot.core.packed_folder import OF_EXPERTS, PACKED_FORMATS
from aot.core.types import Types
from aot.core.weight_format import BLOCK_K, FORMATS, GPTQ_ZERO_OFFSETS, MXFP4, NVFP4, WeightFormat
from aot.models.linears import EXPERT, REPLICATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.models.configuration import Configuration

MAX_LABEL = 80
PACKED = "aot"
"""`quant_method` of a folder that `aot pack` wrote."""
WHOLE = ("lm_head", *REPLICATED)
"""Linears that are taken to be left in 16 bits. An assumption: configurations name modules, not these."""


@dataclass(frozen=True)
class StoredFormat:
    """How a checkpoint's weights are stored."""

    label: str
    """Such as `compressed-tensors, 4 bits in groups of 128`; empty where they are stored as they are computed with."""
    types: Types | None = None
    """The element types of the products that take weights and activations so; None where there are none."""
    weight: WeightFormat | None = None
    """What the weights are packed as beside activations of 16 bits; None where they are not."""
    refusal: str = ""
    """Why weights are not packed; empty where they are, or where nothing more is known than the label."""
    kept: tuple[str, ...] = ()
    """Linears that the configuration leaves in 16 bits, by the last part of their names."""
    is_of_experts: bool = False
    """Whether a mixture's experts alone are stored so, as GPT-OSS has them."""

    @property
    def is_packed(self) -> bool:
        """Say whether `aot pack` has written them."""
        return self.label.startswith(f"{PACKED}, ")

    def holds(self, name: str) -> bool:
        """Say whether the weights of a name, or of names joined by commas, are stored so."""
        names = [x.rpartition(" ")[2].rpartition(".")[2] for x in name.split(", ")]
        if self.is_of_experts and not name.startswith(EXPERT):
            return False
        return bool(self.label) and not all(x in {*WHOLE, *self.kept} for x in names)

    def types_for(self, element: ElementType) -> Types | None:
        """Return the element types of the products with activations of an element type; None where there are none."""
        if self.weight is None:
            return self.types
        return next((x.types for x in Operation if (x.types.weight, x.types.a) == (self.weight, element)), None)

    @property
    def why_absent(self) -> str:
        """Say why no product multiplies the weights."""
        if self.refusal:
            return self.refusal
        if self.weight is not None:
            return f"no operation multiplies {self.weight.name}, though `aot pack` packs it"
        return "no kernel multiplies weights of this format"


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
    read[PACKED] = _packed
    label, computed = read.get(method, _bits)(found)
    weight, refusal = _weight(method, found)
    text = one_line(f"{method}, {label}" if label else method, MAX_LABEL)
    of_experts = method == MXFP4.name or found.get("of") == OF_EXPERTS
    return StoredFormat(text, computed, weight, refusal, _kept(found), of_experts)


def _kept(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the last parts of names that are left in 16 bits everywhere, not in some layers alone."""
    names: set[str] = set()
    for key in ("ignore", "modules_to_not_convert", "exclude_modules"):
        listed = found.get(key)
        for name in listed if isinstance(listed, list) else ():
            if isinstance(name, str) and not any(x.isdigit() for x in name):
                names.add(name.removeprefix("re:").rstrip("$*").rpartition(".")[2])
    return tuple(sorted(names - {""}))


def _weight(method: str, found: Mapping[str, Any]) -> tuple[WeightFormat | None, str]:
    """Return what weights beside activations of 16 bits are packed as, or why they are not."""
    if method in {"gptq", "awq"} and found.get("bits", found.get("w_bit")) == 4:
        return _words(method, found)
    if method == "compressed-tensors":
        return _compressed_weight(found)
    if method == PACKED:
        return PACKED_FORMATS.get(str(found.get("format"))), ""
    if method.startswith("modelopt"):
        return {"NVFP4": NVFP4, "MXFP4": MXFP4}.get(str(found.get("quant_algo")).split("_")[0]), ""
    return (MXFP4 if method == MXFP4.name else None), ""


def _words(method: str, found: Mapping[str, Any]) -> tuple[WeightFormat | None, str]:
    if found.get("desc_act") is True:
        return None, "its groups may be in another order along k (desc_act), which `aot pack` then refuses"
    layout = found.get("version") if method == "awq" else found.get("checkpoint_format", found.get("format"))
    if str(layout or method).lower() not in {"awq": ("awq", "gemm"), "gptq": tuple(GPTQ_ZERO_OFFSETS)}[method]:
        return None, f"its words lie as {one_line(str(layout), MAX_LABEL)} has them, which `aot pack` refuses"
    has_zeros = found.get("zero_point", True) if method == "awq" else not found.get("sym", True)
    return _int4(found.get("group_size", BLOCK_K), has_zeros=bool(has_zeros))


def _compressed_weight(found: Mapping[str, Any]) -> tuple[WeightFormat | None, str]:
    groups = found.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict) or weights.get("num_bits") != 4:
        return None, ""
    size = weights.get("group_size")
    if weights.get("type") == "float":
        return next((x for x in (NVFP4, MXFP4) if x.group == size), None), ""
    return _int4(size or -1, has_zeros=weights.get("symmetric") is False)


def _int4(group: object, *, has_zeros: bool) -> tuple[WeightFormat | None, str]:
    """Return int4 of a group, of which -1 is a whole row: several groups of 128 with one factor."""
    if type(group) is not int:
        return None, ""
    held = BLOCK_K if group == -1 or (group > 0 and group % BLOCK_K == 0) else group
    found = next((x for x in FORMATS if x.name == f"int4g{held}{'z' if has_zeros else ''}"), None)
    return found, "" if found else f"groups of {group} along k; expected 32, 64 or a multiple of {BLOCK_K}"


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


def _packed(found: Mapping[str, Any]) -> tuple[str, Types | None]:
    """Read what `aot pack` writes: the format of most Linears."""
    known = {"fp8": types.E4M3_BF16, "fp8_block": types.E4M3_BF16_BLOCK, "int8": types.INT8_BF16}
    form = str(found.get("format"))
    return f"packed as {form}", known.get(form)


def _bits(found: Mapping[str, Any]) -> tuple[str, Types | None]:
    """Read what has bits and groups: AWQ, GPTQ, MXFP4, bitsandbytes and others. None of them has products."""
    bits = found.get("bits", 4 if found.get("load_in_4bit") else 8 if found.get("load_in_8bit") else None)
    group = found.get("group_size")
    return (f"{bits} bits" if bits else "") + (f" in groups of {group}" if bits and group else ""), None


def _joined(block: object) -> str:
    return " x ".join(map(str, block)) if isinstance(block, list) else str(block)
