"""What reaches the kernels: the same memory as stated, in a form that they take."""

from __future__ import annotations

import random

import pytest

from aot.core.alignment import as_launched
from aot.core.dispatch import DispatchTable, Tier
from aot.core.element import ElementType
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from tests.compiling import EVERY
from tests.golden.manifest import with_table
from tests.runtime import host
from tests.runtime.host import BIAS, CALLS, LAUNCH, names_of, problem
from tests.runtime.reference import code, matrices, readings
from tests.runtime.test_dispatch import expected_choice, layouts_of, sections_of

EXTENTS = (1, 1, 2, 3, 8, 16, 17, 64)
B_CONSTANT = 1  # AOT_GEMM_B_CONSTANT
TAKES_NONE = -1


def random_strides(rng, rows, columns, *, output=False):
    """Make strides of a matrix: either mode contiguous, padded or not, sometimes neither or broadcast."""
    pad = rng.choice((0, 0, 0, 1, 8))
    kind = rng.random()
    if kind < 0.45:
        strides = columns + pad, 1
    elif kind < 0.8:
        strides = 1, rows + pad
    elif kind < 0.9 or output:
        strides = 2 * columns + pad, 2
    else:
        strides = rng.choice(((0, 1), (1, 0)))
    # The stride of a unit extent may be anything.
    return tuple(
        rng.choice((x, 0, -5, 1)) if extent == 1 else x for x, extent in zip(strides, (rows, columns), strict=True)
    )


def address(matrix, i, j):
    return matrix.address + 2 * sum(
        x * s for x, s, e in zip((i, j), matrix.strides, matrix.extents, strict=True) if e > 1
    )


def kernel_address(tensor, contiguous, i, j):
    """Give an element's address as a kernel reads it: one leading stride, or two."""
    if contiguous is None:
        steps = [0 if e == 1 else s for e, s in zip(tensor.shape, tensor.strides, strict=True)]
    else:
        steps = [1, 1]
        steps[1 - contiguous] = tensor.strides[0]
    return (tensor.data or 0) + 2 * (i * steps[0] + j * steps[1])


def check_memory(rng, stated, launch, layout, exchanged, stride_multiple=8):
    """Compare addresses of random elements as stated and as launched; `layout` is None for kernels of two strides."""
    a, b, d = matrices(stated)
    left, right, result = (b, a, d.transposed) if exchanged else (a, b, d)
    majors = (None, None, None) if layout is None else (int(layout[0] == "k"), int(layout[1] == "k"), 1)
    pairs = zip((left, right, result), (launch.a, launch.b, launch.d), majors, strict=True)
    for matrix, tensor, contiguous in pairs:
        assert tuple(tensor.shape) == matrix.extents
        if contiguous is not None:
            assert tensor.strides[0] % stride_multiple == 0
            assert tensor.strides[0] >= matrix.extents[contiguous]
        for _ in range(4):
            i, j = (rng.randrange(extent) for extent in matrix.extents)
            assert kernel_address(tensor, contiguous, i, j) == address(matrix, i, j)


def test_kernels_get_the_memory_that_was_stated(library, manifest):
    rng = random.Random(11)
    seen = set()
    for _ in range(20_000 if EVERY else 8_000):
        m, n, k = (rng.choice(EXTENTS) for _ in range(3))
        shapes = ((m, k, False), (n, k, False), (m, n, True))
        strides = tuple(random_strides(rng, rows, columns, output=out) for rows, columns, out in shapes)
        data = tuple(0x100000 * (i + 1) + rng.choice((0, 0, 0, 16, 2)) for i in range(3))
        stated = problem(m, n, k, dtype=rng.randint(0, 1), data=data, strides=strides)
        library.c.recorder_reset()
        workspace = library.workspace_bytes(stated)
        assert library.launch(stated, 0x900000 if workspace else 0, workspace) == 0, library.error()
        (launch,) = library.fake_launches()
        kernel, tier, _, layout, exchanged = expected_choice(manifest, stated)
        assert launch.kernel == kernel
        names = {code(x): x for x in ("kk", "kn", "mk", "mn")}
        check_memory(rng, stated, launch, None if tier == 3 else names[layout], exchanged)
        seen.add((tier, layout, exchanged))
    assert {x for x in seen if x[0] != 3} >= {(2, layout, swap) for layout in range(4) for swap in (False, True)}


def test_column_major_output_exchanges_the_roles(library, manifest):
    stated = problem(16, 32, 64, strides=((64, 1), (64, 1), (1, 16)))
    (reading, *_) = readings(*matrices(stated), layouts_of(manifest, 0))
    _, selection = library.select(stated)
    assert (selection.exchanged, selection.m, selection.n, selection.k) == (1, 32, 16, 64)
    assert reading.exchanged


def test_a_single_column_of_output_is_aligned_as_a_row(library):
    _, selection = library.select(problem(4096, 1, 80))
    assert (selection.tier, selection.exchanged, selection.m, selection.n) == (2, 1, 1, 4096)


def test_no_k_is_computed_by_the_fallback(library, manifest):
    stated = problem(16, 16, 0)
    assert library.launch(stated) == 0
    (launch,) = library.fake_launches()
    assert launch.kernel == manifest.tables[0].table.sections[0].fallback
    assert (tuple(launch.a.shape), tuple(launch.d.shape)) == ((16, 0), (16, 16))


def test_no_rows_or_columns_is_no_work(library):
    for shape in ((0, 16, 16), (16, 0, 16), (0, 0, 0)):
        assert library.launch(problem(*shape, data=(0, 0, 0))) == 0
    assert library.fake_launches() == []


def test_a_column_major_output_with_a_bias_is_left_to_the_fallback(library, manifest):
    """Exchanging the roles would turn a bias of columns into one of rows."""
    strides = ((64, 1), (64, 1), (1, 16))
    plain, biased = problem(16, 32, 64, strides=strides), problem(16, 32, 64, strides=strides, dtype=2, bias=BIAS)
    assert [library.select(x)[1].exchanged for x in (plain, biased)] == [1, 0]
    assert library.launch(biased) == 0, library.error()
    (launch,) = library.fake_launches()
    assert manifest.kernels[launch.kernel].candidate.family == "simt"
    assert (launch.bias.data, launch.bias.shape[0], tuple(launch.d.shape)) == (BIAS, 32, (16, 32))
    assert (launch.a.data, launch.b.data, tuple(launch.d.strides)) == (biased.a.data, biased.b.data, (1, 16))


def test_a_bias_that_is_not_aligned_is_left_to_the_fallback(library):
    for bias, tier in ((BIAS, 2), (BIAS + 8, 3)):
        assert library.select(problem(16, 32, 64, dtype=2, bias=bias))[1].tier == tier


def test_a_product_without_k_gives_the_bias(library):
    assert library.launch(problem(16, 32, 0, dtype=2, bias=BIAS, data=(0, 0, 1 << 40))) == 0, library.error()
    (launch,) = library.fake_launches()
    assert (launch.bias.data, launch.bias.shape[0], tuple(launch.a.shape)) == (BIAS, 32, (16, 0))


def test_stream_reaches_the_kernel(library):
    stated = problem(3, 5, 7)
    assert library.launch(stated, stream=0x5000) == 0
    assert library.fake_launches()[0].stream == 0x5000


def has_prefetch(kernel):
    return Argument.PREFETCH_B in kernel.signature


def launch_one(library, kernel, stated):
    """Launch a named kernel, with the workspace that it asks for; gives what was recorded."""
    library.c.recorder_reset()
    num_bytes = library.workspace_bytes(stated, kernel)
    assert library.launch_kernel(kernel, stated, 0x900000 if num_bytes else 0, num_bytes, 0x50) == 0, library.error()
    (launch,) = library.fake_launches()
    return launch


@pytest.mark.parametrize("flags", [0, B_CONSTANT])
def test_a_constant_b_is_told_to_the_kernels_that_read_it_early_and_no_others(library, manifest, flags):
    seen = set()
    for index, kernel in enumerate(manifest.kernels):
        operation = kernel.operation
        stated = problem(256, 512, 64, **names_of(operation), data=(0x40000000, 0x50000000, 0x60000000), flags=flags)
        launch = launch_one(library, index, stated)
        has_workspace = kernel.workspace.mode != "none"
        prefetches_b = Argument.PREFETCH_B in kernel.signature
        assert launch.num_arguments == len(kernel.signature) + 1
        assert launch.reads_early == (flags if prefetches_b else TAKES_NONE)
        assert (launch.bias.data, launch.bias.shape[0]) == ((BIAS, 512) if operation.has_bias else (None, 0))
        assert (launch.workspace, launch.stream) == (0x900000 if has_workspace else None, 0x50)
        seen.add((has_workspace, prefetches_b, operation.has_bias))
    assert len(seen) == 8


def test_an_exchanged_b_is_not_taken_for_constant(library, manifest):
    stated = problem(256, 512, 64, strides=((64, 1), (64, 1), (1, 256)), flags=B_CONSTANT)
    operation = Operation.of(ElementType.BFLOAT16)
    early = [i for i, x in enumerate(manifest.kernels) if has_prefetch(x) and x.operation == operation]
    launches = [launch_one(library, index, stated) for index in early]
    assert [(x.a.data, x.b.data, x.reads_early) for x in launches] == [(stated.b.data, stated.a.data, 0)] * 2


def test_no_launch_changes_how_the_next_one_reads(library, manifest):
    """Neither one that writes the weight, nor one that fails: only the flag of the launch itself says."""
    operation = Operation.of(ElementType.BFLOAT16)
    early = next(i for i, x in enumerate(manifest.kernels) if has_prefetch(x) and x.operation == operation)
    late, promised = problem(256, 512, 64), problem(256, 512, 64, flags=B_CONSTANT)
    maker = problem(256, 64, 64, data=(0x10000000, 0x20000000, late.b.data))
    for failing in (False, True):
        for stated in (late, promised):
            library.c.recorder_fail(LAUNCH, 0)
            if failing:
                library.c.recorder_fail(LAUNCH, 719)
                assert library.launch_kernel(early, maker, 0x900000, 1 << 30) == 7
                library.c.recorder_fail(LAUNCH, 0)
            else:
                launch_one(library, early, maker)
            assert launch_one(library, early, stated).reads_early == stated.flags


def test_unknown_flags_are_refused(library):
    assert library.launch(problem(16, 16, 64, flags=2)) == 1
    assert library.error() == (
        "flags are 0x2; expected 0, or of AOT_GEMM_B_CONSTANT (0x1), AOT_GEMM_BATCH_INVARIANT (0x4), "
        "AOT_GEMM_DETERMINISTIC (0x8), with a gate AOT_GEMM_GATE_INTERLEAVED (0x2) or "
        "AOT_GEMM_GATE_PARTS (0x20) and of groups "
        "AOT_GEMM_OFFSETS_START (0x10): of 0xd here; the operation has no gate"
    )


def check_as_launched(library, manifest):
    """Compare with `aot.core.alignment.as_launched`, which selections are counted and explained by."""
    rng = random.Random(5)
    answers = set()
    for _ in range(20_000 if EVERY else 8_000):
        m, n, k = (rng.choice((1, 1, 2, 7, 8, 9, 16, 64, 4096, rng.randint(1, 300))) for _ in range(3))
        operation = rng.choice([x for x in Operation if x.call in CALLS])
        asked, layout = Problem(operation, m, n, k), operation.layout
        status, got = library.select(problem(m, n, k, **names_of(operation)))
        assert status == 0, library.error()
        launched = as_launched(asked, [x.operation for x in sections_of(manifest, CALLS.index(operation.call))])
        found = None
        if got.tier != Tier.FALLBACK.value:
            assert not (operation.has_bias and got.exchanged)
            (read,) = [x for x in operation.layouts if x.layout is tuple(Layout)[got.layout]]
            found = Problem(read, got.m, got.n, got.k)
        assert found == launched, asked
        answers.add((layout, None if launched is None else launched.operation.layout))
    return answers


def test_the_toolchain_reads_packed_operands_as_the_runtime_does(library, manifest):
    answers = check_as_launched(library, manifest)
    assert {(x, x) for x in Layout} | {(x, None) for x in Layout} | {(Layout.MK, Layout.KK)} <= answers


def test_layouts_without_a_section_are_left_to_the_fallback(manifest, tmp_path):
    """A wheel of a shape set that asks for kk alone has its kernels and the fallback, and is total all the same."""
    sections = tuple(x for x in manifest.tables[0].table.sections if x.operation.layout is Layout.KK)
    one = with_table(manifest, manifest.kernels, DispatchTable(sections))
    library = host.Library(host.compile_library(one, tmp_path))
    answers = check_as_launched(library, one)
    assert {found for _, found in answers} == {None, Layout.KK}
    for layout in ("kn", "mk", "mn"):
        stated = problem(64, 64, 64, layout=layout, data=(0x100000, 0x200000, 0x300000))
        library.c.recorder_reset()
        assert library.launch(stated) == 0, library.error()
        (launch,) = library.fake_launches()
        assert launch.kernel == sections[0].fallback
