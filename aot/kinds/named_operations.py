"""How operations are asked for by name: tags, patterns of tags, and presets that stand for several of them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

from aot.core.epilogue import Epilogue
from aot.core.errors import OperationError, TargetError
from aot.core.operation import Operation
from aot.kinds.registry import all_operations
from aot.kinds.rows.catalogue import OWN_ROW_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.target import Target
    from aot.core.work import AnyOperation

DEFAULT_PRESET = "default"
"""What a wheel has where nobody says which operations it is to have: bf16 and fp16, plain and with a bias."""

PRESETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        DEFAULT_PRESET: ("[bf][fp]16_??", "[bf][fp]16_kk_bias"),
        "llama": (
            *(f"[bf][fp]16_kk{x}" for x in ("", "_residual", "_swiglu", "_many")),
            *(f"[bf][fp]16_{x}" for x in ("rms_norm", "silu_mul", "rotary")),
        ),
        "vision": (
            *(f"[bf][fp]16_kk{x}" for x in ("_bias", "_gelu", "_gelu_tanh", "_residual")),
            "[bf][fp]16_layer_norm",
        ),
        "diffusion": (
            *(f"[bf][fp]16_kk{x}" for x in ("", "_bias", "_gelu_tanh", "_silu", "_residual")),
            *(f"[bf][fp]16_{x}" for x in ("layer_norm", "rms_norm", "rotary", "gelu_tanh_mul")),
        ),
        "fp8": (
            *(f"e4m3_bf16{x}" for x in ("_kk", "_kk_gelu_tanh", "_kk_silu", "_kk_swiglu", "_block_kk")),
            *(f"bf16_e4m3_{x}" for x in ("rms_norm", "layer_norm", "silu_mul", "quantize", "block_quantize")),
        ),
        "int8": ("int8_*",),
        "attention": ("[bf][fp]16_??_batched",),
        "moe": tuple(f"[bf][fp]16_kk_{x}" for x in ("grouped", "grouped_swiglu", "gathered", "gathered_swiglu")),
        "nvfp4": (*(f"nvfp4_bf16_kk{x}" for x in ("", "_bias", "_residual", "_swiglu")), "bf16_nvfp4_*"),
        "moe_nvfp4": (
            *(f"nvfp4_bf16_kk_{x}" for x in ("grouped", "grouped_swiglu")),
            *("nvfp4_nvfp4_kk_grouped_swiglu", "bf16_nvfp4_quantize"),
        ),
        "rows": tuple(x.tag for x in OWN_ROW_OPERATIONS),
    }
)
"""Patterns of tags by the name of a preset; `[bf][fp]16` is `bf16` or `fp16`.

Source: the architectures. Llama and Mistral have no biases, SwiGLU, a residual after attention and feed-forward, and
one input of query, key and value (`many`). Vision transformers and speech encoders (ViT, DINOv2, SigLIP, Whisper) have
biases throughout and GELU, SigLIP its tanh form. Diffusion transformers (DiT, Stable Diffusion 3, FLUX) have GELU's
tanh form, and SiLU in front of the modulation. Of what stands between products, Llama has RMSNorm, SwiGLU and a rotary
embedding; vision transformers LayerNorm; diffusion transformers LayerNorm, and RMSNorm and a rotary embedding of
queries and keys.
Attention without a kernel of its own multiplies a batch of heads; a mixture of experts (Mixtral, Qwen3) groups rows.
In NVFP4 a product's x is rounded in front of it: by itself, in the norm before, or in the gate, of groups in the
product of gate and up.
"""

HELP = (
    "Operations by tag, with commas between: tags, patterns as a shell's (e4m3_bf16_*), or presets "
    f"({', '.join(PRESETS)}); a leading - excludes. See docs/operations.md."
)
"""What every command says of its option --operations."""


@dataclass(frozen=True)
class NamedOperations:
    """What a text names, in the order of the kinds and their catalogues."""

    operations: tuple[AnyOperation, ...]

    @property
    def products(self) -> tuple[Operation, ...]:
        """Return the products, of which every library has some."""
        return tuple(x for x in self.operations if isinstance(x, Operation))

    @property
    def others(self) -> tuple[AnyOperation, ...]:
        """Return those of the other kinds."""
        return tuple(x for x in self.operations if not isinstance(x, Operation))


def _matching(word: str) -> set[str]:
    """List the tags of what a tag, a pattern or a preset names.

    Raises:
        OperationError: it names nothing.
    """
    patterns = PRESETS.get(word, (word,))
    found = {tag for tag in all_operations() if any(fnmatchcase(tag, pattern) for pattern in patterns)}
    if found:
        return found
    near = get_close_matches(word, [*PRESETS, *all_operations()], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/operations.md lists them"
    raise OperationError(f"no operation is called {word!r}, and no preset; {hint}")


def all_named_operations(text: str) -> NamedOperations:
    """List the operations of all kinds that a text names.

    Args:
        text: tags, patterns and presets with commas between. What a word with a leading `-` names is left out; where
            all words have one, of all catalogues.

    Raises:
        OperationError: a word is empty or names nothing, or none is left.
    """
    words = [word.strip() for word in text.split(",")]
    if any(word in ("", "-") for word in words):
        raise OperationError(f"an empty name in {text!r}; write for example 'bf16_kk,bf16_kk_silu' or 'llama,-fp16_*'")
    includes = [word for word in words if not word.startswith("-")]
    kept = set().union(*map(_matching, includes)) if includes else {*all_operations()}
    kept -= {x for word in words if word.startswith("-") for x in _matching(word[1:])}
    if not kept:
        raise OperationError(f"{text!r} leaves no operation; exclude less")
    return NamedOperations(tuple(x for tag, x in all_operations().items() if tag in kept))


def named_operations(text: str) -> tuple[Operation, ...]:
    """List the products that a text names; of the operations of other kinds nothing is said.

    Raises:
        OperationError: as `all_named_operations`, or it names no product.
    """
    found = all_named_operations(text)
    if found.products:
        return found.products
    tags = ", ".join(x.tag for x in found.others)
    raise OperationError(f"{text!r} names no product ({tags}); expected one too: write default,{text}")


def default_operations(target: Target) -> NamedOperations:
    """Return what a target's wheel by the cost model has: the preset `default`, and what the target's file names.

    Raises:
        TargetError: the file names what is no operation, or what the chip cannot compute.
    """
    found = [*all_named_operations(DEFAULT_PRESET).operations]
    for tag in target.default_operations or ():
        operation = all_operations().get(tag)
        if operation is None:
            raise TargetError(
                f"{target.name}: default_operations has {tag!r}, which is no operation; docs/operations.md lists them"
            )
        if target.lacks(operation.needs):
            lacks = ", ".join(target.lacks(operation.needs))
            raise TargetError(
                f"{target.name}: default_operations has {tag}, which needs {lacks}; expected what the chip can do"
            )
        found.append(operation)
    return NamedOperations(tuple(dict.fromkeys(found)))


def _epilogues(text: str) -> list[Epilogue]:
    """Return the epilogues that a text names, with commas between.

    Raises:
        OperationError: there is no such epilogue.
    """
    known = [x for x in Epilogue if x is not Epilogue.NONE]
    words = [word.strip() for word in text.split(",")]
    strange = next((word for word in words if word not in known), None)
    if strange is not None:
        raise OperationError(f"no epilogue is called {strange!r}; expected of {', '.join(known)}, with commas between")
    return [Epilogue(word) for word in words]


def with_epilogues(named: NamedOperations, text: str) -> NamedOperations:
    """Add operations like the ones named, of the same types, layout and grouping, with other epilogues.

    Args:
        named: the operations; those of other kinds stay as they are.
        text: epilogues with commas between, as in a tag.

    Raises:
        OperationError: there is no such epilogue, or no operation like those with it.
    """
    like = {(x.types, x.layout, x.grouping) for x in named.products}
    kept = set(named.products)
    for epilogue in _epilogues(text):
        found = {x for x in Operation if x.epilogue is epilogue and (x.types, x.layout, x.grouping) in like}
        if not found:
            tags = ", ".join(x.tag for x in Operation if x.epilogue is epilogue)
            raise OperationError(
                f"no operation is like {', '.join(x.tag for x in named.products)} with the epilogue {epilogue.value}; "
                f"there are {tags}"
            )
        kept |= found
    return NamedOperations((*(x for x in Operation if x in kept), *named.others))
