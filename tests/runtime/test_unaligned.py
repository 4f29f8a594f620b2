"""Products whose operands are not aligned, or begin between two sectors: which section answers, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from aot.core.candidate import gemm_candidate
from aot.core.dispatch import LOADS, Column, DispatchTable, Grid, Ladder, Scope, Section, Tier, look_up
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.select.join import named_kernels
from tests.compiling import EVERY
from tests.golden.manifest import kernel, row, with_table
from tests.runtime import host
from tests.runtime.host import BIAS, CALLS, FIRST_OPERATION, problem
from tests.runtime.reference import Reading, code, loaded_bytes, matrices
from tests.runtime.test_canonical import check_memory, random_strides
from tests.runtime.test_dispatch import expected_choice, layouts_of, sections_of

OPERATIONS = (Operation.BF16_KK, Operation.BF16_KN, Operation.FP16_KK, Operation.BF16_KK_BIAS)
SECTION_LOADS = (2, 8, 16)
"""Without 4, so that operands of 4 bytes are answered by the section of 2."""
SIZES = (1, 1, 2, 3, 4, 8, 12, 17, 64)
OFFSETS = (0, 0, 0, 2, 4, 6, 8, 14, 16)
BATCH_INVARIANT = 4


def unaligned_kernels(operation):
    """Make two kernels for operands of each number of bytes: for small and for large m."""
    return [
        replace(
            kernel(operation, gemm_candidate("mma_sync", tile, 64, schedule=f"a{loads}k1", use_tma_store=False)),
            load_alignment=loads,
            store_alignment=1,
        )
        for loads in LOADS
        for tile in (64, 128)
    ]


def between_sectors(aligned, own):
    """Make a section for rows between sectors, by two of the kernels of the one for all others."""
    grid = Grid((16, 512), (64,), (Column((8, 64), own), Column((16,), own[:1])))
    ladders = (Ladder(64, 72, (4, 32), (row(own[0], own[0], 1.0, own[1]), row(own[1], own[1], 1.0, own[0]))),)
    return Section(aligned.operation, ladders, grid, aligned.fallback, Scope(1, False, between_sectors=True))


def with_unaligned(manifest):
    """Give each operation sections for rows between sectors, and for what is not aligned.

    The kernels of one of the latter may stand in that of larger loads.
    """
    kernels, sections = list(manifest.kernels), []
    for aligned in manifest.tables[0].table.sections:
        first = len(kernels)
        kernels += unaligned_kernels(aligned.operation)
        general = [i for i in named_kernels(aligned) if manifest.multiples[i] == (1, 1) and i != aligned.fallback]
        sections += [aligned, between_sectors(aligned, tuple(sorted(general)[:2]))]
        for loads in SECTION_LOADS:
            own = first + 2 * LOADS.index(loads)
            columns = (Column((16,), (own,)), Column((8, 64), (own, own + 1)), Column((1, 2), (first, own)))
            grid = Grid((8,), (16, 64, 128), columns)
            ladders = (Ladder(17, 64, (4,), (row(own + 1, own + 1, 1.0, own),)),)
            sections.append(Section(aligned.operation, ladders, grid, aligned.fallback, Scope(1, False, loads)))
    return with_table(manifest, tuple(kernels), DispatchTable(tuple(sections)))


@pytest.fixture(scope="module")
def manifest():
    return replace(with_unaligned(host.random_manifest(21, OPERATIONS)), package="unaligned-gemm")


@pytest.fixture(scope="module")
def path(manifest, tmp_path_factory):
    return host.compile_library(manifest, tmp_path_factory.mktemp("unaligned"))


@pytest.fixture
def library(path):
    found = host.Library(path)
    found.c.recorder_reset()
    return found


def is_adjacent(matrix, contiguous):
    """Say whether a matrix is runs of adjacent elements, which begin anywhere that an element may."""
    inner, outer = matrix.extents[contiguous], matrix.extents[1 - contiguous]
    if inner > 1 and matrix.strides[contiguous] != 1:
        return False
    return matrix.address % 2 == 0 and (outer <= 1 or matrix.strides[1 - contiguous] >= inner)


def loose_reading(stated, layouts, can_exchange):
    """Return the first reading in the order of `reference.readings` that asks for no alignment, or None."""
    a, b, d = matrices(stated)
    for exchanged, layout in product((False, True)[: 1 + can_exchange], ("kk", "kn", "mk", "mn")):
        left, right, result = (b, a, d.transposed) if exchanged else (a, b, d)
        modes = int(layout[0] == "k"), int(layout[1] == "k"), 1
        parts = zip((left, right, result), modes, strict=True)
        if layout in layouts and stated.k > 0 and all(is_adjacent(*x) for x in parts):
            return Reading(exchanged, layout, left, right, result)
    return None


def expected(manifest, stated):
    """Choose by Python: (kernel, tier, index, layout, exchanged), and the section if it is for what is not aligned."""
    choice = expected_choice(manifest, stated)
    place = stated.operation - FIRST_OPERATION
    can_exchange = sections_of(manifest, place)[0].operation.can_exchange
    reading = loose_reading(stated, layouts_of(manifest, place), can_exchange)
    if choice[1] != Tier.FALLBACK.value or reading is None:
        return choice, None
    operation = next(x.operation for x in sections_of(manifest, place) if x.operation.layout.value == reading.layout)
    section = manifest.tables[0].table.unaligned_section(operation, loaded_bytes(reading))
    shape = Problem(operation, reading.a.extents[0], reading.b.extents[0], stated.k)
    found = look_up(section, shape, manifest.multiples)
    return (found.kernel, found.tier.value, found.index, code(reading.layout), reading.exchanged), section


def drawn(rng):
    """Draw a product whose strides and addresses are of any number of elements, and some of none."""
    m, n, k = (rng.choice(SIZES) for _ in range(3))
    shapes = ((m, k, False), (n, k, False), (m, n, True))
    strides = tuple(random_strides(rng, rows, columns, output=out) for rows, columns, out in shapes)
    data = tuple(0x100000 * (i + 1) + rng.choice(OFFSETS) for i in range(3))
    dtype = rng.randrange(len(CALLS))
    bias = BIAS + rng.choice((0, 0, 2, 4)) if CALLS[dtype].endswith("bias") else None
    return problem(m, n, k, dtype=dtype, data=data, strides=strides, bias=bias)


def answer(selection):
    return selection.kernel, selection.tier, selection.index, selection.layout, bool(selection.exchanged)


def test_the_section_of_the_most_bytes_that_operands_give_answers(library, manifest):
    rng = random.Random(3)
    sections, names = manifest.tables[0].table.sections, {code(x): x for x in ("kk", "kn")}
    seen, tiers, between = set(), set(), set()
    for _ in range(20_000):
        stated = drawn(rng)
        choice, section = expected(manifest, stated)
        library.c.recorder_reset()
        workspace = library.workspace_bytes(stated)
        assert library.launch(stated, 0x900000 if workspace else 0, workspace) == 0, library.error()
        _, selection = library.select(stated)
        assert answer(selection) == choice
        (launch,) = library.fake_launches()
        assert launch.kernel == choice[0]
        if sections[selection.section].between_sectors:
            between.add((sections[selection.section].operation, choice[1]))
        if section is not None:
            assert sections[selection.section] == section
            check_memory(rng, stated, launch, names[choice[3]], choice[4], stride_multiple=1)
            seen.add((section.operation, section.loads, choice[4]))
            tiers.add(choice[1])
    exchanged = {(x, loads, True) for x in OPERATIONS if x.can_exchange for loads in SECTION_LOADS}
    assert seen == exchanged | {(x, loads, False) for x in OPERATIONS for loads in SECTION_LOADS}
    assert tiers == {Tier.TUNED.value, Tier.GRID.value}
    assert {x for x, _ in between} == set(OPERATIONS)


@pytest.mark.parametrize("offsets", [(0, 0), (16, 0), (0, 16), (32, 96)])
@pytest.mark.parametrize(
    ("k", "strides"), [(64, (64, 64)), (64, (72, 64)), (64, (64, 88)), (72, (72, 72)), (72, (80, 80))]
)
def test_rows_of_an_odd_multiple_of_16_bytes_have_a_section_wherever_they_begin(library, manifest, offsets, k, strides):
    data = (0x100000 + offsets[0], 0x200000 + offsets[1], 0x300010)  # D's address says nothing
    asked = problem(48, 256, min(strides), data=data, strides=((strides[0], 1), (strides[1], 1), (256, 1)))
    status, selection = library.select(asked)
    assert status == 0, library.error()
    found = manifest.tables[0].table.sections[selection.section]
    assert found.between_sectors == any(2 * x % 32 for x in strides)
    assert answer(selection) == expected_choice(manifest, asked)


def test_one_row_of_x_says_nothing_of_sectors(library, manifest):
    for stride in (72, 64):
        _, selection = library.select(problem(1, 256, 64, strides=((stride, 1), (64, 1), (256, 1))))
        assert not manifest.tables[0].table.sections[selection.section].between_sectors


@pytest.mark.parametrize(("offset", "loads"), [(0, 0), (2, 2), (4, 2), (6, 2), (8, 8), (14, 2), (16, 0)])
@pytest.mark.parametrize("operand", [0, 1])
def test_an_address_says_by_how_many_bytes_it_can_be_loaded(library, manifest, operand, offset, loads):
    data = [0x100000 * (i + 1) for i in range(3)]
    data[operand] += offset
    _, selection = library.select(problem(64, 64, 64, data=data))
    assert manifest.tables[0].table.sections[selection.section].loads == loads


@pytest.mark.parametrize("offset", [2, 4, 8])
def test_an_address_of_d_says_nothing_of_loads(library, manifest, offset):
    _, selection = library.select(problem(64, 64, 64, data=(0x100000, 0x200000, 0x300000 + offset)))
    assert manifest.tables[0].table.sections[selection.section].loads == 16


def test_a_batch_invariant_product_is_left_to_the_fallback(manifest, tmp_path):
    """The tables for what is not aligned have kernels that add k up in several orders."""
    (table,) = manifest.tables
    in_one_order = {x.operation: x for x in host.with_one_order(manifest).tables[0].table.sections if not x.scope}
    sections = []
    for section in table.table.sections:
        sections.append(section)
        if section.between_sectors:
            sections.append(replace(in_one_order[section.operation], scope=Scope(1, True)))
    both = with_table(manifest, manifest.kernels, DispatchTable(tuple(sections)))
    library = host.Library(host.compile_library(both, tmp_path))
    status, selection = library.select(problem(64, 64, 65, flags=BATCH_INVARIANT))
    assert (status, selection.tier) == (0, Tier.FALLBACK.value), library.error()
    assert sections[selection.section].batch_invariant
    _, selection = library.select(problem(64, 64, 65))
    assert sections[selection.section].loads == 2


def test_each_product_of_a_batch_is_answered_by_its_own_addresses(library, manifest):
    stated = problem(8, 64, 64, data=(0x100000, 0x200000, 0x300000))
    stated.num_groups = 4
    stated.group_strides.a, stated.group_strides.b, stated.group_strides.d = 8 * 64 + 4, 64 * 64, 8 * 64
    workspace = library.workspace_bytes(stated)
    assert library.launch(stated, 0x900000 if workspace else 0, workspace) == 0, library.error()
    steps = [(2 * i * (8 * 64 + 4), 2 * i * 64 * 64, 2 * i * 8 * 64) for i in range(4)]
    alone = [problem(8, 64, 64, data=(0x100000 + a, 0x200000 + b, 0x300000 + d)) for a, b, d in steps]
    choices = [expected(manifest, x) for x in alone]
    assert [x.kernel for x in library.fake_launches()] == [choice[0] for choice, _ in choices]
    assert [section and section.loads for _, section in choices] == [None, 8, None, 8]


def place_of(manifest, operation, loads):
    """Return the index of the first kernel of an operation that asks for operands of so many bytes."""
    found = (i for i, x in enumerate(manifest.kernels) if x.operation == operation and x.load_alignment == loads)
    return next(i for i in found if manifest.kernels[i].store_alignment == 1)


@pytest.mark.parametrize("loads", LOADS)
def test_a_kernel_that_is_named_refuses_operands_of_fewer_bytes(library, manifest, loads):
    index = place_of(manifest, Operation.BF16_KK, loads)
    for offset, given in ((0, 16), (8, 8), (4, 4), (2, 2)):
        for data in ((0x100000 + offset, 0x200000, 0x300002), (0x100000, 0x200000 + offset, 0x300002)):
            status = library.launch_kernel(index, problem(64, 63, 64, data=data))
            assert status == (0 if given >= loads else 4), library.error()
            if status:
                assert (
                    f"leading strides of both multiples of {loads} bytes, those of D and its rows of 1"
                    in library.error()
                )


def test_a_kernel_for_aligned_operands_refuses_others(library):
    assert library.launch_kernel(1, problem(64, 63, 64)) == 4
    assert "leading strides of both multiples of 16 bytes, those of D and its rows of 16" in library.error()


def first_section(manifest, loads):
    return next(x for x in manifest.tables[0].table.sections if x.loads == loads)


def with_kernel(manifest, index, **changes):
    kernels = list(manifest.kernels)
    kernels[index] = replace(kernels[index], **changes)
    return with_table(manifest, tuple(kernels), manifest.tables[0].table)


@pytest.mark.parametrize(
    "changes", [{"load_alignment": 16}, {"store_alignment": 16}, {"n_multiple": 2}, {"m_multiple": 2}]
)
@pytest.mark.parametrize("place", [0, 1] if EVERY else [1])
def test_a_section_of_a_kernel_for_better_operands_is_refused(manifest, tmp_path, place, changes):
    index = place_of(manifest, Operation.BF16_KK, 8) + place
    library = host.Library(host.compile_library(with_kernel(manifest, index, **changes), tmp_path))
    section = manifest.tables[0].table.sections.index(first_section(manifest, 8))
    stated = problem(64, 64, 68)
    assert library.select(stated)[0] == 9
    assert f"contradicts itself: section {section}" in library.error()
    assert library.launch(stated) == 9
    assert library.fake_launches() == []
