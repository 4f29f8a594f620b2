import re
import sys
import tomllib
from pathlib import Path

import pytest

import aot.families
from aot.core.candidate import Accepted, Reason, gemm_candidate
from aot.core.errors import CandidateError, FamilyError
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families import _entry_points, families, families_for, family_named, family_of, tiling_of
from aot.families._entry_points import GROUP, OWN, SOURCE_TREE, registrations
from aot.space.enumeration import Patterns, census, legal
from aot.space.legality import check
from aot.space.shortlist import shortlist
from tests.unit.twins import BF16, problem_of

FOLDER = Path(aot.families.__file__).parent
MODULES = {x.stem: x.relative_to(FOLDER).with_suffix("") for x in FOLDER.rglob("[!_]*.py")}
NAMES = sorted(MODULES)

PACKED = "weight_only", "weight_only_simt"
"""The families of packed weights, of which a chip without TMA has the fallback."""

NEW_FAMILY = """
from dataclasses import dataclass
from typing import Annotated

from aot.core.candidate import Alignment, Candidate, Rejected, Reason, Resources, Workspace
from aot.core.constraints import Range
from aot.core.epilogue import Epilogue
from aot.core.feature import Feature
from aot.core.grouping import Grouping
from aot.core.knobs import GemmKnobs, Knobs
from aot.core.operation import Layout
from aot.core.types import BF16


@dataclass(frozen=True)
class Own(Knobs):
    width: Annotated[int, Range(8, 4096)]
    is_eager: bool = False


class Newest:
    name = "sm100_newest"
    kind = "gemm"
    knobs = Own
    needs = (Feature.TCGEN05,)
    num_strides = 1
    is_fallback = False
    loads_outside = True
    widens_fp8 = False
    peak_share = 1.0
    prefetches_b = False
    orders_tiles = False
    max_m = 0
    own_clusters = ()
    types = (BF16,)
    epilogues = tuple(Epilogue)
    groupings = (Grouping.DENSE,)
    layouts = tuple(Layout)

    def candidates(self, operation, target):
        for width in (64, 128, 2048):
            yield Candidate(self.name, Own(width, is_eager=width == 128))

    def tiling(self, candidate):
        return GemmKnobs(128, Own.of(candidate).width)

    def check(self, candidate, operation, target):
        return None

    def resources(self, candidate, operation, target):
        stage_bytes = (128 + Own.of(candidate).width) * 128
        return Resources(2 * stage_bytes, stage_bytes, 128, 2)

    def workspace(self, candidate):
        return Workspace()

    def alignment(self, candidate):
        return Alignment()

    def sum_order(self, candidate):
        return "new"

    def multiples(self, candidate):
        return 1, 1

    def entry(self, candidate, operation, target):
        raise NotImplementedError


FAMILY = Newest()
"""


def forget():
    registrations.cache_clear()
    family_named.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution with families: its entry points and its modules' sources by name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name, points, modules=None, version="1.0"):
        metadata = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
        for module, source in (modules or {}).items():
            (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
            monkeypatch.delitem(sys.modules, module, raising=False)
        forget()

    yield install
    monkeypatch.undo()
    forget()


def test_every_module_of_a_family_has_its_entry_point():
    assert sorted(families()) == NAMES
    assert all(family.name == name for name, family in families().items())
    project = tomllib.loads(SOURCE_TREE.read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][GROUP] == {
        x: f"aot.families.{path.as_posix().replace(chr(47), chr(46))}:FAMILY" for x, path in MODULES.items()
    }


def test_without_a_source_tree_ours_are_found_as_others(installed, monkeypatch, tmp_path):
    monkeypatch.setattr(_entry_points, "SOURCE_TREE", tmp_path / "pyproject.toml")
    installed(OWN, {"simt": "aot.families.simt:FAMILY", "mma_sync": "aot.families.mma_sync:FAMILY"})
    assert sorted(families()) == ["mma_sync", "simt"]
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n', encoding="utf-8")
    forget()
    assert sorted(families()) == ["mma_sync", "simt"]


def test_an_installation_without_families_says_how_to_mend_it(installed, monkeypatch, tmp_path):
    monkeypatch.setattr(_entry_points, "SOURCE_TREE", tmp_path / "pyproject.toml")
    installed(OWN, {})
    with pytest.raises(FamilyError, match=r"expected entry points 'aot\.families' of aot-kernels; `make setup`"):
        families()


def test_two_families_of_one_name_are_refused_with_both_distributions(installed):
    installed("fast-kernels", {"simt": "fast_kernels:FAMILY"})
    message = (
        "two kernel families are called 'simt': that of aot-kernels 0.1.0, entry point simt = "
        "'aot.families.simt:FAMILY', and that of fast-kernels 1.0, entry point simt = 'fast_kernels:FAMILY'; "
        "uninstall fast-kernels or aot-kernels"
    )
    with pytest.raises(FamilyError, match=re.escape(message)):
        family_named("mma_sync")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import nothing_of_that_name",
            "cannot be loaded: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero; install fast-kernels again, or uninstall it"),
        ("OTHER = 1", "cannot be loaded: AttributeError: module 'fast' has no attribute 'FAMILY'"),
        ("FAMILY = 3", "is a int without name, kind, knobs, needs, is_fallback, candidates, check, resources, entry"),
        (
            NEW_FAMILY.replace('kind = "gemm"', 'kind = "rows"'),
            "is a Newest without operations, limits, num_reads; expected an aot.families.Family",
        ),
        (NEW_FAMILY.replace('kind = "gemm"', 'kind = "cloud"'), "is of the kind 'cloud'; there are gemm, rows"),
        (NEW_FAMILY, "calls itself 'sm100_newest'; expected its entry point's name, by which it is found"),
    ],
)
def test_a_family_that_cannot_be_loaded_stops_what_needs_it_alone(installed, source, message):
    installed("fast-kernels", {"broken": "fast:FAMILY"}, {"fast": source})
    assert family_named("simt").name == "simt"
    assert family_of(gemm_candidate("sm100_tgv", 1, 1)).name == "sm100_tgv"
    head = "the family 'broken' of fast-kernels 1.0, entry point broken = 'fast:FAMILY' "
    for ask in (families, lambda: family_named("broken"), lambda: families_for(load_target("h200"))):
        with pytest.raises(FamilyError, match=re.escape(head + message)):
            ask()


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (
            "h200",
            [
                "cluster_split_k",
                "gemv",
                "mma_sync",
                "simt",
                "sm90_block_scale",
                "sm90_cluster_split_k",
                "sm90_grouped",
                "sm90_grouped_block_scale",
                "sm90_grouped_weight_only",
                "sm90_one_tile",
                "sm90_partial_tile",
                "sm90_prefetch_b",
                "sm90_quack",
                "sm90_realigned",
                "sm90_shifted",
                "sm90_stream_k",
                "sm90_weight_only",
                *PACKED,
            ],
        ),
        (
            "thor",
            [
                "cluster_split_k",
                "mma_sync",
                "simt",
                "sm100_block_scale",
                "sm100_grouped",
                "sm100_grouped_block_scale",
                "sm100_persistent",
                "sm100_quack",
                "sm100_tgv",
                "sm100_weight_only",
                *PACKED,
            ],
        ),
        (
            "b200",
            [
                "cluster_split_k",
                "mma_sync",
                "simt",
                "sm100_block_scale",
                "sm100_grouped",
                "sm100_grouped_block_scale",
                "sm100_persistent",
                "sm100_quack",
                "sm100_tgv",
                "sm100_weight_only",
                *PACKED,
            ],
        ),
        ("gb10", ["cluster_split_k", "mma_sync", "simt", "sm120_block_scale", *PACKED]),
        ("rtx_pro_6000", ["cluster_split_k", "mma_sync", "simt", "sm120_block_scale", *PACKED]),
        ("a100", ["mma_sync", "simt", PACKED[1]]),
        ("l4", ["mma_sync", "simt", PACKED[1]]),
        ("orin", ["mma_sync", "simt", PACKED[1]]),
    ],
)
def test_families_of_a_target(target, names):
    assert [family.name for family in families_for(load_target(target))] == names


def test_family_of_a_candidate():
    assert family_of(gemm_candidate("sm100_tgv", 1, 1)) is families()["sm100_tgv"]
    with pytest.raises(CandidateError, match=f"no kernel family 'x'; there are: {', '.join(NAMES)}"):
        family_of(gemm_candidate("x", 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "thor"])
def test_every_family_keeps_its_promises(target):
    device = load_target(target)
    for family in families_for(device):
        operation = BF16 if BF16.types in family.types else next(x for x in Operation if x.types in family.types)
        candidates = list(family.candidates(operation, device))
        assert {candidate.family for candidate in candidates} == {family.name}
        assert len({candidate.name for candidate in candidates}) == len(candidates)
        for candidate in candidates:
            verdict = check(candidate, operation, device)
            if isinstance(verdict, Accepted):
                used = verdict.resources
                assert used.num_stages * used.stage_bytes <= used.smem_bytes <= device.smem_bytes_per_block
                assert used.num_stages >= (1 if family.is_fallback else 2) or used.flight_bytes
                tiling = tiling_of(candidate)
                needs_none = tiling.split_k == 1 or tiling.split_k_mode == "cluster"
                assert (family.workspace(candidate).mode == "none") == needs_none
            else:
                assert verdict.message


@pytest.mark.slow
def test_a_family_of_another_distribution_is_a_module_and_its_entry_point(installed):
    installed("newest-kernels", {"sm100_newest": "newest:FAMILY"}, {"newest": NEW_FAMILY})
    thor = load_target("thor")
    rows = {row.family: row for row in census(BF16, thor, Patterns())}
    assert (rows["sm100_newest"].num_accepted, rows["sm100_newest"].num_rejected) == (2, {Reason.SMEM: 1})
    found = legal(BF16, thor, Patterns(("sm100_newest*",)))
    assert [x.name for x in found] == ["sm100_newest_width64", "sm100_newest_is_eager_width128"]
    assert len(shortlist(found, [problem_of(64, 4096, 4096)], thor, 1)) == 1
    assert "sm100_newest" in {x.name for x in families_for(load_target("b200"))}
    assert "sm100_newest" not in {x.name for x in families_for(load_target("h200"))}
