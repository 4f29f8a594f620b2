"""Kernels of vLLM's own methods for checkpoints with int4 weights: AWQ's, GPTQ's and compressed-tensors'."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearKernel
from vllm.model_executor.parameter import permute_param_layout_
from vllm.scalar_type import scalar_types

from ._served import MIN_CAPABILITY, preload
from ._torch_formats import FORMATS, format_of
from ._torch_modules import DTYPES
from ._torch_packed import pack
from ._torch_quantized import QuantizedLinear

NIBBLES = 8
"""Weights that a word of 32 bits holds in a checkpoint, the first in its lowest bits."""


class AotGemmInt4LinearKernel(MPLinearKernel):
    """Weights of 4 bits in groups along k, beside inputs of 16; vLLM asks it behind its own kernels.

    What it is given is described by a checkpoint; what it makes of that is a QuantizedLinear, the layer's `packed`.
    """

    SYMBOLS: ClassVar[dict[Any, str]] = {scalar_types.uint4b8: "", scalar_types.uint4: "z"}
    """By vLLM's types, what the names of this package's formats end in."""

    @classmethod
    def get_min_capability(cls) -> int:
        """Return `MIN_CAPABILITY`."""
        return MIN_CAPABILITY

    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        """Say whether the wheel has tuned kernels of a weight; if not, why."""
        ending = cls.SYMBOLS.get(c.weight_type)
        if ending is None or c.zero_points != (ending == "z"):
            return (
                False,
                f"weights are {c.weight_type}, zero points {c.zero_points}; expected uint4b8, or uint4 with them",
            )
        name = f"int4g{c.group_size}{ending}"
        if name not in FORMATS:
            return False, f"groups are of {c.group_size}; expected 32, 64 or 128"
        if c.act_type not in DTYPES or c.out_type not in (None, c.act_type):
            return False, f"inputs are {c.act_type}, results {c.out_type}; expected bfloat16 or float16, of one type"
        if getattr(c, "has_g_idx", False):
            return False, "columns are in an order of their own (desc_act)"
        k, n = c.partition_weight_shape
        reason = format_of(name).why_not(n, k, c.act_type, bias=False)
        return reason is None, reason

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack what a checkpoint has, and free it."""
        c = self.config
        k, n = c.partition_weight_shape
        name = f"int4g{c.group_size}{self.SYMBOLS[c.weight_type]}"
        codes = _nibbles(self._parameter(layer, self.w_q_name, packed_dim=1)).reshape(n, k)
        factors = self._parameter(layer, self.w_s_name).to(c.act_type)
        zeros = None
        if c.zero_points:
            words = self._parameter(layer, self.w_zp_name, packed_dim=0)
            zeros = _nibbles(words).transpose(1, 2).reshape(n, -1)
        packed = pack(codes, factors.contiguous(), zeros, format=name)
        inner = QuantizedLinear(k, n, bias=False, device="meta", dtype=c.act_type, format=name)
        inner._buffers["qweight"] = packed.data  # noqa: SLF001 - as a state dict that is assigned does it
        inner._buffers["scale"] = torch.empty(0, device=packed.data.device)  # noqa: SLF001
        for key in (self.w_s_name, self.w_zp_name):
            if key is not None and getattr(layer, key, None) is not None:
                setattr(layer, key, None)
        # The bytes stay under their name, by which vLLM finds a layer's device.
        setattr(layer, self.w_q_name, nn.Parameter(packed.data, requires_grad=False))
        layer.packed = inner
        preload(packed.data)

    def apply_weights(self, layer: Any, x: Any, bias: Any = None) -> Any:
        """Compute x @ weight^T + bias of an input (..., k)."""
        return layer.packed.multiply(x, bias)

    def _parameter(self, layer: Any, name: Any, **packed: int) -> Any:
        """Return a parameter's values, the outputs first."""
        return permute_param_layout_(getattr(layer, name), input_dim=1, output_dim=0, **packed).data


def _nibbles(words: Any) -> Any:
    """Return uint8 (..., 8): the numbers of 4 bits that words of 32 hold, the lowest bits' first."""
    shifts = torch.arange(0, 4 * NIBBLES, 4, device=words.device, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & 15).to(torch.uint8)
