"""What the C API refuses of each operand that an operation takes, and the exact text."""

from __future__ import annotations

import ctypes
import random

import pytest

from aot.core.operation import Operation
from tests.runtime.stating import ADDRESSES, by_call, element_bytes, extents, operands_of, packed, state

OK, ARGUMENT, OPERATION, SHAPE, STRIDE = 0, 1, 2, 3, 4
M, N, K = 16, 32, 160
BF16, BIAS, GELU = Operation.BF16_KK, Operation.BF16_KK_BIAS, Operation.BF16_KK_GELU
RESIDUAL, SWIGLU = Operation.FP16_KK_RESIDUAL, Operation.BF16_KK_SWIGLU
FP8, FP8_FP8, BLOCK = Operation.E4M3_BF16_KK, Operation.E4M3_E4M3_KK, Operation.E4M3_BF16_BLOCK_KK
FP8_SWIGLU, INT8 = Operation.E4M3_BF16_KK_SWIGLU, Operation.INT8_INT32_KK
D = ADDRESSES["d"]
LAST = 2**64 - 64
NAMES = {"a": "A", "b": "B", "d": "D", "bias": "the bias", "residual": "the residual"}


def not_taken(what, call):
    return f"got {what}, which operation {call} does not take; expected null, or another operation"


def overlap(name, d, address):
    return (
        f"D at address {d:#x} overlaps {NAMES.get(name, name)} at address {address:#x}; expected a D that shares no "
        "element with an operand, which would be overwritten while it is read; give D storage of its own"
    )


def past_the_end(name, shape, strides, address):
    return (
        f"{name} {shape} with strides {strides} at address {address:#x} reaches past the end of the address space; "
        "mend its strides"
    )


def unaligned(name, address):
    return f"{name} is at address {address:#x}; expected a multiple of 4, the bytes of its elements; copy it"


def of_stride(name, count, stride):
    return (
        f"{name} of {count} factors has the stride {stride}; expected 1, factors that are adjacent, or 0, one factor "
        "for all; copy it"
    )


SOMEWHERE = (ADDRESSES["scale_a"], (1, 1))


def flags(got, known):
    return (
        f"flags are {got}; expected 0, or of AOT_GEMM_B_CONSTANT (0x1), AOT_GEMM_BATCH_INVARIANT (0x4), "
        "AOT_GEMM_DETERMINISTIC (0x8), with a gate AOT_GEMM_GATE_INTERLEAVED (0x2) or "
        "AOT_GEMM_GATE_PARTS (0x20) and of groups "
        f"AOT_GEMM_OFFSETS_START (0x10): of {known} here"
    )


NO_INVARIANT = (
    "this library has no batch-invariant table of bf16_gelu; expected a call without AOT_GEMM_BATCH_INVARIANT, or a "
    "library built of a selection that `aot select --batch-invariant` made"
)
NO_BATCH = (
    "a batch of 2 products of operation bf16_swiglu; expected an operation of A, B, D and a bias that all share; "
    "launch each product by itself"
)
CASES = [
    (BF16, {"bias": SOMEWHERE}, ARGUMENT, not_taken("a bias", "bf16")),
    (BF16, {"scale_a": SOMEWHERE}, ARGUMENT, not_taken("scale_a", "bf16")),
    (BF16, {"scale_b": SOMEWHERE}, ARGUMENT, not_taken("scale_b", "bf16")),
    (BF16, {"residual": SOMEWHERE}, ARGUMENT, not_taken("a residual", "bf16")),
    (BF16, {"scale_d": SOMEWHERE}, ARGUMENT, not_taken("scale_d", "bf16")),
    (INT8, {"scale_b": SOMEWHERE}, ARGUMENT, not_taken("scale_b", "int8_int32")),
    (BLOCK, {"bias": SOMEWHERE}, ARGUMENT, not_taken("a bias", "e4m3_bf16_block")),
    (FP8, {"scale_d": SOMEWHERE}, ARGUMENT, not_taken("scale_d", "e4m3_bf16")),
    (SWIGLU, {"residual": SOMEWHERE}, ARGUMENT, not_taken("a residual", "bf16_swiglu")),
    (BIAS, {"bias": None}, STRIDE,
     "the bias of 32 elements has the stride 0; expected 1, elements that are adjacent; copy it"),
    (BIAS, {"bias": (0, (0, 1))}, ARGUMENT, "`bias.data` is null; expected an address"),
    (GELU, {"bias": (ADDRESSES["bias"], (1, 2))}, STRIDE,
     "the bias of 32 elements has the stride 2; expected 1, elements that are adjacent; copy it"),
    (SWIGLU, {"bias": (ADDRESSES["bias"], (1, 0))}, STRIDE,
     "the bias of 64 elements has the stride 0; expected 1, elements that are adjacent; copy it"),
    (RESIDUAL, {"residual": None}, ARGUMENT, "`residual.data` is null; expected an address"),
    (RESIDUAL, {"residual": (ADDRESSES["residual"], (-32, 1))}, STRIDE,
     "the residual (16, 32) has strides (-32, 1); expected none below 0; copy the residual"),
    (RESIDUAL, {"residual": (LAST, (32, 1))}, STRIDE, past_the_end("the residual", "(16, 32)", "(32, 1)", LAST)),
    (FP8, {"scale_a": None}, ARGUMENT, "`scale_a.data` is null; expected an address"),
    (FP8, {"scale_b": None}, ARGUMENT, "`scale_b.data` is null; expected an address"),
    (FP8, {"scale_a": (ADDRESSES["scale_a"], (2, 1))}, STRIDE, of_stride("scale_a", 16, 2)),
    (FP8, {"scale_b": (ADDRESSES["scale_b"], (-1, 1))}, STRIDE, of_stride("scale_b", 32, -1)),
    (FP8_SWIGLU, {"scale_b": (ADDRESSES["scale_b"], (8, 1))}, STRIDE, of_stride("scale_b", 64, 8)),
    (FP8, {"scale_a": (ADDRESSES["scale_a"] + 2, (1, 1))}, STRIDE, unaligned("scale_a", ADDRESSES["scale_a"] + 2)),
    (BLOCK, {"scale_b": (ADDRESSES["scale_b"] + 1, (2, 1))}, STRIDE, unaligned("scale_b", ADDRESSES["scale_b"] + 1)),
    (FP8, {"scale_b": (LAST, (1, 1))}, STRIDE, past_the_end("scale_b", "(32, 1)", "(1, 0)", LAST)),
    (BLOCK, {"scale_a": None}, ARGUMENT, "`scale_a.data` is null; expected an address"),
    (BLOCK, {"scale_b": (0, (2, 1))}, ARGUMENT, "`scale_b.data` is null; expected an address"),
    (BLOCK, {"scale_a": (ADDRESSES["scale_a"], (-2, 1))}, STRIDE,
     "scale_a (16, 2) has strides (-2, 1); expected none below 0; copy scale_a"),
    (BLOCK, {"scale_b": (ADDRESSES["scale_b"], (1, -1))}, STRIDE,
     "scale_b (1, 2) has strides (1, -1); expected none below 0; copy scale_b"),
    (BLOCK, {"scale_a": (LAST, (2, 1))}, STRIDE, past_the_end("scale_a", "(16, 2)", "(2, 1)", LAST)),
    (FP8_FP8, {"scale_d": None}, ARGUMENT, "`scale_d.data` is null; expected an address"),
    (FP8_FP8, {"scale_d": (ADDRESSES["scale_d"] + 3, (0, 0))}, STRIDE, unaligned("scale_d", ADDRESSES["scale_d"] + 3)),
    (SWIGLU, {"b": (ADDRESSES["b"], (-1, 1))}, STRIDE,
     "B (64, 160) has strides (-1, 1); expected none below 0; copy B"),
    (SWIGLU, {"flags": 16}, ARGUMENT, flags("0x10", "0x2f")),
    (GELU, {"flags": 3}, ARGUMENT, flags("0x3", "0xd") + "; the operation has no gate"),
    (GELU, {"flags": 16}, ARGUMENT, flags("0x10", "0xd")),
    (GELU, {"flags": 4}, OPERATION, NO_INVARIANT),
    (GELU, {"num_groups": -1}, SHAPE, "num_groups is -1; expected 0 to 2147483647; split the problem"),
    (GELU, {"offsets": SOMEWHERE}, ARGUMENT,
     "got offsets, which operation bf16_gelu does not take; expected null, or another operation"),
    (SWIGLU, {"num_groups": 2}, ARGUMENT, NO_BATCH),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "changes", "status", "message"), CASES)
def test_an_operand_is_refused_by_its_name(every_library, operation, changes, status, message):
    stated = state(every_library, operation, M, N, K, **changes)
    assert (every_library.launch(stated), every_library.error()) == (status, message)
    assert every_library.fake_launches() == []


@pytest.mark.parametrize(("m", "n", "k"), [(1, 2**30, 16), (0, 2**30, 0), (16, 2**31 - 1, 16)])
def test_a_gate_of_more_rows_than_an_extent_has_is_refused(every_library, m, n, k):
    stated = state(every_library, SWIGLU, m, n, k)
    assert (every_library.launch(stated), every_library.error()) == (
        SHAPE,
        f"n is {n}; expected 0 to 1073741823 with a gate, whose B has twice as many rows; split the problem",
    )
    assert every_library.select(state(every_library, SWIGLU, 1, 2**30 - 1, 16))[0] == OK


@pytest.mark.parametrize("operation", by_call(), ids=lambda x: x.call)
def test_d_may_start_on_no_operand(every_library, operation):
    """Not even on a residual that is D itself: which kernel reads it before it writes is no promise of the C API."""
    for name in (x for x in operands_of(operation) if x != "d"):
        stated = state(every_library, operation, M, N, K, d=(ADDRESSES[name], (N, 1)))
        assert (every_library.launch(stated), every_library.error()) == (
            STRIDE,
            overlap(name, ADDRESSES[name], ADDRESSES[name]),
        )


def addresses_of(address, rows, columns, strides, size):
    """List every byte of a matrix."""
    starts = (address + size * (i * strides[0] + j * strides[1]) for i in range(rows) for j in range(columns))
    return {start + byte for start in starts for byte in range(size)}


def test_every_byte_that_d_shares_is_found_whatever_the_element_sizes(every_library):
    """D and each operand have elements of their own sizes: compared with a list of every byte."""
    rng = random.Random(4)
    seen = set()
    operations = [x for x in by_call() if operands_of(x) != ("a", "b", "d") or x.types.a.num_bytes != x.d.num_bytes]
    for _ in range(4000):
        operation = rng.choice(operations)
        m, n, k = (rng.choice((1, 2, 3, 5, 130)) if x == "k" else rng.randint(1, 6) for x in "mnk")
        name = rng.choice([x for x in operands_of(operation) if x != "d"])
        rows, columns = extents(operation, m, n, k)[name]
        strides = packed(operation, m, n, k)[name]
        if name in {"a", "b", "residual"}:
            strides = columns + rng.randint(0, 3), 1
        size, d_size = element_bytes(operation, name), operation.d.num_bytes
        address = 0x10000 + size * rng.randint(0, 40)
        d_address, d_strides = 0x10000 + d_size * rng.randint(0, 40), (n + rng.randint(0, 9), 1)
        stated = state(every_library, operation, m, n, k, d=(d_address, d_strides), **{name: (address, strides)})
        operand = addresses_of(address, rows, columns, strides, size)
        shared = operand & addresses_of(d_address, m, n, d_strides, d_size)
        workspace = 0x7F0000000000
        expected = (STRIDE, overlap(name, d_address, address)) if shared else (OK, "")
        status = every_library.launch(stated, workspace, 2**40)
        assert (status, every_library.error() if status else "") == expected, (operation, name)
        seen.add((name, size, d_size, bool(shared)))
    for name, size, d_size in (("a", 1, 2), ("b", 1, 4), ("scale_a", 4, 2), ("scale_b", 4, 1), ("bias", 2, 1)):
        assert {(name, size, d_size, True), (name, size, d_size, False)} <= seen


@pytest.mark.parametrize("num_bytes", [120, 144])
def test_an_older_program_has_none_of_the_operands_that_came_since(every_library, num_bytes):
    """It is served where it needs none of them, and told which it lacks where it does."""
    for operation in by_call():
        stated = state(every_library, operation, M, N, K)
        stated.struct_bytes = num_bytes
        needed = [x for x in ("bias", "scale_a", "scale_b", "residual", "scale_d") if x in operands_of(operation)]
        has_bias = num_bytes >= 144
        missing = [x for x in needed if x != "bias" or (operation.epilogue.value == "bias" and not has_bias)]
        memory = (ctypes.c_ubyte * 240)(*bytes(stated)[:num_bytes], *[0xFF] * (240 - num_bytes))
        every_library.c.recorder_reset()
        status = every_library.c.aot_gemm_launch_allocating(memory, ALLOCATE, None, None)
        if not missing:
            assert status == OK, every_library.error()
            (launch,) = every_library.fake_launches()
            bias = stated.bias.data if "bias" in needed and has_bias else None
            assert launch.bias.data == bias
            continue
        assert status in {ARGUMENT, STRIDE}, operation
        assert any(NAMES.get(x, x) in every_library.error() or x in every_library.error() for x in missing)


GIVE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
ALLOCATE = GIVE(lambda _context, _num_bytes: 0x7F0000000000)
