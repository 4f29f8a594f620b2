"""Selections that commands make: of a shape set, by what the repository ships for a target."""

from pathlib import Path

import click
import pytest

from aot.cli import selection as module
from aot.cli.selection import selection_for_shapes
from aot.core.errors import SelectionError
from aot.core.target import load_target
from aot.kinds.named_operations import NamedOperations
from aot.kinds.rows.catalogue import row_operation
from aot.select.selection import write_selection
from aot.select.table.stepped import select_stepped
from tests.unit.select.reuse.test_narrow import NAMES, WHOLE

H200 = load_target("h200")
SHAPES = """version = 1
[[model]]
name = "tiny"
operations = ["{operation}"]
weights = [{{ name = "w", n = 512, k = 512 }}]
m = [16]
"""


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Ship one selection; gives the operations that others are selected for."""
    path, asked = tmp_path / "h200.json", []
    write_selection(path, WHOLE)

    def select(request):
        asked.append((request.operations, *request.records))
        return WHOLE

    monkeypatch.setattr(module.pipeline, "committed_selection", lambda target: path if target == H200 else None)
    monkeypatch.setattr(module.pipeline, "committed_selections", lambda _: [path])
    monkeypatch.setattr(module, "select", select)
    monkeypatch.setattr(module.pipeline, "records_for", lambda others, *_: {Path("record"): others} if others else {})
    return asked


def shapes(tmp_path, operation):
    path = tmp_path / "shapes.toml"
    path.write_text(SHAPES.format(operation=operation))
    return str(path)


def test_what_is_shipped_answers_the_shapes_without_selecting(shipped, tmp_path):
    found = selection_for_shapes(shapes(tmp_path, "bf16_kk"), H200)
    assert shipped == []
    assert len(found.kernels) < len(WHOLE.kernels)
    assert NAMES[1] in {x.candidate.name for x in found.kernels}
    assert (found.coverage.num_measured, found.coverage.num_problems) == (1, 1)


@pytest.mark.slow
def test_what_is_not_shipped_is_selected_alone(shipped, tmp_path):
    selection_for_shapes(shapes(tmp_path, "tf32_kk"), H200)
    ((operations, record),) = shipped
    assert ([x.tag for x in operations], record) == (["tf32_kk"], Path("record"))


def test_a_target_without_a_shipped_selection_has_none(shipped, tmp_path):
    assert selection_for_shapes(shapes(tmp_path, "bf16_kk"), load_target("thor")) is None
    assert shipped == []


def test_a_shape_set_of_what_no_catalogue_has_is_refused(shipped, tmp_path):
    """GeGLU is there for weights (n, k) alone."""
    crossed = 'dtypes = ["bfloat16"]\nlayouts = ["kn"]\nepilogues = ["geglu"]'
    path = tmp_path / "shapes.toml"
    path.write_text(SHAPES.replace('operations = ["{operation}"]', crossed).replace("{{", "{").replace("}}", "}"))
    with pytest.raises(SelectionError, match=r"shapes\.toml names no operation; expected one or more of docs"):
        selection_for_shapes(str(path), H200)


ROWS = (row_operation("bf16_silu_mul"), row_operation("fp16_silu_mul"), row_operation("bf16_gelu_tanh_mul"))


@pytest.mark.walk
@pytest.mark.slow
def test_operations_on_rows_are_what_is_shipped_of_them_and_else_selected(tmp_path, monkeypatch):
    silu, fp16, _ = ROWS
    path = tmp_path / "h200.rows.json"
    write_selection(path, select_stepped((silu,), H200, with_heldout=False))
    monkeypatch.setattr(module.pipeline, "committed_selections", lambda _: [path])
    context = click.Context(click.Command("x"), info_name="x")
    context.params = {"shapes": "representative"}
    found = module.selection_with(context, H200, NamedOperations(ROWS), is_predicted=False)
    assert found.operations == ROWS
    # By the committed record, and by the model; what is shipped is by the model here.
    assert [x.method for x in sorted(found.regrets, key=lambda x: x.operation.position)] == [
        "exact, by the cost model",
        "exact, by imputed times",
        "exact, by the cost model",
    ]
    predicted = module.selection_with(context, H200, NamedOperations((fp16,)), is_predicted=True)
    assert predicted.regrets[0].method == "exact, by the cost model"
    with pytest.raises(SelectionError, match="the selection is of fp16_silu_mul alone; expected products too"):
        module.check_products(predicted)
