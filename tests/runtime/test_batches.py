"""Batches over the recorder: what any leading dimensions launch is computed in numpy and compared with torch."""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch

from aot.core.candidate import gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid, Scope, Section
from aot.core.operation import Operation
from aot.measure.call_structs import ProblemStruct, TensorStruct
from tests.golden.manifest import kernel as kernel_of
from tests.golden.manifest import with_table
from tests.runtime import host
from tests.runtime.exchange import Framework
from tests.runtime.tensors import FLOAT16, UINT8, FakeTensor, install_cupy, install_old_torch

BATCH_INVARIANT = 4
DENSE = (Operation.FP16_KK, Operation.FP16_KN)
BATCHED = (Operation.FP16_KK_BATCHED, Operation.FP16_KN_BATCHED)


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    """Have workspaces be allocated, of memory that nothing writes."""
    module = install_cupy(monkeypatch, 0x8880)
    module.empty = lambda shape, _dtype: module.ndarray(shape, UINT8)
    return module


class Memory(FakeTensor):
    """A tensor whose address is that of an array of the host, which a launch is then computed on."""

    __module__ = "cupy"

    def __init__(self, array):
        strides = [x // array.itemsize for x in array.strides]
        super().__init__(array.shape, FLOAT16, strides)
        self.array, self.address = array, array.ctypes.data


def with_groups(manifest):
    """Have batches up to 4 and up to 64 be answered by sections of their own, and products in one order by another."""
    table = manifest.tables[0]
    sections = []
    for section, in_one_order in zip(
        table.table.sections, host.with_one_order(manifest).tables[0].table.sections, strict=True
    ):
        if section.operation in BATCHED:
            sections += [replace(section, scope=Scope(x, False)) for x in (4, 64)]
        else:
            sections += [section, replace(in_one_order, scope=Scope(1, True))]
    return replace(manifest, tables=(replace(table, table=replace(table.table, sections=tuple(sections))),))


UNALIGNED = ((2, 4), (2, 64), (8, 64))
"""Bytes of which operands are multiples, and products, of the sections for batches that are not aligned."""


def with_unaligned(manifest):
    """Give the operations for batches sections for operands that are not aligned, each with a kernel of its own."""
    kernels, sections = list(manifest.kernels), []
    for operation, run in groupby(manifest.tables[0].table.sections, key=lambda x: x.operation):
        sections += run
        for loads, num_groups in UNALIGNED if operation in BATCHED else ():
            tile = gemm_candidate("mma_sync", num_groups, 64, schedule=f"a{loads}k1", use_tma_store=False)
            kernels.append(replace(kernel_of(operation, tile), load_alignment=loads, store_alignment=1))
            grid = Grid((1,), (1,), (Column((1,), (len(kernels) - 1,)),))
            scope = Scope(num_groups, False, loads)
            sections.append(Section(operation, (), grid, sections[-1].fallback, scope))
    return with_table(manifest, tuple(kernels), DispatchTable(tuple(sections)))


@pytest.fixture(scope="module")
def manifest():
    return replace(with_unaligned(with_groups(host.random_manifest(7, DENSE + BATCHED))), package="batch-gemm")


@pytest.fixture(scope="module")
def dense_manifest():
    return replace(host.random_manifest(7, DENSE), package="one-gemm")


def build(manifest, tmp_path_factory):
    package = host.compile_package(manifest, tmp_path_factory.mktemp(manifest.module))
    return package, host.Library(package._library.LIBRARY)


@pytest.fixture(scope="module")
def batched(manifest, tmp_path_factory):
    return build(manifest, tmp_path_factory)


@pytest.fixture(scope="module")
def dense(dense_manifest, tmp_path_factory):
    return build(dense_manifest, tmp_path_factory)


def strided(data, shape, strides):
    """View an array of the host at an address."""
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
    memory = np.frombuffer((ctypes.c_uint16 * reach).from_address(data), np.float16)
    return np.lib.stride_tricks.as_strided(memory, shape, [2 * x for x in strides])


def matrices(operand, kernel, *, is_contiguous):
    """View an operand of a launch as (product, row, column), by what its kernel reads of the struct."""
    is_batched = kernel.operation in BATCHED
    if is_batched:
        shape, (step, *strides) = tuple(operand.parts.shape), operand.parts.strides
        data = operand.parts.data
    else:
        shape, step, strides, data = (1, *operand.shape), 0, list(operand.strides), operand.data
    if kernel.num_strides == 1:
        strides = [strides[0], 1] if is_contiguous else [1, strides[0]]
    return strided(data, shape, (step, *strides))


def run(launches, manifest):
    """Compute what was launched; return the kernels."""
    kernels = [manifest.kernels[x.kernel] for x in launches]
    for launch, kernel in zip(launches, kernels, strict=True):
        layout = kernel.operation.layout
        a = matrices(launch.a, kernel, is_contiguous=layout.a_k_major)
        b = matrices(launch.b, kernel, is_contiguous=layout.b_k_major)
        d = matrices(launch.d, kernel, is_contiguous=True)
        product = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
        assert not np.isfinite(d).any(), "an element is written twice"
        d[:] = product
    return kernels


def numbers(rng, shape):
    return np.random.default_rng(rng.randrange(2**32)).integers(-4, 5, shape).astype(np.float16)


def laid_out(rng, shape):
    """Make an array of random strides: permuted, padded, or broadcast along leading dimensions."""
    order = list(range(len(shape)))
    if rng.random() < 0.5:
        rng.shuffle(order)
    padded = [shape[i] + (rng.choice((0, 8)) if rng.random() < 0.3 else 0) for i in order]
    found = numbers(rng, padded)[tuple(slice(shape[i]) for i in order)]
    return found.transpose(np.argsort(order))


def batch_of(rng):
    """Draw the leading dimensions of both operands, which broadcast."""
    whole = [rng.choice((1, 2, 3, 5)) for _ in range(rng.randrange(4))]
    cut = [whole[rng.randrange(len(whole) + 1) :] if rng.random() < 0.4 else whole for _ in range(2)]
    return [tuple(1 if rng.random() < 0.2 else x for x in dims) for dims in cut]


def problem(rng):
    """Draw operands: aligned for the most part, at times vectors."""
    step = rng.choice((8, 8, 8, 1))
    m, n, k = rng.choice((1, 3, 16)), step * rng.randrange(1, 4), step * rng.randrange(1, 5)
    of_a, of_b = batch_of(rng)
    a = (k,) if rng.random() < 0.1 else (*of_a, m, k)
    b = (k,) if rng.random() < 0.1 else (*of_b, k, n)
    arrays = [laid_out(rng, x) for x in (a, b)]
    if rng.random() < 0.2 and len(b) > 2:
        arrays[1] = np.broadcast_to(numbers(rng, b[-2:]), b)
    return arrays


@pytest.mark.parametrize("which", ["batched", "dense"])
def test_any_leading_dimensions_give_what_torch_gives(which, manifest, dense_manifest, request):
    package, library = request.getfixturevalue(which)
    source = manifest if which == "batched" else dense_manifest
    rng, seen, most = random.Random(11), set(), 0
    for _ in range(600):
        a, b = problem(rng)
        expected = torch.matmul(*(torch.from_numpy(np.ascontiguousarray(x)).double() for x in (a, b))).numpy()
        if expected.ndim == 0:
            continue
        out = laid_out(rng, expected.shape)
        out[...] = np.nan
        library.c.recorder_reset()
        if b.ndim <= 2:  # where b is one matrix, a and out must be ones too
            a, out = np.ascontiguousarray(a), np.full(expected.shape, np.nan, np.float16)
        package.matmul(Memory(a), Memory(b), out=Memory(out))
        launches = library.fake_launches()
        kernels = run(launches, source)
        np.testing.assert_array_equal(out.astype(np.float64), expected, err_msg=f"{a.shape} {b.shape}")
        seen |= {(x.operation.grouping.value, x.num_strides) for x in kernels}
        most = max(most, len(launches))
    groupings = ("dense", "batched") if which == "batched" else ("dense",)
    assert seen == {(x, strides) for x in groupings for strides in (1, 2)}
    assert most > 3


@pytest.mark.parametrize(
    ("a", "b", "launches", "grouping"),
    [
        ((6, 16, 32), (6, 32, 24), 1, "batched"),
        ((2, 3, 16, 32), (2, 3, 32, 24), 1, "batched"),
        ((3, 16, 32), (2, 3, 32, 24), 2, "batched"),
        ((16, 32), (6, 32, 24), 1, "batched"),
        ((6, 16, 32), (1, 32, 24), 1, "dense"),
        ((6, 16, 32), (32, 24), 1, "dense"),
        ((1, 16, 32), (1, 32, 24), 1, "dense"),
    ],
)
def test_as_few_launches_as_the_leading_dimensions_allow(batched, manifest, a, b, launches, grouping):
    package, library = batched
    rng = random.Random(1)
    arrays = [numbers(rng, x) for x in (a, b)]
    out = np.full(np.matmul(*arrays).shape, np.nan, np.float16)
    library.c.recorder_reset()
    package.matmul(*map(Memory, arrays), out=Memory(out))
    kernels = run(library.fake_launches(), manifest)
    assert (len(kernels), {x.operation.grouping.value for x in kernels}) == (launches, {grouping})
    np.testing.assert_array_equal(out, np.matmul(*(x.astype(np.float64) for x in arrays)))


def cut(rng, shape, padding, offset):
    """Make an array whose rows are longer than their extents, some elements behind an aligned address."""
    *outer, inner = shape
    whole = numbers(rng, (*outer, inner + padding))
    memory = np.zeros(whole.size + 16, np.float16)
    start = (-memory.ctypes.data % 16) // 2 + offset
    found = memory[start : start + whole.size].reshape(whole.shape)
    found[...] = whole
    return found[..., :inner]


@pytest.mark.parametrize(
    ("a", "b", "loads", "groups"),
    [
        (((3, 17, 35), 0, 0), ((3, 35, 31), 0, 0), 2, 4),
        (((5, 17, 35), 0, 0), ((5, 35, 31), 0, 0), 2, 64),
        (((70, 3, 5), 0, 0), ((70, 5, 3), 0, 0), 2, 64),
        (((5, 17, 36), 0, 0), ((5, 36, 24), 4, 0), 8, 64),
        (((5, 17, 36), 0, 1), ((5, 36, 24), 4, 0), 2, 64),
        (((5, 17, 32), 0, 0), ((5, 32, 24), 0, 4), 8, 64),
        (((5, 1, 36), 0, 0), ((5, 36, 24), 0, 0), 8, 64),
        (((5, 1, 33), 7, 0), ((5, 33, 24), 0, 0), 0, 64),
        (((1, 17, 35), 0, 0), ((3, 35, 31), 0, 0), 2, 4),
        (((17, 35), 0, 0), ((3, 35, 31), 0, 0), 2, 4),
        (((2, 3, 17, 35), 0, 0), ((2, 3, 35, 31), 0, 0), 2, 64),
    ],
)
def test_batches_that_are_not_aligned_get_one_launch_of_a_kernel_for_them(batched, manifest, a, b, loads, groups):
    """By their addresses, leading strides and steps from product to product, and by the number of products."""
    package, library = batched
    rng = random.Random(5)
    arrays = [cut(rng, *x) for x in (a, b)]
    out = cut(rng, np.matmul(*arrays).shape, 1 if loads else 0, 1 if loads else 0)
    out[...] = np.nan
    library.c.recorder_reset()
    package.matmul(*map(Memory, arrays), out=Memory(out))
    (found,) = run(library.fake_launches(), manifest)
    np.testing.assert_array_equal(out, np.matmul(*(x.astype(np.float64) for x in arrays)))
    assert (found.operation, found.num_strides) == (Operation.FP16_KN_BATCHED, 1)
    if loads:
        assert (found.load_alignment, found.candidate.gemm.tile_m) == (loads, groups)
    else:
        assert found.store_alignment == 16


@pytest.mark.parametrize("shapes", [((6, 16, 32), (6, 32, 24)), ((16, 32), (32, 24)), ((32,), (32, 24))])
def test_a_product_may_be_asked_to_be_deterministic(batched, manifest, shapes):
    package, library = batched
    rng = random.Random(3)
    arrays = [numbers(rng, x) for x in shapes]
    out = np.full(np.matmul(*arrays).shape, np.nan, np.float16)
    library.c.recorder_reset()
    package.matmul(*map(Memory, arrays), out=Memory(out), deterministic=True)
    run(library.fake_launches(), manifest)
    np.testing.assert_array_equal(out, np.matmul(*(x.astype(np.float64) for x in arrays)))


def test_without_kernels_for_batches_each_product_is_launched(dense, dense_manifest):
    package, library = dense
    rng = random.Random(2)
    arrays = [numbers(rng, x) for x in ((7, 16, 32), (7, 32, 24))]
    out = np.full((7, 16, 24), np.nan, np.float16)
    library.c.recorder_reset()
    package.matmul(*map(Memory, arrays), out=Memory(out))
    assert len(run(library.fake_launches(), dense_manifest)) == 7
    np.testing.assert_array_equal(out, np.matmul(*(x.astype(np.float64) for x in arrays)))
    got = package.plan(16, 24, 32, "float16", "kn", batch=7)
    assert (got.launches, got.batch, got.no_time) == (7, 7, "each of the 7 products is a launch of its own")
    assert (
        "launches   7: this wheel has no kernels for such a batch, so that torch computes it of torch's tensors"
        in package.explain(16, 24, 32, "float16", "kn", batch=7)
    )


def test_the_section_is_that_of_the_next_number_of_products(batched, manifest):
    package, _ = batched
    sections = manifest.tables[0].table.sections
    for batch, groups in ((1, None), (2, 4), (4, 4), (5, 64), (64, 64), (4000, 64)):
        asked = package._table.select(package._request.request_of("float16"), "kk", (16, 4096, 4096), batch, 0, None)
        scope = sections[asked.section].scope
        assert (asked.num_launches, scope and scope.num_groups) == (1, groups)
        assert asked.num_groups == batch


def test_a_batch_that_is_named_is_computed_product_by_product_where_rows_must_not_depend_on_it(batched, manifest):
    """In C an operation for batches may be named; it has no table of one order of sums."""
    _, library = batched
    rng = random.Random(4)
    a, b = (numbers(rng, x) for x in ((7, 16, 32), (7, 24, 32)))
    out = np.full((7, 16, 24), np.nan, np.float16)
    stated = ProblemStruct(ctypes.sizeof(ProblemStruct), library.c.aot_gemm_operation(b"fp16_batched"), -1, 16, 24, 32)
    for name, array in (("a", a), ("b", b), ("d", out)):
        setattr(stated, name, TensorStruct(array.ctypes.data, (array.shape[2], 1)))
        setattr(stated.group_strides, name, array.shape[1] * array.shape[2])
    stated.num_groups, stated.flags = 7, BATCH_INVARIANT
    library.c.recorder_reset()
    assert library.launch(stated) == 0, library.error()
    kernels = run(library.fake_launches(), manifest)
    assert [(x.operation, x.candidate.gemm.split_k) for x in kernels] == [(Operation.FP16_KK, 1)] * 7
    np.testing.assert_array_equal(out, np.matmul(*(x.astype(np.float64) for x in (a, b.transpose(0, 2, 1)))))


def test_an_empty_batch_launches_nothing(batched):
    package, library = batched
    library.c.recorder_reset()
    out = Memory(np.empty((0, 16, 24), np.float16))
    package.matmul(Memory(np.empty((0, 16, 32), np.float16)), Memory(np.empty((0, 32, 24), np.float16)), out=out)
    assert library.fake_launches() == []


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (
            (2, 16, 32),
            (3, 32, 24),
            "got a (2, 16, 32) and b (3, 32, 24); expected leading dimensions that are equal or 1",
        ),
        ((2, 16, 31), (2, 32, 24), "has k 31, b (2, 32, 24) has k 32; expected one k"),
    ],
)
def test_leading_dimensions_that_do_not_broadcast_are_refused(batched, a, b, message):
    package, _ = batched
    with pytest.raises(package.ShapeError) as caught:
        package.matmul(FakeTensor(a, FLOAT16), FakeTensor(b, FLOAT16))
    assert message in str(caught.value)


def test_an_out_that_overlaps_itself_or_an_operand_is_refused(batched):
    package, _ = batched
    array = np.zeros((4, 16, 16), np.float16)
    b = Memory(np.zeros((4, 16, 16), np.float16))
    repeated = np.lib.stride_tricks.as_strided(np.zeros((16, 16), np.float16), (4, 16, 16), (0, 32, 2))
    with pytest.raises(package.StrideError, match="D of 4 products, 0 elements apart, overlaps itself"):
        package.matmul(Memory(array), b, out=Memory(repeated))
    with pytest.raises(package.StrideError, match=r"D at address 0x[0-9a-f]+ overlaps A"):
        package.matmul(Memory(array), b, out=Memory(array))
    # Product 1 of D begins in product 2 of A.
    whole = np.zeros((8, 16, 16), np.float16)
    with pytest.raises(package.StrideError, match="D overlaps A in a batch of 4 products"):
        package.matmul(Memory(whole[:4]), b, out=Memory(whole[1:5]))
    # Between A's products, and apart from them.
    apart = np.zeros((4, 2, 16, 16), np.float16)
    assert package.matmul(Memory(apart[:, 0]), b, out=Memory(apart[:, 1])) is not None


@pytest.fixture
def of_torch(dense_manifest, tmp_path_factory, monkeypatch):
    """Give a library without kernels for batches, a torch of fake tensors with the exchange API, and its products."""
    package, library = build(replace(dense_manifest, package="left-gemm"), tmp_path_factory)
    framework, fake = Framework(), install_old_torch(monkeypatch, 0x5550)
    kind = {x: y for x, y in vars(fake.Tensor).items() if x not in ("__dict__", "__weakref__")}
    fake.Tensor = framework.Tensor = type("Tensor", (framework.Tensor,), kind)
    multiplied = []

    def matmul(left, right, *, out):
        multiplied.append((left, right, out))
        return out

    fake.matmul = matmul
    fake.framework = framework  # has the functions that the library calls by their addresses
    library.c.recorder_reset()
    return package, library, fake.Tensor, multiplied


SIZES = ((24, 200, 64), (24, 64, 200))


@pytest.mark.parametrize("gives_out", [False, True])
def test_a_batch_that_would_take_many_launches_is_left_to_torch(of_torch, gives_out):
    package, library, tensor, multiplied = of_torch
    a, b = (tensor(x, FLOAT16) for x in SIZES)
    out = tensor((24, 200, 200), FLOAT16) if gives_out else None
    result = package.matmul(a, b, out=out)
    ((left, right, written),) = multiplied
    assert (left is a, right is b, written is result, library.fake_launches()) == (True, True, True, [])
    assert tuple(result.shape) == (24, 200, 200)
    assert out is None or result is out


def test_what_one_launch_computes_is_not(of_torch):
    package, library, tensor, multiplied = of_torch
    for a, b in (((24, 200, 64), (1, 64, 200)), ((24, 200, 64), (64, 200)), ((1, 200, 64), (1, 64, 200))):
        library.c.recorder_reset()
        package.matmul(tensor(a, FLOAT16), tensor(b, FLOAT16))
        assert (len(library.fake_launches()), multiplied) == (1, [])


def test_nor_is_what_is_asked_to_be_batch_invariant(of_torch):
    package, library, tensor, multiplied = of_torch
    package.matmul(*(tensor(x, FLOAT16) for x in SIZES), deterministic=True)
    assert (len(library.fake_launches()), multiplied) == (24, [])


def test_a_torch_without_the_exchange_api_multiplies_such_a_batch_too(dense, monkeypatch):
    package, library = dense
    fake, multiplied = install_old_torch(monkeypatch, 0x5550), []

    def matmul(left, right, *, out):
        multiplied.append((left, right, out))
        return out

    fake.matmul = matmul

    class Half(tuple):
        __slots__ = ()
        is_floating_point, itemsize = True, 2

    library.c.recorder_reset()
    a, b, out = (fake.Tensor(x, Half(FLOAT16)) for x in (*SIZES, (24, 200, 200)))
    assert package.matmul(a, b, out=out) is out
    assert (multiplied, library.fake_launches()) == ([(a, b, out)], [])
    package.matmul(a, b, out=out, deterministic=True)
    assert (len(multiplied), len(library.fake_launches())) == (1, 24)
