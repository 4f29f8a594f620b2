from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.numbers import bits_of_float, flushed, integer, rounded, value, wrapped
from tests.unit.emulate.snippets import REGISTER_OF, STORED, WARP_ORDERS, run

UNORDERED = {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ, FindingKind.WRITE_BEFORE_WRITE}
EDGES = {"32": [0, 1, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678], "64": [0, 1, 2**63, 2**64 - 1, 2**40 + 7]}
FUNCTIONS = {
    "add": lambda old, x, _: old + x,
    "exch": lambda _old, x, _: x,
    "min": lambda old, x, _: min(old, x),
    "max": lambda old, x, _: max(old, x),
    "and": lambda old, x, _: old & x,
    "or": lambda old, x, _: old | x,
    "xor": lambda old, x, _: old ^ x,
    "inc": lambda old, x, _: 0 if old >= x else old + 1,
    "cas": lambda old, x, y: y if old == x else old,
}
INTEGER_FORMS = [
    "add.u32",
    "add.s32",
    "add.u64",
    "exch.b32",
    "exch.b64",
    "min.s32",
    "min.u32",
    "max.s32",
    "max.u32",
    "and.b32",
    "or.b32",
    "xor.b32",
    "inc.u32",
    "cas.b32",
    "cas.b64",
]


def body_of(space, prefix, form, kind):
    """Change one element for each lane, in global memory or in shared; array 1, 2 are operands, array 3 the results."""
    register, (stored, dtype) = REGISTER_OF[kind], STORED[REGISTER_OF[kind]]
    size = np.dtype(dtype).itemsize
    place = f"[{'%r6' if space == 'shared' else '%rd31'}]"
    operands = f"{register}11" + (f", {register}12" if form.startswith("cas") else "")
    to = f"{register}13, " if prefix.startswith("atom") else ""
    lines = [f"mov.u32 %r1, %tid.x; mul.wide.u32 %rd30, %r1, {size}; add.u64 %rd31, %rd0, %rd30;"]
    lines += [f"add.u64 %rd32, %rd{i}, %rd30; ld.global.{stored} {register}{10 + i}, [%rd32];" for i in (1, 2)]
    if space == "shared":
        lines.append(f"mov.u32 %r5, tile; mad.lo.u32 %r6, %r1, {size}, %r5;")
        lines.append(f"ld.global.{stored} {register}14, [%rd31]; st.shared.{stored} [%r6], {register}14;")
    lines.append(f"{prefix}.{form} {to}{place}, {operands};")
    if space == "shared":
        lines.append(f"ld.shared.{stored} {register}14, [%r6]; st.global.{stored} [%rd31], {register}14;")
    if to:
        lines.append(f"add.u64 %rd33, %rd3, %rd30; st.global.{stored} [%rd33], {register}13;")
    return "\n".join(lines)


def change(space, prefix, form, kind, rows):
    """Return what is left in memory and what the operation gave, for rows of old value and two operands."""
    dtype = STORED[REGISTER_OF[kind]][1]
    columns = [np.array([*x, *[x[0]] * (32 - len(x))], dtype) for x in zip(*rows, strict=True)]
    header = ".shared .align 8 .b8 tile[256];" if space == "shared" else ""
    outcome = run(body_of(space, prefix, form, kind), *columns, np.zeros(32, dtype), header=header)
    assert outcome.report is not None, outcome.fault
    return ([int(x) for x in outcome.arrays[i][: len(rows)]] for i in (0, 3))


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("form", INTEGER_FORMS)
def test_integers_are_changed_and_the_old_value_given(form, space):
    name, kind = form.split(".")
    edges = EDGES[kind[1:]]
    rows = [(x, y, edges[(i * 3 + 1) % len(edges)]) for i, (x, y) in enumerate((x, y) for x in edges for y in edges)][
        :31
    ]
    rows.append((edges[1], edges[1], edges[2]))
    typed = kind.replace("b", "u")
    expected = [wrapped(FUNCTIONS[name](*(integer(x, typed) for x in row)), typed) for row in rows]
    left, given = change(space, f"atom.{space}", form, kind, rows)
    assert left == expected
    assert given == [row[0] for row in rows]
    if name not in ("exch", "cas"):
        left, _ = change(space, f"red.{space}", form, kind, rows)
        assert left == expected


@pytest.mark.parametrize("space", ["global", "shared"])
def test_float32_is_added_and_in_global_memory_flushed(space):
    """PTX ISA, atom: add.f32 flushes subnormal numbers in global memory, and does not in shared memory."""
    numbers = [bits_of_float(x) for x in (1.5, -2.25, 1e30, 3e-39, -3e-39, 2.0**-126, 1e-38)]
    rows = [(x, y, 0) for x in numbers for y in numbers][:32]
    flush = flushed if space == "global" else (lambda x: x)
    expected = [flush(rounded(value(flush(x), "f32") + value(flush(y), "f32"), "f32")) for x, y, _ in rows]
    left, given = change(space, f"atom.{space}", "add.f32", "f32", rows)
    assert given == [row[0] for row in rows]
    assert [x & 0x7FFFFFFF if y & 0x7FFFFFFF == 0 else x for x, y in zip(left, expected, strict=True)] == [
        y & 0x7FFFFFFF if y & 0x7FFFFFFF == 0 else y for y in expected
    ]


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_16_bit_floats_are_added_and_not_flushed(kind, dtype):
    numbers = [float(dtype(x)) for x in (1.5, -2.25, 300.0, 0.001)] + [float(np.array([3], np.uint16).view(dtype)[0])]
    rows = [(x, y) for x in numbers for y in numbers]
    bits = [[int(np.array([x], dtype).view(np.uint16)[0]) for x in column] for column in zip(*rows, strict=True)]
    old, added = (np.array([*x, *[0] * (32 - len(x))], np.uint16) for x in bits)
    body = f"""mov.u32 %r1, %tid.x; mad.wide.u32 %rd9, %r1, 2, %rd0; mad.wide.u32 %rd10, %r1, 2, %rd1;
    ld.global.b16 %rs1, [%rd10]; red.global.add.noftz.{kind} [%rd9], %rs1;"""
    found = run(body, old, added).arrays[0][: len(rows)]
    assert [int(x) for x in found] == [rounded(Fraction(x) + Fraction(y), kind) for x, y in rows]


@pytest.mark.parametrize("count", [2, 4])
def test_vectors_of_float32_are_added(count):
    registers = ", ".join(f"%f{i}" for i in range(count))
    loads = "".join(f"ld.global.f32 %f{i}, [%rd10+{4 * i}];" for i in range(count))
    body = f"""mov.u32 %r1, %tid.x; mul.wide.u32 %rd8, %r1, {4 * count};
    add.u64 %rd9, %rd0, %rd8; add.u64 %rd10, %rd1, %rd8;
    {loads} red.relaxed.gpu.global.add.v{count}.f32 [%rd9], {{{registers}}};"""
    old, added = np.arange(32 * count, dtype=np.float32), np.arange(32 * count, dtype=np.float32)[::-1].copy()
    assert np.array_equal(run(body, old, added).arrays[0], old + added)
    subnormal = np.full(32 * count, 3e-39, np.float32)
    assert not run(body, subnormal, subnormal.copy()).arrays[0].any()


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_no_change_is_lost(schedule):
    """Of many CTAs, of all lanes of a warp at one place, in global and in shared memory of a cluster."""
    body = """
    .shared .align 8 .b8 tile[8];
    mov.u32 %r1, tile; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %tid.x; setp.eq.u32 %p1, %r3, 0;
    mov.u32 %r4, 0; @%p1 st.shared.u32 [%r1], %r4;
    barrier.cluster.arrive; barrier.cluster.wait;
    mapa.shared::cluster.u32 %r5, %r1, 0; atom.shared::cluster.add.u32 %r6, [%r5], 1;
    atom.global.add.u32 %r7, [%rd0], 1; mad.wide.u32 %rd5, %r7, 4, %rd1; red.global.add.u32 [%rd5], 1;
    barrier.cluster.arrive; barrier.cluster.wait;
    setp.eq.u32 %p2, %r2, 0; and.pred %p2, %p1, %p2;
    @%p2 ld.shared.u32 %r8, [%r1]; @%p2 red.global.add.u32 [%rd0+4], %r8;
    """
    outcome = run(
        body, np.zeros(2, np.uint32), np.zeros(256, np.uint32), grid=4, cluster=2, block=64, schedule=schedule
    )
    assert list(outcome.arrays[0]) == [256, 256]
    assert list(outcome.arrays[1]) == [1] * 256
    assert not outcome.kinds, outcome.texts


def test_generic_addresses_of_shared_memory():
    body = """
    .shared .align 8 .b8 tile[8]; mov.u32 %r1, tile; mov.u32 %r2, 40; st.shared.u32 [%r1], %r2;
    cvt.u64.u32 %rd5, %r1; cvta.shared.u64 %rd6, %rd5; mov.u32 %r4, %tid.x; setp.lt.u32 %p1, %r4, 2;
    @%p1 atom.add.u32 %r3, [%rd6], 1; ld.shared.u32 %r3, [%r1]; st.global.u32 [%rd0], %r3;
    """
    assert run(body, np.zeros(1, np.uint32)).arrays[0][0] == 42


# What is written before, and read behind, through a flag in global memory. CTA 0 writes array 0, CTA 1 reads it.

PATTERN = """
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r1, 0; mad.wide.u32 %rd5, %r1, 4, %rd0;
setp.ne.u32 %p2, %r2, 0; @%p2 bra READER;
add.u32 %r3, %r1, 500; st.global.u32 [%rd5], %r3;
bar.warp.sync -1;
{tell}
bra END;
READER: {see}
bar.warp.sync -1;
xor.b32 %r4, %r1, 1; mad.wide.u32 %rd6, %r4, 4, %rd0; ld.global.u32 %r5, [%rd6];
mad.wide.u32 %rd7, %r1, 4, %rd2; st.global.u32 [%rd7], %r5;
END:
"""
TELL = {
    "st.release": "mov.u32 %r6, 1; @%p1 st.release.gpu.global.u32 [%rd1], %r6;",
    "fence, st.relaxed": "mov.u32 %r6, 1; fence.acq_rel.gpu; @%p1 st.relaxed.gpu.global.u32 [%rd1], %r6;",
    "membar, st.volatile": "mov.u32 %r6, 1; membar.gl; @%p1 st.volatile.global.u32 [%rd1], %r6;",
    "red.release": "@%p1 red.release.gpu.global.add.u32 [%rd1], 1;",
    "fence, red": "fence.sc.gpu; @%p1 red.global.add.u32 [%rd1], 1;",
    "atom.release": "@%p1 atom.release.gpu.global.exch.b32 %r7, [%rd1], 1;",
    "atom.acq_rel": "@%p1 atom.acq_rel.gpu.global.add.u32 %r7, [%rd1], 1;",
    "red.release, red": "@%p1 red.release.gpu.global.add.u32 [%rd1], 3; @%p1 red.relaxed.gpu.global.and.b32 [%rd1], 1;",
}
TELL_NOTHING = {
    "st.relaxed": "mov.u32 %r6, 1; @%p1 st.relaxed.gpu.global.u32 [%rd1], %r6;",
    "st.relaxed, fence": "mov.u32 %r6, 1; @%p1 st.relaxed.gpu.global.u32 [%rd1], %r6; fence.acq_rel.gpu;",
    "red": "@%p1 red.relaxed.gpu.global.add.u32 [%rd1], 1;",
    "atom": "@%p1 atom.global.add.u32 %r7, [%rd1], 1;",
    "atom.acquire": "@%p1 atom.acquire.gpu.global.add.u32 %r7, [%rd1], 1;",
}
POLL = "LOOP: {load} setp.ne.u32 %p3, %r8, 1; @%p3 bra LOOP;"
SEE = {
    "ld.acquire": POLL.format(load="ld.acquire.gpu.global.u32 %r8, [%rd1];"),
    "ld.relaxed, fence": POLL.format(load="ld.relaxed.gpu.global.u32 %r8, [%rd1];") + "fence.acq_rel.gpu;",
    "ld.volatile, membar": POLL.format(load="ld.volatile.global.u32 %r8, [%rd1];") + "membar.gl;",
    "atom.acquire": POLL.format(load="atom.acquire.gpu.global.add.u32 %r8, [%rd1], 0;"),
    "atom, fence": POLL.format(load="atom.global.or.b32 %r8, [%rd1], 0;") + "fence.acq_rel.gpu;",
}
SEE_NOTHING = {
    "ld.relaxed": POLL.format(load="ld.relaxed.gpu.global.u32 %r8, [%rd1];"),
    "fence, ld.relaxed": "fence.acq_rel.gpu;" + POLL.format(load="ld.relaxed.gpu.global.u32 %r8, [%rd1];"),
    "atom": POLL.format(load="atom.global.add.u32 %r8, [%rd1], 0;"),
    "atom.release": POLL.format(load="atom.release.gpu.global.add.u32 %r8, [%rd1], 0;"),
}


def through_a_flag(tell, see, schedule):
    arrays = [np.zeros(n, np.uint32) for n in (32, 1, 32)]
    return run(PATTERN.format(tell=tell, see=see), *arrays, grid=2, schedule=schedule, limit=20_000)


@pytest.mark.parametrize("tell", TELL)
@pytest.mark.parametrize("see", SEE)
def test_release_and_acquire_order_what_is_before_and_behind(tell, see):
    for schedule in WARP_ORDERS[::3]:
        outcome = through_a_flag(TELL[tell], SEE[see], schedule)
        assert list(outcome.arrays[2]) == [500 + (i ^ 1) for i in range(32)]
        assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize("tell", TELL_NOTHING)
def test_without_a_release_there_is_a_race_in_every_schedule(tell):
    for schedule in WARP_ORDERS:
        outcome = through_a_flag(TELL_NOTHING[tell], SEE["ld.acquire"], schedule)
        assert outcome.kinds == {FindingKind.READ_BEFORE_WRITE}, (schedule, outcome.texts)


@pytest.mark.parametrize("see", SEE_NOTHING)
def test_without_an_acquire_there_is_a_race_in_every_schedule(see):
    for schedule in WARP_ORDERS:
        outcome = through_a_flag(TELL["st.release"], SEE_NOTHING[see], schedule)
        assert outcome.kinds == {FindingKind.READ_BEFORE_WRITE}, (schedule, outcome.texts)


def test_a_flag_that_nobody_sets_is_a_deadlock():
    outcome = run(SEE["ld.acquire"].replace("%rd1", "%rd0"), np.zeros(1, np.uint32))
    assert outcome.fault.kind is FaultKind.DEADLOCK
    assert "CTA (0, 0, 0) warp 0 polls global memory, at line" in str(outcome.fault)
    spin = "LOOP: atom.global.cas.b32 %r8, [%rd0], 1, 2; setp.ne.u32 %p3, %r8, 1; @%p3 bra LOOP;"
    outcome = run(spin, np.zeros(1, np.uint32))
    assert outcome.fault.kind is FaultKind.DEADLOCK


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_the_last_cta_to_arrive_sums_what_all_have_written(schedule):
    """Serial reduction, as split k does it: partial sums in global memory, and a counter."""
    body = """
    .shared .align 8 .b8 last[8];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r10, last; setp.eq.u32 %p1, %r1, 0;
    mad.lo.u32 %r3, %r2, 64, %r1; mad.wide.u32 %rd5, %r3, 4, %rd0; add.u32 %r4, %r3, 1; st.global.u32 [%rd5], %r4;
    bar.sync 0;
    @!%p1 bra JOIN; {order} atom.global.add.u32 %r5, [%rd1], 1; {order} st.shared.u32 [%r10], %r5; JOIN:
    bar.sync 0; ld.shared.u32 %r5, [%r10]; setp.ne.u32 %p2, %r5, 5; @%p2 bra END;
    mov.u32 %r6, 0; mov.u32 %r7, 0;
    LOOP: mad.lo.u32 %r8, %r7, 64, %r1; mad.wide.u32 %rd6, %r8, 4, %rd0; ld.global.u32 %r9, [%rd6];
    add.u32 %r6, %r6, %r9;
    add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 6; @%p3 bra LOOP;
    mad.wide.u32 %rd7, %r1, 4, %rd2; st.global.u32 [%rd7], %r6;
    END:
    """
    arrays = [np.zeros(n, np.uint32) for n in (6 * 64, 1, 64)]
    outcome = run(body.format(order="fence.acq_rel.gpu;"), *arrays, grid=6, block=64, schedule=schedule)
    assert list(outcome.arrays[2]) == [sum(64 * j + i + 1 for j in range(6)) for i in range(64)]
    assert not outcome.kinds, outcome.texts
    outcome = run(body.format(order=""), *arrays, grid=6, block=64, schedule=schedule)
    assert outcome.kinds == {FindingKind.READ_BEFORE_WRITE}, outcome.texts


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_a_lock_by_compare_and_swap(schedule):
    body = """
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 ret;
    LOCK: atom.acquire.gpu.global.cas.b32 %r2, [%rd1], 0, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra LOCK;
    ld.global.u32 %r3, [%rd0]; mul.lo.u32 %r4, %r3, 3; add.u32 %r4, %r4, 1; st.global.u32 [%rd0], %r4;
    mov.u32 %r5, 0; st.release.gpu.global.u32 [%rd1], %r5;
    """
    outcome = run(body, np.zeros(1, np.uint32), np.zeros(1, np.uint32), grid=5, schedule=schedule)
    assert outcome.arrays[0][0] == 121
    assert not outcome.kinds, outcome.texts
    broken = body.replace("st.release", "st.relaxed")
    outcome = run(broken, np.zeros(1, np.uint32), np.zeros(1, np.uint32), grid=5, schedule=schedule)
    assert outcome.kinds & UNORDERED


def test_a_turn_that_never_comes_names_who_waits():
    """CTAs of which only so many are resident wait for one that cannot begin."""
    body = "LOOP: ld.acquire.gpu.global.u32 %r8, [%rd0]; setp.lt.u32 %p1, %r8, 4; @!%p1 bra END;"
    body += "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p2, %r1, 3; @%p2 st.release.gpu.global.u32 [%rd0], 4; bra LOOP; END:"
    body = body.replace("[%rd0], 4", "[%rd0], %r9").replace("LOOP:", "mov.u32 %r9, 4; LOOP:", 1)
    assert not run(body, np.zeros(1, np.uint32), grid=4, resident=4).kinds
    fault = run(body, np.zeros(1, np.uint32), grid=4, resident=2, schedule=Schedule(Mode.LAZY)).fault
    assert fault.kind is FaultKind.DEADLOCK
    assert str(fault).count("polls global memory") == 2
