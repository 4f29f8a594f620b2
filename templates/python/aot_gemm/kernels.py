"""Layers for Hugging Face's `kernels`: norms and gates of models that are prepared for it, by this package's kernels.

    import aot_gemm.kernels
    from kernels import Mode, kernelize, register_kernel_mapping

    register_kernel_mapping(aot_gemm.kernels.mapping())
    model = kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, device="cuda")

`kernels` takes a layer's `forward` by the name under which a model's class was registered, as those of transformers
are. Nothing is fetched: what the mapping names is this wheel. Where the wheel does not serve a call, as for other
types, where a gradient is recorded, or where it has no such operation, the layer is what transformers computes, by
torch. For Linears there is `aot_gemm.torch.patch`, before `kernelize` or behind it. Importing this needs torch alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from . import errors
from ._row_table import plan_rows
from ._torch_modules import is_served
from ._torch_rows import gelu_tanh_mul, rms_norm, silu_mul

_FUNCTIONS = {"silu_mul": silu_mul, "gelu_tanh_mul": gelu_tanh_mul}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernels(function: str, cols: int, dtype: str) -> bool:
    """Say whether the wheel has tuned kernels of an operation on rows: in a compiled graph, as it is now."""
    try:
        return plan_rows(function, 1, cols, dtype).tier != "fallback"
    except (errors.UnsupportedError, errors.DtypeError):
        return False


def _takes(function: str, x: Any, cols: int, *weights: Any) -> bool:
    """Say whether a call is this package's: there are kernels, and torch records no gradient."""
    if torch.is_grad_enabled() and any(y.requires_grad for y in (x, *weights)):
        return False
    if x.shape[-1] == 0 or not all(is_served(x, y.dtype, None) and y.device == x.device for y in (x, *weights)):
        return False
    return _has_kernels(function, cols, str(x.dtype).removeprefix("torch."))


def _gated(function: str, x: Any) -> Any:
    half = x.shape[-1] // 2
    if x.shape[-1] % 2 == 0 and _takes(function, x, half):
        return _FUNCTIONS[function](x)
    gate, line = x[..., :half], x[..., half:]
    return (functional.silu(gate) if function == "silu_mul" else functional.gelu(gate, approximate="tanh")) * line


class RMSNorm(nn.Module):
    """A norm of rows, as Llama of transformers has it: the row is rounded before it is multiplied with the weight."""

    can_torch_compile = True
    weight: Any
    variance_epsilon: Any

    def forward(self, hidden_states: Any) -> Any:
        """Norm (..., cols) by the weight (cols,) and the epsilon of the module in whose place this is."""
        x, weight, eps = hidden_states, self.weight, self.variance_epsilon
        if _takes("rms_norm", x, x.shape[-1], weight):
            return rms_norm(x, weight, eps=eps, round_norm=True)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * wide.to(x.dtype)


class RMSNormZeroCentered(nn.Module):
    """A norm of rows whose weight is added to one, as Qwen3.5 of transformers has it; rounded once."""

    can_torch_compile = True
    weight: Any
    eps: Any

    def forward(self, x: Any) -> Any:
        """Norm (..., cols) by one and the weight (cols,) and the epsilon of the module in whose place this is."""
        if _takes("rms_norm", x, x.shape[-1], self.weight):
            return rms_norm(x, self.weight, eps=self.eps, weight_offset=1.0)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class SiluAndMul(nn.Module):
    """The gate of SwiGLU: silu of the first half of each row, times the second."""

    can_torch_compile = True

    def forward(self, x: Any) -> Any:
        """Return (..., cols / 2) of (..., cols)."""
        return _gated("silu_mul", x)


class GeluTanhAndMul(nn.Module):
    """The gate of GeGLU: gelu by tanh of the first half of each row, times the second."""

    can_torch_compile = True

    def forward(self, x: Any) -> Any:
        """Return (..., cols / 2) of (..., cols)."""
        return _gated("gelu_tanh_mul", x)


LAYERS = (RMSNorm, RMSNormZeroCentered, SiluAndMul, GeluTanhAndMul)
"""By the names under which `kernels` knows them, which are those of the classes."""


class InstalledLayer:
    """What `kernels` asks for a layer, in the place of a repository: this package has it already."""

    def __init__(self, layer: type[nn.Module]) -> None:
        self._layer = layer

    @property
    def layer_name(self) -> str:
        """Return the layer's name."""
        return self._layer.__name__

    def load(self) -> type[nn.Module]:
        """Return the layer's class."""
        return self._layer

    def __eq__(self, other: object) -> bool:
        """Say whether another stands for the same layer."""
        return isinstance(other, InstalledLayer) and self._layer is other._layer

    def __hash__(self) -> int:
        """Return a hash that goes with equality."""
        return hash(self._layer)

    def __repr__(self) -> str:
        """Name the package and the layer."""
        return f"{__name__.rpartition('.')[0]} (layer {self.layer_name})"


def mapping(device: str = "cuda") -> dict[str, dict[str, InstalledLayer]]:
    """Return what `kernels.register_kernel_mapping` and `use_kernel_mapping` take: a layer of this package by name.

    Args:
        device: the type of device that `kernels` is to take them for.
    """
    return {layer.__name__: {device: InstalledLayer(layer)} for layer in LAYERS}
