import gzip
import json
from dataclasses import replace
from typing import get_args

import pytest

from aot.core.candidate import gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid
from aot.core.errors import SelectionError
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.select.coverage import Coverage
from aot.select.join import joined
from aot.select.runs import Run
from aot.select.selection import (
    SELECTION_VERSION,
    Curve,
    CurvePoint,
    HeldOut,
    ProblemName,
    Regret,
    Selection,
    read_selection,
    write_selection,
)
from aot.select.table.stepped import select_stepped
from tests.golden.manifest import golden_manifest
from tests.unit.twins import BF16, CONDITIONS

GOLDEN = golden_manifest()
SELECTION = Selection(
    SELECTION_VERSION,
    "h200",
    "measured",
    "h200",
    (CONDITIONS,),
    (Regret(BF16, 204, 4, 0.0125, 0.5, "exact", 0.01),),
    (Curve(BF16, (CurvePoint(4, 0.0125, 0.5, 0.01, 40_000, True),)),),
    (HeldOut(BF16, 2, 9, 1, 0.01, 0.02, 0.03, 0.04, "bf16_kk m1 n8 k8"),),
    tuple(kernel.key for kernel in GOLDEN.kernels),
    GOLDEN.tables[0].table,
)


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "s.json"
    write_selection(path, SELECTION)
    assert read_selection(path) == SELECTION
    first = path.read_bytes()
    write_selection(path, SELECTION)
    assert path.read_bytes() == first
    assert [x.name for x in path.parent.iterdir()] == ["s.json"]


RUN = Run(
    {"--target": ("h200",), "--record": ("a.jsonl.gz", "b c.jsonl.gz"), "--no-curve": ()},
    {"--heldout": ("",)},
    {"aot/records/a.jsonl.gz": "1a" * 32},
    (BF16,),
)


def test_how_it_was_made_is_kept_and_told(tmp_path):
    path = tmp_path / "s.json"
    write_selection(path, replace(SELECTION, runs=(RUN,)))
    (found,) = read_selection(path).runs
    assert found == RUN
    assert found.command == "aot select --target h200 --no-curve --record a.jsonl.gz --record 'b c.jsonl.gz'"
    assert found.text == f"{found.command}  # a.jsonl.gz 1a1a1a1a1a1a"
    assert replace(RUN, inputs={}).text == RUN.command


def test_what_it_was_made_for_is_kept_and_may_be_missing(tmp_path):
    path, coverage = tmp_path / "s.json", Coverage(3, 1, "bf16_kk m1 n8 k8", {"n 7 is not": 2}, {})
    write_selection(path, replace(SELECTION, coverage=coverage))
    assert read_selection(path).coverage == coverage
    document = json.loads(path.read_text())
    assert "runs" not in document  # so that the files of before say no more and no less than they did
    del document["coverage"]
    path.write_text(json.dumps(document))
    assert read_selection(path) == SELECTION


def test_a_compressed_file_is_the_same_selection_in_fewer_bytes(tmp_path):
    plain, compressed = tmp_path / "s.json", tmp_path / "s.json.gz"
    for path in (plain, compressed):
        write_selection(path, SELECTION)
    assert read_selection(compressed) == SELECTION
    assert gzip.decompress(compressed.read_bytes()) == plain.read_bytes()
    first = compressed.read_bytes()
    write_selection(compressed, SELECTION)
    assert compressed.read_bytes() == first
    compressed.write_bytes(first[:-9])
    with pytest.raises(SelectionError) as caught:
        read_selection(compressed)
    assert str(caught.value).startswith(f"cannot read the selection {compressed}: Compressed file ended before the ")
    assert str(caught.value).endswith("; run `aot select`, or give another")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "s.json"
    write_selection(path, SELECTION)
    with pytest.raises(TypeError):
        write_selection(path, replace(SELECTION, target=object()))
    strange = replace(SELECTION, table=DispatchTable((replace(SELECTION.table.sections[0], fallback=9),)))
    with pytest.raises(SelectionError, match=r"the selection for .*: bf16_kk: the fallback is kernel 9; there are 5"):
        write_selection(path, strange)
    assert read_selection(path) == SELECTION


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("selection_version",), 7, ": selection_version: expected 4, got 7; run `aot select` again"),
        (("target",), 1, ": target: expected the name of a target, such as h200, got 1; run `aot select` again"),
        (
            ("regrets", 0, "mean"),
            "x",
            ": regrets[0].mean: expected a number from -1 to 1e+12, got 'x'; run `aot select` again",
        ),
        (
            ("curves", 0, "points", 0, "mean_bound"),
            None,
            ": curves[0].points[0].mean_bound: expected a number from -1 to 1e+12, got None; run",
        ),
        (
            ("heldout", 0, "tier"),
            "2",
            ": heldout[0].tier: expected a whole number from 1 to 2, got '2'; run `aot select` again",
        ),
        (
            ("kernels", 0, "operation"),
            "zz",
            f": kernels[0].operation: expected one of {len(Operation)} words, such as bf16_kk, bf16_kn",
        ),
        (("kernels",), [], ": 0 kernels in 2 sections; expected at least one of each; run `aot select` again"),
        (
            ("table", "sections", 0, "grid", "n_edges"),
            [4, 3],
            ": bf16_kk: grid: its edges in n must ascend from 1 or more, and not be empty; run",
        ),
        (("selection_version",), True, ": selection_version: expected 4, got True; run `aot select` again"),
        (
            ("provenance",),
            'x"\nrun = "evil',
            ": provenance: expected one of measured, predicted, got 'x\"\\nrun = \"evil'; run",
        ),
        (("record",), "a\nb", ": record: expected one line of 1 to 200 printable characters, got 'a\\nb'; run"),
        (("target",), "../../evil", ": target: expected the name of a target, such as h200, got '../../evil'; run"),
        (
            ("kernels", 1, "candidate", "split_k_mode"),
            "x",
            ": kernels[1].candidate.split_k_mode: expected one of none, se",
        ),
        (("kernels", 1, "candidate", "family"), "evil", ": no kernel family 'evil'; there are: cluster_sp"),
        (
            ("kernels", 1, "candidate", "schedule"),
            "a;b",
            ": kernels[1].candidate.schedule: expected a schedule, such as",
        ),
        (
            ("table", "sections", 0, "ladders", 0, "rows", 1, "time_us"),
            -1.0,
            ": table.sections[0].ladders[0].rows[1].time_us: ",
        ),
        (
            ("table", "sections", 0, "ladders", 0, "rows", 1, "time_us"),
            0,
            ": bf16_kk: ladder n 4096 k 4096, row 1: it was m",
        ),
        (
            ("table", "sections", 0, "ladders", 0, "rows", 1, "kernel"),
            4,
            ": bf16_kk: ladder n 4096 k 4096, row 1: its kernel 4 i",
        ),
        (
            ("table", "sections", 0, "grid", "columns", 0, "m_edges"),
            [4, 3],
            ": bf16_kk: grid, column 0: its edges in m must ascend from 1 or more, and not be empty; run",
        ),
        (
            ("table", "sections", 0, "grid", "columns", 3, "m_edges", 1),
            2**20,
            ": table.sections[0].grid.columns[3].m_edges[1]: expected a whole number from 1 to 1048575, got 1",
        ),
        (
            ("table", "sections", 0, "grid", "columns", 3, "kernels", 1),
            9,
            ": bf16_kk: grid, column 3: it names kernel 9; there are 5 kernels",
        ),
        (
            ("table", "sections", 0, "ladders", 0, "rows", 1, "runner_up"),
            9,
            ": bf16_kk: ladder n 4096 k 4096, row 1: its runner-up is 9; there are",
        ),
        (("table", "sections", 1, "fallback"), 1, ": bf16_kn: the fallback 1 must take both strides of its operands"),
        (("table", "sections", 0, "fallback"), 99, ": bf16_kk: the fallback is kernel 99; there are 5 kernels; run"),
    ],
)
def test_damage_is_named_with_its_place(tmp_path, place, value, message):
    path = tmp_path / "s.json"
    write_selection(path, SELECTION)
    document = json.loads(path.read_text())
    *parents, last = place
    inner = document
    for part in parents:
        inner = inner[part]
    inner[last] = value
    path.write_text(json.dumps(document))
    with pytest.raises(SelectionError) as caught:
        read_selection(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_kernels_take_what_their_family_says(tmp_path):
    keys = list(SELECTION.kernels)
    keys[2] = replace(
        keys[2], candidate=gemm_candidate("sm100_persistent", 128, 64, schedule="clc", use_tma_store=False)
    )
    direct = replace(SELECTION, kernels=tuple(keys))
    with pytest.raises(SelectionError, match="column 0: its kernel 2 takes only multiples of 128 in m and 64 in n"):
        write_selection(tmp_path / "s.json", direct)
    section = replace(SELECTION.table.sections[0], grid=Grid((1,), (1,), (Column((1,), (3,)),)))
    with pytest.raises(
        SelectionError, match="row 1: its general kernel 2 takes only multiples of 128 in m and 64 in n"
    ):
        write_selection(tmp_path / "s.json", replace(direct, table=DispatchTable((section,))))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"\x1f\x8b"])
def test_what_is_not_json_is_refused(tmp_path, content):
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(SelectionError, match=r"s\.json: not (JSON|UTF-8 text): .*; run `aot select` again"):
        read_selection(path)
    with pytest.raises(SelectionError, match=r"cannot read the selection .*No such file.*; run `aot select`"):
        read_selection(tmp_path / "absent.json")


@pytest.mark.parametrize("num_groups", [1, 64])
@pytest.mark.parametrize("operation", [Operation.BF16_KK, Operation.BF16_KK_GROUPED])
def test_the_name_of_every_problem_may_be_a_worst_one(operation, num_groups):
    (grammar,) = get_args(ProblemName)[1:]
    assert grammar.holds(Problem(operation, 16, 4096, 2048, num_groups).name)
    assert not grammar.holds("bf16_kk_grouped g m16 n4096 k2048")


def with_rows():
    return joined(SELECTION, select_stepped((row_operation("bf16_silu_mul"),), load_target("h200"), with_heldout=False))


@pytest.mark.slow
def test_operations_on_rows_are_kept_and_a_selection_without_says_nothing_of_them(tmp_path):
    path = tmp_path / "s.json"
    write_selection(path, SELECTION)
    assert "stepped" not in json.loads(path.read_text())
    whole = with_rows()
    write_selection(path, whole)
    assert read_selection(path) == whole
    assert [x.name for x in whole.all_kernels[len(SELECTION.kernels) :]] == [x.name for x in whole.others.kernels]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            ("kernels", 0, "operation"),
            "bf16_kk",
            ": stepped.kernels[0].operation: expected the tag of an operation on rows, such as bf16_rms_norm",
        ),
        (("kernels", 1, "candidate", "family"), "evil", ": no kernel family 'evil'; there are: "),
        (("table", "sections", 0, "fallback"), 9, ": bf16_silu_mul: its fallback is kernel 9 of 2; run"),
        (("table", "sections", 0, "columns", 0, "cols"), 4096, ": bf16_silu_mul: its edges in cols must ascend"),
        (("table", "sections", 0, "columns", 0, "steps", 0, "kernel"), 7, ": bf16_silu_mul: column of 32: it names "),
    ],
)
def test_damage_of_operations_on_rows_is_named_with_its_place(tmp_path, place, value, message):
    path = tmp_path / "s.json"
    write_selection(path, with_rows())
    document = json.loads(path.read_text())
    part = document["stepped"]
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(SelectionError) as caught:
        read_selection(path)
    assert str(caught.value).startswith(f"{path}{message}")
