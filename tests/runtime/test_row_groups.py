"""Rows in groups, of operations that write factors in atoms, over the recorder: by the C API and by the package."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.signature import RowFlag
from aot.measure.call_structs import RowsProblemStruct
from tests.runtime import host
from tests.runtime.rows import Rows, row_manifest
from tests.runtime.tensors import E4M3, E8M0, FLOAT32, INT32, UINT8
from tests.runtime.test_row_factors import SCALE, OnGpu, X, Y, factors
from tests.runtime.test_rows import ARGUMENT, OK, SHAPE, STRIDE, norm

OFFSETS, INDEX = 5 << 30, 6 << 30
START = 8
GROUPS, GATHERED = RowFlag.HAS_OFFSETS, RowFlag.HAS_OFFSETS | RowFlag.HAS_INDEX
MXFP8, PAIRS = row_operation("bf16_mxfp8_quantize"), row_operation("bf16_nvfp4_silu_mul")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    manifest = replace(row_manifest(), package="groups-of-rows-gemm")
    return host.compile_package(manifest, tmp_path_factory.mktemp("groups"))


@pytest.fixture
def rows(package):
    return Rows(host.Library(package._library.LIBRARY))


def grouped(num_groups=3, **changes):
    """Make a problem of 50 rows in groups."""
    numbers = {x: changes.pop(x) for x in ("rows_of_x",) if x in changes}
    problem = factors(**({"offsets": (OFFSETS, (1, 1))} | changes))
    problem.num_groups = num_groups
    for name, value in numbers.items():
        setattr(problem, name, value)
    return problem


def test_atoms_begin_anew_with_each_group(rows):
    assert rows.launch(grouped(num_rows=130)) == OK, rows.error()
    assert rows.launch(grouped(70, operation=MXFP8, flags=START)) == OK, rows.error()
    pairs = grouped(1, operation=PAIRS, x=(X, (608, 1)), index=(INDEX, (1, 1)), rows_of_x=7)
    assert rows.launch(pairs) == OK, rows.error()
    assert rows.launch(factors()) == OK, rows.error()
    nvfp4, mxfp8, silu, plain = rows.launches()
    # Two atoms of 130 rows, and one more for each group behind the first; 19 factors of a row take five atoms.
    assert (nvfp4.scale.data, *nvfp4.scale.shape) == (SCALE, 2 + 2, 5 * 512)
    assert (nvfp4.offsets.data, *nvfp4.offsets.shape, nvfp4.flags) == (OFFSETS, 3, GROUPS)
    assert (nvfp4.x.shape[0], nvfp4.y.shape[0], nvfp4.index.data) == (130, 130, None)
    assert (*mxfp8.scale.shape, *mxfp8.offsets.shape) == (1 + 69, 3 * 512, 71)
    assert mxfp8.flags == GROUPS | RowFlag.OFFSETS_START
    assert (*silu.x.shape, *silu.y.shape, silu.flags) == (7, 608, 50, 304, GATHERED)
    assert (silu.index.data, *silu.index.shape) == (INDEX, 50)
    assert (*plain.scale.shape, plain.flags, plain.offsets.data) == (1, 5 * 512, 0, None)


def test_an_older_program_knows_no_groups(rows):
    problem = grouped(num_rows=130)
    problem.struct_bytes = RowsProblemStruct.offsets.offset
    assert rows.launch(problem) == OK, rows.error()
    (got,) = rows.launches()
    assert (*got.scale.shape, got.flags) == (2, 5 * 512, 0)


@pytest.mark.parametrize(
    ("problem", "status", "text"),
    [
        (grouped(0), ARGUMENT, "got offsets, an index or rows_of_x, and num_groups is 0; expected 1 or more"),
        (factors(index=(INDEX, (1, 1))), ARGUMENT, "got offsets, an index or rows_of_x, and num_groups is 0"),
        (grouped(-1), SHAPE, "num_groups is -1; expected 0 to 4194303"),
        (grouped(1 << 22), SHAPE, "num_groups is 4194304; expected 0 to 4194303"),
        (grouped(1 << 20), SHAPE, "the scale of (50, 304) takes 2684354560 bytes; expected at most 2147483647"),
        (grouped(rows_of_x=-1, index=(INDEX, (1, 1))), SHAPE, "rows_of_x is -1"),
        (grouped(offsets=(0, (1, 1))), ARGUMENT, "`offsets.data` is null"),
        (grouped(rows_of_x=7), ARGUMENT, "`index.data` is null"),
        (grouped(offsets=(OFFSETS, (2, 1))), STRIDE, "offsets of 3 integers has the stride 2; expected 1"),
        (grouped(index=(INDEX, (2, 1)), rows_of_x=7), STRIDE, "the index of 50 integers has the stride 2"),
        (grouped(offsets=(OFFSETS + 2, (1, 1))), STRIDE, "offsets is at address"),
        (grouped(offsets=(SCALE + 64, (1, 1))), STRIDE, "overlaps offsets"),
        (grouped(index=(Y, (1, 1)), rows_of_x=7), STRIDE, "overlaps the index"),
        (factors(flags=START), ARGUMENT, "of groups, AOT_ROWS_OFFSETS_START (0x8) those of 0x0"),
        (norm(offsets=(OFFSETS, (1, 1))), ARGUMENT, "got offsets, which operation bf16_rms_norm does not take"),
        (grouped(index=(INDEX, (1, 1)), rows_of_x=0, x=(X, (304, 1))), OK, ""),
        (grouped(num_rows=0), OK, ""),
    ],
)
def test_what_a_launch_of_groups_refuses(rows, problem, status, text):
    assert rows.launch(problem) == status, rows.error()
    assert text in (rows.error() or "")


def test_an_operation_without_factors_has_no_groups(rows):
    problem = norm()
    problem.num_groups = 2
    assert rows.launch(problem) == ARGUMENT
    assert "num_groups is 2, of groups, which bf16_rms_norm does not take; expected 0" in rows.error()


def test_the_package_gathers_and_rounds_in_one_launch(package, rows, tensor):
    x, own = tensor((40, 304)), tensor((1,), FLOAT32)
    offsets, index = tensor((5,), INT32), tensor((130,), INT32)
    y, (scale, same) = package.quantize(x, "nvfp4", scale=own, offsets=offsets, index=index, groups=4)
    assert same is own
    assert (y.shape, y.dtype) == ((130, 152), UINT8)
    assert (scale.shape, scale.dtype) == (((2 + 3) * 5 * 512,), E4M3)
    (got,) = rows.launches()
    assert (got.x.data, *got.x.shape, *got.y.shape) == (x.address, 40, 304, 130, 304)
    assert (got.offsets.data, *got.offsets.shape) == (offsets.address, 5)
    assert (got.index.data, *got.index.shape) == (index.address, 130)
    assert got.flags == GATHERED | RowFlag.OFFSETS_START


def test_gates_are_rounded_in_groups_by_name_too(package, rows, tensor):
    x, offsets = tensor((130, 128)), tensor((4,), INT32)
    y, scale = package.silu_mul(x, out_dtype="mxfp8", offsets=offsets, groups=4)
    assert (y.shape, y.dtype, scale.shape, scale.dtype) == ((130, 64), E4M3, ((2 + 3) * 512,), E8M0)
    again, _ = package.rows("silu_mul", x, out_dtype="mxfp8", offsets=offsets)
    assert again.shape == y.shape
    assert [(*x.offsets.shape, x.flags) for x in rows.launches()] == [(4, GROUPS)] * 2


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"index": ((4,), INT32)}, "OperandError", "quantize: got an index without offsets"),
        ({"groups": 3}, "OperandError", "quantize: got groups without offsets; expected where each group ends"),
        ({"offsets": ((4,), INT32), "groups": 2}, "ShapeError", r"offsets has shape \(4,\) and groups is 2"),
        ({"offsets": ((4,), INT32), "groups": "4"}, "ShapeError", "groups is '4'"),
        ({"offsets": ((0,), INT32)}, "ShapeError", r"offsets has shape \(0,\); expected where each group ends"),
        ({"offsets": ((1,), INT32), "groups": 0}, "ShapeError", "of 1 to 4194303"),
        ({"offsets": ((4,), FLOAT32)}, "DtypeError", "offsets is float32; expected int32"),
        ({"offsets": ((2, 2), INT32)}, "ShapeError", r"offsets has shape \(2, 2\); expected a vector"),
        ({"offsets": ((2,), INT32), "index": ((2,), FLOAT32)}, "DtypeError", "index is float32; expected int32"),
    ],
)
def test_what_the_package_refuses_of_groups(package, rows, tensor, options, error, text):
    given = {name: tensor(*value) if isinstance(value, tuple) else value for name, value in options.items()}
    with pytest.raises(getattr(package, error), match=text):
        package.quantize(tensor((4, 64)), "mxfp8", **given)
    assert rows.launches() == []


def test_groups_are_of_two_dimensions_and_of_factors(package, rows, tensor):
    offsets = tensor((2,), INT32)
    with pytest.raises(package.ShapeError, match=r"x has shape \(2, 4, 64\) beside offsets; expected \(rows, cols\)"):
        package.quantize(tensor((2, 4, 64)), "mxfp8", offsets=offsets)
    with pytest.raises(package.OperandError, match="got offsets, which go with nvfp4, mxfp4 and mxfp8"):
        package.quantize(tensor((4, 64)), "float8_e4m3fn", offsets=offsets)
    assert rows.launches() == []


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_torch_gathers_and_rounds_by_the_kernel_where_there_is_one(package, monkeypatch, name):
    blocks, calls = import_module(f"{package.__name__}._torch_blocks"), []
    x, ends, index = (
        torch.randn(5, 64, dtype=torch.bfloat16),
        torch.tensor([0, 2, 6]),
        torch.tensor([4, 1, 1, 0, -1, 5]),
    )
    expected = blocks.quantize(x, name, offsets=ends, index=index, groups=2)

    def quantize(given, dtype, **options):
        calls.append((tuple(given.shape), dtype, options))
        return expected

    monkeypatch.setattr(package._rows, "quantize", quantize)
    assert blocks.quantize(x.as_subclass(OnGpu), name, offsets=ends, index=index, groups=2) == expected
    ((shape, dtype, options),) = calls
    assert (shape, dtype, options["groups"]) == ((5, 64), name, 2)
    for key, value in (("offsets", ends), ("index", index)):
        assert options[key].dtype == torch.int32
        assert options[key].tolist() == value.tolist()
    assert (options["scale"] is None) == (name == "mxfp8")
