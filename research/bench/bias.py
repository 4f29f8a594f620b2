"""Time linear with a bias beside torch.addmm and F.linear.

    PYTHONPATH=. python research/bench/bias.py --out bias.json

Protocol of research/bench/protocol.py: CUDA-graph replays over rotating operands, so that the L2 is cold, in
interleaved rounds. The speed is over the faster of torch's two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

if __package__ is None or not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm

from research.bench.protocol import capture, interleave, make_sets, relative_error

TUNED = ((4608, 3584), (1280, 1280), (5120, 1280), (1280, 5120))
"""(n, k) of aot/shapes/bias.toml."""
OTHERS = ((3072, 768), (4096, 4096))
"""(n, k) that no tuning with a bias saw."""
SIZES = (1, 8, 16, 64, 128, 512, 1500, 4096)
"""m; 1500 is not tuned."""


def compare(m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, Any]:
    """Time the wheel and torch on one problem, and compare the wheel's result with float32."""
    sets, bias = make_sets(m, n, k, dtype), torch.randn(n, device="cuda").to(dtype)
    calls = {
        "wheel": lambda x, weight, out: aot_gemm.linear(x, weight, bias, out=out),
        "addmm": lambda x, weight, out: torch.addmm(bias, x, weight.t(), out=out),
        "f_linear": lambda x, weight, _out: torch.nn.functional.linear(x, weight, bias),
    }
    times = interleave({name: capture(call, sets) for name, call in calls.items()})
    us = {f"{name}_us": round(statistics.median(values), 3) for name, values in times.items()}
    x, weight, out = sets[0]
    aot_gemm.linear(x, weight, bias, out=out.fill_(float("nan")))
    error = relative_error(out, x.float() @ weight.float().t() + bias.float())
    speed = min(us["addmm_us"], us["f_linear_us"]) / us["wheel_us"]
    name = str(dtype).removeprefix("torch.")
    return {"m": m, "n": n, "k": k, "dtype": name, **us, "speedup": round(speed, 4), "relative_error": round(error, 6)}


def main() -> None:
    """Time all problems, print the means and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    out = parser.parse_args().out
    pairs = [(n, k) for n, k in (*TUNED, *OTHERS)]
    rows = [compare(m, n, k, x) for x in (torch.bfloat16, torch.float16) for n, k in pairs for m in SIZES]
    for name, kept in (("tuned (n, k)", TUNED), ("other (n, k)", OTHERS)):
        speeds = [row["speedup"] for row in rows if (row["n"], row["k"]) in kept]
        print(f"{name}: mean {statistics.geometric_mean(speeds):.3f}x, worst {min(speeds):.3f}x of {len(speeds)}")
    device = torch.cuda.get_device_name()
    document = {"device": device, "torch": torch.__version__, "wheel": aot_gemm.__version__, "rows": rows}
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
