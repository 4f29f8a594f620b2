"""The command as users meet it: what it prints, its exit codes, and that it leaves nothing half-written."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from twins import CONDITIONS, problem_of

from aot import cli, cli_options, errors, pipeline, shipping
from aot.artifact import Artifact, CompileFailure
from aot.candidate import KernelKey
from aot.measurement import Measurement
from aot.selection import HeldOut, read_selection, write_selection
from aot.shape_set import shape_set_names
from aot.store import open_store
from aot.tuning_set import TunedKernel
from tests.golden.manifest import KK, golden_manifest

SHAPES = """version = 1
dtypes = ["bfloat16"]
layouts = ["kk"]
m = [1, 4096]
[[model]]
name = "tiny"
weights = [{ name = "w", n = 4096, k = 4096 }]
"""
MISSES = """version = 1
[[model]]
name = "grid"
dtypes = ["bfloat16"]
layouts = ["kk"]
weights = [{ name = "w", n = 4096, k = 4096 }]
m = [3]
counts = [2]
"""
PREDICTED = ["--kernels", "*_128x128_c1x1_clc,*_64x32_c1x1_clc_swap", "--max-kernels", "2"]


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.toml").write_text(SHAPES)
    return tmp_path


def aot(*arguments):
    return CliRunner().invoke(cli.main, [str(x) for x in arguments])


def succeed(*arguments):
    result = aot(*arguments)
    assert (result.exit_code, result.exception) == (0, None), result.output
    return result.stdout


@pytest.fixture
def selection():
    """Select for Thor by the model; gives the path."""
    succeed("select", "--shapes", "shapes.toml", "--predicted", *PREDICTED)
    return cli_options.SELECTIONS / "thor.json"


def test_help_and_version():
    commands = ["targets", "shapes", "space", "compile", "tune", "import", "select", "build", "explain", "verify"]
    commands += ["calibrate", "diff", "report", "search"]
    listed = succeed("-h").partition("Commands:\n")[2].splitlines()
    assert sorted(line.split()[0] for line in listed if line.startswith("  ") and line[2] != " ") == sorted(commands)
    for command in commands:
        assert f"Usage: main {command} " in succeed(command, "-h")
    assert succeed("--version").endswith(f"version {pipeline.toolchain_version()}\n")


def test_targets():
    assert [line.split()[:2] for line in succeed("targets").splitlines()[2:]] == [
        ["h200", "sm_90a"],
        ["thor", "sm_110a"],
    ]


def test_shapes():
    result = aot("shapes", "--shapes", "shapes.toml")
    assert result.stdout.splitlines()[2:] == ["tiny   w       4096  4096  1 4096", "2 problems for each of bf16_kk"]
    assert result.stderr == f"shipped shape sets: {', '.join(shape_set_names())}\n"
    lines = succeed("shapes", "--shapes", "shapes.toml", "--problems").splitlines()
    assert lines[2].split() == ["bf16_kk", "1", "4096", "4096", "0.03", "33.57"]


def test_space():
    lines = succeed("space", "--target", "thor", "--kernels", "sm100_tgv_*").splitlines()
    assert lines[-1] == "sm100_tgv         12     3  3 shared memory exceeded"
    text = succeed("space", "--target", "thor", "--explain")
    assert "sm100_tgv: 3 out: shared memory exceeded\n    sm100_tgv_64x16_c1x1_st12_direct_swap needs 246,784" in text
    rows = [line.split() for line in succeed("space", "--list", "--kernels", "*64x8_*st8_*").splitlines()]
    assert ["sm100_tgv_64x8_c1x1_st8_direct_swap", "in", "148,480", "B,", "8", "stages"] in rows


def test_select_explain(selection):
    chosen = read_selection(selection)
    assert (chosen.target, chosen.provenance, chosen.record) == ("thor", "predicted", "cost-model-v1")
    assert [x.name for x in selection.parent.iterdir()] == ["thor.json"]
    text = succeed("explain", "1", "4096", "4096")
    assert text.splitlines()[0] == "bf16_kk m1 n4096 k4096"
    assert "tier 1: ladder of (n 4096, k 4096), bucket m <= 1 of 1, " in text
    assert "us predicted for the bucket's upper edge" in text
    assert "  limit      122.97 us for this problem, by memory (0.273 TB/s)" in text
    assert "of the limit of the bucket's upper edge" in text
    assert "  bigger tiles of the family, all else equal" in text
    assert "fallback: a leading stride" in succeed("explain", "1", "4096", "4095", "--selection", selection)


def test_explain_selects_anew_where_nothing_was_selected(monkeypatch, workplace):
    monkeypatch.setattr(shipping, "shipped_selection", lambda _: None)
    before = sorted(workplace.rglob("*"))
    result = aot("explain", "1", "4096", "4096", "--shapes", "shapes.toml")
    assert result.stderr.startswith("thor has no committed selection: selecting anew\n")
    assert "us predicted for the bucket's upper edge" in result.stdout
    assert sorted(workplace.rglob("*")) == before


def test_diff(selection, workplace):
    old = selection.rename(workplace / "old.json")
    assert succeed("diff", old, old).splitlines()[0].endswith("entries have another kernel (0.00%)")
    # What is shipped is what ties go to: selecting again changes nothing.
    succeed("select", "--shapes", "shapes.toml", "--predicted", "--shipped", old, *PREDICTED)
    assert selection.read_bytes() == old.read_bytes()
    succeed("select", "--shapes", "shapes.toml", "--predicted", *PREDICTED[:-1], "1")
    lines = succeed("diff", old, selection, "--show", "1").splitlines()
    kernels = [{key.name for key in read_selection(path).kernels} for path in (old, selection)]
    added, dropped = ", ".join(sorted(kernels[1] - kernels[0])), ", ".join(sorted(kernels[0] - kernels[1]))
    assert lines[1:3] == [f"kernels added: {added or 'none'}", f"kernels dropped: {dropped or 'none'}"]
    assert dropped
    assert len(lines) == 3 + 2 + 1
    assert not lines[0].endswith("(0.00%)")
    assert lines[-1].split()[-1] == "-"  # no record of Thor, so no cost


def test_a_selection_whose_rounding_costs_too_much_is_not_built(selection):
    chosen = read_selection(selection)
    scored = HeldOut(chosen.table.sections[0].operation, 2, 9, 0, 0.03, 0.2, 0.03, 0.2, "bf16_kk m1 n8 k8")
    write_selection(selection, replace(chosen, heldout=(scored,)))
    result = aot("build", "--target", "thor", "--selection", selection)
    assert result.exit_code == 9
    assert result.stderr == (
        "aot: error: bf16_kk, tier 2: on 9 held-out problems rounding costs 3.00% in the mean and 20.0% at worst "
        "(bf16_kk m1 n8 k8); expected at most 2.0% and 25.0%; tune more problems near it and select again, or raise "
        "--max-heldout-regret\n"
    )


def test_import_and_select(tmp_path):
    kernel = KernelKey(KK, next(x.candidate for x in golden_manifest().kernels if x.candidate.split_k > 1))
    candidate = replace(kernel.candidate, family="sm90_quack", tile_m=128, tile_n=128, schedule="pingpong")
    key = KernelKey(KK, replace(candidate, split_k=1, split_k_mode="none"))
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
    text = succeed("select", "--target", "h200", "--record", "mine.jsonl.gz", "-o", "out/s.json")
    assert text.splitlines()[0] == "h200: 2 kernels, measured (mine)"
    assert "9.0 us measured" in succeed("explain", "--selection", "out/s.json", "16", "4096", "4096")


def test_compile_prints_failures_and_exits_with_one(monkeypatch):
    made = [Artifact(golden_manifest().kernels[0], None)]
    monkeypatch.setattr(pipeline, "compile_all", lambda *_: (made, [CompileFailure("k", "why")]))
    result = aot("compile", "--shapes", "shapes.toml", "--limit", "1", "--kernels", "sm100_tgv_*")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "failed: k: why")


def test_a_measuring_that_ends_early_gives_the_runners_code(monkeypatch, tmp_path):
    bundle = type("Bundle", (), {"directory": tmp_path, "num_bytes": 2**20})
    monkeypatch.setattr(pipeline, "make_tuning_bundle", lambda *_: (bundle, [CompileFailure("k", "why")]))
    monkeypatch.setattr(pipeline, "measure", lambda *_: 75)
    result = aot("tune", "--shapes", "shapes.toml")
    assert (result.exit_code, result.stderr) == (75, "not compiled: k: why\n")
    text = succeed("tune", "--bundle", "b")
    assert text.splitlines()[-1] == f"on the device: python {tmp_path.name}/run.py --out results.sqlite"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["shapes", "--shapes", "absent.toml"], 3, "absent.toml: No such file or directory; give a path or one of: "),
        (["shapes", "--shapes", "bad.toml"], 3, "bad.toml:4: `m` is 0; expected a whole number from 1 to 2147483647"),
        (["space", "--target", "orin"], 4, "no target 'orin'; there are: h200, thor; see `aot targets`"),
        (["space", "--kernels", "a,,b"], 5, "empty pattern in 'a,,b'; write for example 'sm100_*,-*256x256*'"),
        (["compile", "--kernels", "none"], 5, "no candidate of bf16_kk on thor is left; see `aot space --target thor"),
        (["select", "--record", "absent.gz"], 8, "cannot read the record absent.gz: "),
        (["import", "shapes.toml"], 8, "shapes.toml: file is not a database; if the file is damaged, move it away and"),
        (["explain", "1", "1", "1", "--selection", "x.json"], 9, "cannot read the selection x.json: "),
        (["explain", "1", "1", "1", "--record", "absent.gz"], 8, "cannot read the record absent.gz: "),
        (
            ["tune", "--shapes", "shapes.toml", "--layout", "kn", "--dtype", "float16", "--shapes", "misses.toml"],
            3,
            "the shape set has no problem of fp16_kn; it has bf16_kk; give --dtype and --layout",
        ),
        (["tune", "--on", "thor"], 13, "cannot read 'thor'; expected ssh://user@host or ssh://user@host:port/folder"),
        (["build", "--selection", "bad.toml"], 9, "cannot read the selection bad.toml: "),
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

    monkeypatch.setattr(cli, "target_names", fail)
    result = aot("targets")
    assert (result.exit_code, result.stdout) == (kind.exit_code, "")
    assert result.stderr == "aot: error: what, and the next step\n"


def test_an_interrupt_says_that_what_was_done_is_kept(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "target_names", interrupt)
    result = aot("targets")
    assert result.exit_code == 130
    assert result.stderr == "aot: interrupted; what was done is kept, and the same command carries on\n"


def test_a_selection_of_another_target_is_not_built(selection):
    result = aot("build", "--target", "h200", "--selection", selection)
    assert result.exit_code == 1
    assert result.stderr == "aot: error: the selection is for thor, --target is h200; give --target thor\n"


def test_a_failed_selection_leaves_the_old_one(selection):
    before = selection.read_bytes()
    assert aot("select", "--predicted", "--kernels", "*_direct*", "--shapes", "shapes.toml").exit_code in (5, 9)
    assert selection.read_bytes() == before
    document = json.loads(before)
    document["table"]["sections"][0]["fallback"] = 99
    selection.write_text(json.dumps(document))
    result = aot("explain", "1", "1", "1")
    assert (result.exit_code, "bf16_kk: the table names kernel 99 of" in result.stderr) == (9, True)
