"""What our Hopper kernels take from inside quack: it is little, stated, and still as it was."""

import ast
import inspect
import textwrap

import pytest
from cutlass import BFloat16, Float32
from quack.gemm_default_epi import GemmDefaultSm90
from quack.gemm_sm90 import GemmSm90

from aot.core.target import load_target
from aot.families import (
    _partial_tile_kernel,
    _prefetch_b_kernel,
    _quack_internals,
    _quack_sm90_kernel,
    _ragged_epilogue,
    _sm90_mainloop,
    _sm90_multiply,
    _sm90_promoted,
    _sm90_residual,
    _stream_k_kernel,
)
from aot.families._next_start import Places
from aot.families._partial_tile_kernel import GemmPartialTileSm90
from aot.families._prefetch_b_kernel import GemmPrefetchBSm90
from aot.families._quack_internals import CALLED, REPLACED, REPLACED_INSTRUCTION, InstructionSm90, choose_layouts

pytestmark = pytest.mark.slow

MODULES = (
    _quack_sm90_kernel,
    _ragged_epilogue,
    _sm90_multiply,
    _sm90_promoted,
    _sm90_residual,
    _sm90_mainloop,
    _partial_tile_kernel,
    _prefetch_b_kernel,
    _stream_k_kernel,
)
OF_THE_EPILOGUE = {
    "epi_begin": [
        "params",
        "epi_smem_tensors",
        "epi_tile",
        "tiled_copy_t2r",
        "tiled_copy_r2s",
        "tile_coord_mnkl",
        "varlen_manager",
        "epilogue_barrier",
        "tidx",
        "tRS_rD_layout",
    ],
    "epi_begin_loop": ["params", "epi_tensors", "epi_coord"],
    "epi_load_acc_subtile": ["tRS_rAcc", "tRS_rD", "epi_coord", "no_release"],
    "epilogue": [
        "params",
        "epi_smem_tensors",
        "epi_pipeline",
        "epi_store_pipeline",
        "epi_read_state",
        "epi_producer_state",
        "epi_tile",
        "load_acc_subtile",
        "tRS_rD",
        "tRS_rC",
        "tiled_copy_t2r",
        "tiled_copy_r2s",
        "tRS_sD",
        "tiled_copy_s2r",
        "tSR_rC",
        "tSR_sC",
        "copy_D",
        "copy_C",
        "tile_coord_mnkl",
        "varlen_manager",
        "epilogue_barrier",
        "tile_scheduler",
        "tidx",
        "is_tma_warp",
    ],
    "epi_retile_acc": ["acc", "tRS_rD", "tiled_copy_r2s"],
    "epilog_gmem_copy_and_partition": ["atom", "mD_mn", "tile_shape_mn", "epi_tile", "sD", "tile_coord_mnkl"],
    "epilog_smem_store_and_partition": ["tiled_mma", "d_layout", "dtype", "sD", "tidx"],
}
"""The methods of quack's that ragged and whole tiles need otherwise, with their parameters."""
OF_THE_SCHEDULER = {
    "get_scheduler_class": ["varlen_m"],
    "get_scheduler_arguments": ["mA", "mB", "mD", "scheduler_args", "varlen_args", "epilogue_args"],
    "epilogue_split_k": [
        "params",
        "epi_fn",
        "load_acc_subtile",
        "tRS_rD",
        "epi_tile",
        "epi_read_state",
        "epi_producer_state",
        "epi_store_pipeline",
        "tile_coord_mnkl",
        "epilogue_barrier",
        "tidx",
        "is_tma_warp",
    ],
}
"""The methods of quack's that a split tail needs otherwise, with their parameters."""
OVERRIDDEN = {"__init__", "__call__", "kernel", "mma", *OF_THE_EPILOGUE, *OF_THE_SCHEDULER}
"""Methods of quack's that our classes replace; any other name of ours must not be one of quack's."""
ONLY_IN_KERNEL = {"__call__", "kernel"}
"""Methods of quack's that our kernels replace, so that what these read need not be set."""


def tree(function):
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def attributes(node, of, context):
    """List the names x of `of.x` that are written (ast.Store) or read (ast.Load)."""
    found = [x for x in ast.walk(node) if isinstance(x, ast.Attribute) and isinstance(x.ctx, context)]
    return {x.attr for x in found if isinstance(x.value, ast.Name) and x.value.id == of}


def read_by_methods(cls, without):
    """List the attributes of `self` that the methods of a class and its bases read."""
    methods = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    functions = [inspect.unwrap(getattr(x, "__func__", x)) for name, x in methods.items() if name not in without]
    return set().union(*(attributes(tree(x), "self", ast.Load) for x in functions if inspect.isfunction(x)))


def not_set(call, cls, ours):
    """List what a class's `__call__` sets, its other methods read, and our function does not set."""
    return (attributes(tree(call), "self", ast.Store) & read_by_methods(cls, ONLY_IN_KERNEL)) - attributes(
        tree(ours), "gemm", ast.Store
    )


@pytest.mark.parametrize(("name", "parameters"), [*CALLED.items(), *REPLACED.items(), *REPLACED_INSTRUCTION.items()])
def test_the_private_methods_take_what_they_took(name, parameters):
    assert list(inspect.signature(getattr(GemmSm90, name)).parameters) == parameters, f"quack changed GemmSm90.{name}"


@pytest.mark.parametrize(("name", "parameters"), [*OF_THE_EPILOGUE.items(), *OF_THE_SCHEDULER.items()])
def test_the_overridden_methods_take_what_they_took(name, parameters):
    found = list(inspect.signature(getattr(GemmDefaultSm90, name)).parameters)
    assert found == ["self", *parameters], f"quack changed GemmDefaultSm90.{name}"


def test_the_private_methods_are_the_stated_ones():
    called = {x for x in attributes(tree(choose_layouts), "gemm", ast.Load) if x.startswith("_")}
    assert called == set(CALLED)
    for ours, stated in ((_quack_internals.PieceSm90, REPLACED), (InstructionSm90, REPLACED_INSTRUCTION)):
        assert {x for x in vars(ours) if x.startswith("_") and not x.startswith("__")} == set(stated)


def test_everything_that_quacks_methods_read_of_a_call_is_set():
    assert not_set(GemmSm90.__call__, GemmDefaultSm90, choose_layouts) == set(), "choose_layouts must set these too"


class Changed:
    """A quack whose call sets one thing more, which another method reads."""

    def __call__(self):
        self.a_dtype = self.new = self.of_the_kernel = 1

    def kernel(self):
        return self.of_the_kernel

    def mma(self):
        return self.new, self.a_dtype


def test_an_attribute_that_is_new_is_found():
    assert not_set(Changed.__call__, Changed, choose_layouts) == {"new"}


def our_classes():
    return {
        x
        for module in (*MODULES, _quack_internals)
        for x in vars(module).values()
        if inspect.isclass(x) and issubclass(x, GemmSm90)
    }


def test_our_names_are_none_of_quacks():
    ours = [x for x in our_classes() if x.__module__.startswith("aot.")]
    assert len(ours) == 11
    names = {name for x in ours for name in vars(x)} - {"__module__", "__doc__", "__firstlineno__"}
    instance = GemmDefaultSm90(Float32, BFloat16, (64, 64), (1, 1, 1))
    clashes = {name for name in names if hasattr(instance, name)}
    assert (
        clashes - OVERRIDDEN - {*REPLACED, *REPLACED_INSTRUCTION} - {"EpilogueParams"} == set()
    )  # EpilogueParams: quack makes one for every subclass


def test_no_private_name_of_quacks_is_used_in_our_kernels():
    ours = {name for x in our_classes() if x.__module__.startswith("aot.") for name in vars(x)}
    for module in MODULES:
        used = {x.attr for x in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(x, ast.Attribute)}
        private = {x for x in used if x.startswith("_") and not x.startswith("__")}
        assert private <= ours, module.__name__


def test_only_one_warp_loads_unless_b_is_ahead():
    shape = (Float32, BFloat16, (64, 64), (1, 1, 1))
    assert GemmPartialTileSm90(*shape).num_ab_load_warps == 1
    places = Places.of(load_target("h200"), 1)
    gemm = GemmPrefetchBSm90(*shape, prefetched=0, places=places)
    assert (gemm.num_ab_load_warps, gemm.prefetched, gemm.places.num_ctas) == (2, 0, 132)
    assert GemmPrefetchBSm90(*shape, prefetched=1, places=places, has_residual=True).num_ab_load_warps == 3


@pytest.mark.parametrize(
    ("c", "varlen", "found"), [(1, None, "a C and no varying"), (None, 1, "no C and some varying")]
)
def test_what_the_kernel_has_no_code_for_is_refused(c, varlen, found):
    gemm = GemmPartialTileSm90(Float32, BFloat16, (64, 64), (1, 1, 1))
    with pytest.raises(TypeError, match=f"GemmPartialTileSm90 got {found} lengths; expected no C and no varying"):
        gemm(None, None, None, c, None, None, varlen, None)


def test_a_kernel_with_a_residual_is_not_called_without():
    places = Places.of(load_target("h200"), 1)
    gemm = GemmPrefetchBSm90(Float32, BFloat16, (64, 64), (1, 1, 1), prefetched=1, places=places, has_residual=True)
    with pytest.raises(TypeError, match="GemmPrefetchBSm90 got no C and no varying lengths; expected a C"):
        gemm(None, None, None, None, None, None, None, None)
