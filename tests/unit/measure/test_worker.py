from dataclasses import replace

import pytest

from aot.core.errors import DeviceError, StoreError
from aot.core.measurement import LibraryTime, Outcome, Status
from aot.core.operation import Operation
from aot.kinds.gemm import edge_shapes
from aot.kinds.gemm.baselines import baseline_of
from aot.measure.feed import Portion
from aot.measure.gpu import ContextLostError
from aot.measure.protocol import TimingPlan, num_sets, set_bytes
from aot.measure.session import Session, StoppedError, deadline_stop
from aot.measure.store import open_store
from aot.measure.tuning_set import TuningSet
from aot.measure.worker import Worker
from tests.unit.twins import CONDITIONS, TwinGpu, TwinKernels, kernel_of, problem_of

pytestmark = pytest.mark.slow

KERNELS = tuple(kernel_of(16 * (i + 1)) for i in range(12))
NAMES = [kernel.name for kernel in KERNELS]
LIBRARY = kernel_of(8)
PROBLEMS = (problem_of(1000, 16, 16), problem_of(1200, 16, 24))
PLAN = TimingPlan(min_survivors=3, max_launches=20, reference_rounds=0)
TIMES = {name: 10.0 * (1 + i) for i, name in enumerate(NAMES)}


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch):
    monkeypatch.setattr(edge_shapes, "ALIGNED_SHAPES", edge_shapes.ALIGNED_SHAPES[:3])


class Rig:
    def __init__(
        self,
        path,
        faults=None,
        kernels=KERNELS,
        workspace=0,
        stop=lambda: False,
        plan=PLAN,
        library=None,
        num_sms=0,
    ):
        self.num_sms = num_sms
        self.path, self.gpu = path, TwinGpu(l2_bytes=1 << 16)
        self.kernels = TwinKernels(self.gpu, list(kernels), dict(TIMES), faults or {}, workspace)
        self.tuning = TuningSet("h200", "sm_90a", tuple(kernels), PROBLEMS)
        self.steps, self.stop, self.plan, self.warnings = [], stop, plan, []
        self.library = library and TwinKernels(self.gpu, [LIBRARY], {LIBRARY.name: 30.0}, {LIBRARY.name: library})

    def run(self, seed=1):
        with open_store(self.path) as store:
            run = store.add_run("h200", seed, CONDITIONS)
            session = Session(
                self.gpu,
                self.kernels,
                self.tuning,
                store,
                run,
                seed,
                self.plan,
                self.note,
                self.stop,
                1 << 14,
                self.warnings.append,
                library=self.library,
                num_sms=self.num_sms,
            )
            Worker(session).run()

    def note(self, done, total, what):
        if what != "verifying":  # said between two edge shapes, only to show that the process lives
            self.steps.append((done, total, what))

    def rows(self, problem):
        with open_store(self.path) as store:
            return {item.kernel.name: item for item in store.latest(problem).values()}

    def library_times(self):
        with open_store(self.path) as store:
            return store.library_times()

    def quarantined(self):
        with open_store(self.path) as store:
            names = {store.kernel_id(kernel): kernel.name for kernel in self.tuning.kernels}
            return {names[number]: reason for number, reason in store.quarantined().items()}


def test_all_are_screened_and_the_best_get_interleaved_rounds(tmp_path):
    rig = Rig(tmp_path / "r")
    rig.run()
    for problem in PROBLEMS:
        rows = rig.rows(problem)
        assert {name: rows[name].median_us for name in NAMES} == pytest.approx(TIMES)
        assert [rows[name].num_rounds for name in NAMES] == [7] * 3 + [1] * 9
        assert all(row.ok and 0 < row.relative_error < 3e-3 for row in rows.values())
    replays = rig.gpu.replayed
    # Each of the twelve is screened twice: the first for want of a best time, the others since they are far from it.
    assert len(replays) == 2 * (24 + 7 * 3)
    rounds = [replays[24 + 3 * i : 27 + 3 * i] for i in range(7)]
    assert all(sorted(one) == sorted(NAMES[:3]) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert rig.gpu.graphs == {}
    assert rig.steps[-1][:2] == (12 + 24, 12 + 24)


def test_a_library_takes_its_turns_in_the_final_rounds(tmp_path):
    rig = Rig(tmp_path / "r", library=("", 0))
    rig.run()
    expected = {x: LibraryTime(LIBRARY.name, x, *[pytest.approx(30.0)] * 3, 7) for x in PROBLEMS}
    assert rig.library_times() == expected
    # Of each problem: twelve kernels and the library twice, then seven rounds of three kernels and the library.
    first = rig.gpu.replayed[: 26 + 7 * 4]
    assert first.index(LIBRARY.name) == 24
    rounds = [first[26 + 4 * i : 30 + 4 * i] for i in range(7)]
    assert all(sorted(one) == sorted([*NAMES[:3], LIBRARY.name]) for one in rounds)
    assert rig.gpu.graphs == {}
    assert rig.warnings == []
    again = Rig(tmp_path / "r", library=("", 0))
    again.run(2)
    assert again.gpu.replayed == []


@pytest.mark.parametrize(("fault", "why"), [("error", "launch refused"), ("wrong", "wrong result on sampled rows")])
def test_a_library_that_fails_on_a_problem_is_left_out_of_it(tmp_path, fault, why):
    rig = Rig(tmp_path / "r", library=(fault, 1200))
    rig.run()
    assert list(rig.library_times()) == [PROBLEMS[0]]
    (warning,) = rig.warnings
    assert warning.startswith(f"the library's time on {PROBLEMS[1].name} is not recorded: {why}")
    assert rig.rows(PROBLEMS[1])[NAMES[0]].num_rounds == 7
    assert rig.quarantined() == {}


def test_a_library_that_takes_the_context_ends_the_run(tmp_path):
    rig = Rig(tmp_path / "r", library=("lost", 1200))
    with pytest.raises(DeviceError) as caught:
        rig.run()
    assert str(caught.value) == (
        f"the library's time on {PROBLEMS[1].name} is not recorded: launch refused; it took the GPU's context with it: "
        "run again with --no-reference"
    )
    assert type(caught.value) is DeviceError


def test_only_the_kernels_chosen_for_a_problem_are_timed(tmp_path):
    rig = Rig(tmp_path / "r")
    rig.tuning = replace(rig.tuning, chosen={PROBLEMS[0]: frozenset(NAMES[4:6])})
    rig.run()
    assert sorted(rig.rows(PROBLEMS[0])) == sorted(NAMES[4:6])
    assert sorted(rig.rows(PROBLEMS[1])) == sorted(NAMES)


def test_finished_work_is_not_done_again(tmp_path):
    Rig(tmp_path / "r").run()
    again = Rig(tmp_path / "r")
    again.run(2)
    assert again.kernels.launches == []
    assert again.gpu.replayed == []


def test_stopped_run_carries_on_where_it_stopped(tmp_path):
    first = Rig(tmp_path / "r", stop=lambda: len(first.steps) > 12 + 1 + 5)
    with pytest.raises(StoppedError):
        first.run()
    done = set(first.rows(PROBLEMS[0]))
    assert len(done) == 6
    second = Rig(tmp_path / "r")
    second.run(2)
    screened = second.gpu.replayed[:12]
    assert sorted(screened) == sorted([*(set(NAMES) - done)] * 2)
    assert [second.rows(PROBLEMS[0])[name].num_rounds for name in NAMES] == [7] * 3 + [1] * 9


def test_new_kernel_alone_is_measured(tmp_path):
    Rig(tmp_path / "r", kernels=KERNELS[:-1]).run()
    second = Rig(tmp_path / "r")
    second.run(2)
    assert {name for name, _ in second.kernels.launches if name not in NAMES[:3]} == {NAMES[-1]}
    assert second.rows(PROBLEMS[0])[NAMES[-1]].num_rounds == 1


@pytest.mark.parametrize("fault", ["wrong", "unwritten", "unstable", "guards", "error"])
def test_kernel_that_fails_verification_is_recorded_and_not_timed(tmp_path, fault):
    rig = Rig(tmp_path / "r", faults={NAMES[0]: (fault, 0)})
    rig.run()
    row = rig.rows(PROBLEMS[0])[NAMES[0]]
    assert (row.ok, row.num_rounds, row.median_us) == (False, 0, 0.0)
    assert row.status.outcome is Outcome.QUARANTINED
    assert row.status.reason.startswith("verifying: ")
    assert NAMES[0] not in rig.gpu.replayed
    assert rig.rows(PROBLEMS[0])[NAMES[1]].num_rounds == 7


def test_kernel_that_fails_on_a_problem_is_out_for_the_rest(tmp_path):
    rig = Rig(tmp_path / "r", faults={NAMES[1]: ("wrong", 1200)})
    rig.run()
    assert rig.rows(PROBLEMS[0])[NAMES[1]].ok
    status = str(rig.rows(PROBLEMS[1])[NAMES[1]].status)
    assert status.startswith("failed: measuring bf16_kk m1200 n16 k24: wrong result on sampled rows: relative error")
    assert list(rig.quarantined()) == [NAMES[1]]


def test_lost_context_ends_the_process_and_the_next_carries_on(tmp_path):
    first = Rig(tmp_path / "r", faults={NAMES[4]: ("lost", 1000)})
    with pytest.raises(ContextLostError, match=NAMES[4]):
        first.run()
    second = Rig(tmp_path / "r", faults={NAMES[4]: ("lost", 1000)})
    second.run(2)
    assert NAMES[4] not in {name for name, _ in second.kernels.launches}
    assert second.rows(PROBLEMS[0])[NAMES[4]].status == Status(
        Outcome.QUARANTINED, "measuring bf16_kk m1000 n16 k16: launch refused"
    )
    assert sum(row.ok for row in second.rows(PROBLEMS[1]).values()) == 11


def test_kernel_with_too_large_a_workspace_is_not_tried_and_not_blamed(tmp_path):
    rig = Rig(tmp_path / "r", workspace=64, plan=replace(PLAN, workspace_limit_bytes=63))
    rig.run()
    assert {row.status for row in rig.rows(PROBLEMS[0]).values()} == {
        Status(Outcome.WORKSPACE, "needs 64 bytes, the limit is 63")
    }
    assert rig.quarantined() == {}


def test_kernel_that_the_library_refuses_for_a_problem_is_not_blamed(tmp_path):
    rig = Rig(tmp_path / "r", faults={NAMES[0]: ("refused", 1200)})
    rig.run()
    assert rig.rows(PROBLEMS[0])[NAMES[0]].ok
    assert rig.rows(PROBLEMS[1])[NAMES[0]].status == Status(Outcome.REFUSED, "at most 8 GiB can be addressed")
    assert rig.quarantined() == {}


def test_workspace_is_passed(tmp_path):
    rig = Rig(tmp_path / "r", workspace=64)
    rig.run()
    assert all(row.ok for row in rig.rows(PROBLEMS[0]).values())


def test_kernel_without_room_for_a_cluster_is_not_tried_and_not_blamed(tmp_path):
    rig = Rig(tmp_path / "r", faults={NAMES[0]: ("clusters", 0)})
    rig.run()
    for problem in PROBLEMS:
        status = Status(Outcome.CLUSTERS, f"0 active clusters of {NAMES[0]} on this device")
        assert rig.rows(problem)[NAMES[0]].status == status
        assert rig.rows(problem)[NAMES[1]].num_rounds == 7
    assert rig.quarantined() == {}
    assert NAMES[0] not in {name for name, _ in rig.kernels.launches}


def test_a_kernel_that_is_verified_on_waves_of_tiles_is_asked_for_its_clusters_on_a_small_problem(
    tmp_path, monkeypatch
):
    """The operands that the device is asked with lie 1 MiB apart; were they to overlap, the library would refuse."""
    tail = kernel_of(256, 96, family="sm90_stream_k", split_k=2, split_k_mode="tail", swap_ab=True)
    rig = Rig(tmp_path / "r", kernels=(*KERNELS, tail))
    asked = []
    monkeypatch.setattr(TwinKernels, "max_active_clusters", lambda _, number, call, *__: asked.append((number, call)))
    rig.run()
    (call,) = [call for number, call in asked if number == len(KERNELS)]
    places = [(x.address, x.matrix) for x in call.tensors.values()]
    assert all(address + 2 * matrix.num_elements <= address + (1 << 20) for address, matrix in places)
    assert len({address for address, _ in places}) == 3


def test_problem_that_memory_is_too_short_for_is_left_out_with_its_reason(tmp_path):
    rig = Rig(tmp_path / "r")
    small, large = sorted(num_sets(x, rig.gpu.l2_bytes, PLAN) * set_bytes(x) for x in PROBLEMS)
    rig.gpu.memory_bytes = max(small, 1 << 20)
    rig.elements = 64
    rig.plan = replace(PLAN, l2_multiple=200)
    sizes = {x: num_sets(x, rig.gpu.l2_bytes, rig.plan) * set_bytes(x) for x in PROBLEMS}
    largest = max(sizes, key=sizes.get)
    rig.gpu.memory_bytes = sizes[largest] - 1
    assert small < large
    rig.run()
    status = Status(Outcome.MEMORY, f"cuMemAlloc of {sizes[largest]} bytes failed")
    assert {row.status for row in rig.rows(largest).values()} == {status}
    (other,) = set(PROBLEMS) - {largest}
    assert all(row.ok for row in rig.rows(other).values())
    assert rig.quarantined() == {}
    again = Rig(tmp_path / "r")
    again.run(2)
    assert again.kernels.launches == []


def test_problem_is_measured_again_when_the_device_slows_down(tmp_path):
    rig = Rig(tmp_path / "r", plan=replace(PLAN, reference_rounds=1, settle_s=1.0))
    # The first replay is the reference kernel's, then come 24 of screening and 21 of rounds; the last of them are slow.
    rig.gpu.slow = dict.fromkeys(range(32, 48), 1.5)
    rig.run()
    with open_store(rig.path) as store:
        assert {reason for _, reason in store.voided()} == {
            "the reference kernel takes 15.00 us, before it took 10.00 us"
        }
        assert store.reference_times(1, PROBLEMS[1]) == [10.0, 15.0, 10.0, 10.0, 10.0]
    for problem in PROBLEMS:
        assert {name: row.median_us for name, row in rig.rows(problem).items()} == pytest.approx(TIMES)
    assert rig.quarantined() == {}


def test_library_without_a_kernel_is_refused(tmp_path):
    rig = Rig(tmp_path / "r")
    rig.kernels.kernels.pop()
    with pytest.raises(StoreError, match=f"lacks 1 kernels, first {NAMES[-1]}"):
        rig.run()


def test_deadline():
    assert not deadline_stop(None, lambda: False)()
    assert deadline_stop(None, lambda: True)()
    assert deadline_stop(0.0, lambda: False)()
    assert not deadline_stop(100.0, lambda: False)()


@pytest.mark.parametrize("operation", [Operation.E4M3_BF16_KK, Operation.INT8_FP16_KK, Operation.FP16_KK_SWIGLU])
def test_kernels_of_any_operation_are_verified_and_timed_beside_torchs_calls(tmp_path, operation):
    kernels = tuple(kernel_of(16 * (i + 1), operation=operation) for i in range(3))
    rig = Rig(tmp_path / "r", kernels=kernels, library=("", 0))
    problems = (problem_of(40, 32, 64, operation), problem_of(24, 48, 32, operation))
    rig.tuning = replace(rig.tuning, problems=problems)
    rig.kernels.times_us = {kernel.name: 10.0 + i for i, kernel in enumerate(kernels)}
    rig.run()
    assert rig.warnings == []
    name = baseline_of(operation).name(LIBRARY.name)
    assert rig.library_times() == {x: LibraryTime(name, x, *[pytest.approx(30.0)] * 3, 7) for x in problems}
    for problem in problems:
        rows = rig.rows(problem)
        assert [rows[x.name].median_us for x in kernels] == pytest.approx([10.0, 11.0, 12.0])
        assert all(row.ok and 0 < row.relative_error < 4e-3 for row in rows.values())
    assert rig.quarantined() == {}
    assert rig.gpu.graphs == {}


def test_a_wrong_kernel_of_another_operation_is_quarantined_with_its_reason(tmp_path):
    operation = Operation.E4M3_BF16_BLOCK_KK
    kernels = tuple(kernel_of(16 * (i + 1), operation=operation) for i in range(2))
    rig = Rig(tmp_path / "r", kernels=kernels, faults={kernels[0].name: ("wrong", 0)}, library=("", 0))
    problem = problem_of(40, 32, 256, operation)
    rig.tuning = replace(rig.tuning, problems=(problem,))
    rig.kernels.times_us = {kernel.name: 10.0 for kernel in kernels}
    rig.run()
    ((name, reason),) = rig.quarantined().items()
    assert name == kernels[0].name
    assert reason.startswith(
        "verifying: wrong result on e4m3_bf16_block_kk m1 n8 k16, strides padded by 0: relative error"
    )
    assert rig.rows(problem)[kernels[1].name].ok
    # torch has no call for factors of blocks: nothing is recorded, and nothing is warned of.
    assert (rig.library_times(), rig.warnings) == ({}, [])


def test_a_run_does_the_portions_that_it_is_handed(tmp_path):
    rig, done = Rig(tmp_path / "r"), []
    found = [
        Portion(1, kernels=(0, 1, 2)),
        Portion(2, problems=(1,), sound=tuple(range(3, 11)), failed=((11, "hung elsewhere"),)),
        Portion(3, problems=(1, 0)),
        Portion(4, problems=(0, 1), anew=(1,)),
    ]
    with open_store(rig.path) as store:
        run = store.add_run("h200", 1, CONDITIONS)
        session = Session(rig.gpu, rig.kernels, rig.tuning, store, run, 1, PLAN, rig.note)
        session.portions, session.finished = lambda _wait: iter(found), done.append
        Worker(session).run()
        names = {store.kernel_id(kernel): kernel.name for kernel in KERNELS}
        assert {names[number] for number in store.verified()} == set(NAMES[:3])
        assert store.quarantined() == {}
        assert store.finished() == set(PROBLEMS)
    assert done == found
    for problem in PROBLEMS:
        rows = rig.rows(problem)
        assert {name: rows[name].median_us for name in NAMES[:11]} == pytest.approx({x: TIMES[x] for x in NAMES[:11]})
        assert rows[NAMES[11]].status == Status(Outcome.QUARANTINED, "hung elsewhere")
        assert rows[NAMES[0]].num_rounds == 7
    assert len(rig.gpu.replayed) == 3 * (22 + 7 * 3)  # each problem once, and the second anew
