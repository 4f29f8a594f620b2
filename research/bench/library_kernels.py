"""Write which kernels torch launches for each product of a shape set, by the names that the profiler gives them.

    PYTHONPATH=. python research/bench/library_kernels.py --shapes tiles_drawn --operation bf16_kk --out kernels.json

`python -m research.studies tiles kernels.json` lists kernels of ours with the tiles and clusters of those.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

if not __package__:  # run as a file, beside which other benches would be found first
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.shape_set import load_shape_set
from research.bench.options import write

FP8 = Operation.E4M3_BF16_KK
OPERATIONS = {x.tag: x for x in (Operation.BF16_KK, Operation.BF16_KN, Operation.BF16_MK, Operation.BF16_MN, FP8)}


def call_of(problem: Problem) -> Callable[[], torch.Tensor]:
    """Return torch's product of a problem's sizes and layout, of zeros: the kernel does not depend on values."""
    operation, m, n, k = problem.operation, problem.m, problem.n, problem.k
    made = partial(torch.zeros, dtype=torch.float8_e4m3fn if operation is FP8 else torch.bfloat16, device="cuda")
    x = made(m, k) if operation.a.is_k_major else made(k, m).t()
    weight = made(n, k).t() if operation.b.is_k_major else made(k, n)
    if operation is FP8:
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(x, weight, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: SLF001
    return lambda: torch.mm(x, weight)


def kernels_of(call: Callable[[], torch.Tensor]) -> list[str]:
    """Return the names of the kernels that a call launches, after a first call."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    return [x.name for x in found.events() if x.device_type == torch.autograd.DeviceType.CUDA]


def main() -> None:
    """Look at every product of the shape set, and write what was launched."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="tiles_drawn", help="shape set: a shipped name or a TOML file")
    parser.add_argument("--operation", choices=OPERATIONS, default=Operation.BF16_KK.tag)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    values = parser.parse_args()
    operation = OPERATIONS[values.operation]
    problems = load_shape_set(values.shapes).problems(operation)
    rows = [[x.m, x.n, x.k, kernels_of(call_of(x))] for x in problems]
    write(values.out, {"torch": torch.__version__, "operation": operation.tag, "kernels": rows})


if __name__ == "__main__":
    main()
