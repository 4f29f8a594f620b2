"""Execute NVIDIA's `TgvGemmKernel` as it is, and with the wait that it lacks, under many schedules; see the report.

    python research/tgv_tensor_memory.py --seeds 4

from the repository's root. Needs no GPU. Exit code 1 unless the first has faults and the second has none.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from aot.compile.compiler import ArtifactStore, compile_one
from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.operation import Operation
from aot.core.target import Target, load_target
from aot.emulate.build import build_host_library, emulated_library, emulated_target
from aot.emulate.execute import ExecutionOptions, Executor
from aot.emulate.kernels import EmulatedSet
from aot.emulate.schedule import Mode, Schedule

KEY = KernelKey(Operation.BF16_KK, gemm_candidate("sm100_tgv", 64, 8, num_stages=4, swap_ab=True, use_tma_store=False))
PROBLEMS = ((8, 64, 64), (40, 136, 200), (9, 72, 1160))
"""(m, n, k), of 1, 2 and 10 blocks of k."""
MODES = (Mode.RANDOM, Mode.EAGER, Mode.LAZY, Mode.PRIORITY, Mode.STRICT, Mode.STRICT_EAGER, Mode.STRICT_LAZY)


def compiled(target: Target, folder: Path, *, is_mended: bool) -> EmulatedSet:
    """Compile the kernel in this process, with the wait or without it."""
    from aot.families import _tgv_kernel  # imports CUTLASS, which takes the architecture from the environment

    awaited = _tgv_kernel.AwaitedBarrier
    if not is_mended:
        _tgv_kernel.AwaitedBarrier = lambda barrier: barrier
    try:
        outcome = compile_one(KEY, target, folder, folder)
    finally:
        _tgv_kernel.AwaitedBarrier = awaited
    artifact = ArtifactStore(folder).get(KEY, target)
    if artifact is None:
        sys.exit(f"{KEY.name} did not compile: {outcome}")
    library = emulated_library([artifact], [], target)
    path = build_host_library(library, {KEY.name: artifact.path}, target, folder)
    return EmulatedSet(target, (artifact,), (), (KEY.name,), path)


def faults(kernels: EmulatedSet, seeds: int) -> Counter[str]:
    """Execute the problems under each schedule; count the schedules by what was found first."""
    found: Counter[str] = Counter()
    for problem, mode, seed in itertools.product(PROBLEMS, MODES, range(seeds)):
        options = ExecutionOptions((Schedule(mode, seed),), problem)
        (case,) = Executor(kernels, options).execute(KEY.name).cases
        texts = [x.text for x in case.findings if x.is_fault] + ([case.fault] if case.fault else [])
        found[texts[0] if texts else "right"] += 1
    return found


def main() -> int:
    """Compare both kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="schedules of each mode and problem (4)")
    seeds = parser.parse_args().seeds
    target = emulated_target(load_target("thor"))
    os.environ |= {"CUTE_DSL_ARCH": target.arch, "QUACK_ARCH": target.arch.removeprefix("sm_").rstrip("af")}
    found = []
    for is_mended in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            found.append(faults(compiled(target, Path(folder), is_mended=is_mended), seeds))
        print("with the wait" if is_mended else "as NVIDIA has it")
        for text, count in found[-1].most_common():
            print(f"  {count:3}  {text}")
    return int(found[0].keys() == {"right"} or found[1].keys() != {"right"})


if __name__ == "__main__":
    sys.exit(main())
