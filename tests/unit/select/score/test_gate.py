"""What a selection must show before a wheel is built of it."""

import gzip
import json
import re
from dataclasses import replace

import pytest

from aot.cli.options import MAX_HELDOUT_REGRET
from aot.core.element import ElementType
from aot.core.errors import CoverageError, SelectionError
from aot.core.operation import Operation
from aot.core.strict_json import decode
from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.select import pipeline
from aot.select.join import joined
from aot.select.portfolio.objective import Objective
from aot.select.score.gate import check_heldout, coverage_text, covered, require_measured
from aot.select.selection import HeldOut
from aot.select.table.stepped import select_stepped
from aot.select.times.record import write_record
from tests.unit.invoked import coarse_grid
from tests.unit.select.test_pipeline import HELDOUT, RECORD, SHAPES, select
from tests.unit.twins import BF16


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "mine.jsonl.gz"
    write_record(path, RECORD)
    return path


@pytest.fixture(scope="module")
def selection(record):
    """Give a selection that does not say what it was made for."""
    with pytest.MonkeyPatch.context() as patch:
        coarse_grid(patch)
        return select(record)


@pytest.fixture(scope="module")
def own(record):
    with pytest.MonkeyPatch.context() as patch:
        coarse_grid(patch)
        return select(record, Objective(shapes=HELDOUT))


@pytest.mark.slow
def test_what_a_selection_was_made_for_is_told_by_itself_or_by_a_shape_set(selection, own):
    assert covered(selection, None) is None
    assert coverage_text(None) == (
        "the selection does not say which problems it was made for; make it again with aot select"
    )
    assert covered(selection, SHAPES).text == "2 problems: 2 measured"
    assert covered(own, SHAPES).text == "1 problem: 0 measured, 1 predicted (first bf16_kk m64 n4096 k4096)"


@pytest.mark.slow
def test_what_is_not_measured_is_refused_where_that_is_asked(selection):
    require_measured(covered(selection, SHAPES))
    for found, text in (
        (None, "--require-measured: the selection does not say which problems it was made for"),
        (
            covered(selection, HELDOUT),
            "--require-measured: 1 problem: 0 measured, 1 predicted (first bf16_kk",
        ),
    ):
        with pytest.raises(CoverageError, match=re.escape(text)):
            require_measured(found)


@pytest.mark.slow
def test_operations_on_rows_without_times_of_their_own_are_not_measured(selection):
    rows = select_stepped((row_operation("bf16_silu_mul"),), load_target(selection.target), with_heldout=False)
    found = covered(joined(selection, rows), SHAPES)
    with pytest.raises(CoverageError, match=r"2 measured, 30 predicted \(first bf16_silu_mul rows 1 cols 1024\)"):
        require_measured(found)


GOOD = HeldOut(BF16, 1, 30, 0, 0.02, 0.10, 0.5, 0.9, "bf16_kk m2 n4096 k4096")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        (
            {"bucketing_loss_mean": 0.0234},
            (
                "bf16_kk, tier 1: on 30 held-out problems the bucketing loss is 2.34% in the mean and 10.0% at worst "
                "(bf16_kk m2 n4096 k4096); expected at most 2.0% and 10.0%; tune more problems near it and select "
                "again, or raise --max-heldout-regret"
            ),
        ),
        ({"bucketing_loss_mean": 0.09, "num_problems": 4}, None),  # no mean of so few
        (
            {"bucketing_loss_worst": 0.1012, "tier": 2},
            (
                "bf16_kk, tier 2: on 30 held-out problems the bucketing loss is 2.00% in the mean and 10.1% at worst "
                "(bf16_kk m2 n4096 k4096); expected at most 2.0% and 10.0%; tune more problems near it and select "
                "again, or raise --max-heldout-regret"
            ),
        ),
    ],
)
@pytest.mark.slow
def test_a_selection_whose_rounding_costs_too_much_is_refused(selection, changes, message):
    selection = replace(selection, heldout=(GOOD, replace(GOOD, **changes)))
    if message is None:
        check_heldout(selection, 0.02, 0.10)
        return
    with pytest.raises(SelectionError) as caught:
        check_heldout(selection, 0.02, 0.10)
    assert str(caught.value) == message
    check_heldout(selection, float("inf"), float("inf"))


@pytest.mark.slow
@pytest.mark.parametrize(("tuned", "foreign"), [(6, 16), (0, 50), (50, 0)])
def test_a_selection_that_is_scored_on_most_of_what_was_held_out_passes(selection, tuned, foreign):
    # Of 200 problems of one operation, a quarter at most are unscored, whichever tier they are of.
    scores = [replace(GOOD, num_problems=100 - n, num_unmeasured=n) for n in (tuned, foreign)]
    fp16 = [replace(x, operation=Operation.of(ElementType.FLOAT16), num_unmeasured=0) for x in scores]
    check_heldout(replace(selection, heldout=(*scores, *fp16)), 0.02, 0.10)


def test_a_selection_that_is_scored_on_too_little_is_refused(selection):
    scores = [replace(GOOD, tier=i + 1, num_problems=100 - n, num_unmeasured=n) for i, n in enumerate((1, 50))]
    fp16 = [replace(x, operation=Operation.of(ElementType.FLOAT16), num_unmeasured=0) for x in scores]
    selection = replace(selection, heldout=(*fp16, *scores))
    with pytest.raises(SelectionError) as caught:
        check_heldout(selection, 0.02, 0.10)
    assert str(caught.value) == (
        "bf16_kk: on 51 of 200 held-out problems (26%) the kernel picked was not timed, so that the bucketing loss "
        "there is not known; expected at most 25%; measure them with `aot tune --shapes atlas_heldout --selection ... "
        "--prune 100`, import and select again, or give --max-heldout-regret none"
    )
    check_heldout(selection, float("inf"), float("inf"))


def test_a_selection_of_which_nothing_is_scored_is_refused(selection):
    selection = replace(selection, heldout=(replace(GOOD, num_problems=0, num_unmeasured=9),))
    with pytest.raises(SelectionError, match=r"bf16_kk: on 9 of 9 held-out problems \(100%\) the kernel picked"):
        check_heldout(selection, 0.02, 0.10)


@pytest.mark.slow
def test_what_is_committed_passes_the_gate(selection):
    content = json.loads(gzip.decompress((pipeline.COMMITTED / "h200.json.gz").read_bytes()))
    scores = tuple(decode(HeldOut, x) for x in content["heldout"])
    assert BF16 in {x.operation for x in scores}
    check_heldout(replace(selection, heldout=scores), *MAX_HELDOUT_REGRET)
