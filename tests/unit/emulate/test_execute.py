"""Kernels on verify's own cases: what is right, what is wrong and why, and what is left out."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from aot.compile.tuned import tuned_kernel
from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.operation import Operation
from aot.emulate.execute import ExecutionOptions, Executor, is_allowed, schedule_name
from aot.emulate.faults import Finding, FindingKind
from aot.emulate.schedule import Mode, Schedule
from aot.kinds.gemm.edge_shapes import edge_shapes
from aot.kinds.rows.call import row_cases
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.catalogue import row_operation
from aot.select.selector import fallback_key
from aot.space.enumeration import fallback
from tests.compiling import EVERY
from tests.emulated import emulated_set, target_of, with_ptx
from tests.unit.accepted import named
from tests.unit.twins import BF16

pytestmark = pytest.mark.slow
NORM = row_operation("bf16_rms_norm")
TWO = (Schedule(Mode.RANDOM, 3), Schedule(Mode.LAZY, 3))
SMALL = (3, 5, 8)
"""A problem of the general kernel's that is one tile, and one block of k."""
FEW = 12_000
"""Warp instructions that the smallest cases of a general kernel take."""


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    """Make a set of the general kernel of products and of that of a norm."""
    target = target_of("thor")
    keys = [fallback_key(BF16, target), RowKernelKey(NORM, fallback(NORM, target))]
    return emulated_set(keys, "thor", tmp_path_factory.mktemp("general"))


@pytest.fixture(scope="module")
def tensor(tmp_path_factory):
    """Make a set of a kernel of tensor memory."""
    key = KernelKey(BF16, named("sm100_persistent_64x32_c1x1_clc_swap"))
    return emulated_set([key], "thor", tmp_path_factory.mktemp("tensor"))


def on_problem(kernels, problem, schedules=TWO, **options):
    asked = ExecutionOptions(schedules, problem, **options)
    return Executor(kernels, asked).execute(kernels.names[0])


def test_small_cases_are_executed_under_each_schedule_and_large_ones_are_named(general):
    found = Executor(general, ExecutionOptions(TWO, max_instructions=FEW)).execute(general.names[0])
    assert found.is_right, found
    assert (found.error, found.num_faults, found.num_schedules) == ("", 0, 2)
    assert {x.num_runs for x in found.cases} == {2}
    assert {x.schedule for x in found.cases} == {"lazy 3"}
    assert 0 < found.worst_share <= 1
    assert found.num_instructions / found.num_runs <= FEW
    assert found.seconds > 0
    names = [*(x.case for x in found.cases), *found.left_out]
    assert sorted(names) == sorted(map(str, edge_shapes(tuned_kernel(general.products[0].kernel))))
    assert len(found.left_out) > 2
    assert found.ptx_sha256 == general.products[0].kernel.ptx_sha256


def test_rows_are_executed_on_their_own_cases(general):
    found = Executor(general, ExecutionOptions(TWO, max_instructions=50_000)).execute(general.names[1])
    assert found.is_right, found
    limits = general.rows[0].kernel.limits
    expected = list(row_cases(NORM, limits))
    assert sorted([*(x.case for x in found.cases), *found.left_out]) == sorted(map(str, expected))
    assert len(found.cases) > 5
    (case,) = Executor(general, ExecutionOptions(TWO, (5, 72))).execute(general.names[1]).cases
    assert case.case == "RowCase(rows=5, cols=72, is_full=True, padding=0)"
    assert case.is_right


def test_a_kernel_of_tensor_memory_is_right_and_its_instructions_are_counted(tensor):
    found = on_problem(tensor, (40, 136, 200), counts=True)
    assert found.is_right, found
    (case,) = found.cases
    # 40 x 136 is 2 x 3 tiles of 64 x 32, swapped 3 x 2; k 200 is 4 blocks of 4 products: of 2 runs.
    assert case.counts["tcgen05.mma"] == 2 * 3 * 2 * 4 * 4
    assert sum(x for name, x in case.counts.items() if name.startswith("cp.async.bulk.tensor")) > 0
    assert case.bytes_moved["tma.load"] >= 2 * 2 * (40 * 200 + 136 * 200)
    assert 0 < case.share_of_bound <= 1


@pytest.mark.skipif(not EVERY, reason="`make walk` executes a kernel in every mode")
def test_a_kernel_of_tensor_memory_is_right_in_every_mode(tensor):
    schedules = tuple(Schedule(mode, seed) for mode in Mode for seed in range(3))
    assert on_problem(tensor, (40, 136, 200), schedules).is_right


def once(pattern, replacement):
    """Return what replaces the first match in a text, of which there must be one."""

    def edit(text):
        found, count = re.subn(pattern, replacement, text, count=1)
        assert count == 1, pattern
        return found

    return edit


@pytest.mark.parametrize(
    ("pattern", "replacement", "fault"),
    [
        (r"fma\.rn\.f32\s+(\S+), (\S+), \S+, \S+;", r"mov.b32 \1, \2;", "wrong result on bf16_kk m3 n5 k8"),
        (r"st\.global\.b16\s+\[(%rd\d+)\]", r"st.global.b16 [\1+1048576]", "address outside of an allocation: line"),
        (r"bar\.sync\s+0;", "trap;", "trap"),
    ],
    ids=["arithmetic", "address", "trap"],
)
def test_what_is_wrong_is_told(general, tmp_path, pattern, replacement, fault):
    found = on_problem(with_ptx(general, once(pattern, replacement), tmp_path), SMALL)
    (case,) = found.cases
    assert fault in case.fault
    assert (found.is_right, found.num_right, found.num_faults) == (False, 0, 1)
    assert case.schedule == schedule_name(TWO[0])


def test_a_barrier_that_is_taken_out_is_found(general, tmp_path):
    found = on_problem(with_ptx(general, lambda x: re.sub(r"bar\.sync\s+0;", "", x), tmp_path), SMALL, TWO[:1])
    kinds = {x.kind for case in found.cases for x in case.findings if x.is_fault}
    assert "read that is not ordered behind the write" in kinds
    assert found.num_faults >= 1


def test_an_instruction_that_is_not_known_is_named(general, tmp_path):
    edited = with_ptx(general, once(r"bar\.sync\s+0;", "brev.b32 %r1, %r1;\nnosuch.b32 %r1;"), tmp_path)
    found = on_problem(edited, SMALL)
    assert (found.is_right, found.cases, found.num_faults) == (False, (), 1)
    assert "the interpreter does not know" in found.error


def test_a_kernel_without_ptx_is_not_executed(general, tmp_path):
    found = on_problem(with_ptx(general, lambda _: "", tmp_path), SMALL)
    assert (found.is_right, found.cases) == (False, ())
    assert found.error == (
        f"{found.name} has no PTX, which the interpreter executes; expected the `ptx` of its family's Binary"
    )


def test_a_failure_of_the_interpreter_is_not_the_kernels(general, monkeypatch):
    def failing(self, launches):
        raise ZeroDivisionError("no such lane")

    monkeypatch.setattr("aot.emulate.machine.Machine.run", failing)
    found = on_problem(general, SMALL)
    assert re.match(
        r"the interpreter failed on bf16_kk m3 n5 k8, .*: ZeroDivisionError: no such lane, in failing of "
        r"test_execute.py, line \d+; please report it",
        found.error,
    )
    assert not found.is_right


@pytest.fixture(scope="module")
def early(tmp_path_factory):
    """Make a set of a kernel that reads B early where it may."""
    candidate = named("cluster_split_k_32x64_c1x1_warps4_st4_direct_swap")
    return emulated_set([KernelKey(BF16, candidate)], "thor", tmp_path_factory.mktemp("early"))


def test_b_may_be_read_early_where_it_is_promised(early):
    """The first run has no promise, the second one has it."""
    (case,) = on_problem(early, (40, 136, 200), (Schedule(Mode.HOLD_FRONT, 0),) * 2).cases
    assert case.is_right, case
    assert {(x.text, x.is_fault) for x in case.findings if x.kind == "access before griddepcontrol.wait"} == {
        ("reads b", False)
    }


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("reads b", True),
        ("reads b of part 3", True),
        ("reads bias of part 1", False),
        ("reads a", False),
        ("writes b", False),
        ("writes d of part 1", False),
    ],
)
def test_which_early_accesses_a_promise_allows(text, may):
    finding = Finding(FindingKind.EARLY, "line 4: ld", text, 1)
    execution = SimpleNamespace(last_lines={4})
    assert is_allowed(finding, execution, is_promised=True) is may
    assert not is_allowed(finding, execution, is_promised=False)


def test_what_is_read_before_the_wait_without_a_promise_is_a_fault(early, tmp_path):
    def without_waits(text):
        return re.sub(r"griddepcontrol\.wait;", "", text)

    edited = with_ptx(early, without_waits, tmp_path)
    (case,) = on_problem(edited, (40, 136, 200), (Schedule(Mode.HOLD_FRONT, 0),)).cases
    found = {x.text for x in case.findings if x.is_fault and x.kind == "access before griddepcontrol.wait"}
    assert {"reads a", "reads b", "writes d"} <= found
    assert not case.is_right


def test_a_clearing_kernel_may_let_the_product_behind_it_start(tmp_path):
    candidate = gemm_candidate("sm90_stream_k", 64, 112, 1, 2, "pingpong", split_k=2, split_k_mode="tail")
    kernels = emulated_set([KernelKey(BF16, candidate)], "h200", tmp_path)
    (case,) = on_problem(kernels, (65, 264, 200), TWO[:1]).cases
    assert case.is_right, case


GROUPS = [Operation.BF16_MN_KGROUPED, *([Operation.BF16_KK_GATHERED] if EVERY else [])]


@pytest.mark.parametrize("operation", GROUPS, ids=lambda x: x.tag)
def test_groups_are_executed_with_poison_behind_every_extent(operation, tmp_path):
    """Groups of k 99 with NaN behind it: gathered copies of 16 bytes were wrong here, and on an H100, 2026-11-26."""
    from aot.space.enumeration import legal

    candidate = next(x for x in legal(operation, target_of("h200")) if x.gemm.tile_m * x.gemm.tile_n <= 128 * 64)
    kernels = emulated_set([KernelKey(operation, candidate)], "h200", tmp_path)
    tuned = tuned_kernel(kernels.products[0].kernel)
    ragged = [x for x in edge_shapes(tuned) if x.stride_multiple > 1]
    assert len(ragged) == 2
    (case,) = on_problem(kernels, (9, 24, 99), TWO[:1]).cases
    assert case.is_right, case


def test_the_same_seed_gives_the_same_run(tensor):
    first, second = (on_problem(tensor, (40, 136, 200)) for _ in range(2))
    (one,), (other,) = first.cases, second.cases
    assert replace(one, seconds=0.0) == replace(other, seconds=0.0)
