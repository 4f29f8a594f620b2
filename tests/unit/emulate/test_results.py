"""Results of executions: what is counted, and the files that keep them."""

from dataclasses import replace

import pytest

from aot.emulate.results import RESULT_VERSION, CaseResult, FoundFinding, KernelResult, read_result, write_result

RACE = FoundFinding("read that is not ordered behind the write", "line 3: ld", "warp 1", "random 0", 7, is_fault=True)
NOTE = FoundFinding("access before griddepcontrol.wait", "line 4: ld", "reads b", "lazy 0", 1, is_fault=False)
RIGHT = CaseResult(
    "bf16_kk m1 n8 k8", 2, 1e-3, 0.25, "", "lazy 0", (NOTE,), 2000, 0.5, {"bar.sync": 8}, {"tma.load": 64}
)
WRONG = replace(RIGHT, share_of_bound=0.0, fault="wrong result", findings=(RACE, NOTE), num_runs=1)


def result(*cases, error=""):
    return KernelResult(
        RESULT_VERSION, "bf16_kk_simt", "simt", "bf16_kk", "0" * 64, error, 2, cases, ("bf16_kk m650 n1032 k328",)
    )


def test_what_is_right_and_wrong_is_counted():
    found = result(RIGHT, WRONG)
    assert (RIGHT.is_right, WRONG.is_right, WRONG.num_faults) == (True, False, 2)
    assert (found.is_right, found.num_right, found.num_faults) == (False, 1, 2)
    assert (found.num_runs, found.num_instructions, found.seconds, found.worst_share) == (3, 4000, 1.0, 0.25)
    assert result(RIGHT).is_right
    assert not result().is_right
    assert not result(RIGHT, error="the interpreter does not know it").is_right
    assert result(error="the interpreter does not know it").num_faults == 1


def test_a_result_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "result.json"
    write_result(path, result(RIGHT, WRONG))
    assert read_result(path) == result(RIGHT, WRONG)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(f'"version":{RESULT_VERSION}', '"version":99'),
        lambda text: text.replace('"num_runs":2', '"num_runs":-2'),
        lambda text: text.replace('"seconds":0.5', '"seconds":NaN'),
        lambda _: "",
    ],
)
def test_a_damaged_result_counts_as_none(tmp_path, damage):
    path = tmp_path / "result.json"
    write_result(path, result(RIGHT))
    text = path.read_text()
    assert damage(text) != text
    path.write_text(damage(text))
    assert read_result(path) is None


def test_no_result_counts_as_none(tmp_path):
    assert read_result(tmp_path / "none.json") is None
