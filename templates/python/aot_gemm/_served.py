"""What the plug-ins of servers share: linear layers beside a server's own methods for them.

A server's method of an unquantised layer makes its weight, and is asked where the wheel has no tuned kernels; these
classes stand in front of it. Which server it is only `vllm.py` and `sglang.py` know.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from ._preload import preload as _preload_all
from ._torch_formats import format_of
from ._torch_modules import DTYPES, multiply, why_left
from ._torch_patch import quantize_model

if TYPE_CHECKING:
    from typing import Self

MIN_CAPABILITY = 80
"""Ten times the compute capability that a server asks for at least. An assumption: no wheel is for older devices."""


class ServedConfig:
    """What a server asks of a quantization method; each registered name has a class of its own."""

    method: ClassVar[str]
    format: ClassVar[str | None]

    def get_name(self) -> Any:
        """Return the name of `--quantization`."""
        return self.method

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Return the element types of inputs."""
        return list(DTYPES)

    @classmethod
    def get_min_capability(cls) -> int:
        """Return `MIN_CAPABILITY`."""
        return MIN_CAPABILITY

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Return no names: a checkpoint says nothing of this."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make one; what a checkpoint says is not looked at."""
        del config
        return cls()


def plain_linear(layer: Any) -> nn.Linear:
    """Return an nn.Linear of a layer's weight and bias, in the same memory."""
    (n, k), bias = layer.weight.shape, getattr(layer, "bias", None)
    made = nn.Linear(k, n, bias=bias is not None, device="meta")
    made.weight = nn.Parameter(layer.weight.data, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.data, requires_grad=False)
    return made


class Served:
    """A layer's method in front of a server's own.

    Args:
        prefix: the layer's name in the model.
    """

    server: str
    """What the server is called."""
    logger: Any

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def why_servers(self) -> str | None:
        """Say why no layer is this package's; None where they may be."""
        return None


class AsStored(Served):
    """The products of a weight as it is stored."""

    is_served = False

    def process_weights_after_loading(self, layer: Any) -> None:
        """Ask the table whether it has kernels for the weight."""
        super().process_weights_after_loading(layer)  # type: ignore[misc]
        reason = self.why_servers() or why_left(plain_linear(layer))
        self.is_served = reason is None
        if reason is not None:
            self.logger.info("%s stays %s's: %s", self.prefix, self.server, reason)
        else:
            preload(layer.weight)

    def apply(self, layer: Any, x: Any, bias: Any = None) -> Any:
        """Compute x @ weight^T + bias of an input (..., k)."""
        if self.is_served:
            return multiply(x, layer.weight.data, bias)
        return super().apply(layer, x, bias)  # type: ignore[misc]


class AsRounded(Served):
    """The products of a weight that is rounded to a narrow format when it has been loaded; the wide one is freed.

    Args:
        prefix: the layer's name in the model.
        name: of the format, as `aot_gemm.torch.quantize` has it.

    Raises:
        UnsupportedError: there is no such format.
    """

    def __init__(self, prefix: str, name: str) -> None:
        super().__init__(prefix)
        self.format = format_of(name).name

    def process_weights_after_loading(self, layer: Any) -> None:
        """Round the weight, where the table has kernels for it."""
        super().process_weights_after_loading(layer)  # type: ignore[misc]
        inner = plain_linear(layer)
        report = quantize_model(inner, self.format)
        if report.left:
            self.logger.warning("%s stays %s's, in 16 bits: %s", self.prefix, self.server, *report.left.values())
            return
        preload(inner.qweight)
        inner.bias = None  # a server gives the bias with each call, where it adds one
        del layer.weight
        # What reads it, as attention that absorbs a projection, reads what the elements and factors stand for.
        layer.rounded, layer.weight = inner, inner.weight

    def apply(self, layer: Any, x: Any, bias: Any = None) -> Any:
        """Compute x @ weight^T + bias of an input (..., k)."""
        inner = getattr(layer, "rounded", None)
        if inner is None:
            return super().apply(layer, x, bias)  # type: ignore[misc]
        return inner.multiply(x, bias)


def preload(weight: Any) -> None:
    """Load all kernels onto a weight's GPU, the first time: servers capture graphs when they have loaded a model."""
    if weight.is_cuda:
        _preload(weight.device.index)


@cache
def _preload(device: int) -> None:
    _preload_all(device)
