from dataclasses import replace

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.operation import Operation
from aot.core.table_check import table_fault
from aot.core.target import load_target
from aot.select.reuse.twin_ladders import with_twins_ladders
from aot.select.selection import FamilyKernel
from aot.select.selector import fallback_key
from tests.unit.accepted import named
from tests.unit.selections import PLAIN, SELECTION

BF16, FP16 = Operation.BF16_KK, Operation.FP16_KK
SMALL = named("sm90_quack_64x64_c1x1_pingpong")
H200 = load_target("h200")
KERNELS = (
    fallback_key(BF16, H200),
    fallback_key(FP16, H200),
    *(KernelKey(x, y) for x in (BF16, FP16) for y in (PLAIN, SMALL)),
)


def row(kernel, other, provenance="measured", time_us=7.0, general=None, library_us=None):
    general = kernel if general is None else general
    return Row(kernel, general, time_us, provenance, other, time_us + 1, library_us=library_us)


def section(operation, ladders, kernel):
    grid = Grid((1,), (1,), (Column((1,), (kernel,)),))
    return Section(operation, ladders, grid, 0 if operation is BF16 else 1)


def selection(kernels, *sections):
    return replace(SELECTION, kernels=kernels, table=DispatchTable(sections))


def sections(own):
    """Make a section of bf16, of two weights that were timed, and one of fp16 with these ladders."""
    first = Ladder(64, 64, (16, 64), (row(2, 3, library_us=9.0), row(3, 2, general=0)))
    second = Ladder(64, 128, (16,), (row(3, 2),))
    return section(BF16, (first, second), 2), section(FP16, own, 4)


def test_a_weight_that_was_not_timed_has_its_twins_ladder_and_one_that_was_its_own():
    predicted = Ladder(64, 64, (64,), (row(4, 4, "predicted"),))
    timed = Ladder(64, 128, (16, 32), (row(4, 5, time_us=3.0), row(4, 5, "predicted")))
    plain, other = sections((predicted, timed))
    found = with_twins_ladders(selection(KERNELS, plain, other))
    moved = Ladder(64, 64, (16, 64), (row(4, 5, "predicted"), row(5, 4, "predicted", general=1)))
    assert found.table.sections == (plain, replace(other, ladders=(moved, timed)))
    assert table_fault(found.table, [FamilyKernel.of(x) for x in KERNELS]) == ""
    assert with_twins_ladders(found) == found


def test_a_ladder_with_a_kernel_that_the_twin_has_not_stays():
    predicted = Ladder(64, 128, (64,), (row(4, 4, "predicted"),))
    plain, other = sections((predicted,))
    assert with_twins_ladders(selection(KERNELS[:5], plain, other)).table.sections == (plain, other)


def test_a_section_takes_none_of_one_behind_it_or_for_other_groups():
    plain, other = sections((Ladder(64, 64, (64,), (row(4, 4, "predicted"),)),))
    turned = selection(KERNELS, other, plain)
    assert with_twins_ladders(turned).table.sections[0] == other
    assert with_twins_ladders(selection(KERNELS, other)).table.sections == (other,)
