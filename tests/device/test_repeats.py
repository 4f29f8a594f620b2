"""Results that repeat bit for bit: from run to run, over m in batch-invariant mode, and whatever other groups are."""

import itertools
import random
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import aot_gemm
import torch
from aot_gemm import _library, _table
from aot_gemm import torch as gemm
from aot_gemm._enumerations import LAYOUTS
from aot_gemm._extras import mode_flags

from tests.device.group_cases import GROUPED, batch_case, grouped_case, runs_case
from tests.device.reference import randn
from tests.device.repeats import (
    MOST_ROWS,
    Rows,
    count_varying,
    edges,
    placements,
    sampled_rows,
    varying_with_groups,
)

RUNS, CASES, DRAWS = 100, 3, 20
"""Of each case; of each kind, cases, and most that are drawn until so many are of types that the wheel has."""
SHAPES = ((4096, 4096), (1024, 4096), (28672, 4096), (520, 264))
"""(n, k): of ladders of the wheels that the project builds, and one of the grid."""
DRAWN = {
    "batches": ("matmul", batch_case),
    **{
        kind.name: ("grouped_linear", lambda rng, device, kind=kind: grouped_case(kind, rng, device))
        for kind in GROUPED
    },
    "runs of k": ("grouped_linear", runs_case),
}


def supported(call):
    """Return what a call gives; skip where the wheel has no kernels for it."""
    try:
        return call()
    except aot_gemm.UnsupportedError as error:
        pytest.skip(str(error)[:200])


@pytest.mark.parametrize("name", list(DRAWN))
def test_batches_and_groups_repeat_bit_for_bit(name):
    function, draw = DRAWN[name]
    rng = random.Random(f"repeats {name}")
    found = 0
    for _ in range(DRAWS):
        case = draw(rng, "cuda")

        def call(case=case):
            getattr(aot_gemm, function)(*case.arguments, **case.keywords, deterministic=True)
            return case.whole.clone()

        try:
            varying = count_varying(call, RUNS)
        except aot_gemm.UnsupportedError:
            continue
        assert varying == 0, case.text
        found += 1
        if found == CASES:
            return
    if not found:
        pytest.skip(f"the wheel has no kernels for {name}")


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("m", [1, 16, 300, 2048])
def test_deterministic_products_repeat_bit_for_bit(m, n, k):
    x, weight = randn(m, k, dtype=torch.bfloat16), randn(n, k, dtype=torch.bfloat16)
    assert count_varying(lambda: aot_gemm.linear(x, weight, deterministic=True), RUNS) == 0
    assert count_varying(lambda: aot_gemm.matmul(x, weight.T, deterministic=True), RUNS) == 0


def edges_of(tag, n, k):
    """Return the edges of m by which the table chooses kernels for an operation, batch-invariant or not."""
    library = _library.here()[0]
    layout = next(x for x in tag.split("_") if x in LAYOUTS)
    call = tag.replace(f"_{layout}", "", 1)
    asked = library.operation(call), LAYOUTS.index(layout)
    found = set()
    for batch_invariant in (False, True):
        flags = mode_flags(deterministic=False, batch_invariant=batch_invariant)

        def edge(m, flags=flags):
            planned = library.binding["plan"](*asked, m, n, k, 1, flags, _table.table_of(library, None))
            place = _table._find_place(_table.Selection(library, call, **planned))
            return place.bucket[0] if place else 0

        found |= edges(edge)
    return found


def invariant_rows(name, n, k):
    """Return the calls of a batch-invariant operation, and its tag."""
    weight = randn(n, k, dtype=torch.bfloat16)
    x = randn(MOST_ROWS, k, dtype=torch.bfloat16)
    calls = {
        "linear": ("bf16_kk", lambda x: aot_gemm.linear(x, weight, batch_invariant=True)),
        "matmul": ("bf16_kk", lambda x: aot_gemm.matmul(x, weight.T, batch_invariant=True)),
        "gated_linear": ("bf16_kk_swiglu", lambda x: aot_gemm.gated_linear(x, weight, batch_invariant=True)),
        "batch": (
            "bf16_kk",
            lambda x: aot_gemm.matmul(x.expand(3, *x.shape), weight.T.expand(3, k, n), batch_invariant=True)[1],
        ),
    }
    tag, call = calls[name]
    return tag, Rows(x, call)


@pytest.mark.parametrize("name", ["linear", "matmul", "gated_linear", "batch"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_rows_bits_depend_neither_on_m_nor_on_its_neighbours(name, n, k):
    tag, rows = invariant_rows(name, n, k)
    try:
        rows.call(rows.x[:1])
    except aot_gemm.UnsupportedError as error:
        pytest.skip(str(error)[:200])
    known = edges_of(tag, n, k)
    sample = sampled_rows(known)
    sample = sample if name == "linear" else sample[::7]
    assert list(rows.varying_with_m(sample)) == []
    assert list(rows.varying_with_neighbours(sample[::5])) == []


def grouped_rows(kind, n, k):
    """Return groups of any number of rows: three, whose second has none, of which the first has a third."""
    is_fp8 = kind.startswith("fp8")
    dtype = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
    weight = randn(3, n, k, dtype=torch.bfloat16)
    weight = (weight[:1].expand(3, n, k) if kind != "listed" else weight).to(dtype).contiguous()
    weight[1:] = weight[:1]
    weights = [x.clone() for x in weight] if kind == "listed" else weight
    blocks = -(-n // 128), -(-k // 128)
    of_x = torch.rand(MOST_ROWS, blocks[1] if kind == "fp8 blocks" else 1, device="cuda") + 0.5
    of_w = torch.rand(3, *blocks, device="cuda") if kind == "fp8 blocks" else torch.rand(3, n, device="cuda")
    of_w[1:] = of_w[:1]

    def call(x):
        m = x.shape[0]
        ends = torch.tensor([m // 3, m // 3, m], dtype=torch.int32, device="cuda")
        scales = {"scale_x": of_x[:m], "scale_w": of_w} if is_fp8 else {}
        index = {"index": torch.arange(m, dtype=torch.int32, device="cuda")} if kind == "gathered" else {}
        gate = {"gate": "silu"} if kind == "gathered" else {}
        return aot_gemm.grouped_linear(x, weights, ends, **scales, **index, **gate, batch_invariant=True)

    return Rows(randn(MOST_ROWS, k, dtype=torch.bfloat16).to(dtype), call)


def packed_rows(form, n, k):
    """Return the same groups with weights of 4 bits."""
    group = 32 if form == "mxfp4" else int(form.removeprefix("int4g"))
    codes = torch.randint(0, 16, (1, n, k), dtype=torch.uint8)
    factors = torch.randint(118, 122, (1, n, k // group), dtype=torch.uint8)  # of mxfp4: powers of two
    factors = factors if form == "mxfp4" else (factors / 2**14).bfloat16()
    experts = gemm.pack(*(x.expand(3, -1, -1).contiguous() for x in (codes, factors)), format=form).to("cuda")

    def call(x):
        m = x.shape[0]
        ends = torch.tensor([m // 3, m // 3, m], dtype=torch.int32, device="cuda")
        return gemm.grouped_linear(x, experts, ends, batch_invariant=True)

    return Rows(randn(MOST_ROWS, k, dtype=torch.bfloat16), call)


@pytest.mark.parametrize("kind", ["rows", "gathered", "listed", "fp8 rows", "fp8 blocks", "mxfp4", "int4g128"])
@pytest.mark.parametrize(("n", "k"), [(2816, 2048), (512, 256)])
def test_a_grouped_rows_bits_depend_neither_on_m_nor_on_its_neighbours(kind, n, k):
    """The groups have equal weights, so that a row has the same product in each."""
    is_packed = kind in ("mxfp4", "int4g128")
    rows = (packed_rows if is_packed else grouped_rows)(kind, n, k)
    supported(lambda: rows.call(rows.x[:3]))
    tags = {"gathered": "bf16_kk_gathered_swiglu", "fp8 rows": "e4m3_bf16_kk_grouped"}
    tags["fp8 blocks"] = "e4m3_bf16_block_kk_grouped"
    tag = f"bf16x{kind}_bf16_kk_grouped" if is_packed else tags.get(kind, "bf16_kk_grouped")
    sample = sampled_rows(3 * x for x in edges_of(tag, n, k))[::4]
    assert list(rows.varying_with_m(sample)) == []
    assert list(rows.varying_with_neighbours(sample[::8])) == []


PLACED, MOST_GROUPS = 37, 64
"""Rows that are looked at, and the most groups that they are put among."""


class Placed:
    """Rows of one group, computed among other groups, each with a weight of its own."""

    def __init__(self, kind, n, k):
        self.kind, self.is_fp8 = kind, kind.startswith("fp8")
        dtype = torch.float8_e4m3fn if self.is_fp8 else torch.bfloat16
        weights = [randn(n * (1 + (kind == "gathered")), k, dtype=torch.bfloat16) for _ in range(MOST_GROUPS)]
        self.weight = torch.stack(weights).to(dtype)
        self.x = randn(PLACED, k, dtype=torch.bfloat16).to(dtype)
        blocks = (-(-n // 128), -(-k // 128)) if kind == "fp8 blocks" else (n,)
        self.scale_x = torch.rand(PLACED, *blocks[1:], device="cuda") + 0.5
        self.scale_w = torch.rand(MOST_GROUPS, *blocks, device="cuda") + 0.5

    def of_groups(self, stack, placement):
        """Return what the groups have of a stack; the group of the rows has the last one's."""
        found = stack[: len(placement.sizes)].clone()
        found[placement.group] = stack[-1]
        return found

    def among(self, rows, placement):
        shape = (placement.ends[-1], *rows.shape[1:])
        found = torch.rand(shape, device="cuda")
        if placement.is_nan:
            found.fill_(float("nan"))
        found[list(placement.places)] = rows.float()
        return found.to(rows.dtype)

    def __call__(self, placement):
        ends = torch.tensor(placement.ends, dtype=torch.int32, device="cuda")
        weight, x = self.of_groups(self.weight, placement), self.among(self.x, placement)
        options = {"batch_invariant": True}
        if self.is_fp8:
            options |= {"scale_x": self.among(self.scale_x, placement)}
            options |= {"scale_w": self.of_groups(self.scale_w, placement)}
        if self.kind == "gathered":
            order = torch.randperm(len(x), device="cuda")
            x = x[order.argsort()]  # row i of the groups is row order[i] of x
            options |= {"index": order.to(torch.int32), "gate": "silu"}
        weight = [w.clone() for w in weight] if self.kind == "listed" else weight
        return aot_gemm.grouped_linear(x, weight, ends, **options)[list(placement.places)]


@pytest.mark.parametrize("kind", ["rows", "gathered", "listed", "fp8 rows", "fp8 blocks"])
@pytest.mark.parametrize(("n", "k"), [(2816, 2048), (512, 256), (520, 264)])
def test_a_grouped_rows_bits_depend_neither_on_its_groups_size_nor_on_other_groups(kind, n, k):
    placed = Placed(kind, n, k)
    supported(lambda: placed(next(placements(random.Random(1), 1, PLACED))))
    drawn = placements(random.Random(f"{kind} {n} {k}"), 40, PLACED)
    assert list(varying_with_groups(placed, PLACED, drawn)) == []


def test_the_modes_of_groups_take_the_kernels_of_the_default():
    """They cost nothing: the default has one order of sums already."""
    for m, groups in itertools.product((1, 64, 1000, 65536), (8, 64, 128)):
        modes = ({}, {"deterministic": True}, {"batch_invariant": True})
        plans = [supported(partial(aot_gemm.plan, m, 2816, 2048, groups=groups, **mode)) for mode in modes]
        assert len({x.kernel for x in plans}) == 1


def test_separate_weights_in_a_cuda_graph_are_read_at_each_replay():
    x, stack = randn(96, 256, dtype=torch.bfloat16), randn(5, 128, 256, dtype=torch.bfloat16)
    weights = [stack[i].clone() for i in (3, 1, 4, 0, 2)]
    offsets = torch.tensor([10, 10, 70, 90, 96], dtype=torch.int32, device="cuda")
    supported(lambda: aot_gemm.grouped_linear(x, weights, offsets))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = aot_gemm.grouped_linear(x, list(weights), offsets)
    for seed in range(3):
        torch.manual_seed(seed)
        for weight in weights:
            weight.copy_(randn(128, 256, dtype=torch.bfloat16))
        result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, aot_gemm.grouped_linear(x, torch.stack(weights), offsets))
