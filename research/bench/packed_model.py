"""A small model of transformers, quantised as published checkpoints are, packed, loaded, and its logits compared.

    python -m research.bench.packed_model --layout nvfp4 --layout gptq --device cuda -o packed_model.json
    python -m research.bench.packed_model --model qwen3_moe --layout deepseek --layout awq  # a mixture of experts
    python -m research.bench.packed_model --model gpt_oss --layout gpt_oss  # whose experts alone are quantised

needs a wheel that has the operations, transformers and safetensors; on the CPU, torch computes what kernels would.
Weights are random. For each layout the checkpoint of 16 bits is rounded and written in that layout, `aot pack` packs
it, and `load_quantized` makes the model of its configuration. Beside it stand the values that the checkpoint stands
for, as a plain model in float32, and the same in the type of x: the loaded model is to be as close to the first as the
second is. Exits with 1 where an error is more than twice that one. Formats of FP8 round inputs too, and are only
reported.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers

from aot.checkpoint.packing import Request, pack_checkpoint
from tests import checkpoints

ROWS = ((1, 1), (1, 5), (1, 16), (2, 40))
"""Sequences, and tokens of each."""
MODELS = ("llama", "qwen3_moe", "deepseek_v3", "mixtral", "gpt_oss")
NARROW_INPUTS = ("fp8", "modelopt_fp8", "deepseek")


def configured(model: str, hidden: int) -> Any:
    """Return the configuration of two layers."""
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "head_dim": 64,
        "vocab_size": 1024,
        "initializer_range": 0.05,
    }
    if model == "gpt_oss":
        return transformers.GptOssConfig(**sizes | {"intermediate_size": hidden}, **_experts("num_local_experts"))
    if model == "mixtral":
        return transformers.MixtralConfig(**sizes, **_experts("num_local_experts"))
    if model == "deepseek_v3":
        ranks = {"kv_lora_rank": 256, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64}
        groups = {"n_group": 4, "topk_group": 2, "v_head_dim": 64, "moe_intermediate_size": hidden // 2}
        more = ranks | groups | {"first_k_dense_replace": 1, "num_key_value_heads": hidden // 64}
        return transformers.DeepseekV3Config(**sizes | more, **_experts("n_routed_experts"))
    if model == "qwen3_moe":
        return transformers.Qwen3MoeConfig(**sizes, moe_intermediate_size=hidden // 2, **_experts("num_experts"))
    return transformers.LlamaConfig(**sizes)


def _experts(count: str) -> dict[str, int]:
    return {count: 8, "num_experts_per_tok": 2}


def make(folder: Path, dtype: torch.dtype, hidden: int, model: str = "llama") -> None:
    """Write a model of two layers with random weights."""
    torch.manual_seed(0)
    config = configured(model, hidden)
    made = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, x in made.named_parameters():
            if name.endswith("bias"):  # which are zeros else
                x.normal_(std=0.05)
    made.to(dtype).save_pretrained(folder)


def compare(layout: str, folder: Path, package: str, dtype: torch.dtype, device: str) -> dict[str, object]:
    """Quantise, pack and load; return the worst errors of logits, and root mean squares, over their deviation."""
    checkpoints.convert(layout, folder / "wide" / "model.safetensors", folder / layout)
    packed = folder / f"{layout}-packed"
    report = pack_checkpoint(Request(folder / layout, packed), 1)
    wide = folder / layout / "dequantised"
    exact, plain = (
        transformers.AutoModelForCausalLM.from_pretrained(wide, dtype=x).to(device).eval()
        for x in (torch.float32, dtype)
    )
    gemm = import_module(f"{package}.torch")
    config = transformers.AutoConfig.from_pretrained(packed)
    loaded = gemm.load_quantized(config, packed, device=device, dtype=dtype)
    errors = {"ours": 0.0, "torch": 0.0, "ours_rms": 0.0, "torch_rms": 0.0}
    for shape in ROWS:
        tokens = torch.randint(0, 1024, shape, device=device)
        with torch.no_grad():
            expected = exact(tokens).logits
            for name, model in (("ours", loaded), ("torch", plain)):
                difference = (model(tokens).logits.float() - expected) / expected.std()
                errors[name] = max(errors[name], float(difference.abs().max()))
                errors[f"{name}_rms"] = max(errors[f"{name}_rms"], float(difference.square().mean().sqrt()))
    made = [x for name, x in loaded.model.layers.named_modules() if name.endswith(("proj", "experts"))]
    kinds = {type(x).__name__ for x in made}
    return {
        "layout": layout,
        "dtype": str(dtype),
        "packed": len(report.folder.layers),
        "kinds": sorted(kinds),
        **errors,
    }


def main() -> int:
    """Compare the layouts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = [*checkpoints.QUANTIZATION, *checkpoints.OF_EXPERTS]
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--layout", choices=known, action="append")
    parser.add_argument("--package", default="aot_gemm", help="import name of the wheel")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("-o", "--output", type=Path)
    values = parser.parse_args()
    dtype, found = getattr(torch, values.dtype), []
    with tempfile.TemporaryDirectory() as name:
        make(Path(name) / "wide", dtype, values.hidden, values.model)
        for layout in values.layout or checkpoints.QUANTIZATION:
            found.append(compare(layout, Path(name), values.package, dtype, values.device))
            print(json.dumps(found[-1]), flush=True)
    if values.output:
        values.output.write_text(json.dumps(found, indent=1) + "\n")
    bad = [x for x in found if x["layout"] not in NARROW_INPUTS and x["ours"] > 2 * x["torch"]]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
