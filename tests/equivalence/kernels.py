"""The Thor wheel's kernels, and their objects for the two hosts whose launches are compared.

Launches are compared of products of 16 bits; those of narrower elements that the wheel has are among `operand_kernels`,
and those of packed weights and on rows are executed alone.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli import main as cli
from aot.core.dispatch import Column, DispatchTable, Grid, Section
from aot.core.operation import ELEMENTS
from aot.core.target import Target, load_target
from aot.package.manifest import Manifest
from aot.package.wheel import DEFAULT_PACKAGE, TableSource, manifest_of
from tests import native
from tests.compiling import EVERY, compile_kernels
from tests.objects import parameter_sizes
from tests.unit.invoked import coarse_grid

MACHINES = ("aarch64", "x86_64") if EVERY else ("aarch64",)
"""The hosts whose launches are looked at: the wheel's own, and one to compare it with."""


@cache
def wheel():
    """Give the selection that `make wheel` builds, which is found once for all workers."""
    files = [x for x in (native.ROOT / "aot").rglob("*") if x.is_file() and x.suffix != ".pyc"]
    parts = [EVERY, native.digest(native.ROOT, [*files, native.ROOT / "constraints.txt"])]
    return pickle.loads(
        native.once(".selection", parts, lambda path: path.write_bytes(pickle.dumps(_found()))).read_bytes()
    )


def _found():
    """Select what `aot build` is about to compile."""
    chosen = []

    def stop(sources, *_, **__):
        chosen.append(sources[0].selection)
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aot.cli.build.make_wheel", stop)
        if not EVERY:  # of a grid of few cells, which leaves the kernels as they are
            coarse_grid(patch)
        result = CliRunner().invoke(cli.main, ["build", "--target", "thor"])
    assert chosen, result.output
    return chosen[0]


def of_16_bits():
    """List the wheel's kernels of elements of 16 bits, both operands."""
    wide = (key for key in wheel().kernels if key.operation.types.weight is None)
    return [key for key in wide if key.operation.element in ELEMENTS]


def facets(key, *, of_every=EVERY):
    """List what host code depends on: the candidate in each layout and epilogue, and the family in each operation.

    Unless every candidate is asked for, a candidate counts by what of its knobs another number of parameters, another
    box or another count of CTAs follows from; and an operation by its element type, and by its layout.
    """
    operation, candidate, family = key.operation, key.candidate, key.candidate.family
    found = {(family, operation.element), (family, operation.layout, operation.epilogue)}
    if of_every:
        return found | {(family, operation), (candidate, operation.layout, operation.epilogue)}
    knobs = candidate.gemm
    return found | {
        (family, "split", knobs.split_k_mode, knobs.swap_ab),
        (family, "pair", knobs.use_2cta, knobs.swap_ab),
        (family, "cluster", knobs.cluster_m > 1, knobs.cluster_n > 1),
        (family, "stores", knobs.use_tma_store),
    }


@cache
def selection():
    """Give that selection with as few kernels as have every facet that its kernels have, and a table of fallbacks.

    A candidate's kernels of two element types differ in the types that a descriptor and an entry name, which the
    family's other kernels show: it is enough to compile one.
    """
    left = set().union(*map(facets, of_16_bits()))
    chosen = set()
    while left:
        best = max(of_16_bits(), key=lambda key: len(facets(key) & left))
        left -= facets(best)
        chosen.add(best)
    keys = tuple(key for key in wheel().kernels if key in chosen)
    fallbacks = [(i, key.operation) for i, key in enumerate(keys) if key.candidate.family == "simt"]
    sections = (Section(x, (), Grid((1,), (1,), (Column((1,), (i,)),)), i) for i, x in fallbacks)
    return replace(wheel(), kernels=keys, table=DispatchTable(tuple(sections)), stepped=None)


def target(machine):
    """Give Thor as it is, or with the host of the x86-64 wheels."""
    thor, x86 = load_target("thor"), load_target("h200")
    return thor if machine == thor.machine else replace(thor, host_triple=x86.host_triple, host_cpu=x86.host_cpu)


@dataclass(frozen=True)
class Compiled:
    """The wheel's content for one host."""

    target: Target
    manifest: Manifest
    objects: dict[str, Path]

    @property
    def sizes(self):
        """Give the sizes of each kernel's parameters."""
        return {name: parameter_sizes(path) for name, path in self.objects.items()}


@cache
def compiled(machine):
    """Compile the wheel's kernels for a host."""
    host = target(machine)
    artifacts = compile_kernels(selection().kernels, host)
    manifest = manifest_of([TableSource(selection(), host)], artifacts, DEFAULT_PACKAGE, "0")
    return Compiled(host, manifest, {x.kernel.name: x.path for x in artifacts})
