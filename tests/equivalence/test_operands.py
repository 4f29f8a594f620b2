"""What the runtime tells the kernels of every operation, for a Thor and an H200: derived independently, value by value.

The kernels' own host code encodes the descriptors, of a Thor's with `make walk` on AArch64 in qemu, where
test_launches.py has others of its families in each run. Of each launch every parameter is compared, but for the boxes
by which D is stored, which the tile alone decides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from aot.core.operation import Operation
from aot.core.target import load_target
from aot.measure.call_structs import GATE_INTERLEAVED, GATE_PARTS, OFFSETS_START
from tests.compiling import EVERY
from tests.equivalence import (
    descriptor,
    fp8_splits,
    operand_cases,
    operand_kernels,
    operand_launches,
    programs,
    row_launches,
)
from tests.equivalence.launch import DESCRIPTOR_BYTES

PROGRAMMATIC, CLUSTER = 6, 4  # cudaLaunchAttributeID
BARRIER_BYTES = 1024
"""What families set aside for barriers, which a kernel may take less of."""
MIN_RARE = 20
STEP = 7
"""One in so many bits is flipped."""
BOX = slice(55, 60)
WORDS = (*range(71, 75), 83, 84)
"""Bytes of a descriptor's box, and bits of its element type and of the swizzle's atoms: see `descriptor`."""


@pytest.fixture(scope="module", params=operand_kernels.TARGETS)
def replayed(request, tmp_path_factory):
    """Launch every kernel's problems; gives (kernel, problem, stream, sizes of its parameters, answer) of each."""
    if EVERY:
        programs.emulator(load_target(request.param).machine)  # skips here, before anything is compiled
    compiled = operand_kernels.compiled(request.param)
    target = compiled.target
    sizes = compiled.sizes
    asked = [
        (index, kernel, problem, stream)
        for kernels, problems in (
            (compiled.manifest.kernels, operand_cases.products),
            (compiled.manifest.row_kernels, operand_cases.problems_of_rows),
        )
        for index, kernel in enumerate(kernels)
        for problem, stream in problems(kernel)
    ]
    requests = [
        programs.stated(index, getattr(kernel.operation, "call", kernel.operation.tag), sizes[kernel.name], *stated)
        for index, kernel, *stated in asked
    ]
    program = programs.build(compiled, tmp_path_factory.mktemp(request.param))
    each = [sizes[kernel.name] for _, kernel, _, _ in asked]
    answers = programs.answers(program, target, requests, each, has_divisors=False)
    return [(*x[1:], y, z) for x, y, z in zip(asked, each, answers, strict=True)]


def decoded(content, size):
    """Give a parameter of so many bytes, a descriptor decoded: of that its first half means something."""
    return descriptor.decode(content) if size == DESCRIPTOR_BYTES else content


@dataclass(frozen=True)
class Launched:
    """One launch, and what was asked for."""

    kernel: object
    problem: object
    stream: int
    sizes: list[int]
    launch: object

    @property
    def is_of_rows(self):
        return not hasattr(self.kernel.operation, "call")

    @property
    def wanted(self):
        """Give the parameters as they are derived."""
        return (row_launches if self.is_of_rows else operand_launches).parameters(self.kernel, self.problem)

    @property
    def differences(self):
        """List the parameters that are not as derived: their number, and what differs."""
        return differences(list(map(decoded, self.launch.parameters, self.sizes)), self.wanted)


@pytest.fixture(scope="module")
def launches(replayed):
    """Give every launch; none is refused."""
    assert [x[0].name for x in replayed if x[-1].status or len(x[-1].launches) != 1 + num_writes(x[1])] == []
    return [Launched(*x, answer.launches[-1]) for *x, answer in replayed]


def num_writes(problem):
    """Count the launches that write the places of groups: of 128 each, where their B or factors are separate."""
    are_separate = any(getattr(problem, x, None) for x in ("b_of_groups", "scale_b_of_groups"))
    return -(-problem.num_groups // 128) if are_separate else 0


def test_places_are_written_by_one_block_on_the_callers_stream(replayed):
    writes = [(x, stream) for _, problem, stream, _, answer in replayed for x in answer.launches[: num_writes(problem)]]
    assert len(writes) >= MIN_RARE
    for x, stream in writes:
        assert (x.grid, x.block, x.smem_bytes, x.stream) == ((1, 1, 1), (128, 1, 1), 0, stream)


def differences(found, wanted):
    if len(found) != len(wanted):
        return [f"{len(found)} parameters; expected {len(wanted)}"]
    wrong = []
    for number, (value, expected) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(value, descriptor.TensorMap) != isinstance(expected, operand_launches.Map):
            wrong.append(f"parameter {number} is {value}; expected {expected}")
        else:
            wrong += [f"parameter {number}: {x}" for x in expected.differences(value)]
    return wrong


def test_every_parameter_is_what_the_problem_asks_for(launches):
    wrong = {x.kernel.name: x.differences for x in launches if x.differences}
    assert wrong == {}


def test_every_kernel_is_launched(launches):
    assert set(Counter(x.kernel.name for x in launches).values()) == {operand_cases.COUNT}
    families = {x.kernel.candidate.family for x in launches}
    assert families >= {"simt", "cluster_split_k", "row_registers", "row_looped", "row_rotary", "row_scalar"}
    assert families & {"sm100_quack", "sm90_quack"}
    assert ("sm100_block_scale" in families) == ("sm100_quack" in families)
    own = {"sm90_cluster_split_k", "sm90_one_tile"}
    assert families & own == (own if "sm90_quack" in families else set())
    assert families & {"sm100_grouped", "sm90_grouped"}


def test_nothing_is_spilled(launches):
    fast = [x.kernel for x in launches if x.is_of_rows or x.kernel.num_strides == 1]
    assert {x.name: x.spill_bytes for x in fast if x.spill_bytes} == {}


def test_every_operation_of_fp8_and_vectors_has_a_kernel_of_a_split():
    """Both operands are contiguous along k in all that the catalogue has, as wgmma takes FP8."""
    listed = [
        x for x in Operation if x.types.a.bits == 8 and x.types.scaling == "vector" and x.grouping.value == "dense"
    ]
    floats = {x for x in listed if x.accumulator.value == "float32"}
    assert {x for x, _ in fp8_splits.LAUNCHED + fp8_splits.MORE} == floats
    assert {x.layout.value for x in floats} == {"kk"}


def test_a_launch_is_of_the_tiles_programmatic_and_on_the_callers_stream(launches):
    for x in launches:
        kernel, launch = x.kernel, x.launch
        family = kernel.candidate.family
        assert (launch.block, launch.stream) == ((kernel.num_threads, 1, 1), x.stream)
        assert launch.attributes[PROGRAMMATIC][0] == (family != "simt")
        assert launch.smem_bytes <= kernel.smem_bytes <= launch.smem_bytes + BARRIER_BYTES
        if x.is_of_rows:
            assert launch.grid == (row_launches.grid(kernel, x.problem), 1, 1), kernel.name
            continue
        assert launch.attributes.get(CLUSTER, (1, 1, 1)) == operand_launches.cluster(kernel)
        if family not in {"simt", "cluster_split_k"}:
            assert launch.grid == operand_launches.grid(kernel, x.problem), kernel.name


def test_the_problems_reach_what_is_rare(launches):
    products = [x.problem for x in launches if not x.is_of_rows]
    rare = {
        "one row": [x for x in products if x.m == 1],
        "a factor for all rows": [x for x in products if x.scale_a.data and not x.scale_a.strides[0]],
        "a factor for each row": [x for x in products if x.scale_a.data and x.scale_a.strides[0] == 1],
        "no bias": [x for x in products if not x.bias.data],
        "a bias": [x for x in products if x.bias.data],
        "pairs of a gate in turn": [x for x in products if x.flags & GATE_INTERLEAVED],
        "a gate's linear rows in front": [x for x in products if x.flags & GATE_PARTS and x.group_strides.b < 0],
        "a shared B": [x for x in products if x.num_groups and not x.group_strides.b],
        "separate B": [x for x in products if x.b_of_groups],
        "where the first group starts": [x for x in products if x.flags & OFFSETS_START],
        "fewer rows of A than of D": [x for x in products if x.index.data and x.rows_of_a < x.m],
        "descriptors of less than 128 KiB": [x for x in products if x.m * max(x.a.strides) < 2**16],
    }
    assert {name: len(found) for name, found in rare.items() if len(found) < MIN_RARE} == {}


def _flipped(content, bit):
    found = bytearray(content)
    found[bit // 8] ^= 1 << bit % 8
    return bytes(found)


def _means_nothing(wanted, bit):
    """Say whether a bit is one that is not looked at: behind an odd number of extents, or of what D is stored by."""
    if isinstance(wanted, operand_launches.Plain):
        end = 8 + 4 * wanted.num_extents
        return wanted.num_extents % 2 == 1 and end <= bit // 8 < end + 4
    is_of_box = wanted.box is None and BOX.start <= bit // 8 < BOX.stop
    return is_of_box or (wanted.is_stored_by_words and bit in WORDS)


def test_a_flipped_bit_of_any_parameter_is_found(launches):
    one_each = {x.kernel.name: x for x in launches}
    for x in one_each.values():
        assert not x.differences
        parameters = zip(x.launch.parameters, x.sizes, x.wanted, strict=True)
        for index, (content, size, wanted) in enumerate(parameters):
            for bit in range(0, len(content) * 8, STEP):
                if _means_nothing(wanted, bit):
                    continue
                try:
                    flipped = decoded(_flipped(content, bit), size)
                except ValueError:
                    continue
                assert differences([flipped], [wanted]), (x.kernel.name, index, bit)
