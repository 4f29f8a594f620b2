import pytest
from twins import BF16

from aot.candidate import Candidate, KernelKey, SplitK, Workspace
from aot.errors import CandidateError


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (Candidate("f", 128, 256), "f_128x256_c1x1"),
        (Candidate("f", 64, 16, 2, 4, "pingpong", swap_ab=True), "f_64x16_c2x4_pingpong_swap"),
        (
            Candidate("f", 64, 16, 1, 1, "clc", 7, True, True, False, 4, "serial"),
            "f_64x16_c1x1_clc_st7_2cta_direct_serial4_swap",
        ),
    ],
)
def test_names_say_what_differs_from_the_default(candidate, name):
    assert candidate.name == name
    assert KernelKey(BF16, candidate).name == f"bf16_kk_{name}"


def test_json_round_trip():
    candidate = Candidate("f", 64, 16, 2, 4, "clc", 7, True, True, False, 4, "serial")
    assert Candidate.from_json(candidate.as_json()) == candidate


@pytest.mark.parametrize(("change", "wrong"), [({"speed": 1}, "speed"), ({"tile_m": None}, "tile_m")])
def test_json_with_other_fields_is_refused(change, wrong):
    values = {**Candidate("f", 1, 1).as_json(), **change}
    values = {key: value for key, value in values.items() if value is not None}
    with pytest.raises(CandidateError, match=rf"missing or unknown: \['{wrong}'\]"):
        Candidate.from_json(values)


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
    assert workspace.num_bytes(100, 70) == num_bytes
    assert workspace.num_zero_bytes(100, 70) == num_zero_bytes


def test_flags_fill_whole_sixteen_bytes():
    workspace = Workspace("serial", 2, 64, 64)
    assert workspace.num_zero_bytes(1, 1) == 16
    assert workspace.num_zero_bytes(64 * 5, 1) == 32
