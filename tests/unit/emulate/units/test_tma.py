"""Copies of boxes: their bytes, their order with barriers, groups and fences."""

from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.layouts.cute_layout import Layout
from tests.unit.emulate.snippets import SCHEDULES, run
from tests.unit.emulate.units.asynchronous import FIRST, FIRST_ARRAY, HEADER, copy_in, copy_out, tensor_map, wait_for

LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
ROWS, COLUMNS = 16, 64
BOX_BYTES = 2 * ROWS * COLUMNS
TENSOR = np.arange(1, 1 + 20 * 72, dtype=np.uint16).reshape(20, 72)
"""20 rows of 70 elements that count, and 2 behind them."""
BEGIN = (
    FIRST + "add.u32 %r2, %r1, 8192;\n@%p0 mbarrier.init.shared.b64 [%r2], 1;\n"
    "fence.mbarrier_init.release.cluster; fence.proxy.async; bar.sync 0;\n"
)


def arrive(num_bytes):
    return f"@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r2], {num_bytes};\n"


def load(x, y):
    return f"mov.u32 %r10, {x}; mov.u32 %r11, {y};\n@%p0 {LOAD} [%r1], [%rd1, {{%r10, %r11}}], [%r2];\n"


def run_load(body, swizzle=3, schedule=None, **options):
    descriptor = tensor_map(FIRST_ARRAY, (70, 20), (144,), (COLUMNS, ROWS), swizzle=swizzle)
    out = np.zeros(BOX_BYTES // 2, np.uint16)
    return run(body, TENSOR, descriptor, out, header=HEADER, smem=16384, schedule=schedule, **options)


def expected(x, y, swizzle):
    layout = Layout((ROWS, COLUMNS), (COLUMNS, 1), (swizzle, 4, 3))
    found = np.zeros(BOX_BYTES // 2, np.uint16)
    for r in range(ROWS):
        for c in range(COLUMNS):
            if 0 <= y + r < 20 and 0 <= x + c < 70:
                found[layout.address(0, 16, r, c) // 2] = TENSOR[y + r, x + c]
    return found


@pytest.mark.parametrize(("x", "y", "swizzle"), [(0, 0, 3), (32, 10, 3), (-8, -3, 3)])
def test_a_box_comes_with_zeros_outside_of_the_tensor(x, y, swizzle):
    body = BEGIN + arrive(BOX_BYTES) + load(x, y) + wait_for("%r2") + copy_out("%rd2", BOX_BYTES)
    for schedule in SCHEDULES:
        found = run_load(body, swizzle, schedule)
        assert found.kinds == set(), found.texts
        assert np.array_equal(found.arrays[2], expected(x, y, swizzle)), schedule


CODES = np.arange(20 * 96, dtype=np.uint32).reshape(20, 96).astype(np.uint8) ^ 0x5A
"""20 rows of 128 elements of 4 bits, and 32 bytes behind them."""


def run_padded(body, schedule=None, extents=(128, 20), box=(128, 16), swizzle=3):
    descriptor = tensor_map(FIRST_ARRAY, extents, (96,), box, code=12, swizzle=swizzle)
    return run(body, CODES, descriptor, np.zeros(2048, np.uint8), header=HEADER, smem=16384, schedule=schedule)


def test_padded_elements_of_4_bits_come_16_to_16_bytes():
    """Their bytes are the first 8 of each 16; what the others hold is not said. Gaps count towards no barrier."""
    body = BEGIN + arrive(16 * 64) + load(0, 8) + wait_for("%r2") + copy_out("%rd2", 2048)
    for schedule in SCHEDULES:
        found = run_padded(body, schedule)
        assert found.kinds == set(), found.texts
        for r, run_of_16 in np.ndindex(16, 8):
            start = 128 * r + 16 * (run_of_16 ^ r % 8)
            expected_bytes = CODES[8 + r, 8 * run_of_16 : 8 * run_of_16 + 8] if 8 + r < 20 else 0
            assert (found.arrays[2][start : start + 8] == expected_bytes).all(), (schedule, r, run_of_16)


def test_a_barrier_that_waits_for_the_gaps_waits_in_vain():
    found = run_padded(BEGIN + arrive(16 * 128) + load(0, 0) + wait_for("%r2"))
    assert found.fault.kind is FaultKind.DEADLOCK


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"box": (64, 16)}, "a box of 64 of 128 elements; expected 128 of a multiple"),
        ({"extents": (96, 20)}, "a box of 128 of 96 elements; expected 128 of a multiple"),
        ({"swizzle": 2, "box": (64, 16)}, "a box of 64 of 128"),
    ],
)
def test_what_no_map_of_padded_elements_has_is_a_fault(changes, text):
    found = run_padded(BEGIN + load(0, 0), **changes)
    assert (found.fault.kind, text in str(found.fault)) == (FaultKind.DESCRIPTOR, True)


def test_padded_elements_are_not_stored():
    found = run_padded(FIRST + f"mov.u32 %r10, 0; @%p0 {STORE} [%rd1, {{%r10, %r10}}], [%r1];")
    assert "a store of padded 4-bit elements" in str(found.fault)


def test_a_read_that_does_not_wait_is_found_and_meets_poison():
    body = BEGIN + arrive(BOX_BYTES) + load(0, 0) + copy_out("%rd2", BOX_BYTES) + wait_for("%r2")
    found = run_load(body, schedule=Schedule(Mode.LAZY))
    assert found.kinds == {FindingKind.READ_BEFORE_WRITE}
    assert (found.arrays[2] == 0xFFFF).all()
    assert FindingKind.READ_BEFORE_WRITE in run_load(body, schedule=Schedule(Mode.EAGER)).kinds


def test_fewer_bytes_than_are_expected_are_waited_for_in_vain():
    found = run_load(BEGIN + arrive(BOX_BYTES + 16) + load(0, 0) + wait_for("%r2"))
    assert found.fault.kind is FaultKind.DEADLOCK
    assert "waits for phase 0 of mbarrier 0x2400 of CTA (0, 0, 0)" in found.fault.text


def test_a_load_over_what_another_warp_may_still_read_is_found():
    first = BEGIN + arrive(BOX_BYTES) + load(0, 0) + wait_for("%r2") + "\nld.shared.b32 %r20, [%r1];\n"
    second = arrive(BOX_BYTES) + load(0, 0) + wait_for("%r2", 1, "AGAIN")
    assert run_load(first + "bar.sync 0;\n" + second, block=64).kinds == set()
    # Without the barrier the other warp may read late, or miss the first phase altogether.
    outcomes = [run_load(first + second, block=64, schedule=x) for x in SCHEDULES]
    kinds = set().union(*(x.kinds for x in outcomes if x.fault is None))
    assert kinds & {FindingKind.WRITE_BEFORE_READ, FindingKind.READ_BEFORE_WRITE}
    assert any(x.fault is not None and x.fault.kind is FaultKind.DEADLOCK for x in outcomes)


def test_a_box_outside_of_shared_memory_and_a_misaligned_one_are_faults():
    assert run_load(BEGIN + load(0, 0).replace("[%r1]", "[%r1+15360]")).fault.kind is FaultKind.ADDRESS
    assert run_load(BEGIN + load(0, 0).replace("[%r1]", "[%r1+64]")).fault.kind is FaultKind.DESCRIPTOR
    assert run_load(BEGIN + load(0, 0).replace("[%r2]", "[%r2+8]")).fault.kind is FaultKind.BARRIER


def test_four_rows_are_gathered():
    gather = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
    rows = (7, 0, 25, 19)
    body = BEGIN + arrive(512) + "".join(f"mov.u32 %r{11 + i}, {x};\n" for i, x in enumerate((0, *rows)))
    body += f"@%p0 {gather} [%r1], [%rd1, {{%r11, %r12, %r13, %r14, %r15}}], [%r2];\n"
    descriptor = tensor_map(FIRST_ARRAY, (70, 20), (144,), (COLUMNS, 1))
    out = np.zeros(256, np.uint16)
    body += wait_for("%r2") + copy_out("%rd2", 512)
    found = run(body, TENSOR, descriptor, out, header=HEADER, smem=16384)
    assert found.kinds == set(), found.texts
    wanted = [TENSOR[x, :64] if x < 20 else np.zeros(64) for x in rows]
    assert np.array_equal(found.arrays[2].reshape(4, 64), wanted)


def test_a_box_goes_to_each_cta_of_a_mask_and_to_its_barrier():
    multicast = LOAD.replace("shared::cta", "shared::cluster") + ".multicast::cluster"
    body = BEGIN + "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n" + arrive(BOX_BYTES)
    body += "mov.u32 %r12, %cluster_ctarank; setp.eq.u32 %p2, %r12, 0; and.pred %p3, %p0, %p2; mov.b16 %rs1, 3;\n"
    body += "mov.u32 %r10, 0; mov.u32 %r11, 4;\n"
    body += f"@%p3 {multicast} [%r1], [%rd1, {{%r10, %r11}}], [%r2], %rs1;\n" + wait_for("%r2")
    body += f"\nmul.wide.u32 %rd8, %r12, {BOX_BYTES}; add.s64 %rd2, %rd2, %rd8;\n" + copy_out("%rd2", BOX_BYTES)
    body += "\nbarrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
    descriptor = tensor_map(FIRST_ARRAY, (70, 20), (144,), (COLUMNS, ROWS), swizzle=3)
    for schedule in SCHEDULES:
        out = np.zeros(BOX_BYTES, np.uint16)
        found = run(body, TENSOR, descriptor, out, header=HEADER, smem=16384, grid=2, cluster=2, schedule=schedule)
        assert found.kinds == set(), found.texts
        assert np.array_equal(found.arrays[2].reshape(2, -1), [expected(0, 4, 3)] * 2), schedule


FILL = copy_in("%rd2", BOX_BYTES)
SOURCE = np.arange(5000, 5000 + BOX_BYTES // 2, dtype=np.uint16)
COMMIT, WAIT_READ, WAIT = (f"cp.async.bulk.{x};\n" for x in ("commit_group", "wait_group.read 0", "wait_group 0"))


def run_store(body, schedule=None):
    descriptor = tensor_map(FIRST_ARRAY, (70, 20), (144,), (COLUMNS, ROWS), swizzle=3)
    store = f"mov.u32 %r10, 16; mov.u32 %r11, 10;\n@%p0 {STORE} [%rd1, {{%r10, %r11}}], [%r1];\n"
    return run(FIRST + body.replace("STORE\n", store), TENSOR, descriptor, SOURCE, header=HEADER, smem=16384,
               schedule=schedule)  # fmt: skip


def test_a_box_is_stored_inside_of_the_tensor_only():
    body = FILL + "\nfence.proxy.async;\nbar.sync 0;\nSTORE\n" + COMMIT + WAIT
    layout = Layout((ROWS, COLUMNS), (COLUMNS, 1), (3, 4, 3))
    wanted = TENSOR.copy()
    for r in range(10):
        for c in range(54):
            wanted[10 + r, 16 + c] = SOURCE[layout.address(0, 16, r, c) // 2]
    for schedule in SCHEDULES:
        found = run_store(body, schedule)
        assert found.kinds == set(), found.texts
        assert np.array_equal(found.arrays[0], wanted), schedule


def test_a_store_of_bytes_that_were_not_fenced_is_found():
    assert run_store(FILL + "\nbar.sync 0;\nSTORE\n" + COMMIT + WAIT).kinds == {FindingKind.PROXY_FENCE}


def test_shared_memory_that_a_store_still_reads_may_not_be_overwritten():
    begin = FILL + "\nfence.proxy.async;\nbar.sync 0;\nSTORE\n" + COMMIT
    again = "\nst.shared.b32 [%r1], %r0;\n" + WAIT
    assert run_store(begin + WAIT_READ + again).kinds == set()
    assert run_store(begin + again).kinds == {FindingKind.WRITE_BEFORE_READ}
    assert run_store(begin + WAIT_READ.replace(" 0", " 1") + again).kinds == {FindingKind.WRITE_BEFORE_READ}


def test_an_exit_while_a_store_reads_is_found():
    body = FILL + "\nfence.proxy.async;\nbar.sync 0;\nSTORE\n" + COMMIT
    assert run_store(body, Schedule(Mode.LAZY)).kinds == {FindingKind.EXIT}
    assert run_store(body + WAIT_READ, Schedule(Mode.LAZY)).kinds == set()


def test_a_result_is_written_by_the_end_of_a_wait_for_writes():
    """With wait_group.read alone the tensor may still be old when it is read again."""
    begin = FILL + "\nfence.proxy.async;\nbar.sync 0;\nSTORE\n" + COMMIT
    again = "ld.global.b16 %rs1, [%rd0+1472]; @%p0 st.global.b16 [%rd2], %rs1;\n"
    lazy = Schedule(Mode.HOLD_STORE_WRITES)
    old, new = TENSOR[10, 16], SOURCE[0]
    assert run_store(begin + WAIT + again, lazy).arrays[2][0] == new
    found = run_store(begin + WAIT_READ + again, lazy)
    assert found.arrays[2][0] == old
