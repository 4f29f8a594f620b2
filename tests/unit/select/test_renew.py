from dataclasses import replace

import pytest

from aot.core.errors import SelectionError
from aot.core.target import load_target
from aot.select.pipeline import COMMITTED
from aot.select.portfolio.objective import Objective
from aot.select.renew import Renewed, renew
from aot.select.selection import read_selection
from aot.space.calibration import Calibration
from aot.space.cost import DEFAULTS


def test_tables_of_other_constants_are_not_put_beside_those_of_a_calibration():
    by = Calibration("thor", "times of a board", DEFAULTS).model
    kept = replace(read_selection(COMMITTED / "h200.many.json.gz"), record=by)
    with pytest.raises(SelectionError, match="by 'cost-model-v1, constants: times of a board', and tables chosen anew"):
        renew(Renewed.UNALIGNED, kept, (), load_target("h200"), Objective(), "", None)


def test_records_with_too_few_times_for_a_grid_are_refused():
    kept, target = read_selection(COMMITTED / "h200.many.json.gz"), load_target("h200")
    record = COMMITTED.parent / "records" / "h200_large.jsonl.gz"
    expected = "h200_large.jsonl.gz: fewer than 40 problems of bf16_kk_many.* for grids of aligned products"
    with pytest.raises(SelectionError, match=expected):
        renew(Renewed.BETWEEN, kept, [record], target, Objective(), "", None)
