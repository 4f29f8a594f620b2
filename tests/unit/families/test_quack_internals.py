"""What our Hopper kernels take from inside quack: it is little, stated, and still as it was."""

import ast
import inspect
import textwrap

import pytest
from cutlass import BFloat16, Float32
from quack.gemm_default_epi import GemmDefaultSm90
from quack.gemm_sm90 import GemmSm90

from aot.families import _partial_tile_kernel, _prefetch_b_kernel, _quack_sm90_kernel, _sm90_mainloop, _sm90_multiply
from aot.families._partial_tile_kernel import GemmPartialTileSm90
from aot.families._prefetch_b_kernel import GemmPrefetchBSm90
from aot.families._quack_internals import PRIVATE, choose_layouts

MODULES = (_quack_sm90_kernel, _sm90_multiply, _sm90_mainloop, _partial_tile_kernel, _prefetch_b_kernel)
OVERRIDDEN = {"__init__", "__call__", "kernel", "mma"}
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


@pytest.mark.parametrize("name", PRIVATE)
def test_the_private_methods_take_what_they_took(name):
    assert list(inspect.signature(getattr(GemmSm90, name)).parameters) == PRIVATE[name], (
        f"quack changed GemmSm90.{name}"
    )


def test_the_private_methods_are_the_stated_ones():
    assert {name for name in attributes(tree(choose_layouts), "gemm", ast.Load) if name.startswith("_")} == set(PRIVATE)


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
    return {x for module in MODULES for x in vars(module).values() if inspect.isclass(x) and issubclass(x, GemmSm90)}


def test_our_names_are_none_of_quacks():
    ours = [x for x in our_classes() if x.__module__.startswith("aot.")]
    assert len(ours) == 5
    names = {name for x in ours for name in vars(x)} - {"__module__", "__doc__", "__firstlineno__"}
    instance = GemmDefaultSm90(Float32, BFloat16, (64, 64), (1, 1, 1))
    clashes = {name for name in names if hasattr(instance, name)}
    assert clashes - OVERRIDDEN - {"EpilogueParams"} == set()  # EpilogueParams: quack makes one for every subclass


def test_no_private_name_of_quacks_is_used_in_our_kernels():
    ours = {name for x in our_classes() if x.__module__.startswith("aot.") for name in vars(x)}
    for module in MODULES:
        used = {x.attr for x in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(x, ast.Attribute)}
        private = {x for x in used if x.startswith("_") and not x.startswith("__")}
        assert private <= ours, module.__name__


def test_only_one_warp_loads_unless_b_is_ahead():
    shape = (Float32, BFloat16, (64, 64), (1, 1, 1))
    assert GemmPartialTileSm90(*shape).num_ab_load_warps == 1
    gemm = GemmPrefetchBSm90(*shape, prefetched=0, num_sms=132)
    assert (gemm.num_ab_load_warps, gemm.prefetched, gemm.num_sms) == (2, 0, 132)


@pytest.mark.parametrize(("c", "varlen"), [(1, None), (None, 1)])
def test_what_the_kernel_has_no_code_for_is_refused(c, varlen):
    gemm = GemmPartialTileSm90(Float32, BFloat16, (64, 64), (1, 1, 1))
    with pytest.raises(TypeError, match="GemmPartialTileSm90 got a C or varying lengths; expected None for both"):
        gemm(None, None, None, c, None, None, varlen, None)
