"""Where a checkpoint says how it was quantised: in config.json, or in a file of its own beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MODELOPT = "hf_quant_config.json"
"""Where ModelOpt says how it quantised, if config.json does not. Source: NVIDIA ModelOpt, export_hf_checkpoint."""
OLDER = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Where AutoGPTQ and AutoAWQ say how they quantised, if config.json does not, and the method that it then is."""
KEYS = ("quantization_config", "compression_config")
"""Of config.json; the second is compressed-tensors' older one. Source: vLLM, ModelConfig._parse_quant_hf_config."""
MIXED = "MIXED_PRECISION"
"""ModelOpt's `quant_algo` where modules have their own, which may stand in `MODELOPT` alone."""
LAYERS = "quantized_layers"


def stated_quantization(values: Mapping[str, Any], read: Callable[[str], Mapping[str, Any] | None]) -> Any:
    """Return what says how weights were quantised: an object, if it is well; None where nothing does.

    Args:
        values: config.json.
        read: reads a file of JSON beside it, by its name; None where there is none.
    """
    text = values.get("text_config")
    places = (values, text) if isinstance(text, dict) else (values,)
    found = next((x[key] for x in places for key in KEYS if x.get(key) is not None), None)
    is_mixed = isinstance(found, dict) and found.get("quant_algo") == MIXED and LAYERS not in found
    if found is None or is_mixed:
        beside = (read(MODELOPT) or {}).get("quantization")
        if isinstance(found, dict) and isinstance(beside, dict):
            return {LAYERS: beside.get(LAYERS), **found}
        if found is None and beside is not None:
            return {**beside, "quant_method": "modelopt"} if isinstance(beside, dict) else beside
    for name, method in OLDER.items() if found is None else ():
        older = read(name)
        if older is not None:
            return {"quant_method": method, **older}
    return found
