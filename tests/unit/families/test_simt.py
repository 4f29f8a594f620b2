from dataclasses import replace

import pytest

from aot.core.candidate import Accepted, Reason, Workspace
from aot.core.target import load_target
from aot.families._simt_tile import SMEM_BYTES
from aot.families.simt import FAMILY
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import ALL_LAYOUTS

NAME = "simt_64x64_c1x1_direct"


@pytest.mark.parametrize("target", ["h200", "thor"])
@pytest.mark.parametrize("operation", ALL_LAYOUTS)
def test_one_candidate_takes_everything(target, operation):
    device = load_target(target)
    (candidate,) = FAMILY.candidates(operation, device)
    assert candidate.name == NAME
    assert isinstance(check(candidate, operation, device), Accepted)
    assert (FAMILY.multiples(candidate), FAMILY.workspace(candidate)) == ((1, 1), Workspace())


def test_resources_are_two_padded_float32_tiles():
    assert SMEM_BYTES == 2 * 32 * (64 + 4) * 4
    assert resources(NAME, "thor") == (SMEM_BYTES - 1024, 1, 256, 0)  # the static tiles need no barriers


def test_any_other_candidate_is_refused():
    other = replace(named(NAME, "thor"), tile_m=128)
    assert reason(other, "thor") == (Reason.COMBINATION, "simt has one candidate, 64x64")
