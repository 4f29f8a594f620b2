"""What the GEMMs of int8 and tf32 take from quack, and which class computes what."""

import inspect
from functools import partial

import pytest
from quack.gemm_default_epi import GemmDefaultSm90, GemmDefaultSm100

from aot.core.operation import Operation
from aot.families._epilogue_kernel import GemmEpilogueSm90, GemmEpilogueSm100
from aot.families._quack_classes import sm90_class, sm100_class
from aot.families._quack_int8_kernel import GemmEpilogueInt8Sm90, GemmEpilogueInt8Sm100, GemmInt8Sm90
from aot.families._quack_sm90_kernel import GemmSplitSm90
from aot.families._quack_sm100_kernel import GemmSplitSm100
from aot.families._quack_tf32_kernel import GemmTf32Sm90

pytestmark = pytest.mark.slow

CLASSES = {
    Operation.BF16_KK: (GemmSplitSm90, GemmSplitSm100),
    Operation.BF16_KK_GELU: (GemmEpilogueSm90, GemmEpilogueSm100),
    Operation.E4M3_BF16_KK: (GemmEpilogueSm90, GemmEpilogueSm100),
    Operation.INT8_INT32_KK: (GemmInt8Sm90, GemmSplitSm100),
    Operation.INT8_BF16_KK: (GemmEpilogueInt8Sm90, GemmEpilogueInt8Sm100),
    Operation.INT8_FP16_KK: (GemmEpilogueInt8Sm90, GemmEpilogueInt8Sm100),
    Operation.TF32_KK: (GemmTf32Sm90, GemmSplitSm100),
}
TAKEN = [
    (GemmDefaultSm90, "make_tma_load_atoms_and_tensors", ["self", "mA", "mB", "a_smem_layout", "b_smem_layout"]),
    (GemmDefaultSm90, "mma", ["self", "ab_pipeline", "ab_read_state", "mma_fn", "acc", "acc_slow"]),
    (GemmDefaultSm90, "__call__", ["self", "mA", "mB", "mD", "mC"]),
    (GemmDefaultSm100, "__call__", ["self", "mA", "mB", "mD", "mC"]),
    (GemmDefaultSm100, "epilog_tmem_copy_and_partition", ["self", "tidx", "tAcc", "epi_tile", "use_2cta_instrs"]),
    (
        GemmDefaultSm100,
        "epi_load_acc_subtile",
        ["self", "tiled_copy_t2r", "tiled_copy_r2s", "tTR_tAcc", "tTR_rAcc", "tRS_rD"],
    ),
]


@pytest.mark.parametrize(("operation", "classes"), CLASSES.items())
def test_types_and_epilogues_choose_the_class(operation, classes):
    made = (sm90_class(operation, swap_ab=False), sm100_class(operation, swap_ab=False))
    assert tuple(x.func if isinstance(x, partial) else x for x in made) == classes


@pytest.mark.parametrize(("base", "name", "parameters"), TAKEN)
def test_the_overridden_methods_begin_with_what_they_began_with(base, name, parameters):
    found = list(inspect.signature(getattr(base, name)).parameters)[: len(parameters)]
    assert found == parameters, f"quack changed {name}"


def test_int8s_epilogue_comes_before_its_sums():
    order = GemmEpilogueInt8Sm90.__mro__
    assert order.index(GemmEpilogueSm90) < order.index(GemmInt8Sm90) < order.index(GemmSplitSm90)
