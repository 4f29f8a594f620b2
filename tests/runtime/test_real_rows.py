"""Real objects of row kernels through the C API into the recorder: what the GPU would be told."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import pytest

from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.package.manifest import from_json, to_json
from aot.select.join import renumbered_steps
from aot.select.table.stepped import select_stepped
from tests.compiling import compile_kernels
from tests.golden.manifest import as_compiled
from tests.objects import parameter_sizes, small_manifest
from tests.runtime.host import Library, compile_library
from tests.runtime.rows import Rows, row_problem

OPERATIONS = (
    row_operation("bf16_rms_norm"),
    row_operation("bf16_e4m3_rms_norm"),
    row_operation("bf16_silu_mul"),
    row_operation("bf16_rotary"),
    row_operation("bf16_e4m3_quantize"),
)
X, Y, RESIDUAL, OUT, WEIGHT, SCALE, COS, SIN = (0x7F0000000000 + (i << 36) for i in range(8))
STREAM = 0x1234560
PROGRAMMATIC = 6
"""cudaLaunchAttributeProgrammaticStreamSerialization."""


@pytest.fixture(scope="module")
def built():
    """Give a manifest of the products of the tests and what is selected of OPERATIONS, and its objects by name."""
    manifest, objects = small_manifest("h200")
    selection = select_stepped(OPERATIONS, load_target("h200")).others
    artifacts = compile_kernels(selection.kernels, load_target("h200"))
    numbers = {artifact.kernel.key: i for i, artifact in enumerate(artifacts)}
    steps = renumbered_steps(selection.table, lambda index: numbers[selection.kernels[index]])
    table = replace(manifest.tables[0], row_table=steps)
    rows = tuple(artifact.kernel for artifact in artifacts)
    whole = replace(manifest, row_kernels=as_compiled(rows), tables=(table,))
    return from_json(to_json(whole)), objects | {x.kernel.name: x.path for x in artifacts}


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("real_rows"), list(objects.values())))


def launch(real, built, problem):
    """Launch a problem; gives its kernel, the record, and its parameters as bytes."""
    manifest, objects = built
    rows = Rows(real)
    status, found = rows.select(problem)
    assert status == 0, rows.error()
    kernel = manifest.row_kernels[found.kernel]
    sizes = parameter_sizes(objects[kernel.name])
    real.c.recorder_set_parameters((ctypes.c_int32 * len(sizes))(*sizes), len(sizes))
    assert rows.launch(problem, STREAM) == 0, rows.error()
    (record,) = real.real_launches()
    return kernel, record, bytes(record.parameters)[: sum(sizes)]


def place(operation):
    return OPERATIONS.index(operation)


def problems():
    norm = {"x": (X, (4096, 1)), "y": (Y, (4096, 1)), "weight": (WEIGHT, (0, 1))}
    added = {"residual": (RESIDUAL, (4096, 1)), "residual_out": (OUT, (4096, 1))}
    scaled = {"scale": (SCALE, (1, 1))}
    odd = {"x": (X, (77, 1)), "y": (Y, (77, 1))}
    angles = {"cos": (COS, (64, 1)), "sin": (SIN, (64, 1)), "heads": 8, "positions": 16, "rotary_dim": 128}
    heads = {"x": (X, (1024, 128, 1)), "y": (Y, (1024, 128, 1))}
    return [
        (row_problem(place(row_operation("bf16_rms_norm")), 16, 4096, **norm, **added), False),
        (row_problem(place(row_operation("bf16_rms_norm")), 300, 77, **odd), True),
        (row_problem(place(row_operation("bf16_e4m3_rms_norm")), 16, 4096, **norm, **scaled), False),
        (row_problem(place(row_operation("bf16_silu_mul")), 16, 4096, x=(X, (8192, 1)), y=(Y, (4096, 1))), False),
        (row_problem(place(row_operation("bf16_rotary")), 16, 128, **heads, **angles), False),
        (
            row_problem(
                place(row_operation("bf16_e4m3_quantize")), 16, 100000, x=(X, (100000, 1)), y=(Y, (100000, 1)), **scaled
            ),
            False,
        ),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_kernel_is_launched_programmatically_with_its_operands(real, built, number):
    problem, is_fallback = problems()[number]
    kernel, record, parameters = launch(real, built, problem)
    assert (kernel.limits.alignment_bytes == 1) == is_fallback
    assert record.block[0] * record.block[1] * record.block[2] == kernel.num_threads
    assert record.stream == STREAM
    attributes = {record.attribute_ids[i]: record.attribute_values[i][0] for i in range(record.num_attributes)}
    assert attributes[PROGRAMMATIC] == 1
    assert record.smem_bytes <= kernel.smem_bytes
    for tensor in (
        problem.x,
        problem.y,
        problem.residual,
        problem.residual_out,
        problem.weight,
        problem.cos,
        problem.scale,
    ):
        if tensor.data is not None:
            assert struct.pack("<Q", tensor.data) in parameters


def test_a_grid_has_a_cta_for_each_row(real, built):
    norm = {"x": (X, (4096, 1)), "y": (Y, (4096, 1))}
    for rows in (1, 7, 64, 1000):
        kernel, record, _ = launch(real, built, row_problem(0, rows, 4096, **norm))
        assert record.grid[0] == -(-rows // kernel.candidate.knobs.rows_per_cta)
        assert (record.grid[1], record.grid[2]) == (1, 1)
