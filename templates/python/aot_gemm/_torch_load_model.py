"""The model that `load_quantized` loads into: given, or made without memory for its parameters."""

from __future__ import annotations

import copy
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import errors
from ._packed_folder import name_of
from ._torch_modules import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

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
