from dataclasses import replace

import numpy as np
import pytest

from aot.core.alignment import is_aligned
from aot.core.candidate import Workspace
from aot.core.errors import DeviceError, VerificationError
from aot.core.numerics import poison
from aot.core.operands import element_of
from aot.core.operation import Layout, Operation
from aot.core.signature import Argument
from aot.kinds.gemm import edge_shapes as cases
from aot.kinds.gemm.edge_shapes import edge_shapes
from aot.measure.verify import EdgeCase, Verifier
from tests.compiling import some
from tests.unit.twins import ALL_LAYOUTS, BATCHES, TwinGpu, TwinKernels, kernel_of, memory

pytestmark = pytest.mark.slow


def run(kernel, fault="", workspace=0, seed=6):
    gpu = TwinGpu()
    kernels = TwinKernels(gpu, [kernel], faults={kernel.name: (fault, 0)}, workspace=workspace)
    verifier = Verifier(gpu, kernels, np.random.default_rng(seed))
    try:
        return verifier.verify(kernel, 0)
    finally:
        verifier.close()
        assert gpu.num_allocations == 0


@pytest.mark.parametrize("operation", ALL_LAYOUTS, ids=lambda operation: operation.tag)
def test_right_kernel_passes_in_every_layout(operation):
    error = run(kernel_of(operation=operation), workspace=48)
    # No single rounding exceeds the unit roundoff, 2^-8 or 2^-11.
    assert 1e-4 < error < (2**-8 if operation.element.tag == "bf16" else 2**-11)


@pytest.mark.parametrize("operation", some(BATCHES, 2), ids=lambda operation: operation.tag)
@pytest.mark.parametrize("is_fallback", [False, True])
def test_right_kernel_passes_on_batches_that_share_operands_or_not(operation, is_fallback):
    kernel = kernel_of(operation=operation, is_fallback=is_fallback)
    shapes = edge_shapes(kernel)
    assert {x.problem.num_groups for x in shapes} == {3}
    assert {(x.arrangement.shares_a, x.arrangement.shares_b) for x in shapes} == {
        (False, False),
        (False, True),
        (True, False),
    }
    assert 1e-4 < run(kernel) < (2**-8 if operation.element.tag == "bf16" else 2**-11)


def test_a_wrong_product_of_a_batch_is_found():
    with pytest.raises(VerificationError, match="wrong result on bf16_kk_batched g3 m1 n8 k8"):
        run(kernel_of(operation=BATCHES[0]), "wrong")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("wrong", "wrong result on bf16_kk m1 n8 k8, strides padded by 0: relative error"),
        ("unwritten", "wrong result on bf16_kk m2 n136 k64, strides padded by 8: 136 of 272 elements are not finite"),
        ("unstable", "two runs differ in 1 of 8 elements of d on bf16_kk m1 n8 k8"),
        ("guards", "wrote 1 elements outside d on bf16_kk m1 n8 k8"),
        ("padding", "wrote 1 elements outside d on bf16_kk m2 n136 k64"),
    ],
)
def test_faults_are_found(fault, message):
    with pytest.raises(VerificationError) as caught:
        run(kernel_of(), fault)
    assert message in str(caught.value)


def test_atomic_kernel_may_differ_between_runs_within_the_bound():
    # One unit in the last place is within the bound, unless the right result was rounded by nearly half of one as well.
    assert run(kernel_of(split_k=2, split_k_mode="parallel"), "unstable", seed=8) < 5e-3


def test_launch_error_is_passed_on():
    with pytest.raises(DeviceError, match="launch refused"):
        run(kernel_of(), "error")


@pytest.mark.parametrize("operation", ALL_LAYOUTS, ids=lambda operation: operation.tag)
def test_aligned_shapes_keep_alignment_and_multiples(operation):
    shapes = edge_shapes(kernel_of(operation=operation, m_multiple=64, n_multiple=48))
    assert len(shapes) == len(cases.ALIGNED_SHAPES) + len(cases.RAGGED_SHAPES)
    for shape in (x for x in shapes if x.stride_multiple == 1):
        assert is_aligned(shape.problem)
        assert (shape.problem.m % 64, shape.problem.n % 48, shape.padding % 8, shape.offset) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "operation",
    [*ALL_LAYOUTS, Operation.INT8_INT32_KK, Operation.E4M3_BF16_KK, Operation.TF32_KK, Operation.BF16_KK_GATHERED],
    ids=lambda operation: operation.tag,
)
def test_k_ends_inside_of_16_bytes_that_hold_poison(operation):
    """A kernel that copies 16 bytes where k has fewer multiplies poison: seen of gathered rows, 2026-11-26."""
    ragged = [x for x in edge_shapes(kernel_of(operation=operation)) if x.stride_multiple > 1]
    assert len(ragged) == len(cases.RAGGED_SHAPES)
    gpu = TwinGpu()
    kernels = TwinKernels(gpu, [kernel_of(operation=operation)])
    for shape in ragged:
        case = EdgeCase(gpu, kernels, shape, np.random.default_rng(3), num_guards=0)
        for argument, is_k_major in ((Argument.A, operation.a.is_k_major), (Argument.B, operation.b.is_k_major)):
            tensor, element = case.bound.tensors[argument], element_of(operation, argument)
            strides = tensor.matrix.row_stride, tensor.matrix.column_stride
            run = tensor.matrix.num_columns if is_k_major else tensor.matrix.num_rows
            assert max(strides) * element.num_bytes % 16 == 0
            assert (run * element.num_bytes % 16 > 0) == (is_k_major or argument is Argument.A)
            behind = memory(tensor.address + run * element.num_bytes, max(strides) - run, element)
            assert (behind == poison(element)).all()
        case.free()
    assert gpu.num_allocations == 0


@pytest.mark.parametrize(
    ("operation", "fields", "is_long"),
    [
        (Operation.BF16_KK, {}, False),
        (Operation.BF16_KK, {"family": "sm90_cluster_split_k", "split_k": 4, "split_k_mode": "cluster"}, True),
        (Operation.BF16_KK_BATCHED, {"family": "sm90_cluster_split_k", "split_k_mode": "none"}, True),
        (Operation.BF16_KK, {"family": "sm90_one_tile"}, True),
        (Operation.E4M3_BF16_KK, {}, True),
        (Operation.INT8_INT32_KK, {}, True),
        (Operation.E4M3_BF16_KK_GROUPED, {}, False),
    ],
)
def test_all_stages_of_long_rings_are_used_again(operation, fields, is_long):
    """A tile of 64 x 16 has 22 stages of 128 bytes of k in each of the CTAs that share k."""
    longest = max(x.problem.k for x in edge_shapes(kernel_of(operation=operation, **fields)))
    block_k = 128 // operation.a.element.num_bytes
    assert (longest > 2 * 22 * block_k * 4, longest % block_k > 0) == (is_long, True)
    assert edge_shapes(kernel_of(operation=operation, **fields))[0].problem.m == 1


@pytest.mark.parametrize("operation", ALL_LAYOUTS, ids=lambda operation: operation.tag)
@pytest.mark.parametrize("loads", [2, 4, 8, 16])
def test_poison_lies_behind_every_extent_of_unaligned_operands(operation, loads):
    """A kernel that reads behind m, n or k there multiplies poison, or meets the guards where the operand ends."""
    kernel = replace(kernel_of(operation=operation), load_alignment=loads, store_alignment=1)
    unaligned = [x for x in edge_shapes(kernel) if x.stores_anywhere]
    assert len(unaligned) == len(cases.FALLBACK_SHAPES)
    gpu, dtype = TwinGpu(), operation.a.element
    kernels = TwinKernels(gpu, [kernel])
    num_poisoned = 0
    for shape in unaligned:
        case = EdgeCase(gpu, kernels, shape, np.random.default_rng(3), num_guards=256)
        for argument, is_k_major in ((Argument.A, operation.a.is_k_major), (Argument.B, operation.b.is_k_major)):
            tensor = case.bound.tensors[argument]
            matrix = tensor.matrix
            run, num_runs = (matrix.num_columns, matrix.num_rows)[:: 1 if is_k_major else -1]
            stride = max(matrix.row_stride, matrix.column_stride)
            assert (tensor.address % 16 == 0) == (loads == 16)
            assert tensor.address % loads == stride * dtype.num_bytes % loads == 0
            behind = [memory(tensor.address + dtype.num_bytes * (i * stride + run), stride - run, dtype)
                      for i in range(num_runs)]  # fmt: skip
            behind.append(memory(tensor.address + dtype.num_bytes * ((num_runs - 1) * stride + run), 256, dtype))
            assert all((x == poison(dtype)).all() for x in behind)
            num_poisoned += stride > run
        d = case.bound.tensors[Argument.D].matrix
        assert d.row_stride > d.num_columns
        assert d.row_stride % 2 == 1
        case.free()
    assert num_poisoned >= 2 * (len(unaligned) - 2)


def test_fallback_runs_unaligned_in_every_layout():
    shapes = edge_shapes(kernel_of(is_fallback=True))
    assert {shape.problem.operation.layout for shape in shapes} == set(Layout)
    assert {shape.offset for shape in shapes} == {1}
    assert all(1 <= x <= 70 for s in shapes for x in (s.problem.m, s.problem.n, s.problem.k))
    assert run(kernel_of(is_fallback=True)) < 5e-3


@pytest.mark.parametrize(("swap_ab", "m_and_n"), [(False, (952, 472)), (True, (472, 952))])
def test_a_split_tail_is_verified_behind_whole_waves(swap_ab, m_and_n):
    kernel = kernel_of(64, 48, family="sm90_stream_k", split_k=4, split_k_mode="tail", swap_ab=swap_ab)
    shapes = edge_shapes(kernel)
    own = [x.problem for x in shapes if x.is_own]
    assert len(shapes) == len(cases.ALIGNED_SHAPES) + len(cases.RAGGED_SHAPES) + 2
    assert (own[0].m, own[0].n, own[0].k) == (*m_and_n, 200)
    workspace = Workspace("tail", 4, 64, 48, swap_ab=swap_ab, num_clusters=132)
    for problem, num_tiles, splits in zip(own, (150, 216), (4, 3), strict=True):
        regions = num_tiles % 132 * (splits - 1)
        assert workspace.num_bytes(problem.m, problem.n, problem.k) == 528 + regions * 64 * 48 * 4
    run(kernel)  # which sees that all is freed
