from dataclasses import replace

import pytest

from aot.core.candidate import Candidate, KernelKey, Rejected
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.knobs import PlainKnobs
from aot.core.operation import Operation
from aot.core.table_check import table_fault
from aot.core.target import load_target
from aot.select.reuse.siblings import as_sibling, sibling_in
from aot.select.selection import FamilyKernel, Regret
from aot.select.selector import fallback_key
from aot.space.legality import check
from tests.unit.accepted import named
from tests.unit.selections import PLAIN, SELECTION

GELU, FP8 = Operation.BF16_KK_GELU, Operation.E4M3_BF16_KK
SMALL = named("sm90_quack_64x64_c1x1_pingpong")
SKINNY = named("cluster_split_k_24x8_c2x1_warps4_st3_direct_swap")
H200 = load_target("h200")


def whole(operation=GELU, candidate=SMALL, other=PLAIN):
    """Make a selection of an operation and of the plain product, with one fallback of each."""
    kernels = (
        KernelKey(Operation.BF16_KK, PLAIN),
        fallback_key(operation, H200),
        KernelKey(operation, candidate),
        fallback_key(Operation.BF16_KK, H200),
        KernelKey(operation, other),
    )
    sections = []
    for of, fallback, first, second in ((Operation.BF16_KK, 3, 0, 0), (operation, 1, 4, 2)):
        row = Row(first, first, 7.0, "measured", second, 8.0)
        grid = Grid((1,), (1,), (Column((1,), (second,)),))
        sections.append(Section(of, (Ladder(64, 64, (16,), (row,)),), grid, fallback))
    regrets = tuple(Regret(x, 3, 2, 0.01, 0.02, "exact", 0.0) for x in (Operation.BF16_KK, operation))
    return replace(SELECTION, kernels=kernels, table=DispatchTable(tuple(sections)), regrets=regrets)


@pytest.mark.parametrize(
    ("operation", "first"),
    [
        (Operation.FP16_KK_GELU_TANH, "bf16_kk_gelu_tanh fp16_kk_relu fp16_kk_gelu fp16_kk_silu bf16_kk_relu"),
        (Operation.FP16_KK_RESIDUAL, "bf16_kk_residual"),
        (Operation.BF16_KK_GEGLU, "fp16_kk_geglu bf16_kk_swiglu fp16_kk_swiglu"),
        (Operation.BF16_KK, "fp16_kk"),
        (Operation.FP16_KK_GATHERED_SWIGLU, "bf16_kk_gathered_swiglu"),
        (Operation.TF32_KK, ""),
    ],
)
def test_siblings_differ_in_types_of_one_size_or_in_the_activation(operation, first):
    found = [x.tag for x in operation.siblings]
    assert found[: len(first.split())] == first.split()
    assert operation.tag not in found
    assert all(x.epilogue.name != "NONE" or operation.epilogue.name == "NONE" for x in operation.siblings)


def test_an_operation_has_the_kernels_and_the_table_of_its_sibling_and_says_predicted():
    other = Operation.FP16_KK_GELU_TANH
    assert sibling_in(whole(), other, H200) is GELU
    found = as_sibling(whole(), GELU, other, H200)
    assert set(found.kernels) == {KernelKey(other, PLAIN), KernelKey(other, SMALL), fallback_key(other, H200)}
    (section,) = found.table.sections
    ((row,),) = [x.rows for x in section.ladders]
    named_kernels = [found.kernels[x] for x in (row.kernel, row.runner_up, *section.grid.columns[0].kernels)]
    assert named_kernels == [KernelKey(other, x) for x in (PLAIN, SMALL, SMALL)]
    assert found.kernels[section.fallback] == fallback_key(other, H200)
    assert (section.operation, row.provenance, row.time_us) == (other, "predicted", 7.0)
    assert (found.provenance, found.conditions, found.record) == ("predicted", (), "mine, imputed")
    assert found.regrets == (Regret(other, 3, 2, 0.01, 0.02, "exact, by imputed times", 0.0),)
    assert not table_fault(found.table, [FamilyKernel.of(key) for key in found.kernels])


def test_a_sibling_of_whose_kernels_one_cannot_be_built_for_the_operation_is_none():
    selection = whole(FP8, SKINNY, SMALL)
    assert sibling_in(selection, Operation.E4M3_FP16_KK, H200) is FP8
    assert sibling_in(selection, Operation.E5M2E4M3_BF16_KK, H200) is None  # cluster_split_k takes e4m3 alone
    assert sibling_in(selection, Operation.INT8_BF16_KK, H200) is None


def few_rows(tiles, warps):
    """Give a kernel of few rows of packed weights."""
    knobs = {"blocks": 1, "columns": 8, "stages": 2, "tiles": tiles, "warps": warps}
    return Candidate("weight_only", PlainKnobs(tuple(knobs.items())))


def test_where_a_siblings_kernel_lacks_shared_memory_another_of_its_kernels_answers():
    packed, other = Operation.BF16_INT4_G128_KK, Operation.BF16_INT4_G32_KK
    wide, narrow = few_rows(7, 12), few_rows(4, 16)
    selection = whole(packed, narrow, wide)
    assert isinstance(check(wide, other, H200), Rejected)
    assert sibling_in(selection, other, H200) is packed
    found = as_sibling(selection, packed, other, H200)
    assert set(found.kernels) == {KernelKey(other, narrow), fallback_key(other, H200)}
    (section,) = found.table.sections
    ((row,),) = [x.rows for x in section.ladders]
    named_kernels = [found.kernels[x] for x in (row.kernel, row.runner_up, *section.grid.columns[0].kernels)]
    assert named_kernels == [KernelKey(other, narrow)] * 3
    assert (row.provenance, row.runner_up_us) == ("predicted", row.time_us)
    assert not table_fault(found.table, [FamilyKernel.of(key) for key in found.kernels])
