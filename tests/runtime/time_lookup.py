"""Time the look-up in the H200 selection's table, on this machine: python -m tests.runtime.time_lookup.

The C++ is compiled as the wheel's is, by the same compiler with the same options, but over the recorder and into one
program: no launch, no GPU, and nothing between the clock and the look-up.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from aot.core.target import load_target
from aot.select.selection import read_selection
from tests.golden.manifest import golden_manifest, kernel, with_table
from tests.runtime import host

ROOT = Path(__file__).parents[2]


def shipped_manifest():
    """Make the manifest of the committed selection, without its objects."""
    selection = read_selection(ROOT / "aot" / "selections" / "h200.json.gz")
    fallbacks = {x.fallback for x in selection.table.sections}
    kernels = tuple(
        kernel(x.operation, x.candidate, num_strides=2 if i in fallbacks else 1)
        for i, x in enumerate(selection.kernels)
    )
    return with_table(golden_manifest(), kernels, selection.table)


def main():
    target = load_target("h200")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        sources = host.library_sources(shipped_manifest(), directory)
        machine = ["-target", f"{target.machine}-linux-gnu.{target.glibc}"]
        cpu = f"-mcpu={target.host_cpu.replace('-', '_')}"
        zig = [sys.executable, "-m", "ziglang", "c++", *machine, cpu]
        flags = ["-std=c++17", "-O3", "-DNDEBUG", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-pthread"]
        program = directory / "lookup"
        subprocess.run([*zig, *flags, *sources, Path(__file__).with_name("lookup.cc"), "-o", program], check=True)
        subprocess.run([program], check=True)


if __name__ == "__main__":
    main()
