"""Records of what the interpreter found, and the state that a kernel has by them."""

import re
from dataclasses import replace

import pytest

from aot.core.errors import StoreError
from aot.core.execution import (
    COMMITTED,
    Execution,
    KernelState,
    committed_executions,
    execution_of,
    executions_path,
    interpreter_sha256,
    merged,
    read_executions,
    state_of,
    write_executions,
)

RIGHT = Execution("a", "0" * 64, "f" * 64, 3, 2, 6, 0.5, 0, "2026-11-26")
OTHER = replace(RIGHT, kernel="b", ptx_sha256="1" * 64)


def test_what_is_written_is_read_in_the_order_of_the_names(tmp_path):
    path = tmp_path / "new" / "thor.json"
    write_executions(path, "thor", [OTHER, RIGHT])
    assert read_executions(path, "thor") == (RIGHT, OTHER)
    before = path.read_bytes()
    write_executions(path, "thor", [RIGHT, OTHER])
    assert path.read_bytes() == before


def test_a_record_is_a_line_for_each_kernel(tmp_path):
    write_executions(tmp_path / "thor.json", "thor", [RIGHT])
    assert (tmp_path / "thor.json").read_text() == (
        '{\n"executions":[\n'
        f'{{"date":"2026-11-26","interpreter_sha256":"{"f" * 64}","kernel":"a","num_cases":3,"num_findings":0,'
        f'"num_runs":6,"num_schedules":2,"ptx_sha256":"{"0" * 64}","worst_error":0.5}}\n'
        '],\n"target":"thor",\n"version":1\n}\n'
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worst_error": float("nan")}, "not JSON: NaN is no number of JSON"),
        ({"num_findings": -1}, "executions[0].num_findings: expected a whole number from 0 to"),
        ({"num_cases": 0}, "executions[0].num_cases: expected a whole number from 1 to"),
        ({"ptx_sha256": "0"}, "executions[0].ptx_sha256: expected a SHA-256 of 64 hexadecimal digits, got '0'"),
        ({"date": "today"}, "executions[0].date: expected a date, such as 2026-11-20, got 'today'"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, changes, message):
    with pytest.raises(StoreError, match=re.escape(message)):
        write_executions(tmp_path / "thor.json", "thor", [replace(RIGHT, **changes)])
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_is_there_once(tmp_path):
    message = "executions must ascend by their kernels' names, each kernel once; record what a file can hold"
    with pytest.raises(StoreError, match=message):
        write_executions(tmp_path / "thor.json", "thor", [RIGHT, replace(RIGHT, num_findings=1)])


@pytest.mark.parametrize(("num_cases", "num_schedules"), [(7, 2), (3, 7)])
def test_each_case_and_each_schedule_has_a_run(num_cases, num_schedules):
    message = f"6 runs are fewer than {num_cases} cases or {num_schedules} schedules; expected a run for each"
    with pytest.raises(ValueError, match=message):
        replace(RIGHT, num_cases=num_cases, num_schedules=num_schedules)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("{}", "version: expected 1, got None"),
        ('{"version": 2}', "version: expected 1, got 2"),
        ('{"version": 1, "target": "h200", "executions": []}', "it is of h200; expected thor"),
    ],
)
def test_a_file_that_is_no_record_of_the_target_is_refused(tmp_path, content, message):
    path = tmp_path / "thor.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StoreError) as caught:
        read_executions(path, "thor")
    assert str(caught.value) == f"{path}: {message}; write it again with `aot emulate --record`"


def test_a_new_execution_takes_the_place_of_the_older_one():
    newer = replace(RIGHT, num_runs=60)
    assert merged((RIGHT, OTHER), (newer,)) == (newer, OTHER)
    assert merged((), (OTHER, RIGHT)) == (RIGHT, OTHER)


def test_the_records_of_all_targets_are_read(tmp_path):
    assert committed_executions(tmp_path / "none") == ()
    write_executions(executions_path("h200", tmp_path), "h200", [OTHER])
    write_executions(executions_path("thor", tmp_path), "thor", [RIGHT])
    assert committed_executions(tmp_path) == (OTHER, RIGHT)


def test_a_committed_record_is_compressed_and_can_be_read():
    paths = sorted(COMMITTED.iterdir())
    names = [x.name.removesuffix(".json.gz") for x in paths]
    assert paths == [executions_path(x) for x in names]
    assert {"h200", "thor"} <= set(names)
    assert {x.read_bytes()[:2] for x in paths} == {b"\x1f\x8b"}
    assert committed_executions() == tuple(x for name in names for x in read_executions(executions_path(name), name))


def test_a_record_speaks_of_a_kernel_of_the_same_name_and_ptx_alone():
    wrong = replace(RIGHT, num_findings=2)
    assert execution_of("a", "0" * 64, [OTHER, RIGHT]) == RIGHT
    assert execution_of("a", "1" * 64, [OTHER, RIGHT]) is None
    assert execution_of("b", "0" * 64, [OTHER, RIGHT]) is None
    assert execution_of("a", "0" * 64, [RIGHT, wrong]) == wrong


@pytest.mark.parametrize(
    ("execution", "is_measured", "state"),
    [
        (None, False, "compiled"),
        (None, True, "run"),
        (RIGHT, False, "executed"),
        (RIGHT, True, "run"),
        (replace(RIGHT, worst_error=1.0), False, "executed"),
        (replace(RIGHT, worst_error=1.0001), False, "compiled"),
        (replace(RIGHT, num_findings=1), False, "compiled"),
    ],
)
def test_the_state_of_a_kernel(execution, is_measured, state):
    assert state_of(execution, is_measured=is_measured) is KernelState(state)


def test_the_interpreters_hash_is_of_its_sources(tmp_path):
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "a.py").write_text("1")
    first = interpreter_sha256(tmp_path)
    (tmp_path / "units" / "a.pyc").write_text("2")
    assert interpreter_sha256(tmp_path) == first
    (tmp_path / "units" / "a.py").rename(tmp_path / "units" / "b.py")
    renamed = interpreter_sha256(tmp_path)
    (tmp_path / "units" / "b.py").write_text("2")
    assert len({first, renamed, interpreter_sha256(tmp_path)}) == 3
    assert re.fullmatch("[0-9a-f]{64}", interpreter_sha256())
