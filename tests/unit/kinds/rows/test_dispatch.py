from dataclasses import replace

import pytest

from aot.core.dispatch import Tier
from aot.kinds.rows.candidate import RowLimits
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable, look_up_rows, row_table_fault
from aot.kinds.rows.problem import RowProblem
from tests.runtime.rows import ANY, SCALAR, SMALL, WIDE, row_kernel

NORM = row_operation("bf16_rms_norm")
KERNELS = [row_kernel(NORM, x) for x in (SCALAR, SMALL, WIDE, ANY)]
LIMITS = [kernel.limits for kernel in KERNELS]


def step(rows, kernel, time_us=1.0, provenance="predicted"):
    return RowStep(rows, kernel, time_us, provenance)


SECTION = RowSection(
    NORM,
    (
        RowColumn(1024, (step(16, 1), step(256, 2))),
        RowColumn(16384, (step(64, 2),)),
        RowColumn(65536, (step(1, 3), step(1024, 3))),
    ),
    0,
)
TABLE = RowTable((SECTION,))


@pytest.mark.parametrize(
    ("rows", "cols", "kernel", "index"),
    [
        (1, 8, 1, 0),
        (16, 1024, 1, 0),
        (17, 1024, 2, 1),
        (100_000, 1024, 2, 1),
        (1, 1032, 2, 2),
        (1, 16384, 2, 2),
        (1, 16392, 3, 3),
        (2, 1 << 30, 3, 4),
    ],
)
def test_both_extents_are_rounded_up(rows, cols, kernel, index):
    found = look_up_rows(SECTION, RowProblem(NORM, rows, cols), LIMITS, 16)
    assert (found.kernel, found.tier, found.index) == (kernel, Tier.GRID, index)


@pytest.mark.parametrize(("cols", "alignment"), [(1023, 16), (1024, 8), (1024, 1), (4, 16)])
def test_what_the_kernel_does_not_take_the_fallback_does(cols, alignment):
    found = look_up_rows(SECTION, RowProblem(NORM, 3, cols), LIMITS, alignment)
    assert (found.kernel, found.tier, found.index) == (0, Tier.FALLBACK, 0)


def test_a_narrow_kernel_at_the_end_leaves_what_is_wider_to_the_fallback():
    narrow = replace(SECTION, columns=SECTION.columns[:1])
    assert look_up_rows(narrow, RowProblem(NORM, 1, 2048), LIMITS, 16).kernel == 0
    assert look_up_rows(narrow, RowProblem(NORM, 17, 2048), LIMITS, 16).kernel == 2


def test_a_sound_table_has_no_fault():
    assert row_table_fault(TABLE, KERNELS) == ""
    assert row_table_fault(RowTable(), []) == ""


def with_columns(*columns):
    return RowTable((replace(SECTION, columns=columns),))


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (RowTable((SECTION, SECTION)), "bf16_rms_norm: the table has more than one section for it"),
        (RowTable((replace(SECTION, fallback=9),)), "bf16_rms_norm: its fallback is kernel 9 of 4"),
        (RowTable((replace(SECTION, fallback=1),)), "its fallback, kernel 1, does not take all problems"),
        (
            RowTable((replace(SECTION, operation=row_operation("fp16_rms_norm")),)),
            "its fallback is kernel 0, which is for bf16_rms_norm",
        ),
        (with_columns(), "its edges in cols must ascend, and not be empty"),
        (with_columns(SECTION.columns[1], SECTION.columns[0]), "its edges in cols must ascend"),
        (with_columns(RowColumn(64, ())), "column of 64: its edges in rows must ascend, and not be empty"),
        (with_columns(RowColumn(64, (step(8, 1), step(8, 1)))), "column of 64: its edges in rows must ascend"),
        (with_columns(RowColumn(64, (step(8, 4),))), "column of 64: it names kernel 4 of 4"),
        (
            with_columns(RowColumn(2048, (step(8, 1),))),
            "column of 2048: its kernel 1 takes up to 1024 columns; it must take 2048",
        ),
        (
            with_columns(RowColumn(64, (step(8, 1, 0.0, "measured"),))),
            "column of 64: the step of 8 rows was measured at 0.0 us; a time is above 0",
        ),
    ],
)
def test_a_fault_is_named(table, fault):
    assert fault in row_table_fault(table, KERNELS)


def test_limits_that_are_those_of_a_fallback_take_all():
    assert KERNELS[0].limits == RowLimits()
    assert KERNELS[0].key.name == KERNELS[0].name
