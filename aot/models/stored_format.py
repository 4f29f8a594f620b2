"""The format that a checkpoint's weights are stored in, as its config.json says, and the products that multiply it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.core import types
from aot.core.constraints import one_line
from aot.core.element import ElementType
from aot.core.errors import CheckpointError, ShapeFileError
from aot.core.formats import SCALE_BLOCK
from aot.core.operation import Operation
from aot.core.packed_folder import FILE as PACKED_FILE
from aot.core.packed_folder import OF_EXPERTS, OTHER_NAMES, PACKED_FORMATS, read_folder
from aot.core.types import Types
from aot.core.weight_format import BLOCK_K, FORMATS, GPTQ_ZERO_OFFSETS, MXFP4, NVFP4, WeightFormat
from aot.models.configuration import FILE
from aot.models.linears import EXPERT, REPLICATED, Named
from aot.models.module_names import Modules, parts_of, places_of
from aot.models.quantization import LAYERS, MIXED, stated_quantization

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.models.configuration import Configuration

MAX_LABEL = 80
PACKED = "aot"
"""`quant_method` of a folder that `aot pack` wrote."""
WHOLE = ("lm_head", *REPLICATED)
"""Linears that are taken to be left in 16 bits, unless a configuration names them. An assumption."""
LINEAR = "Linear"
"""Compressed-tensors' name of all Linears."""
NONE = Modules(())
NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Keys of how many experts a layer of a mixture has."""


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
    kept: Modules = NONE
    """Modules that the configuration leaves in 16 bits."""
    is_of_experts: bool = False
    """Whether a mixture's experts alone are stored so, as GPT-OSS has them."""
    others: tuple[tuple[Modules, StoredFormat], ...] = ()
    """Modules that are stored otherwise, and how."""
    is_of_named: bool = False
    """Whether what is not among `others` is in 16 bits."""
    num_experts: int = 1
    """That a layer of a mixture has."""

    @property
    def is_packed(self) -> bool:
        """Say whether `aot pack` has written them."""
        return self.label.startswith(f"{PACKED}, ")

    def formats_of(self, named: Named) -> dict[StoredFormat, int]:
        """Return in which formats the weights of a name are stored, and how many in each; `PLAIN` is 16 bits.

        Weights that are computed as one may be stored in different formats: they are `APART`.
        """
        if not self.label:
            return {PLAIN: named.count}
        found = Counter[StoredFormat]()
        parts = parts_of(named)
        for places in zip(*(places_of(x, self.num_experts) for x in parts), strict=True):
            forms = {self._format_of(x.name, names) for x, (names, _) in zip(parts, places, strict=True)}
            found[forms.pop() if len(forms) == 1 else APART] += places[0][1]
        return dict(found)

    def _format_of(self, name: str, names: tuple[str, ...]) -> StoredFormat:
        """Return the format of one weight, of which `names` are what its module may be called."""
        if self.kept.have(names):
            return PLAIN
        other = next((form for modules, form in self.others if modules.have(names)), None)
        if other is not None:
            return other
        is_whole = name.rpartition(" ")[2] in WHOLE or (self.is_of_experts and not name.startswith(EXPERT))
        return PLAIN if is_whole or self.is_of_named else self

    def types_for(self, element: ElementType) -> Types | None:
        """Return the element types of the products with activations of an element type; None where there are none."""
        if self.weight is None:  # x is rounded, and D has the type that it had
            wanted = None if self.types is None else replace(self.types, d=element)
            return next((x.types for x in Operation if x.types == wanted), None)
        return next((x.types for x in Operation if (x.types.weight, x.types.a) == (self.weight, element)), None)

    @property
    def why_absent(self) -> str:
        """Say why no product multiplies the weights."""
        if self.refusal:
            return self.refusal
        if self.weight is not None:
            return f"no operation multiplies {self.weight.name}, though `aot pack` packs it"
        if self.types is not None:
            return (
                f"no operation gives another type than {self.types.d.value} of this format; --dtype says which is asked"
            )
        return "no kernel multiplies weights of this format"


PLAIN = StoredFormat("")
APART = StoredFormat("", refusal="its parts are stored in different formats, and so are multiplied one by one")


def stored_format(config: Configuration) -> StoredFormat:
    """Read the format of a checkpoint from its configuration, and from what lies beside it.

    The keys are those that transformers, compressed-tensors and NVIDIA's ModelOpt write in `quantization_config`, or
    in a file of their own. What is not known is named, and has no products.

    Raises:
        ShapeFileError: a file beside the configuration cannot be read.
    """
    found = stated_quantization(config.values, config.beside)
    if not isinstance(found, dict):
        return PLAIN
    method = str(found.get("quant_method", "quantised"))
    read = {"compressed-tensors": _groups, "modelopt": _modelopt, "modelopt_fp4": _modelopt, PACKED: _packed}
    form = read.get(method, _of_one)(method, found)
    if method == PACKED:
        form = _by_list(form, Path(config.where))
    experts = next((x for x in map(config.values.get, NUM_EXPERTS) if type(x) is int and x > 0), 1)
    return replace(form, label=one_line(form.label, MAX_LABEL), kept=_kept(found), num_experts=experts)


def _kept(found: Mapping[str, Any]) -> Modules:
    """Return what is left in 16 bits."""
    listed = (found.get(key) for key in ("ignore", "modules_to_not_convert", "exclude_modules"))
    names = [x for those in listed if isinstance(those, list) for x in those]
    apart = found.get("dynamic")  # GPTQModel's: what begins with -: is not quantised
    names += [f"re:{x[2:]}" for x in (apart if isinstance(apart, dict) else ()) if x.startswith("-:")]
    return Modules(names)


def _named(method: str, label: str, computed: Types | None, weight: tuple[WeightFormat | None, str]) -> StoredFormat:
    return StoredFormat(f"{method}, {label}" if label else method, computed, *weight)


def _of_one(method: str, found: Mapping[str, Any]) -> StoredFormat:
    """Read what has one format: of GPTQ with some modules apart, what these have."""
    if method in ("fp8", "fbgemm_fp8"):
        return _named(method, *_fp8(found), (None, ""))
    is_mxfp4 = method == MXFP4.name
    weight = _words(method, found) if _has_words(method, found) else (MXFP4 if is_mxfp4 else None, "")
    form = replace(_named(method, *_bits(found), weight), is_of_experts=is_mxfp4)
    apart = found.get("dynamic")
    others = [
        (Modules([f"re:{x[2:]}"]), _of_one(method, {**found, **changed, "dynamic": None}))
        for x, changed in (apart.items() if isinstance(apart, dict) else ())
        if not x.startswith("-:") and isinstance(changed, dict) and changed
    ]
    return replace(form, others=tuple(others))


def _has_words(method: str, found: Mapping[str, Any]) -> bool:
    return method in {"gptq", "awq"} and _either(found, "bits", "w_bit") == 4


def _either(found: Mapping[str, Any], key: str, awq: str) -> Any:
    """Return what one of two keys has, of which AutoAWQ writes the second into a file of its own."""
    return found.get(key, found.get(awq))


def _groups(method: str, found: Mapping[str, Any]) -> StoredFormat:
    """Read compressed-tensors' groups of layers: those of all Linears, and those of layers that are named."""
    groups = found.get("config_groups")
    held = [x for x in groups.values() if isinstance(x, dict)] if isinstance(groups, dict) else []
    default, others = None, list[tuple[Modules, StoredFormat]]()
    for group in held:
        form = _named(method, *_compressed(group), _compressed_weight(group))
        targets = group.get("targets")
        names = [x for x in targets if x != LINEAR] if isinstance(targets, list) else []
        if names:
            others.append((Modules(names), form))
        if default is None and len(names) == (len(targets) - 1 if isinstance(targets, list) else 0):
            default = form
    if not held:  # as `aot pack` then reads tensors
        layout = str(found.get("format") or "of no stated groups")
        default = _named(method, layout, *OF_LAYOUT.get(layout, (None, (None, ""))))
    return _with_others(method, default, others, _compressed({}))


def _with_others(
    method: str,
    default: StoredFormat | None,
    others: Sequence[tuple[Modules, StoredFormat]],
    unknown: tuple[str, Types | None],
) -> StoredFormat:
    """Return a format of all modules but for some, or of these alone."""
    if default is None and not others:
        return _named(method, *unknown, (None, ""))
    if default is not None:
        return replace(default, others=tuple(others))
    labels = dict.fromkeys(form.label.removeprefix(f"{method}, ") for _, form in others)
    return StoredFormat(f"{method}, {'; '.join(labels)}", others=tuple(others), is_of_named=True)


def _words(method: str, found: Mapping[str, Any]) -> tuple[WeightFormat | None, str]:
    if found.get("desc_act") is True:
        return None, "its groups may be in another order along k (desc_act), which `aot pack` then refuses"
    layout = found.get("version") if method == "awq" else found.get("checkpoint_format", found.get("format"))
    if str(layout or method).lower() not in {"awq": ("awq", "gemm"), "gptq": tuple(GPTQ_ZERO_OFFSETS)}[method]:
        return None, f"its words lie as {one_line(str(layout), MAX_LABEL)} has them, which `aot pack` refuses"
    has_zeros = found.get("zero_point", True) if method == "awq" else not found.get("sym", True)
    group = _either(found, "group_size", "q_group_size")
    return _int4(BLOCK_K if group is None else group, has_zeros=bool(has_zeros))


def _compressed_weight(group: Mapping[str, Any]) -> tuple[WeightFormat | None, str]:
    weights = group.get("weights")
    weights = weights if isinstance(weights, dict) else {}
    has_wide_inputs = "input_activations" in group and group["input_activations"] is None
    if (weights.get("num_bits"), weights.get("type")) == (8, "float") and has_wide_inputs:
        return PACKED_FORMATS[OTHER_NAMES["e4m3"]] if weights.get("strategy") != "block" else None, ""
    if weights.get("num_bits") != 4:
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


def _compressed(group: Mapping[str, Any]) -> tuple[str, Types | None]:
    """Read a group of compressed-tensors."""
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
    return label, computed if strategy in (None, "tensor", "channel") else None  # ModelOpt says none of a tensor's


OF_LAYOUT: dict[str, tuple[Types | None, tuple[WeightFormat | None, str]]] = {
    "nvfp4-pack-quantized": (None, (NVFP4, "")),
    "mxfp4-pack-quantized": (None, (MXFP4, "")),
    "float-quantized": (types.E4M3_BF16, (None, "")),
    "int-quantized": (types.INT8_BF16, (None, "")),
}
"""Compressed-tensors' `format`, where no group says more: what multiplies such weights, or what they are packed as."""
ALGORITHMS: dict[str, tuple[Types | None, WeightFormat | None, str]] = {
    "FP8": (types.E4M3_BF16, None, ""),
    "FP8_PER_CHANNEL_PER_TOKEN": (types.E4M3_BF16, None, ""),
    "FP8_PB_WO": (types.E4M3_BF16_BLOCK, None, ""),
    "NVFP4": (None, NVFP4, ""),
    "W4A16_NVFP4": (None, NVFP4, ""),
    "NVFP4_AWQ": (None, None, "x has factors of its own (pre_quant_scale), which `aot pack` refuses: fold them in"),
    "MXFP4": (None, MXFP4, ""),
}
"""ModelOpt's `quant_algo`, by name: what multiplies such weights and inputs, what weights are packed as, or why not."""


def _modelopt(method: str, found: Mapping[str, Any]) -> StoredFormat:
    """Read NVIDIA's ModelOpt: the algorithm has a name, that of all modules or that of each."""
    algorithm = str(found.get("quant_algo") or "of no stated algorithm")
    if algorithm != MIXED:
        computed, weight, refusal = ALGORITHMS.get(algorithm, (None, None, ""))
        return _named(method, algorithm, computed, (weight, refusal))
    layers = found.get(LAYERS)
    if not isinstance(layers, dict):
        return _groups(method, found)
    names: dict[str, list[str]] = defaultdict(list)
    for name, what in layers.items():
        names[str(what.get("quant_algo") if isinstance(what, dict) else what)].append(name)
    others = [(Modules(those), _modelopt(method, {"quant_algo": x})) for x, those in names.items() if x != MIXED]
    return _with_others(method, None, others, (MIXED, None))


def _packed(method: str, found: Mapping[str, Any]) -> StoredFormat:
    """Read what `aot pack` writes: the format of most Linears."""
    known = {"fp8": types.E4M3_BF16, "fp8_block": types.E4M3_BF16_BLOCK, "int8": types.INT8_BF16}
    form = str(found.get("format"))
    read = _named(method, f"packed as {form}", known.get(form), (PACKED_FORMATS.get(form), ""))
    return replace(read, is_of_experts=found.get("of") == OF_EXPERTS)


def _by_list(form: StoredFormat, config: Path) -> StoredFormat:
    """Return a folder's own format of each Linear, where its list lies beside the configuration."""
    if config.name != FILE or not config.with_name(PACKED_FILE).is_file():
        return form
    try:
        layers = read_folder(config.parent).layers
    except CheckpointError as error:
        raise ShapeFileError(str(error)) from error
    names: dict[str, list[str]] = defaultdict(list)
    for name, layer in layers.items():
        names[layer.format].append(name)
    others = [(Modules(those), _packed(PACKED, {"format": x})) for x, those in names.items()]
    return replace(form, others=tuple(others), is_of_named=True, is_of_experts=False)


def _bits(found: Mapping[str, Any]) -> tuple[str, Types | None]:
    """Read what has bits and groups: AWQ, GPTQ, MXFP4, bitsandbytes and others. None of them has products."""
    bits = _either(found, "bits", "w_bit") or (
        4 if found.get("load_in_4bit") else 8 if found.get("load_in_8bit") else 0
    )
    group = _either(found, "group_size", "q_group_size")
    return (f"{bits} bits" if bits else "") + (f" in groups of {group}" if bits and group else ""), None


def _joined(block: object) -> str:
    return " x ".join(map(str, block)) if isinstance(block, list) else str(block)
