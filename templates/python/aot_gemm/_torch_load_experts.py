"""A mixture's experts of a packed folder: stacks as GPT-OSS has them, or Linears that become one, and where they go."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ._packed_folder import PackedFolder, PackedLayer, name_of
from ._torch_expert_kinds import WEIGHTS, Kind, are_experts, kind_of
from ._torch_formats import format_of
from ._torch_narrow import BUFFERS, INPUT_SCALE
from ._torch_quantized_experts import ExpertWeights, QuantizedExperts
from ._torch_rounded_experts import may_be_in_turns
from ._torch_stored import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._safetensors_file import StoredTensor

PARTS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""What the Linears of an expert are called: gate, linear half, and what follows. Source: transformers 5.17,
conversion_mapping.py."""
OLDER = {".block_sparse_moe.": ".mlp."}
"""Names of modules in checkpoints, of Mixtral's kind, and in transformers 5. Source: the same."""
_NUMBERED = re.compile(r"(.+)\.(\d+)\.([^.]+)")


class Pieces(NamedTuple):
    """What a stack of weights is made of."""

    layer: PackedLayer
    """Format, shape and type of the whole."""
    tensors: tuple[tuple[Mapping[str, StoredTensor], ...], ...]
    """Of each expert the tensors of its weights, which are joined; or one stack of all experts alone."""
    is_interleaved: bool = False
    """Whether the rows of the two weights of an expert are put in turns, and not one behind the other."""

    def load(self, device: Any, dtype: Any) -> ExpertWeights:
        """Return the weights on a device, for inputs of a type."""
        form, shape = self.layer.format, self.layer.shape
        if self.is_stack:
            qweight, scale = (read(self.tensors[0][0][end], device) for end in BUFFERS)
            return ExpertWeights(qweight, scale, form, shape, dtype, input_scale=self.layer.input_scale)
        rows = shape[1] // len(self.tensors[0])
        each = ([(*(read(x[end], "cpu") for end in BUFFERS), rows) for x in those] for those in self.tensors)
        held: dict[str, Any] = {"is_interleaved": self.is_interleaved, "input_scale": self.layer.input_scale}
        return ExpertWeights.of_matrices(form, shape, dtype, device, each, **held)

    @property
    def is_stack(self) -> bool:
        """Say whether the folder has one stack of all experts."""
        return len(self.tensors) == 1 and len(self.tensors[0][0]["qweight"].shape) == 3

    @property
    def have_one_factor(self) -> bool:
        """Say whether the weights of each expert have the same float32 factors."""
        held = ([read(x["scale"], "cpu") for x in those] for those in self.tensors)
        return all(x.equal(found[0]) for found in held for x in found[1:])


class Experts(NamedTuple):
    """A mixture of a folder, and the module that it is loaded into."""

    module: Any
    kind: Kind
    pieces: dict[str, Pieces]
    """By the name of a weight."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return what of the module's state dict is not loaded, for it is packed."""
        return (*WEIGHTS, *(name_of(x, end) for x in WEIGHTS for end in (*BUFFERS, INPUT_SCALE)))

    def load(self, device: Any) -> dict[str, ExpertWeights]:
        """Return the packed weights by their names, on a device, or where the module's own are."""
        held = getattr(self.module, WEIGHTS[0])
        own, dtype = (held.qweight, held.weight_dtype) if isinstance(held, ExpertWeights) else (held, held.dtype)
        place = device or ("cpu" if own.is_meta else own.device)
        return {name: x.load(place, dtype) for name, x in self.pieces.items()}


def older_names(
    modules: Mapping[str, Any], packed: PackedFolder, stored: dict[str, StoredTensor]
) -> tuple[PackedFolder, dict[str, StoredTensor]]:
    """Return a folder by the names that a model has, where its checkpoint has those of an earlier transformers."""
    for old, new in OLDER.items():
        if not any(old in f".{name}." for name in modules):
            layers = {name.replace(old, new): x for name, x in packed.layers.items()}
            packed = replace(packed, layers=layers)
            held = (replace(x, name=x.name.replace(old, new)) for x in stored.values())
            stored = {x.name: x for x in held}
    return packed, stored


def find_experts(
    modules: Mapping[str, Any], layers: Mapping[str, PackedLayer], stored: Mapping[str, StoredTensor]
) -> tuple[dict[str, Experts], set[str], list[str]]:
    """Find which packed weights are those of modules of experts.

    Args:
        modules: the model's, by name.
        layers: the folder's.
        stored: its tensors.

    Returns:
        The mixtures by the names of their modules; the names of all weights that are theirs; and which of them cannot
        be loaded, and why.
    """
    given: dict[str, dict[tuple[int, str], str]] = defaultdict(dict)
    for name, layer in layers.items():
        parent, _, end = name.rpartition(".")
        numbered = _NUMBERED.fullmatch(name)
        if layer.experts:
            given[parent][-1, end] = name
        elif numbered is not None and name not in modules and _has_experts(modules.get(numbered[1])):
            given[numbered[1]][int(numbered[2]), numbered[3]] = name
    found, reasons = {}, []
    for parent, names in given.items():
        module = modules.get(parent)
        made = _experts_of(module, names, layers, stored) if module is not None else "there is no such module"
        if isinstance(made, str):
            reasons.append(f"{parent} ({made})")
        else:
            found[parent] = made
    return found, {x for names in given.values() for x in names.values()}, reasons


def _has_experts(module: Any) -> bool:
    return module is not None and (isinstance(module, QuantizedExperts) or are_experts(module))


def _experts_of(
    module: Any,
    names: Mapping[tuple[int, str], str],
    layers: Mapping[str, PackedLayer],
    stored: Mapping[str, StoredTensor],
) -> Experts | str:
    """Return what a module is loaded of; or why it cannot be."""
    is_packed = isinstance(module, QuantizedExperts)
    kind = module.kind if is_packed else kind_of(module)
    if isinstance(kind, str):
        return kind
    held = getattr(module, WEIGHTS[0])
    dtype = held.weight_dtype if is_packed else held.dtype
    expected = _expected(names, kind)
    lacking = [x for each in expected.values() for some in each for x in some if x not in names]
    others = sorted(set(names) - {x for each in expected.values() for some in each for x in some})
    for places, text in ((lacking, "the folder lacks"), (others, "the folder has beside them")):
        if places:
            expert, end = places[0]
            return f"{text} {end if expert < 0 else f'{expert}.{end}'}, and {len(places) - 1} more"
    if kind.interleaved and any(expert >= 0 for expert, _ in names):
        return "its gate is of even and odd columns, and the folder has gate and linear half apart"
    pieces = {}
    for weight, each in expected.items():
        made = _pieces(kind.shape_of(weight), [[names[x] for x in some] for some in each], layers, stored)
        if isinstance(made, str):
            return made
        if made.layer.dtype not in (None, str(dtype).removeprefix("torch.")):
            return f"it is of {dtype}, and the folder is for {made.layer.dtype}: make the model of that"
        pieces[weight] = made
    first, second = (pieces[x] for x in WEIGHTS)
    if may_be_in_turns(kind, first.layer.format, second.layer.input_scale) and not first.is_stack:
        pieces[WEIGHTS[0]] = first._replace(is_interleaved=first.have_one_factor)
    return Experts(module, kind, pieces)


def _expected(names: Mapping[tuple[int, str], str], kind: Kind) -> dict[str, list[list[tuple[int, str]]]]:
    """Return which of the names a module's weights are of: of each weight for each expert those that are joined."""
    if any(expert < 0 for expert, _ in names):
        return {weight: [[(-1, weight)]] for weight in WEIGHTS}
    gate, up, down = next((x for x in PARTS if any(end in x for _, end in names)), PARTS[0])
    every = range(kind.experts)
    return {WEIGHTS[0]: [[(i, gate), (i, up)] for i in every], WEIGHTS[1]: [[(i, down)] for i in every]}


def _pieces(
    shape: tuple[int, int, int],
    names: list[list[str]],
    layers: Mapping[str, PackedLayer],
    stored: Mapping[str, StoredTensor],
) -> Pieces | str:
    """Return what a stack is made of; or why it cannot be one."""
    (experts, n, k), those = shape, [x for some in names for x in some]
    first = layers[those[0]]
    joined = len(names[0])
    expected = replace(first, shape=shape if first.experts else (n // joined, k))
    scales = [layers[name].input_scale for name in those]
    known = [x for x in scales if x is not None]
    own = max(known) if len(known) == len(scales) else None
    for name in those:
        if replace(layers[name], input_scale=None) != replace(expected, input_scale=None):
            got, text = layers[name], f"{expected.format} {expected.shape} of factors of {expected.dtype}"
            return f"{name} is {got.format} {got.shape} of factors of {got.dtype}; expected {text}"
    quantum = format_of(first.format).quantum
    if joined > 1 and n // joined % quantum:
        return f"{those[0]} has {n // joined} rows; expected a multiple of {quantum}, by which two are joined"
    tensors = tuple(tuple({end: stored[name_of(x, end)] for end, *_ in layers[x].tensors} for x in y) for y in names)
    return Pieces(replace(first, shape=(experts, n, k), input_scale=own), tensors)
