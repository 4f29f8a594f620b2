import json
import re
from dataclasses import replace

import pytest

from aot.core.errors import OutputError
from aot.core.execution import Execution, executions_path, write_executions
from aot.core.operation import Operation
from aot.core.target import load_target, target_names
from aot.families import families, families_for
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.space.enumeration import has_tuned_kernels
from research.studies import support as module
from research.studies.census import read_census
from research.studies.support import (
    BEGIN,
    END,
    Support,
    alike,
    family_fault,
    markdown,
    measured_operations,
    proven_operations,
    support,
    with_tables,
)
from tests.unit.test_docs import ROOT

PAGE = ROOT / "docs" / "operations.md"


def rows():
    """Return the statuses of products and of operations on rows by tag."""
    lines = [line.strip("| ").split(" | ") for line in markdown().splitlines() if line.startswith("| `")]
    return {line[0].strip("`"): line[3:] for line in lines if len(line) == 3 + len(alike(target_names()))}


@pytest.mark.walk
@pytest.mark.slow
def test_the_page_is_what_the_code_says():
    """Where this fails: python -m research.studies.support."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page


@pytest.mark.walk
@pytest.mark.slow
def test_every_operation_has_a_status_on_every_target():
    found = rows()
    assert list(found) == [*(x.tag for x in Operation), *(x.tag for x in row_operations())]
    assert sorted(x for names in alike(target_names()) for x in names) == target_names()
    known = re.compile(
        r"measured|by the times of [a-z0-9_]+_kk|right, not timed|(executed|compiles), not run|fallback only|none"
    )
    assert [cell for cells in found.values() for cell in cells if not known.fullmatch(cell)] == []


@pytest.mark.slow
def test_only_what_a_record_has_is_measured():
    assert measured_operations("thor") == frozenset()
    assert Operation.BF16_KK in measured_operations("h200")
    assert support(Operation.BF16_KK, "h200") == Support("measured")
    assert support(Operation.BF16_KK, "thor") == Support("executed, not run")
    assert support(Operation.BF16_KK_SILU, "thor") == Support("compiles, not run")


def test_an_operation_is_executed_where_all_of_its_kernels_were_right(tmp_path, monkeypatch):
    right = Execution("bf16_kk_sm100_tgv_64x8", "0" * 64, "f" * 64, 3, 2, 6, 0.5, 0, "2026-11-26")
    path = executions_path("thor", tmp_path)
    monkeypatch.setattr(module, "executions_path", lambda target: executions_path(target, tmp_path))
    others = [
        replace(right, kernel="bf16_kk_bias_sm100_tgv_64x8"),
        replace(right, kernel="bf16_kk_bias_sm100_tgv_64x16", num_findings=1),
        replace(right, kernel="fp16_kk_simt_64x64_c1x1_direct"),
        replace(right, kernel="bf16_rms_norm_row_looped_512x1_v8x2"),
        replace(right, kernel="bf16_rotary_row_scalar_256x1_v1x4"),
    ]
    write_executions(path, "thor", [right, *others])
    module.executed_operations.cache_clear()
    assert module.executed_operations("thor") == {Operation.BF16_KK, row_operation("bf16_rms_norm")}
    assert module.executed_operations("h100") == frozenset()
    module.executed_operations.cache_clear()


def test_what_was_right_on_a_device_is_said_where_it_was_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    checks = [
        {"operation": "e5m2e4m3_bf16_kk", "num_problems": 300, "num_right": 300},
        {"operation": "e4m3e5m2_bf16_kk", "num_problems": 300, "num_right": 299},
        {"operation": "e4m3_fp32_kk", "num_problems": 0, "num_right": 0},
    ]
    (tmp_path / "h100_20261122_operands.json").write_text(json.dumps({"checks": checks}))
    proven_operations.cache_clear()
    assert proven_operations("h100") == {Operation.E5M2E4M3_BF16_KK}
    proven_operations.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "thor"])
@pytest.mark.parametrize("tag", ["bf16_kk", "bf16_kk_silu", "e4m3_bf16_kk", "tf32_kk", "fp32_kk"])
def test_a_family_builds_what_legality_lets_through(tag, target):
    operation, device = Operation(tag), load_target(target)
    able = [x for x in families_for(device) if not x.is_fallback and not family_fault(x, operation, device)]
    assert bool(able) == has_tuned_kernels(operation, device)


def test_a_family_is_refused_with_the_reason():
    h200 = load_target("h200")
    assert (
        family_fault(families()["sm90_quack"], Operation.FP32_KK, h200) == "element types not supported by the family"
    )
    assert (
        family_fault(families()["sm90_partial_tile"], Operation.BF16_MN, h200) == "layout not supported by the family"
    )
    assert family_fault(families()["sm90_quack"], Operation.BF16_MN, h200) == ""


def test_what_not_even_the_fallback_computes_is_refused_with_the_reason(monkeypatch):
    support.cache_clear()
    monkeypatch.setattr(families()["simt"], "types", ())
    monkeypatch.setattr(module, "_has_tuned", lambda *_: False)
    found = support(Operation.FP32_KK, "h100")
    assert found.status == "none"
    assert found.reason.startswith(
        "no kernel computes every fp32_kk, so that no table can have it: simt_64x64_c1x1_dir"
    )
    support.cache_clear()


def test_a_page_without_a_place_is_refused():
    with pytest.raises(OutputError, match="the page has no place for its tables; expected the lines"):
        with_tables(f"# A page\n{BEGIN}\n")
    with pytest.raises(OutputError):
        with_tables(f"# A page\n{END}\n")


def test_an_operation_on_rows_is_right_where_all_of_its_kernels_were(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    checks = {"bf16_rms_norm_row_scalar_256x1_v1x4": [14, 0], "fp16_rms_norm_row_scalar_256x1_v1x4": [14, 1]}
    (tmp_path / "h100_20261122_row_kernels.json").write_text(json.dumps({"checks": checks}))
    lines = ["bf16_silu_mul_row_scalar_256x1_v1x4: right in all cases"]
    (tmp_path / "h100_20261123_verified.json").write_text(json.dumps({"right": lines}))
    module.proven_rows.cache_clear()
    assert module.proven_rows("h100") == {row_operation("bf16_rms_norm"), row_operation("bf16_silu_mul")}
    module.proven_rows.cache_clear()


FALLBACKS = "simt", "row_scalar", "weight_only_simt"


@pytest.mark.walk
@pytest.mark.slow
def test_what_is_said_to_compile_for_a_thor_has_compiled():
    census = read_census(ROOT / "research" / "studies" / "thor-census.json")
    compiled = {x.operation.tag for x in census.all_rows if x.num_compiled and x.family not in FALLBACKS}
    column = next(i for i, names in enumerate(alike(target_names())) if "thor" in names)
    said = ("compiles, not run", "executed, not run")
    assert {tag for tag, cells in rows().items() if cells[column] in said} == compiled
    fallbacks = {x.operation.tag for x in census.all_rows if x.num_compiled and x.family in FALLBACKS}
    assert set(rows()) == fallbacks
