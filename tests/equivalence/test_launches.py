"""The Thor wheel's host code, emulated, asks CUDA for what the same kernels ask on x86-64, and for the right thing.

Kernels of the wheel that have each kind of operands and of host code (`make walk`: every candidate), each with
hundreds of problems, through the C API into the recorder, on AArch64 in qemu. What they ask for is derived from the
problem, value by value. `make walk` does the same on x86-64, and compares the two: their device code is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import BytesIO
from itertools import zip_longest

import pytest
from elftools.elf.elffile import ELFFile

from aot.core.operation import ELEMENTS, Layout
from aot.core.operation import Operation as Op
from aot.core.tile_order import NUM_ORDERS
from aot.families import family_of
from tests.equivalence import cases, descriptor, kernels, operand_kernels, programs
from tests.equivalence.cases import Case
from tests.equivalence.expected import Expected, expected
from tests.equivalence.launch import DESCRIPTOR_BYTES, Answer, Launch
from tests.equivalence.records import check_ptx
from tests.objects import cubin

MIN_CASES = 200 if kernels.EVERY else 50
BARRIER_BYTES = 1024
MAX_SMEM_BYTES, NON_PORTABLE_CLUSTER = 8, 14  # cudaFuncAttribute
SMEM_LIMIT = 232448
SHOWN = 3


@dataclass(frozen=True)
class Run:
    """One launch asked for, and the answer of each machine."""

    kernel: object
    sizes: list[int]
    case: Case
    answers: dict[str, Answer]

    @property
    def is_refused(self):
        return self.answers["aarch64"].status != 0

    @property
    def launch(self):
        """Give what the wheel's own host code launched."""
        (launch,) = self.answers["aarch64"].launches
        return launch


def problems(kernel):
    if kernel.num_strides == 2:
        return cases.strided(kernel.name)
    found = cases.aligned(kernel.name, kernel.operation.layout)
    return (replace(x, tile_order=i % NUM_ORDERS) for i, x in enumerate(found)) if kernel.orders_tiles else found


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    for machine in kernels.MACHINES:
        programs.emulator(machine)  # skips here, before anything is compiled
    answers = {}
    for machine in kernels.MACHINES:
        compiled = kernels.compiled(machine)
        sizes = compiled.sizes
        requests = [
            (index, kernel, sizes[kernel.name], case)
            for index, kernel in enumerate(compiled.manifest.kernels)
            for case in problems(kernel)
        ]
        program = programs.build(compiled, tmp_path_factory.mktemp(machine))
        answers[machine] = programs.replay(program, compiled.target, requests)
    return [
        Run(kernel, sizes, case, {x: answers[x][i] for x in kernels.MACHINES})
        for i, (_, kernel, sizes, case) in enumerate(requests)
    ]


@pytest.fixture(scope="module")
def runs(asked):
    return [run for run in asked if not run.is_refused]


def decoded(launch, sizes):
    """Give a launch in the form that is derived from the problem: descriptors decoded, shared memory apart."""
    parameters = tuple(
        descriptor.decode(content) if size == DESCRIPTOR_BYTES else content
        for content, size in zip(launch.parameters, sizes, strict=True)
    )
    return Expected(launch.grid, launch.block, launch.stream, launch.attributes, parameters)


def differences(found, wanted):
    """Name the parts in which two launches differ, with both values."""
    parts = {name: (vars(found)[name], vars(wanted)[name]) for name in vars(wanted) if name != "parameters"}
    pairs = zip_longest(found.parameters, wanted.parameters)
    parts |= {f"parameter {index}": pair for index, pair in enumerate(pairs)}
    return "".join(f"\n  {name} is {x}\n    not {y}" for name, (x, y) in parts.items() if x != y)


def refuse(wrong):
    """Fail with the first of the launches that are not as wanted."""
    if wrong:
        lines = [f"{run.kernel.name}, {run.case}: {differences(found, wanted)}" for run, found, wanted in wrong[:SHOWN]]
        pytest.fail("\n".join([f"{len(wrong)} launches differ; the first:", *lines]), pytrace=False)


def test_every_candidate_and_layout_of_the_wheel_gets_enough_problems(runs):
    selected, shipped = kernels.selection().kernels, kernels.of_16_bits()
    for facet in (
        lambda x: (x.candidate if kernels.EVERY else x.candidate.family, x.operation.layout, x.operation.epilogue),
        lambda x: (x.candidate.family, x.operation if kernels.EVERY else x.operation.element),
        lambda x: (x.candidate.family, x.candidate.gemm.use_2cta, x.candidate.gemm.swap_ab),
        lambda x: (x.candidate.family, x.candidate.gemm.split_k_mode, x.candidate.gemm.swap_ab),
    ):
        assert set(map(facet, selected)) == set(map(facet, shipped))
    found = {}
    for run in runs:
        found.setdefault(run.kernel.key, set()).add(run.case)
    assert set(found) == set(selected)
    assert min(len(x) for x in found.values()) >= MIN_CASES
    assert {key.operation.layout for key in selected} == set(Layout)
    assert {key.operation.element for key in selected} == set(ELEMENTS)


def test_of_other_products_each_family_and_operation_of_the_wheel_is_among_operand_kernels():
    """Kernels of packed weights are left out: what launches them is executed by the interpreter alone.

    An operation counts as its twin of other types does, whose host code is told the same.
    """
    compared = [*operand_kernels.KERNELS["thor"], *operand_kernels.MORE["thor"]]
    plain, others = set(kernels.of_16_bits()), set()
    for key in kernels.wheel().kernels:
        if key not in plain and key.operation.types.weight is None and not family_of(key.candidate).is_fallback:
            others.add((key.candidate.family, key.operation))
    assert {Op.BF16_KK_BIAS, Op.NVFP4_BF16_KK} <= {operation for _, operation in others}
    assert others <= {(candidate.family, x) for op, candidate in compared for x in (op, *op.twins)}


def test_the_problems_reach_what_is_rare(runs):
    fast = [run.case for run in runs if run.kernel.num_strides == 1]
    rare = {
        "one row": [x for x in fast if x.m == 1],
        "k of 1": [x for x in fast if x.k == 1],
        "no multiple of 8": [x for x in fast if x.m % 8 and x.k % 8],
        "column-major D": [x for x in fast if x.n > 1 and x.d.strides[1] != 1],
        "padded D": [x for x in fast if x.m > 1 and x.d.strides[0] >= x.n + 8],
        "more than 2 GiB of A": [x for x in fast if x.m * max(x.a.strides) * 2 > 2**31],
        "strides past 32 bits": [x for x in fast if x.n > 1 and max(x.b.strides) * 2 > 2**36],
        "the largest extent": [x for x in fast if cases.MAX_EXTENT in {x.m, x.n, x.k}],
        "descriptors of less than 128 KiB": [x for x in fast if x.m * max(x.a.strides) * 2 < 2**17],
    }
    least = len(kernels.selection().kernels) // (1 if kernels.EVERY else 4)
    assert {name: len(found) for name, found in rare.items() if len(found) < least} == {}


of_both = pytest.mark.skipif(len(kernels.MACHINES) == 1, reason="`make walk` compares two hosts")


@of_both
@pytest.mark.usefixtures("runs")
def test_the_device_code_does_not_depend_on_the_host():
    ours, theirs = (kernels.compiled(x).objects for x in kernels.MACHINES)
    assert set(ours) == set(theirs)
    assert [name for name in ours if cubin(ours[name]) != cubin(theirs[name])] == []


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("machine", kernels.MACHINES)
def test_the_objects_are_of_their_machine(machine):
    found = {ELFFile(BytesIO(x.read_bytes()))["e_machine"] for x in kernels.compiled(machine).objects.values()}
    assert found == {{"aarch64": "EM_AARCH64", "x86_64": "EM_X86_64"}[machine]}


def test_the_record_is_of_the_kernels_as_they_are():
    (machine, *_) = kernels.MACHINES
    for kernel in kernels.compiled(machine).manifest.kernels:
        check_ptx("thor", kernel)


@of_both
def test_aarch64_launches_what_x86_64_launches(runs):
    different = [run for run in runs if run.answers["aarch64"] != run.answers["x86_64"]]
    refuse([(run, *(decoded(run.answers[x].launches[0], run.sizes) for x in kernels.MACHINES)) for run in different])


def test_a_launch_is_what_the_problem_asks_for(runs):
    num_sms = kernels.target("aarch64").num_sms
    launches = [(run, decoded(run.launch, run.sizes), expected(run.kernel, run.case, num_sms)) for run in runs]
    refuse([(run, found, wanted) for run, found, wanted in launches if found != wanted])


def fits(grid):
    """Say whether CUDA launches a grid. Source: CUDA C++ Programming Guide, technical specifications."""
    return grid[0] < 2**31 and max(grid[1:]) <= cases.MAX_BLOCKS


def test_a_grid_is_refused_where_cuda_would_and_nowhere_else(asked):
    num_sms = kernels.target("aarch64").num_sms
    highest, refused, refused_along_x = {}, set(), set()
    for run in asked:
        grid = expected(run.kernel, run.case, num_sms).grid
        answers = {(x.status, len(x.launches)) for x in run.answers.values()}
        assert answers == {(0, 1) if fits(grid) else (programs.SHAPE, 0)}, (run.kernel.name, run.case, grid)
        if fits(grid):
            highest[run.kernel.name] = max(highest.get(run.kernel.name, 0), grid[1])
        elif fits((1, *grid[1:])):
            refused_along_x.add(run.kernel.name)
        else:
            refused.add(run.kernel.name)
    assert refused_along_x or not kernels.EVERY
    assert refused
    assert min(highest[name] for name in refused) >= cases.MAX_BLOCKS - 1


def test_shared_memory_is_what_the_manifest_says_less_unused_barriers(runs):
    sizes = {}
    for run in runs:
        sizes.setdefault(run.kernel.name, set()).add(run.launch.smem_bytes)
    assert {name: found for name, found in sizes.items() if len(found) != 1} == {}
    limits = {run.kernel.name: run.kernel.smem_bytes for run in runs}
    assert [x for x, (size,) in sizes.items() if not limits[x] - BARRIER_BYTES < size <= limits[x] <= SMEM_LIMIT] == []


def test_loading_allows_all_shared_memory_and_any_cluster_once(asked):
    settings = {}
    for run in asked:
        settings.setdefault(run.kernel.name, []).append(set(run.answers["aarch64"].settings))
    wanted = {(MAX_SMEM_BYTES, SMEM_LIMIT), (NON_PORTABLE_CLUSTER, 1)}
    assert [name for name, (first, *later) in settings.items() if first != wanted or any(later)] == []


def _flipped(launch, index, bit):
    parameters = list(launch.parameters)
    content = bytearray(parameters[index])
    content[bit // 8] ^= 1 << bit % 8
    parameters[index] = bytes(content)
    return replace(launch, parameters=tuple(parameters))


def test_a_flipped_bit_of_any_parameter_is_found(runs):
    num_sms = kernels.target("aarch64").num_sms
    one_a_family = {run.kernel.candidate.family: run for run in runs}
    for run in one_a_family.values():
        asked = expected(run.kernel, run.case, num_sms)
        for index, content in enumerate(run.launch.parameters):
            for bit in range(len(content) * 8):
                launch: Launch = _flipped(run.launch, index, bit)
                try:
                    assert decoded(launch, run.sizes) != asked
                except ValueError:
                    continue
