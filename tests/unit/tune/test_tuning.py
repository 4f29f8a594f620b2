from dataclasses import replace
from pathlib import Path

import pytest

from aot.compile.artifact import Artifact, CompileFailure
from aot.core.errors import CompileError
from aot.core.operation import Operation
from aot.core.shape_set import parse_shape_set
from aot.core.target import load_target
from aot.package.distribution import wheel_version
from aot.package.wheel import TableSource, make_wheel, manifest_of
from aot.select import selector
from aot.select.selection import Regret
from aot.space.enumeration import Patterns
from aot.tune.tuning import TuningRequest, Workplace, tuning_candidates, tuning_library, tuning_set
from tests.golden.manifest import kernel
from tests.unit.accepted import named
from tests.unit.selections import PLAIN, SELECTION
from tests.unit.twins import BF16, problem_of

H200, THOR = load_target("h200"), load_target("thor")
SMALL = named("sm90_quack_64x16_c1x1_pingpong_swap", "h200")
SHAPES = parse_shape_set(
    'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [1, 4096]\n'
    '[[model]]\nname = "x"\nweights = [{ name = "w", n = 4096, k = 4096 }]\n',
    "x",
)


def request_of(limit=10**6, patterns="", candidates=()):
    return TuningRequest(SHAPES, (BF16,), Patterns.parse(patterns), limit, 2.0, candidates)


def test_every_legal_candidate_is_tuned_where_there_are_few():
    patterns = "sm90_quack_64x16_*_pingpong"
    found = tuning_candidates(request_of(patterns=patterns), H200, BF16)
    assert [x.name for x in found] == [
        f"sm90_quack_64x16_c{x}_pingpong" for x in ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4")
    ]
    assert len(tuning_candidates(request_of(4, patterns), H200, BF16)) == 4


def test_an_earlier_selections_candidates_may_be_tuned():
    request = request_of(1, candidates=(SMALL, PLAIN, named("sm100_tgv_64x8_c1x1_st8_direct_swap", "thor")))
    assert set(tuning_candidates(request, H200, BF16)) == {SMALL, PLAIN}


def artifact(candidate):
    return Artifact(replace(kernel(BF16, candidate), object_sha256="ab"), Path("x.o"))


def test_a_tuning_leaves_out_what_the_model_says_is_far_off():
    fallback = selector.fallback_key(Operation.BF16_KK, H200).candidate
    tuning = tuning_set(request_of(), [artifact(x) for x in (fallback, PLAIN, SMALL)], H200)
    assert [(x.name, x.is_fallback) for x in tuning.kernels] == [
        (f"bf16_kk_{fallback.name}", True),
        (f"bf16_kk_{PLAIN.name}", False),
        (f"bf16_kk_{SMALL.name}", False),
    ]
    assert tuning.problems == (problem_of(1, 4096, 4096), problem_of(4096, 4096, 4096))
    assert tuning.chosen[tuning.problems[1]] == {f"bf16_kk_{PLAIN.name}"}
    assert f"bf16_kk_{SMALL.name}" in tuning.chosen[tuning.problems[0]]


def test_what_only_the_fallback_can_compute_is_not_tuned():
    text = 'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [16]\n[[model]]\nname = "x"\nweights = ['
    shapes = parse_shape_set(text + '{ name = "odd", n = 63, k = 65 }, { name = "even", n = 64, k = 64 }]\n', "x")
    tuning = tuning_set(replace(request_of(), shapes=shapes), [artifact(PLAIN)], H200)
    assert tuning.problems == (problem_of(16, 64, 64),)


@pytest.mark.slow
def test_a_tuning_without_a_kernel_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "aot.tune.tuning.compile_all", lambda keys, *_: ([], [CompileFailure(x.name, "why") for x in keys])
    )
    with pytest.raises(
        CompileError, match="none of 2 kernels compiled; the first: bf16_kk_simt_64x64_c1x1_direct: why"
    ):
        tuning_library(request_of(1), H200, tmp_path, Workplace())


def test_a_selected_kernel_must_compile(monkeypatch, tmp_path):
    monkeypatch.setattr("aot.package.wheel.compile_all", lambda *_: ([], [CompileFailure("k", "why")]))
    message = "1 selected kernels do not compile; the first: k: why; leave it out with `aot select --kernels='-...'`"
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
