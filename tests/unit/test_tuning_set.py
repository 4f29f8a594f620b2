import json
from dataclasses import replace

import pytest
from twins import BF16, kernel_of, problem_of

from aot.errors import StoreError
from aot.problem import Dtype, Layout, Operation
from aot.tuning_set import TuningSet, matches, read_tuning_set, write_tuning_set

FP16_MK = Operation.of(Dtype.FLOAT16, Layout.MK)
TUNING = TuningSet(
    "h200",
    "sm_90a",
    (kernel_of(64, m_multiple=64), kernel_of(128, operation=FP16_MK, sha="cd"), kernel_of(8, 8, is_fallback=True)),
    (problem_of(1, 64, 64), problem_of(16, 64, 128, FP16_MK)),
)


def test_written_sets_are_read_back(tmp_path):
    write_tuning_set(tmp_path, TUNING)
    assert read_tuning_set(tmp_path) == TUNING
    first = (tmp_path / "kernels.json").read_bytes()
    write_tuning_set(tmp_path, TUNING)
    assert (tmp_path / "kernels.json").read_bytes() == first
    assert json.loads(first)["kernels"][1]["name"] == "fp16_mk_twin_128x128_c1x1"


def test_problem_may_name_its_kernels(tmp_path):
    problem, other = TUNING.problems
    tuning = replace(TUNING, problems=(problem, other), chosen={problem: frozenset({"bf16_kk_twin_64x128_c1x1"})})
    write_tuning_set(tmp_path, tuning)
    assert read_tuning_set(tmp_path) == tuning
    assert tuning.filtered(None, "m1 ").chosen == tuning.chosen
    wide = kernel_of(64)
    assert tuning.is_wanted(wide, problem)
    assert not tuning.is_wanted(kernel_of(256), problem)
    assert tuning.is_wanted(TUNING.kernels[1], other)


def test_predictions_are_carried(tmp_path):
    problem = TUNING.problems[0]
    tuning = replace(TUNING, predicted_us={problem: {"bf16_kk_twin_64x128_c1x1": 12.5}})
    write_tuning_set(tmp_path, tuning)
    assert read_tuning_set(tmp_path) == tuning
    assert tuning.filtered(None, "m1 ").predicted_us == tuning.predicted_us


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text[:50], "cannot read"),
        (lambda text: text.replace('"version": 2', '"version": 1'), "version 1, expected 2; make the bundle again"),
        (lambda text: text.replace("object_sha256", "digest"), "KeyError('object_sha256')"),
        (lambda text: text.replace("bfloat16", "float8"), "not a tuning set"),
    ],
)
def test_damaged_sets_are_refused(tmp_path, edit, message):
    write_tuning_set(tmp_path, TUNING)
    path = tmp_path / "kernels.json"
    path.write_text(edit(path.read_text()))
    with pytest.raises(StoreError) as caught:
        read_tuning_set(tmp_path)
    assert message in str(caught.value)


def test_kernels_take_what_they_are_for():
    whole_tiles, other, fallback = TUNING.kernels
    assert whole_tiles.takes(problem_of(128, 64, 64))
    assert not whole_tiles.takes(problem_of(100, 64, 64))
    assert not whole_tiles.takes(problem_of(128, 64, 65))
    assert not other.takes(problem_of(16, 64, 64, BF16))
    assert other.takes(problem_of(16, 64, 64, FP16_MK))
    assert not other.takes(problem_of(17, 64, 64, FP16_MK))
    assert not fallback.takes(problem_of(128, 64, 64))


def test_only_parallel_split_k_may_differ_between_runs():
    assert kernel_of(split_k=2, split_k_mode="serial").is_reproducible
    assert not kernel_of(split_k=2, split_k_mode="parallel").is_reproducible


def test_filters():
    assert matches("n64", "bf16_kk m1 n64 k64")
    assert not matches("*n64", "bf16_kk m1 n64 k64")
    assert matches("*n64 k*", "bf16_kk m1 n64 k64")
    left = TUNING.filtered("fp16", "k128")
    assert (left.kernels, left.problems) == (TUNING.kernels[1:2], TUNING.problems[1:])
    assert TUNING.filtered(None, None) == TUNING
    with pytest.raises(StoreError, match="leave 0 kernels and 2 problems; names look like 'bf16_kk_twin_64x128_c1x1'"):
        TUNING.filtered("nothing", None)
