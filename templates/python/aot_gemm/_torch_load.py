"""`load_quantized`: a folder of packed weights into a model, whose Linears and experts become quantised ones."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from . import errors
from ._packed_folder import PackedFolder, PackedLayer, check_shard, name_of, read_folder
from ._safetensors_file import StoredTensor, read_header
from ._torch_formats import format_of
from ._torch_load_experts import Experts, find_experts, older_names
from ._torch_load_model import model_of, renamed, without_ignored
from ._torch_modules import DEVICES, DTYPES, Linear
from ._torch_narrow import BUFFERS, INPUT_SCALE, NarrowModule
from ._torch_promises import promise
from ._torch_quantized import QuantizedLinear, quantized_state
from ._torch_quantized_experts import QuantizedExperts, experts_state
from ._torch_stored import ELEMENTS, read

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

_WIDE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types that are rounded to a parameter's, as load_state_dict does."""
MAX_NAMED = 8
"""Most names that an error lists of one kind."""


def load_quantized(
    model: Any,
    folder: Any,
    *,
    device: Any = None,
    dtype: Any = None,
    constant: bool = False,
    verify: bool = True,
) -> Any:
    """Load a folder that `aot pack` wrote into a model: its packed Linears and experts become quantised ones.

        model = aot_gemm.torch.load_quantized(AutoConfig.from_pretrained(folder), folder, device="cuda")
        model = aot_gemm.torch.load_quantized(lambda: MyModel(sizes), folder)
        aot_gemm.torch.load_quantized(model, folder)

    Each Linear that the folder has packed gets the class QuantizedLinear, which `quantize` gives, and stays the same
    object; its weight of 16 bits is never made, or freed. So do modules of a mixture's experts, as transformers 5 has
    them: QuantizedExperts, of stacks, or of an expert's Linears, which are joined and stacked. Everything else is
    loaded as `load_state_dict` does, by the same names: into memory of the model's own, or of the meta device in new
    memory. Files are mapped, and read a tensor at a time. What can be wrong of the folder, of names, shapes and types
    is found before the model changes.

    Modules that this wheel has no tuned products for are computed by torch from unpacked weights, slowly; a warning
    says which, and why.

    Args:
        model: an nn.Module, of the meta device too; or a function that makes one, which is called so that no memory is
            taken for parameters; or a configuration of transformers, or the path of one, whose first architecture
            is made so, in evaluation mode. No code of a checkpoint is run. A model of your own that is wholly on the
            meta device has to have all its buffers in the folder.
        folder: what `aot pack` wrote.
        device: where everything is put; by default where it is, and on the CPU what is of the meta device.
        dtype: of a model that is made of a configuration; by default that of int4's factors, or the configuration's.
        constant: the promise that `patch` has, of the packed weights.
        verify: whether the files are compared with their SHA-256 first, which reads them once more.

    Returns:
        The model.

    Raises:
        CheckpointError: the folder is damaged; or names, shapes or types do not go with the model: which are missing
            and unexpected, as by load_state_dict.
        OperandError: the model is nothing of that.
        UnsupportedError: transformers is not installed, or has no such architecture.
    """
    path = Path(folder)
    packed = read_folder(path)
    stored = _stored(path, packed)
    made = model_of(model, packed, dtype)
    packed, stored = renamed(made, packed, stored)
    packed, stored = without_ignored(made, packed, stored)
    packed, stored = older_names(dict(made.named_modules(remove_duplicate=False)), packed, stored)
    plan = _plan(made, packed, stored)
    if verify:
        for name, shard in packed.shards.items():
            check_shard(path / name, shard)
    reasons = _place(made, plan, device, constant=constant)
    if reasons:
        warnings.warn(_slow_text(reasons, len(plan.layers) + len(plan.experts)), stacklevel=2)
    return made


def _slow_text(reasons: dict[str, str], count: int) -> str:
    """Say how many of all packed modules torch computes, and why."""
    found = Counter(reasons.values()).most_common(3)
    texts = "; ".join(f"{number} of them: {reason}" for reason, number in found)
    return f"torch computes {len(reasons)} of {count} packed modules from unpacked weights, slowly: {texts}"


def _stored(folder: Path, packed: PackedFolder) -> dict[str, StoredTensor]:
    """Return the tensors of all files by name."""
    found: dict[str, StoredTensor] = {}
    for name in packed.shards:
        for key, tensor in read_header(folder / name).items():
            if key in found:
                raise errors.CheckpointError(f"{folder}: {key!a} is in two files; expected it once; pack again")
            found[key] = tensor
    for layer, what in packed.layers.items():
        for end, dtype, shape in what.tensors:
            tensor = found.get(name_of(layer, end))
            if tensor is None or (tensor.dtype, tensor.shape) != (dtype, shape):
                name = name_of(layer, end)
                got = f"there is no tensor {name!a}" if tensor is None else tensor.text
                raise errors.CheckpointError(
                    f"{folder}: {got}; expected {dtype} of {shape}, as {what.format} of {what.shape} has; pack again"
                )
    return found


# What goes where.


class _Plan(NamedTuple):
    layers: dict[str, tuple[PackedLayer, Any, Mapping[str, StoredTensor]]]
    """Packed Linears by name: what each is, its module, and its tensors."""
    experts: dict[str, Experts]
    """Packed mixtures of experts by the names of their modules."""
    plain: list[tuple[StoredTensor, Any]]
    """Other tensors, and the model's own that each is loaded into."""


def _plan(model: Any, packed: PackedFolder, stored: dict[str, StoredTensor]) -> _Plan:
    """Compare a model with a folder (CheckpointError)."""
    problems: dict[str, list[str]] = defaultdict(list)
    modules = dict(model.named_modules(remove_duplicate=False))
    layers, taken = {}, {name_of(x, end) for x, layer in packed.layers.items() for end, *_ in layer.tensors}
    experts, theirs, reasons = find_experts(modules, packed.layers, stored)
    problems["packed experts that the model has no place for"] += reasons
    for name, layer in packed.layers.items():
        if name in theirs:
            continue
        ends = {end: stored[name_of(name, end)] for end, *_ in layer.tensors}
        reason = _why_no_place(modules.get(name), layer)
        if reason:
            problems["packed Linears that the model has no place for"].append(f"{name} ({reason})")
        else:
            layers[name] = (layer, modules[name], ends)
    layers |= _sharing(modules, layers, stored)
    wanted = _wanted(model, modules, layers, experts)
    plain, loaded = [], set()
    for tensor in stored.values():
        if tensor.name in taken:
            continue
        if tensor.name not in wanted:
            if not _is_no_bias(tensor, {*layers, *theirs}):
                problems["unexpected"].append(tensor.name)
            continue
        own = wanted[tensor.name]
        reason = _why_not_loaded(tensor, own)
        if reason:
            problems["of another shape or type"].append(f"{tensor.name} ({reason})")
        plain.append((tensor, own))
        loaded.add(id(own))
    problems["missing"] += [name for name, own in wanted.items() if id(own) not in loaded]
    _refuse_meta(model, wanted, problems)
    texts = [f"{len(names)} {kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if texts:
        raise errors.CheckpointError(
            f"load_quantized: the folder and the model do not go together: {'; '.join(texts)}; expected the same "
            "names, shapes and types; pass the model that the checkpoint is of"
        )
    return _Plan(layers, experts, plain)


def _sharing(modules: Mapping[str, Any], layers: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Linears whose weight is that of one that is packed, and of which the folder has none of their own."""
    weights = ((held[1]._parameters.get("weight"), held) for held in layers.values())  # noqa: SLF001
    packed = {id(weight): held for weight, held in weights if weight is not None}
    found = {}
    for name, module in modules.items():
        held = packed.get(id(module._parameters.get("weight")))  # noqa: SLF001
        if held is None or module is held[1] or name in layers or name_of(name, "weight") in stored:
            continue
        if not _why_no_place(module, held[0]):
            found[name] = (held[0], module, held[2])
    return found


def _is_no_bias(tensor: StoredTensor, layers: Container[str]) -> bool:
    """Say whether a tensor is a bias of zeros of a packed Linear that has none, as some quantisers write them."""
    name, _, end = tensor.name.rpartition(".")
    return end == "bias" and name in layers and not read(tensor, "cpu").any()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(x if x.isprintable() else ascii(x) for x in names[:MAX_NAMED]) + more


def _wanted(
    model: Any, modules: Mapping[str, Any], layers: Mapping[str, Any], experts: Mapping[str, Experts]
) -> dict[str, Any]:
    """Return what the model's state dict has, without the weights that are packed, under all names of their modules."""
    packed = {id(module): ("weight", *BUFFERS) for _, module, _ in layers.values()}
    packed |= {id(x.module): x.names for x in experts.values()}
    gone = {name_of(name, end) for name, module in modules.items() for end in packed.get(id(module), ())}
    found = {name: x for name, x in model.state_dict(keep_vars=True).items() if isinstance(x, torch.Tensor)}
    return {name: x for name, x in found.items() if name not in gone}


def _why_no_place(module: Any, layer: PackedLayer) -> str:
    if not isinstance(module, nn.Linear):
        return "there is no such module" if module is None else f"it is a {type(module).__name__}, no nn.Linear"
    if type(module) not in {nn.Linear, Linear, QuantizedLinear}:
        return f"it is a {type(module).__qualname__}, whose forward may be its own"
    if type(module) is not QuantizedLinear and "weight" not in dict(module.named_parameters(recurse=False)):
        return "its weight is computed"
    shape = (module.out_features, module.in_features)
    if shape != layer.shape:
        return f"it is {shape}, and the folder has {layer.shape}"
    dtype = module.weight.dtype
    expected = DTYPES if layer.dtype is None else (getattr(torch, layer.dtype),)
    if dtype not in expected:
        names = " or ".join(str(x) for x in expected)
        return f"it is of {dtype}, and the folder is for {names}: make the model of that, or pack with --dtype"
    return ""


def _why_not_loaded(tensor: StoredTensor, own: Any) -> str:
    if tensor.shape != tuple(own.shape):
        return f"{tensor.shape}, and the model has {tuple(own.shape)}"
    dtype = ELEMENTS.get(tensor.dtype)
    if dtype is not own.dtype and not (dtype in _WIDE and own.dtype in _WIDE):
        return f"{tensor.dtype}, and the model has {own.dtype}"
    return ""


def _refuse_meta(model: Any, wanted: Mapping[str, Any], problems: dict[str, list[str]]) -> None:
    """Name buffers of the meta device that no file has, as of tables that a model computes where it is made."""
    known = {id(x) for x in wanted.values()}
    unset = [
        name for name, x in model.named_buffers() if x.is_meta and id(x) not in known and not _is_packed(model, name)
    ]
    if unset:
        problems["on the meta device and in no checkpoint (pass a function that makes the model instead)"] += unset


def _is_packed(model: Any, name: str) -> bool:
    parent, _, end = name.rpartition(".")
    return end in (*BUFFERS, INPUT_SCALE) and isinstance(model.get_submodule(parent), NarrowModule)


# Loading.


def _owners(model: Any) -> dict[int, list[tuple[Any, str, str]]]:
    """Return which modules have each parameter and buffer, and as what."""
    found = defaultdict(list)
    for module in model.modules():
        for kind in ("_parameters", "_buffers"):
            for key, x in getattr(module, kind).items():
                if x is not None:
                    found[id(x)].append((module, kind, key))
    return found


def _is_at(tensor: Any, device: torch.device) -> bool:
    """Say whether a tensor is on a device, of which "cuda" names whichever GPU."""
    return tensor.device.type == device.type and device.index in {None, tensor.device.index}


def _place_plain(owners: dict[int, list[tuple[Any, str, str]]], plan: _Plan, device: Any) -> None:
    """Load what is not packed."""
    for tensor, own in plan.plain:
        if not own.is_meta and (device is None or _is_at(own, torch.device(device))):
            own.copy_(read(tensor, own.device))
            continue
        held = read(tensor, device or ("cpu" if own.is_meta else own.device), own.dtype)
        if isinstance(own, nn.Parameter):
            held = nn.Parameter(held, requires_grad=own.requires_grad)
        for module, kind, key in owners[id(own)]:
            getattr(module, kind)[key] = held


@torch.no_grad()
def _place(model: Any, plan: _Plan, device: Any, *, constant: bool) -> dict[str, str]:
    """Load everything; return the names of modules that have no kernels, and why."""
    _place_plain(_owners(model), plan, device)
    reasons, known = {}, {}
    for name, (layer, module, tensors) in plan.layers.items():
        own = module.qweight if isinstance(module, QuantizedLinear) else module._parameters.get("weight")  # noqa: SLF001
        place = device or ("cpu" if own is None or own.is_meta else own.device)
        key = tensors["qweight"].name, str(place)
        if key not in known:  # else another Linear has the same weight
            known[key] = [read(tensors[end], place) for end in BUFFERS]
        qweight, scale = known[key]
        state = quantized_state(module, layer.format, module.weight, qweight, scale)
        vars(module).update(state)
        object.__setattr__(module, "__class__", QuantizedLinear)
        if constant and qweight.device.type in DEVICES:
            promise(qweight)
        n, k = layer.shape
        reason = format_of(layer.format).why_not(n, k, module.weight_dtype, bias=module.bias is not None)
        if reason is not None:
            reasons[name] = reason
    for name, (module, kind, _) in plan.experts.items():
        vars(module).update(experts_state(module, kind, plan.experts[name].load(device)))
        object.__setattr__(module, "__class__", QuantizedExperts)
        if module.kernels.reason:
            reasons[name] = module.kernels.reason
    if device is not None:
        model.to(device)
    return reasons
