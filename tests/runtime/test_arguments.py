"""What each argument of a kernel's entry holds, for every operation of the catalogue, aligned and not."""

from __future__ import annotations

import random
from itertools import product

import pytest

from aot.core.alignment import as_launched
from aot.core.formats import SCALE_BLOCK, FactorLayout
from aot.core.operation import Operation
from aot.core.problem import Problem
from tests.compiling import some
from tests.runtime.reference import Matrix, code, readings, takes
from tests.runtime.stating import ADDRESSES, DENSE, by_call, element_bytes, extents, operands_of, packed, state
from tests.runtime.structs import Bias, Factors

B_CONSTANT, INTERLEAVED, PARTS = 1, 2, 32  # AOT_GEMM_B_CONSTANT, _GATE_INTERLEAVED and _GATE_PARTS
M, N, K = 48, 64, 160
GATES = [x for x in DENSE if x.gate is not None]
OPTIONAL_BIAS = [x for x in by_call() if x.has_bias and x.epilogue.value != "bias"]
ALIGNMENT_BYTES = 16
FALLBACK = 3  # AOT_GEMM_TIER_FALLBACK
STRIDE_LIMIT_BYTES = 2**40


@pytest.fixture
def every(every_manifest, every_library):
    return every_manifest, every_library


def launched(library, stated):
    """Launch a problem, with as much workspace as it takes; gives what its kernel was called with."""
    library.c.recorder_reset()
    num_bytes = library.workspace_bytes(stated)
    assert library.launch(stated, 0x900000 if num_bytes else 0, num_bytes, 0x5550) == 0, library.error()
    (launch,) = library.fake_launches()
    return launch


def tier_of(library, stated):
    status, selection = library.select(stated)
    assert status == 0, library.error()
    return selection.tier


def read(tensor, num_strides=2):
    """Return a struct's address, shape and as many strides as a kernel reads."""
    strides = list(getattr(tensor, "strides", ()))[:num_strides]
    return tensor.data or 0, list(tensor.shape), strides


def gate_steps(step, n, *, is_interleaved):
    """Return the strides from part to part and from row to row: the contract's, for rows that lie `step` apart."""
    return [step, 2 * step] if is_interleaved else [n * step, step]


def check_b(operation, stated, launch, num_strides, *, is_interleaved):
    row, column = stated.b.strides
    if operation.gate is None:
        leading = [row, column] if num_strides == 2 or operation.layout.b_k_major else [column]
        return read(launch.b, num_strides) == (stated.b.data, [stated.n, stated.k], leading[:num_strides])
    steps = [*gate_steps(row, stated.n, is_interleaved=is_interleaved), column][: num_strides + 1]
    return read(launch.b.parts, num_strides + 1) == (stated.b.data, [2, stated.n, stated.k], steps)


def check_bias(operation, stated, launch, *, is_interleaved):
    address = stated.bias.data or 0
    if not operation.has_bias:
        return bytes(launch.bias) == bytes(Bias())
    count = stated.n if address else 0
    if operation.gate is None:
        return read(launch.bias) == (address, [count], [])
    return read(launch.bias.parts) == (address, [2, count], gate_steps(1, stated.n, is_interleaved=is_interleaved))


def check_factors(operation, stated, launch, *, is_interleaved):
    if operation.types.factors is None:
        return bytes(launch.scale_a) == bytes(launch.scale_b) == bytes(Factors())
    if operation.types.factors is FactorLayout.BLOCK:
        blocks = -(-stated.k // SCALE_BLOCK)
        a = [stated.m, blocks], list(stated.scale_a.strides)
        b = [-(-stated.n // SCALE_BLOCK), blocks], list(stated.scale_b.strides)
        return (read(launch.scale_a.matrix), read(launch.scale_b.matrix)) == (
            (stated.scale_a.data, *a),
            (stated.scale_b.data, *b),
        )
    a = stated.scale_a.data, [stated.m], [stated.scale_a.strides[0] if stated.m > 1 else 0]
    step = stated.scale_b.strides[0]
    if operation.gate is not None:
        b = [2, stated.n], gate_steps(step, stated.n, is_interleaved=is_interleaved)
        return (read(launch.scale_a.vector), read(launch.scale_b.matrix)) == (a, (stated.scale_b.data, *b))
    b = stated.scale_b.data, [stated.n], [step if stated.n > 1 else 0]
    return (read(launch.scale_a.vector), read(launch.scale_b.vector)) == (a, b)


def check_launch(operation, stated, launch, num_strides):
    """Compare every argument with the problem as it was stated; A and B are not exchanged."""
    is_interleaved = bool(stated.flags & INTERLEAVED)
    a = list(stated.a.strides)
    if num_strides == 1 and not operation.layout.a_k_major:
        a.reverse()
    assert read(launch.a, num_strides) == (stated.a.data, [stated.m, stated.k], a[:num_strides])
    assert check_b(operation, stated, launch, num_strides, is_interleaved=is_interleaved)
    assert read(launch.d, num_strides) == (stated.d.data, [stated.m, stated.n], list(stated.d.strides)[:num_strides])
    assert check_bias(operation, stated, launch, is_interleaved=is_interleaved)
    assert check_factors(operation, stated, launch, is_interleaved=is_interleaved)
    residual = (
        (stated.residual.data, [stated.m, stated.n], list(stated.residual.strides)[:num_strides])
        if operation.has_residual
        else (0, [0, 0], [0, 0][:num_strides])
    )
    assert read(launch.residual, num_strides) == residual
    assert read(launch.scale_d) == ((stated.scale_d.data, [1], []) if operation.types.scales_d else (0, [0], []))
    assert launch.stream == 0x5550


@pytest.mark.parametrize("operation", some(DENSE, 16), ids=lambda x: x.tag)
@pytest.mark.parametrize("flags", [0, INTERLEAVED])
def test_every_argument_arrives_as_it_was_stated(every, operation, flags):
    """Aligned and of one leading stride; then with strides that only the fallback takes."""
    manifest, library = every
    stated = state(library, operation, M, N, K, flags=flags if operation.gate else 0)
    launch = launched(library, stated)
    kernel = manifest.kernels[launch.kernel]
    assert (kernel.operation, launch.num_arguments) == (operation, len(kernel.signature) + 1)
    assert tier_of(library, stated) != FALLBACK
    check_launch(operation, stated, launch, kernel.num_strides)
    strides = {name: tuple(3 * x for x in pair) for name, pair in packed(operation, M, N, K).items()}
    moved = [name for name in operands_of(operation) if name in {"a", "b", "d", "residual"}]
    loose = {name: (ADDRESSES[name] + element_bytes(operation, name), strides[name]) for name in moved}
    stated = state(library, operation, M, N, K, flags=flags if operation.gate else 0, **loose)
    launch = launched(library, stated)
    assert (tier_of(library, stated), manifest.kernels[launch.kernel].num_strides) == (FALLBACK, 2)
    check_launch(operation, stated, launch, 2)


@pytest.mark.parametrize("operation", by_call(), ids=lambda x: x.call)
def test_every_kernel_gets_its_arguments(every, operation):
    """A kernel by its index, whatever the table says: those with a workspace, and those that read B early, too."""
    manifest, library = every
    stated = state(library, operation, 512, 512, 512, flags=B_CONSTANT)
    seen = set()
    for index, kernel in enumerate(manifest.kernels):
        if kernel.operation is not operation:
            continue
        library.c.recorder_reset()
        num_bytes = library.workspace_bytes(stated, index)
        assert library.launch_kernel(index, stated, 0x900000, num_bytes, 0x5550) == 0, library.error()
        (launch,) = library.fake_launches()
        assert (launch.kernel, launch.num_arguments) == (index, len(kernel.signature) + 1)
        check_launch(operation, stated, launch, kernel.num_strides)
        has_workspace, prefetches_b = ("workspace" in kernel.signature), ("prefetch_b" in kernel.signature)
        assert (launch.workspace, launch.workspace_floats) == (
            (0x900000, num_bytes // 4) if has_workspace else (None, 0)
        )
        assert launch.reads_early == (1 if prefetches_b else -1)
        seen.add((has_workspace, prefetches_b))
    assert len(seen) == 4


@pytest.mark.parametrize("operation", OPTIONAL_BIAS, ids=lambda x: x.call)
@pytest.mark.parametrize("is_aligned", [True, False])
def test_a_bias_that_may_be_absent_has_no_elements_then(every, operation, is_aligned):
    _, library = every
    a = (ADDRESSES["a"] + (0 if is_aligned else element_bytes(operation, "a")), (K, 1))
    stated = state(library, operation, M, N, K, bias=None, a=a)
    assert (tier_of(library, stated) != FALLBACK) == is_aligned
    launch = launched(library, stated)
    shape = [0] if operation.gate is None else [2, 0]
    assert read(launch.bias if operation.gate is None else launch.bias.parts)[:2] == (0, shape)


@pytest.mark.parametrize("m", [1, M])
@pytest.mark.parametrize("n", [1, 8, N])
@pytest.mark.parametrize("flags", [0, INTERLEAVED])
@pytest.mark.parametrize("operation", [Operation.E4M3_BF16_KK, Operation.INT8_FP16_KK, Operation.E4M3_BF16_KK_SWIGLU])
def test_one_factor_for_all_has_a_stride_of_0(every, operation, m, n, flags):
    """A single row's stride is 0 too, whatever was stated; a gate's B has two rows at least."""
    _, library = every
    flags = flags if operation.gate else 0
    for a_step, b_step in product((0, 1), repeat=2):
        changes = {"scale_a": (ADDRESSES["scale_a"], (a_step, -7)), "scale_b": (ADDRESSES["scale_b"], (b_step, -7))}
        stated = state(library, operation, m, n, K, flags=flags, **changes)
        assert check_factors(operation, stated, launched(library, stated), is_interleaved=bool(flags))


def test_factors_of_blocks_may_lie_anyhow(every):
    _, library = every
    blocks = {"scale_a": (ADDRESSES["scale_a"] + 4, (1, M)), "scale_b": (ADDRESSES["scale_b"] + 8, (0, 5))}
    stated = state(library, Operation.E4M3_BF16_BLOCK_KK, M, N, K, **blocks)
    assert tier_of(library, stated) != FALLBACK
    launch = launched(library, stated)
    assert read(launch.scale_a.matrix) == (blocks["scale_a"][0], [M, 2], [1, M])
    assert read(launch.scale_b.matrix) == (blocks["scale_b"][0], [1, 2], [0, 5])


def test_what_only_the_fallback_takes_of_each_operand(every):
    """One operand after the other is moved off its alignment: D and a residual end and start at 16 bytes."""
    _, library = every
    seen = set()
    for operation in by_call():
        assert tier_of(library, state(library, operation, M, N, K)) != FALLBACK
        for name in operands_of(operation):
            step, strides = element_bytes(operation, name), packed(operation, M, N, K)[name]
            is_factor = name.startswith("scale")
            moved = state(library, operation, M, N, K, **{name: (ADDRESSES[name] + step, strides)})
            assert (tier_of(library, moved) == FALLBACK) == (not is_factor), (operation, name)
            if is_factor or name == "bias":
                continue
            wider = state(library, operation, M, N, K, **{name: (ADDRESSES[name], (strides[0] + 1, 1))})
            assert tier_of(library, wider) == FALLBACK, (operation, name)
            aligned = ALIGNMENT_BYTES // step
            wider = state(library, operation, M, N, K, **{name: (ADDRESSES[name], (strides[0] + aligned, 1))})
            assert tier_of(library, wider) != FALLBACK, (operation, name)
            seen.add((name, step))
        ragged = N + ALIGNMENT_BYTES // element_bytes(operation, "d") // 2
        assert tier_of(library, state(library, operation, M, ragged, K)) == FALLBACK
    assert {("a", 1), ("a", 2), ("a", 4), ("d", 1), ("d", 2), ("d", 4), ("residual", 2)} <= seen


@pytest.mark.parametrize("operation", GATES, ids=lambda x: x.tag)
def test_a_gate_whose_parts_tma_cannot_step_between_is_left_to_the_fallback(every, operation):
    """Halves lie n rows apart, gate rows in turns two rows: a step below 2^40 bytes between rows is not enough."""
    _, library = every
    size = element_bytes(operation, "b")
    for flags, factor in ((0, N), (INTERLEAVED, 2)):
        least_refused = STRIDE_LIMIT_BYTES // size // factor
        for step, is_aligned in ((least_refused - ALIGNMENT_BYTES // size, True), (least_refused, False)):
            stated = state(library, operation, M, N, K, flags=flags, b=(1 << 56, (step, 1)))
            assert (tier_of(library, stated) != FALLBACK) == is_aligned, (flags, step)


@pytest.mark.parametrize("operation", GATES, ids=lambda x: x.tag)
def test_the_parts_of_a_gate_lie_as_far_apart_as_is_said(every, operation):
    """Steps of whole pieces of 16 bytes below 2^40, either way, are a kernel's own; others are the fallback's."""
    _, library = every
    size = element_bytes(operation, "b")
    piece = ALIGNMENT_BYTES // size
    most = STRIDE_LIMIT_BYTES // size - piece
    for step, is_aligned in (
        (N * K, True),
        (N * K + piece, True),
        (most, True),
        (N * K + 1, False),
        (most + piece, False),
        (-N * K, True),
        (-most, True),
        (-N * K - 1, False),
        (-most - piece, False),
    ):
        stated = state(library, operation, M, N, K, flags=PARTS, b=(1 << 56, (K, 1)))
        stated.group_strides.b = step
        launch = launched(library, stated)
        assert (tier_of(library, stated) != FALLBACK) == is_aligned, step
        num_strides = 2 if is_aligned else 3
        assert read(launch.b.parts, num_strides) == (1 << 56, [2, N, K], [step, K, 1][:num_strides])


@pytest.mark.parametrize("operation", GATES, ids=lambda x: x.tag)
def test_parts_of_a_gate_that_a_library_cannot_place_are_refused(every, operation):
    _, library = every
    stated, size = state(library, operation, M, N, K, flags=PARTS), element_bytes(operation, "b")
    for step in (-ADDRESSES["b"] // size - 1, -1 << 63, *([(1 << 63) - 1] if size > 1 else [])):
        stated.group_strides.b = step
        assert library.launch(stated, 0x900000, 1 << 30, 0x5550) != 0
        assert library.error() == (
            f"group_strides.b is {step}, the step from the gate rows of B to the linear ones; expected one to within "
            "the address space; launch the two products one after the other"
        )
    stated.group_strides.b = (ADDRESSES["d"] - ADDRESSES["b"]) // size
    assert library.launch(stated, 0x900000, 1 << 30, 0x5550) != 0
    assert "overlaps B at address" in library.error()
    both = state(library, operation, M, N, K, flags=PARTS | INTERLEAVED)
    assert library.launch(both, 0x900000, 1 << 30, 0x5550) != 0
    assert library.error().endswith("rows in pairs are in one matrix") or operation.types.factors is FactorLayout.BLOCK


@pytest.mark.parametrize("operation", GATES, ids=lambda x: x.tag)
def test_a_gates_b_is_not_loaded_along_its_rows(every, operation):
    _, library = every
    stated = state(library, operation, M, N, K, b=(ADDRESSES["b"], (1, 2 * N)))
    launch = launched(library, stated)
    assert tier_of(library, stated) == FALLBACK
    assert read(launch.b.parts, 3) == (ADDRESSES["b"], [2, N, K], [N, 1, 2 * N])


@pytest.mark.parametrize("operation", by_call(), ids=lambda x: x.call)
def test_a_k_of_0_is_computed_by_the_fallback_and_no_rows_are_no_work(every, operation):
    _, library = every
    stated = state(library, operation, M, N, 0, a=None, b=None)
    launch = launched(library, stated)
    assert tier_of(library, stated) == FALLBACK
    assert read(launch.d) == (ADDRESSES["d"], [M, N], [N, 1])
    assert check_bias(operation, stated, launch, is_interleaved=False)
    assert check_factors(operation, stated, launch, is_interleaved=False)
    library.c.recorder_reset()
    for m, n in ((0, N), (M, 0), (0, 0)):
        nothing = dict.fromkeys(operands_of(operation))
        assert library.launch(state(library, operation, m, n, K, **nothing)) == 0, library.error()
    assert library.fake_launches() == []


def test_blocks_of_a_k_of_0_have_no_factors(every):
    _, library = every
    stated = state(library, Operation.E4M3_BF16_BLOCK_KK, M, N, 0, a=None, b=None, scale_a=None, scale_b=None)
    launch = launched(library, stated)
    assert read(launch.scale_a.matrix)[:2] == (0, [M, 0])
    assert read(launch.scale_b.matrix)[:2] == (0, [1, 0])


def test_the_toolchain_reads_packed_operands_as_the_runtime_does(every):
    """By `aot.core.alignment.as_launched`, whose answers selections are counted and explained by."""
    _, library = every
    rng = random.Random(6)
    answers = set()
    for _ in range(4000):
        operation = rng.choice(DENSE)
        m, n, k = (rng.choice((1, 2, 4, 8, 12, 16, 24, 64, 4096, rng.randint(1, 300))) for _ in range(3))
        status, got = library.select(state(library, operation, m, n, k))
        assert status == 0, library.error()
        launched_as = as_launched(Problem(operation, m, n, k), operation.layouts)
        found = None
        if got.tier != FALLBACK:
            (read_as,) = [x for x in operation.layouts if x.layout.code == got.layout]
            found = Problem(read_as, got.m, got.n, got.k)
        assert found == launched_as, (operation, m, n, k)
        answers.add((operation, found is None))
    assert answers == {(x, is_none) for x in DENSE for is_none in (True, False)}


def matrices_of(operation, stated):
    """Read A, B, D and, where there is one, the residual."""
    shapes = extents(operation, stated.m, stated.n, stated.k)
    names = [x for x in ("a", "b", "d", "residual") if x in operands_of(operation)]
    tensors = {name: getattr(stated, name) for name in names}
    return [
        Matrix(x.data or 0, shapes[name], tuple(x.strides), element_bytes(operation, name))
        for name, x in tensors.items()
    ]


def test_what_tma_takes_is_counted_in_bytes_of_each_operand(every):
    """Against every reading of a problem, over strides and addresses about the limits of each element type."""
    _, library = every
    rng = random.Random(7)
    seen = set()
    for i in range(20_000):
        operation = DENSE[i % len(DENSE)]
        m, n, k = (rng.choice((1, 2, 4, 8, 16, 16, 32, 20)) for _ in range(3))
        changes = {}
        for name in (x for x in ("a", "b", "d", "residual") if x in operands_of(operation)):
            step = element_bytes(operation, name)
            rows, columns = extents(operation, m, n, k)[name]
            pads = (0, 0, 0, 16 // step, 1, 8 // step)
            row_major, column_major = (columns + rng.choice(pads), 1), (1, rows + rng.choice(pads))
            strides = rng.choice((row_major, row_major, column_major))
            changes[name] = ADDRESSES[name] + rng.choice((0, 0, 0, 16, step)), strides
        stated = state(library, operation, m, n, k, **changes)
        a, b, d, *residual = matrices_of(operation, stated)
        layouts = {x.layout.value for x in operation.layouts}
        found = [x for x in readings(a, b, d, layouts) if operation.can_exchange or not x.exchanged]
        is_taken = all(takes(x, 1) for x in residual)
        status, got = library.select(stated)
        assert status == 0, library.error()
        if not found or not is_taken:
            assert got.tier == FALLBACK, (operation, changes)
            continue
        assert (got.layout, bool(got.exchanged)) == (code(found[0].layout), found[0].exchanged), (operation, changes)
        assert got.tier != FALLBACK
        seen.add((operation.call, found[0].exchanged))
    assert seen >= {(x.call, False) for x in by_call()} | {(x.call, True) for x in by_call() if x.can_exchange}


def test_a_and_b_change_places_only_where_nothing_comes_between_the_sum_and_d(every):
    _, library = every
    found = {}
    for operation in by_call():
        column_major = (ADDRESSES["d"], (1, M))
        _, selection = library.select(state(library, operation, M, N, K, d=column_major))
        found[operation.call] = bool(selection.exchanged)
        assert (selection.tier == FALLBACK) == (not selection.exchanged)
    assert found == {x.call: x.can_exchange for x in by_call()}
    assert [call for call, is_exchanged in found.items() if is_exchanged] == [
        "bf16",
        "fp16",
        "int8_int32",
        "tf32",
        "fp32",
    ]
