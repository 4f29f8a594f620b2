"""What the Python package tells of itself: plan, explain and info, beside the toolchain's own answers."""

from __future__ import annotations

import importlib
import itertools
import json
import random
import re
import tracemalloc
import types
from bisect import bisect_left
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from aot.core.captured import CapturedLosses
from aot.core.dispatch import MAX_STEP_M, look_up
from aot.core.knobs import SplitK
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.package.manifest import ElementBits
from aot.space.roofline import roofline
from tests.runtime.host import LOAD
from tests.runtime.stating import DENSE


def test_plan_equals_the_reference(package, manifest):
    for section in manifest.tables[0].table.sections:
        operation = section.operation
        names = {"dtype": operation.element.value, "layout": operation.layout.value, "bias": operation.has_bias}
        for m, n, k in ((8, 4096, 4096), (16, 64, 64), (5000, 72, 80), (3000, 9000, 64), (16, 24, 33)):
            got = package.plan(m, n, k, **names)
            aligned = all(x % 8 == 0 for x in (m, n, k))
            if not aligned and (operation.layout.value != "kk"):
                continue
            choice = look_up(section, Problem(operation, m, n, k), manifest.multiples, aligned=aligned)
            assert (got.kernel, got.tier) == (manifest.kernels[choice.kernel].name, choice.tier.name.lower())
            assert got.workspace_bytes == manifest.kernels[choice.kernel].workspace.num_bytes(m, n, k)


@pytest.mark.parametrize("operation", DENSE, ids=lambda x: x.tag)
def test_the_bytes_of_a_problem_are_those_that_the_toolchain_counts(package, operation):
    rates = package._roofline.Rates(1.0, 1e6, asdict(ElementBits.of(operation)))
    for shape in ((1, 1, 1), (48, 4096, 4096), (129, 40, 257), (5000, 8192, 16)):
        assert rates.least_us(*shape)["memory"] == operation.num_bytes(*shape)


def test_plan_tells_the_bucket_and_its_time(package, manifest):
    ladder = manifest.tables[0].table.sections[0].ladders[0]
    got = package.plan(ladder.m_edges[0], ladder.n, ladder.k)
    row = ladder.rows[0]
    assert got.bucket == (ladder.m_edges[0], ladder.n, ladder.k)
    if got.kernel == manifest.kernels[row.kernel].name:
        assert (got.time_us, got.provenance, got.runner_up_us) == (row.time_us, "measured", 100.0)
        assert got.runner_up == manifest.kernels[row.runner_up].name


@pytest.fixture
def beside_torch(package, manifest, monkeypatch):
    """Give the rows of a ladder of several 10 us, and torch's times of the first two edges."""
    read = package._packed.row_of
    ladder = next(x for x in manifest.tables[0].table.sections[0].ladders if len(x.m_edges) > 1)

    def give(*times):
        library = dict(zip(ladder.m_edges, times, strict=False))

        def row_of(found, step):
            row = read(found, step)
            return row._replace(time_us=10.0, library_us=library.get(ladder.m_edges[step]))

        monkeypatch.setattr(package._packed, "row_of", row_of)
        monkeypatch.setattr(package._packed, "edges_with_library", lambda *_: sorted(library))
        return ladder

    return give


def test_the_gain_over_torch_is_the_least_of_those_measured_nearest(package, beside_torch):
    ladder = beside_torch(12.0, 9.0)
    first, second = ladder.m_edges[:2]
    near = -(-second // 2)  # as few rows as its time says something of

    of_torch = importlib.import_module(f"{package.__name__}._gain")

    def gain(m, n=ladder.n):
        return of_torch.measured_gain(m, n, ladder.k, "bfloat16")

    assert [gain(x) for x in (first, max(first + 1, near), second)] == pytest.approx([1.2, 0.9, 0.9])
    assert gain(-(-first // 2)) == pytest.approx(1.2)
    assert gain(2 * second) == pytest.approx(0.9)
    assert gain(2 * second + 1) is None
    assert gain(first, ladder.n + 8) is None


def test_what_products_lose_in_a_layer_is_taken_off_their_gain(package, beside_torch, monkeypatch):
    ladder = beside_torch(12.0)
    of_torch = importlib.import_module(f"{package.__name__}._gain")
    asked = []
    monkeypatch.setattr(of_torch, "_lost", lambda *x: asked.append(x[2]) or 0.15)
    first = ladder.m_edges[0]
    assert of_torch.measured_gain(first, ladder.n, ladder.k, "bfloat16") == pytest.approx(1.05)
    assert asked == [(first, ladder.n, ladder.k)]


def test_a_product_loses_what_the_toolchain_says(package):
    lost = importlib.import_module(f"{package.__name__}._gain")._lost
    losses, rng = CapturedLosses((1, 16), (4096, 65536), ((0.1, -0.02), (0.0, 0.05))), random.Random(4)
    table, seen = {"captured": json.loads(json.dumps(asdict(losses)))}, set()
    for _ in range(200):
        m, n, k, parts = rng.randint(1, 20), rng.randint(1, 200), rng.randint(1, 200), rng.randint(1, 2)
        seen.add(lost(table, {"b": 16, "parts": parts}, (m, n, k)))
        assert lost(table, {"b": 16, "parts": parts}, (m, n, k)) == losses.part(m, 2 * parts * n * k)
    assert len(seen) == 4
    assert lost({}, {}, (1, 1, 1)) == 0.0


@pytest.fixture
def weights_beside_torch(package, monkeypatch):
    """Give a section, the same for all that is asked, of weights (n, k) with gains, one a number of rows from 1 on."""
    of_torch = importlib.import_module(f"{package.__name__}._gain")
    asked = []

    def give(gains, missing=()):
        every = list(gains.values())
        lists = {"n": [n for n, _ in gains], "k": [k for _, k in gains], "gaps": ["#"] * len(gains)}
        sections = [{"ladders": lists, "kernels": []}]

        def select(request, *_):
            asked.append(request)
            tier = "fallback" if request in [of_torch.request_of(*x) for x in missing] else "grid"
            manifest = {"tables": [{"table": {"sections": sections}}], "element_bits": {"bf16": {}}}
            place = {"table": 0, "section": 0, "call": "bf16"}
            return types.SimpleNamespace(tier=of_torch.TIERS.index(tier), manifest=manifest, **place)

        monkeypatch.setattr(of_torch, "select", select)
        edges = lambda ladder: list(range(1, len(every[ladder.place]) + 1))  # noqa: E731
        monkeypatch.setattr(of_torch._packed, "ladder_edges", edges)
        monkeypatch.setattr(of_torch._packed, "edges_with_library", edges)
        row = types.SimpleNamespace
        monkeypatch.setattr(
            of_torch._packed, "row_of", lambda x, step: row(time_us=10.0, library_us=10 * every[x.place][step])
        )
        return of_torch.mean_gain

    return give


def test_the_mean_gain_is_of_the_weight_of_those_alike_or_of_all(weights_beside_torch):
    mean_gain = weights_beside_torch({(64, 65): [0.5, 2.0, 2.0], (128, 129): [1.2] * 8, (9000, 65): [3.0]})
    assert mean_gain(64, 65, "bfloat16") == pytest.approx(2 ** (1 / 3))
    assert mean_gain(256, 257, "bfloat16") == pytest.approx((1.2**8 * 2) ** (1 / 11))
    assert mean_gain(64, 65, "bfloat16", 1) == pytest.approx(2 ** (1 / 3))
    assert mean_gain(64, 65, "bfloat16", 12) == pytest.approx(2.0)
    assert mean_gain(7000, 8001, "bfloat16") == pytest.approx((1.2**8 * 2 * 3) ** (1 / 12))


def test_a_mean_gain_without_times_is_none(weights_beside_torch):
    assert weights_beside_torch({(64, 65): []})(64, 65, "bfloat16") is None


def test_what_was_not_measured_in_float16_has_the_mean_gain_of_bfloat16(weights_beside_torch):
    mean_gain = weights_beside_torch({(64, 65): [1.5]}, missing=[("float16",)])
    assert mean_gain(64, 65, "float16", bias=False) == pytest.approx(1.5)


def test_plan_and_explain_tell_what_torch_took(package, manifest, priced, monkeypatch):
    ladder = manifest.tables[0].table.sections[0].ladders[0]
    priced(4.0)
    read = package._packed.row_of
    monkeypatch.setattr(
        package._packed, "row_of", lambda *place: (row := read(*place))._replace(library_us=1.25 * row.time_us)
    )
    shapes = ((m, ladder.n, ladder.k) for m in ladder.m_edges)
    shape = next(x for x in shapes if package.plan(*x).time_us is not None)
    got = package.plan(*shape)
    assert got.library_us == 1.25 * got.time_us
    assert f"  torch      {got.library_us:.2f} us, measured there (+25.0%)" in package.explain(*shape)


def test_plan_refuses_what_it_does_not_know(package):
    with pytest.raises(package.DtypeError, match=r"dtype is 'float8'; expected one of bfloat16, float16"):
        package.plan(1, 1, 1, dtype="float8")
    with pytest.raises(package.StrideError, match=r"layout is 'nn'; expected one of kk, kn, mk, mn"):
        package.plan(1, 1, 1, layout="nn")


class Sayer:
    """Something whose text has lines and control characters."""

    def __repr__(self):
        return "a\n\tb " + "x" * 100


EXTENTS = [
    (2**64 + 5, "is 18446744073709551621; expected 0 to 2147483647; split the problem"),
    (2**63, "is 9223372036854775808; expected 0 to 2147483647; split the problem"),
    (2**31, "is 2147483648; expected 0 to 2147483647; split the problem"),
    (-1, "is -1; expected 0 to 2147483647"),
    (-(2**63) - 1, "is -9223372036854775809; expected 0 to 2147483647"),
    (10**6000, "is an integer of 19932 bits; expected 0 to 2147483647; split the problem"),
    (np.uint64(2**64 - 1), "is 18446744073709551615; expected 0 to 2147483647; split the problem"),
    (1.5, "is 1.5, a float; expected an integer from 0 to 2147483647"),
    (8.0, "is 8.0, a float; expected an integer from 0 to 2147483647"),
    (float("nan"), "is nan, a float; expected an integer from 0 to 2147483647"),
    (True, "is True, a bool; expected an integer from 0 to 2147483647"),
    (np.True_, "is np.True_, a bool; expected an integer from 0 to 2147483647"),
    (None, "is None, a NoneType; expected an integer from 0 to 2147483647"),
    ("8", "is '8', a str; expected an integer from 0 to 2147483647"),
    (np.array([1, 2]), "is array([1, 2]), a ndarray; expected an integer from 0 to 2147483647"),
    ([10**6000], "is a value that has no text, a list; expected an integer from 0 to 2147483647"),
    (Sayer(), f"is a b {'x' * 73}..., a Sayer; expected an integer from 0 to 2147483647"),
]


@pytest.mark.parametrize(("value", "message"), EXTENTS, ids=range(len(EXTENTS)))
@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_an_extent_that_is_none_is_said_with_its_range(package, name, value, message):
    for call in (package.plan, package.explain):
        with pytest.raises(package.ShapeError) as caught:
            call(**{"m": 8, "n": 8, "k": 8, name: value})
        assert str(caught.value) == f"{name} {message}"


def test_integers_of_every_type_are_extents(package):
    expected = package.plan(16, 64, 64)
    for kind in (np.int8, np.uint16, np.int64, np.array, torch.tensor):
        got = package.plan(kind(16), kind(64), 64)
        assert (got, type(got.m), type(got.n)) == (expected, int, int)
    assert package.explain(np.int32(16), 64, 64) == package.explain(16, 64, 64)
    assert package.plan(2**31 - 1, 2**31 - 1, 2**31 - 1).m == 2**31 - 1


class bfloat16:  # noqa: N801 - as jax.numpy names its scalar type
    pass


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.bfloat16, "bfloat16"),
        (torch.float16, "float16"),
        (np.float16, "float16"),
        (np.dtype("float16"), "float16"),
        (bfloat16, "bfloat16"),
    ],
)
def test_element_types_are_taken_as_frameworks_have_them(package, dtype, name):
    assert package.plan(16, 64, 64, dtype=dtype) == package.plan(16, 64, 64, dtype=name)
    assert package.explain(16, 64, 64, dtype=dtype) == package.explain(16, 64, 64, dtype=name)


@pytest.mark.parametrize(
    "dtype", [torch.float64, np.float64, None, 0, ["bfloat16"], np.zeros(2), "torch.torch.float16"]
)
def test_other_element_types_are_refused(package, dtype):
    known = ", ".join(package._dtypes._TAKEN)
    with pytest.raises(package.DtypeError, match=rf"^dtype is .*; expected one of {known}$"):
        package.plan(16, 64, 64, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, np.float32, "float32"])
def test_an_element_type_that_the_wheel_has_no_kernels_for_is_refused(package, dtype):
    with pytest.raises(package.UnsupportedError, match=r"^plan: this wheel has no kernels for fp32 "):
        package.plan(16, 64, 64, dtype=dtype)


@pytest.mark.parametrize("layout", [None, 0, ["kk"], np.zeros(2), "KK", "k"])
def test_other_layouts_are_refused(package, layout):
    with pytest.raises(package.StrideError, match=r"^layout is .*; expected one of kk, kn, mk, mn$"):
        package.plan(16, 64, 64, layout=layout)


@pytest.fixture
def priced(package, manifest, monkeypatch):
    """Give every row of the ladders a time of so many times the limit of its own shape."""

    read, rates = package._packed.row_of, package._roofline.rates_of(package._manifest.manifest(), 0, "bf16")

    def price(factor):
        def priced_row(ladder, step):
            edge = package._packed.ladder_edges(ladder)[step]
            shape = edge, ladder.lists["n"][ladder.place], ladder.lists["k"][ladder.place]
            time_us = factor * rates.roofline_us(shape)
            return read(ladder, step)._replace(time_us=time_us, runner_up_us=1.5 * time_us)

        monkeypatch.setattr(package._packed, "row_of", priced_row)

    return price


def plain_ladder(manifest):
    """Give a ladder whose kernels take every m, and that has more than one edge."""
    for ladder in manifest.tables[0].table.sections[0].ladders:
        kernels = [manifest.kernels[row.kernel] for row in ladder.rows]
        if len(kernels) > 1 and all(x.m_multiple == x.n_multiple == 1 for x in kernels[-1:]) and ladder.k % 8 == 0:
            return ladder
    raise AssertionError("the manifest has no such ladder")


def time_lines(text):
    return [line for line in text.splitlines() if line.split()[0] in {"time", "runner-up", "achieved"}]


def test_a_time_is_of_this_problem_or_says_of_which_edge(package, manifest, priced):
    priced(4.0)
    ladder = plain_ladder(manifest)
    edge = ladder.m_edges[-1]
    at_edge, below = package.plan(edge, ladder.n, ladder.k), package.plan(edge - 1, ladder.n, ladder.k)
    assert (at_edge.time_us, at_edge.no_time) == (pytest.approx(4 * at_edge.roofline_us), None)
    assert (at_edge.roofline_fraction, below.roofline_fraction) == (pytest.approx(0.25), pytest.approx(0.25))
    assert (below.time_us, below.bucket) == (at_edge.time_us, at_edge.bucket)
    first = f"  time       {at_edge.time_us:.2f} us %s, measured on NVIDIA H200, 2026-11-20"
    lines = time_lines(package.explain(edge, ladder.n, ladder.k))
    last = f"  achieved   25% of the roofline at m {edge}; measured"
    assert (lines[0], lines[-1]) == (first % "for this problem", last)
    lines = time_lines(package.explain(edge - 1, ladder.n, ladder.k))
    at = f"at the bucket's edge m {edge}"
    assert (lines[0], lines[-1]) == (first % at, last)


def assert_no_time(package, shape, why):
    got = package.plan(*shape)
    assert (got.time_us, got.no_time, got.runner_up, got.runner_up_us) == (None, why, None, None)
    assert (got.roofline_fraction, got.provenance) == (None, None)
    text = package.explain(*shape)
    assert time_lines(text) == [f"  time       none: {why}"]
    assert [x for x in text.splitlines() if " us" in x] == [
        f"  roofline   {got.roofline_us:.2f} us for this problem, by {got.roofline_bound}"
    ]


def test_past_the_last_edge_no_time_is_known(package, manifest, priced):
    priced(4.0)
    ladder = plain_ladder(manifest)
    edge = ladder.m_edges[-1]
    for m in (edge + 1, 10**5):  # a kernel with partial sums has room for these
        why = f"the table's last bucket ends at m {edge}: no time is known for m {m}"
        assert_no_time(package, (m, ladder.n, ladder.k), why)


NO_TIME_IN_GRID = "the table has no times in its grid, which is filled by predictions of other shapes"


def test_a_grid_has_no_times_in_it_and_past_it(package, manifest, priced):
    priced(4.0)
    section = manifest.tables[0].table.sections[0]
    grid, tuned = section.grid, {(x.n, x.k) for x in section.ladders}
    count = 0
    for i, column in enumerate(grid.columns):
        n, k = (8 * (edge // 8) for edge in grid.corner(i))
        if grid.place(n, k) != i or (n, k) in tuned or min(n, k) == 0:
            continue
        for m in (m for edge in column.m_edges if edge < MAX_STEP_M for m in (edge, edge + 1)):
            assert_no_time(package, (m, n, k), NO_TIME_IN_GRID)
            step = min(bisect_left(column.m_edges, m), len(column.m_edges) - 1)
            assert package.plan(m, n, k).bucket == (column.m_edges[step], *grid.corner(i))
            count += 1
    assert count > 5
    n, k = (8 * (edges[-1] // 8) + 8 * 100_000 for edges in (grid.n_edges, grid.k_edges))
    assert_no_time(package, (64, n, k), NO_TIME_IN_GRID)
    assert package.plan(64, n, k).bucket[1:] == (grid.n_edges[-1], grid.k_edges[-1])


def test_a_row_past_what_was_tuned_tells_its_time_as_predicted(package, manifest, priced, monkeypatch):
    priced(4.0)
    ladder = plain_ladder(manifest)
    edge = ladder.m_edges[-1]
    assert package.plan(edge, ladder.n, ladder.k).provenance == "measured"
    priced_row = package._packed.row_of
    monkeypatch.setattr(package._packed, "row_of", lambda *x: priced_row(*x)._replace(provenance="predicted"))
    got = package.plan(edge, ladder.n, ladder.k)
    assert (got.provenance, got.no_time) == ("predicted", None)
    lines = time_lines(package.explain(edge, ladder.n, ladder.k))
    assert lines[0] == f"  time       {got.time_us:.2f} us for this problem, predicted, not measured"
    assert lines[-1] == f"  achieved   25% of the roofline at m {edge}; predicted"
    why = f"the table's last bucket ends at m {edge}: no time is known for m {edge + 1}"
    assert_no_time(package, (edge + 1, ladder.n, ladder.k), why)


def test_a_time_below_the_roofline_is_not_told(package, manifest, priced):
    priced(0.99)
    ladder = plain_ladder(manifest)
    why = "the table's time here is less than the roofline, so that it is not this problem's"
    for m in (ladder.m_edges[-1], ladder.m_edges[-1] - 1):
        assert_no_time(package, (m, ladder.n, ladder.k), why)


def test_no_time_is_ever_below_the_roofline_of_the_problem_asked_about(package, manifest):
    """Over a random table, whose times are of 1 to 99 us whatever the shape."""
    rng, told = random.Random(9), 0
    for section in manifest.tables[0].table.sections:
        operation = section.operation
        shapes = [tuple(8 * rng.randint(1, 2500) for _ in range(3)) for _ in range(100)]
        shapes += [(rng.randint(1, 2 * x.m_edges[-1]), x.n, x.k) for x in section.ladders for _ in range(20)]
        for shape in shapes:
            got = package.plan(*shape, operation.element.value, operation.layout.value, bias=operation.has_bias)
            assert (got.time_us is None) == (got.no_time is not None)
            assert (got.time_us is None) == (got.runner_up_us is None) == (got.roofline_fraction is None)
            text = package.explain(*shape, operation.element.value, operation.layout.value, bias=operation.has_bias)
            times = [float(x) for line in time_lines(text) for x in re.findall(r"([0-9.]+) us", line)]
            assert all(x >= round(got.roofline_us, 2) for x in times)
            assert got.roofline_fraction is None or got.roofline_fraction <= 1
            told += len(times)
    assert told > 100


def test_explain_reads(package):
    text = package.explain(16, 24, 33)
    assert text.splitlines()[0] == "bfloat16 m 16 n 24 k 33, layout kk, on sm_90a, by the table of h200"
    assert "fallback: no tuned kernel takes these strides and addresses, or k is 0" in text
    assert "tier" in package.explain(16, 64, 64)


def test_limits_are_those_of_the_toolchain(package, manifest):
    target = load_target("h200")
    (table,) = manifest.tables
    assert set(table.peak_flops_per_s.values()) == {target.flops_per_s}
    assert table.bandwidth_bytes_per_s == target.bandwidth_bytes_per_s
    bounds, tiers, timed = set(), set(), 0
    rng = random.Random(3)
    for section in manifest.tables[0].table.sections:
        operation = section.operation
        shapes = [tuple(8 * rng.randint(1, 1200) for _ in range(3)) for _ in range(20)]
        shapes += [(x.m_edges[-1], x.n, x.k) for x in section.ladders]
        for m, n, k in shapes:
            got = package.plan(m, n, k, operation.element.value, operation.layout.value, bias=operation.has_bias)
            expected = roofline(Problem(operation, m, n, k), target)
            assert (got.roofline_us, got.roofline_bound) == (pytest.approx(expected.time_us), expected.bound)
            bounds.add(got.roofline_bound)
            tiers.add(got.tier)
            if got.time_us is None:
                assert got.roofline_fraction is None
                continue
            assert got.tier == "tuned"
            timed += 1
            least = roofline(Problem(operation, *got.bucket), target).time_us
            assert got.roofline_fraction == pytest.approx(least / got.time_us)
    assert bounds == {"compute", "memory"}
    assert tiers >= {"grid", "tuned"}
    assert timed >= 10


def test_an_empty_product_has_no_roofline_and_no_time(package):
    got = package.plan(0, 64, 64)
    assert (got.roofline_us, got.time_us, got.no_time) == (None, None, "an empty product launches nothing")
    assert "roofline" not in package.explain(0, 64, 64)
    assert package.plan(16, 64, 0).no_time == "the table has no times of the fallback"


def test_explain_tells_the_roofline_and_the_bigger_tiles(package, manifest, monkeypatch):
    ladder = manifest.tables[0].table.sections[0].ladders[0]
    for m in ladder.m_edges:
        got, text = package.plan(m, ladder.n, ladder.k), package.explain(m, ladder.n, ladder.k)
        assert f"  roofline   {got.roofline_us:.2f} us for this problem, by {got.roofline_bound}" in text
        is_said = f"  achieved   {got.roofline_fraction or 0:.0%} of the roofline at m {m}; measured" in text
        assert is_said == (got.time_us is not None)
        assert (got.bigger_tiles, "bigger" in text) == ((), False)
    notes = ["128x16 legal: +5.0% measured", "128x32 not legal: why"]
    monkeypatch.setitem(package._manifest.manifest()["tables"][0], "bigger_tiles", {got.kernel: notes})
    lines = package.explain(ladder.m_edges[-1], ladder.n, ladder.k).splitlines()
    assert lines[-3:] == ["  bigger tiles of the family, all else equal", *(f"    {x}" for x in notes)]


def test_info_tells_regrets_what_was_held_out_and_what_is_covered(package):
    (table,) = package.info().tables
    assert isinstance(table, package.TableInfo)
    assert [x["mean"] for x in (*table.regrets, *table.heldout)] == [0.0125, 0.04]
    lines = str(package.info()).splitlines()
    assert "table h200, for NVIDIA H200 with 132 SMs: times measured, record h200-golden" in lines
    assert (
        "  of the problems that it was made for, 3 are measured, 1 predicted, 1 left to the fallback, 2 not answered"
    ) in lines
    assert "  bf16_kk: 3 kernels, over the best known on 4 problems: mean 1.25%, worst 10.00%" in lines
    assert (
        "  bf16_kk: on 2 problems held out, tuned (n, k) at other m: mean 4.00%, worst 5.00%; of which rounding "
        "2.00%, worst 3.00% at bf16_kk m3 n4096 k4096; 1 more not measured"
    ) in lines
    assert (package.info().misses_file, "misses are not counted" in lines) == (None, True)


def test_info_joins_what_runs_of_one_device_were_measured_under_and_counts_kernels(package, manifest, monkeypatch):
    (table,) = package._manifest.manifest()["tables"]
    (old,) = table["conditions"][-1:]
    later = old | {"sm_clock_mhz": old["sm_clock_mhz"] + 15, "date": "2099-01-01"}
    other = old | {"driver": "1"}
    monkeypatch.setitem(table, "conditions", [old, later, other])
    text = str(package.info())
    assert f"sm_clock_mhz {old['sm_clock_mhz']} to {later['sm_clock_mhz']}\n" in text
    assert f"date {old['date']} to 2099-01-01, " in text
    assert (text.count("  arch "), text.count("driver 1,")) == (2, 1)
    (kernels,) = [x for x in text.splitlines() if x.startswith("kernels by kind: ")]
    counts = dict(x.rsplit(" ", 1) for x in kernels.partition(": ")[2].split(", "))
    assert sum(map(int, counts.values())) == len(manifest.kernels) + len(manifest.row_kernels)
    assert all(any(name.startswith(kind) for name in package.info().kernels) for kind in counts)


def test_states_are_told_of_each_kernel_and_counted(package, manifest, monkeypatch):
    found = {kernel.name: str(kernel.state) for kernel in manifest.kernels}
    assert package.info().states == {x: list(found.values()).count(x) for x in ("run", "executed", "compiled")}
    got = package.plan(16, 64, 64)
    assert got.state == found[got.kernel]
    values = package._manifest.manifest()
    (kernel,) = [x for x in values["kernels"] if x["name"] == got.kernel]
    execution = {"kernel": got.kernel, "date": "2026-11-26", "num_runs": 12, "num_cases": 4, "num_schedules": 3}
    monkeypatch.setitem(kernel, "state", "compiled")
    monkeypatch.setitem(values, "executions", [])
    assert "  state      compiled: compiled, and neither run nor executed" in package.explain(16, 64, 64).splitlines()
    monkeypatch.setitem(values, "executions", [{**execution, "worst_error": 0.375, "num_findings": 0}])
    monkeypatch.setitem(kernel, "state", "executed")
    assert package.plan(16, 64, 64).state == "executed"
    assert (
        "  state      executed: executed in the toolchain's interpreter, not on a GPU; the interpreter, 2026-11-26: "
        "12 runs of 4 cases in 3 orders, worst error 38% of what is allowed"
    ) in package.explain(16, 64, 64).splitlines()
    monkeypatch.setitem(values, "executions", [{**execution, "worst_error": 2.0, "num_findings": 2}])
    assert "2 faults found, worst error 200% of what is allowed" in package.explain(16, 64, 64)
    counts = {"run": 0, "executed": 66, "compiled": 1}
    assert package._states.counts_text(counts) == (
        "kernels: 66 executed in the toolchain's interpreter, not on a GPU; 1 compiled, and neither run nor executed"
    )
    assert package._states.counts_text(package.info().states) in str(package.info()).splitlines()


def test_a_predicted_table_tells_no_regret(package, monkeypatch):
    monkeypatch.setitem(package._manifest.manifest()["tables"][0], "provenance", "predicted")
    info = package.info()
    assert info.tables[0].regrets == ()
    assert "over the best" not in str(info)
    assert "  how far they are from the best is not known: nothing was measured" in str(info).splitlines()


def test_info_lists_everything(package, manifest, library):
    info = package.info()
    assert (info.version, info.arch, info.tables[0].record) == ("0.1.0", "sm_90a", "h200-golden")
    assert info.kernels == tuple(x.name for x in manifest.kernels)
    assert Path(info.library_dir, "libaot_gemm.so.1").stat().st_size == info.library_bytes["libaot_gemm.so.1"]
    assert (info.table, info.table_reason) == ("h200", "the table of h200 is for NVIDIA H200 with 132 SMs")
    assert "here: table h200: the table of h200 is for NVIDIA H200 with 132 SMs" in str(info).splitlines()
    assert package.__version__ == "0.1.0"


def test_info_tells_the_memory_by_what_it_is_for(package, manifest, library):
    files = {x.name: x.num_bytes for x in package._files.OWN.recorded().values()}
    in_file = sum({x.entry_symbol: x.object_bytes for x in manifest.kernels}.values())
    package.preload()
    found = package.info().memory
    assert found == {
        "library_file": files["libaot_gemm.so.1"],
        "kernels_in_file": in_file,
        "kernels_loaded": in_file,
        "manifest_file": files["manifest.json"],
    }
    assert f"memory in bytes: library_file {found['library_file']:,}, " in str(package.info())


def test_preload_of_operations_loads_theirs_alone(package, manifest, library):
    before = library.count(LOAD)
    package.preload(2, ["bf16"])  # a device that nothing was loaded on
    assert library.count(LOAD) - before == sum(x.operation.call == "bf16" for x in manifest.kernels)
    package.preload(2, "bf16")
    assert package._library.libraries()[0].memory(2).num_loaded == library.count(LOAD) - before
    unknown = 'there is no operation "no_such" in this library; it has bf16'
    for operations, got in ((["no_such"], unknown), ([7], "got the operation 7")):
        with pytest.raises(package.UnsupportedError, match=got):
            package.preload(2, operations)


@pytest.mark.parametrize("device", ["cuda:0", 2**40, 64, -2, 1.0, True, None, torch.device("cuda", 0)], ids=str)
def test_preload_refuses_what_is_no_ordinal(package, library, device):
    before = library.count(LOAD)
    with pytest.raises(package.DeviceError, match="expected the ordinal of a GPU, an integer from 0 to 63, or -1"):
        package.preload(device)
    assert library.count(LOAD) == before


def test_a_check_holds_a_piece_of_a_file_at_a_time(package, monkeypatch):
    monkeypatch.setattr(package._files, "_PIECE_BYTES", 1 << 12)
    largest = max(x.num_bytes for x in package._files.OWN.recorded().values())
    tracemalloc.start()
    try:
        package.check()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < largest / 2


def test_a_deterministic_plan_names_what_a_deterministic_launch_takes(package, manifest):
    """Where the table has a kernel whose sums may end in any order, another answers, and no time is known."""
    varying = {x.name for x in manifest.kernels if x.workspace.mode == SplitK.PARALLEL}
    seen = {True: 0, False: 0}
    for m, (n, k) in itertools.product((1, 16, 100, 1000, 5000, 12000), itertools.product((64, 4096, 5120), repeat=2)):
        usual, repeated = package.plan(m, n, k), package.plan(m, n, k, deterministic=True)
        varies = usual.kernel in varying
        assert (repeated.kernel == usual.kernel) is not varies
        assert (usual.deterministic, repeated.deterministic) == (False, True)
        assert repeated.kernel not in varying
        if varies and usual.time_us is not None:
            assert (repeated.time_us, repeated.no_time) == (
                None,
                "the table's time here is of a kernel that is left out",
            )
        assert f"m {m} n {n} k {k}, layout kk, deterministic, on " in package.explain(m, n, k, deterministic=True)
        seen[varies] += 1
    assert min(seen.values()) > 2, seen
