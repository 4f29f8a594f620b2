"""The C++ look-up against aot.dispatch, over random shapes and every edge."""

from __future__ import annotations

import random

from aot.dispatch import look_up
from aot.problem import Problem
from tests.runtime.host import problem
from tests.runtime.reference import code, matrices, plain_layout, readings

NUM_RANDOM = 100_000


def layouts_of(manifest, dtype):
    return {x.operation.layout_name for x in manifest.table.sections if x.operation.dtype.code == dtype}


def expected_choice(manifest, stated):
    """Choose by the Python reference: (kernel, tier, index, layout, exchanged)."""
    a, b, d = matrices(stated)
    reading = next(readings(a, b, d, layouts_of(manifest, stated.dtype)), None)
    layout = plain_layout(a, b) if reading is None else reading.layout
    sections = [x for x in manifest.table.sections if x.operation.dtype.code == stated.dtype]
    section = next((x for x in sections if x.operation.layout_name == layout), sections[0])
    m, n = (stated.m, stated.n) if reading is None else (reading.a.extents[0], reading.b.extents[0])
    shape = Problem(section.operation, m, n, stated.k)
    choice = look_up(section, shape, manifest.multiples, aligned=reading is not None)
    return choice.kernel, choice.tier.value, choice.index, code(layout), reading is not None and reading.exchanged


def check(library, manifest, stated):
    status, got = library.select(stated)
    assert status == 0, library.error()
    answer = got.kernel, got.tier, got.index, got.layout, bool(got.exchanged)
    assert answer == expected_choice(manifest, stated), (stated.dtype, stated.m, stated.n, stated.k)


def test_equals_reference_on_random_shapes(library, manifest):
    rng = random.Random(7)
    tuned = [(x.n, x.k) for section in manifest.table.sections for x in section.ladders]
    for _ in range(NUM_RANDOM):
        m = rng.choice((rng.randint(1, 64), rng.randint(1, 16000), 8 * rng.randint(1, 2000)))
        n, k = rng.choice(tuned) if rng.random() < 0.4 else (8 * rng.randint(1, 3000), 8 * rng.randint(1, 3000))
        n, k = n + (rng.random() < 0.1), k + (rng.random() < 0.1)
        dtype, layout = rng.randint(0, 1), rng.choice(("kk", "kn", "mk", "mn"))
        check(library, manifest, problem(m, n, k, dtype=dtype, layout=layout))


def test_equals_reference_beside_every_edge(library, manifest):
    count = 0
    for section in manifest.table.sections:
        grid = section.grid
        shapes = [(m, x.n, x.k) for x in section.ladders for m in x.m_edges]
        shapes += [(m, n, k) for m in grid.m_edges for n in grid.n_edges for k in grid.k_edges]
        for m, n, k in shapes:
            for step in (-8, -1, 0, 1, 8):
                for shape in ((m + step, n, k), (m, n + step, k), (m, n, k + step)):
                    operation = section.operation
                    stated = problem(
                        *(max(x, 1) for x in shape), dtype=operation.dtype.code, layout=operation.layout_name
                    )
                    check(library, manifest, stated)
                    count += 1
    assert count > 1000


def test_unaligned_addresses_get_the_fallback(library, manifest):
    for offset in ((2, 0, 0), (0, 8, 0), (0, 0, 14)):
        stated = problem(64, 64, 64, data=tuple(0x10000 * (i + 1) + x for i, x in enumerate(offset)))
        check(library, manifest, stated)
        assert library.select(stated)[1].tier == 3
