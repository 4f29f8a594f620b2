"""Time the installed wheel's operations on rows, alone and in front of a product, beside torch eager and torch.compile.

    PYTHONPATH=. python research/bench/rows.py --out rows.json

from the repository's root, with torch and a wheel that has the operations: `aot build --target h200 --operations
default,rows,e4m3_bf16_kk`. Times are medians over interleaved rounds of CUDA-graph replays, with operands that rotate
over three times the L2 (research/bench/protocol.py). Each result is first held against torch's in float64. Whether
every kernel is right at every edge is `aot verify`'s to say, not this bench's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which bench.py would be found as `bench`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import numpy as np
import torch
from torch.nn import functional

from aot.core.element import ElementType
from aot.core.numerics import max_finite
from research.bench.options import Result, positive, write
from research.bench.protocol import L2_MULTIPLE, capture, interleave, relative_error
from research.bench.summary import geomean

E4M3 = torch.float8_e4m3fn
LARGEST = max_finite(ElementType.E4M3)
EPS = 1e-6
ROWS = (1, 16, 64, 512, 2048, 8192)
COLUMNS = (4096, 8192)
CHAINS = tuple((m, n, k) for n, k in ((4096, 4096), (14336, 4096)) for m in (1, 16, 64, 512))
"""(m, n, k) of a product behind an operation on rows."""
TOLERANCE = {torch.bfloat16: 1e-2, E4M3: 6e-2}
"""Largest relative Frobenius error: rounding gives 2^-9 / sqrt(3) or 2^-4 / sqrt(3), products a little more."""

Tensors = tuple[torch.Tensor, ...]
Call = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """What is timed: the wheel's calls, torch's, and the shapes of the tensors that both take."""

    name: str
    wheel: Call
    eager: Call
    shapes: tuple[tuple[int, ...], ...]
    """Of the tensors that a call takes; all are bfloat16."""


def _quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST
    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(E4M3), scale


def _rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = x + residual
    return functional.rms_norm(z, (z.shape[-1],), weight, EPS), z


def _rms_norm_e4m3(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Tensors:
    z = x + residual
    return *_quantised(functional.rms_norm(z, (z.shape[-1],), weight, EPS)), z


def _silu_mul(x: torch.Tensor) -> torch.Tensor:
    gate, linear = x.chunk(2, -1)
    return functional.silu(gate) * linear


def _wheel_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    return aot_gemm.rms_norm(x, weight, eps=EPS, residual=residual)


def _wheel_rms_norm_e4m3(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    y, z, scale = aot_gemm.rms_norm(x, weight, eps=EPS, residual=residual, out_dtype=E4M3)
    return y, scale, z


def alone(rows: int, columns: int) -> Iterator[Case]:
    """Return the operations on a matrix (rows, columns)."""
    x, weight = (rows, columns), (columns,)
    yield Case("rms_norm + residual", _wheel_rms_norm, _rms_norm, (x, x, weight))
    yield Case("rms_norm + residual to e4m3", _wheel_rms_norm_e4m3, _rms_norm_e4m3, (x, x, weight))
    yield Case("silu_mul", aot_gemm.silu_mul, _silu_mul, ((rows, 2 * columns),))
    yield Case("quantize", aot_gemm.quantize, _quantised, (x,))


def chains(m: int, n: int, k: int) -> Iterator[Case]:
    """Return a norm and a product of bfloat16, and a product of what is quantised in front of it, a factor a row."""
    weight8, scale = _quantised(torch.randn(n, k, device="cuda", dtype=torch.bfloat16))

    def norm_linear(x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor) -> Any:
        y, z = _wheel_rms_norm(x, residual, norm)
        return aot_gemm.linear(y, weight), z

    def norm_linear_torch(x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor) -> Any:
        y, z = _rms_norm(x, residual, norm)
        return functional.linear(y, weight), z

    def quantised_linear(x: torch.Tensor) -> Any:
        y, factors = aot_gemm.quantize(x)
        return aot_gemm.linear(y, weight8, scale_x=factors, scale_w=scale)

    def quantised_linear_torch(x: torch.Tensor) -> Any:
        y, factors = _quantised(x)
        return torch._scaled_mm(y, weight8.t(), factors, scale.t(), out_dtype=torch.bfloat16)  # type: ignore[operator]  # noqa: SLF001

    yield Case("norm, linear", norm_linear, norm_linear_torch, ((m, k), (m, k), (k,), (n, k)))
    yield Case("quantize, linear of e4m3", quantised_linear, quantised_linear_torch, ((m, k),))


def _sets(case: Case) -> list[Tensors]:
    """Make a case's tensors, as many sets as exceed the L2 three times over."""
    num_bytes = sum(2 * int(np.prod(shape)) for shape in case.shapes)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(2, min(64, -(-L2_MULTIPLE * l2_bytes // num_bytes)))
    return [
        tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in case.shapes) for _ in range(count)
    ]


def _first(result: Any) -> torch.Tensor:
    found: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return found


def run(case: Case, size: dict[str, int], *, compiles: bool) -> dict[str, Any]:
    """Compare a case's results, and time it in the same rounds.

    Raises:
        ValueError: the wheel's result is not torch's.
    """
    sets = _sets(case)
    found, expected = _first(case.wheel(*sets[0])), _first(case.eager(*sets[0]))
    error = relative_error(found, expected)
    if not error <= TOLERANCE[found.dtype]:
        raise ValueError(
            f"{case.name} {size}: relative error {error:.2e}; expected at most {TOLERANCE[found.dtype]:.0e}"
        )
    calls = {"wheel": case.wheel, "eager": case.eager}
    if compiles:
        torch._dynamo.reset()  # type: ignore[attr-defined,no-untyped-call]  # noqa: SLF001 - each size is compiled for itself
        calls["compile"] = torch.compile(case.eager)
    graphs = {name: capture(call, sets) for name, call in calls.items()}
    us = {name: round(float(np.median(times)), 3) for name, times in interleave(graphs).items()}
    return {"name": case.name, **size, "us": us, "relative_error": error}


def summary(result: Result) -> str:
    """Say how the wheel's times compare, by case and size."""
    lines = [f"{result['device']}, wheel {result['wheel']}, torch {result['torch']}, {result['date']}"]
    for name in dict.fromkeys(row["name"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["name"] == name]
        for baseline in ("eager", "compile"):
            speeds = [row["us"][baseline] / row["us"]["wheel"] for row in rows if baseline in row["us"]]
            if speeds:
                lines.append(
                    f"{name:32s} over {baseline:8s} {geomean(speeds):.2f}x, worst {min(speeds):.2f}x of {len(speeds)}"
                )
    return "\n".join([*lines, *(f"failed: {text}" for text in result["failures"])])


def cases(columns: Sequence[int]) -> Iterator[tuple[Case, dict[str, int]]]:
    """Return all that is timed, with its size."""
    for k in columns:
        for m in ROWS:
            for case in alone(m, k):
                yield case, {"m": m, "columns": k}
    for m, n, k in CHAINS:
        for case in chains(m, n, k):
            yield case, {"m": m, "n": n, "k": k}


def main() -> int:
    """Run from the command line; 1 if a result was not torch's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--columns", type=positive, nargs="+", default=COLUMNS, help="of the operations alone")
    parser.add_argument(
        "--no-compile", action="store_true", help="leave torch.compile out, which takes most of the time"
    )
    parser.add_argument("--max-seconds", type=positive, default=600, help="begin nothing after this (default: 600)")
    values = parser.parse_args()
    result: Result = {"date": time.strftime("%Y-%m-%d"), "device": torch.cuda.get_device_name()}
    result |= {"torch": torch.__version__, "wheel": aot_gemm.__version__, "rows": [], "failures": []}
    end = time.monotonic() + values.max_seconds
    with torch.no_grad():
        for case, size in cases(values.columns):
            if time.monotonic() > end:
                result["failures"].append(f"{values.max_seconds} s were over before {case.name} {size}")
                break
            try:
                result["rows"].append(run(case, size, compiles=not values.no_compile))
            except (ValueError, RuntimeError, aot_gemm.AotGemmError) as error:
                result["failures"].append(f"{case.name} {size}: {error}")
    print(summary(result))
    write(values.out, result)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
