"""Measure the installed wheel against torch on this machine's GPU, both in one run, and write JSON and a table.

Needs the wheel, torch and nothing of the toolchain: python bench/bench.py --out h200.json

Times of products: medians over interleaved rounds of CUDA-graph replays; each graph holds launches that rotate over
sets of operands of three times the L2 in all, so that the L2 is cold. Host times: wall clock of calls with `out=` that
are only enqueued. First calls: in fresh processes, torch imported and the CUDA context made.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aot_gemm
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LADDER = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WEIGHTS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192))
UNTUNED = (
    (7, 14336, 5120),
    (12, 3584, 14336),
    (23, 19456, 2560),
    (40, 2560, 9728),
    (64, 7168, 7168),
    (90, 8192, 3584),
    (128, 7168, 7168),
    (180, 6144, 2560),
    (250, 2816, 2816),
    (333, 28672, 3584),
    (512, 5120, 4096),
    (640, 7168, 2048),
    (900, 2560, 9728),
    (1300, 8192, 3584),
    (2500, 5120, 4096),
    (6000, 2816, 2816),
)
"""Shapes that no tuning saw: (m, n, k) of other models, and m off the ladder."""

ROUNDS = 9
GRAPH_US = 1500.0
L2_MULTIPLE = 3
HOST_CALLS = 200
HOST_REPEATS = 30


def ours(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call the wheel."""
    return aot_gemm.linear(x, weight, out)


def theirs(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call torch."""
    return torch.matmul(x, weight.t(), out=out)


def make_sets(m: int, n: int, k: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Make operands, (m, k), (n, k) and (m, n), as many sets as exceed the L2 three times over."""
    num_bytes = 2 * (m * k + n * k + m * n)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(2, min(200, math.ceil(L2_MULTIPLE * l2_bytes / num_bytes)))
    sets = []
    for _ in range(count):
        x, weight = (torch.randn(rows, k, device="cuda").to(dtype) for rows in (m, n))
        sets.append((x, weight, torch.empty(m, n, dtype=dtype, device="cuda")))
    return sets


def capture(call: Any, sets: Sequence[tuple[torch.Tensor, ...]]) -> tuple[torch.cuda.CUDAGraph, int]:
    """Capture enough launches to last GRAPH_US; give the graph and their number."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for operands in sets[:2]:
        call(*operands)
    torch.cuda.synchronize()
    start.record()
    for operands in sets[:2]:
        call(*operands)
    end.record()
    end.synchronize()
    rough_us = max(start.elapsed_time(end) * 500, 2.0)
    count = len(sets) * max(1, min(round(GRAPH_US / rough_us / len(sets)), 200 // len(sets)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(*sets[i % len(sets)])
    graph.replay()
    return graph, count


def replay_us(graph: torch.cuda.CUDAGraph, count: int) -> float:
    """Time one replay, in microseconds a launch."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / count


def compare(m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, Any]:
    """Time both on one problem in interleaved rounds, and check that they agree."""
    sets = make_sets(m, n, k, dtype)
    graphs = {name: capture(call, sets) for name, call in (("wheel", ours), ("torch", theirs))}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for i in range(ROUNDS):
        for name in sorted(graphs, reverse=i % 2 == 0):
            times[name].append(replay_us(*graphs[name]))
    x, weight, _ = sets[0]
    expected = theirs(x, weight, torch.empty_like(sets[0][2])).float()
    error = torch.linalg.vector_norm(aot_gemm.linear(x, weight).float() - expected) / torch.linalg.vector_norm(expected)
    plan = aot_gemm.plan(m, n, k, str(dtype).removeprefix("torch."))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "m": m,
        "n": n,
        "k": k,
        "dtype": str(dtype).removeprefix("torch."),
        "kernel": plan.kernel,
        "wheel_us": round(medians["wheel"], 3),
        "torch_us": round(medians["torch"], 3),
        "wheel_spread": round((max(times["wheel"]) - min(times["wheel"])) / medians["wheel"], 4),
        "torch_spread": round((max(times["torch"]) - min(times["torch"])) / medians["torch"], 4),
        "speedup": round(medians["torch"] / medians["wheel"], 4),
        "difference": round(float(error), 6),
    }


def host_us(call: Any, m: int, n: int, k: int) -> float:
    """Give the median wall-clock time of one enqueued call, in microseconds."""
    x, weight = (torch.randn(rows, k, device="cuda").to(torch.bfloat16) for rows in (m, n))
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    call(x, weight, out)
    times = []
    for _ in range(HOST_REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(HOST_CALLS):
            call(x, weight, out)
        times.append((time.perf_counter_ns() - start) / HOST_CALLS / 1000)
    torch.cuda.synchronize()
    return statistics.median(times)


FIRST_CALL = """
import sys, time
import torch
x = torch.randn(64, 4096, device="cuda").to(torch.bfloat16)
weight = torch.randn(4096, 4096, device="cuda").to(torch.bfloat16)
torch.cuda.synchronize()
start = time.perf_counter()
if sys.argv[1] == "wheel":
    import aot_gemm
    aot_gemm.linear(x, weight)
else:
    torch.matmul(x, weight.t())
torch.cuda.synchronize()
first = time.perf_counter() - start
if sys.argv[1] == "wheel":
    start = time.perf_counter()
    aot_gemm.preload()
    print(first * 1e3, (time.perf_counter() - start) * 1e3)
else:
    print(first * 1e3, 0.0)
"""


def first_call_ms(name: str) -> tuple[float, float]:
    """Give the median time to a first result, and of preload(), in milliseconds, over five fresh processes."""
    rows = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", FIRST_CALL, name], capture_output=True, text=True, check=True)
        rows.append(tuple(float(value) for value in done.stdout.split()))
    return statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)


def _clocks() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not available"


def geomean(values: Sequence[float]) -> float:
    """Give the geometric mean."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def run(dtypes: Sequence[str], rounds_report: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything; give what is written as JSON."""
    wheel = aot_gemm.info()
    folder = Path(aot_gemm.__file__).parent
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "wheel": wheel.version,
        "num_kernels": len(wheel.kernels),
        "library_bytes": sum(path.stat().st_size for path in folder.glob("*.so")),
        "tuned": [],
        "untuned": [],
    }
    first = {name: first_call_ms(name) for name in ("wheel", "torch")}
    result["first_call_ms"] = {name: round(values[0], 2) for name, values in first.items()}
    result["preload_ms"] = round(first["wheel"][1], 2)
    result["host_us"] = {
        "wheel": round(host_us(ours, 16, 4096, 4096), 3),
        "torch_matmul": round(host_us(theirs, 16, 4096, 4096), 3),
        "torch_mm": round(host_us(lambda x, w, out: torch.mm(x, w.t(), out=out), 16, 4096, 4096), 3),
    }
    for name in dtypes:
        dtype = getattr(torch, name)
        problems = [("tuned", m, n, k) for n, k in WEIGHTS for m in LADDER]
        problems += [("untuned", *shape) for shape in UNTUNED]
        for kind, m, n, k in problems:
            row = compare(m, n, k, dtype)
            result[kind].append(row)
            rounds_report(f"{name} {kind} m{m} n{n} k{k}: {row['wheel_us']} us, torch {row['torch_us']} us")
    result["clocks_after"] = _clocks()
    return result


def summary(result: dict[str, Any]) -> str:
    """Render the result as Markdown."""
    lines = [f"{result['device']}, torch {result['torch']}, wheel {result['wheel']}, {result['date']}", ""]
    for kind in ("tuned", "untuned"):
        for dtype in dict.fromkeys(row["dtype"] for row in result[kind]):
            ratios = [row["speedup"] for row in result[kind] if row["dtype"] == dtype]
            lines.append(f"{dtype}, {kind}: geomean {geomean(ratios):.3f}x of torch.matmul, worst {min(ratios):.3f}x")
    lines += ["", "| m | " + " | ".join(f"n {n}, k {k}" for n, k in WEIGHTS) + " |", "|---|" + "---|" * len(WEIGHTS)]
    cells = {(r["m"], r["n"], r["k"]): r for r in result["tuned"] if r["dtype"] == result["tuned"][0]["dtype"]}
    for m in LADDER:
        row = [cells[m, n, k] for n, k in WEIGHTS]
        lines.append(f"| {m} | " + " | ".join(f"{r['wheel_us']:.1f} us, {r['speedup']:.2f}x" for r in row) + " |")
    keys = ("first_call_ms", "preload_ms", "host_us", "num_kernels", "library_bytes", "clocks_after")
    return "\n".join([*lines, "", *(f"{key}: {result[key]}" for key in keys)])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float16"], help="default: both")
    parser.add_argument("--table", action="store_true", help="only print the table of an existing --out")
    values = parser.parse_args()
    if not values.table:
        result = run(values.dtype or ["bfloat16", "float16"], lambda line: print(line, file=sys.stderr, flush=True))
        values.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(summary(json.loads(values.out.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
