"""Kernels compiled for the interpreter, in the store that all tests share, and sets of them over the recorder."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from aot.core.candidate import KernelKey
from aot.core.target import load_target
from aot.emulate import kernels as emulate_kernels
from aot.emulate.build import build_host_library, emulated_library, emulated_target
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.emulate.kernels import EmulatedSet
from aot.measure.verify import Verifier
from aot.package.toolchain import TOOLCHAIN_CACHE
from tests import native
from tests.compiling import STORE, compile_kernels

CACHE = native.STORE / "emulate"
"""Where the runtime's objects are kept for all tests."""


class KeepingGpu(EmulatedGpu):
    """Keeps what is enqueued, and executes nothing."""

    def __init__(self):
        super().__init__(1 << 20)
        self.asked = []

    def enqueue(self, operation):
        self.asked.append(operation)


def share_kept(folder, monkeypatch):
    """Give a working folder what tests keep: kernels, what zig builds of the C library, and the runtime's objects."""
    (folder / "build").mkdir()
    for kept in (STORE, native.ROOT / TOOLCHAIN_CACHE):
        kept.mkdir(parents=True, exist_ok=True)
        (folder / "build" / kept.name).symlink_to(kept)
    real = emulate_kernels.build_host_library
    monkeypatch.setattr(emulate_kernels, "build_host_library", lambda *x: real(*x, cache=CACHE))


@cache
def target_of(name):
    """Return a target with this machine as the host."""
    return emulated_target(load_target(name))


def link(products, rows, target, folder):
    """Make a set of compiled kernels."""
    library = emulated_library(products, rows, target)
    objects = {x.kernel.name: x.path for x in (*products, *rows)}
    path = build_host_library(library, objects, target, folder, cache=CACHE)
    names = tuple(x.kernel.name for x in (*products, *rows))
    return EmulatedSet(target, tuple(products), tuple(rows), names, path)


def emulated_set(keys, target_name, folder):
    """Compile kernels, products and operations on rows, and link them with the recorder."""
    target = target_of(target_name)
    artifacts = compile_kernels(keys, target)
    products = [x for x in artifacts if isinstance(x.kernel.key, KernelKey)]
    return link(products, [x for x in artifacts if x not in products], target, folder)


class EditedKernels:
    """Products of a target in the interpreter, whose PTX may be changed before each run."""

    def __init__(self, keys, target_name, folder):
        self._set = emulated_set(keys, target_name, folder)
        self._names = [x.kernel.name for x in self._set.products]

    def run(self, key, shape, schedules, edit=lambda text: text):
        """Run a kernel whose PTX is edited on a case under each schedule; return what is wrong besides."""
        gpu = EmulatedGpu(self._set.target.l2_bytes, schedules)
        codes = [DeviceCode.of(x) for x in self._set.products]
        index = self._names.index(key.name)
        codes[index] = replace(codes[index], text=edit(codes[index].text))
        kernels = EmulatedKernels(self._set.library, codes, gpu, self._set.target)
        verifier = Verifier(gpu, kernels, np.random.default_rng(2), num_guards=0)
        verifier.run_each(shape, index, (False,) * len(schedules), is_reproducible=True)
        assert len(gpu.executions) == len(schedules)
        return [x for execution in gpu.executions for x in execution.report.findings if x.kind.is_fault]


def with_ptx(kernels, edit, folder):
    """Return a set whose first product has other PTX: what `edit` makes of its text."""
    first, *others = kernels.products
    place = Path(mkdtemp(dir=folder))
    (place / "kernel.ptx").write_text(edit(first.ptx_path.read_text()))
    return replace(kernels, products=(replace(first, path=place / "kernel.o"), *others))
