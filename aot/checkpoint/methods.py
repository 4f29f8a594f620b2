"""What a checkpoint's configuration says of how it was quantised, as far as its tensors do not say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aot.core.errors import CheckpointError
from aot.core.safetensors_file import short

GPTQ, AWQ, COMPRESSED, MODELOPT, FP8, MXFP4 = "gptq", "awq", "compressed-tensors", "modelopt", "fp8", "mxfp4"
PACKED = "aot"
"""What `aot pack` calls what it writes."""
KNOWN = (GPTQ, AWQ, COMPRESSED, MODELOPT, "modelopt_fp4", FP8, MXFP4, "fbgemm_fp8")
"""Values of `quant_method`. Source: transformers, utils/quantization_config.py, QuantizationMethod; NVIDIA ModelOpt."""
ALGORITHMS = ("FP8", "NVFP4", "MXFP4", "NVFP4_AWQ", "W4A16_NVFP4", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN")
"""ModelOpt's `quant_algo` whose weights are read. Source: NVIDIA ModelOpt, torch/export/model_config.py."""
LAYOUTS = ("pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "float-quantized", "int-quantized")
"""compressed-tensors' `format`. Source: compressed-tensors, config/base.py, CompressionFormat."""
BITS = 4


@dataclass(frozen=True)
class Method:
    """How a checkpoint was quantised."""

    name: str
    """Empty where nothing says."""
    zero_offset: int = 1
    """What is added to GPTQ's zero points: its first version holds them less by 1."""
    refusal: str = ""
    """Why weights of words are not read, where they are not."""

    def check_words(self, layer: str) -> None:
        """Refuse codes of 4 bits in words where the configuration says that they are something else."""
        if self.refusal:
            raise CheckpointError(f"{short(layer)}: {self.refusal}")


def method_of(found: dict[str, Any]) -> Method:
    """Return what a `quantization_config` says.

    Raises:
        CheckpointError: its method is not one of those whose weights are read.
    """
    if not found:
        return Method("")
    name = found.get("quant_method")
    if not isinstance(name, str) or name not in KNOWN:
        raise _refused("quant_method", name, KNOWN)
    if name.startswith(MODELOPT):
        algorithm = found.get("quant_algo")
        if algorithm not in ALGORITHMS:
            raise _refused("quant_algo", algorithm, ALGORITHMS)
        return Method(f"{name} {algorithm}")
    if name == COMPRESSED:
        layout = found.get("format")
        if layout not in LAYOUTS:
            raise _refused("format", layout, LAYOUTS)
        return Method(f"{name} {layout}", refusal=_compressed_bits(found) if layout == LAYOUTS[0] else "")
    if name not in {GPTQ, AWQ}:
        return Method(name)
    refusal = (
        "" if found.get("bits", found.get("w_bit", BITS)) == BITS else _bits(found.get("bits", found.get("w_bit")))
    )
    if name == AWQ and str(found.get("version", "gemm")).lower() != "gemm":
        refusal = f"AWQ of version {short(found['version'])}; expected gemm, whose words are known; convert it"
    is_second = found.get("checkpoint_format") == "gptq_v2"
    return Method(name, zero_offset=0 if is_second else 1, refusal=refusal)


def _bits(bits: object) -> str:
    return f"codes of {short(bits)} bits; expected {BITS}; quantise it to {BITS}, or load it by another library"


def _compressed_bits(found: dict[str, Any]) -> str:
    """Say why words of compressed-tensors are not read: those of 8 bits are told by nothing else."""
    groups = found.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        bits = weights.get("num_bits") if isinstance(weights, dict) else None
        if bits != BITS:
            return _bits(bits)
    return ""


def _refused(key: str, value: object, known: tuple[str, ...]) -> CheckpointError:
    if value == PACKED:
        return CheckpointError(
            "quantization_config: quant_method is 'aot': it is packed already; expected a checkpoint to pack; load "
            "this one by load_quantized, or pack the one that it was made of"
        )
    return CheckpointError(
        f"quantization_config: {key} is {short(value)}; expected one of {', '.join(known)}; pack the checkpoint of 16 "
        "bits with --format instead"
    )
