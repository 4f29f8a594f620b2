"""Libraries of row operations over the recorder: their manifest, and their C API by ctypes."""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace

import numpy as np

from aot.core.execution import KernelState
from aot.kinds.rows.candidate import RowKernelKey, RowLimits, row_candidate
from aot.kinds.rows.catalogue import OWN_ROW_OPERATIONS, row_operations
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable
from aot.kinds.rows.kernel import RowKernel
from aot.kinds.rows.operation import RowOperation
from aot.measure.call_structs import RowsProblemStruct, RowsSelectionStruct, RowsTensorStruct
from tests.golden.manifest import golden_manifest
from tests.runtime.structs import GateTensor, Tensor, Vector

FIRST_ROW_OPERATION = 1 << 17
"""kFirstRowOperationId of row_operation.cc."""

SCALAR = row_candidate("row_scalar", 128, 1, 1, 1)
SMALL = row_candidate("row_registers", 64, 2, 8, 2)
WIDE = row_candidate("row_registers", 256, 1, 8, 8)
ANY = row_candidate("row_twice", 256, 1, 8, 1)
LIMITS = {
    SCALAR: RowLimits(),
    SMALL: RowLimits(16, 8, 1024),
    WIDE: RowLimits(16, 8, 16384),
    ANY: RowLimits(16, 8),
}
"""What kernels of the tests ask of a problem."""


def row_kernel(operation, candidate, limits=None):
    """Make the manifest's entry of a row kernel as the DSL would name it; its limits are by default those of LIMITS."""
    name = RowKernelKey(operation, candidate).name
    return RowKernel(
        name=name,
        operation=operation,
        candidate=candidate,
        object_sha256="0" * 64,
        object_bytes=20000,
        ptx_sha256="0" * 64,
        entry_symbol=f"_mlir_{name}__mlir_ciface_entry",
        init_symbol=f"_mlir_{name}_cuda_init",
        load_symbol=f"_mlir_{name}_cuda_load_to_device",
        signature=operation.signature,
        limits=limits or LIMITS[candidate],
        smem_bytes=128,
        num_threads=candidate.knobs.num_threads,
        registers=40,
        spill_bytes=0,
        state=KernelState.COMPILED,
    )


def _column(rng, cols, kernels):
    fit = [i for i, x in kernels.items() if x.max_cols >= cols]
    edges = sorted(rng.sample(range(1, 20000), rng.randint(1, 6)))
    return RowColumn(cols, tuple(RowStep(x, rng.choice(fit), rng.uniform(1, 99), "predicted") for x in edges))


def row_tables(operations, seed=7):
    """Make row kernels of operations, the fallback of each first, and a random table over them."""
    rng = random.Random(seed)
    kernels, sections = [], []
    for operation in operations:
        first = len(kernels)
        kernels += [row_kernel(operation, candidate) for candidate in LIMITS]
        fast = {first + i: limits for i, limits in enumerate(LIMITS.values()) if i}
        edges = sorted(rng.sample((64, 96, 128, 1000, 1024, 4096, 5000, 16384, 20000), rng.randint(1, 6)))
        columns = tuple(_column(rng, cols, fast) for cols in edges)
        sections.append(RowSection(operation, columns, first))
    return tuple(kernels), RowTable(tuple(sections))


def with_rows(manifest, operations=OWN_ROW_OPERATIONS, seed=7):
    """Give a manifest row operations, in its first table."""
    kernels, table = row_tables(operations, seed)
    first = replace(manifest.tables[0], row_table=table)
    return replace(manifest, row_kernels=kernels, tables=(first, *manifest.tables[1:]))


def row_manifest():
    """Make a manifest of every row operation beside a few products."""
    return with_rows(golden_manifest())


class RowOperandStruct(ctypes.Union):
    """A matrix: its fields are those of one; of a rotary embedding, `heads` is it."""

    _fields_ = (("matrix", Tensor), ("heads", GateTensor))
    _anonymous_ = ("matrix",)


class CacheTensor(ctypes.Structure):
    """`CacheTensor` of row_problem.h."""

    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 4), ("strides", ctypes.c_int64 * 3))


class RowLaunch(ctypes.Structure):
    """What row_recorder.cc keeps of a launch."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kernel", "device", "num_arguments", "flags")),
        *((name, ctypes.c_float) for name in ("eps", "weight_offset")),
        *((name, RowOperandStruct) for name in ("x", "residual")),
        *((name, Vector) for name in ("weight", "bias")),
        *((name, Tensor) for name in ("cos", "sin")),
        *((name, RowOperandStruct) for name in ("keys", "values", "y")),
        *((name, CacheTensor) for name in ("key_cache", "value_cache")),
        ("residual_out", RowOperandStruct),
        ("scale", Tensor),
        *((name, Vector) for name in ("tensor_scale", "offsets", "index", "cache_position")),
        ("stream", ctypes.c_void_p),
    )


def _data(array):
    return ctypes.c_void_p(array.ctypes.data)


class Rows:
    """The row operations of a library under test."""

    def __init__(self, library):
        self.c, self.library = library.c, library
        self.c.aot_rows_kernel_name.restype = ctypes.c_char_p
        self.c.recorder_reset()
        self.c.recorder_reset_rows()

    def operation(self, tag):
        return self.c.aot_rows_operation(tag.encode())

    def select(self, problem):
        selection = RowsSelectionStruct(ctypes.sizeof(RowsSelectionStruct))
        return self.c.aot_rows_select(ctypes.byref(problem), ctypes.byref(selection)), selection

    def launch(self, problem, stream=0):
        return self.c.aot_rows_launch(ctypes.byref(problem), ctypes.c_void_p(stream))

    def launch_kernel(self, kernel, problem, stream=0):
        return self.c.aot_rows_launch_kernel(kernel, ctypes.byref(problem), ctypes.c_void_p(stream))

    def error(self):
        return self.library.error()

    def launches(self):
        records = []
        for index in range(self.c.recorder_num_rows()):
            record = RowLaunch()
            self.c.recorder_rows(index, ctypes.byref(record))
            records.append(record)
        return records

    def choose(self, operation, shapes):
        """Look up int64 shapes of an operation, by its place, (rows, cols) each; gives (kernel, index) of each."""
        choices = np.empty((len(shapes), 2), np.int64)
        self.c.chooser_choose_rows(
            ctypes.c_int32(operation), ctypes.c_int64(len(shapes)), _data(shapes), _data(choices)
        )
        return choices


def row_problem(
    operation,
    rows,
    cols,
    *,
    flags=0,
    eps=1e-6,
    weight_offset=0.0,
    heads=0,
    positions=0,
    rotary_dim=0,
    cache=(),
    **tensors,
):
    """Make a problem of an operation, by its place in a library of all of them.

    A tensor is an address and its strides. X and Y that are not given are packed, and apart. A cache has key_heads,
    cache_length and num_positions.
    """
    operation = list(row_operations()).index(operation) if isinstance(operation, RowOperation) else operation
    sizes = (FIRST_ROW_OPERATION + operation, -1, rows, cols, flags, eps, weight_offset)
    problem = RowsProblemStruct(ctypes.sizeof(RowsProblemStruct), *sizes)
    problem.heads, problem.positions, problem.rotary_dim = heads, positions, rotary_dim
    for name, extent in zip(("key_heads", "cache_length", "num_positions"), cache, strict=False):
        setattr(problem, name, extent)
    for name, (address, strides) in tensors.items():
        setattr(problem, name, RowsTensorStruct(address, (*strides, *(0,) * (3 - len(strides)))))
    return problem
