"""How operations are asked for by name: tags, patterns of tags, and presets that stand for several of them."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

from aot.core.errors import OperationError
from aot.core.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PRESET = "default"
"""What a wheel has where nobody says which operations it is to have: products of bf16 and fp16, plain and with a bias.
No other operation has run on a GPU yet (docs/operations.md)."""

PRESETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        DEFAULT_PRESET: ("[bf][fp]16_??", "[bf][fp]16_kk_bias"),
        "llama": tuple(f"[bf][fp]16_kk{x}" for x in ("", "_residual", "_swiglu")),
        "vision": tuple(f"[bf][fp]16_kk{x}" for x in ("_bias", "_gelu", "_gelu_tanh", "_residual")),
        "diffusion": tuple(f"[bf][fp]16_kk{x}" for x in ("", "_bias", "_gelu_tanh", "_silu", "_residual")),
        "fp8": tuple(f"e4m3_bf16{x}" for x in ("_kk", "_kk_gelu_tanh", "_kk_silu", "_kk_swiglu", "_block_kk")),
        "int8": ("int8_*",),
        "attention": ("[bf][fp]16_??_batched",),
        "moe": tuple(f"[bf][fp]16_kk_{x}" for x in ("grouped", "grouped_swiglu", "gathered", "gathered_swiglu")),
    }
)
"""Patterns of tags by the name of a preset; `[bf][fp]16` is `bf16` or `fp16`.

Source: the architectures. Llama and Mistral have no biases, SwiGLU, and a residual after attention and feed-forward.
Vision transformers and speech encoders (ViT, DINOv2, SigLIP, Whisper) have biases throughout and GELU, SigLIP its tanh
form. Diffusion transformers (DiT, Stable Diffusion 3, FLUX) have GELU's tanh form, and SiLU in front of the modulation.
Attention without a kernel of its own multiplies a batch of heads; a mixture of experts (Mixtral, Qwen3) groups rows.
"""

HELP = (
    "Operations by tag, with commas between: tags, patterns as a shell's (e4m3_bf16_*), or presets "
    f"({', '.join(PRESETS)}); a leading - excludes. See docs/operations.md."
)
"""What every command says of its option --operations."""


def _matching(word: str) -> list[Operation]:
    """List what a tag, a pattern or a preset names.

    Raises:
        OperationError: it names nothing.
    """
    patterns = PRESETS.get(word, (word,))
    found = [x for x in Operation if any(fnmatchcase(x.tag, pattern) for pattern in patterns)]
    if found:
        return found
    near = get_close_matches(word, [*PRESETS, *(x.tag for x in Operation)], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/operations.md lists them"
    raise OperationError(f"no operation is called {word!r}, and no preset; {hint}")


def named_operations(text: str) -> tuple[Operation, ...]:
    """List the operations that a text names, in the catalogue's order.

    Args:
        text: tags, patterns and presets with commas between. What a word with a leading `-` names is left out; where
            all words have one, of the whole catalogue.

    Raises:
        OperationError: a word is empty or names nothing, or none is left.
    """
    words = [word.strip() for word in text.split(",")]
    if any(word in ("", "-") for word in words):
        raise OperationError(f"an empty name in {text!r}; write for example 'bf16_kk,bf16_kk_silu' or 'llama,-fp16_*'")
    includes = [word for word in words if not word.startswith("-")]
    kept = {x for word in includes for x in _matching(word)} if includes else set(Operation)
    kept -= {x for word in words if word.startswith("-") for x in _matching(word[1:])}
    if not kept:
        raise OperationError(f"{text!r} leaves no operation; exclude less")
    return tuple(x for x in Operation if x in kept)
