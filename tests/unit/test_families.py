import pytest
from twins import BF16

from aot.candidate import Accepted, Candidate
from aot.errors import CandidateError
from aot.families import families, families_for, family_of
from aot.legality import check
from aot.target import load_target

NAMES = ["fallback", "sm100_persistent", "sm100_quack", "sm100_tgv", "sm90_quack"]


def test_families_are_found_by_their_modules():
    assert sorted(families()) == NAMES
    assert all(family.name == name for name, family in families().items())


@pytest.mark.parametrize(
    ("target", "names"),
    [("h200", ["fallback", "sm90_quack"]), ("thor", ["fallback", "sm100_persistent", "sm100_quack", "sm100_tgv"])],
)
def test_families_of_a_target(target, names):
    assert [family.name for family in families_for(load_target(target))] == names


def test_family_of_a_candidate():
    assert family_of(Candidate("sm100_tgv", 1, 1)) is families()["sm100_tgv"]
    with pytest.raises(CandidateError, match=f"no kernel family 'x'; there are: {', '.join(NAMES)}"):
        family_of(Candidate("x", 1, 1))


@pytest.mark.parametrize("target", ["h200", "thor"])
def test_every_family_keeps_its_promises(target):
    device = load_target(target)
    for family in families_for(device):
        candidates = list(family.candidates(BF16, device))
        assert {candidate.family for candidate in candidates} == {family.name}
        assert len({candidate.name for candidate in candidates}) == len(candidates)
        for candidate in candidates:
            verdict = check(candidate, BF16, device)
            if isinstance(verdict, Accepted):
                used = verdict.resources
                assert used.num_stages * used.stage_bytes <= used.smem_bytes <= device.smem_bytes_per_block
                assert used.num_stages >= (1 if family.is_fallback else 2)
                assert (family.workspace(candidate).mode == "none") == (candidate.split_k == 1)
            else:
                assert verdict.message
