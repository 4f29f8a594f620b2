"""The worker of row kernels over the twins: what it verifies, times, leaves out and carries on with."""

import sys
from pathlib import Path

import numpy as np
import pytest

from aot.core.errors import DeviceError, StoreError
from aot.kinds.rows.candidate import RowCandidate, RowLimits
from aot.kinds.rows.operation import RowFunction, RowOperation
from aot.measure.gpu import ContextLostError
from aot.measure.protocol import TimingPlan
from aot.measure.row_results import ROW_RESULTS_VERSION, RowRun, open_row_results, read_row_results
from aot.measure.row_tuning_set import (
    ROW_TUNING_SET_VERSION,
    RowTuningSet,
    TunedRowKernel,
    TunedRows,
    read_row_tuning_set,
    write_row_tuning_set,
)
from aot.measure.row_worker import FLUSH_PROTOCOL, PROTOCOL, RowSession, RowWorker, protocol_of
from aot.measure.session import StoppedError
from aot.measure.supervisor import supervise
from tests.unit.measure.test_row_verify import TwinRows, last_element
from tests.unit.twins import CONDITIONS, TwinGpu

LIMITS = RowLimits(16, 8, 64)
NORM, QUANTIZE, ROTARY = RowOperation.BF16_RMS_NORM, RowOperation.BF16_E4M3_QUANTIZE, RowOperation.BF16_ROTARY
RUN = RowRun(ROW_RESULTS_VERSION, "h200", CONDITIONS)


def kernel(operation, threads, sha="a"):
    candidate = RowCandidate("twin", threads, 1, 8, 1)
    return TunedRowKernel(f"{operation.tag}_{candidate.name}", operation, candidate, sha * 64, LIMITS)


KERNELS = (kernel(NORM, 1), kernel(NORM, 2), kernel(QUANTIZE, 1), kernel(ROTARY, 1))
SIZES = (TunedRows(NORM, 4, 16, (0, 1)), TunedRows(NORM, 8, 64, (0, 1)), TunedRows(QUANTIZE, 4, 64, (2,)))
TUNING = RowTuningSet(ROW_TUNING_SET_VERSION, "h200", "sm_90a", KERNELS, (*SIZES, TunedRows(ROTARY, 32, 64, (3,))))
TIMES = (10.0, 7.0, 5.0, 3.0)


class TimedRows(TwinRows):
    """The twin with a clock: `faults` maps a kernel's index to what its launch does."""

    def __init__(self, gpu, faults=None):
        super().__init__()
        self.gpu, self.faults, self.placed = gpu, faults or {}, []

    def launch(self, index, problem, stream):
        assert stream == self.gpu.stream
        if self.gpu.capturing is not None:
            self.gpu.capturing.append((KERNELS[index].name, TIMES[index]))
            return
        self.gpu.clock_us += TIMES[index]
        self.damage = self.faults[index](self.gpu, problem) if index in self.faults else None
        super().launch(index, problem, stream)


def measure(path, gpu=None, *, tuning=TUNING, faults=None, **more):
    gpu = gpu or TwinGpu()
    steps = []
    with open_row_results(path) as results:
        results.add(RUN)
        session = RowSession(gpu, TimedRows(gpu, faults), tuning, results, np.random.default_rng(1), **more)
        session.report = lambda *step: steps.append(step)
        try:
            RowWorker(session).run()
        finally:
            assert gpu.num_allocations == 0 or gpu.lost  # a lost context takes its memory with it
            assert gpu.graphs == {}
    return steps


def times(path):
    found = read_row_results(path).times
    return {(x.operation, x.candidate.threads_per_row, x.rows, x.cols): x.median_us for x in found.values()}


EXPECTED = {
    (NORM, 1, 4, 16): 10.0,
    (NORM, 2, 4, 16): 7.0,
    (NORM, 1, 8, 64): 10.0,
    (NORM, 2, 8, 64): 7.0,
    (QUANTIZE, 1, 4, 64): 5.0,
    (ROTARY, 1, 32, 64): 3.0,
}


@pytest.mark.parametrize("plan", [TimingPlan(), TimingPlan(l2_multiple=0, flush_bytes=1 << 12)], ids=protocol_of)
def test_every_kernel_is_verified_and_every_size_is_timed(tmp_path, plan):
    path = tmp_path / "results.jsonl"
    steps = measure(path, plan=plan)
    found = read_row_results(path)
    assert times(path) == EXPECTED
    assert found.verified == {x.identity for x in KERNELS}
    assert (found.quarantined, found.in_flight()) == ({}, None)
    assert (steps[0][:2], steps[-1][:2]) == ((0, 10), (10, 10))
    assert all(0 <= done <= total == 10 for done, total, _ in steps)


def test_the_protocols_have_names_of_their_own():
    assert [protocol_of(x) for x in (TimingPlan(), TimingPlan(flush_bytes=1))] == [PROTOCOL, FLUSH_PROTOCOL]


def test_sets_exceed_the_cache_and_launches_take_them_in_turn(tmp_path):
    gpu, seen = TwinGpu(l2_bytes=4096), set()
    plan = TimingPlan(max_launches=50)
    quantize = RowTuningSet(1, "h200", "sm_90a", KERNELS, (TunedRows(QUANTIZE, 4, 64, (2,)),))
    gpu.capture = lambda launch, inner=gpu.capture: inner(launch)
    original = TimedRows.launch

    def launch(self, index, problem, stream):
        if self.gpu.capturing is not None:
            seen.add(problem.x.data)
        original(self, index, problem, stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedRows, "launch", launch)
        measure(tmp_path / "x.jsonl", gpu, tuning=quantize, plan=plan)
    # A set moves 4 x 64 x (2 + 1) bytes and 4 scales: 784.
    assert len(seen) == -(-3 * 4096 // 784)


def test_what_is_done_is_not_measured_again(tmp_path):
    path, count = tmp_path / "results.jsonl", []
    with pytest.raises(StoppedError):
        measure(path, stop=lambda: count.append(1) or len(count) > 6)
    part = times(path)
    assert 0 < len(part) < len(EXPECTED)
    before = path.read_bytes()
    steps = measure(path)
    assert path.read_bytes().startswith(before)
    assert times(path) == EXPECTED
    assert steps[0][0] >= len(KERNELS) + len(part)
    lines = path.read_text().count('{"time":'), path.read_text().count('{"verified":')
    assert lines == (len(EXPECTED), len(KERNELS))


def test_another_build_of_a_kernel_is_measured_anew(tmp_path):
    path = tmp_path / "results.jsonl"
    measure(path)
    changed = (kernel(NORM, 1, "b"), *KERNELS[1:])
    measure(path, tuning=RowTuningSet(1, "h200", "sm_90a", changed, TUNING.sizes))
    assert len(read_row_results(path).times) == len(EXPECTED) + 2


def wrong(gpu, problem):
    return last_element


def refused(gpu, problem):
    raise DeviceError("launch refused")


def lost(gpu, problem):
    gpu.lost = True
    raise DeviceError("illegal address")


@pytest.mark.parametrize(
    ("fault", "text"), [(wrong, "verifying: wrong result on RowCase"), (refused, "verifying: launch refused")]
)
def test_a_kernel_that_is_wrong_or_fails_is_quarantined_and_the_rest_measured(tmp_path, fault, text):
    path, said = tmp_path / "results.jsonl", []
    measure(path, faults={1: fault}, warn=said.append)
    found = read_row_results(path)
    ((name, reason),) = found.quarantined.items()
    assert (name, reason[: len(text)]) == (KERNELS[1].identity, text)
    assert times(path) == {key: us for key, us in EXPECTED.items() if key[:2] != (NORM, 2)}
    assert len(said) == 1


def test_a_lost_context_ends_the_process_and_the_next_one_carries_on(tmp_path):
    path = tmp_path / "results.jsonl"
    with pytest.raises(ContextLostError, match="verifying: illegal address"):
        measure(path, faults={0: lost})
    measure(path)
    assert times(path) == {key: us for key, us in EXPECTED.items() if key[:2] != (NORM, 1)}


def test_a_kernel_that_ends_the_process_is_the_one_in_flight(tmp_path):
    path = tmp_path / "results.jsonl"

    def die(gpu, problem):
        raise SystemExit

    with pytest.raises(SystemExit):
        measure(path, faults={2: die})
    flight = read_row_results(path).in_flight()
    assert (flight.kernel, flight.what) == (KERNELS[2].identity, f"verifying {KERNELS[2].name}")
    with open_row_results(path) as results:  # as the supervisor does
        results.quarantine(flight.run, flight.kernel, "hung")
        results.clear_in_flight()
    measure(path)
    assert (NORM, 1, 4, 16) in times(path)
    assert all(operation is not QUANTIZE for operation, *_ in times(path))


def test_what_memory_does_not_hold_is_left_out(tmp_path):
    gpu, said = TwinGpu(), []
    path = tmp_path / "results.jsonl"
    measure(path, gpu)
    done = times(path)
    more = RowTuningSet(1, "h200", "sm_90a", KERNELS, (*TUNING.sizes, TunedRows(NORM, 4096, 64, (0, 1))))
    gpu.memory_bytes = 1 << 16
    measure(path, gpu, tuning=more, warn=said.append)
    assert times(path) == done
    assert said == ["bf16_rms_norm rows 4096 cols 64 is left out: cuMemAlloc of 524288 bytes failed"]


def test_results_of_another_device_are_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    measure(path)
    other = RowRun(ROW_RESULTS_VERSION, "thor", CONDITIONS)
    with open_row_results(path) as results, pytest.raises(StoreError, match=r"is of h200, .*, this is thor, "):
        results.add(other)
    assert read_row_results(path).runs == [RUN]


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path):
    path = tmp_path / "results.jsonl"
    measure(path)
    path.write_bytes(path.read_bytes()[:-7])
    assert len(read_row_results(path).times) == len(EXPECTED) - 1
    measure(path)
    assert times(path) == EXPECTED


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{}", "line 2: is no line of results; expected one of run, start, idle, verified, quarantined, time"),
        ('{"time": {}}', "line 2: "),
        ("no JSON", "line 2: "),
    ],
)
def test_a_damaged_journal_is_refused(tmp_path, line, text):
    path = tmp_path / "results.jsonl"
    measure(path)
    first, rest = path.read_text().split("\n", 1)
    path.write_text(f"{first}\n{line}\n{rest}")
    with pytest.raises(StoreError, match=text):
        read_row_results(path)


def test_a_tuning_set_is_read_as_it_was_written(tmp_path):
    write_row_tuning_set(tmp_path, TUNING)
    assert read_row_tuning_set(tmp_path) == TUNING
    left = TUNING.filtered("*_1x1_*", "rms_norm")
    assert [x.kernels for x in left.sizes] == [(0,), (0,)]
    with pytest.raises(StoreError, match="leave nothing to measure; names look like 'bf16_rms_norm_twin_1x1_v8x1'"):
        TUNING.filtered("none", None)
    text = (tmp_path / "rows.json").read_text().replace('"kernels": [\n    3\n', '"kernels": [\n    2\n')
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(StoreError, match="bf16_rotary rows 32 cols 64 names kernel 2, none of its own"):
        read_row_tuning_set(tmp_path)


def test_a_rotary_embedding_has_a_row_for_each_head(tmp_path):
    assert ROTARY.function is RowFunction.ROTARY
    gpu, placed = TwinGpu(), []
    original = TimedRows.launch

    def launch(self, index, problem, stream):
        if self.gpu.capturing is not None:
            placed.append((problem.rows, problem.heads, problem.positions, problem.cols, problem.rotary_dim))
        original(self, index, problem, stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedRows, "launch", launch)
        measure(tmp_path / "x.jsonl", gpu, tuning=RowTuningSet(1, "h200", "sm_90a", KERNELS, TUNING.sizes[-1:]))
    assert set(placed) == {(1, 32, 1, 64, 64)}


DEADLY = """
import os, signal, sys
from pathlib import Path
from tests.unit.measure import test_row_worker as rows

def die(gpu, problem):
    os.kill(os.getpid(), signal.SIGSEGV)

rows.measure(Path(sys.argv[1]), faults={1: die})
"""


@pytest.mark.slow
def test_a_supervisor_quarantines_the_kernel_that_ended_the_worker_and_starts_another(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    path = tmp_path / "results.jsonl"
    command = [sys.executable, "-c", DEADLY, str(path)]
    assert supervise(lambda _left: command, path, silent=True, opened=open_row_results) == 0
    found = read_row_results(path)
    assert found.quarantined == {
        KERNELS[1].identity: f"verifying {KERNELS[1].name}: crashed: the process died of signal 11"
    }
    assert times(path) == {key: us for key, us in EXPECTED.items() if key[:2] != (NORM, 2)}
