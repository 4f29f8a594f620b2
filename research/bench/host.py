"""What the bench measures outside the GPU: calls on the host, first calls in fresh processes, and the clocks."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from research.bench.protocol import Call, Operands

HOST_CALLS = 200
HOST_ROUNDS = 60
WARM_S = 0.5
"""How long the processor is kept busy first, so that its clock has risen."""


def host_us(makers: Mapping[str, Callable[[Sequence[Operands]], Call]], m: int, n: int, k: int) -> dict[str, float]:
    """Return the median wall-clock time of one enqueued call of each, in microseconds; they take turns.

    `makers` make a call for the operands that it will have. Gradients are off, as where a model runs.
    """
    x, weight = (torch.randn(rows, k, device="cuda").to(torch.bfloat16) for rows in (m, n))
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    calls = {name: make([(x, weight, out)]) for name, make in makers.items()}

    def batch_us(call: Call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(HOST_CALLS):
            call(x, weight, out)
        return (time.perf_counter_ns() - start) / HOST_CALLS / 1000

    warm_until = time.perf_counter() + WARM_S
    while time.perf_counter() < warm_until:
        for call in calls.values():
            batch_us(call)
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for i in range(HOST_ROUNDS):
            for name in sorted(calls, reverse=i % 2 == 0):
                times[name].append(batch_us(calls[name]))
    torch.cuda.synchronize()
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


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


def clocks() -> str:
    """Give the driver, the clocks now and the power limit, as nvidia-smi prints them."""
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not available"
