from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import REGISTER_OF, SCHEDULES, run

BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}
KINDS = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
CLUSTER_BARRIER = "barrier.cluster.arrive; barrier.cluster.wait;"


def size_of(kind):
    return BYTES[kind[1:]]


def vector(kind, count, first=4):
    names = [f"{REGISTER_OF[kind]}{first + i}" for i in range(count)]
    return names[0] if count == 1 else "{" + ", ".join(names) + "}"


def copy_body(kind, count, load, store, between=""):
    """Copy elements of a lane from array 1 to array 0, in a form of load and one of store."""
    size = size_of(kind) * count
    return f"""
    mov.u32 %r1, %tid.x; mul.wide.u32 %rd20, %r1, {size}; add.u64 %rd21, %rd1, %rd20; add.u64 %rd22, %rd0, %rd20;
    {load}.{kind} {vector(kind, count)}, [%rd21]; {between}
    {store}.{kind} [%rd22], {vector(kind, count)};
    """


def pattern(count, seed=1):
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


GLOBAL_VECTORS = [(kind, n) for kind in KINDS for n in (1, 2, 4)] + [(x, 8) for x in ("b32", "u32", "s32", "f32")]


@pytest.mark.parametrize(("kind", "count"), GLOBAL_VECTORS)
def test_copies_of_every_width(kind, count):
    name = f".v{count}" if count > 1 else ""
    source = pattern(32 * count * size_of(kind))
    body = copy_body(kind, count, f"ld.global{name}", f"st.global{name}")
    outcome = run(body, np.zeros_like(source), source)
    assert np.array_equal(outcome.arrays[0], source)
    assert not outcome.kinds


@pytest.mark.parametrize(
    "hint",
    [
        "ld.global.nc",
        "ld.global.L1::no_allocate.L2::256B",
        "ld.volatile.global",
        "ld",
        "ld.global.nc.L1::no_allocate.L2::128B",
        "ld.relaxed.gpu.global",
        "ld.acquire.sys.global",
    ],
)
def test_hints_and_orders_change_no_value(hint):
    source = pattern(128)
    for store in ("st.global", "st.global.L1::no_allocate", "st.volatile.global", "st", "st.release.gpu.global"):
        outcome = run(copy_body("b32", 1, hint, store), np.zeros_like(source), source)
        assert np.array_equal(outcome.arrays[0], source)


def test_narrow_elements_are_extended_by_their_signs():
    body = """
    .reg .b32 n<4>; .reg .b64 w<4>;
    ld.global.s8 %r1, [%rd1]; ld.global.u8 %r2, [%rd1]; ld.global.s16 %r3, [%rd1]; ld.global.u16 %r4, [%rd1];
    ld.global.s8 %rs1, [%rd1+2]; cvt.u32.u16 %r5, %rs1; ld.global.s32 %rd5, [%rd1+4]; ld.global.u32 %rd6, [%rd1+4];
    st.global.v4.u32 [%rd0], {%r1, %r2, %r3, %r4}; st.global.u32 [%rd0+16], %r5;
    st.global.u64 [%rd0+24], %rd5; st.global.u64 [%rd0+32], %rd6;
    """
    source = np.array([0x80, 0xFF, 0x81, 0, 0, 0, 0, 0x80], np.uint8)
    found = run(body, np.zeros(10, np.uint32), source).arrays[0]
    assert [hex(x) for x in found[:5]] == ["0xffffff80", "0x80", "0xffffff80", "0xff80", "0xff81"]
    assert [hex(x) for x in found[6:].view(np.uint64)] == ["0xffffffff80000000", "0x80000000"]


def test_narrow_stores_take_the_low_bits():
    body = (
        "mov.u32 %r1, 0x44332211; mov.b64 %rd5, {%r1, %r1}; st.global.u8 [%rd0+1], %r1; st.global.u16 [%rd0+2], %rd5;"
    )
    assert list(run(body, np.zeros(4, np.uint8)).arrays[0]) == [0, 0x11, 0x11, 0x22]


def test_lanes_that_do_not_load_keep_their_registers():
    body = """
    mov.u32 %r1, %tid.x; mad.wide.u32 %rd5, %r1, 4, %rd1; mad.wide.u32 %rd6, %r1, 4, %rd0; mov.u32 %r2, 7;
    setp.lt.u32 %p1, %r1, 5; @%p1 ld.global.u32 %r2, [%rd5]; setp.ne.u32 %p2, %r1, 3; @%p2 st.global.u32 [%rd6], %r2;
    """
    found = run(body, np.zeros(32, np.uint32), np.arange(100, 132, dtype=np.uint32)).arrays[0]
    assert list(found) == [100, 101, 102, 0, 104, *[7] * 27]


def test_of_lanes_that_store_to_one_place_one_stays():
    body = "mov.u32 %r1, %tid.x; st.global.u32 [%rd0], %r1;"
    assert run(body, np.full(1, 99, np.uint32)).arrays[0][0] in range(32)


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("ld.global.u32 %r2, [%rd5]", 2),
        ("st.global.u32 [%rd5], %r2", 1),
        ("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd5]", 8),
        ("st.global.v2.u64 [%rd5], {%rd6, %rd7}", 8),
        ("ld.acquire.gpu.global.u32 %r2, [%rd5]", 2),
        ("st.release.gpu.global.u32 [%rd5], %r2", 2),
        ("ld.u64 %rd6, [%rd5]", 4),
        ("atom.global.add.u32 %r2, [%rd5], 1", 2),
        ("red.relaxed.gpu.global.add.v4.f32 [%rd5], {%f1, %f1, %f1, %f1}", 8),
    ],
)
def test_addresses_are_multiples_of_what_is_accessed(line, at):
    outcome = run(f"add.u64 %rd5, %rd0, {at}; {line};", np.zeros(64, np.uint8))
    assert outcome.fault.kind is FaultKind.ALIGNMENT
    right = run(f"add.u64 %rd5, %rd0, 16; {line};", np.zeros(64, np.uint8))
    assert right.fault is None


@pytest.mark.parametrize(
    "line",
    [
        "ld.global.u8 %r2, [%rd5{}]",
        "st.global.u8 [%rd5{}], %r2",
        "ld.u8 %r2, [%rd5{}]",
        "ld.volatile.global.u8 %r2, [%rd5{}]",
        "st.relaxed.sys.global.u8 [%rd5{}], %r2",
    ],
)
def test_one_byte_outside_of_a_buffer_is_a_fault(line):
    """Both at its end and before its start; the last byte is in it."""
    for offset, kind in (("+36", None), ("+37", FaultKind.ADDRESS), ("+-1", FaultKind.ADDRESS), ("", None)):
        outcome = run(f"mov.u64 %rd5, %rd0; {line.format(offset)};", np.zeros(37, np.uint8))
        assert (outcome.fault.kind if outcome.fault else None) is kind, offset
        if kind:
            assert "the nearest is array 0" in str(outcome.fault)


def test_one_lane_outside_is_enough():
    body = "mov.u32 %r1, %tid.x; mad.wide.u32 %rd5, %r1, 4, %rd0; ld.global.u32 %r2, [%rd5];"
    assert run(body, np.zeros(32, np.uint32)).fault is None
    assert run(body, np.zeros(31, np.uint32)).fault.kind is FaultKind.ADDRESS


def test_a_read_only_operand_is_not_written():
    for line in ("st.global.u32 [%rd0], 1", "st.release.gpu.global.u32 [%rd0], 1", "red.global.add.u32 [%rd0], 1"):
        outcome = run(line.replace("1", "%r1") + ";", np.zeros(1, np.uint32), read_only=[0])
        assert outcome.fault.kind is FaultKind.READ_ONLY
        assert "array 0" in str(outcome.fault)


SHARED = """
.shared .align 16 .b8 tile[{size}];
mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
"""


@pytest.mark.parametrize(("kind", "count"), [x for x in GLOBAL_VECTORS if x[1] * size_of(x[0]) <= 16])
def test_shared_memory_holds_what_is_stored(kind, count):
    size = count * size_of(kind)
    name = f".v{count}" if count > 1 else ""
    body = SHARED.format(size=32 * size) + copy_body(
        kind,
        count,
        f"ld.global{name}",
        f"st.global{name}",
        f"""mad.lo.u32 %r12, %r1, {size}, %r2; st.shared{name}.{kind} [%r12], {vector(kind, count)};
        bar.sync 0; xor.b32 %r13, %r1, 1; mad.lo.u32 %r14, %r13, {size}, %r2;
        ld.shared{name}.{kind} {vector(kind, count)}, [%r14];""",
    )
    source = pattern(32 * size)
    outcome = run(body, np.zeros_like(source), source)
    assert np.array_equal(outcome.arrays[0].reshape(16, 2, size)[:, ::-1], source.reshape(16, 2, size))
    assert not outcome.kinds


@pytest.mark.parametrize(
    "line",
    [
        "ld.shared.u8 %r3, [%r2+{}]",
        "st.shared.u8 [%r2+{}], %r1",
        "ld.shared::cluster.u8 %r3, [%r2+{}]",
        "st.shared::cluster.u8 [%r2+{}], %r1",
    ],
)
def test_one_byte_outside_of_shared_memory_is_a_fault(line):
    for offset, kind in ((20, None), (21, FaultKind.ADDRESS), (-1, FaultKind.ADDRESS)):
        body = SHARED.format(size=21) + "st.shared.u8 [%r2+20], %r1;" + line.format(offset) + ";"
        outcome = run(body, np.zeros(1, np.uint32))
        assert (outcome.fault.kind if outcome.fault else None) is kind, offset
        if kind:
            assert "of 21 bytes" in str(outcome.fault)


def test_dynamic_shared_memory_ends_where_the_launch_says():
    header = ".extern .shared .align 16 .b8 buffer[];"
    body = "mov.u32 %r2, buffer; st.shared.u32 [%r2+{}], %r2;"
    assert run(body.format(44), np.zeros(1, np.uint32), header=header, smem=48).fault is None
    assert run(body.format(48), np.zeros(1, np.uint32), header=header, smem=48).fault.kind is FaultKind.ADDRESS


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("ld.shared.u32 %r3, [%r2+{}]", 2),
        ("st.shared.v4.u32 [%r2+{}], {{%r1, %r1, %r1, %r1}}", 8),
        ("ld.shared.u16 %r3, [%r2+{}]", 1),
        ("st.shared::cluster.u64 [%r2+{}], %rd1", 4),
    ],
)
def test_shared_addresses_are_multiples_of_what_is_accessed(line, at):
    body = SHARED.format(size=64) + line.format(at) + ";"
    assert run(body, np.zeros(1, np.uint32)).fault.kind is FaultKind.ALIGNMENT


def test_shared_memory_that_nothing_has_written_is_noted():
    body = SHARED.format(size=64) + "st.shared.u32 [%r2], %r1; ld.shared.u32 %r3, [%r2+{}]; st.global.u32 [%rd0], %r3;"
    assert not run(body.format(0), np.zeros(1, np.uint32)).kinds
    assert run(body.format(4), np.zeros(1, np.uint32)).kinds == {FindingKind.UNINITIALISED}


def test_shared_memory_of_the_cluster():
    body = (
        SHARED.format(size=128)
        + """
    mov.u32 %r3, %cluster_ctarank; xor.b32 %r4, %r3, 1; mapa.shared::cluster.u32 %r5, %r2, %r4;
    mad.lo.u32 %r6, %r3, 1000, %r1; mad.lo.u32 %r7, %r1, 4, %r5; st.shared::cluster.u32 [%r7], %r6;
    """
        + CLUSTER_BARRIER
        + """
    mad.lo.u32 %r8, %r1, 4, %r2; ld.shared.u32 %r9, [%r8];
    mad.lo.u32 %r10, %r3, 32, %r1; mad.wide.u32 %rd5, %r10, 4, %rd0; st.global.u32 [%rd5], %r9;
    """
        + CLUSTER_BARRIER
    )
    outcome = run(body, np.zeros(64, np.uint32), grid=2, cluster=2)
    assert list(outcome.arrays[0]) == [1000 + i for i in range(32)] + list(range(32))
    assert not outcome.kinds


def test_an_address_of_another_cta_needs_the_space_of_the_cluster():
    body = (
        SHARED.format(size=16)
        + "mapa.shared::cluster.u32 %r5, %r2, 1; {} barrier.cluster.arrive; barrier.cluster.wait;"
    )
    for line in ("st.shared.u32 [%r5], %r1;", "ld.shared::cta.u32 %r6, [%r5];"):
        fault = run(body.format(line), np.zeros(1, np.uint32), grid=2, cluster=2).fault
        assert fault.kind is FaultKind.ADDRESS
        assert "expected shared::cluster" in str(fault)


def test_a_cta_that_is_not_of_the_cluster_has_no_memory():
    body = SHARED.format(size=16) + "mapa.shared::cluster.u32 %r5, %r2, 2; st.shared::cluster.u32 [%r5], %r1;"
    fault = run(body, np.zeros(1, np.uint32), grid=2, cluster=2).fault
    assert fault.kind is FaultKind.ADDRESS
    assert "is of CTA 2 of 2" in str(fault)


def test_a_cta_that_has_exited_has_no_memory():
    """As when the last barrier of a cluster is missing: seen where the other is late."""
    body = (
        SHARED.format(size=16)
        + """
    mov.u32 %r3, %cluster_ctarank; setp.eq.u32 %p1, %r3, 0; @%p1 bra END;
    mapa.shared::cluster.u32 %r5, %r2, 0; nanosleep.u32 10; st.shared::cluster.u32 [%r5], %r1; END: {}
    """
    )
    faults = [run(body.format(""), np.zeros(1, np.uint32), grid=2, cluster=2, schedule=x).fault for x in SCHEDULES]
    assert {x.kind for x in faults if x} == {FaultKind.EXITED}
    for schedule in SCHEDULES:
        outcome = run(body.format(CLUSTER_BARRIER), np.zeros(1, np.uint32), grid=2, cluster=2, schedule=schedule)
        assert not outcome.kinds


def test_generic_addresses_of_lanes_may_be_of_different_memories():
    body = """
    .shared .align 8 .b8 tile[128];
    mov.u32 %r1, %tid.x; mov.u32 %r2, tile; cvt.u64.u32 %rd5, %r2; cvta.shared.u64 %rd6, %rd5;
    and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; selp.b64 %rd7, %rd0, %rd6, %p1;
    mad.wide.u32 %rd8, %r1, 4, %rd7; add.u32 %r4, %r1, 5; st.u32 [%rd8], %r4; ld.u32 %r5, [%rd8]; add.u32 %r5, %r5, 100;
    mad.wide.u32 %rd9, %r1, 4, %rd0; st.global.u32 [%rd9], %r5;
    """
    outcome = run(body, np.zeros(32, np.uint32))
    assert list(outcome.arrays[0]) == [105 + i for i in range(32)]
    assert not outcome.kinds


def test_parameters_are_read_at_their_offsets():
    body = "ld.param.u64 %rd5, [p1]; ld.param.u32 %r1, [p0+4]; ld.param.v2.b32 {%r2, %r3}, [p1]; mov.b64 %rd6, p1;"
    body += "cvta.param.u64 %rd7, %rd6; ld.u64 %rd8, [%rd7]; xor.b64 %rd9, %rd8, %rd5; mov.b64 %rd10, {%r2, %r3};"
    body += "xor.b64 %rd11, %rd10, %rd1; st.global.v2.u64 [%rd0], {%rd9, %rd11}; st.global.u32 [%rd0+16], %r1;"
    found = run(body, np.ones(5, np.uint32), np.zeros(1, np.uint32)).arrays[0]
    assert list(found[:4]) == [0, 0, 0, 0]
    assert found[4] == 0x6000


def test_parameters_end_where_they_end():
    body = "ld.param.u64 %rd5, [p1+{}];"
    arrays = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    assert run(body.format(0), *arrays).fault is None
    assert run(body.format(8), *arrays).fault.kind is FaultKind.ADDRESS
    assert run("mov.b64 %rd5, p1; st.u32 [%rd5], %r1;", *arrays).fault.kind is FaultKind.READ_ONLY


SEND = """
.shared .align 16 .b8 box[512]; .shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x; mov.u32 %r2, box; mov.u32 %r3, bar; mov.u32 %r4, %cluster_ctarank;
setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared::cta.b64 [%r3], 1; @%p1 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive; barrier.cluster.wait;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %rd20, [%r3], {bytes};
xor.b32 %r5, %r4, 1; mapa.shared::cluster.u32 %r6, %r2, %r5; mapa.shared::cluster.u32 %r7, %r3, %r5;
mad.lo.u32 %r8, %r1, {size}, %r6; mad.lo.u32 %r9, %r4, 100, %r1; add.u32 %r10, %r9, 1; cvt.u64.u32 %rd5, %r9;
st.async.shared::cluster.mbarrier::complete_tx::bytes{vector}.{kind} [%r8], {data}, [%r7];
{wait}
mad.lo.u32 %r11, %r1, {size}, %r2; ld.shared.u32 %r12, [%r11];
mad.lo.u32 %r13, %r4, 32, %r1; mad.wide.u32 %rd6, %r13, 4, %rd0; st.global.u32 [%rd6], %r12;
barrier.cluster.arrive; barrier.cluster.wait;
"""
WAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra WAIT;"
FORMS = [
    ("", "b32", 4, "%r9"),
    (".v2", "u32", 8, "{%r9, %r10}"),
    (".v4", "s32", 16, "{%r9, %r10, %r9, %r10}"),
    ("", "b64", 8, "%rd5"),
    (".v2", "b64", 16, "{%rd5, %rd5}"),
]


@pytest.mark.parametrize(("name", "kind", "size", "data"), FORMS)
def test_messages_to_another_cta_tell_its_barrier(name, kind, size, data):
    body = SEND.format(vector=name, kind=kind, size=size, data=data, bytes=32 * size, wait=WAIT)
    for schedule in SCHEDULES[:: 3 if size > 4 else 1]:
        outcome = run(body, np.zeros(64, np.uint32), grid=2, cluster=2, schedule=schedule)
        assert list(outcome.arrays[0]) == [100 + i for i in range(32)] + list(range(32))
        assert not outcome.kinds, outcome.texts


def test_a_message_that_is_not_waited_for_is_seen_in_every_schedule():
    body = SEND.format(vector="", kind="b32", size=4, data="%r9", bytes=128, wait="")
    for schedule in SCHEDULES:
        outcome = run(body, np.zeros(64, np.uint32), grid=2, cluster=2, schedule=schedule)
        # Read before it is written, or before it was sent; or the CTA has exited when it comes.
        if outcome.fault:
            assert outcome.fault.kind is FaultKind.EXITED
            continue
        assert outcome.kinds & {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ}, outcome.texts


@pytest.mark.parametrize("taken_out", ["barrier.cluster.wait;", "@%p1 fence.mbarrier_init.release.cluster;"])
def test_a_message_to_a_barrier_whose_initialisation_is_not_known_is_seen_in_every_schedule(taken_out):
    """A mutant of cluster_split_k showed that only those were seen that came before the initialisation, 2026-11-27."""
    body = SEND.format(vector="", kind="b32", size=4, data="%r9", bytes=128, wait=WAIT)
    with_wait = body.replace(taken_out, "", 1)
    if "wait" in taken_out:  # behind the messages, as the second arrival needs it
        with_wait = with_wait.replace("st.global.u32", "barrier.cluster.wait; st.global.u32")
    for schedule in SCHEDULES:
        outcome = run(with_wait, np.zeros(64, np.uint32), grid=2, cluster=2, schedule=schedule)
        if outcome.fault:
            assert "no mbarrier is initialised" in str(outcome.fault)
            continue
        assert FindingKind.BARRIER_INIT in outcome.kinds, outcome.texts


def test_messages_of_fewer_bytes_than_expected_hang():
    body = SEND.format(vector="", kind="b32", size=4, data="%r9", bytes=132, wait=WAIT)
    outcome = run(body, np.zeros(64, np.uint32), grid=2, cluster=2)
    assert outcome.fault.kind is FaultKind.DEADLOCK
    assert "0 of 1 arrivals and 4 bytes are missing" in str(outcome.fault)


def test_a_message_is_told_to_a_barrier_of_the_cta_that_it_goes_to():
    body = SEND.format(vector="", kind="b32", size=4, data="%r9", bytes=128, wait=WAIT).replace(", [%r7];", ", [%r3];")
    outcome = run(body, np.zeros(64, np.uint32), grid=2, cluster=2, schedule=Schedule(Mode.EAGER))
    assert outcome.fault.kind is FaultKind.BARRIER
    assert "of another" in str(outcome.fault)


def test_bank_conflicts_are_counted():
    body = SHARED.format(size=4096) + "mad.lo.u32 %r3, %r1, {}, %r2; st.shared.u32 [%r3], %r1;"
    for stride, conflicts in ((4, 0), (8, 1), (128, 31), (12, 0)):
        report = run(body.format(stride), np.zeros(1, np.uint32), counts=True).report
        assert report.bytes_moved["bank conflicts"] == conflicts


def test_a_warp_may_read_many_places_with_strong_loads():
    """More than the machine's patience with warps that poll: it makes progress, since each place is another."""
    body = """
    mov.u32 %r1, 0; mov.u32 %r2, 0;
    LOOP: mad.wide.u32 %rd5, %r1, 4, %rd1; ld.relaxed.gpu.global.u32 %r3, [%rd5]; add.u32 %r2, %r2, %r3;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 500; @%p1 bra LOOP; st.global.u32 [%rd0], %r2;
    """
    for mode in (Mode.RANDOM, Mode.STRICT, Mode.LAZY):
        outcome = run(body, np.zeros(1, np.uint32), np.ones(500, np.uint32), schedule=Schedule(mode))
        assert outcome.arrays[0][0] == 500
        assert not outcome.kinds
