import pytest

from aot.core.candidate import Accepted, KernelKey, Reason, Workspace, changed
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families.simt import FAMILY
from aot.space.legality import check
from tests.compiling import EVERY, compile_kernels
from tests.objects import parameter_sizes
from tests.unit.accepted import named, reason, resources

NAME = "simt_64x64_c1x1_direct"


@pytest.mark.parametrize("target", ["h200", "thor"])
def test_one_candidate_takes_every_operation(target):
    device = load_target(target)
    for operation in [x for x in Operation if x.types in FAMILY.types]:
        (candidate,) = FAMILY.candidates(operation, device)
        assert candidate.name == NAME, operation
        verdict = check(candidate, operation, device)
        lacked = device.lacks(operation.types.needs)
        assert isinstance(verdict, Accepted) if not lacked else verdict.reason is Reason.FEATURE, operation
        assert (FAMILY.multiples(candidate), FAMILY.workspace(candidate)) == ((1, 1), Workspace()), operation


@pytest.mark.parametrize(
    ("operation", "num_tiles"),
    [(Operation.BF16_KK, 2), (Operation.INT8_INT32_KK, 2), (Operation.BF16_KK_SWIGLU, 3)],
)
def test_resources_are_padded_tiles_of_32_bits(operation, num_tiles):
    staged = num_tiles * 32 * (64 + 4) * 4
    assert resources(NAME, "thor", operation) == (staged - 1024, 1, 256, 0)  # static tiles: no barriers are set aside


def test_any_other_candidate_is_refused():
    other = changed(named(NAME), tile_m=128)
    assert reason(other, "thor") == (Reason.COMBINATION, "simt has one candidate, 64x64")


POINTER, SIZE, STRIDE = 8, 4, 8
MATRIX = POINTER + 2 * SIZE + 2 * STRIDE
VECTOR = POINTER + 2 * SIZE
"""A contiguous vector: its size is padded to the pointer's alignment."""
STRIDED = POINTER + 2 * SIZE + STRIDE

PARAMETERS = {
    Operation.BF16_KK_GEGLU: [MATRIX, POINTER + 4 * SIZE + 3 * STRIDE, MATRIX, MATRIX],
    Operation.BF16_KK_RESIDUAL: [MATRIX, MATRIX, MATRIX, VECTOR, MATRIX],
    Operation.BF16_KK_GELU: [MATRIX, MATRIX, MATRIX, VECTOR],
    Operation.BF16_KK_RELU: [MATRIX, MATRIX, MATRIX, VECTOR],
    Operation.E4M3_E4M3_KK: [MATRIX, MATRIX, MATRIX, VECTOR, STRIDED, STRIDED, VECTOR],
    Operation.E4M3_BF16_BLOCK_KK: [MATRIX, MATRIX, MATRIX, MATRIX, MATRIX],
    Operation.E5M2E4M3_BF16_KK: [MATRIX, MATRIX, MATRIX, VECTOR, STRIDED, STRIDED],
    Operation.INT8_INT32_KK: [MATRIX, MATRIX, MATRIX],
    Operation.INT8_FP16_KK: [MATRIX, MATRIX, MATRIX, VECTOR, STRIDED, STRIDED],
    Operation.TF32_KK: [MATRIX, MATRIX, MATRIX],
}
"""Sizes of the parameters of kernels by their operation: one of each type, and of each step that one thing computes."""


SAME = {
    *(Operation.BF16_KK_GELU, Operation.BF16_KK_RELU, Operation.BF16_KK_RESIDUAL, Operation.E5M2E4M3_BF16_KK),
    *(Operation.INT8_INT32_KK, Operation.INT8_FP16_KK, Operation.BF16_KK_GEGLU),
}
"""Of which a Thor's kernels differ from an H200's as those of the others do: `make walk` compiles them for it too."""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "thor"] if EVERY else ["thor"])
def test_kernels_compile_without_spills_and_take_what_their_operation_has(target):
    device = load_target(target)
    taken = {x: sizes for x, sizes in PARAMETERS.items() if EVERY or x not in SAME}
    artifacts = compile_kernels([KernelKey(operation, named(NAME)) for operation in taken], device)
    assert {x.kernel.operation: x.kernel.spill_bytes for x in artifacts} == dict.fromkeys(taken, 0)
    assert {x.kernel.operation: parameter_sizes(x.path) for x in artifacts} == taken
