"""Kernels in the interpreter beside what a GPU made of them: the same operands, and how many elements are the same."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from aot.core.candidate import KernelKey
from aot.core.errors import AotError
from aot.core.numerics import decode, is_integer, unit_roundoff
from aot.core.reference import is_16_bit_product, sum_error
from aot.emulate.code import DeviceCode
from aot.emulate.faults import Fault
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.emulate.schedule import Mode, Schedule
from aot.kinds.rows.candidate import RowKernelKey
from tests.compiling import compile_kernels
from tests.device.fixture_cases import ProductCase, RunProduct, RunRows, product_cases, row_cases
from tests.device.fixture_file import Content, ListedProduct, checksum, read_fixture
from tests.device.fixtures import all_kernels
from tests.emulated import link, target_of

FIXTURE = Path(__file__).with_name("hopper.json.gz")
TARGET = "h200"
APPROXIMATE = re.compile(r"\.approx\b|\bdiv\.full\b")
"""Instructions whose results the PTX ISA leaves open in the last bits."""
TENSOR = re.compile(r"\b(wgmma\.mma_async|mma\.sync)")
"""Instructions that add products in an order of the hardware's own."""


@cache
def recorded():
    return read_fixture(FIXTURE)


def listed_by_name():
    """Return the kernels of the fixture by their names."""
    return {x.key.name: x for x in all_kernels(recorded().listed)}


@dataclass(frozen=True)
class Agreement:
    """A case on both sides."""

    kernel: str
    family: str
    case: str
    content: Content
    is_known: bool
    """Whether PTX alone says what the bits are: sums are exact or not the tensor core's, and nothing is approximate."""
    num_elements: int
    num_equal: int | None
    """None where the GPU's bits were not kept, and the checksums differ."""
    spacings: int
    """By how many numbers of D's type the most distant elements differ."""
    fault: str
    """What is wrong with either side, or with how far they are apart; empty where nothing is."""


def _ranks(bits):
    """Number a type's floating-point numbers from the least to the greatest."""
    sign = np.int64(1) << (8 * bits.itemsize - 1)
    whole = bits.astype(np.int64)
    return np.where(whole & sign, sign - whole, whole)


def _spacings(element, ours, theirs):
    both_nan = np.isnan(decode(element, ours)) & np.isnan(decode(element, theirs))
    if is_integer(element):
        return np.abs(decode(element, ours) - decode(element, theirs)).astype(np.int64)
    return np.where(both_nan, 0, np.abs(_ranks(ours) - _ranks(theirs)))


def _too_far(run, case, ours, theirs):
    """Say which elements of products of 16-bit operands, whose bound is a wide one, are further apart than two sums."""
    operation = case.shape.problem.operation
    if not is_16_bit_product(operation):
        return ""  # verify's bound is that of the sum's order, and of the rounding, there
    parts = [x.check._exact for x in run.edge.compare.parts]
    rms = np.sqrt(np.mean(np.concatenate([x.ravel() for x in parts]) ** 2))
    left, right = decode(operation.d, ours), decode(operation.d, theirs)
    spacing = 2 * unit_roundoff(operation.d) * np.maximum(np.abs(left), np.abs(right))
    allowed = spacing + 4 * sum_error(operation, case.shape.problem.k) * rms
    apart = np.abs(left - right)
    num_wrong = int((apart > allowed).sum())
    return f"{num_wrong} elements are up to {apart.max():.3g} apart" if num_wrong else ""


class Interpreter:
    """Kernels of the fixture, compiled and linked with the recorder.

    Args:
        names: which kernels.
        folder: where the library is put.
    """

    def __init__(self, names, folder):
        listed = listed_by_name()
        chosen = [listed[x] for x in names]
        target = target_of(TARGET)
        products = self._products([x for x in chosen if isinstance(x, ListedProduct)], target)
        rows = compile_kernels([x.key for x in chosen if isinstance(x.key, RowKernelKey)], target)
        if not products:
            products = self._products([x for x in recorded().listed.products if x.is_fallback][:1], target)
        kernels = link(products, rows, target, folder)
        self.gpu = EmulatedGpu(target.l2_bytes)
        self._codes = {x.kernel.name: DeviceCode.of(x) for x in (*products, *rows)}
        self._ptx = {x.kernel.name: x.kernel.ptx_sha256 for x in (*products, *rows)}
        names = [x.kernel.name for x in (*products, *rows)]
        self._kernels = EmulatedKernels(kernels.library, [self._codes[x] for x in names], self.gpu, target)
        self._places = {name: i for i, name in enumerate(names)}

    @staticmethod
    def _products(chosen, target):
        """Compile kernels of products; one of several widths as its widest one."""
        keys = [KernelKey(x.operation, x.widest or x.candidate) for x in chosen]
        artifacts = compile_kernels(keys, target)
        return [
            replace(
                artifact,
                kernel=replace(artifact.kernel, name=x.key.name, candidate=x.candidate, num_narrower=x.num_narrower),
            )
            for x, artifact in zip(chosen, artifacts, strict=True)
        ]

    def is_as_recorded(self, name):
        """Say whether a kernel's PTX is that of the fixture."""
        return self._ptx[name] == listed_by_name()[name].ptx_sha256

    def run(self, kernel, case, schedule):
        self.gpu.forget()
        self.gpu.use((schedule,))
        place = self._places[kernel.key.name]
        if isinstance(kernel, ListedProduct):
            return RunProduct(self.gpu, self._kernels, kernel.tuned, place, case, 0)
        return RunRows(self.gpu, self._kernels, kernel, place, case, 0)

    def is_known(self, kernel, case):
        """Say whether PTX alone says what a case's bits are."""
        text = self._codes[kernel.key.name].text
        is_exact = isinstance(case, ProductCase) and case.content is Content.EXACT
        return not APPROXIMATE.search(text) and (is_exact or not TENSOR.search(text))

    def agreements(self, name, num_cases=None):
        """Hold a kernel's first cases against those of the fixture, which must be the same cases."""
        kernel = listed_by_name()[name]
        (found,) = (x for x in recorded().kernels if x.name == name)
        cases = product_cases(kernel.tuned) if isinstance(kernel, ListedProduct) else row_cases(kernel)
        assert [str(x) for x in cases][: len(found.cases)] == [x.case for x in found.cases], "record the fixture again"
        return [self._agreement(kernel, *both) for both in zip(cases[:num_cases], found.cases, strict=False)]

    def _agreement(self, kernel, case, theirs):
        """Execute a case, and hold what it wrote against what the GPU did."""
        about = kernel.key.name, kernel.candidate.family, theirs.case, theirs.content, self.is_known(kernel, case)
        try:
            run = self.run(kernel, case, Schedule(Mode.RANDOM, len(theirs.case)))
        except (Fault, AotError) as caught:
            return Agreement(*about, theirs.num_elements, None, 0, f"the interpreter: {caught}")
        num_elements = sum(x.size for x in run.written.values())
        assert num_elements == theirs.num_elements
        fault = run.compare(run.written).fault
        fault = f"the interpreter: {fault}" if fault else ""
        if theirs.fault:
            fault = f"the GPU: {theirs.fault}; {fault}"
        if checksum(run.written) == theirs.sha256:
            return Agreement(*about, num_elements, num_elements, 0, fault)
        if not theirs.written:
            return Agreement(*about, num_elements, None, 0, fault)
        arrays = {x.argument: x.bits(run.written[x.argument]) for x in theirs.written}
        assert checksum(arrays) == theirs.sha256
        elements = {"d": kernel.operation.d} if isinstance(case, ProductCase) else run.elements
        apart = [_spacings(elements[x], run.written[x], y) for x, y in arrays.items()]
        if not fault and isinstance(case, ProductCase):
            fault = _too_far(run, case, run.written["d"], arrays["d"])
        num_equal = sum(int((x == 0).sum()) for x in apart)
        return Agreement(*about, num_elements, num_equal, max(int(x.max()) for x in apart), fault)


def summary(agreements):
    """Return a line for each family: kernels, cases, elements that are equal, and the most distant ones."""
    lines = []
    for family in sorted({x.family for x in agreements}):
        found = [x for x in agreements if x.family == family]
        kept = [x for x in found if x.num_equal is not None]
        equal, of = sum(x.num_equal for x in kept), sum(x.num_elements for x in kept)
        known = [x for x in found if x.is_known]
        same = sum(x.num_equal == x.num_elements for x in known)
        cases = (
            f"{len({x.kernel for x in found})} kernels, {len(found)} cases; {same} of {len(known)} of known bits equal"
        )
        apart = max(x.spacings for x in found)
        lines.append(f"{family}: {cases}; {equal:,} of {of:,} elements equal, at most {apart} numbers apart")
    return lines
