"""Say what an image's kernels are, whether they run here, and how long the first answer takes."""

from __future__ import annotations

import importlib
import platform
import sys
import time
from pathlib import Path

START = time.perf_counter()


def milliseconds() -> str:
    """Return the time since this began."""
    return f"{(time.perf_counter() - START) * 1e3:.1f} ms"


def main() -> None:
    """Print a line for each answer."""
    names = sorted(x.parent.name for x in Path(__file__).parent.glob("*/manifest.json"))
    if not names:
        sys.exit("answer.py: there is no package of kernels beside it")
    for name in names:
        package = importlib.import_module(name)
        print(f"{name} {package.__version__} on {platform.machine()}, imported after {milliseconds()}")
        plan = package.plan(16, 4096, 4096)
        print(f"first answer after {milliseconds()}: bf16 16x4096x4096 is computed by {plan.kernel}")
        try:
            package.preload()
        except (package.NoGpuError, package.ArchitectureError) as error:
            print(f"no GPU for it after {milliseconds()}: {error}")
        else:
            print(f"all kernels loaded after {milliseconds()}")
            print(package.info())


if __name__ == "__main__":
    main()
