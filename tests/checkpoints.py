"""Small checkpoints in the layouts that people publish, written here tensor by tensor, and what each stands for.

    python -m tests.checkpoints nvfp4 SOURCE.safetensors FOLDER

makes one of a checkpoint of 16 bits: the weights are rounded, written in the layout, and what they stand for is written
beside as `dequantised.safetensors`, in float32, for a comparison on a GPU.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

from aot.checkpoint.reading import wide_of
from aot.core.element import ElementType
from aot.core.numerics import encode
from aot.core.safetensors_file import header_bytes, read_header
from aot.core.weight_format import INT4_G128, INT4_G128_ZEROS, MXFP4, NVFP4
from aot.core.weight_rounding import by_blocks, by_rows, rounded
from aot.core.weight_values import weight_values

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
F16, BF16 = ElementType.FLOAT16, ElementType.BFLOAT16
QUANTIZATION = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
    },
    "nvfp4": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    "mxfp4": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    "fp8": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "modelopt_nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "modelopt_fp8": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "deepseek": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
"""By the name of a layout: what the configuration of such a checkpoint says."""
OF_EXPERTS = {"gpt_oss": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}}
"""The same of layouts that experts alone have."""
FORMATS = {
    **dict.fromkeys(("gptq", "gptq_v2", "awq"), "int4g128z"),
    **dict.fromkeys(("nvfp4", "modelopt_nvfp4"), "nvfp4"),
    **dict.fromkeys(("fp8", "modelopt_fp8"), "fp8"),
    "compressed": "int4g128",
    "mxfp4": "mxfp4",
    "deepseek": "fp8_block",
}
"""What each is packed as."""


def words(rows):
    """Put each eight numbers along the last axis into a word, the first into the lowest bits."""
    grouped = np.asarray(rows, np.uint64).reshape(*rows.shape[:-1], -1, 8)
    return (grouped << (4 * np.arange(8, dtype=np.uint64))).sum(-1).astype(np.uint32).view(np.int32)


def in_awq_order(rows):
    return words(rows.reshape(*rows.shape[:-1], -1, 8)[..., AWQ_ORDER].reshape(rows.shape))


def halves(codes):
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def quantised(layout, wide, element=F16):
    """Round a weight (n, k); return the tensors of a layout by the ends of their names, and what they stand for."""
    name = {ElementType.FLOAT16: "F16", ElementType.BFLOAT16: "BF16"}[element]
    if layout in {"gptq", "gptq_v2", "awq"}:
        parts = rounded(INT4_G128_ZEROS, wide, element).parts
        values = weight_values(INT4_G128_ZEROS, parts, element)
        codes, zeros, scales = parts.codes.T, parts.zeros.T, ("scales", name, parts.factors.T)
        if layout == "awq":
            held = [("qweight", "I32", in_awq_order(codes)), ("qzeros", "I32", in_awq_order(zeros)), scales]
        else:
            order = (np.arange(len(codes)) // 128).astype(np.int32)
            stored = zeros if layout == "gptq_v2" else (zeros - np.uint8(1)) & 15
            held = [
                ("qweight", "I32", words(codes.T).T),
                ("qzeros", "I32", words(stored)),
                scales,
                ("g_idx", "I32", order),
            ]
    elif layout == "compressed":
        parts = rounded(INT4_G128, wide, element).parts
        values = weight_values(INT4_G128, parts, element)
        shape = np.array(wide.shape, np.int64)
        held = [
            ("weight_packed", "I32", words(parts.codes)),
            ("weight_scale", name, parts.factors),
            ("weight_shape", "I64", shape),
        ]
    elif layout in {"nvfp4", "modelopt_nvfp4", "mxfp4"}:
        form = MXFP4 if layout == "mxfp4" else NVFP4
        whole = np.float32(2.0**-9)  # whose reciprocal is exact
        found = rounded(form, wide, element, whole)
        values = weight_values(form, found.parts, element) * (1 if form is MXFP4 else float(whole))
        codes = halves(found.parts.codes)
        if layout == "mxfp4":
            held = [("weight_packed", "U8", codes), ("weight_scale", "U8", found.parts.factors)]
        elif layout == "nvfp4":
            held = [("weight_packed", "U8", codes), ("weight_scale", "F8_E4M3", found.parts.factors)]
            held += [
                ("weight_global_scale", "F32", 1 / whole.reshape(1)),
                ("input_global_scale", "F32", whole.reshape(1)),
            ]
        else:
            held = [("weight", "U8", codes), ("weight_scale", "F8_E4M3", found.parts.factors)]
            held += [("weight_scale_2", "F32", whole.reshape(())), ("input_scale", "F32", whole.reshape(()))]
    elif layout == "deepseek":
        codes, scale = by_blocks(wide, 128)
        spread = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: wide.shape[0], : wide.shape[1]]
        values = weight_values_of_bytes(codes) * spread
        held = [("weight", "F8_E4M3", codes), ("weight_scale_inv", "F32", scale)]
    else:
        codes, scale = by_rows(wide, ElementType.E4M3)
        if layout == "modelopt_fp8":
            scale = np.full((), np.abs(wide).max() / np.float32(448), np.float32)
            codes = encode(ElementType.E4M3, wide / scale)
        values = weight_values_of_bytes(codes) * scale
        held = [("weight", "F8_E4M3", codes), ("weight_scale", "F32", scale)]
    return held, values


def gpt_oss(wide):
    """Round weights (experts, n, k); return the tensors of GPT-OSS's experts by their ends, and what they stand for."""
    parts = [rounded(MXFP4, x, BF16).parts for x in wide]
    blocks = np.stack([halves(x.codes).reshape(len(x.codes), -1, 16) for x in parts])
    values = np.stack([weight_values(MXFP4, x, BF16) for x in parts])
    return [("blocks", "U8", blocks), ("scales", "U8", np.stack([x.factors for x in parts]))], values


def weight_values_of_bytes(codes):
    from aot.core.numerics import decode

    return decode(ElementType.E4M3, codes)


def write_file(path, tensors):
    """Write tensors (name, type, array) to a file."""
    head = header_bytes((name, dtype, x.shape) for name, dtype, x in tensors)
    path.write_bytes(head + b"".join(np.ascontiguousarray(x).tobytes() for _, _, x in tensors))


def write_folder(folder, layout, tensors, *, config=None, num_files=1):
    """Write a checkpoint in as many files, with an index where there are several."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"model_type": "llama", **(config or {})}
    said = (QUANTIZATION | OF_EXPERTS).get(layout)
    if said:
        values["quantization_config"] = said
    (folder / "config.json").write_text(json.dumps(values))
    if num_files == 1:
        write_file(folder / "model.safetensors", tensors)
        return
    names, places = [f"model-{i}.safetensors" for i in range(num_files)], {}
    for i, name in enumerate(names):
        own = tensors[i::num_files]
        write_file(folder / name, own)
        places |= {x[0]: name for x in own}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def linears_of(layout, name, bits, dtype):
    """Give GPT-OSS's experts as Linears, of a stack (experts, k, n) or of biases, and what the stack stands for."""
    prefix, _, end = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if end.startswith("gate_up") else ("down_proj",)
    tensors, step = [], len(parts)
    if bits.ndim == 2:
        for i, j in np.ndindex(len(bits), step):
            tensors.append((f"{prefix}.{i}.{parts[j]}.bias", dtype, bits[i, j::step]))
        return tensors, (dtype, bits)
    found = np.empty(bits.shape, np.float32)
    for i, j in np.ndindex(len(bits), step):
        element = F16 if dtype == "F16" else BF16
        held, values = quantised(layout, wide_of(np.ascontiguousarray(bits[i, :, j::step].T), dtype), element)
        found[i, :, j::step] = values.T
        tensors += [(f"{prefix}.{i}.{parts[j]}.{end}", *rest) for end, *rest in held]
    return tensors, ("F32", found)


def convert(layout, source, folder, *, kept=("embed", "norm", "lm_head", "mlp.gate.", "moe.gate.", "router")):
    """Quantise a checkpoint of 16 bits; write the layout, and beside it the values that it stands for."""
    tensors, wide = [], []
    for name, stored in read_header(source).items():
        bits = np.array(stored.bits())
        if layout == "gpt_oss" and bits.ndim == 3:  # (experts, k, n)
            held, values = gpt_oss(wide_of(bits, stored.dtype).transpose(0, 2, 1))
            tensors += [(f"{name}_{end}", *rest) for end, *rest in held]
            wide.append((name, "F32", values.transpose(0, 2, 1).astype(np.float32)))
        elif layout != "gpt_oss" and ".experts." in name and not name.endswith((".weight", ".bias")):
            held, values = linears_of(layout, name, bits, stored.dtype)
            tensors += held
            wide.append((name, *values))
        elif layout != "gpt_oss" and name.endswith(".weight") and bits.ndim == 2 and not any(x in name for x in kept):
            element = F16 if stored.dtype == "F16" else BF16
            held, values = quantised(layout, wide_of(bits, stored.dtype), element)
            tensors += [(f"{name.removesuffix('weight')}{end}", *rest) for end, *rest in held]
            wide.append((name, "F32", values.astype(np.float32)))
        else:
            tensors.append((name, stored.dtype, bits))
            wide.append((name, stored.dtype, bits))
    config = source.with_name("config.json")
    write_folder(folder, layout, tensors, config=json.loads(config.read_text()) if config.is_file() else None)
    apart = folder / "dequantised"
    apart.mkdir(exist_ok=True)
    write_file(apart / "model.safetensors", wide)
    if config.is_file():
        shutil.copyfile(config, apart / "config.json")


if __name__ == "__main__":
    convert(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
