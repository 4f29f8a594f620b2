"""Row operations through the C API, over the recorder: look-up, launches, checks."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from aot.core.dispatch import Tier
from aot.core.errors import DeviceError
from aot.core.operands import Matrix, Tensor
from aot.kinds.rows.call import RowCall
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.kinds.rows.dispatch import look_up_rows
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.reference import RowParameters
from aot.kinds.rows.signature import RowArgument, RowFlag
from aot.measure.call_structs import (
    INTERLEAVED,
    ROUND_NORM,
    SCALE_GIVEN,
    RowsProblemStruct,
    RowsSelectionStruct,
    RowsTensorStruct,
)
from aot.measure.kernel_library import KernelLibrary
from tests.runtime import host
from tests.runtime.rows import SCALAR, Rows, row_manifest, row_problem
from tests.struct_layout import layout_of_ctypes, layout_of_header

MIB = 1 << 20
X, Y, RESIDUAL, OUT, WEIGHT, BIAS, SCALE, COS, SIN, KEYS = (x * 1000 * MIB for x in range(1, 11))
NORM, QUANTIZED = row_operation("bf16_rms_norm"), row_operation("bf16_e4m3_rms_norm")
OK, ARGUMENT, OPERATION, SHAPE, STRIDE = 0, 1, 2, 3, 4


@pytest.fixture(scope="module")
def manifest():
    return row_manifest()


@pytest.fixture(scope="module")
def path(manifest, tmp_path_factory):
    return host.compile_library(manifest, tmp_path_factory.mktemp("rows"))


@pytest.fixture
def rows(path):
    return Rows(host.Library(path))


def norm(operation=NORM, num_rows=16, cols=4096, **tensors):
    """Make a problem of a norm whose X and Y are packed, with what else is given."""
    known = {"x": (X, (cols, 1)), "y": (Y, (cols, 1)), "weight": (WEIGHT, (0, 1))}
    if operation.is_quantized:
        known["scale"] = (SCALE, (1, 1))
    return row_problem(operation, num_rows, cols, **(known | tensors))


def rotary(tokens=12, heads=5, dim=128, **changes):
    known = {
        "x": (X, (heads * dim, dim, 1)),
        "y": (Y, (heads * dim, dim, 1)),
        "cos": (COS, (dim // 2, 1)),
        "sin": (SIN, (dim // 2, 1)),
        "heads": heads,
        "positions": tokens,
        "rotary_dim": dim,
    }
    return row_problem(row_operation("bf16_rotary"), tokens, dim, **(known | changes))


@pytest.mark.parametrize(
    ("struct", "name"),
    [
        (RowsTensorStruct, "aot_rows_tensor_t"),
        (RowsProblemStruct, "aot_rows_problem_t"),
        (RowsSelectionStruct, "aot_rows_selection_t"),
    ],
)
def test_a_struct_of_python_is_that_of_the_header(struct, name, tmp_path):
    assert layout_of_ctypes(struct) == layout_of_header(struct, name, tmp_path)


def test_a_struct_of_another_size_is_refused(rows):
    problem = norm()
    problem.struct_bytes = RowsProblemStruct.tensor_scale.offset  # of a header that had no such field
    assert rows.launch(problem) == OK, rows.error()
    problem.struct_bytes -= 8
    assert rows.launch(problem) == ARGUMENT
    assert f"expected sizeof(aot_rows_problem_t), {ctypes.sizeof(RowsProblemStruct)} here" in rows.error()


def test_every_operation_has_a_number_and_others_have_none(rows):
    numbers = [rows.operation(operation.tag) for operation in row_operations()]
    assert numbers == [(1 << 17) + i for i in range(len(row_operations()))]
    assert rows.operation("bf16_kk") == -OPERATION
    assert 'no row operation "bf16_kk" in this library; it has bf16_rms_norm, fp16_rms_norm, ' in rows.error()
    assert rows.c.aot_gemm_operation(b"bf16_rms_norm") == -OPERATION


def test_a_library_without_row_operations_says_so(tmp_path):
    from tests.golden.manifest import golden_manifest

    empty = Rows(host.Library(host.compile_library(golden_manifest(), tmp_path)))
    assert empty.c.aot_rows_num_kernels() == 0
    assert empty.c.aot_rows_kernel_name(0) is None
    assert empty.operation("bf16_rms_norm") == -OPERATION
    assert empty.error() == 'there is no row operation "bf16_rms_norm" in this library; it has none'
    assert empty.launch(norm()) == OPERATION
    assert empty.launch_kernel(0, norm()) == ARGUMENT


def test_kernels_have_names(rows, manifest):
    names = [rows.c.aot_rows_kernel_name(i).decode() for i in range(rows.c.aot_rows_num_kernels())]
    assert names == [kernel.name for kernel in manifest.row_kernels]


def test_the_look_up_is_that_of_python(rows, manifest):
    rng = np.random.default_rng(3)
    limits = [kernel.limits for kernel in manifest.row_kernels]
    for number, section in enumerate(manifest.tables[0].row_table.sections):
        edges = {*section.col_edges, *(x for column in section.columns for x in column.row_edges)}
        near = np.array(sorted({max(1, edge + step) for edge in edges for step in (-1, 0, 1)}), np.int64)
        drawn = np.exp(rng.uniform(0, np.log(2**30), 200)).astype(np.int64)
        values = np.concatenate([near, drawn])
        shapes = np.stack([rng.choice(values, 1000), rng.choice(values, 1000)], axis=1)
        found = rows.choose(number, shapes)
        for (num_rows, cols), (kernel, index) in zip(shapes.tolist(), found.tolist(), strict=True):
            expected = look_up_rows(section, RowProblem(section.operation, num_rows, cols), limits, 16)
            if expected.tier is Tier.GRID:
                assert (kernel, index) == (expected.kernel, expected.index)
            else:
                assert not limits[kernel].takes(cols)


@pytest.mark.parametrize("shift", [0, 2, 4, 8, 16])
@pytest.mark.parametrize("cols", [4096, 4100, 96, 60000])
@pytest.mark.parametrize("padding", [0, 4, 8])
def test_a_kernel_answers_where_it_takes_the_problem_and_else_the_fallback(rows, manifest, shift, cols, padding):
    section = manifest.tables[0].row_table.sections[0]
    alignment = 16 if shift % 16 == 0 and (cols + padding) % 8 == 0 else 1
    expected = look_up_rows(section, RowProblem(NORM, 16, cols), [x.limits for x in manifest.row_kernels], alignment)
    status, found = rows.select(norm(cols=cols, x=(X + shift, (cols + padding, 1))))
    assert status == OK, rows.error()
    assert (found.kernel, found.index, found.rows, found.cols) == (expected.kernel, expected.index, 16, cols)
    assert found.tier == (2 if expected.tier is Tier.GRID else 3)


def test_eight_bits_of_y_are_aligned_to_as_many_elements(rows):
    for shift, tier in ((8, 2), (4, 3)):
        status, found = rows.select(norm(QUANTIZED, cols=64, y=(Y + shift, (64, 1))))
        assert (status, found.tier) == (OK, tier)


@pytest.mark.parametrize("name", ["residual", "weight", "residual_out"])
def test_any_operand_that_is_not_aligned_is_left_to_the_fallback(rows, name):
    given = {"residual": (RESIDUAL, (4096, 1)), "residual_out": (OUT, (4096, 1)), "weight": (WEIGHT, (0, 1))}
    assert rows.select(norm(**given))[1].tier == 2
    address, strides = given[name]
    assert rows.select(norm(**given | {name: (address + 2, strides)}))[1].tier == 3


def test_a_launch_has_what_the_kernel_takes(rows):
    given = {"residual": (RESIDUAL, (5000, 1)), "residual_out": (OUT, (4104, 1))}
    problem = norm(QUANTIZED, eps=1e-5, weight_offset=1.0, **given)
    assert rows.launch(problem, stream=77) == OK, rows.error()
    (got,) = rows.launches()
    assert (got.stream, got.device, got.eps, got.weight_offset) == (77, 0, pytest.approx(1e-5), 1.0)
    assert (got.x.data, *got.x.shape, *got.x.strides) == (X, 16, 4096, 4096, 1)
    assert (got.residual.data, *got.residual.strides) == (RESIDUAL, 5000, 1)
    assert (got.residual_out.data, *got.residual_out.strides) == (OUT, 4104, 1)
    assert (got.y.data, *got.y.shape) == (Y, 16, 4096)
    assert (got.weight.data, *got.weight.shape) == (WEIGHT, 4096)
    assert (got.scale.data, *got.scale.shape, *got.scale.strides) == (SCALE, 16, 1, 1, 1)
    assert got.flags == RowFlag.HAS_RESIDUAL | RowFlag.HAS_WEIGHT | RowFlag.HAS_RESIDUAL_OUT
    assert (
        got.num_arguments == 10 + 1
    )  # x residual weight y residual_out scale eps weight_offset flags stream, the error


def test_a_layer_norm_takes_a_bias(rows):
    operation = row_operation("fp16_layer_norm")
    assert rows.launch(norm(operation, bias=(BIAS, (0, 1)))) == OK, rows.error()
    (got,) = rows.launches()
    assert (got.bias.data, *got.bias.shape) == (BIAS, 4096)
    assert got.flags == RowFlag.HAS_WEIGHT | RowFlag.HAS_BIAS
    assert rows.launch(norm(bias=(BIAS, (0, 1)))) == ARGUMENT
    assert rows.error().startswith("got a bias, which operation bf16_rms_norm does not take")


def test_a_norm_is_rounded_before_the_weight_where_that_is_asked_for(rows):
    assert rows.launch(norm(flags=ROUND_NORM)) == OK, rows.error()
    assert rows.launches()[0].flags == RowFlag.HAS_WEIGHT | RowFlag.ROUNDS_NORM
    assert rows.launch(norm(row_operation("fp16_layer_norm"), flags=ROUND_NORM)) == ARGUMENT
    assert rows.error().startswith("flags are 0x4; fp16_layer_norm takes of")


def test_a_pair_has_twice_the_columns(rows):
    problem = row_problem(row_operation("bf16_silu_mul"), 3, 512, flags=INTERLEAVED, x=(X, (1024, 1)), y=(Y, (512, 1)))
    assert rows.launch(problem) == OK, rows.error()
    (got,) = rows.launches()
    assert (*got.x.shape, *got.y.shape) == (3, 1024, 3, 512)
    assert got.flags == RowFlag.IS_INTERLEAVED


def test_a_rotary_embedding_has_heads(rows):
    assert rows.launch(rotary(flags=INTERLEAVED, positions=4, rotary_dim=64, cos=(COS, (128, 1)))) == OK, rows.error()
    (got,) = rows.launches()
    assert (*got.x.heads.shape, *got.x.heads.strides) == (12, 5, 128, 640, 128, 1)
    assert (*got.cos.shape, *got.cos.strides) == (4, 32, 128, 1)
    assert (*got.sin.shape, *got.sin.strides) == (4, 32, 64, 1)
    _, found = rows.select(rotary())
    assert (found.rows, found.cols) == (60, 128)


def cached(tokens=12, heads=5, key_heads=2, dim=128, length=64, **changes):
    """State three sequences of four tokens, whose keys and values go to caches of 64 positions."""
    of_tokens, of_cache = (key_heads * dim, dim, 1), (key_heads * length * dim, dim, length * dim)
    known = {
        "keys": (KEYS, of_tokens),
        "values": (KEYS + (1 << 20), of_tokens),
        "key_cache": (KEYS + (2 << 20), of_cache),
        "value_cache": (KEYS + (3 << 20), of_cache),
        "cache_position": (KEYS + (4 << 20), (1, 1)),
        "cache": (key_heads, length, 4),
    }
    return rotary(tokens, heads, dim, **(known | changes))


def test_keys_and_values_go_to_a_cache(rows):
    assert rows.launch(cached()) == OK, rows.error()
    (got,) = rows.launches()
    assert (*got.keys.heads.shape, *got.keys.heads.strides) == (12, 2, 128, 256, 128, 1)
    assert got.values.heads.data == KEYS + (1 << 20)
    assert (*got.key_cache.shape, *got.key_cache.strides) == (3, 64, 2, 128, 16384, 128, 8192)
    assert (got.value_cache.data, *got.value_cache.strides) == (KEYS + (3 << 20), 16384, 128, 8192)
    assert (got.cache_position.data, *got.cache_position.shape) == (KEYS + (4 << 20), 4)
    _, found = rows.select(cached())
    assert (found.rows, found.cols, found.tier) == (12 * (5 + 2 * 2), 128, 2)


def test_without_keys_a_launch_has_none(rows):
    assert rows.launch(rotary()) == OK
    (got,) = rows.launches()
    assert (*got.keys.heads.shape, got.keys.heads.data, got.key_cache.data) == (12, 0, 128, None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": (KEYS + 2, (256, 128, 1))},
        {"values": (KEYS + (1 << 20), (260, 128, 1))},
        {"key_cache": (KEYS + (2 << 20) + 8, (16384, 128, 8192))},
        {"value_cache": (KEYS + (3 << 20), (16640, 130, 8320))},
    ],
)
def test_a_cache_that_is_not_aligned_is_the_fallbacks(rows, changes):
    assert rows.select(cached(**changes))[1].tier == 3


def test_half_of_what_is_turned_is_whole_vectors_or_the_fallback_answers(rows):
    assert rows.select(rotary())[1].tier == 2
    assert rows.select(rotary(rotary_dim=24))[1].tier == 3


def test_blocks_have_scales_of_their_own(rows):
    operation = row_operation("bf16_e4m3_block_quantize")
    given = {"x": (X, (300, 1)), "y": (Y, (300, 1)), "scale": (SCALE, (1, 64))}
    assert rows.launch(row_problem(operation, 50, 300, **given)) == OK, rows.error()
    (got,) = rows.launches()
    assert (*got.scale.shape, *got.scale.strides) == (50, 3, 1, 64)
    assert rows.launch(row_problem(operation, 50, 300, flags=SCALE_GIVEN, **given)) == ARGUMENT
    assert "bf16_e4m3_block_quantize takes of" in rows.error()


def test_a_tensor_has_one_scale(rows):
    operation = row_operation("bf16_e5m2_tensor_quantize")
    given = {"x": (X, (300, 1)), "y": (Y, (300, 1)), "scale": (SCALE, (0, 1))}
    assert rows.launch(row_problem(operation, 50, 300, **given)) == OK, rows.error()
    (got,) = rows.launches()
    assert (*got.scale.shape, *got.scale.strides, got.flags) == (1, 1, 0, 1, 0)
    assert rows.launch(row_problem(operation, 50, 300, flags=SCALE_GIVEN, **given)) == ARGUMENT
    assert "bf16_e5m2_tensor_quantize takes of" in rows.error()
    assert rows.launch(row_problem(operation, 50, 300, **(given | {"scale": (Y + 4, (0, 1))}))) == STRIDE
    assert "overlaps the scale" in rows.error()


def test_one_scale_may_serve_all_where_it_is_read_alone(rows):
    operation = row_operation("bf16_int8_quantize")
    given = {"x": (X, (64, 1)), "y": (Y, (64, 1)), "scale": (SCALE, (0, 1))}
    assert rows.launch(row_problem(operation, 50, 64, flags=SCALE_GIVEN, **given)) == OK, rows.error()
    assert rows.launches()[0].flags == RowFlag.SCALE_IS_GIVEN
    assert rows.launch(row_problem(operation, 50, 64, **given)) == STRIDE
    assert rows.error().startswith("the scale with strides (0, 0, 0) overlaps itself")


@pytest.mark.parametrize(
    ("problem", "status", "text"),
    [
        (norm(y=(X, (4096, 1))), OK, ""),
        (norm(y=(X + 2, (4096, 1))), STRIDE, "y at address 0x3e800002 overlaps x"),
        (norm(y=(X, (4104, 1))), STRIDE, "overlaps x at address"),
        (norm(QUANTIZED, y=(X, (4096, 1))), STRIDE, "overlaps x at address"),
        (norm(y=(Y, (4095, 1))), STRIDE, "y with strides (4095, 1, 0) overlaps itself"),
        (norm(y=(WEIGHT, (4096, 1))), STRIDE, "overlaps the weight"),
        (norm(x=(X, (-1, 1))), STRIDE, "x has the strides (-1, 1, 0); expected none below 0"),
        (norm(x=(X + 1, (4096, 1))), STRIDE, "expected a multiple of 2"),
        (norm(x=(X, (1 << 60, 1))), STRIDE, "reaches past the end of the address space"),
        (norm(weight=(WEIGHT, (0, 2))), STRIDE, "the weight of 4096 elements has the stride 2"),
        (norm(residual_out=(OUT, (4096, 1))), ARGUMENT, "got residual_out and no residual"),
        (norm(residual=(RESIDUAL, (4096, 1)), residual_out=(RESIDUAL, (4096, 1))), OK, ""),
        (norm(residual=(RESIDUAL, (4096, 1)), residual_out=(X, (4096, 1))), OK, ""),
        (
            norm(residual=(RESIDUAL, (4096, 1)), residual_out=(X, (4096, 1)), y=(X, (4096, 1))),
            STRIDE,
            "residual_out at address 0x3e800000 overlaps y",
        ),
        (norm(residual=(Y, (4096, 1))), STRIDE, "y at address 0x7d000000 overlaps the residual"),
        (norm(QUANTIZED, scale=(X, (1, 1))), STRIDE, "the scale at address 0x3e800000 overlaps x"),
        (norm(QUANTIZED, scale=(SCALE + 2, (1, 1))), STRIDE, "expected a multiple of 4"),
        (norm(QUANTIZED, scale=(0, (1, 1))), ARGUMENT, "`scale.data` is null"),
        (norm(x=(0, (4096, 1))), ARGUMENT, "`x.data` is null"),
        (norm(scale=(SCALE, (1, 1))), ARGUMENT, "got a scale, which operation bf16_rms_norm does not take"),
        (norm(num_rows=1 << 31), SHAPE, "rows is 2147483648; expected 0 to 2147483647"),
        (norm(flags=1), ARGUMENT, "flags are 0x1; bf16_rms_norm takes of"),
        (norm(heads=1), ARGUMENT, "heads, positions and rotary_dim are 1, 0 and 0, which bf16_rms_norm does not take"),
        (rotary(rotary_dim=130), SHAPE, "rotary_dim is 130; expected an even number up to the 128"),
        (rotary(rotary_dim=63), SHAPE, "rotary_dim is 63"),
        (rotary(positions=0), SHAPE, "positions is 0; expected 1 to"),
        (rotary(heads=1 << 29), SHAPE, "there are 12 tokens of 536870912 heads"),
        (rotary(y=(X, (640, 128, 1))), OK, ""),
        (rotary(y=(X, (640, 256, 1))), STRIDE, "y with strides (640, 256, 1) overlaps itself"),
        (rotary(x=(X, (2000, 300, 1)), y=(X, (2000, 300, 1))), OK, ""),
        (rotary(x=(X, (2000, 300, 1)), y=(X + 256, (2000, 300, 1))), STRIDE, "overlaps x"),
        (rotary(y=(COS, (640, 128, 1))), STRIDE, "overlaps cos"),
        (cached(cache=(0, 0, 0)), ARGUMENT, "got keys, values, a cache or its extents, and key_heads is 0"),
        (cached(cache=(2, 64, 5)), SHAPE, "num_positions is 5 and cache_length 64, of 12 tokens"),
        (cached(cache=(2, 64, 0)), SHAPE, "num_positions is 0"),
        (cached(cache=(2, 0, 4)), SHAPE, "cache_length 0"),
        (cached(cache=(-1, 64, 4)), SHAPE, "key_heads is -1"),
        (cached(heads=0), SHAPE, "heads is 0 beside 2 key_heads"),
        (cached(key_heads=1 << 28, heads=1, keys=(0, ())), SHAPE, "there are 12 tokens of 536870913 heads"),
        (cached(keys=(0, (256, 128, 1))), ARGUMENT, "`keys.data` is null"),
        (cached(value_cache=(0, (16384, 128, 8192))), ARGUMENT, "`value_cache.data` is null"),
        (cached(cache_position=(0, (1, 1))), ARGUMENT, "`cache_position.data` is null"),
        (cached(cache_position=(KEYS + (4 << 20), (2, 1))), STRIDE, "cache_position of 4 integers has the stride 2"),
        (cached(cache_position=(KEYS + (4 << 20) + 4, (1, 1))), STRIDE, "expected a multiple of 8"),
        (cached(key_cache=(KEYS, (16384, 128, 8192))), STRIDE, "overlaps keys"),
        (cached(value_cache=(KEYS + (2 << 20), (16384, 128, 8192))), STRIDE, "overlaps key_cache"),
        (cached(value_cache=(Y, (16384, 128, 8192))), STRIDE, "overlaps y"),
        (cached(key_cache=(KEYS + (2 << 20), (16384, 0, 8192))), STRIDE, "overlaps itself"),
        (cached(key_cache=(KEYS + (2 << 20), (99999, 128, 8192))), STRIDE, "expected heads of a sequence that follow"),
        (cached(key_cache=(KEYS + (2 << 20), (99999, 256, 128))), OK, ""),
        (norm(cache=(2, 64, 4)), ARGUMENT, "key_heads, cache_length and num_positions are 2, 64 and 4, which"),
        (norm(keys=(KEYS, (1, 1))), ARGUMENT, "got keys, which operation bf16_rms_norm does not take"),
        (row_problem(row_operation("bf16_silu_mul"), 3, 8, x=(X, (16, 1)), y=(X, (16, 1))), STRIDE, "overlaps x"),
        (
            row_problem(row_operation("bf16_silu_mul"), 3, 1 << 30, x=(X, (16, 1)), y=(Y, (16, 1))),
            SHAPE,
            "cols is 1073741824",
        ),
        (row_problem(99, 3, 8), OPERATION, "row operation 131171 is unknown"),
    ],
)
def test_what_a_launch_refuses(rows, problem, status, text):
    assert rows.launch(problem) == status, rows.error()
    assert len(rows.launches()) == (status == OK)
    if status != OK:
        assert text in rows.error()


@pytest.mark.parametrize("problem", [norm(num_rows=0), norm(cols=0), rotary(heads=0), rotary(tokens=0)])
def test_an_empty_problem_launches_nothing(rows, problem):
    assert rows.launch(problem) == OK, rows.error()
    assert rows.launches() == []


def test_a_kernel_is_launched_by_its_index(rows, manifest):
    wide = next(i for i, x in enumerate(manifest.row_kernels) if x.limits.max_cols == 16384)
    assert rows.launch_kernel(wide, norm()) == OK, rows.error()
    assert [x.kernel for x in rows.launches()] == [wide]
    assert rows.launch_kernel(wide, norm(cols=4100)) == STRIDE
    assert "expected up to 16384 columns, a multiple of 8" in rows.error()
    assert rows.launch_kernel(wide, norm(row_operation("fp16_rms_norm"))) == OPERATION
    scalar = next(i for i, x in enumerate(manifest.row_kernels) if x.candidate == SCALAR)
    assert rows.launch_kernel(scalar, norm(cols=4100, x=(X + 2, (5000, 1)))) == OK, rows.error()


def test_a_kernel_is_loaded_once_and_failures_are_told(path, tmp_path):
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    fresh = Rows(host.Library(copy))
    fresh.c.recorder_fail(host.LAUNCH, 700)
    assert fresh.launch(norm()) == 7
    assert "launching kernel bf16_rms_norm_row_" in fresh.error()
    fresh.c.recorder_reset()
    assert (fresh.launch(norm()), fresh.launch(norm())) == (OK, OK)
    assert fresh.library.count(host.INIT) == 0
    assert fresh.c.aot_gemm_preload(0) == OK, fresh.error()
    assert fresh.library.count(host.LOAD) >= fresh.c.aot_rows_num_kernels() - 1


def test_memory_of_a_tensor_that_there_is_not_is_not_looked_at(rows):
    problem = norm()
    problem.residual.strides[0] = -5
    assert rows.launch(problem) == OK, rows.error()
    assert rows.launches()[0].flags == RowFlag.HAS_WEIGHT


def test_a_library_is_called_by_its_kernels_index(path, manifest):
    """The class by which `aot verify --device` runs every kernel of a wheel; those on rows come behind the products."""
    kernels, rows = KernelLibrary(path), Rows(host.Library(path))
    first = len(manifest.kernels)
    assert kernels.names == tuple(x.name for x in (*manifest.kernels, *manifest.row_kernels))

    def bound(x):
        packed = Matrix(3, 1024, 1024, 1)
        tensors = {RowArgument.X: Tensor(x, packed), RowArgument.Y: Tensor(Y, packed)}
        return kernels.bind(RowCall(RowProblem(NORM, 3, 1024), tensors, RowParameters(0.5)))

    kernels.launch(first + 1, bound(X), 0, 0, 77)
    (got,) = rows.launches()
    assert (got.kernel, got.stream, got.eps, *got.x.shape) == (1, 77, 0.5, 3, 1024)
    assert kernels.workspace_bytes(first + 1, bound(X)) == 0
    assert kernels.max_active_clusters(first + 1, bound(X), 0, 0) is None
    with pytest.raises(DeviceError, match=r"the launch of bf16_rms_norm_.* cannot take these operands"):
        kernels.launch(first + 1, bound(X + 2), 0, 0, 0)
