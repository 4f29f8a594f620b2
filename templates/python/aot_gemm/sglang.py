"""A plug-in of SGLang: its linear layers by this package's kernels. SGLang finds it where the wheel is installed.

    python -m sglang.launch_server --model-path MODEL --quantization aot_gemm        # weights as stored
    python -m sglang.launch_server --model-path MODEL --quantization aot_gemm_fp8    # rounded as they are loaded

A name is that of this package, and for rounded weights a format of `aot_gemm.torch.quantize`, as vLLM's plug-in has
them. SGLang calls `register` by its entry points `sglang.srt.plugins`, before it reads its arguments; that adds the
names to its registry of quantization methods. A checkpoint that is quantized already keeps its own method, and mixtures
of experts, embeddings and heads stay SGLang's. What the wheel has no tuned kernels for does too, and its log says why,
layer by layer. Importing this imports SGLang.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from sglang.srt.arg_groups.choices import add_quantization_method_choices
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization import QUANTIZATION_METHODS
from sglang.srt.layers.quantization.base_config import QuantizationConfig
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from torch import nn

from ._served import AsRounded, AsStored, ServedConfig
from ._torch_formats import FORMATS

NAME = __name__.partition(".")[0]
"""Of the method for weights as stored, and how those of the formats begin."""


def register() -> None:
    """Register the methods with SGLang: what its entry point calls in every process, and may again."""
    for name in (None, *FORMATS):
        _config_of(name)


@cache
def _config_of(name: str | None) -> type[QuantizationConfig]:
    """Make and register the configuration of weights as stored, or of a format."""
    method = NAME if name is None else f"{NAME}_{name}"
    kind = type(f"AotGemmConfig_{name}", (AotGemmConfig,), {"method": method, "format": name})
    QUANTIZATION_METHODS[method] = kind
    add_quantization_method_choices([method])
    return kind


class AotGemmConfig(ServedConfig, QuantizationConfig):
    """What SGLang asks of a quantization method."""

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        """Return how a layer is computed; None of one that stays SGLang's.

        Args:
            layer: as SGLang is making it.
            prefix: its name in the model.
        """
        if not isinstance(layer, LinearBase):
            return None
        return Stored(prefix) if self.format is None else Rounded(prefix, self.format)

    def get_scaled_act_names(self) -> list[str]:
        """Return no names: no activation is scaled."""
        return []


class _OfSglang:
    """What the methods ask of SGLang."""

    server = "SGLang"
    logger = logging.getLogger(f"sglang.{NAME}")

    def apply_with_addend(self, layer: Any, x: Any, addend: Any, bias: Any = None) -> Any:
        """Compute a product and add a tensor to it, which is consumed."""
        return self.apply(layer, x, bias).add_(addend)  # type: ignore[attr-defined]

    def apply_into(self, layer: Any, x: Any, output: Any, bias: Any = None) -> Any:
        """Compute a product into a tensor; return it."""
        return output.copy_(self.apply(layer, x, bias))  # type: ignore[attr-defined]


class Stored(_OfSglang, AsStored, UnquantizedLinearMethod):
    """A linear layer whose weight is as it is stored."""


class Rounded(_OfSglang, AsRounded, UnquantizedLinearMethod):
    """A linear layer whose weight is rounded to a narrow format when it has been loaded; the wide one is freed."""
