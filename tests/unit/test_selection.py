import gzip
import json
from dataclasses import replace

import pytest
from twins import BF16, CONDITIONS

from aot.coverage import Coverage
from aot.errors import SelectionError
from aot.selection import (
    SELECTION_VERSION,
    Curve,
    CurvePoint,
    HeldOut,
    Regret,
    Selection,
    read_selection,
    write_selection,
)
from tests.golden.manifest import golden_manifest

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
    GOLDEN.table,
)


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "s.json"
    write_selection(path, SELECTION)
    assert read_selection(path) == SELECTION
    first = path.read_bytes()
    write_selection(path, SELECTION)
    assert path.read_bytes() == first
    assert [x.name for x in path.parent.iterdir()] == ["s.json"]


def test_what_it_was_made_for_is_kept_and_may_be_missing(tmp_path):
    path, coverage = tmp_path / "s.json", Coverage(3, 1, "bf16_kk m1 n8 k8", {"n 7 is not": 2}, {})
    write_selection(path, replace(SELECTION, coverage=coverage))
    assert read_selection(path).coverage == coverage
    document = json.loads(path.read_text())
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
    assert str(caught.value).endswith("; run `aot select`")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "s.json"
    write_selection(path, SELECTION)
    with pytest.raises(TypeError):
        write_selection(path, replace(SELECTION, target=object()))
    assert read_selection(path) == SELECTION


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("selection_version",), 7, ": version 7, expected 2; run `aot select` again"),
        (("target",), 1, ".target: expected str, got 1; run `aot select` again"),
        (("regrets", 0, "mean"), "x", ".regrets[0].mean: expected float, got 'x'; run `aot select` again"),
        (
            ("curves", 0, "points", 0, "mean_bound"),
            None,
            ".curves[0].points[0].mean_bound: expected float, got None; run",
        ),
        (("heldout", 0, "tier"), "2", ".heldout[0].tier: expected int, got '2'; run `aot select` again"),
        (("kernels", 0, "operation", "layout_name"), "zz", ".kernels[0].operation: 'zz' is not a valid Layout; run"),
        (("kernels",), [], ": bf16_kk: the table names kernel 3 of 0; run `aot select` again"),
        (("table", "sections", 0, "grid", "m_edges"), [4, 3], ": bf16_kk: edges must ascend and not be empty; run"),
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


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"\x1f\x8b"])
def test_what_is_not_json_is_refused(tmp_path, content):
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(SelectionError, match=r"cannot read the selection .*s\.json: .*; run `aot select`"):
        read_selection(path)
    with pytest.raises(SelectionError, match=r"cannot read the selection .*No such file.*; run `aot select`"):
        read_selection(tmp_path / "absent.json")
