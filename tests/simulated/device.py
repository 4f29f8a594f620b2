"""Simulated devices: a folder with a machine's programs and files, and a simulated driver.

A Jetson is an AArch64 Python under qemu with a root folder of its own; its bundle's runner but for two cases of
verification, the library with the host code of real sm_110a objects, and the driver's interface are what runs on a
Thor. A server is this machine's Python, with a library of sm_90a objects. libcuda.so.1 is tests/simulated/libcuda.cc,
the library's CUDA entry tests/simulated/cuda_entry.cc.
"""

from __future__ import annotations

import os
import platform
import subprocess
import venv
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
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
    sources = native.in_groups(sources, project)
    sources += [project / "wrappers.cc", HERE / "cuda_entry.cc", *(objects[x.name] for x in library.kernels)]
    includes = [project / "include", project / "src", HERE]
    return compile_shared(sources, out_dir / f"lib{library.module}.so", target, includes=includes)


def _numpy_alone():
    """Give a folder with this Python's numpy, and no package beside it."""
    found = Path(np.__file__).parent

    def link(folder):
        folder.mkdir()
        for path in (found, *found.parent.glob("numpy.libs")):
            (folder / path.name).symlink_to(path)

    return native.once("", [found], link)


@dataclass
class Faults:
    """What goes wrong on a device: kernels by name, each with a fault and the m that has it, 0 for all."""

    kernels: dict[str, tuple[str, int]] = field(default_factory=dict)
    slow: list[tuple[float, float, float]] = field(default_factory=list)
    memory_bytes: int = 1 << 30


class SimulatedDevice:
    """A device in a folder of its own. `python` runs a program on it."""

    def __init__(self, directory, driver, machine, *, integrated=True):
        if platform.machine() != "x86_64":
            pytest.skip("NOT TESTED: the simulated devices run on x86-64")
        self.machine, self._driver = machine, driver
        self.directory, self.bin, self.home = directory, directory / "bin", directory / "home"
        self.file = directory / "device.txt"
        capability = "{} {}".format(*machine.target.compute_capability)
        self._lines = [f"name {machine.gpu}", f"capability {capability}"]
        self._lines += [f"sms {machine.target.num_sms}", f"integrated {int(integrated)}"]
        self.times = {}
        for folder in (self.bin, self.home):
            folder.mkdir(parents=True)
        self._install()
        self.describe()

    def _install(self):
        """Put the machine's programs into `bin`."""
        raise NotImplementedError

    def _script(self, name, text):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)

    def _install_python(self, command, libraries, **variables):
        variables |= {"AOT_SIMULATED_DEVICE": self.file, "LD_LIBRARY_PATH": ":".join(libraries)}
        variables |= {"OPENBLAS_NUM_THREADS": 1, "PYTHONDONTWRITEBYTECODE": ""}
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        self._script("python3", f'export {words}\nexec {command} "$@"\n')

    def set_times(self, tuning):
        """Let each kernel take a time of its own on a problem: each 2% more than the one before it.

        The first takes what the cost model says of the fastest. So no time rules a kernel out of the final rounds
        (`TimingPlan.keep_ratio`). `times` has them in microseconds, by a kernel's name and a problem.
        """
        problems, names = list(tuning.set.problems), tuning.names
        fastest = cost.estimate(list(names), problems, self.machine.target).total_us.min(axis=1).tolist()
        ranked = sorted(names, key=lambda x: self.machine.candidates.index(x.name))
        self.times = {
            (names[candidate], problem): us * (1 + 0.02 * rank)
            for problem, us in zip(problems, fastest, strict=True)
            for rank, candidate in enumerate(ranked)
        }

    def describe(self, faults=None, noise=0.01, linger_us=0):
        """Write the driver's description of the device; `linger_us` of real time keep a run from ending too soon."""
        faults = faults or Faults()
        lines = [*self._lines, f"memory {faults.memory_bytes}", f"noise {noise}", f"linger {linger_us}", "l2 65536"]
        lines += [f"time {name} {x.m} {x.n} {x.k} {us:.4f}" for (name, x), us in self.times.items()]
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


class Jetson(SimulatedDevice):
    """An AArch64 Python under qemu, and a root folder with a Jetson's files."""

    def _install(self):
        self.root = self.directory / "root"
        emulator, _, system, python = aarch64_python()
        for folder in (self.root / "etc", self.root / "sys" / "class" / "devfreq"):
            folder.mkdir(parents=True)
        for entry in Path(system).iterdir():
            if entry.name not in ("etc", "sys"):
                (self.root / entry.name).symlink_to(entry)
        (self.root / "etc" / "nv_tegra_release").write_text(TEGRA_RELEASE)
        gpu, emc = self.machine.sm_clock_mhz, self.machine.memory_clock_mhz
        self.set_clocks(gpu=(gpu, gpu), emc=(emc, emc))
        self._script("nvpmodel", f"echo 'NV Power Mode: {self.machine.power_mode}'\necho 0\n")
        command = f'{emulator} -0 "$0" -cpu cortex-a57 -L {self.root} {python}'
        self._install_python(command, [str(self._driver.parent)], PYTHONHOME=f"{system}/usr")

    def set_clocks(self, **clocks):
        """Set least and highest frequency, in MHz, of `gpu` and `emc`; the current one is the highest."""
        for name, (least, most) in clocks.items():
            folder = self.root / "sys" / "class" / "devfreq" / {"gpu": "gpu-gpc-0", "emc": "31b0000.emc"}[name]
            folder.mkdir(exist_ok=True)
            for key, value in (("cur", most), ("min", least), ("max", most)):
                (folder / f"{key}_freq").write_text(f"{value}000000\n")


class Server(SimulatedDevice):
    """This machine's Python with numpy and nothing else, and an nvidia-smi."""

    def _install(self):
        venv.create(self.directory / "python")
        (packages,) = (self.directory / "python").glob("lib/python*/site-packages")
        (packages / "numpy.pth").write_text(f"{_numpy_alone()}\n")
        # Python's own libraries may be found by the variable.
        libraries = [str(self._driver.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self._install_python(self.directory / "python" / "bin" / "python3", libraries)
        clocks = f"{self.machine.sm_clock_mhz}, {self.machine.memory_clock_mhz}"
        answer = f"580.65.06, {clocks}, {self.machine.power_mode.removesuffix(' W')}.00"
        self._script(
            "nvidia-smi",
            'case "$*" in\n'
            f"*=driver_version,clocks.sm,clocks.mem,enforced.power.limit\\ *) echo '{answer}' ;;\n"
            "*) exit 2 ;;\nesac\n",
        )


def make_device(directory, driver, machine, tuning, **options):
    """Make a device of a kind of machine, on which the kernels of a tuning have their times."""
    found = (Jetson if machine.is_emulated else Server)(directory, driver, machine, **options)
    found.set_times(tuning)
    found.describe()
    return found
