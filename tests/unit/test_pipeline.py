from dataclasses import replace
from pathlib import Path

import pytest
from accepted import named
from twins import BF16, CONDITIONS, problem_of

from aot import pipeline
from aot.artifact import Artifact, CompileFailure
from aot.candidate import Candidate, KernelKey
from aot.errors import CompileError, SelectionError, StoreError
from aot.measurement import Measurement, Record
from aot.pipeline import SelectionLimits, TuningRequest, Workplace
from aot.problem import Dtype, Layout, Operation, Problem
from aot.record import write_record
from aot.shape_set import parse_shape_set
from aot.space import Patterns
from aot.target import load_target
from tests.golden.manifest import FALLBACK, kernel

H200, THOR = load_target("h200"), load_target("thor")
PLAIN = named("sm90_quack_128x128_c1x1_pingpong", "h200")
SMALL = named("sm90_quack_64x16_c1x1_pingpong_swap", "h200")
SHAPES = parse_shape_set(
    'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [1, 4096]\n'
    '[[model]]\nname = "x"\nweights = [{ name = "w", n = 4096, k = 4096 }]\n',
    "x",
)
LIMITS = SelectionLimits()


def measured(candidate, m, median_us, status="ok"):
    problem = problem_of(m, 4096, 4096)
    return Measurement(KernelKey(BF16, candidate), problem, median_us, median_us, median_us, 7, 1e-3, status)


RECORD = Record(
    "h200",
    (CONDITIONS,),
    (
        measured(PLAIN, 1, 20.0),
        measured(SMALL, 1, 10.0),
        measured(PLAIN, 4096, 200.0),
        measured(SMALL, 4096, 0.0, "wrong result"),
    ),
)


@pytest.fixture(scope="module")
def record_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "mine.jsonl.gz"
    write_record(path, RECORD)
    return path


@pytest.fixture(scope="module")
def selection(record_path):
    return pipeline.select_measured(record_path, H200, LIMITS, "")


def request_of(limit=10**6, patterns="", candidates=()):
    return TuningRequest(SHAPES, (BF16,), Patterns.parse(patterns), limit, 2.0, candidates)


def test_only_sound_measurements_count():
    small, big = problem_of(1, 4096, 4096), problem_of(4096, 4096, 4096)
    assert pipeline.measured_times(RECORD) == {BF16: {small: {PLAIN: 20.0, SMALL: 10.0}, big: {PLAIN: 200.0}}}


def test_selects_from_a_record(record_path, selection):
    names = ["fallback_64x64_c1x1_direct", PLAIN.name, SMALL.name]
    assert [key.candidate.name for key in selection.kernels] == names
    assert (selection.target, selection.provenance, selection.record) == ("h200", "measured", "mine")
    assert selection.conditions == (CONDITIONS,)
    (regret,) = selection.regrets
    assert (regret.num_problems, regret.num_kernels, regret.mean, regret.worst) == (2, 2, 0, 0)
    (ladder,) = selection.table.sections[0].ladders
    assert [(row.kernel, row.time_us, row.provenance) for row in ladder.rows] == [
        (2, 10.0, "measured"),
        (1, 200.0, "measured"),
    ]
    assert selection == pipeline.select_measured(record_path, H200, LIMITS, "")


def test_patterns_and_limits_narrow_a_selection(record_path):
    one = pipeline.select_measured(record_path, H200, LIMITS, "-*_swap")
    assert [key.candidate for key in one.kernels[1:]] == [PLAIN]
    assert [len(x.kernels) for x in (one, pipeline.select_measured(record_path, H200, SelectionLimits(1), ""))] == [
        2,
        2,
    ]


def test_a_selection_from_nothing_is_an_error(record_path):
    with pytest.raises(SelectionError, match="mine has no usable times; tune first"):
        pipeline.select_measured(record_path, H200, LIMITS, "sm100_*")


def test_a_record_of_another_target_is_refused(record_path):
    with pytest.raises(StoreError, match=r"mine\.jsonl\.gz is a record of h200, not of thor; give --target h200"):
        pipeline.select_measured(record_path, THOR, LIMITS, "")


@pytest.mark.parametrize(("layout", "limit"), [(Layout.KK, 32), (Layout.KN, 8), (Layout.MK, 8), (Layout.MN, 8)])
def test_linears_layout_may_have_more_kernels(layout, limit):
    assert LIMITS.of(Operation.of(Dtype.FLOAT16, layout)) == limit


def test_a_target_has_a_committed_record_or_none(tmp_path):
    records = Path(pipeline.__file__).parent / "records"
    assert pipeline.default_record(H200, records) == records / "h200.jsonl.gz"
    assert pipeline.default_record(H200, tmp_path) is None


def test_every_legal_candidate_is_tuned_where_there_are_few():
    patterns = "*_64x16_*_pingpong"
    found = pipeline.tuning_candidates(request_of(patterns=patterns), H200, BF16)
    assert [x.name for x in found] == [
        f"sm90_quack_64x16_c{x}_pingpong" for x in ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4")
    ]
    assert len(pipeline.tuning_candidates(request_of(4, patterns), H200, BF16)) == 4


def test_an_earlier_selections_candidates_may_be_tuned():
    request = request_of(1, candidates=(SMALL, PLAIN, named("sm100_tgv_64x8_c1x1_st8_direct_swap", "thor")))
    assert set(pipeline.tuning_candidates(request, H200, BF16)) == {SMALL, PLAIN}


def artifact(candidate):
    return Artifact(replace(kernel(BF16, candidate), object_sha256="ab"), Path("x.o"))


def test_a_tuning_leaves_out_what_the_model_says_is_far_off():
    fallback = pipeline.fallback_key(Dtype.BFLOAT16, H200).candidate
    tuning = pipeline.tuning_set(request_of(), [artifact(x) for x in (fallback, PLAIN, SMALL)], H200)
    assert [(x.name, x.is_fallback) for x in tuning.kernels] == [
        (f"bf16_kk_{fallback.name}", True),
        (f"bf16_kk_{PLAIN.name}", False),
        (f"bf16_kk_{SMALL.name}", False),
    ]
    assert tuning.problems == (problem_of(1, 4096, 4096), problem_of(4096, 4096, 4096))
    assert tuning.chosen[tuning.problems[1]] == {f"bf16_kk_{PLAIN.name}"}
    assert f"bf16_kk_{SMALL.name}" in tuning.chosen[tuning.problems[0]]


def test_a_tuning_without_a_kernel_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(pipeline, "compile_all", lambda keys, *_: ([], [CompileFailure(x.name, "why") for x in keys]))
    with pytest.raises(
        CompileError, match="none of 2 kernels compiled; the first: bf16_kk_fallback_64x64_c1x1_direct: why"
    ):
        pipeline.tuning_library(request_of(1), H200, tmp_path, Workplace())


def test_a_selected_kernel_must_compile(monkeypatch, selection, tmp_path):
    monkeypatch.setattr(pipeline, "compile_all", lambda *_: ([], [CompileFailure("k", "why")]))
    message = "1 selected kernels do not compile; the first: k: why; leave it out with `aot select --kernels='-...'`"
    with pytest.raises(CompileError) as caught:
        pipeline.build(selection, H200, tmp_path / "dist", Workplace(), package="p", wheel_version="1")
    assert str(caught.value) == message
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(("provenance", "version"), [("measured", "1.2+h200"), ("predicted", "1.2+h200.predicted")])
def test_the_version_says_when_a_table_is_predicted(selection, provenance, version):
    chosen = replace(selection, provenance=provenance)
    manifest = pipeline.manifest_of(chosen, [artifact(FALLBACK)], H200, "aot-gemm", "1.2")
    assert (manifest.version, manifest.provenance, manifest.record) == (version, provenance, "mine")
    assert set(manifest.toolchain) == {"nvidia-cutlass-dsl", "quack-kernels", "nvidia-cutlass-operators"}


def test_a_predicted_selection_says_so():
    selection = pipeline.select_predicted(SHAPES, H200, SelectionLimits(2, 2), "*_128x128_c1x1_pingpong,*_64x16_c1x1_*")
    assert (selection.provenance, selection.record, selection.conditions) == ("predicted", "cost-model-v1", ())
    assert [x.operation.tag for x in selection.table.sections] == ["bf16_kk", "bf16_kn", "bf16_mk", "bf16_mn"]
    rows = [row for x in selection.table.sections for ladder in x.ladders for row in ladder.rows]
    assert {row.provenance for row in rows} == {"predicted"}


def test_times_of_the_other_type_stand_in_but_are_called_predicted():
    slow, fast = (Candidate("sm90_quack", 128, n, schedule="pingpong") for n in (64, 128))
    bf16, fp16 = Operation.of(Dtype.BFLOAT16), Operation.of(Dtype.FLOAT16)
    sizes = (64, 4096, 4096)
    times = {bf16: {Problem(bf16, *sizes): {slow: 12.0, fast: 10.0}}, fp16: {Problem(fp16, *sizes): {slow: 11.0}}}
    filled = pipeline.with_stand_ins(times)
    assert filled[fp16] == {Problem(fp16, *sizes): {slow: 11.0, fast: 10.0}}
    assert filled[bf16] == times[bf16]
    limits = pipeline.SelectionLimits(1, 1)
    selection = pipeline.select_kernels(
        times, load_target("h200"), limits, record=Record("h200", (), ()), record_name="r"
    )
    rows = {x.operation: x.ladders[0].rows[0] for x in selection.table.sections}
    assert (rows[bf16].provenance, rows[bf16].time_us) == ("measured", 10.0)
    assert (rows[fp16].provenance, rows[fp16].time_us) == ("predicted", 10.0)
