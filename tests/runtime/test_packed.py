"""Elements of 4 bits and factors in atoms, over the recorder: what is taken and refused, what a kernel is given."""

import random

import pytest

from aot.core.alignment import as_launched
from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.measure.call_structs import GATE_INTERLEAVED, GATE_PARTS
from tests.compiling import some
from tests.runtime.stating import ADDRESSES, IN_ATOMS, state
from tests.runtime.test_arguments import FALLBACK, launched, read, tier_of

NVFP4, MXFP8 = Operation.NVFP4_BF16_KK, Operation.MXFP8_BF16_KK
M, N, K = 130, 72, 160


@pytest.fixture
def manifest(atoms_manifest):
    return atoms_manifest


@pytest.fixture
def library(packed):
    return packed


def length(operation):
    """Return a k that kernels other than the fallback take."""
    return -(-K // operation.k_step) * operation.k_step


def atom_bytes(rows, k, block):
    """Count the bytes of whole atoms of 128 rows by 4 blocks."""
    return -(-rows // 128) * -(-k // (4 * block)) * 512


@pytest.mark.parametrize("operation", some(IN_ATOMS), ids=lambda x: x.tag)
@pytest.mark.parametrize("moved", [False, True], ids=["packed", "for the fallback"])
def test_factors_arrive_as_bytes_of_whole_atoms(manifest, library, operation, moved):
    k = length(operation)
    strides = {"a": (ADDRESSES["a"], (k + 2, 1))} if moved else {}
    stated = state(library, operation, M, N, k, **strides)
    launch = launched(library, stated)
    assert manifest.kernels[launch.kernel].operation is operation
    assert (tier_of(library, stated) == FALLBACK) == moved
    block = {"nvfp4": 16}.get(operation.tag[:5], 32)
    assert read(launch.a, 1) == (ADDRESSES["a"], [M, k], [k + 2 if moved else k])
    if operation.gate is not None:
        assert read(launch.b.parts, 2) == (ADDRESSES["b"], [2, N, k], [k, 2 * k])
    for name, rows in (("a", M), ("b", operation.num_rows_of_b(N))):
        found = getattr(launch, f"scale_{name}").vector
        assert (found.data, found.shape[0]) == (ADDRESSES[f"scale_{name}"], atom_bytes(rows, k, block))
    whole = ADDRESSES["scale_d"] if operation.types.scales_sum else 0
    assert (launch.scale_d.data or 0) == whole
    address = ADDRESSES["bias"] if operation.has_bias else None
    assert launch.bias.data == address
    if operation.gate is not None:
        assert read(launch.bias.parts) == (address, [2, N], [1, 2])
    elif operation.has_bias:
        assert launch.bias.vector.shape[0] == N
    residual = (ADDRESSES["residual"], [M, N], [N]) if operation.has_residual else (0, [0, 0], [0])
    assert read(launch.residual, 1) == residual


def test_the_toolchain_says_as_the_library_which_problems_the_fallback_takes(library):
    rng = random.Random(3)
    seen = set()
    for operation in [x for x in IN_ATOMS for _ in range(20)]:
        m, n, k = rng.choice((1, 7, 128)), rng.choice((8, 12, 64)), rng.choice((16, 24, 32, 40, 48, 64, 96, 128, 256))
        is_fallback = tier_of(library, state(library, operation, m, n, k)) == FALLBACK
        assert is_fallback == (as_launched(Problem(operation, m, n, k), IN_ATOMS) is None), (operation, m, n, k)
        seen.add((operation, is_fallback))
    assert len(seen) == 2 * len(IN_ATOMS)


@pytest.mark.parametrize(("k", "takes"), [(64, True), (48, False), (32, True)])
def test_a_single_row_of_4_bits_takes_whole_pieces_of_k_too(library, k, takes):
    assert (tier_of(library, state(library, NVFP4, 1, 64, k)) != FALLBACK) == takes


@pytest.mark.parametrize(
    ("name", "address", "stride", "takes"),
    [
        ("b", 0, 256, True),
        ("b", 32, 320, True),
        ("b", 16, 256, False),
        ("b", 0, 256 + 32, False),
        ("a", 16, 256 + 16, True),
        ("a", 8, 256, False),
    ],
)
def test_padded_rows_lie_at_multiples_of_32_bytes(library, name, address, stride, takes):
    moved = {name: (ADDRESSES[name] + address, (stride, 1))}
    tier = tier_of(library, state(library, Operation.MXFP8_MXFP4_BF16_KK, M, N, 256, **moved))
    assert (tier != FALLBACK) == takes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"a": (ADDRESSES["a"], (K + 1, 1))},
            "A (130, 160) of float4_e2m1fn has strides (161, 1); expected elements that",
        ),
        (
            {"b": (ADDRESSES["b"], (2 * K, 2))},
            "B (72, 160) of float4_e2m1fn has strides (320, 2); expected elements that",
        ),
        ({"scale_a": (ADDRESSES["scale_a"] + 8, (0, 0))}, "scale_a is at address"),
        ({"scale_b": None}, "`scale_b.data` is null; expected an address"),
        ({"scale_d": None}, "`scale_d.data` is null; expected an address"),
    ],
)
def test_what_no_kernel_takes_is_refused(library, changes, message):
    stated = state(library, NVFP4, M, N, K, **changes)
    assert library.launch(stated) != 0
    assert message in library.error()
    if message.endswith("is at address"):
        assert library.error().endswith("expected a multiple of 16, which its atoms begin at; copy it")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            0,
            "flags are 0x0; expected AOT_GEMM_GATE_INTERLEAVED (0x2) of operation nvfp4_bf16_swiglu, whose factors lie",
        ),
        (GATE_PARTS, "expected AOT_GEMM_GATE_INTERLEAVED (0x2) of operation nvfp4_bf16_swiglu, whose factors lie in"),
        (GATE_INTERLEAVED | GATE_PARTS, "expected 0, or of AOT_GEMM_B_CONSTANT"),
    ],
)
def test_rows_of_a_gate_that_are_not_in_turns_are_refused(library, flags, message):
    stated = state(library, Operation.NVFP4_BF16_KK_SWIGLU, M, N, K)
    stated.flags = flags
    assert library.select(stated)[0] != 0
    assert message in library.error()


def test_factors_of_both_rows_of_a_gate_lie_apart_from_a_result(library):
    address = ADDRESSES["scale_b"] + atom_bytes(N, K, 16)
    stated = state(library, Operation.NVFP4_BF16_KK_SWIGLU, M, N, K, d=(address, (N, 1)))
    assert library.select(stated)[0] != 0
    assert "overlaps scale_b" in library.error()
    assert library.select(state(library, NVFP4, M, N, K, d=(address, (N, 1))))[0] == 0


@pytest.mark.parametrize("behind", [0, -1], ids=["behind the last byte", "on the last byte"])
def test_rows_of_4_bits_take_half_a_byte_an_element(library, behind):
    address = ADDRESSES["a"] + ElementType.E2M1.size_of(M * K) + 2 * behind
    stated = state(library, NVFP4, M, N, K, d=(address, (N, 1)))
    assert (library.select(stated)[0] == 0) == (behind == 0), library.error()
    assert behind == 0 or "overlaps A" in library.error()


def test_a_result_in_the_last_atom_is_refused(library):
    address = ADDRESSES["scale_a"] + atom_bytes(M, K, 16) - 2
    assert library.select(state(library, NVFP4, M, N, K, d=(address, (N, 1))))[0] != 0
    assert "overlaps scale_a" in library.error()
