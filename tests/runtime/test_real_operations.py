"""Real kernels of every kind of operand through the C API: they are launched as when their entries are called."""

from __future__ import annotations

import ctypes
import struct

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid, Section
from aot.core.epilogue import Epilogue
from aot.core.formats import FactorLayout
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.core.target import load_target
from aot.families.simt import FAMILY as FALLBACK
from tests.compiling import compile_kernels
from tests.golden.manifest import golden_manifest, with_table
from tests.objects import parameter_sizes
from tests.runtime import test_operand_kernels as direct
from tests.runtime.host import Library, compile_library
from tests.runtime.stating import state

INTERLEAVED = 2
DESCRIPTOR_USED = 64
"""Bytes of a TMA descriptor that mean something; the others are whatever was on the stack."""
M, N, K = direct.M, direct.N, direct.K
SKINNY = gemm_candidate("cluster_split_k", 24, 8, 2, schedule="warps4", num_stages=3, swap_ab=True, use_tma_store=False)
KERNELS = [
    *(x for x in direct.KERNELS if x[1].family.startswith("sm90_")),
    (Operation.E4M3_BF16_KK, SKINNY),
    (Operation.E4M3_FP16_KK, SKINNY),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    target = load_target("h200")
    # A library has a table, of one operation at least; what is tested launches kernels by their index.
    operation = KERNELS[0][0]
    keys = [KernelKey(operation, next(iter(FALLBACK.candidates(operation, target)))), *(KernelKey(*x) for x in KERNELS)]
    artifacts = compile_kernels(keys, target)
    found = {x.kernel.key: x for x in artifacts}
    kernels = tuple(found[x].kernel for x in keys)
    section = Section(operation, (), Grid((1,), (1,), (Column((1,), (0,)),)), 0)
    manifest = with_table(golden_manifest(), kernels, DispatchTable((section,)))
    paths = [found[x].path for x in keys]
    library = Library(compile_library(manifest, tmp_path_factory.mktemp("real"), paths))
    return library, kernels, {x.kernel.name: x.path for x in artifacts}


def may_be_absent(operation):
    """Say whether a bias may be left away that the operation may add."""
    return operation.has_bias and operation.epilogue is not Epilogue.BIAS


def through_the_api(built, index, stated):
    library, kernels, paths = built
    sizes = parameter_sizes(paths[kernels[index].name])
    library.c.recorder_reset()
    library.c.recorder_set_parameters((ctypes.c_int32 * len(sizes))(*sizes), len(sizes))
    num_bytes = library.workspace_bytes(stated, index)
    status = library.launch_kernel(index, stated, direct.WORKSPACE if num_bytes else 0, num_bytes, direct.STREAM)
    assert status == 0, library.error()
    (record,) = library.real_launches()
    return record, num_bytes


def values_of(record, sizes, operation):
    """Give a launch's parameters, without the bytes behind a descriptor and behind the one extent of a vector."""
    content, values = bytes(record.parameters), []
    for size in sizes:
        value, content = content[:size], content[size:]
        if size == direct.DESCRIPTOR_BYTES:
            value = value[:DESCRIPTOR_USED]
        elif size in (16, 24, 32) and operation.types.factors is not FactorLayout.BLOCK:
            value = value[:12] + value[16:]
        values.append(value)
    return values


def changes_of(operation, *, bias):
    """Return where an operation's operands are, and their strides."""
    changes = {"a": (direct.A, (K, 1)), "b": (direct.B, (K, 1)), "d": (direct.D, (N, 1))}
    if operation.types.factors is FactorLayout.VECTOR:
        changes |= {"scale_a": (direct.SCALE_A, (1, 0)), "scale_b": (direct.SCALE_B, (0, 0))}
    if operation.types.factors is FactorLayout.BLOCK:
        changes |= {"scale_a": (direct.SCALE_A, (1, 0)), "scale_b": (direct.SCALE_B, (0, 1))}
    if operation.has_bias:
        changes["bias"] = (direct.BIAS, (0, 1)) if bias else None
    if operation.has_residual:
        changes["residual"] = (direct.RESIDUAL, (N, 1))
    if operation.types.scales_d:
        changes["scale_d"] = (direct.SCALE_D, (0, 0))
    return changes


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("flags", [0, INTERLEAVED])
def test_kernels_get_from_the_c_api_what_their_entries_take(built, monkeypatch, bias, flags):
    library, kernels, paths = built
    monkeypatch.setattr(direct, "STEP_A", 1)
    monkeypatch.setattr(direct, "STEP_B", 0)
    count = 0
    for index, kernel in enumerate(kernels):
        operation = kernel.operation
        if kernel.num_strides == 2 or (flags and operation.gate is None) or (not bias and not may_be_absent(operation)):
            continue
        changes = changes_of(operation, bias=bias)
        stated = state(library, operation, M, N, K, flags=flags, **changes)
        record, num_bytes = through_the_api(built, index, stated)
        given = direct.arguments(operation, halves=not flags, bias=bias)
        if operation.gate is not None and operation.types.factors is FactorLayout.VECTOR:
            given[Argument.SCALE_B] = direct.struct_of(direct.SCALE_B, (2, N), (0, 0))
        if operation.gate is not None and not bias:
            given[Argument.BIAS] = direct.struct_of(0, (2, 0), (1, 2) if flags else (N, 1))
        if Argument.PREFETCH_B in kernel.signature:
            given[Argument.PREFETCH_B] = struct.pack("<i", 0)
        given[Argument.WORKSPACE] = direct.struct_of(direct.WORKSPACE, (num_bytes // 4,), ())
        expected, _ = direct.launch(library, direct.Compiled(kernel, paths[kernel.name], 132), given)
        sizes = parameter_sizes(paths[kernel.name])
        assert values_of(record, sizes, operation) == values_of(expected, sizes, operation), kernel.name
        assert tuple(record.grid) == tuple(expected.grid)
        count += 1
    assert count >= (2 if flags else 8)
