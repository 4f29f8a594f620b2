from dataclasses import replace

import pytest

from aot.kinds.gemm import edge_shapes
from aot.measure.protocol import TimingPlan
from aot.measure.session import Session, StoppedError
from aot.measure.store import open_store
from aot.measure.tuning_set import TuningSet
from aot.measure.worker import Worker
from aot.search.model import LEAST
from aot.search.strategy import EXHAUSTIVE, MODEL
from tests.unit.twins import CONDITIONS, TwinGpu, TwinKernels, kernel_of, problem_of

pytestmark = pytest.mark.slow

KERNELS = tuple(kernel_of(16 * (i + 1), 16 * (j + 1)) for i in range(6) for j in range(8))
NAMES = [kernel.name for kernel in KERNELS]
PROBLEMS = (problem_of(1000, 16, 16), problem_of(1200, 16, 24))
PLAN = TimingPlan(min_survivors=3, max_launches=20, reference_rounds=0)
PREDICTED = {name: 10.0 + 2.0 * i for i, name in enumerate(NAMES)}
TIMES = {name: 20.0 + 4.0 * i for i, name in enumerate(NAMES)}


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch):
    monkeypatch.setattr(edge_shapes, "ALIGNED_SHAPES", edge_shapes.ALIGNED_SHAPES[:1])


class Kernels(TwinKernels):
    def max_active_clusters(self, *_arguments):
        return 1


class Rig:
    def __init__(self, path, strategy=MODEL, kernels=KERNELS, budget=1.0, stop=lambda: False, faults=None):
        self.path, self.gpu = path, TwinGpu(l2_bytes=1 << 12)
        self.kernels = Kernels(self.gpu, list(kernels), dict(TIMES), faults or {})
        predicted = {problem: dict(PREDICTED) for problem in PROBLEMS}
        self.tuning = TuningSet("h200", "sm_90a", tuple(kernels), PROBLEMS, {}, predicted)
        self.steps, self.strategy, self.budget, self.stop = [], strategy, budget, stop

    def run(self, seed=1):
        with open_store(self.path) as store:
            run = store.add_run("h200", seed, CONDITIONS)
            session = Session(self.gpu, self.kernels, self.tuning, store, run, seed, PLAN, stop=self.stop)
            session = replace(session, report=lambda *step: self.steps.append(step), source_elements=1 << 14)
            session = replace(session, strategy=self.strategy, search_budget=self.budget)
            Worker(session).run()

    def rows(self, problem):
        with open_store(self.path) as store:
            return {item.kernel.name: item for item in store.latest(problem).values()}

    def ends(self, problem):
        with open_store(self.path) as store:
            return store.searches(problem)


def test_what_cannot_win_is_left_out_and_noted(tmp_path):
    rig = Rig(tmp_path / "r")
    rig.run()
    for problem in PROBLEMS:
        rows, (end,) = rig.rows(problem), rig.ends(problem)
        assert LEAST <= len(rows) < len(KERNELS)
        assert min(rows.values(), key=lambda row: row.median_us).kernel.name == NAMES[0]
        assert sorted(row.num_rounds for row in rows.values()) == [1] * (len(rows) - 3) + [7] * 3
        assert (end.strategy, end.num_measured, end.num_skipped) == (MODEL, len(rows), len(KERNELS) - len(rows))
        assert end.reason.startswith("no other can win: at best ")
        assert end.seconds > 0
    done, total, _ = rig.steps[-1]
    assert done == total == len(KERNELS) * 3


def test_a_finished_search_is_not_done_again_but_an_exhaustive_one_carries_on(tmp_path):
    Rig(tmp_path / "r").run()
    again = Rig(tmp_path / "r")
    again.run(2)
    assert again.gpu.replayed == []
    whole = Rig(tmp_path / "r", EXHAUSTIVE)
    known = set(whole.rows(PROBLEMS[0]))
    whole.run(3)
    assert set(whole.rows(PROBLEMS[0])) == set(NAMES)
    screened = whole.gpu.replayed[: 2 * (len(KERNELS) - len(known))]
    assert sorted(screened) == sorted([*(set(NAMES) - known)] * 2)
    assert [end.num_skipped for end in whole.ends(PROBLEMS[0])][-1] == 0


def test_new_kernels_are_searched_again(tmp_path):
    Rig(tmp_path / "r", kernels=KERNELS[:-1]).run()
    second = Rig(tmp_path / "r")
    second.run(2)
    assert [len(second.ends(problem)) for problem in PROBLEMS] == [2, 2]


def test_a_stopped_search_carries_on_as_if_it_had_not_been(tmp_path):
    whole = Rig(tmp_path / "whole")
    whole.run()
    first = Rig(tmp_path / "r", stop=lambda: first.steps[-1][0] >= len(KERNELS) + 7)
    with pytest.raises(StoppedError):
        first.run()
    assert len(first.rows(PROBLEMS[0])) == 7
    second = Rig(tmp_path / "r")
    second.run(2)
    for problem in PROBLEMS:
        assert set(second.rows(problem)) == set(whole.rows(problem))


def test_a_budget_is_kept(tmp_path):
    rig = Rig(tmp_path / "r", budget=0.1)
    rig.run()
    assert [len(rig.rows(problem)) for problem in PROBLEMS] == [5, 5]
    assert rig.ends(PROBLEMS[0])[0].reason == "the budget of 5 measurements is spent"


def test_a_kernel_that_fails_does_not_end_a_search(tmp_path):
    rig = Rig(tmp_path / "r", faults={NAMES[0]: ("wrong", 1200), NAMES[1]: ("error", 0)})
    rig.run()
    assert rig.rows(PROBLEMS[0])[NAMES[0]].ok
    rows = rig.rows(PROBLEMS[1])
    assert str(rows[NAMES[0]].status).startswith("failed: measuring")
    assert str(rows[NAMES[1]].status).startswith("quarantined: verifying")
    assert min((row.median_us, name) for name, row in rows.items() if row.ok)[1] == NAMES[2]
