"""The C++ look-up against aot.core.dispatch, over random shapes and every edge, in random and real tables.

`make walk` looks a million shapes up, and more in the tables that are shipped.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.core.dispatch import MAX_STEP_KERNELS, MAX_STEP_M, Column, Grid, Section, look_up, round_up
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families import family_of
from aot.select import pipeline
from aot.select.join import restricted
from aot.select.selection import read_selection
from tests.compiling import EVERY
from tests.few_committed import few_committed
from tests.golden.manifest import golden_manifest, kernel, with_table
from tests.runtime import host
from tests.runtime.host import BIAS, CALLS, FIRST_OPERATION, names_of, problem
from tests.runtime.reference import code, lies_between_sectors, matrices, plain_layout, readings
from tests.unit.invoked import coarse_grid

MAX_WORKSPACE = 2**33 - 4
"""Bytes that a workspace's 32-bit number of words reaches: templates/src/plan.cc."""
NUM_RANDOM = 20_000 if EVERY else 600
"""Whole problems, through strides, alignment and roles: for those test_canonical.py is the finer sieve."""
NUM_SHAPES = 1_000_000 if EVERY else 20_000
NUM_SHAPES_OF_TARGET = 100_000 if EVERY else 8_000


def sections_of(manifest, place):
    """List the sections of an operation of `random_manifest`, by its place in the library."""
    return [x for x in manifest.tables[0].table.sections if x.operation.call == CALLS[place]]


def layouts_of(manifest, place):
    return {x.operation.layout.value for x in sections_of(manifest, place)}


def expected_choice(manifest, stated):
    """Choose by the Python reference: (kernel, tier, index, layout, exchanged)."""
    a, b, d = matrices(stated)
    place = stated.operation - FIRST_OPERATION
    sections = sections_of(manifest, place)
    can_exchange, is_aligned = sections[0].operation.can_exchange, (stated.bias.data or 0) % 16 == 0
    found = (x for x in readings(a, b, d, layouts_of(manifest, place)) if can_exchange or not x.exchanged)
    reading = next(found, None) if is_aligned else None
    layout = plain_layout(a, b) if reading is None else reading.layout
    own = [x for x in sections if x.operation.layout.value == layout] or sections
    is_between = reading is not None and lies_between_sectors(reading)
    section = next((x for x in own if is_between and x.between_sectors), own[0])
    m, n = (stated.m, stated.n) if reading is None else (reading.a.extents[0], reading.b.extents[0])
    shape = Problem(section.operation, m, n, stated.k)
    choice = look_up(section, shape, manifest.multiples, aligned=reading is not None)
    return choice.kernel, choice.tier.value, choice.index, code(layout), reading is not None and reading.exchanged


def check(library, manifest, stated):
    status, got = library.select(stated)
    if status:  # a random table may put a kernel with a workspace where it would take more than can be addressed
        expected = manifest.kernels[expected_choice(manifest, stated)[0]]
        assert expected.workspace.num_bytes(stated.m, stated.n, stated.k) > MAX_WORKSPACE, library.error()
        assert "at most 8 GiB can be addressed" in library.error()
        return
    answer = got.kernel, got.tier, got.index, got.layout, bool(got.exchanged)
    assert answer == expected_choice(manifest, stated), (stated.operation, stated.m, stated.n, stated.k)


def test_equals_reference_on_random_shapes(library, manifest):
    rng = random.Random(7)
    tuned = [(x.n, x.k) for section in manifest.tables[0].table.sections for x in section.ladders]
    for _ in range(NUM_RANDOM):
        m = rng.choice((rng.randint(1, 64), rng.randint(1, 16000), 8 * rng.randint(1, 2000)))
        n, k = rng.choice(tuned) if rng.random() < 0.4 else (8 * rng.randint(1, 3000), 8 * rng.randint(1, 3000))
        n, k = n + (rng.random() < 0.1), k + (rng.random() < 0.1)
        place, layout = rng.randrange(len(CALLS)), rng.choice(("kk", "kn", "mk", "mn"))
        bias = rng.choice(((0, (0, 1)), BIAS, BIAS, BIAS + 2)) if CALLS[place].endswith("bias") else None
        check(library, manifest, problem(m, n, k, dtype=place, layout=layout, bias=bias))


def test_equals_reference_beside_every_edge(library, manifest):
    count = 0
    for section in manifest.tables[0].table.sections:
        grid = section.grid
        shapes = [(m, x.n, x.k) for x in section.ladders for m in x.m_edges]
        shapes += [(m, *grid.corner(i)) for i, column in enumerate(grid.columns) for m in column.m_edges]
        for m, n, k in shapes:
            for step in (-8, -1, 0, 1, 8):
                for shape in ((m + step, n, k), (m, n + step, k), (m, n, k + step)):
                    operation = section.operation
                    stated = problem(*(max(x, 1) for x in shape), **names_of(operation))
                    check(library, manifest, stated)
                    count += 1
    assert count > 1000


def test_unaligned_addresses_get_the_fallback(library, manifest):
    for offset in ((2, 0, 0), (0, 8, 0), (0, 0, 14)):
        stated = problem(64, 64, 64, data=tuple(0x10000 * (i + 1) + x for i, x in enumerate(offset)))
        check(library, manifest, stated)
        assert library.select(stated)[1].tier == 3


def random_shapes(rng, section, count):
    """Draw (m, n, k, aligned): of all magnitudes, tuned or not, on the edges of the table and beside them."""
    sizes = np.exp2(rng.uniform(0, 31, (count, 3))).astype(np.int64)
    near = rng.integers(1, 20_000, (count, 3))
    shapes = np.where(rng.random((count, 1)) < 0.25, sizes, near)
    tuned = np.array([(x.n, x.k) for x in section.ladders] or [(64, 64)], np.int64)
    is_tuned = rng.random(count) < 0.4
    shapes[is_tuned, 1:] = rng.choice(tuned, is_tuned.sum())
    grid = section.grid
    parts = (*grid.columns, *section.ladders)
    axes = [tuple({m for x in parts for m in x.m_edges}), grid.n_edges, grid.k_edges]
    for column, edges in enumerate(axes):
        on_edge = rng.random(count) < 0.2
        shapes[on_edge, column] = rng.choice(np.array(edges), on_edge.sum()) + rng.integers(-1, 2, on_edge.sum())
    aligned = rng.random((count, 1)) < 0.97
    return np.ascontiguousarray(np.hstack([np.clip(shapes, 1, 2**31 - 1), aligned]), np.int64)


def check_many(library, manifest, num_shapes):
    """Look shapes up in every section by both; gives the tiers and kernels that answered."""
    rng, count = np.random.default_rng(11), -(-num_shapes // len(manifest.tables[0].table.sections))
    tiers, kernels, multiples = set(), set(), manifest.multiples
    operations = {x.operation for x in (*manifest.tables[0].table.sections, *manifest.kernels)}
    calls = list(dict.fromkeys(x.call for x in sorted(operations, key=lambda x: x.position)))
    for number, section in enumerate(manifest.tables[0].table.sections):
        operation = section.operation
        if section.scope is None:  # others are looked up by the number of groups; see test_python_groups.py
            assert library.c.chooser_find_section(calls.index(operation.call), operation.layout.code) == number
        shapes = random_shapes(rng, section, count)
        choices = library.choose(number, shapes)
        for (m, n, k, aligned), found in zip(shapes.tolist(), choices.tolist(), strict=True):
            choice = look_up(section, Problem(operation, m, n, k), multiples, aligned=bool(aligned))
            expected = [choice.kernel, choice.tier.value, choice.index, choice.tile_order]
            assert found == expected, (m, n, k, aligned)
        tiers |= set(choices[:, 1].tolist())
        kernels |= set(choices[:, 0].tolist())
    return tiers, kernels


def test_equals_reference_on_many_shapes(library, manifest):
    tiers, kernels = check_many(library, manifest, NUM_SHAPES)
    assert (tiers, len(kernels) > len(manifest.kernels) // 2) == ({1, 2, 3}, True)


def test_equals_reference_at_the_largest_edge_and_beside_it(library, manifest):
    found = 0
    for number, section in enumerate(manifest.tables[0].table.sections):
        tuned = {(x.n, x.k) for x in section.ladders}
        for i, column in enumerate(section.grid.columns):
            n, k = section.grid.corner(i)
            if column.m_edges[-1] != MAX_STEP_M or (n, k) in tuned:
                continue
            ends = (column.m_edges[-2], column.m_edges[-2] + 1, MAX_STEP_M, MAX_STEP_M + 1, 2**31 - 1)
            choices = library.choose(number, np.array([(m, n, k, 1) for m in ends], np.int64)).tolist()
            steps = [(x, 2, i, y) for x, y in zip(column.kernels, column.tile_orders or [0] * 99, strict=False)]
            assert choices == [list(x) for x in (steps[-2], *[steps[-1]] * 4)]
            found += column.kernels[-2] != column.kernels[-1]
    assert found > 10


PACKED = """
#include "dispatch.h"
#include "kernel.h"
namespace aot {
constexpr int64_t kEdges[] = {1};
constexpr uint32_t kStarts[] = {0, 3};
constexpr uint32_t kSteps[] = {%s};
constexpr uint8_t kOrders[] = {%s};
constexpr int16_t kGridKernels[] = {%s};
constexpr Grid kGrid = {kEdges, kEdges, kStarts, kSteps, 1, 1, kOrders, kGridKernels, 4096};
const Section kSections[] = {{0, 0, 1, false, 0, false, false, nullptr, 0, kGrid, 0, 0, 0, 0}};
const int32_t kNumSections = 1;
constexpr int32_t kSectionOf[] = {0, -1, -1, -1};
const Table kTables[] = {{"h200", nullptr, 0, 132, 0, kSectionOf, 1}};
const Multiples kMultiples[] = {{1, 1}};
}
"""


def test_the_largest_edge_and_the_last_kernel_are_unpacked_as_they_were_packed(tmp_path):
    orders = {MAX_STEP_KERNELS - 2: 7, 0: 0, MAX_STEP_KERNELS - 1: 8}
    column = Column((1, MAX_STEP_M - 1, MAX_STEP_M), tuple(orders), tuple(orders.values()))
    steps = (m * MAX_STEP_KERNELS + kernel for m, kernel in zip(column.m_edges, column.kernels, strict=True))
    source, library = tmp_path / "packed.cc", tmp_path / "packed.so"
    numbers = range(MAX_STEP_KERNELS)
    lists = steps, (orders.get(x, 0) for x in numbers), numbers
    source.write_text(PACKED % tuple(", ".join(map(str, x)) for x in lists))
    arguments = host.library_sources(golden_manifest(), tmp_path, binding=False)
    includes = [x for x in map(str, arguments) if x.startswith("-I")]
    sources = [tmp_path / "src" / "dispatch.cc", host.CHOOSER, source]
    subprocess.run(["g++", *host.FLAGS, *includes, *sources, "-o", library], check=True)
    ends = (1, 2, MAX_STEP_M - 1, MAX_STEP_M, MAX_STEP_M + 1, 2**31 - 1)
    choices, shapes = np.empty((len(ends), 4), np.int64), np.array([(m, 1, 1, 1) for m in ends], np.int64)
    pointers = (ctypes.c_void_p(x.ctypes.data) for x in (shapes, choices))
    ctypes.CDLL(library).chooser_choose(ctypes.c_int32(0), ctypes.c_int64(len(ends)), *pointers)
    section = Section(Operation.BF16_KK, (), Grid((1,), (1,), (column,)), 0)
    expected = [look_up(section, Problem(Operation.BF16_KK, m, 1, 1), ()) for m in ends]
    assert choices.tolist() == [[x.kernel, 2, 0, x.tile_order] for x in expected]
    assert choices[:, 3].tolist() == [7, 0, 0, 8, 8, 8]
    assert choices[:, 0].tolist() == [4094, 0, 0, 4095, 4095, 4095]


def kernel_of(key):
    family = family_of(key.candidate)
    alignment, multiples = family.alignment(key.candidate), family.multiples(key.candidate)
    workspace = family.workspace(key.candidate)
    found = kernel(key.operation, key.candidate, family.num_strides, multiples, workspace)
    return replace(found, load_alignment=alignment.loads, store_alignment=alignment.stores)


K_OF_LOADS = {0: 64, 16: 64, 8: 68, 4: 66, 2: 65}
"""A k whose packed rows begin at multiples of so many bytes."""


BETWEEN_K = 72
"""One whose packed rows begin between two sectors."""


def check_sections(library, table, calls):
    """Have the library check each section of a product of two operands, and answer by it."""
    seen = set()
    for number, section in enumerate(table.sections):
        operation, loads = section.operation, section.loads
        if operation.call not in {"bf16", "fp16"} or section.batch_invariant or operation.layout is not Layout.KK:
            continue
        k = BETWEEN_K if section.between_sectors else K_OF_LOADS[loads]
        stated = problem(64, 63 if loads else 64, k, dtype=calls.index(operation.call))
        status, found = library.select(stated)
        assert status == 0, library.error()
        seen.add((found.section == number, loads))
    return seen


def check_selection(selection, directory):
    """Compare the answers of a selection's table, of which a whole one is twenty megabytes of C++.

    `make test` compares those of two operations of the H200's, `make walk` of all and of the other files.
    """
    if not EVERY:
        selection = restricted(selection, tuple(dict.fromkeys(x.operation for x in selection.table.sections))[:2])
    kernels = tuple(map(kernel_of, selection.kernels))
    manifest = with_table(golden_manifest(), kernels, selection.table)
    library = host.Library(host.compile_library(manifest, directory))
    tiers, used = check_many(library, manifest, NUM_SHAPES_OF_TARGET)
    assert (tiers, len(used) > len(kernels) // 2) == ({1, 2, 3}, True)
    calls = list(dict.fromkeys(x.operation.call for x in sorted(selection.kernels, key=lambda x: x.operation.position)))
    seen = check_sections(library, selection.table, calls)
    assert seen == {(True, x.loads) for x in selection.table.sections if x.operation is Operation.BF16_KK}


COMMITTED = {
    path.name.removesuffix(".json.gz"): path
    for path in sorted(pipeline.COMMITTED.glob("*.json.gz"))
    if not path.name.endswith(".rows.json.gz")
}
"""Those of products, by name."""


@pytest.mark.parametrize("name", COMMITTED if EVERY else ["h200"])
def test_equals_reference_in_the_table_that_is_shipped(name, tmp_path):
    assert COMMITTED[name] in pipeline.committed_selections(load_target(name.partition(".")[0]))
    path = COMMITTED[name] if EVERY else few_committed() / COMMITTED[name].name
    check_selection(read_selection(path), tmp_path)


@pytest.mark.walk
def test_equals_reference_in_a_predicted_table(tmp_path, monkeypatch):
    """In what `aot select --predicted` makes, of few kernels and cells: many are in the tables that are shipped."""
    coarse_grid(monkeypatch)
    path = tmp_path / "selection.json"
    few = ["--kernels", "*_128x128_c1x1_clc,*_64x32_c1x1_clc_swap", "--max-kernels", "2"]
    result = CliRunner().invoke(main, ["select", "--target", "thor", "--predicted", *few, "-o", str(path)])
    assert result.exit_code == 0, result.output
    packed = [f"bf16x{x}_bf16_kk" for x in ("int4g128", "nvfp4", "nvfp4rows")]
    rows = [f"bf16_nvfp4_{x}" for x in ("quantize", "rms_norm", "silu_mul")]
    assert f"{', '.join([*packed, *rows])}: left out, for --kernels leaves no kernel" in result.output
    check_selection(read_selection(path), tmp_path)


def test_the_rule_equals_the_reference_is_monotone_idempotent_and_total(library):
    rng = np.random.default_rng(12)
    for _ in range(200):
        edges = np.unique(np.exp2(rng.uniform(0, 31, rng.integers(1, 64))).astype(np.int64))
        values = np.concatenate([edges, edges + 1, edges - 1, rng.integers(1, 2**31, 5000)])
        values = np.sort(np.clip(values, 1, 2**31 - 1))
        indices = library.round_up(values, edges)
        assert indices.tolist() == [round_up(value, tuple(edges.tolist())) for value in values[:300].tolist()] + (
            np.minimum(np.searchsorted(edges, values[300:]), len(edges) - 1).tolist()
        )
        assert (np.diff(indices) >= 0).all()
        assert ((indices >= 0) & (indices < len(edges))).all()
        assert (library.round_up(edges, edges) == np.arange(len(edges))).all()
