"""What the GEMMs with our epilogues take from inside quack, and that none is another's class."""

import inspect

import pytest
from cutlass import BFloat16, Float8E4M3FN, Float8E5M2, Float32
from quack.epilogue.ops import VecLoad
from quack.gemm_default_epi import GemmDefaultSm90, GemmDefaultSm100
from quack.gemm_sm100 import GemmSm100

from aot.core.operation import Operation
from aot.families._epilogue_kernel import EpilogueMixin, GemmEpilogueSm90, GemmEpilogueSm100, RowVector
from aot.families._quack_internals import REPLACED_SM100
from aot.families._quack_sm100_kernel import GemmSplitSm100
from tests.unit.families.test_quack_internals import OF_THE_EPILOGUE, OF_THE_SCHEDULER

pytestmark = pytest.mark.slow

OVERRIDDEN = {
    "epi_to_underlying_arguments": ["self", "args", "loc", "ip"],
    "epi_begin": ["self", *OF_THE_EPILOGUE["epi_begin"]],
    "epi_visit_subtile": ["self", "params", "epi_loop_tensors", "tRS_rD", "tRS_rC"],
    "epilogue_split_k": ["self", *OF_THE_SCHEDULER["epilogue_split_k"]],
    "epi_smem_bytes": ["args", "cta_tile_shape_mnk", "epi_tile", "warp_shape_mnk"],
}
"""The methods of quack's GEMMs that ours replace, with their parameters."""
DESCRIBED = {"__init__", "_epi_ops", "_extra_param_fields", "EpilogueArguments", "EpilogueParams"}
"""What every subclass of quack's says of its epilogue. Source: quack epilogue/mixin.py."""
OF_PYTHON = {"__module__", "__doc__", "__firstlineno__", "__static_attributes__"}


@pytest.mark.parametrize("base", [GemmDefaultSm90, GemmDefaultSm100])
@pytest.mark.parametrize(("name", "parameters"), OVERRIDDEN.items())
def test_the_overridden_methods_take_what_they_took(base, name, parameters):
    assert list(inspect.signature(getattr(base, name)).parameters) == parameters, f"quack changed {name}"


@pytest.mark.parametrize(("name", "parameters"), REPLACED_SM100.items())
def test_the_private_method_takes_what_it_took(name, parameters):
    assert list(inspect.signature(getattr(GemmSm100, name)).parameters) == parameters, f"quack changed GemmSm100.{name}"


@pytest.mark.parametrize("base", [GemmDefaultSm90, GemmDefaultSm100])
def test_our_names_are_none_of_quacks(base):
    classes = (EpilogueMixin, GemmEpilogueSm90, GemmEpilogueSm100, GemmSplitSm100)
    ours = {name for x in classes for name in vars(x)} - OF_PYTHON
    ours |= {"operation", "swap_ab", "element_a", "element_b"}
    instance = base(Float32, BFloat16, (128, 64), (1, 1, 1))
    assert {name for name in ours if hasattr(instance, name)} == {*OVERRIDDEN, *DESCRIBED}


def test_vectors_are_read_as_quack_reads_them():
    for begin_loop in (VecLoad.begin_loop, RowVector.begin_loop):
        assert list(inspect.signature(begin_loop).parameters) == ["self", "gemm", "state", "epi_coord"]


def test_every_gemm_has_a_class_of_its_own():
    """quack's own registry would give the second architecture the first one's class."""
    assert not issubclass(GemmEpilogueSm90, GemmDefaultSm100)
    assert not issubclass(GemmEpilogueSm100, GemmDefaultSm90)
    assert GemmEpilogueSm90.EpilogueParams is not GemmDefaultSm90.EpilogueParams
    assert {"row_scale", "column_bias", "scale_d", "split_k_workspace"} <= set(
        GemmEpilogueSm100.EpilogueParams.__dataclass_fields__
    )


def test_two_types_of_8_bits_are_told_apart_where_the_instruction_is_described():
    gemm = GemmEpilogueSm100(
        Float32,
        Float8E5M2,
        (128, 64),
        (1, 1, 1),
        operation=Operation.E5M2E4M3_BF16_KK,
        swap_ab=False,
        element_b=Float8E4M3FN,
    )
    assert (gemm.element_a, gemm.element_b) == (Float8E5M2, Float8E4M3FN)
