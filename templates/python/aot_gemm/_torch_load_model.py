"""The model that `load_quantized` loads into: given, or made without memory for its parameters."""

from __future__ import annotations

import copy
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import errors
from ._packed_folder import name_of
from ._torch_modules import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ._packed_folder import PackedFolder
    from ._safetensors_file import StoredTensor


def model_of(model: Any, packed: PackedFolder, dtype: Any) -> Any:
    """Return the model that `load_quantized` was given, or make what it was told to make, without its parameters.

    Args:
        model: as `load_quantized` has it.
        packed: the folder.
        dtype: of a model that is made of a configuration, or None.

    Raises:
        OperandError: it is no model, nor what makes one.
        UnsupportedError: transformers is not installed, or has no such architecture.
    """
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, (str, Path)):
        model = _transformers().AutoConfig.from_pretrained(str(model), local_files_only=True, trust_remote_code=False)
    if hasattr(model, "architectures"):
        return _of_configuration(model, packed, dtype)
    if not callable(model):
        raise errors.OperandError(
            f"load_quantized: got a {type(model).__name__}; expected a torch.nn.Module, a function that makes one, or "
            "a configuration of transformers"
        )
    with _without_memory():
        made = model()
    if not isinstance(made, nn.Module):
        raise errors.OperandError(f"load_quantized: the function made a {type(made).__name__}; expected an nn.Module")
    return made


def without_ignored(
    model: Any, packed: PackedFolder, stored: dict[str, StoredTensor]
) -> tuple[PackedFolder, dict[str, StoredTensor]]:
    """Return a folder without what a model of transformers says that a checkpoint may have beside it.

    So DeepSeek-V3's has a layer that predicts further tokens, of which the model has none.
    """
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    own = model.state_dict(keep_vars=True)
    unknown = [x for x in patterns if not any(re.search(x, name) for name in own)]

    def is_kept(name: str) -> bool:
        return not any(re.search(x, name) for x in unknown)

    layers = {name: x for name, x in packed.layers.items() if is_kept(name_of(name, "weight"))}
    return replace(packed, layers=layers), {name: x for name, x in stored.items() if is_kept(name)}


def renamed(
    model: Any, packed: PackedFolder, stored: dict[str, StoredTensor]
) -> tuple[PackedFolder, dict[str, StoredTensor]]:
    """Return a folder by the names that a model of transformers has, where its checkpoint has others.

    So published ones of Gemma 3, Qwen2-VL and Nemotron-H do, which transformers renames while it loads them. What the
    model has under the checkpoint's name keeps it.
    """
    changes, others = _changes(model)
    if not changes and not others:
        return packed, stored
    own = {*model.state_dict(keep_vars=True), *(name for name, _ in model.named_modules(remove_duplicate=False))}

    def new(name: str) -> str:
        found = name
        for change in changes if name not in own else ():
            found = change(found)
        _refuse_others(others, name, found)
        return found

    def of_layer(name: str) -> str:
        if name in own:
            return name
        found = new(name_of(name, "weight"))
        return found.removesuffix(".weight") if found.endswith(".weight") else name

    names = {x: new(x) if layer.experts else of_layer(x) for x, layer in packed.layers.items()}
    taken = {name_of(x, end): name_of(names[x], end) for x, y in packed.layers.items() for end, *_ in y.tensors}
    held = (replace(x, name=taken.get(name) or new(name)) for name, x in stored.items())
    layers = {names[name]: x for name, x in packed.layers.items()}
    return replace(packed, layers=layers), {x.name: x for x in held}


JOINED = ("MergeModulelist", "Concatenate")
"""What transformers does to the Linears of experts while it loads them, and `load_quantized` too."""


def _refuse_others(others: Sequence[Any], name: str, found: str) -> None:
    """Refuse a tensor that transformers changes while it loads it: by its bits alone it is another."""
    for change in others:
        if change.rename_source_key(found)[1] is not None:
            how = ", ".join(type(x).__name__ for x in change.operations)
            raise errors.CheckpointError(
                f"load_quantized: transformers changes {name!a} while it loads it ({how}), which is not done here; "
                "expected tensors as the model has them; load the model of 16 bits by transformers, and `quantize` it"
            )


def _changes(model: Any) -> tuple[list[Callable[[str], str]], list[Any]]:
    """Return what transformers changes of the names in a checkpoint, in order, and what of tensors; of others nothing.

    Source: transformers 5.17, conversion_mapping.get_model_conversion_mapping; and 4.57,
    PreTrainedModel._checkpoint_conversion_mapping.
    """
    library = sys.modules.get("transformers")
    if library is None or not isinstance(model, getattr(library, "PreTrainedModel", ())):
        return [], []
    older = getattr(model, "_checkpoint_conversion_mapping", None) or {}
    try:
        found = import_module("transformers.conversion_mapping").get_model_conversion_mapping(model)
    except (ImportError, AttributeError):
        return ([partial(_substituted, older)] if older else []), []
    with_operations = [x for x in found if hasattr(x, "operations")]
    names = [lambda name, x=x: x.rename_source_key(name)[0] for x in found if not hasattr(x, "operations")]
    return names, [x for x in with_operations if {type(y).__name__ for y in x.operations} - {*JOINED}]


def _substituted(patterns: Mapping[str, str], name: str) -> str:
    """Change a name as transformers 4 does: by the first pattern that is found in it."""
    for pattern, text in patterns.items():
        changed, count = re.subn(pattern, re.sub(r"\(.*\)", "", text.lstrip("^")), name)
        if count:
            return changed
    return name


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise errors.UnsupportedError(
            "load_quantized of a configuration needs transformers, which is not installed; install it, or pass a model"
        ) from error
    return transformers


def _of_configuration(config: Any, packed: PackedFolder, dtype: Any) -> Any:
    """Make the model of a configuration of transformers, by its class alone."""
    names = config.architectures or [""]
    kind = getattr(_transformers(), str(names[0]), None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise errors.UnsupportedError(
            f"load_quantized: transformers has no architecture {errors.show(names[0])}; make the model yourself, on "
            "the meta device or not, and pass it"
        )
    plain = copy.deepcopy(config)
    if hasattr(plain, "quantization_config"):
        del plain.quantization_config
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or _dtype_of(plain, packed))
    try:
        with _without_memory():
            return kind(plain).eval()
    finally:
        torch.set_default_dtype(before)


def _dtype_of(config: Any, packed: PackedFolder) -> Any:
    """Return the type of x: of factors of int4, or the configuration's."""
    of_factors = {x.dtype for x in packed.layers.values() if x.dtype is not None}
    if len(of_factors) == 1:
        return getattr(torch, of_factors.pop())
    stated = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    stated = getattr(torch, stated, None) if isinstance(stated, str) else stated
    return stated if stated in DTYPES else torch.bfloat16


@contextmanager
def _without_memory() -> Iterator[None]:
    """Have parameters made on the meta device, and buffers as they are, for nothing loads those that are not saved."""
    register = nn.Module.register_parameter

    def register_on_meta(module: Any, name: str, param: Any) -> None:
        if param is not None and not param.is_meta:
            known = getattr(param, "_aot_gemm_on_meta", None)
            if known is None:
                known = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
                param._aot_gemm_on_meta = known  # noqa: SLF001 - another module may have it too
            param = known
        register(module, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
