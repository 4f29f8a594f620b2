"""The command as users meet it: what it prints, its exit codes, and that it leaves nothing half-written."""

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from aot.cli import interrupt
from aot.cli import select as cli_select
from aot.cli import space as cli_space
from aot.cli.main import COMMANDS
from aot.compile import compiler as compile_module
from aot.compile.artifact import Artifact, CompileFailure
from aot.core import errors
from aot.core.candidate import KernelKey, changed, gemm_candidate
from aot.core.measurement import Measurement
from aot.core.shape_set import shape_set_names
from aot.core.target import load_target, target_names
from aot.kinds.gemm.tuned import TunedKernel
from aot.measure.preflight import Machine
from aot.measure.store import open_store
from aot.package.wheel import toolchain_version
from aot.select import pipeline
from aot.select.selection import read_selection
from aot.select.times.record import read_record
from aot.tune import tuning
from aot.tune.bundle import Bundle
from tests.compiling import some
from tests.few_committed import few_committed
from tests.golden.manifest import KK, golden_manifest
from tests.unit.invoked import SHAPES, aot, coarse_grid, succeed
from tests.unit.selections import SELECTION
from tests.unit.twins import CONDITIONS, problem_of

MISSES = """version = 1
[[model]]
name = "grid"
dtypes = ["bfloat16"]
layouts = ["kk"]
weights = [{ name = "w", n = 4096, k = 4096 }]
m = [3]
counts = [2]
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.toml").write_text(SHAPES)
    return tmp_path


def test_help_and_version():
    commands = ["targets", "shapes", "space", "compile", "tune", "import", "select", "build", "explain", "verify"]
    commands += ["bench", "calibrate", "deb", "diff", "emulate", "pack", "report", "smem"]
    commands += ["completion", "doctor", "release", "reproduce", "wheel", "wheelhouse", "worker"]
    listed = succeed("-h").partition("Commands:\n")[2].splitlines()
    assert sorted(line.split()[0] for line in listed if line.startswith("  ") and line[2] != " ") == sorted(commands)
    for command in commands:
        assert f"Usage: main {command} " in succeed(command, "-h")
    assert succeed("--version").endswith(f"version {toolchain_version()}\n")


def test_targets():
    assert [line.split()[:2] for line in succeed("targets").splitlines()[2:]] == [
        ["a100", "sm_80"],
        ["b200", "sm_100a"],
        ["gb10", "sm_121a"],
        ["h100", "sm_90a"],
        ["h200", "sm_90a"],
        ["l4", "sm_89"],
        ["orin", "sm_87"],
        ["rtx_pro_6000", "sm_120a"],
        ["thor", "sm_110a"],
        ["thor_6sm", "sm_110a"],
        ["thor_t4000", "sm_110a"],
    ]


def test_shapes():
    result = aot("shapes", "--shapes", "shapes.toml")
    assert result.stdout.splitlines()[2:] == ["tiny   w       4096  4096  1 4096", "2 problems for each of bf16_kk"]
    assert result.stderr == f"shipped shape sets: {', '.join(shape_set_names())}\n"
    lines = succeed("shapes", "--shapes", "shapes.toml", "--problems").splitlines()
    assert lines[2].split() == ["bf16_kk", "1", "4096", "4096", "0.03", "33.57"]


def test_shapes_says_what_no_tuned_kernel_takes(workplace):
    (workplace / "odd.toml").write_text(SHAPES.replace("n = 4096", "n = 7"))
    lines = succeed("shapes", "--shapes", "odd.toml").splitlines()
    assert lines[-1] == "2 problems for each of bf16_kk"
    eight = SHAPES.replace("n = 4096", "n = 7").replace('dtypes = ["bfloat16"]', 'operations = ["e4m3_bf16_kk"]')
    (workplace / "odd.toml").write_text(eight.replace('layouts = ["kk"]\n', ""))
    lines = succeed("shapes", "--shapes", "odd.toml").splitlines()
    assert lines[-2:] == [
        "2 problems for each of e4m3_bf16_kk",
        "2 of them by the slow general kernel, whatever is tuned: n 7 is not a multiple of 8",
    ]


MISS_LOG = "# aot_gemm misses 1\ndropped 2\ngrid bf16_kk 4096 4096 3x2 300x7\nunaligned fp16_kn 24 33 16x1\n"


def test_a_miss_log_becomes_a_shape_set(workplace):
    (workplace / "misses.log").write_text(MISS_LOG)
    counts = "2 problems of bf16_kk, 1 problems of fp16_kn; 2 launches of others that the log had no room for"
    assert succeed("shapes", "from-misses", "misses.log", "-o", "new/x.toml") == f"new/x.toml: {counts}\n"
    assert succeed("shapes", "--shapes", "new/x.toml") == succeed("shapes", "--shapes", "misses.log")
    lines = succeed("shapes", "--shapes", "new/x.toml").splitlines()
    assert lines[2].split() == ["grid", "bf16_kk", "n4096", "k4096", "n4096_k4096", "4096", "4096", "9", "3x2", "300x7"]
    assert lines[4] == counts
    assert "Usage: main shapes from-misses " in succeed("shapes", "from-misses", "-h")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["from-misses", "misses.log"], 2, "Missing option '-o' / '--output'"),
        (
            ["--problems", "from-misses", "misses.log", "-o", "x"],
            2,
            "--problems means nothing with from-misses; leave",
        ),
        (["from-misses", "absent.log", "-o", "x"], 3, "absent.log: No such file or directory; give a log that a wheel"),
        (
            ["from-misses", "shapes.toml", "-o", "x"],
            3,
            "shapes.toml:1: expected the first line '# aot_gemm misses 1', ",
        ),
        (
            ["from-misses", "misses.log", "-o", "x"],
            3,
            "misses.log:5: n is 0; expected 1 to 2147483647; mend or remove ",
        ),
        (["--shapes", "misses.log"], 3, "misses.log:5: n is 0; expected 1 to 2147483647; mend or remove the line"),
    ],
)
def test_a_miss_log_that_is_none_is_refused_and_nothing_is_written(workplace, arguments, code, message):
    (workplace / "misses.log").write_text(f"{MISS_LOG}grid bf16_kk 0 8 1x1\n")
    result = aot("shapes", *arguments)
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert not (workplace / "x").exists()


@pytest.mark.slow
def test_space():
    lines = succeed("space", "--target", "thor", "--kernels", "sm100_tgv_*").splitlines()
    assert lines[-1].split(maxsplit=3) == ["sm100_tgv", "12", "3", "3 shared memory exceeded"]
    text = succeed("space", "--target", "thor", "--explain")
    assert "sm100_tgv: 3 out: shared memory exceeded\n    sm100_tgv_64x16_c1x1_st12_direct_swap needs 246,784" in text
    rows = [line.split() for line in succeed("space", "--list", "--kernels", "*64x8_*st8_*").splitlines()]
    assert ["sm100_tgv_64x8_c1x1_st8_direct_swap", "in", "148,480", "B,", "8", "stages"] in rows


@pytest.mark.slow
def test_space_is_of_operations_of_any_kind():
    text = succeed("space", "--target", "b200", "--operations", "bf16_kk,bf16_rms_norm", "--explain")
    assert [line for line in text.splitlines() if line.endswith(("_kk:", "_norm:"))] == [
        "bf16_kk:",
        "bf16_rms_norm:",
    ]
    assert "    row_registers_1024x1_v8x4 needs about 88 registers a thread; sm_100a gives 64 to each of 1024" in text
    rows = [x.split() for x in succeed("space", "--list", "--operations", "bf16_rotary").splitlines()]
    assert ["row_rotary_8x16_v8x1", "in", "48", "B,", "48", "registers"] in rows


@pytest.mark.slow
def test_import_and_select(tmp_path, monkeypatch):
    coarse_grid(monkeypatch)
    kernel = KernelKey(KK, next(x.candidate for x in golden_manifest().kernels if x.candidate.gemm.split_k > 1))
    candidate = changed(kernel.candidate, family="sm90_quack", tile_m=128, tile_n=128, schedule="pingpong")
    key = KernelKey(KK, changed(candidate, split_k=1, split_k_mode="none"))
    with open_store(tmp_path / "results.sqlite") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        number = store.kernel_id(TunedKernel(key, "ab"))
        problem = problem_of(16, 4096, 4096)
        store.add_measurement(run, number, Measurement(key, problem, 9.0, 8.0, 10.0, 7, 1e-3))
        store.add_clocks(run, 1500, None)
        store.finish(run, problem)
    text = succeed("import", "results.sqlite", "--record", "mine.jsonl.gz")
    assert text.splitlines()[-2].split() == ["bf16_kk", "1", "1", "1", "0"]
    assert text.endswith("wrote mine.jsonl.gz; next: aot select --target h200 --record mine.jsonl.gz\n")
    text = succeed("select", "--target", "h200", "--record", "mine.jsonl.gz", "--no-unaligned", "-o", "out/s.json")
    assert text.splitlines()[0] == "h200: 2 kernels, predicted (mine)"
    assert "9.0 us measured" in succeed("explain", "--selection", "out/s.json", "16", "4096", "4096")
    found = {
        words[0]: json.loads(succeed(*words, "--json"))
        for words in (
            ["import", "results.sqlite", "--record", "mine.jsonl.gz"],
            ["select", "--target", "h200", "--record", "mine.jsonl.gz", "--no-unaligned", "-o", "out/again.json"],
            ["explain", "--selection", "out/s.json", "16", "4096", "4096"],
            ["diff", "out/s.json", "out/again.json", "--record", "mine.jsonl.gz"],
        )
    }
    counts = {"problems": 1, "kernels": 1, "times": 1, "failures": 0}
    assert found["import"]["operations"] == {"bf16_kk": counts}
    assert (found["import"]["path"], found["import"]["conditions"][0]["device"]) == ("mine.jsonl.gz", CONDITIONS.device)
    assert found["select"]["kernels"] == [x.name for x in read_selection(tmp_path / "out/again.json").kernels]
    assert found["select"]["provenance"] == "measured"
    assert "table" not in found["select"]
    explained = {"kernel": key.name, "tier": "tuned", "time_us": 9.0, "provenance": "measured", "runner_up": None}
    assert explained.items() <= found["explain"].items()
    assert (found["diff"]["changes"], found["diff"]["added"]) == ([], [])
    assert found["diff"]["num_entries"] > 0


def test_a_record_is_not_written_by_another_process_while_it_is_merged(tmp_path, monkeypatch):
    key = KernelKey(KK, gemm_candidate("sm90_quack", 128, 128, schedule="pingpong"))
    with open_store(tmp_path / "a.sqlite") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        store.add_measurement(
            run, store.kernel_id(TunedKernel(key, "ab")), Measurement(key, problem_of(1, 8, 8), 9.0, 8.0, 10.0, 7, 1e-3)
        )
        store.finish(run, problem_of(1, 8, 8))
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    real, codes = tuning.merge, []

    def merge(records):
        codes.append(
            subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, check=False).returncode
        )
        return real(records)

    monkeypatch.setattr(tuning, "merge", merge)
    succeed("import", tmp_path / "a.sqlite", "--record", tmp_path / "mine.jsonl.gz")
    assert codes == [1]
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == 0


def test_runs_are_put_to_one_level(tmp_path):
    key = KernelKey(KK, gemm_candidate("sm90_quack", 128, 128, schedule="pingpong"))
    for name, factor, count in (("a", 1.0, 30), ("b", 1.25, 25), ("c", 1.0, 3)):
        with open_store(tmp_path / f"{name}.sqlite") as store:
            run = store.add_run("h200", 1, CONDITIONS)
            number = store.kernel_id(TunedKernel(key, "ab"))
            for m in range(1, count + 1):
                us = 9.0 * factor * m
                item = Measurement(key, problem_of(m, 4096, 4096), us, 0.9 * us, 1.1 * us, 7, 1e-3)
                store.add_measurement(run, number, item)
                store.finish(run, item.problem)
    lines = succeed("import", "a.sqlite", "b.sqlite", "c.sqlite", "--record", "as_they_are.jsonl.gz").splitlines()
    apart = "b.sqlite: its times lie 25.0% above the others', by 25 common pairs; to level them, give --level"
    assert [x for x in lines if "others" in x] == [apart]
    lines = succeed("import", "--level", "a.sqlite", "b.sqlite", "--record", "mine.jsonl.gz").splitlines()
    assert lines[0] == "a.sqlite: the level that the others are put to"
    spread, own = "half of their ratios from 0.8000 to 0.8000", "25 problems by a factor of their own"
    assert lines[1] == f"b.sqlite: times multiplied by 0.8000, the median of 25 common pairs, {spread}; {own}"
    assert {x.problem.m: x.median_us for x in read_record(Path("mine.jsonl.gz")).measurements} == pytest.approx(
        {m: 9.0 * m for m in range(1, 31)}
    )
    # The record is the first of them, whose level stays.
    assert succeed("import", "--level", "b.sqlite", "--record", "mine.jsonl.gz").startswith("mine.jsonl.gz: the level")
    result = aot("import", "--level", "c.sqlite", "--record", "mine.jsonl.gz")
    assert result.exit_code == errors.StoreError.exit_code
    assert "c.sqlite has 3 pairs of problem and kernel in common with the others" in result.stderr


def test_compile_is_of_operations_of_any_kind(monkeypatch):
    asked = []
    monkeypatch.setattr("aot.cli.compile.compile_all", lambda keys, *_: asked.extend(keys) or ([], []))
    succeed("compile", "--target", "h200", "--operations", "bf16_rotary", "--kernels", "*_8x*")
    assert [x.name for x in asked] == ["bf16_rotary_row_rotary_8x16_v8x1", "bf16_rotary_row_rotary_8x32_v8x1"]


def test_compile_prints_failures_and_exits_with_one(monkeypatch):
    made = [Artifact(golden_manifest().kernels[0], None)]
    monkeypatch.setattr("aot.cli.compile.compile_all", lambda *_: (made, [CompileFailure("k", "why")]))
    result = aot("compile", "--shapes", "shapes.toml", "--limit", "1", "--kernels", "sm100_tgv_*")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "failed: k: why")
    result = aot("compile", "--shapes", "shapes.toml", "--limit", "1", "--kernels", "sm100_tgv_*", "--json")
    found, kernel = json.loads(result.stdout), made[0].kernel
    assert (result.exit_code, found["failures"]) == (1, {"k": "why"})
    assert [(x["name"], x["object_bytes"], x["registers"]) for x in found["kernels"]] == [
        (kernel.name, kernel.object_bytes, kernel.registers)
    ]


def test_a_measuring_that_ends_early_gives_the_runners_code(monkeypatch, tmp_path):
    bundle = type("Bundle", (), {"directory": tmp_path, "num_bytes": 2**20})
    monkeypatch.setattr("aot.cli.tune.make_tuning_bundle", lambda *_: (bundle, [CompileFailure("k", "why")]))
    monkeypatch.setattr("aot.cli.tune.measure_here", lambda *_arguments, **_options: 75)
    monkeypatch.setattr("aot.cli.tune.check_this_machine", lambda *_: None)
    result = aot("tune", "--shapes", "shapes.toml")
    assert (result.exit_code, result.stderr) == (75, "not compiled: k: why\n")
    text = succeed("tune", "--bundle", "b")
    assert text.splitlines()[-1] == f"on the device: python {tmp_path.name}/run.py --out results.sqlite"
    assert json.loads(succeed("tune", "--bundle", "b", "--json")) == {
        "command": f"python {tmp_path.name}/run.py --out results.sqlite",
        "bundle": str(tmp_path),
        "num_bytes": 2**20,
        "not_compiled": {"k": "why"},
    }
    monkeypatch.setattr("aot.cli.tune.measure_here", lambda *_arguments, **_options: 0)
    results = Path("build/tuning/thor/results.sqlite")
    assert json.loads(succeed("tune", "--shapes", "shapes.toml", "--json"))["results"] == str(results)
    text = succeed("tune", "--shapes", "shapes.toml")
    assert text.endswith(f"measured into {results}; next: aot import {results}\n")


NO_GPU = Machine("x86_64", "3.12.3", "2.39", True, "", "", None, [], 8, None, "", None, 0, False, "", "no driver")
H200 = replace(NO_GPU, gpu="NVIDIA H200", compute_capability=(9, 0), num_sms=132, driver="CUDA 13.0", gpu_error="")
THOR_IS = "target thor is (11, 0) on aarch64"


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (NO_GPU, "the device has no usable GPU: no driver"),
        (H200, f"NVIDIA H200 on x86_64 has compute capability (9, 0); {THOR_IS}; give the device's own --target"),
    ],
)
def test_this_machine_is_checked_before_anything_is_compiled(monkeypatch, workplace, machine, message):
    monkeypatch.setattr("aot.tune.tuning.read_machine", lambda: machine)
    before = sorted(workplace.rglob("*"))
    result = aot("tune", "--shapes", "shapes.toml")
    assert result.exit_code == errors.DeviceError.exit_code
    assert result.stderr.splitlines()[-1] == (
        f"aot: error: {message}; or measure elsewhere: --on ssh://user@host, or --bundle DIR"
    )
    assert sorted(workplace.rglob("*")) == before


def test_a_compiler_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(compile_module, "TOOLCHAIN", ("no-such-compiler",))
    compile_module.toolchain_versions.cache_clear()
    try:
        result = aot("compile", "--shapes", "shapes.toml", "--limit", "1", "--kernels", "sm100_tgv_*")
    finally:
        compile_module.toolchain_versions.cache_clear()
    assert result.exit_code == errors.DependencyError.exit_code
    assert result.stderr.startswith("aot: error: cannot compile: ")
    assert result.stderr.endswith(f"no-such-compiler; {errors.REPAIR}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "ratio"),
    some([([], 2.0), (["--prune", "3"], 3.0), (["--selection"], math.inf), (["--selection", "4"], 4.0)], 2),
)
def test_all_kernels_of_a_selection_are_measured_unless_told(monkeypatch, options, ratio):
    if "--selection" in options:
        path = few_committed() / "h200.json.gz"
        options = ["--selection", path, *(["--prune", *options[1:]] if options[1:] else [])]
    requests = []

    def refuse(request, *rest):
        del rest
        requests.append(request)
        raise errors.CompileError("enough")

    monkeypatch.setattr("aot.cli.tune.make_tuning_bundle", refuse)
    monkeypatch.setattr("aot.cli.tune.check_this_machine", lambda *_: None)
    assert (
        aot("tune", "--target", "h200", "--shapes", "shapes.toml", *options).exit_code == errors.CompileError.exit_code
    )
    assert [x.ratio for x in requests] == [ratio]


LEARN = ["--learn-from", "a", "--learn-from", "b"]


@pytest.mark.parametrize(
    ("options", "strategy", "per_problem"),
    [
        ([], None, 24),
        (LEARN, "exhaustive", 24),
        ([*LEARN, "--per-problem", "7"], "exhaustive", 7),
        ([*LEARN, "--strategy", "model"], None, 24),
    ],
)
def test_what_earlier_records_predict_fastest_is_all_measured(monkeypatch, tmp_path, options, strategy, per_problem):
    for name in ("a", "b"):
        (tmp_path / name).write_text("")
    requests = []

    def made(request, device, directory, workplace):
        requests.append((request, device.name, workplace.compilers.num_processes))
        return Bundle(directory, 2**20), []

    monkeypatch.setattr("aot.cli.tune.learn", lambda paths, device: ("learned", [str(x) for x in paths], device.name))
    monkeypatch.setattr("aot.cli.tune.make_tuning_bundle", made)
    lines = succeed("tune", "--target", "h200", "--shapes", "shapes.toml", "--bundle", "b1", *options).splitlines()
    words = f" --strategy {strategy}" if strategy else ""
    assert lines == ["b1: 1.0 MiB", f"on the device: python b1/run.py --out results.sqlite{words}"]
    ((request, target, jobs),) = requests
    assert (target, jobs, request.per_problem) == ("h200", None, per_problem)
    assert request.learned == (("learned", ["a", "b"], "h200") if options else None)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["shapes", "--shapes", "absent.toml"], 3, "absent.toml: No such file or directory; give a path or one of: "),
        (
            ["shapes", "--shapes", "bad.toml"],
            3,
            "bad.toml: m[0]: expected a whole number from 1 to 2147483647, got 0",
        ),
        (
            ["space", "--target", "xavier"],
            4,
            f"no target 'xavier'; there are: {', '.join(target_names())}; see `aot targets`",
        ),
        (["space", "--kernels", "a,,b"], 5, "empty pattern in 'a,,b'; write for example 'sm100_*,-*256x256*'"),
        (["compile", "--kernels", "none"], 5, "no candidate of bf16_kk on thor is left; see `aot space --target thor"),
        (["select", "--record", "absent.gz"], 8, "cannot read the record absent.gz: "),
        (["import", "shapes.toml"], 8, "shapes.toml is no file of SQLite; expected the results of `aot tune` or of a"),
        (["explain", "1", "1", "1", "--selection", "x.json"], 9, "cannot read the selection x.json: "),
        (["explain", "1", "1", "1", "--record", "absent.gz"], 8, "cannot read the record absent.gz: "),
        (
            ["tune", "--shapes", "shapes.toml", "--layout", "kn", "--dtype", "float16", "--shapes", "misses.toml"],
            3,
            "the shape set has no problem of fp16_kn; it has bf16_kk; give --dtype, --layout and --epilogue",
        ),
        (["tune", "--on", "thor"], 13, "cannot read 'thor'; expected ssh://user@host or ssh://user@host:port/folder"),
        (["build", "--selection", "bad.toml"], 9, "bad.toml: not JSON: "),
        (
            ["verify", "shapes.toml"],
            11,
            "shapes.toml is not a wheel: File is not a zip file; build or download it again",
        ),
    ],
)
def test_an_error_has_its_code_and_its_next_step(workplace, arguments, code, message):
    (workplace / "bad.toml").write_text(SHAPES.replace("[1, 4096]", "[0, 4096]"))
    (workplace / "misses.toml").write_text(MISSES)
    before = sorted(workplace.rglob("*"))
    result = aot(*arguments)
    assert result.exit_code == code
    assert result.stderr.startswith(f"aot: error: {message}")
    assert "Traceback" not in result.output
    assert sorted(workplace.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "0", "1", "1"],
        ["explain", "1", "1"],
        ["space", "--dtype", "int8"],
        ["select", "--max-kernels", "0"],
        ["select", "--max-regret", "10%,2%"],
        ["build", "--max-heldout-regret", "2%"],
        ["diff", "absent.json", "absent.json"],
        ["tune", "--prune", "0.5"],
        ["verify", "absent.whl"],
        ["import"],
        ["nonsense"],
    ],
)
def test_a_wrong_usage_exits_with_two(arguments):
    result = aot(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    "kind", [x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, errors.AotError)]
)
def test_every_kind_of_error_exits_with_its_code(monkeypatch, kind):
    def fail():
        raise kind("what, and the next step")

    monkeypatch.setattr(cli_space, "target_names", fail)
    result = aot("targets")
    assert (result.exit_code, result.stdout) == (kind.exit_code, "")
    assert result.stderr == "aot: error: what, and the next step\n"


def test_an_interrupt_says_that_what_was_done_is_kept(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_space, "target_names", interrupt)
    result = aot("targets")
    assert result.exit_code == 130
    assert result.stderr == "\naot: interrupted; what was done is kept, and the same command carries on\n"


def test_an_interrupt_of_a_command_that_keeps_nothing_says_so(monkeypatch, tmp_path):
    def interrupt(_context):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_select, "request_of", interrupt)
    result = aot("select", "-o", str(tmp_path / "found.json"))
    assert result.exit_code == 130
    assert result.stderr == "\naot: interrupted; nothing was written, and the same command begins again\n"
    assert not (tmp_path / "found.json").exists()


def test_an_interrupt_behind_what_was_written_says_that_it_is_kept(monkeypatch, tmp_path):
    def interrupt(*_texts):
        raise KeyboardInterrupt

    path = tmp_path / "found.json"
    monkeypatch.setattr(cli_select, "select", lambda _request: SELECTION)
    monkeypatch.setattr(cli_select, "show", interrupt)
    result = aot("select", "--predicted", "-o", str(path))
    assert result.exit_code == 130
    assert result.stderr == "\naot: interrupted; what was done is kept, and the same command carries on\n"
    assert read_selection(path) == SELECTION


def test_what_an_interrupt_became_in_native_code_is_no_error_of_its_own(monkeypatch):
    def imported():
        raise ImportError("initialization failed")

    monkeypatch.setattr(cli_space, "target_names", imported)
    error = aot("targets")
    assert error.stderr.startswith("aot: error: cannot import a package: initialization failed")
    monkeypatch.setattr(interrupt, "_seen", [signal.SIGTERM])
    result = aot("targets")
    assert (result.exit_code, result.stderr) == (128 + signal.SIGTERM, interrupt.INTERRUPTED)


def test_an_unexpected_error_is_one_line_and_a_file(monkeypatch, tmp_path):
    def fail():
        raise RuntimeError("first\nsecond \x1b[31m")

    monkeypatch.setattr(cli_space, "target_names", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    result = aot("targets")
    (report,) = set(tmp_path.iterdir()) - before
    assert (result.exit_code, result.stdout) == (70, "")
    assert result.stderr == f"aot: internal error: RuntimeError: first; please report it with {report}\n"
    assert "in fail\n" in report.read_text()
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    assert aot("targets").stderr.endswith("please report it with what you did; its traceback could not be written\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(28, "No space left on device", "/x/y"), 16, "/x/y: No space left on device; free disk or memory and"),
        (
            PermissionError(13, "Permission denied", "/x"),
            15,
            "/x: Permission denied; check the path and its permissions",
        ),
        (MemoryError(), 16, "memory ran out; free some, or give a smaller --jobs, and run again"),
        (ModuleNotFoundError("No module named 'ninja'"), 14, "cannot import a package: No module named 'ninja'; `make"),
    ],
)
def test_what_python_raises_for_a_reason_of_the_machine_is_typed(monkeypatch, error, code, message):
    def fail():
        raise error

    monkeypatch.setattr(cli_space, "target_names", fail)
    result = aot("targets")
    assert result.exit_code == code
    assert result.stderr.startswith(f"aot: error: {message}")


def test_what_a_terminal_would_obey_is_escaped():
    result = aot("shapes", "--shapes", "\x1b[31m\x07\u202e.toml")
    assert result.stderr.startswith("aot: error: \\x1b[31m\\x07\\u202e.toml: No such file or directory; give a path")


PACKAGES = (
    "ninja",
    "ziglang",
    "nvidia",
    "elftools",
    "cutlass",
    "quack",
    "torch",
    "triton",
    "tvm_ffi",
    "optuna",
    "cuda",
)
WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from aot.cli.main import main
main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["-h"],
        ["targets"],
        ["shapes"],
        ["space", "--kernels", "sm100_tgv_*"],
        ["smem"],
        ["tune", "-h"],
        ["build", "-h"],
        ["select", "-h"],
    ],
)
def test_no_command_needs_what_only_another_one_needs(arguments):
    command = [sys.executable, "-c", WITHOUT, ",".join(PACKAGES), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("aot: error")) == (0, 0), done.stderr


@pytest.mark.slow
def test_a_missing_package_is_an_error_that_names_it():
    command = [sys.executable, "-c", WITHOUT, "numpy", "select", "--predicted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == errors.DependencyError.exit_code
    assert done.stderr.startswith("aot: error: cannot import a package: ")
    assert done.stderr.endswith(f"; {errors.REPAIR}\n")


@pytest.mark.slow
def test_a_reader_that_ends_ends_the_command_quietly():
    command = f"{sys.executable} -m aot space --list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    some(
        [
            ["verify", "/dev/zero"],
            ["import", "/dev/zero"],
            ["shapes", "--shapes", "/dev/zero"],
            ["diff", "/dev/zero", "/dev/zero"],
            ["select", "--record", "/dev/zero"],
            ["tune", "--bundle", "b", "--calibration", "/dev/zero"],
            ["tune", "--bundle", "b", "--selection", "/dev/zero"],
            ["report", "--search", "/dev/zero"],
        ],
        3,
    ),
)
def test_a_file_without_an_end_is_an_error(arguments):
    result = aot(*arguments)
    assert result.exit_code in {errors.PackageError.exit_code, *range(3, 10)}, result.output
    assert result.stderr.startswith(("aot: error: ", "the selection is the committed one"))


def test_a_path_that_is_no_text_is_printed_all_the_same(workplace):
    name = os.fsdecode(b"\xff.jsonl.gz")
    key = KernelKey(KK, next(x.candidate for x in golden_manifest().kernels if x.candidate.gemm.swap_ab))
    with open_store(workplace / "results.sqlite") as store:
        run, problem = store.add_run("h200", 1, CONDITIONS), problem_of(16, 4096, 4096)
        number = store.kernel_id(TunedKernel(key, "ab" * 32))
        store.add_measurement(run, number, Measurement(key, problem, 9.0, 8.0, 10.0, 7, 1e-3))
        store.finish(run, problem)
    text = succeed("import", "results.sqlite", "--record", name)
    assert text.splitlines()[-1].startswith("wrote \\udcff.jsonl.gz; next: ")
    assert (workplace / name).exists()


@pytest.mark.slow
def test_an_output_that_is_closed_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m aot targets >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_summary_is_cut():
    text = succeed("-h")
    assert "..." not in text.partition("Commands:")[2]
    for name, (place, summary) in COMMANDS.items():
        assert f"  {name} " in text
        assert summary.endswith(".")
        assert max(map(len, text.splitlines())) <= 80
        module, _, attribute = place.partition(":")
        assert getattr(importlib.import_module(module), attribute).name == name


def test_problems_that_no_kernel_takes_are_told_before_anything_is_compiled(monkeypatch, workplace):
    monkeypatch.setattr("aot.cli.compile.compile_all", lambda *_: pytest.fail("compiled"))
    of_fp8 = SHAPES.replace('dtypes = ["bfloat16"]', 'operations = ["e4m3_bf16_kk"]').replace('layouts = ["kk"]\n', "")
    of_fp8 = of_fp8.replace("[1, 4096]", "[16, 4096]")
    (workplace / "odd.toml").write_text(of_fp8.replace("n = 4096", "n = 7"))
    result = aot("tune", "--shapes", "odd.toml", "--bundle", "b")
    assert result.exit_code == errors.ShapeFileError.exit_code
    assert result.stderr == (
        "aot: error: there is nothing to tune: 2 of 2 problems are not tuned: n 7 is not a multiple of 8; every wheel "
        "computes them with its general kernel, which is not timed; pad the extents, or add problems "
        "to --shapes\n"
    )
    more = 'weights = [{ name = "a", n = 7, k = 4096 }, '
    (workplace / "odd.toml").write_text(of_fp8.replace("weights = [", more))
    monkeypatch.setattr("aot.cli.tune.make_tuning_bundle", raise_enough)
    result = aot("tune", "--shapes", "odd.toml", "--bundle", "b")
    assert result.stderr == "2 of 4 problems are not tuned: n 7 is not a multiple of 8\naot: error: enough\n"


def raise_enough(*_):
    raise errors.CompileError("enough")


@pytest.mark.slow
def test_a_selection_of_another_target_is_not_tuned(tmp_path):
    path = pipeline.committed_selection(load_target("h200"))
    result = aot("tune", "--target", "thor", "--selection", path, "--bundle", "b")
    assert result.exit_code == errors.SelectionError.exit_code
    assert result.stderr == f"aot: error: {path} is for h200, --target is thor; give --target h200\n"


@pytest.mark.parametrize("target", ["../../../evil", "xavier", ""])
def test_results_of_an_unknown_target_are_not_imported(tmp_path, target):
    with open_store(tmp_path / "results.sqlite") as store:
        run = store.add_run(target, 1, CONDITIONS)
        problem, key = problem_of(16, 4096, 4096), KernelKey(KK, golden_manifest().kernels[2].candidate)
        number = store.kernel_id(TunedKernel(key, "ab"))
        store.add_measurement(run, number, Measurement(key, problem, 9.0, 8.0, 10.0, 7, 1e-3))
        store.finish(run, problem)
    before = sorted(tmp_path.rglob("*"))
    for words in ([], ["--record", "mine.jsonl.gz"]):
        result = aot("import", "results.sqlite", *words)
        assert result.exit_code in (errors.TargetError.exit_code, errors.StoreError.exit_code), result.output
        assert f"there are: {', '.join(target_names())}" in result.stderr or "target" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before
