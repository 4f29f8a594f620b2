"""Compute vLLM's own linear layers under the plug-in of the wheel on a GPU, and hold them beside float64.

    python -m research.bench.vllm_layers -o build/bench/vllm_layers.json

from the repository's root, with torch, vLLM and a wheel that has kernels of the formats. vLLM's compiled part is not
needed, and not used: its platform of CUDA imports that part, so that the bench brings a platform of its own, by vLLM's
entry point for those (`vllm.platform_plugins`). Weights are stored in bfloat16; rounded to FP8 and to int4 as they are
loaded; and come from a checkpoint in int4, as compressed-tensors writes it. A layer's result is compared with what its
weight stands for, in float64, and with torch's product of that weight in bfloat16; of rounded ones the distance to the
weight before it was rounded is told too. Kernels are those that torch's profiler sees.

Exit code 0 if every layer is computed by the wheel and its error is within its bound, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aot.core.whole_file import write_whole
from research.bench.vllm_platform import register_platform

BF16 = torch.bfloat16
ROWS = (1, 16, 300)
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE = 4096, 32, 8, 128, 14336
"""Sizes of Llama 3 8B. Source: its config.json."""
BOUNDS = {None: 3e-3, "int4g128": 4e-3, "fp8": 4e-2}
"""By format, of the relative error against the weight as it is held.

A bfloat16 has 8 bits of significand, a root mean square of 1.7e-3; what an int4 weight stands for is rounded to one,
too, and the kernel takes it as it is. Inputs beside FP8 weights are rounded to e4m3, which has 4 bits.
"""


@dataclass(frozen=True)
class Row:
    """One layer at one number of rows."""

    layer: str
    weight: str
    """How the weight is held: `stored`, a format, or `checkpoint int4`."""
    m: int
    n: int
    k: int
    is_served: bool
    error: float
    """Frobenius norm of the error over that of the float64 result, of the weight as it is held."""
    torch_error: float
    """That of torch's product of the same weight in bfloat16."""
    unrounded_error: float
    """That of the layer, against the weight before it was rounded."""
    kernels: tuple[str, ...]
    bound: float

    @property
    def is_right(self) -> bool:
        """Say whether the wheel computed it, within the bound."""
        return self.is_served and self.error <= self.bound


def _distance(found: Any, exact: Any) -> float:
    return float(torch.linalg.vector_norm(found.double() - exact) / torch.linalg.vector_norm(exact))


def kernels_of(call: Any) -> tuple[str, ...]:
    """Return the names of the kernels that a call launches, as torch's profiler sees them."""
    from torch.profiler import ProfilerActivity, profile

    call()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        call()
        torch.cuda.synchronize()
    names = [x.name for x in seen.events() if x.device_type == torch.autograd.DeviceType.CUDA]
    return tuple(dict.fromkeys(names))


def layers(vllm_layers: Any) -> dict[str, Any]:
    """Return what makes each layer, by name."""
    return {
        "qkv": lambda **o: vllm_layers.QKVParallelLinear(HIDDEN, HEAD_DIM, HEADS, KV_HEADS, bias=False, **o),
        "o": lambda **o: vllm_layers.RowParallelLinear(HIDDEN, HIDDEN, bias=False, **o),
        "gate_up": lambda **o: vllm_layers.MergedColumnParallelLinear(HIDDEN, [WIDE, WIDE], bias=False, **o),
        "down": lambda **o: vllm_layers.RowParallelLinear(WIDE, HIDDEN, bias=False, **o),
        "with a bias": lambda **o: vllm_layers.ReplicatedLinear(HIDDEN, HIDDEN, bias=True, **o),
    }


def _filled(layer: Any) -> dict[str, Any]:
    """Give a layer values, have vLLM process them as when a checkpoint has been loaded; return what was given."""
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    generator = torch.Generator("cuda").manual_seed(len(list(layer.parameters())))
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, device="cuda", generator=generator) / 32)
    wide = {name: x.detach().clone() for name, x in layer.named_parameters()}
    config = type("Config", (), {"dtype": BF16, "quantization": None, "word_embeddings_untied_by_checkpoint": False})
    process_weights_after_loading(nn.ModuleList([layer]), config, torch.device("cuda"))
    return wide


def measured(
    name: str, weight: str, call: Any, held: Any, given: Any, bias: Any, bound: float, *, served: bool
) -> list[Row]:
    """Compute a layer at some numbers of rows."""
    n, k = held.shape
    found = []
    for m in ROWS:
        x = torch.randn(m, k, device="cuda", generator=torch.Generator("cuda").manual_seed(m)).to(BF16)
        added = 0 if bias is None else bias.double()
        exact, unrounded = (x.double() @ w.double().t() + added for w in (held, given))
        by_torch = nn.functional.linear(x, held.to(BF16), bias)
        kernels = kernels_of(lambda x=x: call(x))
        errors = _distance(call(x), exact), _distance(by_torch, exact), _distance(call(x), unrounded)
        found.append(Row(name, weight, m, n, k, served, *errors, kernels, bound))
    return found


def of_method(plug_in: Any, name: str | None) -> list[Row]:
    """Compute all layers by one of the plug-in's methods: of weights as they are stored, or of a format."""
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.quantization import get_quantization_config

    config = get_quantization_config(plug_in.NAME if name is None else f"{plug_in.NAME}_{name}")()
    found = []
    for kind, make in layers(linear).items():
        with torch.device("cuda"):
            layer = make(params_dtype=BF16, quant_config=config, prefix=f"model.{kind}")
        wide = _filled(layer)
        held = layer.weight if name is None else layer.rounded.dequantize()
        served = layer.quant_method.is_served if name is None else getattr(layer, "rounded", None) is not None
        found += measured(
            kind, name or "stored", lambda x, y=layer: y(x)[0], held.detach(), wide["weight"], wide.get("bias"),
            BOUNDS[name], served=served,
        )  # fmt: skip
    return found


def of_checkpoint(plug_in: Any, group: int = 128) -> list[Row]:
    """Compute a layer of a checkpoint in int4, by vLLM's own scheme and the plug-in's kernel."""
    from vllm.model_executor.kernels.linear import register_linear_kernel
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsWNA16
    from vllm.platforms import current_platform

    kernels = sys.modules[f"{plug_in.__package__}._vllm_kernels"]
    register_linear_kernel(kernels.AotGemmInt4LinearKernel, current_platform._enum, "mp")  # noqa: SLF001 - as vLLM asks it
    scheme, layer, (n, k) = CompressedTensorsWNA16("group", 4, group, True), nn.Module(), (HIDDEN, HIDDEN)
    with torch.device("cuda"):
        scheme.create_weights(layer, n, k, [n], k, BF16, lambda *_: None)
        codes = torch.randint(16, (n, k))
        factors = (torch.rand(n, k // group) / 64).to(BF16)
        shifts = 4 * torch.arange(8)
    words = (codes.reshape(n, k // 8, 8).long() << shifts).sum(-1)
    layer.weight_packed.data.copy_(torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32))
    layer.weight_scale.data.copy_(factors)
    scheme.process_weights_after_loading(layer)
    given = ((codes - 8).to(BF16) * factors.repeat_interleave(group, 1)).to(BF16)
    call = lambda x: scheme.apply_weights(layer, x, None)  # noqa: E731 - what `measured` is given
    held = layer.packed.dequantize()
    return measured(
        "o", "checkpoint int4", call, held, given, None, BOUNDS["int4g128"], served=hasattr(layer, "packed")
    )


def run() -> list[Row]:
    """Be the only rank of a server, and compute the layers."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with (
        tempfile.TemporaryDirectory() as folder,
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cuda"))),
    ):
        init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
        initialize_model_parallel(1, 1)
        import aot_gemm.vllm as plug_in  # type: ignore[import-not-found]  # of the wheel

        plug_in.register()
        found = [row for name in BOUNDS for row in of_method(plug_in, name)]
        return found + of_checkpoint(plug_in)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="where to write what was found")
    values = parser.parse_args()
    register_platform()
    with torch.no_grad():
        rows = run()
    import aot_gemm
    import vllm

    for row in rows:
        errors = f"{row.error:.2e} (torch {row.torch_error:.2e}, before rounding {row.unrounded_error:.2e})"
        mark, first = "" if row.is_right else "WRONG ", row.kernels[0][:50] if row.kernels else "no kernel seen"
        print(f"{mark}{row.weight:16} {row.layer:12} m {row.m:4} {errors} {first}")
    found = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "vllm": vllm.__version__,
        "wheel": aot_gemm.info().version,
        "rows": [asdict(x) for x in rows],
        "is_right": all(x.is_right for x in rows),
    }
    if values.out:
        write_whole(values.out, json.dumps(found, indent=1) + "\n")
    return 0 if found["is_right"] else 1


if __name__ == "__main__":
    sys.exit(main())
