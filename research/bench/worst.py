r"""Run the bench's worst cells once each, by torch and by the wheel: what a profiler looks at.

    ncu --clock-control none -k regex:"nvjet|cutlass" --metrics gpu__time_duration.sum,sm__cycles_elapsed.max,\
lts__t_sectors_op_read.sum,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed \
        python research/bench/worst.py research/bench/results/h200_20261126_bench.json

Each cell runs twice, torch first; the profiler flushes the caches before every kernel.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import torch

from research.bench.compact import read_result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("result", type=Path, help="JSON of research/bench/bench.py")
    parser.add_argument("--cells", type=int, default=3, help="how many, the slowest beside torch first (default: 3)")
    values = parser.parse_args()
    rows = read_result(values.result)["tuned"]
    for row in sorted(rows, key=lambda x: x["torch_us"] / x["wheel_us"])[: values.cells]:
        dtype, m, n, k = getattr(torch, row["dtype"]), row["m"], row["n"], row["k"]
        print(f"{row['dtype']} m{m} n{n} k{k}: {row['torch_us'] / row['wheel_us']:.3f}x of torch", flush=True)
        x, weight = (torch.randn(size, k, device="cuda").to(dtype) for size in (m, n))
        out = torch.empty(m, n, dtype=dtype, device="cuda")
        for _ in range(2):
            torch.mm(x, weight.t(), out=out)
            aot_gemm.linear(x, weight, out=out)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
