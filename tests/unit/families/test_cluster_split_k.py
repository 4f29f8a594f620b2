import pytest

from aot.core.candidate import Accepted, Reason, Rejected, Workspace, changed
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families._skinny_tile import Tile
from aot.families.cluster_split_k import FAMILY
from aot.space.cost_operands import Operands
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import BF16

H200 = load_target("h200")
FP8 = Operation.E4M3_BF16_KK
NAME = "cluster_split_k_24x8_c2x1_warps8_st4_direct_swap"
TILE = named(NAME)


def test_a_cluster_multiplies_the_rows_that_its_ctas_store():
    assert Tile(48, 8, 2, 8, 4).share == TILE.gemm.tile_m == 24
    assert (TILE.gemm.tile_n, TILE.gemm.cluster_m, TILE.gemm.num_stages) == (8, 2, 4)


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        # 8 warps of 9 stages of 16 rows and 8, 128 bytes each; 73 barriers and one float, rounded to 16 bytes.
        ("cluster_split_k_16x1_c1x1_warps8_st9_direct_swap", 72 * 24 * 128 + 592, 9, 256),
        # 8 warps of 4 stages of 48 rows and 8; 33 barriers; 48 by 8 floats received.
        (NAME, 32 * 56 * 128 + 272 + 48 * 8 * 4, 4, 256),
        # 4 warps of 3 stages of 64 rows and 64; 13 barriers; 64 by 64 floats received.
        ("cluster_split_k_32x64_c2x1_warps4_st3_direct_swap", 12 * 128 * 128 + 112 + 64 * 64 * 4, 3, 128),
    ],
)
def test_resources(name, smem_bytes, stages, threads):
    assert resources(name, "h200") == (smem_bytes, stages, threads, 0)


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        # As above, and for each of 16 rows a factor and a bias, and one factor of x's: 33 floats.
        ("cluster_split_k_16x1_c1x1_warps8_st9_direct_swap", 72 * 24 * 128 + 73 * 8 + 34 * 4, 9, 256),
        # 24 rows are a CTA's share of the 48: 56 floats.
        (NAME, 32 * 56 * 128 + 272 + 48 * 8 * 4 + 56 * 4, 4, 256),
    ],
)
def test_a_stage_of_e4m3_has_twice_the_k_and_factors_have_their_place(name, smem_bytes, stages, threads):
    assert resources(name, "h200", FP8) == (smem_bytes, stages, threads, 0)


@pytest.mark.parametrize(
    ("name", "smem_bytes"),
    [
        # As without an epilogue, and the bias of 16 rows; 73 barriers, one float and 16 more, rounded to 16 bytes.
        ("cluster_split_k_16x1_c1x1_warps8_st9_direct_swap", 72 * 24 * 128 + 592 + 16 * 4),
        # 24 rows are a CTA's share of the 48, with a gate 12 of each half.
        (NAME, 32 * 56 * 128 + 272 + 48 * 8 * 4 + 24 * 4),
    ],
)
@pytest.mark.parametrize("operation", [Operation.BF16_KK_RESIDUAL, Operation.FP16_KK_GELU, Operation.BF16_KK_SWIGLU])
def test_a_bias_has_its_place_where_more_steps_follow(name, smem_bytes, operation):
    assert resources(name, "h200", operation)[0] == smem_bytes
    assert resources(name, "h200", Operation.BF16_KK_BIAS) == resources(name, "h200", BF16)


def test_a_gate_takes_rows_by_pairs_and_counts_those_of_both_halves():
    odd = changed(TILE, tile_m=3, cluster_m=16)
    message = "swiglu takes rows of the weight by pairs, got a share of 3"
    assert FAMILY.check(odd, Operation.BF16_KK_SWIGLU, H200) == Rejected(Reason.TILE, message)
    assert FAMILY.check(odd, Operation.BF16_KK_RESIDUAL, H200) is None
    # 48 rows of the weight make 24 of the 14336 columns of D: two CTAs for each of 598 clusters.
    (count,) = Operands.of([TILE], [Problem(Operation.BF16_KK_SWIGLU, 8, 14336, 4096)]).num_ctas().ravel()
    assert count == 2 * 598


@pytest.mark.parametrize("operation", [BF16, FP8, Operation.BF16_KK_SWIGLU])
@pytest.mark.parametrize("rows", [16, 32, 48])
def test_stages_fill_an_sm_with_one_cta_and_with_two(rows, operation):
    candidates = [
        x
        for x in FAMILY.candidates(operation, H200)
        if (x.gemm.tile_m, x.gemm.tile_n, x.gemm.cluster_m) == (rows, 8, 1)
    ]
    one, two = (FAMILY.resources(x, operation, H200) for x in candidates)
    assert one.smem_bytes <= H200.smem_bytes_per_block < one.smem_bytes + one.stage_bytes
    half = H200.smem_bytes_per_sm // 2 - 1024
    assert two.smem_bytes <= half < two.smem_bytes + two.stage_bytes


def test_the_device_is_filled_from_n_1024_to_n_14336():
    """A CTA's rows are chosen so that one wave of H200's 132 SMs has little left over."""
    ctas = {}
    for candidate in FAMILY.candidates(BF16, H200):
        for n in (1024, 4096, 6144, 14336):
            operands = Operands.of([candidate], [Problem(BF16, 8, n, 4096)])
            (count,) = operands.num_ctas().ravel()
            ctas.setdefault(n, set()).add(int(count))
    assert all(128 in counts for counts in ctas.values())


@pytest.mark.parametrize(
    "operation",
    [
        *(BF16, FP8, Operation.E4M3_FP16_KK, Operation.E4M3_FP32_KK, Operation.E4M3_BF16_FAST_KK),
        *(Operation.E4M3_BF16_KK_SILU, Operation.E4M3_BF16_KK_GELU_TANH, Operation.E4M3_BF16_KK_SWIGLU),
        *(Operation.E4M3_BF16_KK_GELU, Operation.E4M3_BF16_KK_RESIDUAL, Operation.E4M3_BF16_KK_GEGLU),
        *(Operation.BF16_KK_RELU, Operation.FP16_KK_GELU, Operation.BF16_KK_RESIDUAL, Operation.FP16_KK_SWIGLU),
    ],
)
@pytest.mark.parametrize(("target", "count"), [("h200", 120), ("thor", 80)])
def test_every_candidate_is_legal_and_has_room_for_its_sums_and_registers(target, count, operation):
    found = list(FAMILY.candidates(operation, load_target(target)))
    assert len(found) == count
    assert all(isinstance(check(x, operation, load_target(target)), Accepted) for x in found)
    for candidate in found:
        rows, columns = candidate.gemm.tile_m * candidate.gemm.cluster_m, -(-candidate.gemm.tile_n // 8) * 8
        assert (rows + 4) * columns * 4 <= candidate.gemm.num_stages * rows * 128
        assert rows * columns <= 4096


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        (
            {"tile_m": 20},
            Reason.TILE,
            "2 CTAs of 20 rows make 40; expected a multiple of 16",
        ),
        (
            {"tile_m": 64, "tile_n": 64, "schedule": "warps4", "num_stages": 2},
            Reason.REGISTERS,
            "128x64 needs 256 accumulator registers a thread; 128 fit",
        ),
        (
            {"num_stages": 1},
            Reason.COMBINATION,
            "1 stages of 48 rows, got for a warp's sums of 8 columns; expected at least 2, and room for the sums",
        ),
        (
            {"schedule": "pingpong"},
            Reason.COMBINATION,
            "cluster_split_k has the schedules warps8, warps4, got 'pingpong'",
        ),
        (
            {"swap_ab": False},
            Reason.COMBINATION,
            "cluster_split_k is swapped, stores without TMA, and splits k over the CTAs of a cluster of m x 1",
        ),
        (
            {"split_k": 2, "split_k_mode": "serial"},
            Reason.COMBINATION,
            "cluster_split_k is swapped, stores without TMA, and splits k over the CTAs of a cluster of m x 1",
        ),
    ],
)
def test_what_the_kernel_does_not_have_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "h200") == (why, message)


@pytest.mark.parametrize(
    ("operation", "why", "message"),
    [
        (
            Operation.E5M2E4M3_BF16_KK,
            Reason.TYPES,
            (
                f"{NAME}: cluster_split_k builds the types bf16, fp16, e4m3_bf16, e4m3_fp16, e4m3_fp32, "
                "e4m3_bf16_fast, e5m2e4m3_bf16_kk needs e5m2e4m3_bf16"
            ),
        ),
    ],
)
def test_operations_that_the_kernel_does_not_compute_are_refused(operation, why, message):
    assert check(TILE, operation, H200) == Rejected(why, message)


@pytest.mark.parametrize("epilogue", [Epilogue.NONE, Epilogue.BIAS])
def test_takes_all_sizes_without_a_workspace(epilogue):
    operation = Operation.of(ElementType.FLOAT16, Layout.KK, epilogue)
    assert isinstance(check(TILE, operation, H200), Accepted)
    assert (FAMILY.multiples(TILE), FAMILY.workspace(TILE)) == ((1, 1), Workspace())
