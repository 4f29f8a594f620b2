"""What a checkpoint's configuration says of how it was quantised, as far as its tensors do not say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aot.core.errors import CheckpointError
from aot.core.safetensors_file import short
from aot.core.weight_format import GPTQ_ZERO_OFFSETS
from aot.models.quantization import MIXED

GPTQ, AWQ, COMPRESSED, MODELOPT, FP8, MXFP4 = "gptq", "awq", "compressed-tensors", "modelopt", "fp8", "mxfp4"
PACKED = "aot"
"""What `aot pack` calls what it writes."""
KNOWN = (GPTQ, AWQ, COMPRESSED, MODELOPT, "modelopt_fp4", FP8, MXFP4, "fbgemm_fp8")
"""Values of `quant_method`. Source: transformers, utils/quantization_config.py, QuantizationMethod; NVIDIA ModelOpt."""
ALGORITHMS = ("FP8", "NVFP4", "MXFP4", "NVFP4_AWQ", "W4A16_NVFP4", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", MIXED)
"""ModelOpt's `quant_algo` whose weights are read. Source: NVIDIA ModelOpt, torch/export/model_config.py."""
LAYOUTS = (
    *("pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "float-quantized", "int-quantized"),
    *("naive-quantized", "mixed-precision"),
)
"""compressed-tensors' `format`; of the last each group of layers has its own. Source: compressed-tensors,
config/base.py, CompressionFormat."""
MERGED = ("weight_input", "weight_output")
"""Places of compressed-tensors' transforms that are in the weights. Source: compressed-tensors, transform_args.py."""
BITS = 4


@dataclass(frozen=True)
class Method:
    """How a checkpoint was quantised."""

    name: str
    """Empty where nothing says."""
    zero_offset: int | None = 1
    """What is added to GPTQ's zero points: its first version holds them less by 1; None where nothing says."""
    refusal: str = ""
    """Why weights of words are not read, where they are not."""
    group: int = 0
    """Elements along k of a group of words; 0 where nothing says, or where they are a whole row."""
    block: tuple[int, ...] = ()
    """Rows and columns that a factor of FP8 is of; empty where nothing says."""
    has_wide_inputs: bool = False
    """Whether inputs stay in 16 bits beside elements of 8."""

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
        return Method("", zero_offset=None)
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
        _refuse_transforms(found)
        refusal = _compressed_bits(found) if layout == LAYOUTS[0] else ""
        extents = _compressed_group(found), _compressed_block(found)
        return Method(f"{name} {layout}", 1, refusal, *extents, _has_wide_inputs(found))
    if name not in {GPTQ, AWQ}:
        return Method(name, block=_block(found.get("weight_block_size")))
    bits = found.get("bits", found.get("w_bit", BITS))
    refusal = "" if bits == BITS else _bits(bits)
    if name == AWQ and str(found.get("version", "gemm")).lower() != "gemm":
        refusal = f"AWQ of version {short(found['version'])}; expected gemm, whose words are known; convert it"
    group = found.get("group_size", found.get("q_group_size"))
    return Method(name, _zero_offset(found) if name == GPTQ else 1, refusal, _positive(group))


def _zero_offset(found: dict[str, Any]) -> int:
    """Return what GPTQ's zero points lack, by the version that is stated; one that is not stated is the first."""
    stated = found.get("checkpoint_format", found.get("format")) or GPTQ
    if not isinstance(stated, str) or stated not in GPTQ_ZERO_OFFSETS:
        raise _refused("checkpoint_format", stated, tuple(GPTQ_ZERO_OFFSETS))
    return GPTQ_ZERO_OFFSETS[stated]


def _positive(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _block(value: object) -> tuple[int, ...]:
    """Read the extents of a block: a list, or a text such as 128x128."""
    held = value.split("x") if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(int(x) if str(x).isdecimal() else 0 for x in held)


def _weights(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what compressed-tensors says of the weights of each group of layers."""
    groups = found.get("config_groups")
    if not isinstance(groups, dict):
        return []
    held = [x.get("weights") if isinstance(x, dict) else None for x in groups.values()]
    return [x if isinstance(x, dict) else {} for x in held]


def _compressed_group(found: dict[str, Any]) -> int:
    """Return the elements of a group, where all groups of layers have the same."""
    sizes = {_positive(x.get("group_size")) for x in _weights(found)}
    return sizes.pop() if len(sizes) == 1 else 0


def _has_wide_inputs(found: dict[str, Any]) -> bool:
    """Say whether compressed-tensors says of each group of layers that its inputs are not quantised."""
    groups = found.get("config_groups")
    held = groups.values() if isinstance(groups, dict) else ()
    return bool(held) and all(isinstance(x, dict) and x.get("input_activations", {}) is None for x in held)


def _compressed_block(found: dict[str, Any]) -> tuple[int, ...]:
    blocks = {_block(x.get("block_structure")) for x in _weights(found)} - {()}
    return blocks.pop() if len(blocks) == 1 else ()


def _refuse_transforms(found: dict[str, Any]) -> None:
    """Refuse rotations that a model has to compute of its activations: the weights alone are another model."""
    stated = found.get("transform_config")
    schemes = stated.get("config_groups") if isinstance(stated, dict) else None
    for scheme in schemes.values() if isinstance(schemes, dict) else ():
        applied = scheme.get("apply") if isinstance(scheme, dict) else None
        for place in applied if isinstance(applied, list) else ():
            location = place.get("location") if isinstance(place, dict) else None
            if location not in MERGED:
                raise _refused("the location of a transform", location, MERGED)


def _bits(bits: object) -> str:
    return f"codes of {short(bits)} bits; expected {BITS}; quantise it to {BITS}, or load it by another library"


def _compressed_bits(found: dict[str, Any]) -> str:
    """Say why words of compressed-tensors are not read: those of 8 bits are told by nothing else."""
    for weights in _weights(found):
        if weights.get("num_bits") != BITS:
            return _bits(weights.get("num_bits"))
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
