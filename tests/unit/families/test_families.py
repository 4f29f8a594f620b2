from pathlib import Path

import pytest

import aot.families
from aot.core.candidate import Accepted, Candidate, Reason
from aot.core.errors import CandidateError
from aot.core.target import load_target
from aot.families import families, families_for, family_of
from aot.space.enumeration import Patterns, census, legal
from aot.space.legality import check
from aot.space.shortlist import shortlist
from tests.unit.twins import BF16, problem_of

NAMES = sorted(x.stem for x in Path(aot.families.__file__).parent.glob("[!_]*.py"))

NEW_FAMILY = """
from aot.core.candidate import Alignment, Candidate, Rejected, Reason, Resources, Workspace
from aot.core.epilogue import Epilogue
from aot.core.feature import Feature
from aot.core.grouping import Grouping
from aot.core.types import BF16


class Newest:
    name = "sm100_newest"
    needs = (Feature.TCGEN05,)
    num_strides = 1
    is_fallback = False
    loads_outside = True
    widens_fp8 = False
    peak_share = 1.0
    prefetches_b = False
    own_clusters = ()
    types = (BF16,)
    epilogues = tuple(Epilogue)
    groupings = (Grouping.DENSE,)

    def candidates(self, operation, target):
        for tile_n in (64, 128, 2048):
            yield Candidate(self.name, 128, tile_n)

    def check(self, candidate, operation, target):
        return None

    def resources(self, candidate, operation, target):
        stage_bytes = (128 + candidate.tile_n) * 128
        return Resources(2 * stage_bytes, stage_bytes, 128, 2)

    def workspace(self, candidate):
        return Workspace()

    def alignment(self, candidate):
        return Alignment()

    def sum_order(self, candidate):
        return "new"

    def multiples(self, candidate):
        return 1, 1


FAMILY = Newest()
"""


def test_families_are_found_by_their_modules():
    assert sorted(families()) == NAMES
    assert all(family.name == name for name, family in families().items())


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (
            "h200",
            [
                "cluster_split_k",
                "mma_sync",
                "simt",
                "sm90_block_scale",
                "sm90_cluster_split_k",
                "sm90_grouped",
                "sm90_grouped_block_scale",
                "sm90_one_tile",
                "sm90_partial_tile",
                "sm90_prefetch_b",
                "sm90_quack",
                "sm90_stream_k",
            ],
        ),
        (
            "thor",
            ["cluster_split_k", "mma_sync", "simt", "sm100_grouped", "sm100_persistent", "sm100_quack", "sm100_tgv"],
        ),
        (
            "b200",
            ["cluster_split_k", "mma_sync", "simt", "sm100_grouped", "sm100_persistent", "sm100_quack", "sm100_tgv"],
        ),
        ("rtx_pro_6000", ["cluster_split_k", "mma_sync", "simt"]),
        ("a100", ["mma_sync", "simt"]),
        ("l4", ["mma_sync", "simt"]),
        ("orin", ["mma_sync", "simt"]),
    ],
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
                needs_none = candidate.split_k == 1 or candidate.split_k_mode == "cluster"
                assert (family.workspace(candidate).mode == "none") == needs_none
            else:
                assert verdict.message


def test_a_new_family_is_one_new_module(tmp_path, monkeypatch):
    (tmp_path / "sm100_newest.py").write_text(NEW_FAMILY, encoding="utf-8")
    monkeypatch.setattr(aot.families, "__path__", [*aot.families.__path__, str(tmp_path)])
    families.cache_clear()
    try:
        thor = load_target("thor")
        rows = {row.family: row for row in census(BF16, thor, Patterns())}
        assert (rows["sm100_newest"].num_accepted, rows["sm100_newest"].num_rejected) == (2, {Reason.SMEM: 1})
        found = legal(BF16, thor, Patterns(("sm100_newest*",)))
        assert [x.name for x in found] == ["sm100_newest_128x64_c1x1", "sm100_newest_128x128_c1x1"]
        assert len(shortlist(found, [problem_of(64, 4096, 4096)], thor, 1)) == 1
    finally:
        families.cache_clear()
