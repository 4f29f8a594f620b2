"""The command `aot emulate`, on the general kernel, which is really compiled and executed."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from aot.cli import emulate as command
from aot.cli import emulate_tables
from aot.cli.emulate_record import RecordFile
from aot.core.errors import CandidateError, OutputError, StoreError, VerificationError
from aot.core.execution import Execution, read_executions, write_executions
from aot.core.target import load_target
from aot.emulate.execute import ExecutionOptions
from aot.emulate.results import RESULT_VERSION, CaseResult, FoundFinding, KernelResult
from aot.emulate.schedule import Mode, Schedule
from tests.emulated import share_kept, with_ptx
from tests.unit.invoked import aot, succeed

GENERAL = ("emulate", "--legal", "--operations", "bf16_kk", "--kernels", "simt_*", "--jobs", "1")
NAME = "bf16_kk_simt_64x64_c1x1_direct"


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    share_kept(tmp_path, monkeypatch)
    return tmp_path


@pytest.mark.slow
def test_a_problem_is_executed_and_its_instructions_are_counted():
    words = (*GENERAL, "--problem", "3,5,8", "--modes", "random,strict_lazy", "--seeds", "2")
    found = json.loads(aot(*words, "--json").stdout)
    (kernel,) = found["kernels"]
    assert (found["target"], found["num_sms"], found["problem"]) == ("thor", 20, [3, 5, 8])
    assert found["schedules"] == ["random 0", "strict_lazy 0", "random 1", "strict_lazy 1"]
    assert (found["num_kernels"], found["num_right"], kernel["name"], kernel["is_right"]) == (1, 1, NAME, True)
    (case,) = kernel["cases"]
    assert (case["num_runs"], case["fault"], case["findings"]) == (4, "", [])
    assert case["counts"]["bar.sync"] > 0
    assert 0 < kernel["worst_share_of_bound"] <= 1
    done = aot(*words)
    assert done.exit_code == 0
    assert "1 kernels were executed before, by the same sources: kept; --fresh repeats" in done.stderr
    assert re.search(rf"^{NAME} +1 +1 +0 +0\.\d\d +0 +4 ", done.stdout, re.MULTILINE)
    assert re.search(r"^global stores +30$", done.stdout, re.MULTILINE)  # 3 x 5 elements of two bytes
    assert done.stdout.endswith(
        "1 of 1 kernels are right; schedules: random 0, strict_lazy 0, random 1, strict_lazy 1\n"
    )
    assert "executed before" not in aot(*words, "--fresh").stderr


@pytest.mark.slow
@pytest.mark.walk
def test_edge_cases_are_recorded_as_executions(workplace):
    words = (*GENERAL, "--max-instructions", "9000", "--modes", "random", "--record", "new/thor.json")
    output = succeed(*words)
    assert "cases were left out, which would execute more than 9,000 warp instructions each" in output
    (found,) = read_executions(workplace / "new" / "thor.json", "thor")
    assert (found.kernel, found.num_schedules, found.num_findings, found.is_right) == (NAME, 1, 0, True)
    assert found.num_cases == found.num_runs > 3
    assert 0 < found.worst_error <= 1
    again = aot(*words, "--unrecorded")
    assert "1 kernels are in the record with this PTX: left out" in again.stderr
    assert again.exit_code == 0
    assert again.stdout == ""
    path = workplace / "new" / "thor.json"
    write_executions(path, "thor", [replace(found, ptx_sha256="0" * 64)])
    assert "0 kernels are in the record with this PTX: left out" in aot(*words, "--unrecorded").stderr
    assert read_executions(path, "thor") == (found,)


def test_a_record_forgets_kernels_that_ship_no_more(tmp_path):
    made = [Execution(x, "0" * 64, "1" * 64, 1, 1, 1, 0.0, 0, "2026-11-30") for x in ("a", "b", "c")]
    record = RecordFile(tmp_path / "thor.json", "thor")
    write_executions(record.path, "thor", made)
    assert record.keep_only({"a", "c", "d"}) == 1
    assert [x.kernel for x in record.known] == ["a", "c"]
    assert record.keep_only({"a", "c"}) == 0


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({}, {"a", "b"}),
        ({"kernels": "simt_*"}, {"a", "b", "gone"}),
        ({"record": "x.json"}, {"a", "b", "gone"}),
        ({"operations": "bf16_kk"}, {"a", "b", "gone"}),
        ({"predicted": True}, {"a", "b", "gone"}),
        ({"selection": "x.json"}, {"a", "b", "gone"}),
    ],
)
def test_only_a_whole_committed_selection_says_what_ships_no_more(tmp_path, monkeypatch, changed, left):
    record = RecordFile(tmp_path / "h200.json", "h200")
    made = [Execution(x, "0" * 64, "1" * 64, 1, 1, 1, 0.0, 0, "2026-11-30") for x in ("a", "b", "gone")]
    write_executions(record.path, "h200", made)
    ships = {"one": ["a", "c"], "other": ["b"]}
    monkeypatch.setattr(command, "committed_selections", lambda _: list(ships))
    monkeypatch.setattr(
        command, "read_selection", lambda x: SimpleNamespace(all_kernels=[SimpleNamespace(name=y) for y in ships[x]])
    )
    values = {"target": "h200", "kernels": "", "record": command.COMMITTED, "legal": False, "operations": None}
    values |= {"selection": None, "predicted": False} | changed
    command._forget_others(record, load_target("h200"), values)
    assert {x.kernel for x in record.known} == left


@pytest.mark.slow
def test_instructions_of_a_warp_are_traced():
    output = succeed(*GENERAL, "--problem", "1,1,1", "--modes", "random", "--trace", "0,0,0:1")
    lines = [x for x in output.splitlines() if re.match(r"\d+,\d+,\d+:\d+ [0-9a-f]{8}  \d+: ", x)]
    assert len(lines) > 100
    assert {x.split()[0] for x in lines} == {"0,0,0:1"}
    assert any("st.shared" in x for x in lines)


@pytest.mark.slow
def test_a_wrong_kernel_ends_with_an_error_and_says_what_is_wrong(monkeypatch, tmp_path):
    real = command.compile_emulated

    def damaged(*arguments):
        return with_ptx(real(*arguments), lambda x: re.sub(r"bar\.sync\s+0;", "", x), tmp_path)

    monkeypatch.setattr(command, "compile_emulated", damaged)
    done = aot(*GENERAL, "--problem", "3,5,8", "--fresh", "--modes", "random")
    assert done.exit_code == VerificationError.exit_code
    assert f"aot: error: 1 of 1 kernels are wrong or could not be executed; the first: {NAME}: " in done.stderr
    assert "read that is not ordered behind the write" in done.stdout


def test_what_does_not_go_together_is_refused():
    refused = {
        ("--problem", "1,x,3"): "'1,x,3' is no problem; write m,n,k such as 40,136,200, of rows rows,cols",
        ("--problem", "4,64"): "--problem has 2 extents; a product has m,n,k and an operation on rows rows,cols",
        ("--modes", "slow"): "no mode 'slow'; there are: all, random, eager, lazy",
        ("--trace",): "--trace means nothing without --problem; leave it out, or use it with --problem",
        ("--record", "x.json", "--problem", "1,1,1"): "--record means nothing with --problem",
        ("--unrecorded",): "--unrecorded says nothing without --record; give both, or leave it out",
        ("--record", "x.json", "--num-sms", "4"): "--record means nothing with --num-sms: other kernels ship",
        ("--trace", "here", "--problem", "1,1,1"): "'here' is no warp; write X,Y,Z:WARP",
    }
    for words, message in refused.items():
        done = aot(*GENERAL, *words)
        assert done.exit_code != 0, words
        assert message in " ".join(done.stderr.split()), (words, done.stderr)
    none = aot("emulate", "--legal", "--operations", "bf16_kk", "--kernels", "nothing*")
    assert none.exit_code == CandidateError.exit_code
    assert "--kernels 'nothing*' leaves no kernel; give another pattern, such as 'sm100_*'" in none.stderr
    sampled = aot("emulate", "--sample", "3", "--operations", "bf16_kk")
    assert "--sample means nothing with --operations and without --legal" in sampled.stderr


def test_a_file_of_executions_that_cannot_be_used_is_told_before_kernels_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "legal_keys", None)
    monkeypatch.setattr(command, "compile_emulated", None)
    (tmp_path / "damaged.json").write_text("{")
    done = aot(*GENERAL, "--record", tmp_path / "damaged.json")
    assert (done.exit_code, "damaged.json: not JSON" in done.stderr) == (StoreError.exit_code, True), done.stderr
    done = aot(*GENERAL, "--record", tmp_path)
    assert (done.exit_code, "it is a folder" in done.stderr) == (OutputError.exit_code, True), done.stderr


RACE = FoundFinding("read that is not ordered behind the write", "line 3: ld", "warp 1", "random 0", 7, is_fault=True)
NOTE = FoundFinding("access before griddepcontrol.wait", "line 4: ld", "reads b", "lazy 0", 5, is_fault=False)
CASE = CaseResult("bf16_kk m1 n8 k8", 2, 1e-3, 0.25, "", "lazy 0", (NOTE,), 2000, 0.5, {"bar.sync": 8}, {})


def result(name, *cases, error=""):
    return KernelResult(RESULT_VERSION, name, "simt", "bf16_kk", "0" * 64, error, 2, cases, ("large",))


def test_the_table_says_what_is_wrong_and_what_was_left_out():
    wrong = CaseResult("bf16_kk m2 n8 k8", 1, 0.0, 0.0, "deadlock: 3 warps", "lazy 1", (RACE,), 10, 0.1, {}, {})
    results = [result("right", CASE), result("wrong", CASE, wrong), result("unknown", error="does not know brev.b32")]
    asked = ExecutionOptions((Schedule(), Schedule(Mode.LAZY, 1)))
    lines = emulate_tables.text(results, asked).splitlines()
    assert [line.split() for line in lines[2:5]] == [
        ["right", "1", "1", "0", "0.25", "0", "2", "2,000", "0.5"],
        ["wrong", "2", "1", "1", "0.25", "1", "3", "2,010", "0.6"],
        ["unknown", "0", "0", "0", "*", "0.00", "0", "0", "0", "0.0"],
    ]
    race = "read that is not ordered behind the write, 7 times, first under random 0: line 3: ld: warp 1"
    more = "--max-instructions takes more, and --json names them"
    assert lines[5:] == [
        "wrong:",
        "  bf16_kk m2 n8 k8: deadlock: 3 warps (schedule lazy 1)",
        f"  bf16_kk m2 n8 k8: {race}",
        "unknown:",
        "  not executed: does not know brev.b32",
        "note: access before griddepcontrol.wait: in 2 kernels; right has most, 5",
        "* not executed, or not to its end",
        f"3 cases were left out, which would execute more than 60,000 warp instructions each; {more}",
        "1 of 3 kernels are right; schedules: random 0, lazy 1",
    ]
    interrupted = emulate_tables.text(results[:1], asked, 2).splitlines()
    assert interrupted[-2:] == [
        "2 kernels were not executed",
        "1 of 1 kernels are right; schedules: random 0, lazy 1",
    ]


@pytest.mark.slow
def test_what_was_done_before_an_interrupt_is_printed(monkeypatch):
    real = command.execute_kernels

    def interrupted(*arguments):
        yield next(iter(real(*arguments)))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "execute_kernels", interrupted)
    words = ["bf16_kk,fp16_kk" if x == "bf16_kk" else x for x in GENERAL]
    done = aot(*words, "--problem", "1,1,1", "--modes", "random")
    assert done.exit_code == 130
    assert f"{NAME} " in done.stdout
    assert "1 kernels were not executed\n1 of 1 kernels are right" in done.stdout
