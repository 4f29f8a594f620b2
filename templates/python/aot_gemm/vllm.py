"""A plug-in of vLLM: its linear layers by this package's kernels. vLLM finds it where the wheel is installed.

    vllm serve MODEL --quantization aot_gemm        # products of the weights as they are stored, bfloat16 or float16
    vllm serve MODEL --quantization aot_gemm_fp8    # weights rounded to a format as they are loaded

A name is that of this package, and for rounded weights a format of `aot_gemm.torch.quantize`: fp8, int8, fp8_block,
int4g128, nvfp4 and the others. Each is registered with vLLM as a quantization method, by `vllm.general_plugins`; a
model that is served without `--quantization` is vLLM's alone. A checkpoint that is quantized already keeps its own
method. What the wheel has no tuned kernels for stays vLLM's, and its log says why, layer by layer.

Each rank of a tensor-parallel model has its part of a weight, for which the table is asked. Mixtures of experts and
embeddings stay vLLM's; the head of a model whose weights are as stored is this package's. Importing this imports vLLM.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn
from vllm import envs
from vllm.logger import init_logger
from vllm.model_executor.kernels.linear import register_linear_kernel
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod
from vllm.platforms import PlatformEnum

from . import errors
from ._served import AsRounded, AsStored, ServedConfig
from ._torch_formats import FORMATS
from ._vllm_kernels import AotGemmInt4LinearKernel

NAME = __name__.partition(".")[0]
"""Of the method for weights as stored, and how those of the formats begin."""
_logger = init_logger(f"vllm.{NAME}")


def register() -> None:
    """Register the methods with vLLM: what its entry point `vllm.general_plugins` calls in every process."""
    for name in (None, *FORMATS):
        _config_of(name)
    _register_kernels()


@cache
def _register_kernels() -> None:
    register_linear_kernel(AotGemmInt4LinearKernel, PlatformEnum.CUDA, "mp")


@cache
def _config_of(name: str | None) -> type[QuantizationConfig]:
    """Make and register the configuration of weights as stored, or of a format."""
    method = NAME if name is None else f"{NAME}_{name}"
    kind = type(f"AotGemmConfig_{name}", (AotGemmConfig,), {"method": method, "format": name})
    registered: type[QuantizationConfig] = register_quantization_config(method)(kind)
    return registered


class AotGemmConfig(ServedConfig, QuantizationConfig):
    """What vLLM asks of a quantization method."""

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        """Return how a layer is computed; None of one that stays vLLM's.

        Args:
            layer: as vLLM is making it.
            prefix: its name in the model.
        """
        if isinstance(layer, LinearBase):
            return Stored(prefix) if self.format is None else Rounded(prefix, self.format)
        return Head(prefix) if isinstance(layer, ParallelLMHead) and self.format is None else None


class _OfVllm:
    """What the methods ask of vLLM."""

    server = "vLLM"
    logger = _logger

    def why_servers(self) -> str | None:
        """Say why no layer is this package's; None where they may be."""
        if envs.VLLM_BATCH_INVARIANT:
            return "VLLM_BATCH_INVARIANT is set, for which vLLM has kernels of its own"
        return None


class Stored(_OfVllm, AsStored, UnquantizedLinearMethod):
    """A linear layer whose weight is as it is stored."""


class Head(_OfVllm, AsStored, UnquantizedEmbeddingMethod):
    """The head of a language model, whose weight an embedding may share."""


class Rounded(_OfVllm, AsRounded, UnquantizedLinearMethod):
    """A linear layer whose weight is rounded to a narrow format when it has been loaded; the wide one is freed."""

    supports_pre_processed_weights = False

    def __init__(self, prefix: str, name: str) -> None:
        """Take the name of the layer and of the format.

        Args:
            prefix: its name in the model.
            name: of the format, as `aot_gemm.torch.quantize` has it.

        Raises:
            UnsupportedError: there is no such format, or vLLM is to give results that do not depend on the batch.
        """
        super().__init__(prefix, name)
        reason = self.why_servers()
        if reason is not None:
            raise errors.UnsupportedError(
                f"--quantization {NAME}_{name}: {reason}; unset that, or serve the weights as stored"
            )
