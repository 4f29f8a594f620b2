"""Kernels of packed weights for tests: compiled to PTX, each once, and executed in the interpreter."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from aot.compile.compiler import toolchain_versions
from aot.core.element import ElementType
from aot.core.epilogue import Step
from aot.core.numerics import decode, encode, unit_roundoff
from aot.core.reference import gated, rounded
from aot.core.weight_format import MAX_ZERO, Code, WeightParts, format_named
from aot.core.weight_packing import pack
from aot.core.weight_values import weight_values
from aot.emulate.launch import PROGRAMMATIC, Launch
from aot.emulate.machine import Machine
from aot.emulate.memory import GlobalMemory
from aot.emulate.program import Program
from aot.emulate.ptx import parse_module
from aot.emulate.schedule import Schedule
from aot.families._weight_only_tile import Tile
from tests import native
from tests.unit.emulate.units.asynchronous import tensor_map

FAMILIES = Path(native.ROOT / "aot" / "families")
SOURCES = (*sorted(FAMILIES.glob("_weight_only_*.py")), *sorted((native.ROOT / "aot" / "core").glob("weight_*.py")))
ELEMENTS = {"BFloat16": ElementType.BFLOAT16, "Float16": ElementType.FLOAT16}
POISON = 0xFFFF
"""A NaN: around x and D, and what D is before."""
PADDING = 8
"""Elements from a row's end to the next of x; D's are 3."""

COMPILE = """
import sys
import cutlass
from cutlass import cute
from aot.core.weight_format import format_named
from aot.core.epilogue import Step
from aot.families._weight_only_entry import weight_only_entry
from aot.families._weight_only_tile import Tile
host = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v2"
for line in sys.stdin:
    form, element, arch, folder, scaled, gate, *sizes = line.split()
    tile = Tile(format_named(form), *map(int, sizes))
    options = {"is_scaled": scaled == "1", "is_dependent": True, "gate": None if gate == "none" else Step(gate)}
    entry, arguments = weight_only_entry(tile, getattr(cutlass, element), **options)
    cute.compile(entry, *arguments, options=f"--gpu-arch {arch} --host-target '{host}' --keep-ptx --dump-dir {folder}")
    print("compiled", file=sys.stderr, flush=True)
"""
"""A compiler that is told a kernel a line, as the import of CUTLASS takes longer than one."""


@dataclass(frozen=True)
class Case:
    """A kernel, by its tile's numbers."""

    form: str
    element: str
    sizes: tuple[int, ...]
    arch: str = "sm_90a"
    gate: str = "none"
    """Or a step of two weights, of which D is made: `swiglu` or `geglu`."""

    @property
    def num_weights(self):
        """Return the weights that it multiplies by."""
        return 1 if self.gate == "none" else 2

    @property
    def tile(self):
        """Return the tile."""
        return Tile(format_named(self.form), *self.sizes)

    @property
    def is_scaled(self):
        """Say whether it has a float32 factor of rows, or of the weight."""
        return self.tile.form.is_nvfp4 or not self.tile.form.group


@cache
def _compiler(arch):
    """Start a compiler, which ends with this process: CuTe DSL takes an architecture once."""
    environment = os.environ | {"CUTE_DSL_ARCH": arch, "PYTHONPATH": str(native.ROOT)}
    pipes = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE], env=environment, text=True, stdout=subprocess.DEVNULL, **pipes
    )


def _compile(case, folder):
    compiler, words = (
        _compiler(case.arch),
        (case.form, case.element, case.arch, folder, int(case.is_scaled), case.gate, *case.sizes),
    )
    print(*words, file=compiler.stdin, flush=True)
    told = []
    for line in compiler.stderr:
        if line == "compiled\n":
            return
        told.append(line)
    raise AssertionError("".join(told))


@cache
def ptx_of(case):
    """Compile a kernel; return its PTX."""

    def make(path):
        with tempfile.TemporaryDirectory() as folder:
            _compile(case, folder)
            (found,) = Path(folder).glob("*.ptx")
            path.write_text(found.read_text("utf-8"), "utf-8")

    parts = (*astuple(case), *toolchain_versions().items(), *(x.read_text("utf-8") for x in SOURCES))
    return native.once(".ptx", parts, make).read_text("utf-8")


@cache
def program_of(case):
    """Return the name and the program of a kernel."""
    ((name, kernel),) = parse_module(ptx_of(case)).items()
    return name, Program(kernel)


def draw(case, m, n, k, seed):
    """Draw x, a weight whose blocks have other factors each, its float32 factors, and a bias where the seed is odd."""
    form, element, rng = case.tile.form, ELEMENTS[case.element], np.random.default_rng(seed)
    codes = rng.integers(0, 1 << form.code.bits, (n, k)).astype(np.uint8)
    if form.code is Code.E4M3:
        codes[(codes & 0x7F) == 0x7F] = 0
    shape, factors = (n, form.num_groups(k)), None
    if form.is_nvfp4:
        factors = rng.integers(0, 0x60, shape).astype(np.uint8)
    elif form.is_mxfp4:
        factors = rng.integers(115, 132, shape).astype(np.uint8)
    elif form.group:
        factors = encode(element, rng.standard_normal(shape).astype(np.float32))
    of_rows = None
    if case.is_scaled:
        of_rows = rng.uniform(0.5, 1.5, 1 if form.is_nvfp4 else n).astype(np.float32)
    zeros = rng.integers(0, MAX_ZERO + 1, shape).astype(np.uint8) if form.has_zeros else None
    x = encode(element, rng.standard_normal((m, k)).astype(np.float32))
    bias = encode(element, rng.standard_normal(n if seed % 2 else 0).astype(np.float32))
    return x, WeightParts(codes, factors, zeros), of_rows, bias


def _padded(values, padding):
    """Lay rows out with poison between them, of which nothing stands behind the last."""
    held = np.full((values.shape[0], values.shape[1] + padding), POISON, np.uint16)
    held[:, : values.shape[1]] = values
    return held.reshape(-1)[: held.size - padding]


def maps_of(address, tile, n, k):
    """Give the descriptors of a weight in rows, codes and factors, each with what else a kernel takes of its view.

    By docs/weights.md: rows of 32 bytes for each 64 of k, whole 16 of them, then 512 bytes for each 128 rows and 64;
    of MXFP4 64 bytes for each 128, whole 32 of them, and 512 for each 128 rows and 128.
    """
    run = 4 * tile.form.group
    runs = -(-k // run)
    row_bytes = run // 2 * runs
    codes = (row_bytes, 32, -(-n // 32)), (row_bytes, 32 * row_bytes), (64, 4, 4)
    atoms = (512, runs, -(-n // 128)), (512, 512 * runs), (64, 128 // run, 1)
    tile = 32 if run == 128 else 16
    start, found = address + -(-n // tile) * tile * row_bytes, []
    for at, (extents, strides, box) in ((address, codes), (start, atoms)):
        found += [tensor_map(at, extents, strides, box, code=0).tobytes(), struct.pack("<2i", *extents[1:])]
    return found


@dataclass(frozen=True)
class Outcome:
    """What an execution left behind."""

    error: float
    """The largest error past rounding to D's type, in standard deviations of a sum."""
    findings: tuple
    num_instructions: int


TYPICAL_SUM = 2.0
"""Standard deviation of the sums of a gate, whose activations are curved near 0."""


def _sums(x, drawn, form, element):
    """Return the exact sums of a weight, and what their standard deviations would be, were x's elements random."""
    _, parts, of_rows, bias = drawn
    weight = weight_values(form, parts, element)
    if of_rows is not None:
        weight *= of_rows.astype(np.float64)[:, None]
    wide = decode(element, x)
    root = np.sqrt(wide**2 @ (weight**2).T)
    return wide @ weight.T + (decode(element, bias) if bias.size else 0.0), root


def _error(case, found, x, weights):
    """Return the largest error of D past its rounding, in standard deviations of a sum."""
    element = ELEMENTS[case.element]
    (exact, root), *others = (_sums(x, drawn, case.tile.form, element) for drawn in weights)
    for linear, of_linear in others:
        with np.errstate(over="ignore"):
            expected = gated(Step(case.gate), rounded(exact, root), rounded(linear, of_linear))
        exact, root = expected.values, expected.radius
    error = np.abs(decode(element, found) - exact) - unit_roundoff(element) * np.abs(exact)
    root = np.maximum(root, np.finfo(np.float64).tiny)  # rows whose factors are all 0 have sums of 0
    return float((error / root).max())


def execute(case, m, n, k, schedule=None, *, seed=0, is_constant=True, program=None):
    """Execute a kernel on random operands, whose buffers end with their last element."""
    name, compiled = program or program_of(case)
    element, tile = ELEMENTS[case.element], case.tile
    weights = [draw(case, m, n, k, seed + 2 * i) for i in range(case.num_weights)]
    x = weights[0][0]
    if len(weights) > 1:
        typical = np.median(_sums(x, weights[0], tile.form, element)[1])
        x = encode(element, (decode(element, x) * (TYPICAL_SUM / typical)).astype(np.float32))
    memory = GlobalMemory()

    def put(operand, what):
        address = memory.allocate(max(operand.nbytes, 2), what, writable=what == "d")
        memory.view(address, operand.nbytes)[:] = np.frombuffer(operand.tobytes(), np.uint8)
        return address

    def words(*values):
        return [x.to_bytes(8, "little") for x in values]

    d = _padded(np.full((m, n), POISON, np.uint16), 3)
    held = [put(pack(tile.form, parts), "b") for _, parts, *_ in reversed(weights)][::-1]  # the linear one in front
    of_d = put(d, "d")
    of_weights = words(*held) if not tile.form.in_rows else [y for z in held for y in maps_of(z, tile, n, k)]
    parameters = [*words(put(_padded(x, PADDING), "a")), *of_weights, *words(of_d)]
    parameters += [size.to_bytes(4, "little") for size in (m, n, k)]
    parameters += words(k + PADDING, n + 3)
    if case.is_scaled:
        factors = np.concatenate([of_rows for *_, of_rows, _ in weights])
        of_each = factors.size // len(weights)
        parameters += words(put(factors, "scale_b"), int(of_each > 1), *(of_each for _ in weights[1:]))
    bias = np.concatenate([of_weight for *_, of_weight in weights])
    count = bias.size // len(weights)
    parameters += [*words(put(bias, "bias")), count.to_bytes(4, "little"), *words(*(count for _ in weights[1:]))]
    parameters.append(int(is_constant).to_bytes(4, "little"))
    tiles_of_rows = -(-n // 128) * 8 if tile.form.in_rows else -(-n // 16)
    grid = -(-tiles_of_rows // (tile.tiles // len(weights))) * -(-m // tile.columns)
    launch = Launch(
        name,
        (grid, 1, 1),
        (tile.num_threads, 1, 1),
        (1, 1, 1),
        tile.smem_bytes,
        tuple(parameters),
        {PROGRAMMATIC: (1,)},
    )
    report = Machine({name: compiled}, memory, schedule or Schedule()).run([launch])
    found = np.append(np.frombuffer(memory.view(of_d, d.nbytes).tobytes(), np.uint16), [POISON] * 3)
    found = found.astype(np.uint16).reshape(m, n + 3)
    assert (found[:, n:] == POISON).all()
    return Outcome(_error(case, found[:, :n], x, weights), report.findings, report.num_instructions)
