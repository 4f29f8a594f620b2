"""Atomics and strong accesses race with weak ones, and not with each other."""

from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FindingKind
from tests.unit.emulate.snippets import WARP_ORDERS, run

READ, WRITE, OVERWRITE = (
    FindingKind.READ_BEFORE_WRITE,
    FindingKind.WRITE_BEFORE_READ,
    FindingKind.WRITE_BEFORE_WRITE,
)
START = """
.shared .align 16 .b8 tile[64];
mov.u32 %r1, %tid.x; mov.u32 %r2, tile; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 32; mov.u32 %r6, 5;
@%p1 st.shared.u32 [%r2], %r6; bar.sync 0;
"""
RACE = {READ, WRITE}
PAIRS = {
    "an atomic and a read": ("red.shared.add.u32 [%r2], %r6;", "ld.shared.u32 %r7, [%r2];", RACE),
    "an atomic and a write": ("atom.shared.add.u32 %r8, [%r2], %r6;", "st.shared.u32 [%r2], %r6;", {OVERWRITE}),
    "a vector that is added and a read": (
        "red.relaxed.gpu.global.add.v4.f32 [%rd0], {%f1, %f1, %f1, %f1};",
        "ld.global.u32 %r7, [%rd0+12];",
        RACE,
    ),
    "a strong write and a read": (
        "st.relaxed.gpu.global.u32 [%rd0], %r6;",
        "ld.global.u32 %r7, [%rd0];",
        RACE,
    ),
    "a strong read and a write": (
        "ld.acquire.gpu.global.u32 %r7, [%rd0];",
        "st.global.u32 [%rd0], %r6;",
        RACE,
    ),
    "two atomics": ("atom.shared.add.u32 %r8, [%r2], %r6;", "atom.shared.add.u32 %r8, [%r2], %r6;", set()),
    "an atomic and a strong read": ("red.global.add.u32 [%rd0], %r6;", "ld.relaxed.gpu.global.u32 %r7, [%rd0];", set()),
    "a strong read and a read": ("ld.acquire.gpu.global.u32 %r7, [%rd0];", "ld.global.u32 %r7, [%rd0];", set()),
}


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_two_accesses_of_which_one_is_strong(name, schedule):
    first, second, expected = PAIRS[name]
    for one, other in ((first, second), (second, first)):
        apart = f"{START} @%p1 {one} @%p2 {other}"
        found = run(apart, np.zeros(4, np.uint32), block=64, schedule=schedule).kinds
        assert found <= expected
        assert bool(found) == bool(expected)
        ordered = f"{START} @%p1 {one} bar.sync 1; @%p2 {other}"
        assert not run(ordered, np.zeros(4, np.uint32), block=64, schedule=schedule).kinds


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_sums_that_ctas_add_are_read_behind_the_last_release(schedule):
    """As split k reduces: every CTA adds its sums, and tells a counter; the last one reads them."""
    body = """
    mov.u32 %r1, %tid.x; mad.wide.u32 %rd5, %r1, 4, %rd0; mov.f32 %f1, 0f3F800000; red.global.add.f32 [%rd5], %f1;
    bar.sync 0; setp.eq.u32 %p1, %r1, 0; @!%p1 bra JOIN; atom.{order}gpu.global.add.u32 %r5, [%rd1], 1;
    st.shared.u32 [last], %r5; JOIN: bar.sync 0; ld.shared.u32 %r5, [last]; setp.ne.u32 %p2, %r5, 3; @%p2 bra END;
    ld.global.f32 %f2, [%rd5]; mad.wide.u32 %rd6, %r1, 4, %rd2; st.global.f32 [%rd6], %f2; END:
    """
    arrays = np.zeros(64, np.float32), np.zeros(1, np.uint32), np.zeros(64, np.float32)
    options = {"grid": 4, "block": 64, "header": ".shared .align 4 .b8 last[4];", "schedule": schedule}
    outcome = run(body.format(order="acq_rel."), *arrays, **options)
    assert list(outcome.arrays[2]) == [4.0] * 64
    assert not outcome.kinds, outcome.texts
    for order in ("relaxed.", "release.", "acquire."):
        assert run(body.format(order=order), *arrays, **options).kinds == {READ}
