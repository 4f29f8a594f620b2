"""Run every kernel of the installed wheel at three shapes and check the results: what compute-sanitizer watches.

    compute-sanitizer --tool memcheck python bench/every_kernel.py
    for i in $(seq 14); do
      compute-sanitizer --tool racecheck --kernel-name kns=kernel_cutlass python bench/every_kernel.py --part $i/14 &
    done; wait

from the repository's root, with the wheel and torch installed and the root on PYTHONPATH. The shapes are small; most
tiles lie partly outside. racecheck took 25 s so on an H200; one process, torch's kernels looked into as well, had told
nothing in 75. What it reports, and why: docs/log/2026-11-21-sanitizer.md.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path

import aot_gemm
import torch

from aot.core.errors import DeviceError
from aot.measure.kernel_library import (
    B_CONSTANT,
    CURRENT_DEVICE,
    KernelLibrary,
    ProblemStruct,
    TensorStruct,
    operation_of,
)

SHAPES = ((40, 264, 392), (304, 1032, 648), (8, 2056, 520))
"""(m, n, k): multiples of 8, so that each layout is aligned."""
TOLERANCE = 0.01
"""Relative Frobenius error: four times the worst of `linear` in bfloat16, 0.0026 (tests/device)."""


def _held(matrix: torch.Tensor, is_k_major: bool) -> torch.Tensor:
    return matrix if is_k_major else matrix.t().contiguous().t()


def fault(library: KernelLibrary, kernel: int, shape: tuple[int, int, int]) -> str:
    """Run a kernel and say what is wrong; nothing where all is well."""
    operation = operation_of(library.names[kernel])
    torch_dtype = getattr(torch, operation.element.value)
    m, n, k = shape
    a, b = (torch.randn(rows, k, device="cuda").to(torch_dtype) for rows in (m, n))
    expected = a.double() @ b.double().t()
    a, b = _held(a, operation.a.is_k_major), _held(b, operation.b.is_k_major)
    bias = torch.randn(1, n, device="cuda").to(torch_dtype) * operation.has_bias
    expected += bias.double()
    d = torch.full((m, n), float("nan"), device="cuda", dtype=torch_dtype)
    tensors = [TensorStruct(x.data_ptr(), tuple(x.stride())) for x in (a, b, d)]
    size = ctypes.sizeof(ProblemStruct)
    problem = ProblemStruct(size, library.operation(operation.call), CURRENT_DEVICE, m, n, k, *tensors, B_CONSTANT)
    if operation.has_bias:
        problem.bias = TensorStruct(bias.data_ptr(), tuple(bias.stride()))
    try:
        num_bytes = library.workspace_bytes(kernel, problem)
        workspace = torch.empty(max(num_bytes, 1), dtype=torch.uint8, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        library.launch(kernel, problem, workspace.data_ptr() if num_bytes else 0, num_bytes, stream)
        torch.cuda.synchronize()
    except DeviceError as error:
        return str(error)
    relative = float((d.double() - expected).norm() / expected.norm())
    return "" if relative <= TOLERANCE else f"relative error {relative:.3g}; expected at most {TOLERANCE}"


def _part(text: str) -> tuple[int, int]:
    """Read I/N; raise ValueError, which argparse reports, for anything else than 1 <= I <= N."""
    part, num_parts = (int(number) for number in text.split("/"))
    if not 1 <= part <= num_parts:
        raise ValueError(text)
    return part, num_parts


def main() -> int:
    """Run from the command line; 1 if a kernel failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kernels", default="", help="only kernels whose name contains this")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="only the I-th of N parts, from 1 on")
    values = parser.parse_args()
    library = KernelLibrary(next(Path(aot_gemm.__file__).parent.glob("lib*.so.*")))
    part, num_parts = values.part
    chosen = [i for i, name in enumerate(library.names) if values.kernels in name][part - 1 :: num_parts]
    num_faults = 0
    for kernel in chosen:
        for shape in SHAPES:
            text = fault(library, kernel, shape)
            num_faults += bool(text)
            print(f"{library.names[kernel]} m{shape[0]} n{shape[1]} k{shape[2]}: {text or 'right'}", flush=True)
    print(f"{len(chosen)} kernels at {len(SHAPES)} shapes each: {num_faults} failed")
    return 1 if num_faults or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
