"""Block-scaled products of a warp: what is legal, what it takes, where factors lie in a stage, what is chosen."""

import numpy as np
import pytest

from aot.core.candidate import Alignment, Reason, Rejected, changed
from aot.core.factor_atoms import ATOM_BYTES, byte_in_atom, num_atoms
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families import families_of
from aot.families._sm120_block_scale_tile import FactorRows, instruction_of
from aot.families.sm120_block_scale import FAMILY, WARPS, tile_of
from aot.space.cost import estimate
from aot.space.enumeration import fallback, legal
from aot.space.legality import check
from tests.unit.accepted import named, reason

GB10 = load_target("gb10")
NVFP4, MXFP4, MXFP8 = Operation.NVFP4_BF16_KK, Operation.MXFP4_BF16_KK, Operation.MXFP8_BF16_KK
MIXED = Operation.MXFP8_MXFP4_BF16_KK
TILE = named("sm120_block_scale_64x128_c1x1_b64k1_direct")


@pytest.mark.parametrize(
    ("operation", "opcode"),
    [
        (NVFP4, "kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3"),
        (MXFP4, "kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0"),
        (MXFP8, "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0"),
        (MIXED, "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0"),
    ],
)
def test_each_format_has_its_instruction(operation, opcode):
    assert instruction_of(operation).opcode == f"mma.sync.aligned.{opcode}"


@pytest.mark.parametrize("target", ["thor", "b200", "h200", "gb10", "rtx_pro_6000"])
def test_chips_whose_warps_multiply_so_have_it_and_no_others(target):
    device = load_target(target)
    has_it = target in ("gb10", "rtx_pro_6000")
    assert (FAMILY in families_of(NVFP4, device)) is has_it
    if not has_it:
        text = f"sm120_block_scale needs warp_block_scale, which {target} ({device.arch}) has not"
        assert check(TILE, NVFP4, device).message.endswith(text)


@pytest.mark.parametrize(
    ("operation", "name", "stage", "stages", "smem_bytes"),
    [
        # 192 rows of 64 bytes, and of each a word of factors for 64, 128 and 128 elements along k; half of 100 KiB.
        (NVFP4, "64x128_c1x1_b64k1", 192 * (64 + 2 * 4), 3, 3 * 13_824),
        (MXFP4, "64x128_c1x1_b64k1", 192 * (64 + 4), 3, 3 * 13_056),
        (MXFP8, "64x128_c1x1_b64k1", 192 * (64 + 4), 3, 3 * 13_056),
        (NVFP4, "16x32_c1x1_b128k4", 48 * (128 + 4 * 4), 6, 6 * 6_912),
        (MIXED, "16x128_c1x1_b128k1", 16 * 132 + 128 * 68, 4, 4 * 10_816),
        (NVFP4, "128x128_c1x1_b64k1", 256 * 72, 5, 5 * 18_432),
        (NVFP4, "128x64_c1x1_b64k2", 192 * 72, 6, 6 * 13_824),
        # The sums of two warps along k, 64 rows of 136 floats each, are more than the stages.
        (MIXED, "64x128_c1x1_b64k2", 64 * 68 + 128 * 36, 6, 2 * 64 * 136 * 4),
    ],
)
def test_resources(operation, name, stage, stages, smem_bytes):
    candidate = named(f"sm120_block_scale_{name}_direct")
    used = check(candidate, operation, GB10).resources
    tile = tile_of(candidate, operation, GB10)
    assert (used.stage_bytes, used.num_stages, used.smem_bytes) == (stage, stages, smem_bytes)
    assert used.num_threads == 32 * np.prod(tile.warps)
    assert all(x % 16 == 0 for x in tile.starts)


@pytest.mark.parametrize("operation", [NVFP4, MXFP8, MIXED, Operation.MXFP4_FP16_KK, Operation.NVFP4_BF16_KK_SWIGLU])
def test_what_does_not_fit_99_kib_is_refused_in_bytes(operation):
    found = {x: check(x, operation, GB10) for x in FAMILY.candidates(operation, GB10)}
    refused = {x.gemm: y.reason for x, y in found.items() if isinstance(y, Rejected)}
    assert {(x.tile_m, x.tile_n) for x in refused} == {(128, 256), (256, 128)}
    assert set(refused.values()) == {Reason.SMEM}
    text = check(named("sm120_block_scale_128x256_c1x1_b64k1_direct"), NVFP4, GB10).message
    assert text == (
        "sm120_block_scale_128x256_c1x1_b64k1_direct needs 135,168 bytes of shared memory with 2 stages of 27,648; "
        "sm_121a gives 101,376 a block; no stage fits; take a smaller tile"
    )


@pytest.mark.parametrize(
    ("changes", "why", "text"),
    [
        ({"swap_ab": True}, Reason.COMBINATION, "expected sm120_block_scale_64x128_c1x1_b64k1_direct"),
        ({"num_stages": 3}, Reason.COMBINATION, "with as many stages as fit"),
        ({"schedule": "b64k4"}, Reason.COMBINATION, "each of which has 32 of them at least; got 'b64k4'"),
        ({"schedule": "static"}, Reason.COMBINATION, "has schedules such as b64k2"),
        ({"schedule": "b128k4"}, Reason.TILE, "64x128 with 4 warps along k is no tile; expected one of 16x32 k4, "),
        ({"tile_m": 48}, Reason.TILE, "48x128 with 1 warps along k is no tile"),
    ],
)
def test_what_is_refused(changes, why, text):
    found, message = reason(changed(TILE, **changes), "gb10", NVFP4)
    assert found is why
    assert text in message


@pytest.mark.parametrize("extent", [16, 32, 64, 128, 256])
def test_factors_of_a_stage_are_found_where_lines_of_atoms_are_put(extent):
    """As the kernel copies them: of each line of an atom the words of rows that the part has, line behind line."""
    held, first_row, rng = FactorRows(extent, 2), 256 + (extent if extent < 128 else 0), np.random.default_rng(extent)
    atoms = rng.integers(0, 1 << 32, (*num_atoms(first_row + extent, 8), ATOM_BYTES // 4), np.uint32)
    stage = []
    for down in range(max(extent // 128, 1)):
        for along in range(2):
            for line in range(held.lines):
                first = (first_row % 32 + line) * 4 + first_row % 128 // 32
                stage += list(atoms[first_row // 128 + down, along, first : first + held.words])
    assert 4 * len(stage) == held.num_bytes == 2 * 4 * extent
    for row in range(extent):
        for along in range(2):
            at = byte_in_atom(first_row + row, 0) // 4
            assert stage[held.word_of(row, along)] == atoms[(first_row + row) // 128, along, at]


def test_every_tile_is_shared_evenly():
    for (tile_m, tile_n), choices in WARPS.items():
        for m, n, k in choices:
            assert tile_m % (16 * m) == tile_n % (16 * n) == 0
            assert 32 * m * n * k in (128, 256)


def test_unaligned_d_is_taken():
    assert FAMILY.alignment(TILE) == Alignment(loads=16, stores=1)


@pytest.mark.parametrize("m", [1, 16, 128, 2048])
def test_it_is_chosen_over_the_fallback(m):
    kernels = legal(NVFP4, GB10)
    assert {x.family for x in kernels} == {"sm120_block_scale"}
    both = [*kernels, fallback(NVFP4, GB10)]
    times = estimate(both, [Problem(NVFP4, m, 4096, 4096)], GB10).total_us[0]
    best = both[int(times.argmin())]
    assert best.family == "sm120_block_scale"
    assert best.gemm.tile_m <= max(16, m)
