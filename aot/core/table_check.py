"""The one check of a dispatch table, of a selection and of a manifest, when it is read and when it is written."""

from __future__ import annotations

from itertools import groupby
from math import inf
from operator import lt
from typing import TYPE_CHECKING, Protocol

from aot.core.alignment import has_sections_between_sectors
from aot.core.dispatch import LOADS, MAX_STEP_KERNELS
from aot.core.formats import ALIGNMENT_BYTES
from aot.core.measurement import Provenance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aot.core.dispatch import Column, DispatchTable, Ladder, Row, Section
    from aot.core.operation import Operation

TAKES_ANY = 2
"""Strides of each operand of a kernel that takes any alignment and layout: rows' and columns'."""


class TableKernel(Protocol):
    """What a table may be held against of a kernel: the manifest's kernel has it, a selection's families say it."""

    @property
    def operation(self) -> Operation:
        """What it computes."""

    @property
    def num_strides(self) -> int:
        """Strides that it takes for each operand; 2 of a kernel that takes any alignment and layout."""

    @property
    def m_multiple(self) -> int:
        """What m must be a multiple of."""

    @property
    def n_multiple(self) -> int:
        """What n must be a multiple of."""

    @property
    def load_alignment(self) -> int:
        """Bytes of which the addresses and leading strides of A and B must be multiples."""

    @property
    def store_alignment(self) -> int:
        """The same of D and of what the epilogue reads."""

    @property
    def orders_tiles(self) -> bool:
        """Whether it takes its tiles in an order that it is told."""


def _kernel_fault(kernel: TableKernel, section: Section) -> str:
    """Say why a section may not name a kernel; empty if it may."""
    if kernel.operation != section.operation:
        return f"is for {kernel.operation.tag}"
    loads = section.loads
    if not loads or kernel.num_strides == TAKES_ANY or (kernel.load_alignment <= loads and kernel.store_alignment == 1):
        return ""
    asked = f"A and B aligned to {kernel.load_alignment} bytes and D to {kernel.store_alignment}"
    return f"asks for {asked}; the section gives {loads} and 1"


def _takes_all(kernel: TableKernel) -> bool:
    return (kernel.m_multiple, kernel.n_multiple) == (1, 1)


def _row_fault(row: Row, faults: Sequence[str], kernels: Sequence[TableKernel]) -> str:
    for name, index in (("kernel", row.kernel), ("general kernel", row.general), ("runner-up", row.runner_up)):
        if not 0 <= index < len(kernels):
            return f"its {name} is {index}; there are {len(kernels)} kernels"
        if faults[index]:
            return f"its {name} {index} {faults[index]}"
    if not _takes_all(kernels[row.general]):
        m, n = kernels[row.general].m_multiple, kernels[row.general].n_multiple
        return (
            f"its general kernel {row.general} takes only multiples of {m} in m and {n} in n; it must take all shapes"
        )
    if row.tile_order and not kernels[row.kernel].orders_tiles:
        return f"its tiles are to be taken in order {row.tile_order}; its kernel {row.kernel} has one order alone"
    if row.provenance == Provenance.MEASURED and not 0 < row.time_us < inf:
        return f"it was measured at {row.time_us} us; a time is above 0"
    return ""


def _fallback_fault(section: Section, kernels: Sequence[TableKernel]) -> str:
    if not 0 <= section.fallback < len(kernels):
        return f"the fallback is kernel {section.fallback}; there are {len(kernels)} kernels"
    fallback = kernels[section.fallback]
    if fallback.operation.call != section.operation.call:
        return f"the fallback {section.fallback} is for {fallback.operation.call}"
    if fallback.num_strides != TAKES_ANY or not _takes_all(fallback):
        return f"the fallback {section.fallback} must take both strides of its operands, and all shapes"
    return ""


def _ascends(edges: Sequence[int]) -> bool:
    return bool(edges) and edges[0] >= 1 and all(map(lt, edges, edges[1:]))


def _ladder_fault(ladder: Ladder, kernel_faults: Sequence[str], kernels: Sequence[TableKernel]) -> str:
    place = f"ladder n {ladder.n} k {ladder.k}"
    if not _ascends(ladder.m_edges):
        return f"{place}: its edges in m must ascend from 1 or more, and not be empty"
    if len(ladder.rows) != len(ladder.m_edges):
        return f"{place}: {len(ladder.rows)} rows for {len(ladder.m_edges)} edges in m"
    faults = ((i, _row_fault(row, kernel_faults, kernels)) for i, row in enumerate(ladder.rows))
    return next((f"{place}, row {i}: {fault}" for i, fault in faults if fault), "")


def takes_aligned(kernel: TableKernel) -> bool:
    """Say whether a kernel takes every aligned problem: what it needs n to be a multiple of, D's alignment gives."""
    aligned = kernel.operation.d.num_in(ALIGNMENT_BYTES)
    return kernel.m_multiple == 1 and aligned % kernel.n_multiple == 0


def _step_fault(kernel: TableKernel, section: Section) -> str:
    """Say why no step of a section's grid may name a kernel, which takes all shapes of it; empty if one may."""
    fault = _kernel_fault(kernel, section)
    if not fault and not (_takes_all(kernel) if section.loads else takes_aligned(kernel)):
        m, n = kernel.m_multiple, kernel.n_multiple
        shapes = "all shapes" if section.loads else "all aligned shapes"
        return f"takes only multiples of {m} in m and {n} in n; it must take {shapes}"
    return fault


def _column_fault(column: Column, step_faults: Sequence[str], kernels: Sequence[TableKernel]) -> str:
    if not _ascends(column.m_edges):
        return "its edges in m must ascend from 1 or more, and not be empty"
    if len(column.m_edges) != len(column.kernels):
        return f"{len(column.kernels)} kernels for {len(column.m_edges)} edges in m"
    for index in sorted(set(column.kernels)):
        if not 0 <= index < len(kernels):
            return f"it names kernel {index}; there are {len(kernels)} kernels"
        if step_faults[index]:
            return f"its kernel {index} {step_faults[index]}"
    return _orders_fault(column, kernels)


def _orders_fault(column: Column, kernels: Sequence[TableKernel]) -> str:
    orders = column.tile_orders
    if orders is None:
        return ""
    if len(orders) != len(column.kernels):
        return f"{len(orders)} orders of tiles for {len(column.kernels)} kernels"
    for order, index in zip(orders, column.kernels, strict=True):
        if order and not kernels[index].orders_tiles:
            return f"tiles are to be taken in order {order}; its kernel {index} has one order alone"
    return ""


def _grid_fault(section: Section, kernels: Sequence[TableKernel]) -> str:
    grid = section.grid
    for axis, edges in (("n", grid.n_edges), ("k", grid.k_edges)):
        if not _ascends(edges):
            return f"grid: its edges in {axis} must ascend from 1 or more, and not be empty"
    count = len(grid.n_edges) * len(grid.k_edges)
    if count != len(grid.columns):
        return f"the grid has {len(grid.columns)} columns, its edges give {count}"
    if len(kernels) > MAX_STEP_KERNELS:
        return f"there are {len(kernels)} kernels; a grid tells {MAX_STEP_KERNELS} apart"
    step_faults = [_step_fault(kernel, section) for kernel in kernels]
    faults = ((i, _column_fault(column, step_faults, kernels)) for i, column in enumerate(grid.columns))
    fault = next((f"grid, column {i}: {fault}" for i, fault in faults if fault), "")
    choices = {choice for column in grid.columns for choice in column.choices}
    if not fault and len(choices) > MAX_STEP_KERNELS:
        return f"the grid has kernels in {len(choices)} orders of tiles; it tells {MAX_STEP_KERNELS} apart"
    return fault


def _section_fault(section: Section, kernels: Sequence[TableKernel], *, has_grid: bool) -> str:
    if [(x.n, x.k) for x in section.ladders] != sorted({(x.n, x.k) for x in section.ladders}):
        return "its ladders must ascend by (n, k), each once"
    if section.loads and section.loads not in LOADS:
        return f"it is for operands of {section.loads} bytes; expected one of {', '.join(map(str, LOADS))}"
    if section.between_sectors:
        is_more = section.loads or section.batch_invariant or section.num_groups > 1
        if is_more or not has_sections_between_sectors(section.operation):
            return "it is for rows between sectors; expected it of one aligned product, of any order of sums"
    faults = [_fallback_fault(section, kernels), _grid_fault(section, kernels) if has_grid else ""]
    kernel_faults = [_kernel_fault(kernel, section) for kernel in kernels]
    faults += [_ladder_fault(ladder, kernel_faults, kernels) for ladder in section.ladders]
    return next(filter(None, faults), "")


def _runs(sections: Sequence[Section]) -> Iterator[tuple[Operation, list[Section]]]:
    return ((operation, list(run)) for operation, run in groupby(sections, key=lambda x: x.operation))


def table_fault(table: DispatchTable, kernels: Sequence[TableKernel], *, has_grids: bool = True) -> str:
    """Say what is wrong with a table, with the section and the row; empty if nothing is.

    Args:
        table: what is to be looked up.
        kernels: by the index that the table uses.
        has_grids: whether its sections have grids, which a manifest's file does not have.
    """
    if not table.sections or not kernels:
        return f"{len(kernels)} kernels in {len(table.sections)} sections; expected at least one of each"
    keys = [section.key for section in table.sections]
    if len(set(keys)) != len(keys):
        return f"{max(keys, key=keys.count)[0].tag}: the table has more than one section for it"
    for operation, run in _runs(table.sections):
        order = [x.key[1:] for x in run]
        if order != sorted(order) or sum(x.operation == operation for x in table.sections) != len(run):
            order_text = "the aligned ones first, of these the general ones, by numbers of groups"
            return f"{operation.tag}: its sections must follow each other, {order_text}"
    faults = ((section, _section_fault(section, kernels, has_grid=has_grids)) for section in table.sections)
    return next((f"{section.operation.tag}: {fault}" for section, fault in faults if fault), "")
