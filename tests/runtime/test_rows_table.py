"""What the package says of row operations without a GPU: plans, in words, and by which table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.core.dispatch import Tier
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.kinds.rows.dispatch import look_up_rows
from aot.kinds.rows.problem import RowProblem
from tests.compiling import some
from tests.runtime import host
from tests.runtime.rows import row_manifest


@pytest.fixture(scope="module")
def manifest():
    return replace(row_manifest(), package="tabled-gemm")


@pytest.fixture(scope="module")
def package(manifest, tmp_path_factory):
    return host.compile_package(manifest, tmp_path_factory.mktemp("tabled"))


def asked(operation):
    """Return what `plan_rows` is asked for an operation by."""
    granularity = operation.scale.value if operation.is_quantized and not operation.form else "row"
    out = {"out_dtype": operation.form or operation.y.value, "granularity": granularity}
    return operation.function.name, operation.x.value, out


@pytest.mark.parametrize("operation", some(row_operations()))
@pytest.mark.parametrize(("rows", "cols"), [(1, 64), (16, 4096), (300, 100), (70000, 20000), (5, 1 << 20)])
def test_a_plan_is_what_the_table_says(package, manifest, operation, rows, cols):
    function, dtype, options = asked(operation)
    got = package.plan_rows(function, rows, cols, dtype, **options)
    section = manifest.tables[0].row_table.sections[operation.position]
    limits = [kernel.limits for kernel in manifest.row_kernels]
    # Half of what is rotated is whole vectors too.
    alignment = 1 if operation == row_operation("bf16_rotary") and cols // 2 % 8 else 16
    found = look_up_rows(section, RowProblem(operation, rows, cols), limits, alignment)
    if operation.function.name == "rotary" and cols // 2 % 8:
        assert got.tier == "fallback"
        return
    assert (got.operation, got.tier) == (operation.tag, "grid" if found.tier is Tier.GRID else "fallback")
    kernel = manifest.row_kernels[found.kernel]
    assert (got.kernel, got.state) == (kernel.name, str(kernel.state))
    least = operation.num_bytes(rows, cols) / manifest.tables[0].bandwidth_bytes_per_s * 1e6
    assert got.roofline_us == pytest.approx(least)
    assert (got.bucket is None) == (got.tier == "fallback")


def test_a_predicted_time_is_shown_for_its_own_size_alone(package, manifest):
    section = manifest.tables[0].row_table.sections[0]
    column = section.columns[0]
    step = column.steps[0]
    got = package.plan_rows("rms_norm", step.rows, column.cols)
    assert (got.time_us, got.provenance, got.bucket) == (step.time_us, "predicted", (step.rows, column.cols))
    assert package.plan_rows("rms_norm", step.rows - 1, column.cols).time_us is None
    assert package.plan_rows("rms_norm", step.rows, column.cols - 8).time_us is None
    text = package.explain_rows("rms_norm", step.rows, column.cols)
    assert f"rms_norm of bfloat16, rows {step.rows} cols {column.cols}, on sm_90a, by the table of h200" in text
    assert "  state      compiled: compiled, and neither run nor executed" in text.splitlines()
    assert f"{step.time_us:.2f} us at the bucket's edge, rows {step.rows}, predicted, not measured" in text


def test_a_measured_time_stands_for_fewer_rows(manifest, tmp_path):
    first = manifest.tables[0]
    section = first.row_table.sections[0]
    steps = tuple(replace(step, provenance="measured") for step in section.columns[0].steps)
    columns = (replace(section.columns[0], steps=steps), *section.columns[1:])
    table = replace(first.row_table, sections=(replace(section, columns=columns), *first.row_table.sections[1:]))
    changed = replace(manifest, package="measured-gemm", tables=(replace(first, row_table=table),))
    package = host.compile_package(changed, tmp_path)
    got = package.plan_rows("rms_norm", steps[0].rows - 1, columns[0].cols)
    assert (got.time_us, got.provenance) == (steps[0].time_us, "measured")
    assert "measured" in package.explain_rows("rms_norm", steps[0].rows - 1, columns[0].cols)


def test_a_fallback_is_explained(package):
    assert "fallback: the table's kernel here takes no such number of columns" in package.explain_rows(
        "rms_norm", 4, 99
    )


def test_info_names_the_kernels(package, manifest):
    info = package.info()
    assert info.row_kernels == tuple(kernel.name for kernel in manifest.row_kernels)
    assert f"{len(manifest.kernels) + len(manifest.row_kernels)} kernels for sm_90a" in str(info)
    assert str(info).count("\n") < 30


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("batch_norm", 1, 8), {}, "UnsupportedError", "function is 'batch_norm'; expected one of 'rms_norm'"),
        (("rms_norm", -1, 8), {}, "ShapeError", "rows is -1; expected 0 to"),
        (("rms_norm", 1, 2.5), {}, "ShapeError", "cols is 2.5, a float"),
        (("rms_norm", 1, 8, "float64"), {}, "DtypeError", "dtype is 'float64'"),
        (("rms_norm", 1, 8, "int8"), {}, "DtypeError", "there is none of int8 to int8"),
        (("quantize", 1, 8), {"granularity": "column"}, "UnsupportedError", "granularity is 'column'"),
        (("rms_norm", 1, 8), {"target": "h100"}, "UnsupportedError", "target is 'h100'; this wheel has tables of h200"),
    ],
)
def test_what_a_plan_refuses(package, arguments, options, error, text):
    with pytest.raises(getattr(package, error), match=text):
        package.plan_rows(*arguments, **options)


def test_a_library_whose_row_kernels_are_others_is_refused(package, monkeypatch):
    values, (library,) = package._manifest.manifest(), package._library.libraries()
    others = [{**x, "name": f"{x['name']}_other"} if "limits" in x else x for x in values["kernels"]]
    monkeypatch.setattr(package._manifest, "manifest_in", lambda _: {**values, "kernels": others})
    with pytest.raises(package.CorruptLibraryError, match="or names others; reinstall the package"):
        package._manifest.compare_with_manifest.__wrapped__(library)
