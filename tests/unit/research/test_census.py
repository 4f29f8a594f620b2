"""Counting what became of a space, and the committed census of Thor against today's legality."""

from pathlib import Path

import pytest

from aot.compile.artifact import Artifact, CompileFailure
from aot.compile.legal_keys import legal_keys
from aot.core.element import ElementType
from aot.core.errors import StoreError
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.families import families_of
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.space.enumeration import Patterns
from research.studies.census import OPERATIONS, Span, count, markdown, merge, read_census, text, totals
from tests.golden.manifest import BIG, kernel

pytestmark = pytest.mark.slow

THOR = load_target("thor")
BF16 = Operation.of(ElementType.BFLOAT16)
ROOT = Path(__file__).parents[3]
DOCS, DATA = ROOT / "docs", ROOT / "research" / "studies" / "thor-census.json"
KERNEL = kernel(BF16, BIG)
LAYOUTS_OF_BF16, LAYOUTS_OF_FP16 = BF16.layouts, Operation.FP16_KK.layouts
SAMPLE = 4
"""Kernels of each operation and family that the committed census has compiled, at least."""


def nothing(key):
    del key


def test_every_candidate_is_legal_or_rejected_with_a_reason():
    census = count((BF16,), THOR, {}, nothing)
    assert {row.family for row in census.rows} == {x.name for x in families_of(BF16, THOR) if BF16.types in x.types}
    assert all(row.num_candidates == row.num_accepted + sum(row.rejected.values()) for row in census.rows)
    assert sum(row.num_accepted for row in census.rows) == len(legal_keys((BF16,), THOR))
    assert [row.num_untried for row in census.rows] == [row.num_accepted for row in census.rows]
    assert "0 compiled and passed the gate, 0 failed, 2,377 not compiled" in totals(census)


def test_failures_are_named_and_not_taken_for_compiled():
    failed = max(legal_keys((BF16,), THOR), key=lambda key: key.candidate.family)

    def result(key):
        if key == failed:
            return CompileFailure(key.name, "CompileError: shared memory over 232,448 bytes", 2.0)
        return Artifact(KERNEL, Path("x"), 1.0)

    row = count((BF16,), THOR, {}, result).rows[-1]
    assert row.num_untried == 0
    assert (row.num_compiled, row.failures) == (
        row.num_accepted - 1,
        {failed.name: "CompileError: shared memory over 232,448 bytes"},
    )
    assert row.cpu_s == Span(1.0, 1.0, 2.0)
    assert row.object_bytes == Span(KERNEL.object_bytes, KERNEL.object_bytes, KERNEL.object_bytes)
    page = markdown(count((BF16,), THOR, {}, result), "c.json")
    assert f"- `{failed.name}`: CompileError: shared memory over 232,448 bytes" in page


def test_a_census_in_parts_is_one():
    bf16_kn = Operation.of(ElementType.BFLOAT16, Layout.KN)
    whole = count((BF16, bf16_kn), THOR, {"dsl": "1"}, nothing)
    parts = [count((operation,), THOR, {"dsl": "1"}, nothing) for operation in (bf16_kn, BF16)]
    assert merge(*parts) == whole
    assert merge(whole, parts[0]) == whole
    with pytest.raises(StoreError, match="write to another file, or remove that one"):
        merge(whole, count((BF16,), THOR, {"dsl": "2"}, nothing))


def test_a_span_of_nothing_is_none():
    assert Span.of([]) is None
    assert Span.of([3, 1, 2, 10]) == Span(1, 2.5, 10)


def test_operations_on_rows_are_counted_beside_products():
    operations = (BF16, row_operation("bf16_rotary"))
    census = count(operations, THOR, {}, nothing)
    assert [(x.operation, x.family, x.num_accepted) for x in census.on_rows] == [
        (row_operation("bf16_rotary"), "row_rotary", 6),
        (row_operation("bf16_rotary"), "row_scalar", 1),
    ]
    assert census.all_rows == (*census.rows, *census.on_rows)
    assert merge(count(operations[:1], THOR, {}, nothing), count(operations[1:], THOR, {}, nothing)) == census
    assert "| `row_rotary` | 1 | 6 | 6 | 0 | 0 | 0 | 0 | 0 | 0 |" in markdown(census, "c.json")


def test_a_family_is_left_out_where_it_computes_no_such_operation():
    census = count((Operation.INT8_INT32_KK, Operation.BF16_KK_GATHERED), THOR, {}, nothing)
    assert [(x.operation, x.family) for x in census.rows] == [
        (Operation.INT8_INT32_KK, "simt"),
        (Operation.INT8_INT32_KK, "sm100_quack"),
        (Operation.BF16_KK_GATHERED, "simt"),
        (Operation.BF16_KK_GATHERED, "sm100_grouped"),
    ]


def test_a_sample_is_the_first_rounds_of_all():
    operations = (BF16, row_operation("bf16_rotary"))
    every = legal_keys(operations, THOR)
    first, second = (legal_keys(operations, THOR, sample) for sample in (1, 2))
    assert every[: len(second)] == second
    assert second[: len(first)] == first
    assert sorted(x.candidate.family for x in first) == [
        *(
            "cluster_split_k",
            "mma_sync",
            "row_rotary",
            "row_scalar",
            "simt",
            "sm100_persistent",
            "sm100_quack",
            "sm100_tgv",
        ),
    ]
    assert len(second) == 2 * len(first) - 2  # each fallback has one candidate
    assert len(set(every)) == len(every) == 2377 + 7


def test_patterns_leave_the_others_out_before_a_sample_is_drawn():
    every, patterns = legal_keys((BF16,), THOR), Patterns.parse("sm100_*,-*_2cta*")
    kept = legal_keys((BF16,), THOR, patterns=patterns)
    assert set(kept) == {x for x in every if x.candidate.name.startswith("sm100_") and "_2cta" not in x.candidate.name}
    assert 0 < len(kept) < len(every)
    sample = legal_keys((BF16,), THOR, 2, patterns)
    assert sample == [x for x in kept if x in sample]
    assert len(sample) == 6


def test_all_operations_are_counted_by_default():
    assert (*Operation, *row_operations()) == OPERATIONS


@pytest.fixture(scope="module")
def committed():
    return read_census(DATA)


@pytest.mark.walk
def test_the_committed_census_is_of_the_space_as_it_is(committed):
    today = count(OPERATIONS, THOR, {}, nothing)
    assert [(x.operation, x.family, x.num_candidates, x.num_accepted, x.rejected) for x in committed.all_rows] == [
        (x.operation, x.family, x.num_candidates, x.num_accepted, x.rejected) for x in today.all_rows
    ]


def test_the_committed_census_has_no_surprise(committed):
    assert [row.failures for row in committed.all_rows if row.failures] == []
    most = THOR.smem_bytes_per_block
    assert all(row.smem_bytes.most <= most for row in committed.all_rows if row.smem_bytes)
    assert all(row.tmem_columns <= THOR.tmem_columns for row in committed.all_rows)


def test_the_committed_census_is_whole_of_plain_products_and_a_sample_of_the_rest(committed):
    plain = [x for x in committed.rows if x.operation in (*LAYOUTS_OF_BF16, *LAYOUTS_OF_FP16)]
    plain = [x for x in plain if x.family != "mma_sync"]  # of which a sample was compiled so far
    assert [(row.num_accepted, row.family) for row in plain] == [(row.num_compiled, row.family) for row in plain]
    assert [x for x in committed.all_rows if x.num_compiled < min(x.num_accepted, SAMPLE)] == []


def test_the_page_shows_the_committed_census(committed):
    assert (DOCS / "thor-census.md").read_text(encoding="utf-8") == markdown(
        committed, "../research/studies/thor-census.json"
    )
    assert DATA.read_text(encoding="utf-8") == text(committed)


def test_a_page_sums_a_familys_operations_and_says_why_others_are_not_legal():
    census = count(LAYOUTS_OF_BF16, THOR, {"dsl": "1"}, nothing)
    page = markdown(census, "c.json")
    quack = [row for row in census.rows if row.family == "sm100_quack"]
    counts = [len(quack), *(f"{sum(getattr(x, name) for x in quack):,}" for name in ("num_candidates", "num_accepted"))]
    assert f"| `sm100_quack` | {' | '.join(map(str, counts))} | 0 | 0 |" in page
    reasons = sum(x.rejected.get("cluster not allowed", 0) for x in census.rows)
    assert f"| cluster not allowed | {reasons:,} |" in page
    assert page.endswith("Compiled with\ndsl 1.\n")


def test_a_census_is_written_with_a_line_for_each_row(tmp_path):
    census = count((BF16, row_operation("bf16_rotary")), THOR, {"dsl": "1"}, nothing)
    (tmp_path / "c.json").write_text(text(census))
    assert read_census(tmp_path / "c.json") == census
    assert sum(line.startswith('{"') for line in text(census).splitlines()) == len(census.all_rows)
