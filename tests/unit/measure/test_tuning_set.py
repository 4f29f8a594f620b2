import json
from dataclasses import replace

import pytest

from aot.core.element import ElementType
from aot.core.errors import StoreError
from aot.core.operation import Layout, Operation
from aot.measure.tuning_set import TuningSet, matches, read_tuning_set, write_tuning_set
from tests.unit.twins import BF16, kernel_of, problem_of

FP16_MK = Operation.of(ElementType.FLOAT16, Layout.MK)
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


SMALL, LARGE, OTHER = (kernel_of(x) for x in (64, 128, 192))
TIMES = {problem_of(m, 64, 64): 100.0 * m for m in range(1, 41)}
MANY = TuningSet(
    "h200",
    "sm_90a",
    (SMALL, LARGE, OTHER, kernel_of(8, 8, is_fallback=True)),
    tuple(TIMES),
    {x: frozenset({SMALL.name} if x.m <= 20 else {SMALL.name, LARGE.name}) for x in TIMES},
    {x: {SMALL.name: 2 * us, LARGE.name: us} for x, us in TIMES.items()},
)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_shards_are_a_partition_of_about_equal_cost(count):
    shards = [MANY.shard(number, count) for number in range(1, count + 1)]
    assert sorted(x for shard in shards for x in shard.problems) == sorted(MANY.problems)
    # A problem costs its kernels, each 1 ms and four launches of the fastest.
    costs = [sum((1 if x.m <= 20 else 2) * (1000.0 + 4 * TIMES[x]) for x in shard.problems) for shard in shards]
    assert max(costs) <= 1.05 * sum(costs) / count
    assert [shard.problems for shard in shards] == [MANY.shard(i, count).problems for i in range(1, count + 1)]
    assert all(list(shard.problems) == sorted(shard.problems, key=MANY.problems.index) for shard in shards)


def test_a_shard_has_the_kernels_that_it_measures_and_the_fallback():
    small = replace(MANY, problems=MANY.problems[:20]).shard(1, 2)
    assert [kernel.name for kernel in small.kernels] == [SMALL.name, MANY.kernels[-1].name]
    assert [kernel.name for kernel in MANY.shard(1, 2).kernels] == [SMALL.name, LARGE.name, MANY.kernels[-1].name]


def test_a_shard_without_problems_is_refused():
    with pytest.raises(StoreError, match=r"^shard 3/3 of 2 problems has none; give fewer shards$"):
        replace(MANY, problems=MANY.problems[:2]).shard(3, 3)


def test_without_predictions_the_work_is_what_a_problem_costs():
    problems = (problem_of(8192, 8192, 8192), problem_of(4096, 8192, 8192), problem_of(4096, 8192, 8200))
    tuning = TuningSet("h200", "sm_90a", (SMALL,), problems)
    assert [[x.m for x in tuning.shard(number, 2).problems] for number in (1, 2)] == [[8192], [4096, 4096]]


def test_predictions_are_carried(tmp_path):
    problem = TUNING.problems[0]
    tuning = replace(
        TUNING, predicted_us={problem: {"bf16_kk_twin_64x128_c1x1": 12.5}}, predicted_by="cost-model-v1, constants: x"
    )
    write_tuning_set(tmp_path, tuning)
    assert read_tuning_set(tmp_path) == tuning
    for part in (tuning.filtered(None, "m1 "), tuning.shard(1, 1)):
        assert (part.predicted_us, part.predicted_by) == (tuning.predicted_us, tuning.predicted_by)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text[:50], "cannot read"),
        (
            lambda text: text.replace('"version": 4', '"version": 1'),
            "version: expected 4, got 1; make the bundle again",
        ),
        (
            lambda text: text.replace("object_sha256", "digest"),
            "kernels[0].kernel.digest: there is no such key in TunedKernel; it has key, object_sha256, ",
        ),
        (
            lambda text: text.replace('"bf16_kk"', '"float8"'),
            f"kernels[0].kernel.key.operation: expected one of {len(Operation)} words, such as bf16_kk, bf16_kn",
        ),
    ],
)
def test_damaged_sets_are_refused(tmp_path, edit, message):
    write_tuning_set(tmp_path, TUNING)
    path = tmp_path / "kernels.json"
    path.write_text(edit(path.read_text()))
    with pytest.raises(StoreError) as caught:
        read_tuning_set(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("kernels.json", ("version",), True, "version: expected 4, got True"),
        ("kernels.json", ("target",), "../../evil", "target: expected the name of a target, such as h200, got"),
        (
            "kernels.json",
            ("kernels", 0, "kernel", "key", "candidate"),
            [1, 2],
            "kernels[0].kernel.key.candidate: expected an object of Candidate",
        ),
        (
            "kernels.json",
            ("kernels", 0, "kernel", "m_multiple"),
            0,
            "kernels[0].kernel.m_multiple: expected a whole number from 1",
        ),
        ("kernels.json", ("kernels", 0, "kind"), "attention", "kernels[0].kind: expected one of gemm, rows, got"),
        (
            "kernels.json",
            ("kernels", 1, "name"),
            "bf16_kk_x_1x1",
            "kernels[1].name: expected the name of its kernel, fp16_mk_",
        ),
        (
            "problems.json",
            ("problems", 0, "sizes", "m"),
            -3,
            "problems[0].sizes.m: expected a whole number from 1 to 2",
        ),
        ("problems.json", ("problems", 0, "sizes"), {"m": 1}, "problems[0].sizes: Problem needs the key k"),
        ("problems.json", ("problems", 0, "operation"), "x", "problems[0].operation: expected the tag of an operation"),
        ("problems.json", ("problems", 0, "kernels"), [3], "problems.json names kernel 3 of 3"),
        ("problems.json", ("problems", 0, "predicted_us"), [[4, 1.0]], "problems.json names kernel 4 of 3"),
        ("problems.json", ("problems", 0, "predicted_us"), [[0, -1.0]], "predicted_us[0][1]: expected a number from 0"),
        ("problems.json", ("arch",), "sm_80", "kernels.json is for h200, sm_90a, problems.json for h200, sm_80"),
    ],
)
def test_damage_is_named_with_its_place(tmp_path, name, place, value, message):
    write_tuning_set(tmp_path, TUNING)
    document = json.loads((tmp_path / name).read_text())
    *parents, last = place
    inner = document
    for part in parents:
        inner = inner[part]
    inner[last] = value
    (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(StoreError) as caught:
        read_tuning_set(tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).endswith("; make the bundle again")


@pytest.mark.parametrize(("name", "rows"), [("kernels.json", "kernels"), ("problems.json", "problems")])
def test_nothing_is_there_twice(tmp_path, name, rows):
    write_tuning_set(tmp_path, TUNING)
    document = json.loads((tmp_path / name).read_text())
    document[rows].append(document[rows][0])
    (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(StoreError, match=f"{name}: .* is not the name of one kernel|{name}: a problem is there twice"):
        read_tuning_set(tmp_path)


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
