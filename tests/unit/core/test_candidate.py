import json
import pickle

import pytest

from aot.core.candidate import Candidate, KernelKey, Workspace, gemm_candidate, tail_splits
from aot.core.knobs import SplitK
from aot.core.strict_json import DecodeError, decode
from tests.unit.twins import BF16


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (gemm_candidate("f", 128, 256), "f_128x256_c1x1"),
        (gemm_candidate("f", 64, 16, 2, 4, "pingpong", swap_ab=True), "f_64x16_c2x4_pingpong_swap"),
        (
            gemm_candidate("f", 64, 16, 1, 1, "clc", 7, True, True, False, 4, "serial"),
            "f_64x16_c1x1_clc_st7_2cta_direct_serial4_swap",
        ),
    ],
)
def test_names_say_what_differs_from_the_default(candidate, name):
    assert candidate.name == name
    assert KernelKey(BF16, candidate).name == f"bf16_kk_{name}"


def test_a_hash_is_of_the_process_that_asks():
    """Texts are hashed with a number of the process's own, so that a hash must not travel to another."""
    made, other = (gemm_candidate("f", 64, 16, split_k=4, split_k_mode=SplitK.SERIAL) for _ in range(2))
    assert hash(made) == hash(made) == hash(other) != hash(gemm_candidate("f", 64, 32))
    assert pickle.dumps(made) == pickle.dumps(gemm_candidate("f", 64, 16, split_k=4, split_k_mode=SplitK.SERIAL))
    assert {pickle.loads(pickle.dumps(made)): 1}[other] == 1


def test_json_round_trip():
    candidate = gemm_candidate("f", 64, 16, 2, 4, "clc", 7, True, True, False, 4, "serial")
    values = json.loads(json.dumps(candidate.as_json()))
    assert decode(Candidate, values) == candidate
    assert decode(Candidate, values).gemm.split_k_mode is SplitK.SERIAL


GOOD = json.loads(json.dumps(gemm_candidate("f", 64, 16).as_json()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": 1}, "speed: there is no such key in Candidate; it has family, tile_m, "),
        ({"family": "../x"}, "family: expected the name of a kernel family, such as sm90_quack, got '../x'"),
        ({"tile_m": -7}, "tile_m: expected a whole number from 1 to 4096, got -7"),
        ({"tile_m": "x"}, "tile_m: expected a whole number from 1 to 4096, got 'x'"),
        ({"cluster_n": 0}, "cluster_n: expected a whole number from 1 to 16, got 0"),
        ({"swap_ab": 1}, "swap_ab: expected true or false, got 1"),
        (
            {"split_k_mode": "x"},
            "split_k_mode: expected one of none, serial, parallel, separate, tail, cluster, got 'x'",
        ),
        ({"schedule": "a b"}, "schedule: expected a schedule, such as pingpong, got 'a b'"),
    ],
)
def test_json_of_something_else_is_refused(change, message):
    with pytest.raises(DecodeError) as caught:
        decode(Candidate, {**GOOD, **change})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_field_that_is_not_there_is_not_guessed(key):
    with pytest.raises(DecodeError, match=f"Candidate needs the key {key}, which is missing"):
        decode(Candidate, {name: value for name, value in GOOD.items() if name != key})


def test_a_list_is_no_candidate():
    with pytest.raises(DecodeError, match=r"expected an object of Candidate, got \[1, 2\]"):
        decode(Candidate, [1, 2])


@pytest.mark.parametrize(
    ("mode", "swap_ab", "num_bytes", "num_zero_bytes"),
    [
        # m 100, n 70, tile 64x32, cluster 2x1: tiles of m round up to 2, of n to 3; swapped, to 2 and 4.
        (SplitK.NONE, False, 0, 0),
        (SplitK.SERIAL, False, 32 + 6 * 64 * 32 * 4, 32),
        (SplitK.SERIAL, True, 32 + 8 * 64 * 32 * 4, 32),
        (SplitK.PARALLEL, False, 32 + 6 * 64 * 32 * 4, 32 + 6 * 64 * 32 * 4),
        (SplitK.SEPARATE, True, 3 * 100 * 72 * 4, 0),
    ],
)
def test_workspace_counts_bytes(mode, swap_ab, num_bytes, num_zero_bytes):
    workspace = Workspace(mode.value, 3, 64, 32, 2, 1, swap_ab)
    assert workspace.num_bytes(100, 70, 64) == num_bytes
    assert workspace.num_zero_bytes(100, 70) == num_zero_bytes


@pytest.mark.parametrize(
    ("sizes", "num_bytes"),
    [
        ((1, 1, 1), 8 * (8 + 8) * 2),
        ((100, 70, 75), 80 * (104 + 72) * 2),
        ((8, 16, 24, 3), 3 * 24 * (8 + 16) * 2),
        ((5, 6, 0), 0),
    ],
)
def test_copies_of_both_operands_have_rows_of_whole_sixteen_bytes(sizes, num_bytes):
    workspace = Workspace(copies=True)
    assert workspace.is_needed
    assert not workspace.waits
    assert workspace.num_bytes(*sizes) == num_bytes
    assert workspace.num_zero_bytes(*sizes[:2]) == 0


def test_flags_fill_whole_sixteen_bytes():
    workspace = Workspace("serial", 2, 64, 64)
    assert workspace.num_zero_bytes(1, 1) == 16
    assert workspace.num_zero_bytes(64 * 5, 1) == 32


@pytest.mark.parametrize(
    ("tail", "most", "splits"),
    [
        (0, 8, 1),
        (1, 8, 8),
        (1, 2, 2),
        (16, 8, 8),
        (17, 8, 7),
        (44, 8, 3),
        (66, 8, 2),
        (67, 8, 3),  # two waves of thirds
        (67, 2, 1),
        (88, 4, 3),
        (89, 4, 1),
        (131, 8, 1),
    ],
)
def test_a_tail_is_split_in_as_many_as_fill_a_wave(tail, most, splits):
    assert tail_splits(tail, 132, most) == splits


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "most", "regions"),
    [
        (9, 2, 2, 3),  # a whole wave is 15 tiles; 3 are left over, in 2 splits each
        (5, 3, 8, 0),
        (9, 3, 8, 0),  # 12 are left over: too many
        (4, 6, 8, 9 * 2),  # two waves of thirds
        (4, 6, 2, 0),
        (1, 1, 4, 3),
    ],
)
def test_the_workspace_of_a_tail_has_a_region_for_each_split_but_the_last(tiles_m, tiles_n, most, regions):
    workspace = Workspace(SplitK.TAIL, most, 64, 32, num_clusters=15)
    flags = 64  # 15 flags of 4 bytes, rounded up
    m, n = 64 * tiles_m - 8, 32 * tiles_n - 8
    assert workspace.num_bytes(m, n, 64) == (flags + regions * 64 * 32 * 4 if regions else 0)
    assert workspace.num_zero_bytes(m, n) == 0  # the kernel clears its flags


def test_the_workspace_of_a_tail_does_not_grow_with_the_problem():
    workspace = Workspace(SplitK.TAIL, 8, 128, 128, 2, 1, num_clusters=66)
    wave = 66 * 2 * 128 * 128 * 4
    assert max(workspace.num_bytes(m, 4096, 64) for m in range(1, 20000, 77)) <= 528 + wave * 4 // 3
