from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aot.compile.artifact import Artifact, CompileFailure
from aot.core.candidate import KernelKey
from aot.core.errors import CandidateError, CompileError, StoreError
from aot.core.measurement import Measurement, Outcome, Record, Status
from aot.core.operation import Operation
from aot.core.shape_set import parse_shape_set
from aot.core.target import load_target
from aot.kinds.gemm.tuned import TunedKernel
from aot.measure.store import open_store
from aot.package.distribution import wheel_version
from aot.package.wheel import TableSource, make_wheel, manifest_of
from aot.select import selector
from aot.select.selection import Regret
from aot.select.times.model import TimeModel
from aot.select.times.record import write_record
from aot.space.enumeration import Patterns
from aot.tune import tuning
from aot.tune.kinds import TuningRequest, tuning_candidates
from aot.tune.tuning import Workplace, learn, tuning_library, tuning_set
from tests.golden.manifest import kernel
from tests.unit.accepted import named
from tests.unit.selections import PLAIN, SELECTION
from tests.unit.twins import BF16, CONDITIONS, problem_of

H200, THOR = load_target("h200"), load_target("thor")
SMALL = named("sm90_quack_64x16_c1x1_pingpong_swap")
SHAPES = parse_shape_set(
    'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [1, 4096]\n'
    '[[model]]\nname = "x"\nweights = [{ name = "w", n = 4096, k = 4096 }]\n',
    "x",
)


def request_of(limit=10**6, patterns="", candidates=()):
    return TuningRequest(SHAPES, (BF16,), Patterns.parse(patterns), limit, 2.0, candidates)


@pytest.mark.slow
def test_every_legal_candidate_is_tuned_where_there_are_few():
    patterns = "sm90_quack_64x16_*_pingpong"
    found = tuning_candidates(request_of(patterns=patterns), H200, BF16)
    assert [x.name for x in found] == [f"sm90_quack_64x16_c{x}_pingpong" for x in ("1x1", "2x1", "1x2", "4x1", "1x4")]
    assert len(tuning_candidates(request_of(4, patterns), H200, BF16)) == 4


@pytest.mark.walk
@pytest.mark.slow
def test_an_earlier_selections_candidates_may_be_tuned():
    request = request_of(1, candidates=(SMALL, PLAIN, named("sm100_tgv_64x8_c1x1_st8_direct_swap")))
    assert set(tuning_candidates(request, H200, BF16)) == {SMALL, PLAIN}


def artifact(candidate):
    return Artifact(replace(kernel(BF16, candidate), object_sha256="ab"), Path("x.o"))


def test_a_tuning_leaves_out_what_the_model_says_is_far_off():
    fallback = selector.fallback_key(Operation.BF16_KK, H200).candidate
    found = tuning_set(request_of(), [artifact(x) for x in (fallback, PLAIN, SMALL)], H200)
    assert [(x.name, x.is_fallback) for x in found.kernels] == [
        (f"bf16_kk_{fallback.name}", True),
        (f"bf16_kk_{PLAIN.name}", False),
        (f"bf16_kk_{SMALL.name}", False),
    ]
    assert found.problems == (problem_of(1, 4096, 4096), problem_of(4096, 4096, 4096))
    assert found.chosen[found.problems[1]] == {f"bf16_kk_{PLAIN.name}"}
    assert f"bf16_kk_{SMALL.name}" in found.chosen[found.problems[0]]
    assert found.predicted_by == "cost-model-v1"


def test_what_is_not_aligned_is_tuned_with_kernels_that_take_it():
    text = 'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [16]\n[[model]]\nname = "x"\nweights = ['
    shapes = parse_shape_set(text + '{ name = "odd", n = 63, k = 65 }, { name = "even", n = 64, k = 64 }]\n', "x")
    found = tuning_set(replace(request_of(), shapes=shapes), [artifact(PLAIN)], H200)
    assert found.problems == (problem_of(16, 64, 64), problem_of(16, 63, 65))
    assert [len(found.chosen[x]) for x in found.problems] == [1, 0]


@pytest.mark.walk
@pytest.mark.slow
def test_patterns_may_leave_kernels_of_unaligned_problems_alone():
    text = 'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [16]\n[[model]]\nname = "x"\nweights = ['
    mixed = parse_shape_set(text + '{ name = "odd", n = 63, k = 65 }, { name = "even", n = 64, k = 64 }]\n', "x")
    request = request_of(patterns="mma_sync_16x16_*_a2k8_direct")
    assert [x.name for x in tuning_candidates(replace(request, shapes=mixed), H200, BF16)] == [
        "mma_sync_16x16_c1x1_a2k8_direct"
    ]
    with pytest.raises(CandidateError, match="no candidate of bf16_kk on h200 is left"):
        tuning_candidates(request, H200, BF16)


@pytest.mark.slow
def test_a_tuning_without_a_kernel_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "aot.tune.tuning.compile_all", lambda keys, *_: ([], [CompileFailure(x.name, "why") for x in keys])
    )
    with pytest.raises(
        CompileError, match="bf16_kk_simt_64x64_c1x1_direct, which every library has, does not compile: why"
    ):
        tuning_library(request_of(1, "sm90_quack_64x16_*"), H200, tmp_path, Workplace())


def test_a_selected_kernel_must_compile(monkeypatch, tmp_path):
    monkeypatch.setattr("aot.package.wheel.compile_shipped", lambda *_: ([], [CompileFailure("k", "why")]))
    message = (
        "1 selected kernels do not compile; the first: k: why; leave it out with `aot select --kernels='-...'`, or its "
        "operation with `aot build --operations`"
    )
    with pytest.raises(CompileError) as caught:
        make_wheel([TableSource(SELECTION, H200)], tmp_path / "dist", Workplace(), package="p", wheel_version="1")
    assert str(caught.value) == message
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(("provenance", "is_known"), [("measured", True), ("predicted", False)])
def test_the_manifest_says_what_the_table_is(provenance, is_known):
    regret = Regret(BF16, 2, 1, 0.01, 0.02, "exact", 0.01)
    chosen = replace(SELECTION, provenance=provenance, regrets=(regret,))
    kernels = [artifact(key.candidate) for key in chosen.kernels]
    manifest = manifest_of([TableSource(chosen, H200)], kernels, "aot-gemm", "1.2")
    (table,) = manifest.tables
    assert (table.provenance, table.record, table.table) == (provenance, "mine", chosen.table)
    assert (table.target, table.device_names, table.num_sms) == ("h200", ("NVIDIA H200",), 132)
    assert (table.peak_flops_per_s, table.bandwidth_bytes_per_s) == ({"bf16": 7.9e14}, 4.3e12)
    assert manifest.version == wheel_version("1.2", chosen)
    # A predicted selection's regret is the model's against itself: it is no figure of the wheel.
    assert table.regrets == ((regret,) if is_known else ())
    assert set(manifest.toolchain) == {"nvidia-cutlass-dsl", "quack-kernels", "nvidia-cutlass-operators"}


PROBLEMS = [problem_of(m, 4096, 4096) for m in (1, 4096)]
NEAR = [named(f"sm90_quack_64x{n}_c1x1_pingpong") for n in (32, 64, 128)]


class Learned:
    """A model by which later candidates of `NEAR` are faster on the first problem, earlier ones on the second."""

    def times_us(self, candidates, problems):
        places = [NEAR.index(x) for x in candidates]
        return np.array([[10.0 - i if p == PROBLEMS[0] else 10.0 + i for i in places] for p in problems])


@pytest.mark.parametrize("per_problem", [1, 2, 3, 9])
def test_each_problem_is_measured_with_what_is_predicted_fastest(per_problem):
    request = replace(request_of(), learned=Learned(), per_problem=per_problem, predicted_by="learned from x")
    found = tuning_set(request, [artifact(x) for x in NEAR], H200)
    names = [f"bf16_kk_{x.name}" for x in NEAR]
    assert (found.problems, found.predicted_by) == (tuple(PROBLEMS), "learned from x")
    assert [found.chosen[x] for x in PROBLEMS] == [set(names[::-1][:per_problem]), set(names[:per_problem])]
    assert found.predicted_us[PROBLEMS[1]] == {x: 10.0 + i for i, x in enumerate(names[:per_problem])}


def test_what_the_learned_model_puts_forward_is_not_pruned_by_the_cost_model():
    fallback = selector.fallback_key(Operation.BF16_KK, H200).candidate
    artifacts = [artifact(x) for x in (fallback, PLAIN, SMALL)]
    request = request_of()
    assert len(tuning_set(request, artifacts, H200).chosen[PROBLEMS[1]]) == 1
    both = replace(request, learned=TimeModel.fit({BF16: TIMES}, H200))
    assert tuning_set(both, artifacts, H200).chosen[PROBLEMS[1]] == {f"bf16_kk_{x.name}" for x in (PLAIN, SMALL)}


TIMES = {problem: {PLAIN: 10.0 + i, SMALL: 12.0 - i, NEAR[0]: 20.0} for i, problem in enumerate(PROBLEMS)}


def record_of(times, target="h200", conditions=CONDITIONS):
    rows = (
        Measurement(KernelKey(BF16, candidate), problem, us, us, us, 7, 1e-3)
        for problem, row in times.items()
        for candidate, us in row.items()
    )
    return Record(target, (conditions,), tuple(rows))


def fitted(monkeypatch):
    """Note what a model is fitted to."""
    seen = []
    monkeypatch.setattr(tuning.TimeModel, "fit", staticmethod(lambda times, target: seen.append((times, target))))
    return seen


def test_what_is_learned_from_are_the_times_of_all_files_and_the_last_one_counts(monkeypatch, tmp_path):
    seen = fitted(monkeypatch)
    later = replace(CONDITIONS, protocol="graph-cold-l2-mixed-v3", device="NVIDIA H100")
    write_record(tmp_path / "a.jsonl.gz", record_of(TIMES))
    write_record(tmp_path / "b.jsonl.gz", record_of({PROBLEMS[0]: {SMALL: 7.0}}, conditions=later))
    with open_store(tmp_path / "c.sqlite") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        number = store.kernel_id(TunedKernel(KernelKey(BF16, NEAR[1]), "ab"))
        for item in record_of({PROBLEMS[1]: {NEAR[1]: 5.0}}).measurements:
            store.add_measurement(run, number, item)
            store.finish(run, item.problem)
    learn([tmp_path / x for x in ("a.jsonl.gz", "b.jsonl.gz", "c.sqlite")], H200)
    both = {PROBLEMS[0]: {**TIMES[PROBLEMS[0]], SMALL: 7.0}, PROBLEMS[1]: {**TIMES[PROBLEMS[1]], NEAR[1]: 5.0}}
    assert seen == [({BF16: both}, H200)]


def test_times_of_another_architecture_are_not_learned_from(monkeypatch, tmp_path):
    path = tmp_path / "r.jsonl.gz"
    write_record(path, record_of(TIMES))
    with pytest.raises(StoreError) as caught:
        learn([path], THOR)
    assert str(caught.value) == f"{path} is of h200; expected times of sm_110a, as thor is"
    assert fitted(monkeypatch) == []


def test_a_record_of_failures_is_nothing_to_learn_from(tmp_path):
    path = tmp_path / "r.jsonl.gz"
    record = record_of({PROBLEMS[0]: {PLAIN: 1.0}})
    failed = Status(Outcome.FAILED, "wrong")
    write_record(path, replace(record, measurements=tuple(replace(x, status=failed) for x in record.measurements)))
    with pytest.raises(StoreError) as caught:
        learn([path], H200)
    assert str(caught.value) == f"{path}: there are no times to learn from; give others"
