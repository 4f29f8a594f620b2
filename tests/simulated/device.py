"""A simulated Jetson: an AArch64 Python under qemu, a root folder with a Jetson's files, and a simulated driver.

The bundle's runner but for two cases of verification, its library with the host code of real sm_110a objects, and
the driver's interface are what runs on a Thor; libcuda.so.1 is tests/simulated/libcuda.cc, the library's CUDA entry
tests/simulated/cuda_entry.cc.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from aot.package.build import read_templates, write
from aot.package.render import render_library
from aot.space import cost
from tests import native
from tests.objects import parameter_sizes
from tests.package.userland import aarch64_python
from tests.runtime.host import BINDING_SOURCES, REPLACED_SOURCES

HERE = Path(__file__).parent
FLAGS = [
    "-std=c++17",
    "-O2",
    "-ffast-math",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wall",
    "-Wextra",
    "-pthread",
    "-g0",
]
TEGRA_RELEASE = "# R38 (release), REVISION: 2.0, GCID: 41844464, BOARD: generic, EABI: aarch64\n"


def compile_shared(sources, out, target, *links, includes=()):
    """Build a shared library for a target; stripped, as the wheels are."""
    return native.link(sources, out, native.zig(target), FLAGS, ["-shared", "-Wl,-s", *links], includes)


def _wrapper(kernel, path, index):
    sizes = parameter_sizes(path)
    numbers = f"{kernel.operation.element.code}, {kernel.operation.layout.code}, {kernel.num_strides}"
    return f"""
void {kernel.entry_symbol}(void**, int32_t);
static const int32_t sizes_{index}[] = {{{", ".join(map(str, sizes))}}};
void simulated_{kernel.entry_symbol}(void** arguments, int32_t count) {{
  simulated_note("{kernel.name}", {numbers}, sizes_{index}, {len(sizes)}, {kernel.entry_symbol}, arguments, count);
}}
"""


def build_library(library, objects, out_dir, target, **_options):
    """Stand in for `aot.package.build.build_library`: the same library over the simulated driver."""
    project = out_dir / "simulated"
    kernels = tuple(replace(x, entry_symbol=f"simulated_{x.entry_symbol}") for x in library.kernels)
    write(render_library(replace(library, kernels=kernels), read_templates()), project)
    texts = [_wrapper(x, objects[x.name], i) for i, x in enumerate(library.kernels)]
    head = """#include <cstdint>
extern "C" {
void simulated_note(const char*, int32_t, int32_t, int32_t, const int32_t*, int32_t, void (*)(void**, int32_t), void**,
                    int32_t);
"""
    (project / "wrappers.cc").write_text(head + "".join(texts) + "}\n")
    sources = [
        path for path in sorted((project / "src").glob("*.cc")) if path.stem not in REPLACED_SOURCES | BINDING_SOURCES
    ]
    sources += [project / "wrappers.cc", HERE / "cuda_entry.cc", *(objects[x.name] for x in library.kernels)]
    includes = [project / "include", project / "src", HERE]
    return compile_shared(sources, out_dir / f"lib{library.module}.so", target, includes=includes)


@dataclass
class Faults:
    """What goes wrong on a device: kernels by name, each with a fault and the m that has it, 0 for all."""

    kernels: dict[str, tuple[str, int]] = field(default_factory=dict)
    slow: list[tuple[float, float, float]] = field(default_factory=list)
    memory_bytes: int = 1 << 30


class SimulatedDevice:
    """A device in a folder of its own. `python` runs a program on it."""

    def __init__(self, directory, driver, *, name="NVIDIA Thor", num_sms=20, integrated=True):
        if platform.machine() != "x86_64":
            pytest.skip("NOT TESTED: the simulated device is emulated on x86-64")
        emulator, _, system, python = aarch64_python()
        self.root, self.bin, self.home = directory / "root", directory / "bin", directory / "home"
        self.file = directory / "device.txt"
        self._lines = [f"name {name}", "capability 11 0", f"sms {num_sms}", f"integrated {int(integrated)}"]
        self._times = []
        for folder in (self.root / "etc", self.root / "sys" / "class" / "devfreq", self.bin, self.home):
            folder.mkdir(parents=True)
        for entry in Path(system).iterdir():
            if entry.name not in ("etc", "sys"):
                (self.root / entry.name).symlink_to(entry)
        (self.root / "etc" / "nv_tegra_release").write_text(TEGRA_RELEASE)
        self.set_clocks(gpu=(1575, 1575), emc=(4266, 4266))
        self.set_power_mode("MAXN")
        self._script(
            "python3",
            f"export PYTHONHOME={system}/usr LD_LIBRARY_PATH={driver.parent} OPENBLAS_NUM_THREADS=1\n"
            f"export AOT_SIMULATED_DEVICE={self.file} PYTHONDONTWRITEBYTECODE=\n"
            f'exec {emulator} -0 "$0" -cpu cortex-a57 -L {self.root} {python} "$@"\n',
        )
        self.describe()

    def _script(self, name, text):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)

    def set_power_mode(self, mode):
        self._script("nvpmodel", f"echo 'NV Power Mode: {mode}'\necho 0\n")

    def set_clocks(self, **clocks):
        """Set least and highest frequency, in MHz, of `gpu` and `emc`; the current one is the highest."""
        for name, (least, most) in clocks.items():
            folder = self.root / "sys" / "class" / "devfreq" / {"gpu": "gpu-gpc-0", "emc": "31b0000.emc"}[name]
            folder.mkdir(exist_ok=True)
            for key, value in (("cur", most), ("min", least), ("max", most)):
                (folder / f"{key}_freq").write_text(f"{value}000000\n")

    def set_times(self, problems, candidates, target, names):
        """Let each kernel take what the cost model says; `names` gives a candidate's kernel name."""
        times = cost.estimate(candidates, problems, target).total_us.tolist()
        self._times = [
            f"time {names[candidate]} {problem.m} {problem.n} {problem.k} {times[i][j]:.4f}"
            for i, problem in enumerate(problems)
            for j, candidate in enumerate(candidates)
        ]
        return {
            (names[candidate], problem): times[i][j]
            for i, problem in enumerate(problems)
            for j, candidate in enumerate(candidates)
        }

    def describe(self, faults=None, noise=0.01, linger_us=0):
        """Write the driver's description of the device; `linger_us` of real time keep a run from ending too soon."""
        faults = faults or Faults()
        lines = [*self._lines, f"memory {faults.memory_bytes}", f"noise {noise}", f"linger {linger_us}", "l2 65536"]
        lines += self._times
        lines += [f"fault {what} {kernel} {m}" for kernel, (what, m) in faults.kernels.items()]
        lines += [f"slow {start} {end} {factor}" for start, end, factor in faults.slow]
        self.file.write_text("\n".join(lines) + "\n")

    @property
    def environment(self):
        return {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home)}

    def command(self, *words):
        return [str(self.bin / "python3"), *map(str, words)]

    def run(self, *words, check=True, **options):
        """Run the device's Python to its end."""
        done = subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, check=False, **options
        )
        if check and done.returncode != 0:
            raise AssertionError(f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done

    def start(self, *words):
        """Start the device's Python."""
        return subprocess.Popen(
            self.command(*words), env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def copy_bundle(bundle, directory):
    """Copy a bundle, to measure into the copy."""
    return Path(shutil.copytree(bundle, directory))
