"""Which sizes operations on rows are tuned on, with which kernels, and what of them is in a bundle."""

from dataclasses import replace

import pytest

from aot.compile.artifact import Artifact, CompileFailure
from aot.compile.workplace import Workplace
from aot.core.errors import CandidateError, CompileError
from aot.core.target import load_target
from aot.families import rows_family_of
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.kernel import RowKernel
from aot.kinds.rows.sizes import usual_problems
from aot.kinds.rows.tuned import takes_packed
from aot.measure.tuning_set import read_tuning_set
from aot.space.enumeration import fallback
from aot.tune import tuning
from aot.tune.kinds import TUNINGS, tuning_candidates
from aot.tune.tuning import make_tuning_bundle
from tests.golden.manifest import kernel
from tests.unit.tune.test_tuning import request_of

H200 = load_target("h200")
NORM, ROTARY = row_operation("bf16_rms_norm"), row_operation("bf16_rotary")
BOTH = (NORM, ROTARY)


def wanted(operation, patterns="", ratio=2.0):
    """Return the times by problem of the candidates that an operation is tuned with."""
    request = replace(request_of(patterns=patterns), operations=(operation,), ratio=ratio)
    candidates, tuning = tuning_candidates(request, H200, operation), TUNINGS["rows"]
    return {x: tuning.promising(request, candidates, x, H200) for x in tuning.problems(request, [operation])[operation]}


def test_sizes_are_rows_and_columns_of_models_and_heads_of_a_rotary_embedding():
    assert {(x.rows, x.cols) for x in usual_problems(NORM)} >= {(1, 4096), (8192, 16384)}
    assert {x.cols for x in usual_problems(ROTARY)} == {64, 128, 256}
    assert ROTARY.is_rotary


def test_a_size_is_measured_with_the_kernels_that_take_it_and_that_the_model_thinks_near_its_best():
    found = wanted(NORM) | wanted(ROTARY)
    assert set(found) == {*usual_problems(NORM), *usual_problems(ROTARY)}
    for problem, times in found.items():
        assert max(times.values()) <= 2 * min(times.values())
        assert all(takes_packed(rows_family_of(x).limits(x, problem.operation), problem) for x in times)
    assert sum(map(len, wanted(NORM, ratio=1.01).values())) < sum(map(len, wanted(NORM).values()))
    assert {x.family for times in wanted(NORM, "row_looped_*").values() for x in times} == {"row_looped"}
    with pytest.raises(CandidateError, match="no candidate of bf16_rms_norm on h200 is left"):
        wanted(NORM, "none")


@pytest.fixture
def stand_ins(monkeypatch):
    """Compile and link nothing; return what would have been linked."""
    linked = []

    def compiled(keys, *_):
        made, failures = [], []
        for key in keys:
            if key.operation.kind == "gemm":
                product = replace(kernel(key.operation, key.candidate, num_strides=2), object_sha256="ef" * 32)
                made.append(Artifact(product, f"{key.name}.o"))
                continue
            limits = rows_family_of(key.candidate).limits(key.candidate, key.operation)
            names = [f"{key.name}_{x}" for x in ("entry", "init", "load")]
            entry = (key.name, key.operation, key.candidate, "ab" * 32, 10, "cd" * 32, *names)
            if key.candidate.knobs.vectors_per_thread == 4 and key.candidate.family == "row_registers":
                failures.append(CompileFailure(key.name, "why", 0.0))
            else:
                described = RowKernel(*entry, key.operation.signature, limits, 0, 128, 32, 0)
                made.append(Artifact(described, f"{key.name}.o"))
        return made, failures

    def link(library, objects, folder, target, **_):
        linked.append((library, objects))
        (folder / "kernels.so").write_bytes(b"library")
        return folder / "kernels.so"

    monkeypatch.setattr(tuning, "compile_all", compiled)
    monkeypatch.setattr(tuning, "build_library", link)
    return linked


@pytest.mark.slow
@pytest.mark.parametrize("has_products", [False, True])
def test_a_bundle_has_rows_beside_products_or_alone(stand_ins, tmp_path, has_products):
    request = request_of(1, "sm90_quack_64x16_*,row_*")
    request = replace(request, operations=(*request.operations, *BOTH) if has_products else BOTH)
    bundle, failures = make_tuning_bundle(request, H200, tmp_path / "b", Workplace())
    found = read_tuning_set(bundle.directory)
    ((library, objects),) = stand_ins
    assert [x.name for x in found.kernels] == [x.name for x in (*library.kernels, *library.row_kernels)]
    assert set(objects) == {x.name for x in found.kernels}
    for section in library.tables[0].row_table.sections:
        assert library.row_kernels[section.fallback].candidate == fallback(section.operation, H200)
    failed = {x.name for x in failures}
    assert failed
    assert not failed & {x.name for x in found.kernels}
    sizes = [*usual_problems(NORM), *usual_problems(ROTARY)]
    assert {x for x in found.problems if x.operation.kind == "rows"} == set(sizes)
    assert any(x.operation.kind == "gemm" for x in found.problems) == has_products
    assert found.predicted_by == ("cost-model-v1" if has_products else None)
    for problem in sizes:
        assert found.chosen[problem] == set(found.predicted_us[problem])
        assert {x.name for x in found.kernels if found.is_wanted(x, problem)} == found.chosen[problem]


def test_a_fallback_that_does_not_compile_ends_it(stand_ins, tmp_path, monkeypatch):
    monkeypatch.setattr(
        tuning, "compile_all", lambda keys, *_: ([], [CompileFailure(x.name, "why") for x in keys if "row" in x.name])
    )
    with pytest.raises(CompileError, match=r"^bf16_rms_norm_row_scalar_.* does not compile: why$"):
        make_tuning_bundle(replace(request_of(1), operations=BOTH), H200, tmp_path / "b", Workplace())
