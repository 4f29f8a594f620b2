"""One worker measures products and operations on rows in one session: same protocol, guard, store and search."""

from dataclasses import replace

import pytest

from aot.core.measurement import Outcome
from aot.kinds.gemm import edge_shapes
from aot.kinds.rows.problem import RowProblem
from aot.measure.protocol import TimingPlan
from aot.measure.session import Session
from aot.measure.store import open_store
from aot.measure.tuning_set import TuningSet, read_tuning_set, write_tuning_set
from aot.measure.worker import Worker
from aot.select.times.known import measured_times
from aot.select.times.record import from_store, parse_record, record_text
from tests.unit.row_twins import NORM, QUANTIZE, ROTARY, row_kernel_of
from tests.unit.twins import CONDITIONS, TwinGpu, TwinKernels, kernel_of, problem_of

pytestmark = pytest.mark.slow

PRODUCT = kernel_of(16, family="sm90_partial_tile")
ROWS = (*(row_kernel_of(NORM, x) for x in (1, 2)), row_kernel_of(QUANTIZE), row_kernel_of(ROTARY))
KERNELS = (PRODUCT, *ROWS)
PROBLEMS = (
    problem_of(64, 16, 16),
    RowProblem(NORM, 64, 128),
    RowProblem(QUANTIZE, 16, 256),
    RowProblem(ROTARY, 64, 64),
)
TUNING = TuningSet("h200", "sm_90a", KERNELS, PROBLEMS)
PLAN = TimingPlan(max_launches=20, reference_rounds=3)
TIMES = {kernel.name: 10.0 * (1 + i) for i, kernel in enumerate(KERNELS)}


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch):
    monkeypatch.setattr(edge_shapes, "ALIGNED_SHAPES", edge_shapes.ALIGNED_SHAPES[:3])


def measure(path, *, tuning=TUNING, faults=None, plan=PLAN, seed=1, **more):
    gpu = TwinGpu(l2_bytes=1 << 14)
    for name, value in more.items():
        setattr(gpu, name, value)
    kernels, said = TwinKernels(gpu, list(tuning.kernels), dict(TIMES), faults or {}), []
    with open_store(path) as store:
        run = store.add_run("h200", seed, CONDITIONS)
        session = Session(gpu, kernels, tuning, store, run, seed, plan, source_elements=1 << 12, warn=said.append)
        Worker(session).run()
    return gpu, said


def measured(path):
    with open_store(path) as store:
        assert store.finished() == set(PROBLEMS)
        return {(x.problem.name, x.kernel.name): x for _, x in store.measurements() if x.num_rounds != 1}


def test_all_kinds_are_verified_and_timed_in_one_session(tmp_path):
    _, said = measure(tmp_path / "r")
    found = measured(tmp_path / "r")
    assert {key: item.median_us for key, item in found.items()} == pytest.approx(
        {(p.name, k.name): TIMES[k.name] for p in PROBLEMS for k in KERNELS if k.takes(p)}
    )
    assert all(item.num_rounds == 7 for item in found.values())
    with open_store(tmp_path / "r") as store:
        assert len(store.verified()) == len(KERNELS)
        assert store.quarantined() == {}
    assert said == []
    again, _ = measure(tmp_path / "r", seed=2)
    assert again.replayed == []  # not even the reference kernel, for want of a problem


@pytest.mark.parametrize("plan", [PLAN, TimingPlan(l2_multiple=0, flush_bytes=1 << 12, reference_rounds=0)])
def test_rows_are_timed_by_the_protocol_of_products(tmp_path, plan):
    gpu, _ = measure(tmp_path / "r", plan=plan)
    assert bool(gpu.flushed) == bool(plan.flush_bytes)
    assert {item.num_rounds for item in measured(tmp_path / "r").values()} == {7}


def test_rows_that_are_wrong_on_a_timed_problem_are_quarantined(tmp_path):
    """A sample of a timed problem's rows is held against the reference: verifying had seen nothing."""
    bad = ROWS[0]
    _, _ = measure(tmp_path / "r", faults={bad.name: ("wrong", 38)}, seed=3)  # cases have up to 37 rows
    with open_store(tmp_path / "r") as store:
        ((number, reason),) = store.quarantined().items()
        assert store.kernel_id(bad) == number
        rows = {x.kernel.name: x for x in store.latest(PROBLEMS[1]).values()}
    assert reason.startswith("measuring bf16_rms_norm rows 64 cols 128: wrong result on sampled rows: y: ")
    assert rows[bad.name].status.outcome is Outcome.FAILED
    assert rows[ROWS[1].name].ok


def test_rows_measured_while_the_device_is_throttled_are_measured_again(tmp_path):
    """The guard that products have: a reference kernel between the problems tells that the device changed its speed."""
    rows = replace(TUNING, kernels=ROWS[:2], problems=(PROBLEMS[1],))
    plan = replace(PLAN, settle_s=0.0, reference_tolerance=0.15)
    slow = dict.fromkeys(range(4, 400), 2.0)  # the reference kernel is read three times, then all takes twice
    _, said = measure(tmp_path / "r", tuning=rows, plan=plan, slow=slow)
    again = "bf16_rms_norm rows 64 cols 128 is measured again: the reference kernel takes"
    assert any(x.startswith(again) for x in said)
    with open_store(tmp_path / "r") as store:
        assert store.voided()


def test_rows_of_a_store_are_those_of_a_record_that_a_table_is_selected_from(tmp_path):
    measure(tmp_path / "r.sqlite")
    record = from_store(tmp_path / "r.sqlite")
    text = record_text(record)
    assert record_text(parse_record(text, "r")) == text
    assert sum(x.endswith(",64,128,20.0,20.0,20.0,7,0.0]") for x in text.splitlines()) == 1
    times = measured_times(parse_record(text, "r"))
    assert times[NORM] == {RowProblem(NORM, 64, 128): {ROWS[0].key.candidate: 20.0, ROWS[1].key.candidate: 30.0}}
    assert {x for x in times if x.kind == "rows"} == {NORM, QUANTIZE, ROTARY}


def test_a_tuning_of_several_kinds_is_carried_in_one_bundle(tmp_path):
    chosen, predicted = {PROBLEMS[1]: frozenset({ROWS[1].name})}, {PROBLEMS[1]: {ROWS[1].name: 2.0}}
    tuning = replace(TUNING, chosen=chosen, predicted_us=predicted)
    write_tuning_set(tmp_path, tuning)
    assert read_tuning_set(tmp_path) == tuning
    assert [x.name for x in tuning.filtered("rms_norm", "rms_norm").kernels] == [x.name for x in ROWS[:2]]
    parts = [tuning.shard(i, 2) for i in (1, 2)]
    assert {x.name for part in parts for x in part.problems} == {x.name for x in PROBLEMS}
