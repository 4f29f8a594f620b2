"""What the Python package tells of itself: plan, explain and info, beside the toolchain's own answers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from aot.dispatch import look_up
from aot.limit import limit, mean_limit_us
from aot.problem import Problem
from aot.target import load_target


def test_plan_equals_the_reference(package, manifest):
    for section in manifest.table.sections:
        operation = section.operation
        names = {"dtype": operation.dtype_name, "layout": operation.layout_name}
        for m, n, k in ((8, 4096, 4096), (16, 64, 64), (5000, 72, 80), (3000, 9000, 64), (16, 24, 33)):
            got = package.plan(m, n, k, **names)
            aligned = all(x % 8 == 0 for x in (m, n, k))
            if not aligned and (operation.layout_name != "kk"):
                continue
            choice = look_up(section, Problem(operation, m, n, k), manifest.multiples, aligned=aligned)
            assert (got.kernel, got.tier) == (manifest.kernels[choice.kernel].name, choice.tier.name.lower())
            assert got.workspace_bytes == manifest.kernels[choice.kernel].workspace.num_bytes(m, n)


def test_plan_tells_the_bucket_and_its_time(package, manifest):
    ladder = manifest.table.sections[0].ladders[0]
    got = package.plan(ladder.m_edges[0], ladder.n, ladder.k)
    row = ladder.rows[0]
    assert got.bucket == (ladder.m_edges[0], ladder.n, ladder.k)
    if got.kernel == manifest.kernels[row.kernel].name:
        assert (got.time_us, got.provenance, got.runner_up_us) == (row.time_us, "measured", 100.0)
        assert got.runner_up == manifest.kernels[row.runner_up].name


def test_plan_refuses_what_it_does_not_know(package):
    with pytest.raises(package.DtypeError, match=r"dtype is 'float8'; expected one of bfloat16, float16"):
        package.plan(1, 1, 1, dtype="float8")
    with pytest.raises(package.StrideError, match=r"layout is 'nn'; expected one of kk, kn, mk, mn"):
        package.plan(1, 1, 1, layout="nn")
    with pytest.raises(package.ShapeError, match="m is -1"):
        package.plan(-1, 1, 1)


def test_explain_reads(package):
    text = package.explain(16, 24, 33)
    assert text.splitlines()[0] == "bfloat16 m 16 n 24 k 33, layout kk, on sm_90a"
    assert "fallback: a leading stride or an address is not a multiple of 16 bytes, or k is 0" in text
    assert "tier" in package.explain(16, 64, 64)


def test_limits_are_those_of_the_toolchain(package, manifest):
    rates = {"flops_per_s": manifest.flops_per_s, "bandwidth_bytes_per_s": manifest.bandwidth_bytes_per_s}
    target = replace(load_target("h200"), **rates)
    bounds, tiers = set(), set()
    rng = random.Random(3)
    for section in manifest.table.sections:
        operation = section.operation
        shapes = [tuple(8 * rng.randint(1, 1200) for _ in range(3)) for _ in range(20)]
        shapes += [(x.m_edges[-1], x.n, x.k) for x in section.ladders]
        for m, n, k in shapes:
            got = package.plan(m, n, k, operation.dtype_name, operation.layout_name)
            expected = limit(Problem(operation, m, n, k), target)
            assert (got.limit_us, got.limit_by) == (pytest.approx(expected.time_us), expected.bound)
            bounds.add(got.limit_by)
            if got.time_us is None:
                assert got.reached is None
                continue
            timed = [got.bucket]
            if got.tier == "grid":
                grid = section.grid
                i, j, p = grid.place(grid.cell(m, n, k))
                assert got.bucket == (grid.m_edges[i], grid.n_edges[j], grid.k_edges[p])
                timed = [(x, grid.n_edges[j], grid.k_edges[p]) for x in inside(grid.m_edges, i)]
            least = mean_limit_us([Problem(operation, *x) for x in timed], target)
            assert got.reached == pytest.approx(least / got.time_us)
            tiers.add(got.tier)
    assert (bounds, tiers) == ({"compute", "memory"}, {"grid", "tuned"})


def inside(edges, index):
    """Give the m that a cell is judged at: its middle and its edge."""
    low = edges[index - 1] if index else 0
    return sorted({low + max(1, round((edges[index] - low) / 2)), edges[index]})


def test_an_empty_product_has_no_limit(package):
    assert package.plan(0, 64, 64).limit_us is None
    assert "limit" not in package.explain(0, 64, 64)


def test_explain_tells_the_limit_and_the_bigger_tiles(package, manifest, monkeypatch):
    ladder = manifest.table.sections[0].ladders[0]
    for m in ladder.m_edges:
        got, text = package.plan(m, ladder.n, ladder.k), package.explain(m, ladder.n, ladder.k)
        assert f"  limit      {got.limit_us:.2f} us for this problem, by {got.limit_by}" in text
        is_said = f"  reached    {got.reached or 0:.0%} of the limit at the bucket's edge; measured" in text
        assert is_said == (got.time_us is not None)
        assert (got.bigger_tiles, "bigger" in text) == ((), False)
    notes = ["128x16 legal: +5.0% measured", "128x32 not legal: why"]
    monkeypatch.setitem(package._table.manifest(), "bigger_tiles", {got.kernel: notes})
    lines = package.explain(ladder.m_edges[-1], ladder.n, ladder.k).splitlines()
    assert lines[-3:] == ["  bigger tiles of the family, all else equal", *(f"    {x}" for x in notes)]


def test_info_tells_regrets_and_what_was_held_out(package):
    info = package.info()
    assert [x["mean"] for x in (*info.regrets, *info.heldout)] == [0.0125, 0.04]
    lines = str(info).splitlines()
    assert "  bfloat16 kk: 3 kernels, over the best known on 4 problems: mean 1.25%, worst 10.00%" in lines
    assert (
        "  bfloat16 kk: on 2 problems held out, tuned (n, k) at other m: mean 4.00%, worst 5.00%; of which rounding "
        "2.00%, worst 3.00% at bf16_kk m3 n4096 k4096; 1 more not measured"
    ) in lines
    assert (info.misses_file, "misses are not counted" in lines) == (None, True)


def test_info_lists_everything(package, manifest):
    info = package.info()
    assert (info.version, info.arch, info.record) == ("0.1.0", "sm_90a", "h200-golden")
    assert info.kernels == tuple(x.name for x in manifest.kernels)
    assert Path(info.library_dir, "libaot_gemm.so.1").stat().st_size == info.library_bytes["libaot_gemm.so.1"]
    assert "NVIDIA H200" in str(info)
    assert package.__version__ == "0.1.0"
