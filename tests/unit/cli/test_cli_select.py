"""The commands that decide and build, as users meet them: select, diff, build, explain."""

import hashlib
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from aot.cli import options as cli_options
from aot.cli import request as cli_request
from aot.cli import selection as cli_selection
from aot.cli.build import said
from aot.cli.request import Request, select
from aot.core.epilogue import Epilogue
from aot.core.errors import SelectionError
from aot.core.execution import KernelState
from aot.core.operation import Operation
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target, target_names
from aot.families import families
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.sizes import usual_problems
from aot.package.wheel import BuiltWheel, shared_kernels
from aot.select import pipeline
from aot.select.coverage import coverage_of
from aot.select.portfolio.objective import SelectionLimits
from aot.select.selection import HeldOut, read_selection, write_selection
from aot.select.table import sections as table
from tests.few_committed import few_committed as few_committed_folder
from tests.unit.invoked import SHAPES, aot, coarse_grid, one_unaligned, succeed
from tests.unit.selections import SELECTION

pytestmark = pytest.mark.slow

PREDICTED = ["--kernels", "*_128x128_c1x1_clc,*_64x32_c1x1_clc_swap", "--max-kernels", "2"]


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    coarse_grid(monkeypatch)
    (tmp_path / "shapes.toml").write_text(SHAPES)
    return tmp_path


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """Select for Thor by the model, once; gives what was written."""
    folder = tmp_path_factory.mktemp("predicted")
    (folder / "shapes.toml").write_text(SHAPES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        coarse_grid(patch)
        succeed("select", "--shapes", "shapes.toml", "--predicted", *PREDICTED)
    return (folder / cli_options.SELECTIONS / "thor.json").read_bytes()


@pytest.fixture(scope="module")
def few_written():
    return few_committed_folder()


@pytest.fixture
def few_committed(few_written, monkeypatch):
    """Have that be the committed selection: the whole one takes seconds wherever it is read, joined or written."""
    monkeypatch.setattr(pipeline, "COMMITTED", few_written)


@pytest.fixture
def selection(predicted):
    """Give the path of a selection where `aot select` leaves it."""
    path = cli_options.SELECTIONS / "thor.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(predicted)
    return path


def test_select_explain(selection):
    chosen = read_selection(selection)
    assert (chosen.target, chosen.provenance, chosen.record) == ("thor", "predicted", "cost-model-v1")
    assert [x.name for x in selection.parent.iterdir()] == ["thor.json"]
    text = succeed("explain", "1", "4096", "4096")
    assert text.splitlines()[0] == "bf16_kk m1 n4096 k4096"
    assert "tier 1: ladder of (n 4096, k 4096), bucket m 1 to 1, 1 of " in text
    assert "us predicted for the bucket's upper edge" in text
    assert "  roofline   122.97 us for this problem, by memory (0.273 TB/s)" in text
    assert "of the roofline of the bucket's upper edge" in text
    assert "  bigger tiles of the family, all else equal" in text
    assert "fallback   k 4095 is not a multiple of 8" in succeed(
        "explain", "1", "4096", "4095", "--selection", selection
    )


def test_explain_selects_anew_where_nothing_was_selected(monkeypatch, workplace):
    monkeypatch.setattr(pipeline, "committed_selection", lambda _: None)
    before = sorted(workplace.rglob("*"))
    result = aot("explain", "1", "4096", "4096", "--shapes", "shapes.toml")
    assert result.stderr.startswith("thor has no committed selection: selecting by the cost model\n")
    assert "us predicted for the bucket's upper edge" in result.stdout
    assert sorted(workplace.rglob("*")) == before


def test_diff(selection, workplace):
    old = selection.rename(workplace / "old.json")
    assert succeed("diff", old, old).splitlines()[0].endswith("entries have another kernel (0.00%)")
    # What is shipped is what ties go to: selecting again changes nothing.
    succeed("select", "--shapes", "shapes.toml", "--predicted", "--incumbent", old, *PREDICTED)
    first, again = (replace(read_selection(x), runs=None) for x in (old, selection))
    assert first == again
    succeed("select", "--shapes", "shapes.toml", "--predicted", *PREDICTED[:-1], "1")
    lines = succeed("diff", old, selection, "--show", "1").splitlines()
    kernels = [{key.name for key in read_selection(path).kernels} for path in (old, selection)]
    added, dropped = ", ".join(sorted(kernels[1] - kernels[0])), ", ".join(sorted(kernels[0] - kernels[1]))
    assert lines[1:3] == [f"kernels added: {added or 'none'}", f"kernels dropped: {dropped or 'none'}"]
    assert dropped
    assert len(lines) == 3 + 2 + 1
    assert not lines[0].endswith("(0.00%)")
    assert lines[-1].split()[-1] == "-"  # no record of Thor, so no cost


def named_rows(path):
    """Give what each operation's ladders name, by kernel."""
    selection = read_selection(path)
    return {
        section.operation: [(x.n, x.k, [selection.kernels[row.kernel] for row in x.rows]) for x in section.ladders]
        for section in selection.table.sections
    }


def test_operations_that_are_not_selected_are_kept(selection, workplace):
    old, aside, again = selection.rename(workplace / "old.json"), workplace / "aside.json", workplace / "again.json"
    asked = ["select", "--shapes", "shapes.toml", "--predicted", "--operations", "bf16_kk_bias", *PREDICTED[:-1], "1"]
    succeed(*asked, "-o", aside)
    succeed(*asked, "--keep", old)
    before, alone = named_rows(old), named_rows(aside)
    assert named_rows(selection) == before | alone
    assert len(before | alone) == len(before) + len(alone)
    assert read_selection(selection).coverage == read_selection(old).coverage
    # What is selected takes the place of the kept selection's own, which may be all of it.
    succeed(*asked, "--keep", aside, "-o", again)
    assert named_rows(again) == alone


def test_a_selection_of_another_target_is_not_kept(selection):
    chosen = read_selection(selection)
    write_selection(selection, replace(chosen, target="thor_6sm"))
    result = aot("select", "--shapes", "shapes.toml", "--predicted", *PREDICTED, "--keep", selection)
    assert result.exit_code == 9
    assert result.stderr == (
        f"aot: error: {selection} is of thor_6sm, and thor is selected for; give --keep a selection of thor, or "
        "--target thor_6sm\n"
    )


def test_a_selection_is_kept_in_its_own_place(selection):
    before = named_rows(selection)
    asked = ["select", "--shapes", "shapes.toml", "--predicted", "--operations", "bf16_kk_bias", *PREDICTED[:-1], "1"]
    succeed(*asked, "--keep", selection, "-o", selection)
    after = named_rows(selection)
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()


def test_a_file_that_is_no_selection_is_not_kept_and_stays(selection):
    selection.write_text("{}")
    result = aot("select", "--shapes", "shapes.toml", "--predicted", *PREDICTED, "--keep", selection, "-o", selection)
    assert result.exit_code == 9
    assert result.stderr.endswith("; run `aot select` again, or give another file\n")
    assert selection.read_text() == "{}"


def test_only_what_is_asked_for_is_taken_of_another_targets_selection(selection, monkeypatch):
    monkeypatch.setattr(pipeline, "select_measured", lambda records, target, objective, *_: objective.like)
    asked = ["select", "--shapes", "shapes.toml", "--predicted", "--operations", "bf16_kk_bias", *PREDICTED[:-1], "1"]
    succeed(*asked, "--keep", selection, "-o", selection)
    own, *others = read_selection(selection).operations
    assert others
    request = Request(
        load_target("thor_6sm"), "shapes.toml", is_default_shapes=False, records=(selection,), like=selection
    )
    assert select(replace(request, heldout="", operations=(own,))).operations == (own,)
    with pytest.raises(SelectionError, match="has no table of int8_bf16_kk; give --operations some of what it has"):
        select(replace(request, heldout="", operations=(own, Operation.INT8_BF16_KK)))


def test_a_selection_whose_rounding_costs_too_much_is_not_built(selection):
    chosen = read_selection(selection)
    scored = HeldOut(chosen.table.sections[0].operation, 2, 9, 0, 0.04, 0.2, 0.04, 0.2, "bf16_kk m1 n8 k8")
    write_selection(selection, replace(chosen, heldout=(scored,)))
    result = aot("build", "--target", "thor", "--selection", selection)
    assert result.exit_code == 9
    assert result.stderr == (
        "aot: error: bf16_kk, tier 2: on 9 held-out problems the bucketing loss is 4.00% in the mean and 20.0% at "
        "worst (bf16_kk m1 n8 k8); expected at most 3.0% and 100.0%; tune more problems near it and select again, or "
        "raise --max-heldout-regret\n"
    )


def test_a_selection_of_another_target_is_not_built(selection):
    result = aot("build", "--target", "h200", "--selection", selection)
    assert result.exit_code == 9
    assert result.stderr == "aot: error: the selection is for thor, --target is h200; give --target thor\n"


def test_a_failed_selection_leaves_the_old_one(selection):
    before = selection.read_bytes()
    assert aot("select", "--predicted", "--kernels", "none", "--shapes", "shapes.toml").exit_code == 5
    assert selection.read_bytes() == before
    document = json.loads(before)
    document["table"]["sections"][0]["fallback"] = 99
    selection.write_text(json.dumps(document))
    result = aot("explain", "1", "1", "1")
    assert (result.exit_code, "bf16_kk: the fallback is kernel 99; there are" in result.stderr) == (9, True)


def test_options_show_the_defaults_of_what_they_set():
    text = " ".join(succeed("select", "-h").split())
    assert f"[default: {SelectionLimits.max_kernels}; x>=1]" in text
    assert f"[default: {SelectionLimits.max_layout_kernels}; x>=4]" in text
    assert "[default: (3%,100%)]" in " ".join(succeed("build", "-h").split())


ALIGNED = "2 problems: 0 measured, 2 predicted (first bf16_kk m1 n4096 k4096)\n"


@pytest.fixture
def built(monkeypatch):
    """Replace compiling and linking; gives what was to be built."""
    calls = []

    def build(sources, dist, workplace, **more):
        calls.append(([x.selection for x in sources], ",".join(x.target.name for x in sources), more))
        path = dist / "x.whl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"wheel")
        tables = [SimpleNamespace(**vars(x.selection)) for x in sources]
        stated = {"version": "0.1.0+thor", "arch": sources[0].target.arch, "tables": tables}
        kernels = [SimpleNamespace(name=x.name, state=KernelState.COMPILED) for x in shared_kernels(sources)]
        manifest = SimpleNamespace(all_kernels=kernels, with_objects=kernels, executions=(), kernels=(), **stated)
        return BuiltWheel(path, manifest)

    monkeypatch.setattr("aot.cli.build.make_wheel", build)
    return calls


def test_every_command_that_chooses_ends_with_how_the_problems_are_answered(selection, built):
    assert succeed("select", "--predicted", "--shapes", "shapes.toml", *PREDICTED).endswith(f"\n{ALIGNED}")
    assert succeed("build", "--selection", selection).endswith(f"\n{ALIGNED}")
    assert built[0][1] == "thor"
    assert succeed("explain", "1", "4096", "4096").endswith(
        "\n1 problem: 0 measured, 1 predicted (first bf16_kk m1 n4096 k4096)\n"
    )


def test_a_build_says_for_programs_what_it_made(selection, built):
    result = aot("build", "--selection", selection, "--json")
    found = json.loads(result.stdout)
    assert (found["wheel"], found["num_bytes"], found["arch"]) == ("dist/x.whl", 5, "sm_110a")
    assert found["kernels"] == [x.name for x in read_selection(selection).kernels]
    assert found["tables"]["thor"]["provenance"] == "predicted"
    assert found["tables"]["thor"]["coverage"]["num_predicted"] == 2
    assert "kernels, predicted" in result.stderr


def test_what_is_not_measured_is_not_built_where_that_is_asked(selection, built):
    result = aot("build", "--selection", selection, "--require-measured")
    assert (result.exit_code, result.stdout, built) == (17, "", [])
    assert result.stderr.startswith(f"aot: error: --require-measured: {ALIGNED[:-1]}; measure the rest (aot tune")


def test_what_cannot_be_measured_is_refused_before_anything_is_selected(built, monkeypatch):
    monkeypatch.setattr(pipeline, "select_kernels", None)
    result = aot("build", "--predicted", "--require-measured")
    assert (result.exit_code, built) == (2, [])
    assert "the cost model selects for thor, so that nothing is measured; leave it out" in " ".join(
        result.stderr.split()
    )


@pytest.mark.usefixtures("few_committed")
def test_the_committed_selection_is_measured_and_says_so(built):
    result = aot("build", "--target", "h200")
    assert result.exit_code == 0, result.output
    coverage = read_selection(pipeline.COMMITTED / "h200.json.gz").coverage
    assert result.stdout.splitlines()[-1] == coverage.text
    assert (coverage.num_problems, coverage.num_measured > 300) == (408, True)
    assert f"the selection is the committed one, {pipeline.COMMITTED / 'h200.json.gz'}\n" in result.stderr
    assert "made here" not in result.stderr


@pytest.mark.usefixtures("few_committed")
def test_several_targets_give_one_wheel_with_a_table_for_each(built, selection):
    few = ["--kernels", "sm90_quack_128x128_c1x1_cooperative,sm90_quack_64x16_c1x1_pingpong_swap", "--max-kernels", "2"]
    paths = [selection.with_name(f"{name}.json") for name in ("h200", "h100")]
    succeed("select", "--predicted", "--shapes", "shapes.toml", "--target", "h200", *few, "-o", paths[0])
    write_selection(paths[1], replace(read_selection(paths[0]), target="h100"))
    text = succeed("build", *(word for path in paths for word in ("--selection", path)))
    assert [x.target for x in built[0][0]] == ["h100", "h200"]
    assert text.splitlines()[-4:] == [
        f"dist/x.whl: 0.00 MiB, {len(built[0][0][0].kernels)} kernels for 2 tables",
        "3 of 3 kernels compiled only",
        f"h100: {ALIGNED[:-1]}",
        f"h200: {ALIGNED[:-1]}",
    ]
    # A target without a selection of its own gets the committed one, or that of the cost model.
    mixed = aot("build", "--target", "h200,h100", "--selection", paths[1], "--committed")
    assert (mixed.exit_code, built[1][1]) == (0, "h100,h200")
    assert f"the selection is the committed one, {pipeline.COMMITTED / 'h200.json.gz'}\n" in mixed.stderr
    assert f"h200: {read_selection(pipeline.COMMITTED / 'h200.json.gz').coverage.text}" in mixed.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--target", "h200,thor"], 11, "h200 is sm_90a on manylinux_2_28_x86_64, thor is sm_110a on manylinux_2_28_a"),
        (["--target", "h200,h200"], 11, "the target h200 is given twice; expected each once"),
        (
            ["--target", "h200,xavier"],
            4,
            f"no target 'xavier'; there are: {', '.join(target_names())}; see `aot targets`",
        ),
        (
            ["--target", "h200,"],
            4,
            f"no target ''; there are: {', '.join(target_names())}; see `aot targets`",
        ),
        (
            ["--target", "h100,h200", "--selection", "thor.json"],
            9,
            "the selection is for thor, --target is h100,h200; ",
        ),
        (
            ["--selection", "thor.json", "--selection", "thor.json"],
            9,
            "2 selections are for thor; give one for each ta",
        ),
    ],
)
def test_targets_that_no_one_wheel_can_be_for_are_refused_first(built, selection, words, code, message):
    found = [str(selection) if x == "thor.json" else x for x in words]
    result = aot("build", *found)
    assert (result.exit_code, built) == (code, [])
    assert result.stderr.startswith(f"aot: error: {message}")


@pytest.mark.usefixtures("few_committed")
def test_what_a_committed_selection_has_of_the_operations_stays_as_it_is(built):
    result = aot("build", "--target", "h200", "--operations", "bf16_kk,bf16_m?")
    assert result.exit_code == 0, result.output
    ((found,), _, _) = built[0]
    committed = read_selection(pipeline.COMMITTED / "h200.json.gz")
    names = ["bf16_kk", "bf16_mk", "bf16_mn"]
    assert list(dict.fromkeys(x.operation.tag for x in found.table.sections)) == names
    assert found.provenance == "measured"
    assert list(found.regrets) == [x for x in committed.regrets if x.operation in names]
    kept = {key for key in committed.kernels if key.operation in names}
    assert set(found.kernels) == kept
    section = found.table.sections[0]
    before = committed.table.section(section.operation)
    times = [[row.time_us for x in y.ladders for row in x.rows] for y in (section, before)]
    assert times[0] == times[1]
    assert " measured, " in result.stdout.splitlines()[-1]


@pytest.mark.usefixtures("few_committed")
def test_epilogues_add_to_the_operations(built):
    result = aot("build", "--target", "h200", "--epilogues", "gelu,residual", "--operations", "bf16_kk")
    assert result.exit_code == 0, result.output
    ((found,), _, _) = built[0]
    aligned = [x.operation.tag for x in found.table.sections if x.is_plain]
    assert aligned == ["bf16_kk", "bf16_kk_gelu", "bf16_kk_residual"]


def test_epilogues_that_mean_nothing_are_refused(built, selection):
    result = aot("build", "--target", "h200", "--epilogues", "swish")
    assert "no epilogue is called 'swish'; expected of bias, relu" in result.stderr
    assert "--epilogues means nothing" in aot("build", "--selection", selection, "--epilogues", "gelu").stderr
    assert built == []


@pytest.mark.walk
@pytest.mark.usefixtures("few_committed")
def test_what_it_has_not_is_selected_for_and_says_predicted(built, monkeypatch):
    asked = []

    def records_for(operations, target, records):
        asked.append([x.tag for x in operations])
        return {None: list(operations)}

    monkeypatch.setattr(pipeline, "records_for", records_for)
    monkeypatch.setattr(pipeline, "committed_selections", lambda _: [pipeline.COMMITTED / "h200.json.gz"])
    monkeypatch.setattr(families()["sm90_quack"], "epilogues", tuple(Epilogue))
    monkeypatch.setattr(families()["simt"], "epilogues", tuple(Epilogue))
    for name, edges in (("FINE_M", (16, 8192)), ("FINE_GRID_M", (16, 8192)), ("FINE_N", (512,)), ("FINE_K", (512,))):
        monkeypatch.setattr(table, name, edges)
    monkeypatch.setattr(table, "BROAD_N", ())
    one_unaligned(monkeypatch)
    result = aot("build", "--target", "h200", "--operations", "bf16_kk,bf16_kk_silu", "--shapes", "shapes.toml")
    assert result.exit_code == 0, result.output
    assert asked == [["bf16_kk_silu"]]
    ((found,), _, _) = built[0]
    plain, silu = (x for x in found.table.sections if not x.loads)
    assert [x.operation.tag for x in (plain, silu)] == ["bf16_kk", "bf16_kk_silu"]
    assert {row.provenance for x in silu.ladders for row in x.rows} == {"predicted"}
    assert "measured" in {row.provenance for x in plain.ladders for row in x.rows}
    assert "bf16_kk_silu: by the cost model\n" in result.stderr
    unaligned = {i for x in found.table.sections if x.loads for column in x.grid.columns for i in column.kernels}
    kernels = [key for i, key in enumerate(found.kernels) if key.operation == silu.operation and i not in unaligned]
    assert len(kernels) <= 24 + 1


@pytest.mark.walk
@pytest.mark.usefixtures("few_committed")
def test_what_a_committed_selection_has_a_sibling_of_is_not_selected_anew(built, monkeypatch):
    asked = []
    monkeypatch.setattr(pipeline, "records_for", lambda operations, *_: asked.append([*operations]) or {})
    result = aot("build", "--target", "h200", "--operations", "bf16_kk_residual,fp16_kk_residual,bf16_kk_gelu_tanh")
    assert result.exit_code == 0, result.output
    assert asked == [[]]
    assert "bf16_kk_gelu_tanh: the kernels and the table of bf16_kk_gelu\n" in result.stderr
    assert "fp16_kk_residual: the kernels and the table of bf16_kk_residual\n" in result.stderr
    ((found,), _, _) = built[0]
    provenances = {x.operation.tag: {row.provenance for y in x.ladders for row in y.rows} for x in found.table.sections}
    assert provenances["fp16_kk_residual"] == provenances["bf16_kk_gelu_tanh"] == {"predicted"}
    assert "measured" in provenances["bf16_kk_residual"]
    kernels = {
        tag: {x.candidate for x in found.kernels if x.operation.tag == tag}
        for tag in ("bf16_kk_residual", "fp16_kk_residual")
    }
    assert kernels["bf16_kk_residual"] == kernels["fp16_kk_residual"]


@pytest.mark.usefixtures("few_committed")
def test_an_operation_that_was_timed_itself_is_selected_by_its_times(built, monkeypatch):
    timed = Operation.FP16_KK_RESIDUAL
    monkeypatch.setattr(pipeline, "timed_operations", lambda *_: {timed})
    asked = []
    monkeypatch.setattr(pipeline, "records_for", lambda operations, *_: asked.append([*operations]) or {})
    aot("build", "--target", "h200", "--operations", "bf16_kk,fp16_kk_residual")
    assert asked == [[timed]]


@pytest.mark.usefixtures("few_committed")
def test_what_was_selected_here_last_is_built_and_the_committed_where_that_is_asked(built, selection):
    newer, committed = selection.with_name("h200.json"), pipeline.COMMITTED / "h200.json.gz"
    write_selection(newer, replace(read_selection(committed), record="mine"))
    said = f"the selection is {newer}, made here last; aot build --committed ships {committed} instead"
    for words in (["build", "--target", "h200"], ["explain", "--target", "h200", "1", "4096", "4096"]):
        assert aot(*words).stderr.startswith(f"{said}\n")
    assert f"the selection is the committed one, {committed}\n" in aot("build", "--target=h200", "--committed").stderr
    assert [x.record for ((x,), _, _) in built] == ["mine", read_selection(committed).record]


def test_a_selection_that_is_older_than_the_record_is_pointed_out(built, selection, tmp_path, monkeypatch):
    record = tmp_path / "thor.jsonl.gz"
    record.write_bytes(b"")
    monkeypatch.setattr("aot.cli.selection.RECORDS", tmp_path)
    os.utime(record, (1, 1))
    assert "was written after" not in aot("build").stderr
    os.utime(selection, (0, 0))
    assert aot("build").stderr.splitlines()[1] == (
        f"{record} was written after that selection; to build what it says: aot select --target thor"
    )
    assert [x.provenance for ((x,), _, _) in built] == ["predicted"] * 2


def test_a_record_without_a_selection_is_selected_from(built, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("aot.cli.selection.RECORDS", tmp_path)
    monkeypatch.setattr(pipeline, "select_measured", lambda paths, *_: asked.append(paths) or SELECTION)
    (tmp_path / "thor.jsonl.gz").write_bytes(b"")
    result = aot("build", "--shapes", "shapes.toml")
    record = tmp_path / "thor.jsonl.gz"
    assert asked == [(record,)]
    assert result.stderr.startswith(f"thor has no selection yet: selecting from its record, {record}\n")


def test_what_was_selected_here_is_left_aside_for_what_is_asked(built, selection):
    result = aot("build", "--predicted", "--shapes", "shapes.toml")
    assert result.stderr.startswith(f"{selection}, made here last, is left aside, since --predicted was given\n")
    assert result.exit_code == 0, result.output
    result = aot("build", "--committed")
    assert (result.exit_code, result.stderr) == (
        9,
        "aot: error: --committed: thor has no committed selection; leave --committed out\n",
    )


def test_a_build_warns_of_what_only_the_general_kernel_answers(built, workplace):
    (workplace / "heads.toml").write_text(
        SHAPES + '[[model]]\nname = "head"\nweights = [{ name = "h", n = 7, k = 4096 }]\n'
    )
    succeed("select", "--shapes", "heads.toml", *PREDICTED)
    result = aot("build")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1] == (
        "warning: thor: the slow general kernel answers 2 of 4 problems: n 7 is not a multiple of 8; rows of zeros "
        "beside a weight's own give such an n a tuned kernel"
    )


def test_the_target_is_the_selections_unless_another_is_given(selection, built):
    other = selection.rename(selection.with_name("mine.json"))
    succeed("build", "--selection", other)
    assert built[0][1] == "thor"
    for command in (["explain", "1", "1", "1"], ["report"], ["build"]):
        result = aot(*command, "--selection", other, "--target", "h200")
        assert result.exit_code == 9
        assert "the selection is for thor, --target is h200; give --target thor" in result.stderr


def test_a_predicted_selection_shows_no_regret_against_itself(selection):
    text = succeed("select", "--predicted", "--shapes", "shapes.toml", *PREDICTED)
    assert "regret  " not in text
    assert "the cost model chose them; nothing was measured, so that no regret is known" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--package", "class"], "--package 'class' is a keyword of Python"),
        (["--package", "x" * 300], "(300 characters, at most 64)"),
        (["--version", "true"], "--version 'true' is no version of PEP 440"),
    ],
)
def test_a_name_or_version_that_cannot_be_is_refused_first(built, words, message):
    result = aot("build", "--target", "h200", *words)
    assert (result.exit_code, message in result.stderr, built) == (11, True, [])


def test_a_build_says_how_many_objects_hold_its_kernels(tmp_path):
    path = tmp_path / "x.whl"
    path.write_bytes(b"wheel")
    kernels = [SimpleNamespace(state=KernelState.EXECUTED)] * 3
    built = BuiltWheel(path, SimpleNamespace(all_kernels=kernels, with_objects=kernels[:2], executions=(), kernels=()))
    assert said(built, {"h200": None}).splitlines()[:2] == [
        f"{path}: 0.00 MiB, 3 kernels in 2 objects",
        "3 of 3 kernels executed in the interpreter",
    ]


@pytest.mark.parametrize(
    ("operations", "is_said"),
    [
        ((Operation.BF16_KK, Operation.FP16_KK), True),
        ((Operation.BF16_KK, Operation.FP16_KK, Operation.BF16_KN_BATCHED), True),
        ((Operation.BF16_KK, Operation.BF16_KN_BATCHED), False),
        ((Operation.E4M3_BF16_KK,), False),
    ],
)
def test_a_build_says_what_computes_batches_that_it_has_no_kernels_for(tmp_path, operations, is_said):
    path = tmp_path / "x.whl"
    path.write_bytes(b"wheel")
    kernels = [SimpleNamespace(state=KernelState.COMPILED, operation=x) for x in operations]
    manifest = SimpleNamespace(all_kernels=kernels, with_objects=kernels, executions=(), kernels=kernels)
    lines = said(BuiltWheel(path, manifest), {"h200": None}).splitlines()
    expected = (
        "no kernels for matmul of batches: torch computes those of its tensors, of others' each product is a launch; "
        "--operations default,attention has some"
    )
    assert [x for x in lines if x.startswith("no kernels for matmul")] == [expected] * is_said
    assert not any(x.startswith("by this wheel alone") for x in lines)


def test_a_build_says_that_kernels_for_batches_alone_are_of_no_use_to_matmul(tmp_path):
    path = tmp_path / "x.whl"
    path.write_bytes(b"wheel")
    kernels = [
        SimpleNamespace(state=KernelState.COMPILED, operation=x) for x in (Operation.BF16_KN_BATCHED, Operation.FP16_KK)
    ]
    manifest = SimpleNamespace(all_kernels=kernels, with_objects=kernels, executions=(), kernels=kernels)
    lines = said(BuiltWheel(path, manifest), {"h200": None}).splitlines()
    assert (
        "by this wheel alone matmul refuses all batches, for it looks for kernels of one product first, and there are "
        "none; --operations bf16_kk beside them makes some"
    ) in lines


@pytest.mark.walk
def test_operations_on_rows_are_selected_scored_and_kept_beside_products(workplace, selection):
    rows = workplace / "rows.json"
    text = succeed("select", "--target", "h200", "--operations", "[bf][fp]16_silu_mul", "-o", rows)
    lines = [" ".join(x.split()) for x in text.splitlines()]
    assert "fp16_silu_mul 24 2 0.15% 0.13% 0.97% exact, by imputed times" in lines
    assert [x for x in lines if x.startswith("bf16_silu_mul each size in turn 8 0 ")]
    found = read_selection(rows)
    assert [x.tag for x in found.operations] == ["bf16_silu_mul", "fp16_silu_mul"]
    assert (found.provenance, found.record, found.kernels) == ("measured", "h200_rows", ())
    assert read_selection(pipeline.COMMITTED / "h200.rows.json.gz").regrets[6:8] == found.regrets
    taken = workplace / "taken.json"
    succeed("select", "--target", "h100", "--like", rows, "-o", taken)
    of_h100 = read_selection(taken)
    assert (of_h100.target, of_h100.operations) == ("h100", found.operations)  # all, where none is asked for
    both = workplace / "both.json"
    kept = read_selection(selection)
    words = ("--predicted", "--kernels", "row_registers*", "--keep", selection, "-o", both)
    succeed("select", "--operations", "fp16_gelu_tanh_mul", *words)
    found = read_selection(both)
    assert (found.kernels, found.table, found.record) == (kept.kernels, kept.table, kept.record)
    assert {x.operation.tag for x in found.others.kernels} == {"fp16_gelu_tanh_mul"}
    asked = coverage_of(kept, load_shape_set("representative"), kept.products).num_problems
    assert found.coverage.num_problems == asked + len(usual_problems(row_operation("fp16_gelu_tanh_mul")))
    run, earlier = found.runs
    assert run.command == (
        f"aot select --keep {selection} --kernels 'row_registers*' --operations fp16_gelu_tanh_mul --predicted"
    )
    assert (run.defaults["--max-row-kernels"], [x.tag for x in run.operations]) == (("12",), ["fp16_gelu_tanh_mul"])
    assert earlier.operations == kept.operations
    assert run.inputs[str(selection)] == hashlib.sha256(selection.read_bytes()).hexdigest()
    assert "aot/shapes/representative.toml" in run.inputs
    succeed("report", "--target", "h200", "--selection", rows, "-o", workplace / "rows.html")
    page = (workplace / "rows.html").read_text()
    assert "<dt>Made by</dt><dd>aot select --target h200 --operations bf16_silu_mul,fp16_silu_mul  # " in page
    assert "mean regret in sample, bf16_silu_mul: " in page
    result = aot("select", "--target", "h200", "--operations", "bf16_silu_mul", "--like", selection)
    assert (result.exit_code, "has no table of bf16_silu_mul; give" in result.stderr) == (9, True)


@pytest.mark.parametrize("command", [["select"], ["build"], ["build", "--predicted"], ["explain", "1", "64", "64"]])
def test_what_no_kernel_computes_is_refused_before_anything_is_read(command, monkeypatch):
    """It took a quarter of a minute of CPU: the record and the committed selection were read first."""

    def read(path, *_):
        pytest.fail(f"{path} was read")

    for module in (pipeline, cli_request, cli_selection):
        monkeypatch.setattr(module, "read_selection", read)
    monkeypatch.setattr(pipeline, "read_products", read)
    result = aot(*command, "--target", "h100", "--operations", "nvfp4_bf16_kk")
    assert result.exit_code != 0
    assert "no kernel computes every nvfp4_bf16_kk" in result.stderr
    assert "targets that have it: b200, " in result.stderr


def test_what_is_chosen_anew_alone_is_of_operations_that_are_kept(tmp_path):
    kept = str(pipeline.COMMITTED / "h200.json.gz")
    options = ["--only-unaligned", "--predicted", "--operations", "int8_bf16_kk", "--keep", kept]
    result = aot("select", "--target", "h200", *options, "-o", str(tmp_path / "found.json.gz"))
    assert result.exit_code == SelectionError.exit_code
    assert "has no table of int8_bf16_kk; give --operations some of what it has, bf16_kk, " in " ".join(
        result.stderr.split()
    )
    assert not (tmp_path / "found.json.gz").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--only-unaligned"], "--only-unaligned keeps all else of a selection: give it with --keep"),
        (["--only-grids"], "--only-grids keeps all else of a selection: give it with --keep"),
        (["--only-unaligned", "--only-grids", "--keep"], "are two runs"),
        (["--only-grids", "--only-between-sectors", "--keep"], "give one of them"),
        (["--only-between-sectors", "--predicted", "--keep"], "chooses by measured times: give it a --record"),
        (["--only-grids", "--predicted", "--keep"], "chooses by measured times: give it a --record"),
    ],
)
def test_what_is_chosen_anew_alone_needs_what_it_is_chosen_from(options, expected):
    kept = [str(pipeline.COMMITTED / "h200.json.gz")] if options[-1] == "--keep" else []
    result = aot("select", "--target", "h200", *options, *kept)
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split())
