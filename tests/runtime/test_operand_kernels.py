"""Kernels of FP8, int8, tf32, activations, residuals and gates: what their entries launch.

`make walk` asks those of a Thor too, compiled for this host, so that their entries run. Their own host's are asked by
tests/equivalence, parameter by parameter.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, replace
from itertools import cycle

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.formats import FactorLayout
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.core.target import Target, load_target
from tests.compiling import EVERY, compile_kernels, some
from tests.objects import cubin, parameter_sizes, small_manifest
from tests.runtime.host import Library, compile_library

M, N, K = 304, 528, 272
"""Multiples of 16 elements, of no tile."""
BLOCKS_OF_N, BLOCKS_OF_K = 5, 3
"""Blocks of 128, the last ones partial."""
A, B, D, SCALE_A, SCALE_B, BIAS, RESIDUAL, SCALE_D, WORKSPACE, STREAM = (0x7F0000000000 + i * 2**32 for i in range(10))
STEP_A, STEP_B = 0x11111111, 0x22222222
"""Strides of the vectors of scales; no kernel reads here."""
DESCRIPTOR_BYTES = 128
CLUSTER, PROGRAMMATIC = 4, 6  # cudaLaunchAttributeID


def sm90(tile_m, tile_n, schedule="pingpong", **fields):
    return gemm_candidate("sm90_quack", tile_m, tile_n, schedule=schedule, **fields)


def early(tile_m, tile_n, schedule="pingpong", **fields):
    return gemm_candidate("sm90_prefetch_b", tile_m, tile_n, schedule=schedule, **fields)


def sm90_block(tile_m, tile_n, schedule="pingpong", **fields):
    return gemm_candidate("sm90_block_scale", tile_m, tile_n, schedule=schedule, **fields)


def sm100(tile_m, tile_n, schedule="clc", **fields):
    return gemm_candidate("sm100_quack", tile_m, tile_n, schedule=schedule, **fields)


SERIAL = {"split_k": 4, "split_k_mode": SplitK.SERIAL}
PARALLEL = {"split_k": 2, "split_k_mode": SplitK.PARALLEL}
PAIR = {"cluster_m": 2, "use_2cta": True}
SOME = [
    (Operation.E4M3_BF16_KK, sm90(64, 16, swap_ab=True)),
    (Operation.E4M3_FP32_KK, sm90(128, 64, **SERIAL)),
    (Operation.E4M3_E4M3_KK, sm90(64, 192, "cooperative")),
    (Operation.FP16_KK_RELU, sm90(64, 32, swap_ab=True, **PARALLEL)),
    (Operation.BF16_KK_RESIDUAL, sm90(128, 128, cluster_n=2)),
    (Operation.FP16_KK_BIAS, sm90(64, 16, swap_ab=True)),
    (Operation.BF16_KK_SWIGLU, sm90(128, 256, "cooperative")),
    (Operation.E4M3_BF16_KK_SWIGLU, sm90(64, 64)),
    (Operation.E4M3_BF16_KK_RESIDUAL, sm90(64, 192, "cooperative", swap_ab=True, **SERIAL)),
    (Operation.E4M3_BF16_KK, early(64, 8, swap_ab=True)),
    (Operation.BF16_KK_SILU, early(64, 64, **SERIAL)),
    (Operation.INT8_INT32_KK, sm90(64, 16, swap_ab=True)),
    (Operation.TF32_KK, sm90(192, 192, "cooperative", cluster_m=2)),
    (Operation.E4M3_BF16_BLOCK_KK, sm90_block(128, 128, "cooperative")),
]
"""Of each family and kind of operands one; where there is one, the kernel that tests/equivalence compiles too."""
MORE = [
    (Operation.FP16_KK_RESIDUAL, sm90(64, 16, swap_ab=True)),
    (Operation.INT8_BF16_KK, sm90(64, 16, swap_ab=True)),
    (Operation.E4M3_BF16_BLOCK_KK, sm90_block(64, 8, cluster_m=2)),
    (Operation.BF16_KK_GELU, sm90(256, 208, "cooperative")),
    (Operation.FP16_KK_RESIDUAL, sm90(192, 112, swap_ab=True)),
    (Operation.FP16_KK_BIAS, sm90(128, 208, swap_ab=True)),
    (Operation.INT8_BF16_KK, sm90(128, 208)),
    (Operation.E4M3_BF16_KK_GEGLU, sm90(128, 96)),
    (Operation.E4M3_BF16_KK_RESIDUAL, sm90(128, 96)),
    (Operation.E4M3_BF16_KK_GELU, sm90(64, 208, swap_ab=True)),
    (Operation.E4M3_BF16_KK_RELU, early(64, 88, "cooperative")),
    (Operation.E4M3_BF16_KK, sm90(128, 96)),
    (Operation.E5M2E4M3_BF16_KK, sm90(64, 64, swap_ab=True)),
    (Operation.E4M3_BF16_FAST_KK, sm90(128, 256, "cooperative", cluster_m=2)),
    (Operation.E4M3_FP32_KK, early(64, 24, swap_ab=True)),
    (Operation.E4M3_E4M3_KK, early(64, 88, "cooperative")),
    (Operation.FP16_KK_GELU, early(128, 104, "cooperative", cluster_m=2)),
    (Operation.INT8_INT32_KK, sm90(256, 208, "cooperative")),
    (Operation.INT8_FP16_KK, sm90(320, 160, "cooperative", swap_ab=True)),
    (Operation.TF32_KK, sm90(64, 32, **SERIAL)),
    (Operation.TF32_KK, sm90(64, 16, swap_ab=True)),
    (Operation.E4M3_BF16_BLOCK_KK, sm90_block(128, 96)),
    (Operation.E4M3_BF16_BLOCK_KK, sm90_block(192, 96, "cooperative")),
    (Operation.E4M3_E4M3_KK, sm100(128, 64, **SERIAL)),
    (Operation.E5M2E4M3_BF16_KK, sm100(128, 64)),
    (Operation.BF16_KK_RESIDUAL, sm100(128, 160, swap_ab=True)),
    (Operation.INT8_FP16_KK, sm100(64, 32, swap_ab=True)),
    (Operation.E4M3_BF16_KK_GEGLU, sm100(128, 64, **PAIR)),
    (Operation.E4M3_BF16_KK, sm100(128, 256, **PAIR)),
    (Operation.E5M2E4M3_BF16_KK, sm100(128, 224)),
    (Operation.E4M3E5M2_BF16_KK, sm100(128, 224)),
    (Operation.E4M3_BF16_KK_SWIGLU, sm100(128, 256)),
    (Operation.BF16_KK_BIAS, sm100(128, 96)),
    (Operation.E4M3_BF16_KK_SILU, sm100(64, 32, "static", swap_ab=True)),
    (Operation.E4M3E5M2_BF16_KK, sm100(64, 64, swap_ab=True)),
    (Operation.FP16_KK_GELU, sm100(256, 256, **PAIR)),
    (Operation.BF16_KK_GEGLU, sm100(128, 64, **PAIR)),
    (Operation.E4M3_BF16_KK_RESIDUAL, sm100(128, 160, swap_ab=True)),
    (Operation.E4M3_BF16_KK_RESIDUAL, sm100(256, 256, **PAIR)),
    (Operation.E4M3_BF16_KK_GELU, sm100(256, 256, **PAIR)),
    (Operation.E4M3_BF16_KK_RELU, sm100(128, 64, **SERIAL)),
    (Operation.INT8_INT32_KK, sm100(256, 256, **PAIR)),
    (Operation.INT8_BF16_KK, sm100(128, 256, "static")),
    (Operation.TF32_KK, sm100(128, 160, **SERIAL)),
    (Operation.TF32_KK, sm100(256, 192, swap_ab=True, **PAIR)),
]
KERNELS = SOME + MORE if EVERY else some(SOME)


@dataclass(frozen=True)
class Compiled:
    kernel: object
    path: object
    target: Target


def compile_all(kernels):
    """Compile the kernels of each architecture for this host, each an operation and a candidate; gives them by key."""
    found = {}
    h200 = load_target("h200")
    thor = replace(load_target("thor"), host_triple=h200.host_triple, host_cpu=h200.host_cpu)
    for arch, target in (("sm90", h200), ("sm100", thor)):
        keys = [KernelKey(*x) for x in kernels if x[1].family.startswith(f"{arch}_")]
        artifacts = compile_kernels(keys, target)
        found |= {x.kernel.key: Compiled(x.kernel, x.path, target) for x in artifacts}
    return found


def recording(compiled, folder):
    """Link compiled kernels behind those of a small manifest into a library over the recorder."""
    manifest, objects = small_manifest("h200")
    return Library(compile_library(manifest, folder, [*objects.values(), *(x.path for x in compiled.values())]))


@pytest.fixture(scope="module")
def compiled():
    return compile_all(KERNELS)


@pytest.fixture(scope="module")
def library(compiled, tmp_path_factory):
    return recording(compiled, tmp_path_factory.mktemp("operands"))


def struct_of(address, shape, strides):
    """Pack a tensor as `export_to_c` describes it: an address, int32 extents, int64 strides."""
    content = struct.pack(f"<Q{len(shape)}i", address, *shape)
    return content + bytes(-len(content) % 8) + struct.pack(f"<{len(strides)}q", *strides)


def arguments(operation, *, halves=True, bias=True):
    """Give the C structure of every argument but the stream."""
    if operation.gate is None:
        b, bias_of_none = struct_of(B, (N, K), (K,)), struct_of(0, (0,), ())
        scale_b, biases = struct_of(SCALE_B, (N,), (STEP_B,)), struct_of(BIAS, (N,), ())
    else:
        rows = (N * K, K) if halves else (K, 2 * K)
        b, bias_of_none = struct_of(B, (2, N, K), rows), struct_of(0, (2, 0), (0, 1))
        scale_b = struct_of(SCALE_B, (2, N), (N, STEP_B))
        biases = struct_of(BIAS, (2, N), (N, 1) if halves else (1, 2))
    scale_a = struct_of(SCALE_A, (M,), (STEP_A,))
    if operation.types.factors is FactorLayout.BLOCK:
        scale_a = struct_of(SCALE_A, (M, BLOCKS_OF_K), (STEP_A, STEP_B))
        scale_b = struct_of(SCALE_B, (BLOCKS_OF_N, BLOCKS_OF_K), (STEP_B, STEP_A))
    return {
        Argument.A: struct_of(A, (M, K), (K,)),
        Argument.B: b,
        Argument.D: struct_of(D, (M, N), (N,)),
        Argument.SCALE_A: scale_a,
        Argument.SCALE_B: scale_b,
        Argument.BIAS: biases if bias else bias_of_none,
        Argument.RESIDUAL: struct_of(RESIDUAL, (M, N), (N,)),
        Argument.SCALE_D: struct_of(SCALE_D, (1,), ()),
        Argument.WORKSPACE: struct_of(WORKSPACE, (2**20,), ()),
        Argument.PREFETCH_B: struct.pack("<i", 1),
        Argument.TILE_ORDER: struct.pack("<i", 0),
    }


def _pointers(*values):
    return (ctypes.c_void_p * len(values))(*(ctypes.addressof(x) for x in values))


def load(library, kernel):
    """Load a kernel as the runtime does."""
    module, device, status = ctypes.c_void_p(), ctypes.c_int32(0), ctypes.c_int32(-1)
    place = ctypes.c_void_p(ctypes.addressof(module))
    getattr(library.c, kernel.init_symbol)(_pointers(place, status))
    assert status.value == 0
    getattr(library.c, kernel.load_symbol)(_pointers(place, device, status))
    assert status.value == 0


def split(content, sizes):
    """Give the parameters of a record of a launch as bytes."""
    found = []
    for size in sizes:
        found.append(content[:size])
        content = content[size:]
    return found


def launch(library, compiled, given):
    """Call a kernel's entry; return the record of its launch, and its parameters as bytes."""
    (found,) = launches(library, compiled, given)
    return found


STACK = cycle((0x55, 0xAA))
"""What lies where an entry builds its parameters: another byte each time, so that no test relies on it."""


def launches(library, compiled, given, num_before=0):
    """Do the same of an entry that launches what writes the places of groups so many times before."""
    kernel, sizes = compiled.kernel, parameter_sizes(compiled.path)
    first = parameter_sizes(compiled.path, of_places=True) if num_before else []
    library.c.recorder_reset()
    load(library, kernel)
    library.c.recorder_set_parameters((ctypes.c_int32 * len(sizes))(*sizes), len(sizes))
    library.c.recorder_set_first_parameters((ctypes.c_int32 * len(first))(*first), len(first))
    library.c.recorder_leave_parameters(num_before)
    buffers = [
        ctypes.c_void_p(STREAM) if x is Argument.STREAM else ctypes.create_string_buffer(given[x], len(given[x]))
        for x in kernel.signature
    ]
    status = ctypes.c_int32(-1)
    values = [*buffers, status]
    pointers, entry = _pointers(*values), getattr(library.c, kernel.entry_symbol)
    library.c.recorder_fill_stack(next(STACK))
    entry(pointers, len(values))
    assert status.value == 0
    records = library.real_launches()
    assert len(records) == num_before + 1
    of_each = [first] * num_before + [sizes]
    return [(x, split(bytes(x.parameters), y)) for x, y in zip(records, of_each, strict=True)]


def maps(parameters):
    """Give (extents, strides in bytes) of the TMA descriptors by their addresses."""
    found = {}
    for content in (x for x in parameters if len(x) == DESCRIPTOR_BYTES):
        (address,) = struct.unpack_from("<Q", content)
        rank = (content[8] >> 4 & 7) + 1
        extents = tuple(x + 1 for x in struct.unpack_from("<5I", content, 32)[:rank])
        found[address] = extents, tuple(x * 16 for x in struct.unpack_from("<4I", content, 12)[: rank - 1])
    return found


def vector(parameters, address):
    """Give (extent, strides) of the parameter that is a vector at an address; the first parameter is the tiled MMA."""
    (content,) = (x for x in parameters[1:] if len(x) in (16, 24, 32) and struct.unpack_from("<Q", x) == (address,))
    return struct.unpack_from("<i", content, 8)[0], struct.unpack(f"<{(len(content) - 16) // 8}q", content[16:])


def written(parameter):
    """Return a parameter without the four bytes behind the one extent of a vector, which entries leave as they are."""
    return parameter[:12] + parameter[16:] if len(parameter) in (16, 24, 32) else parameter


def num_blocks(kernel, target):
    """Count the CTAs of a launch: of all tiles and splits, or of a wave where CTAs take one tile after another."""
    candidate = kernel.candidate
    columns = N if kernel.operation.gate is None else 2 * N
    extents = (columns, M) if candidate.gemm.swap_ab else (M, columns)
    cluster = candidate.gemm.cluster_m * candidate.gemm.cluster_n
    tile = (
        candidate.gemm.tile_m // (2 if candidate.gemm.use_2cta else 1) * candidate.gemm.cluster_m,
        candidate.gemm.tile_n * candidate.gemm.cluster_n,
    )
    clusters = -(-extents[0] // tile[0]) * -(-extents[1] // tile[1]) * candidate.gemm.split_k
    return cluster * (clusters if candidate.gemm.schedule == "clc" else min(clusters, target.num_clusters(cluster)))


@pytest.fixture(params=[KernelKey(*x) for x in KERNELS], ids=lambda x: x.name)
def each(request, compiled):
    return compiled[request.param]


def test_nothing_is_spilled_and_shared_memory_is_what_was_counted(each, library):
    record, _ = launch(library, each, arguments(each.kernel.operation))
    assert each.kernel.spill_bytes == 0
    assert record.smem_bytes == each.kernel.smem_bytes <= 232448


def test_the_launch_is_of_the_tiles_and_clusters(each, library):
    candidate = each.kernel.candidate
    record, _ = launch(library, each, arguments(each.kernel.operation))
    assert tuple(record.block) == (each.kernel.num_threads, 1, 1)
    assert record.grid[0] * record.grid[1] * record.grid[2] == num_blocks(each.kernel, each.target)
    stated = {record.attribute_ids[i]: tuple(record.attribute_values[i]) for i in range(record.num_attributes)}
    assert stated.get(CLUSTER, (1, 1, 1)) == (candidate.gemm.cluster_m, candidate.gemm.cluster_n, 1)
    assert stated[PROGRAMMATIC][0] == 1
    assert record.stream == STREAM


def test_descriptors_are_of_the_operands(each, library):
    operation = each.kernel.operation
    a, b, d = operation.a.element.num_bytes, operation.b.element.num_bytes, operation.d.num_bytes
    wanted = {A: ((K, M), (K * a,)), B: ((K, N), (K * b,)), D: ((N, M), (N * d,))}
    if operation.has_residual:
        wanted[RESIDUAL] = wanted[D]
    if operation.gate is not None:
        wanted[B] = ((K, 2, N), (N * K * b, K * b))
    assert maps(launch(library, each, arguments(operation))[1]) == wanted


def test_vectors_keep_their_strides(each, library):
    operation = each.kernel.operation
    _, parameters = launch(library, each, arguments(operation))
    if operation.types.factors is FactorLayout.VECTOR:
        assert vector(parameters, SCALE_A) == (M, (STEP_A,))
        assert vector(parameters, SCALE_B) == (N, (STEP_B,) if operation.gate is None else (N, STEP_B))
    if operation.has_bias:
        assert vector(parameters, BIAS) == (N, () if operation.gate is None else (N, 1))
    assert any(x.startswith(struct.pack("<Q", SCALE_D)) for x in parameters) == operation.types.scales_d


def test_blocks_of_scales_keep_their_strides(compiled, library):
    for each in (x for x in compiled.values() if x.kernel.operation.types.factors is FactorLayout.BLOCK):
        _, parameters = launch(library, each, arguments(each.kernel.operation))
        assert struct_of(SCALE_A, (M, BLOCKS_OF_K), (STEP_A, STEP_B)) in parameters
        assert struct_of(SCALE_B, (BLOCKS_OF_N, BLOCKS_OF_K), (STEP_B, STEP_A)) in parameters


def test_an_absent_bias_has_no_elements(each, library):
    parameters = launch(library, each, arguments(each.kernel.operation, bias=False))[1]
    if each.kernel.operation.has_bias:
        assert vector(parameters, 0)[0] == 0
    assert not any(x.startswith(struct.pack("<Q", BIAS)) for x in parameters)


def test_both_arrangements_of_a_gate_are_one_kernels(compiled, library):
    for each in (x for x in compiled.values() if x.kernel.operation.gate is not None):
        operation, b = each.kernel.operation, each.kernel.operation.b.element.num_bytes
        parameters = launch(library, each, arguments(operation, halves=False))[1]
        assert maps(parameters)[B] == ((K, 2, N), (K * b, 2 * K * b))
        assert vector(parameters, BIAS) == (N, (1, 2))


def test_the_linear_half_of_a_gate_may_lie_in_front(compiled, library):
    """The kernel begins with the half in front, and is told: so do the vectors. No other parameter changes."""
    for each in (x for x in compiled.values() if x.kernel.operation.gate is not None):
        operation, b = each.kernel.operation, each.kernel.operation.b.element.num_bytes
        given = arguments(operation)
        in_order = launch(library, each, given)[1]
        given |= {Argument.B: struct_of(B + N * K * b, (2, N, K), (-N * K, K))}
        parameters = launch(library, each, given)[1]
        assert maps(parameters) == maps(in_order)
        turned = [(BIAS + N * operation.bias.num_bytes, 1)]
        if operation.types.factors is FactorLayout.VECTOR:
            turned.append((SCALE_B + N * operation.b.scale.element.num_bytes, STEP_B))
        assert [vector(parameters, x) for x, _ in turned] == [(N, (-N, y)) for _, y in turned]
        pairs = zip(in_order[1:], parameters[1:], strict=True)  # behind the tiled MMA
        changed = [x for x in pairs if written(x[0]) != written(x[1]) and len(x[0]) != DESCRIPTOR_BYTES]
        assert len(changed) == 1 + len(turned)
        assert (struct.pack("<i", 0), struct.pack("<i", 1)) in changed


def test_other_types_are_other_instructions():
    """E4M3 by E5M2 and the reverse differ in nothing but the instruction's types."""
    operations = (Operation.E5M2E4M3_BF16_KK, Operation.E4M3E5M2_BF16_KK)
    first, second = compile_kernels([KernelKey(x, sm100(128, 64)) for x in operations], load_target("thor"))
    assert cubin(first.path) != cubin(second.path)
