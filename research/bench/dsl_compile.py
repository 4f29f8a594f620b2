"""Measure, on a build host, what a first call costs where kernels are compiled as they are met: one DSL compile.

python research/bench/dsl_compile.py prints medians over fresh processes: importing the DSL and the kernel library, and
compiling one bf16 kernel. No GPU is needed; a process that compiles at run time pays both before its first result.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

CODE = """
import os, time
os.environ["CUTE_DSL_ARCH"], os.environ["QUACK_ARCH"] = "sm_90a", "90"
start = time.perf_counter()
from cutlass import cute
import quack.gemm_default_epi
imported = time.perf_counter()
from aot.core.candidate import Candidate, gemm_candidate
from aot.families import family_of
from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.core.target import load_target
candidate = gemm_candidate("sm90_quack", 128, 128, 2, 1, "pingpong")
entry = family_of(candidate).entry(candidate, Operation.of(ElementType.BFLOAT16), load_target("h200"))
begin = time.perf_counter()
host = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v2"
cute.compile(entry.function, *entry.arguments, options=f"--gpu-arch sm_90a --host-target '{host}'")
print(imported - start, time.perf_counter() - begin)
"""


def main() -> None:
    """Run from the command line."""
    rows = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        rows.append([float(value) for value in done.stdout.split()[-2:]])
    imports, compiles = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"import {imports:.2f} s, compile {compiles:.2f} s a kernel (medians of {len(rows)} fresh processes)")


if __name__ == "__main__":
    main()
