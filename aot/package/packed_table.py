"""How a manifest writes a dispatch table: by columns, in the digits of `number_text`, each shared grid once.

A list has an entry for each column of a grid or each ladder, whose numbers are those of its steps or rows. A ladder
that is another type's stands once: where a section's entries are empty, the ladder of this n and k is that of the first
section before it with the same grid that has one, and all its rows are predicted. The wheel's Python reads single
columns and ladders: templates/python/aot_gemm/_packed.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, TypeVar

from aot.core.constraints import Extent, Index, Microseconds, Range
from aot.core.dispatch import MAX_STEP_M, NS_PER_US, Column, DispatchTable, Grid, Ladder, Row, Scope, Section
from aot.core.measurement import Provenance
from aot.core.operation import Operation
from aot.core.strict_json import DecodeError, decode
from aot.core.tile_order import TileOrder
from aot.package.number_text import Numbers, number_text, read_numbers, signed, unsigned
from aot.package.shared_grids import share_grids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")

PROVENANCES = tuple(Provenance)
"""By their numbers."""

OWN = frozenset({"provenances", "library"})
"""What a ladder has of its own that is another section's otherwise."""


@dataclass(frozen=True)
class PackedGrid:
    """A grid, whose kernels are numbers of places in `PackedSection.kernels`."""

    n_edges: tuple[Extent, ...]
    k_edges: tuple[Extent, ...]
    m_edges: tuple[Annotated[int, Range(1, MAX_STEP_M)], ...]
    """Those of all columns, ascending."""
    gaps: tuple[Numbers, ...]
    """Of each edge of a column, how many places of `m_edges` it is past the edge before; past one before the first."""
    kernels: tuple[Numbers, ...]
    tile_orders: tuple[Numbers, ...]
    """Empty for a column that has none."""


@dataclass(frozen=True)
class PackedLadders:
    """The ladders of a section. All texts of one that is another section's are empty."""

    n: tuple[Extent, ...]
    k: tuple[Extent, ...]
    gaps: tuple[Numbers, ...]
    """Of each edge of m, how far it is past the edge before, or past 0."""
    kernels: tuple[Numbers, ...]
    """Places in `PackedSection.kernels`."""
    generals: tuple[Numbers, ...]
    """0 where it is the row's kernel, else 1 and its place."""
    tile_orders: tuple[Numbers, ...]
    """0 where there is none, else 1 and the order."""
    provenances: tuple[Numbers, ...]
    """Places in `PROVENANCES`."""
    times: tuple[Numbers, ...]
    """In nanoseconds, `signed`: how much more than in the row before, or than 0."""
    runners_up: tuple[Numbers, ...]
    """Places in `PackedSection.kernels`."""
    margins: tuple[Numbers, ...]
    """In nanoseconds, `signed`: how much more time the runner-up takes than the kernel."""
    library: tuple[Numbers, ...]
    """0 where the library was not timed, else 1 and its time less the kernel's in nanoseconds, `signed`."""


@dataclass(frozen=True)
class PackedSection:
    """A section."""

    operation: Operation
    kernels: tuple[Index, ...]
    """The manifest's kernels that it names, those of its grid first."""
    grid: Index
    """Which of `PackedTable.grids` is its own."""
    ladders: PackedLadders
    fallback: Index
    scope: Scope | None = None


@dataclass(frozen=True)
class PackedTable:
    """A dispatch table."""

    grids: tuple[PackedGrid, ...]
    sections: tuple[PackedSection, ...]


def _packed_grid(grid: Grid) -> PackedGrid:
    m_edges = tuple(sorted({m for column in grid.columns for m in column.m_edges}))
    places = {m: place for place, m in enumerate(m_edges)}

    def gaps(column: Column) -> str:
        return number_text(y - x for x, y in pairwise((-1, *(places[m] for m in column.m_edges))))

    return PackedGrid(
        n_edges=grid.n_edges,
        k_edges=grid.k_edges,
        m_edges=m_edges,
        gaps=tuple(map(gaps, grid.columns)),
        kernels=tuple(number_text(column.kernels) for column in grid.columns),
        tile_orders=tuple(number_text(column.tile_orders or ()) for column in grid.columns),
    )


def _nanoseconds(time_us: float) -> int:
    """Return a time of a table in nanoseconds, of which it has a whole number: `aot select` rounds it.

    Raises:
        DecodeError: it has not.
    """
    found = round(time_us * NS_PER_US)
    if found / NS_PER_US != time_us:
        raise DecodeError(f"the time {time_us!r} us is no whole number of nanoseconds; round it")
    return found


def _packed_ladders(ladders: Sequence[Ladder], places: dict[int, int]) -> PackedLadders:
    times = [[_nanoseconds(row.time_us) for row in ladder.rows] for ladder in ladders]
    seconds = [[_nanoseconds(row.runner_up_us) for row in ladder.rows] for ladder in ladders]

    def texts(rows: Sequence[Sequence[int]]) -> tuple[str, ...]:
        return tuple(map(number_text, rows))

    def of_rows(number: Callable[[Row], int]) -> tuple[str, ...]:
        return texts([[number(row) for row in ladder.rows] for ladder in ladders])

    return PackedLadders(
        n=tuple(x.n for x in ladders),
        k=tuple(x.k for x in ladders),
        gaps=texts([[y - x for x, y in pairwise((0, *ladder.m_edges))] for ladder in ladders]),
        kernels=of_rows(lambda x: places[x.kernel]),
        generals=of_rows(lambda x: 0 if x.general == x.kernel else 1 + places[x.general]),
        tile_orders=of_rows(lambda x: 0 if x.tile_order is None else 1 + x.tile_order),
        provenances=of_rows(lambda x: PROVENANCES.index(x.provenance)),
        times=texts([[signed(y - x) for x, y in pairwise((0, *row))] for row in times]),
        runners_up=of_rows(lambda x: places[x.runner_up]),
        margins=texts(
            [[signed(y - x) for x, y in zip(*pair, strict=True)] for pair in zip(times, seconds, strict=True)]
        ),
        library=of_rows(
            lambda x: 0 if x.library_us is None else 1 + signed(_nanoseconds(x.library_us) - _nanoseconds(x.time_us))
        ),
    )


Ladders = dict[tuple[int, int, int], tuple[str, ...]]
"""The texts of the first ladder of a grid, n and k, without its provenances and the library's times."""


def _once(ladders: PackedLadders, grid: int, known: Ladders) -> PackedLadders:
    """Leave out what is a known ladder, with predicted rows and no time of a library; add what is not yet known."""
    texts = {name: list(column) for name, column in vars(ladders).items() if name not in {"n", "k"}}
    shared = [column for name, column in texts.items() if name not in OWN]
    predicted = PROVENANCES.index(Provenance.PREDICTED)
    for i, size in enumerate(zip(ladders.n, ladders.k, strict=True)):
        own = tuple(column[i] for column in shared)
        first = known.setdefault((grid, *size), own)
        is_plain = not any(read_numbers(ladders.library[i])) and {*read_numbers(ladders.provenances[i])} <= {predicted}
        if first is not own and first == own and is_plain:
            for column in texts.values():
                column[i] = ""
    return replace(ladders, **{name: tuple(column) for name, column in texts.items()})


def pack(table: DispatchTable) -> PackedTable:
    """Return what a manifest writes of a table.

    Raises:
        DecodeError: a time is no whole number of nanoseconds, or an edge is below the one before.
    """
    shared = share_grids(section.grid for section in table.sections)
    sections, known = list[PackedSection](), Ladders()
    for section, (grid, kernels) in zip(table.sections, shared.users, strict=True):
        rows = [row for ladder in section.ladders for row in ladder.rows]
        named = [index for row in rows for index in (row.kernel, row.general, row.runner_up)]
        every = tuple(dict.fromkeys((*kernels, *sorted(named))))
        packed = _packed_ladders(section.ladders, {kernel: place for place, kernel in enumerate(every)})
        ladders = _once(packed, grid, known)
        sections.append(PackedSection(section.operation, every, grid, ladders, section.fallback, section.scope))
    return PackedTable(tuple(map(_packed_grid, shared.grids)), tuple(sections))


def _each(part: str, count: int, read: Callable[[int], T]) -> list[T]:
    """Read so many entries of lists; an error has the part and the number of the entry as its place."""
    found: list[T] = []
    try:
        for i in range(count):
            found.append(read(i))  # noqa: PERF401 - its length is the place of an error
    except DecodeError as error:
        raise error.inside(len(found)).inside(part) from None
    return found


def _check_lengths(what: str, lists: Mapping[str, Sequence[object]]) -> int:
    """Return the length that all lists have, which are named (DecodeError)."""
    (first, known), *others = lists.items()
    for name, found in others:
        if len(found) != len(known):
            raise DecodeError(f"it has {len(found)} {name} for {len(known)} {first} {what}")
    return len(known)


def _at(entries: Sequence[T], places: Iterable[int], what: str) -> tuple[T, ...]:
    """Return what is at places (DecodeError)."""
    try:
        return tuple([entries[place] for place in places])
    except IndexError:
        raise DecodeError(f"it has place {max(places)} of {len(entries)} {what}") from None


def _unpacked_grid(packed: PackedGrid) -> Grid:
    """Read a grid; its kernels are still numbers of places."""

    def column(i: int) -> Column:
        places = list(accumulate(read_numbers(packed.gaps[i]), initial=-1))[1:]
        orders = read_numbers(packed.tile_orders[i])
        return Column(
            _at(packed.m_edges, places, "edges in m"),
            tuple(read_numbers(packed.kernels[i])),
            decode(tuple[TileOrder, ...], orders) if orders else None,
        )

    lists = {"gaps": packed.gaps, "kernels": packed.kernels, "tile_orders": packed.tile_orders}
    columns = _each("columns", _check_lengths("of columns", lists), column)
    return Grid(packed.n_edges, packed.k_edges, tuple(columns))


def _unpacked_rows(packed: PackedLadders, i: int, kernels: Sequence[int]) -> tuple[Row, ...]:
    lists = {
        "kernels": read_numbers(packed.kernels[i]),
        "generals": read_numbers(packed.generals[i]),
        "tile_orders": read_numbers(packed.tile_orders[i]),
        "provenances": read_numbers(packed.provenances[i]),
        "times": list(accumulate(map(unsigned, read_numbers(packed.times[i])))),
        "runners_up": read_numbers(packed.runners_up[i]),
        "margins": [unsigned(x) for x in read_numbers(packed.margins[i])],
        "library": read_numbers(packed.library[i]),
    }
    _check_lengths("of rows", lists)
    generals = [x - 1 if x else kernel for x, kernel in zip(lists["generals"], lists["kernels"], strict=True)]
    seconds = [time + margin for time, margin in zip(lists["times"], lists["margins"], strict=True)]
    library = [time + unsigned(x - 1) if x else None for time, x in zip(lists["times"], lists["library"], strict=True)]
    columns = (
        _at(kernels, lists["kernels"], "kernels"),
        _at(kernels, generals, "kernels"),
        decode(tuple[Microseconds, ...], [x / NS_PER_US for x in lists["times"]]),
        _at(PROVENANCES, lists["provenances"], "provenances"),
        _at(kernels, lists["runners_up"], "kernels"),
        decode(tuple[Microseconds, ...], [x / NS_PER_US for x in seconds]),
        decode(tuple[TileOrder | None, ...], [x - 1 if x else None for x in lists["tile_orders"]]),
        decode(tuple[Microseconds | None, ...], [None if x is None else x / NS_PER_US for x in library]),
    )
    return tuple(map(Row, *columns))


def _whole(packed: PackedSection, before: Sequence[PackedSection]) -> PackedLadders:
    """Fill the ladders of a section in that are those of one before.

    Raises:
        DecodeError: lists are of different lengths, or there is no such ladder.
    """
    ladders = packed.ladders
    num_ladders = _check_lengths("of ladders", vars(ladders))
    if all(ladders.gaps):
        return ladders
    first: dict[tuple[int, int], tuple[PackedLadders, int]] = {}
    for other in (x.ladders for x in before if x.grid == packed.grid):
        for i, size in enumerate(zip(other.n, other.k, strict=True)):
            if other.gaps[i]:
                first.setdefault(size, (other, i))
    texts = {name: list(column) for name, column in vars(ladders).items() if name not in {"n", "k"}}

    def fill(i: int) -> None:
        if ladders.gaps[i]:
            return
        if (found := first.get((ladders.n[i], ladders.k[i]))) is None:
            raise DecodeError("it has no steps, and no section before has a ladder of its n and k")
        for name, column in texts.items():
            column[i] = getattr(found[0], name)[found[1]]
        num_rows = len(read_numbers(texts["kernels"][i]))
        own = {"provenances": PROVENANCES.index(Provenance.PREDICTED), "library": 0}
        for name, number in own.items():
            texts[name][i] = number_text([number] * num_rows)

    _each("ladders", num_ladders, fill)
    return replace(ladders, **{name: tuple(column) for name, column in texts.items()})


def _unpacked_ladders(packed: PackedLadders, kernels: Sequence[int]) -> tuple[Ladder, ...]:
    def ladder(i: int) -> Ladder:
        edges = decode(tuple[Extent, ...], list(accumulate(read_numbers(packed.gaps[i]))))
        return Ladder(packed.n[i], packed.k[i], edges, _unpacked_rows(packed, i, kernels))

    return tuple(_each("ladders", len(packed.n), ladder))


def _unpacked_section(packed: PackedSection, grids: Sequence[Grid], before: Sequence[PackedSection]) -> Section:
    (grid,) = _at(grids, (packed.grid,), "grids")

    def column(i: int) -> Column:
        found = grid.columns[i]
        return Column(found.m_edges, _at(packed.kernels, found.kernels, "kernels"), found.tile_orders)

    columns = tuple(_each("columns", len(grid.columns), column))
    own = Grid(grid.n_edges, grid.k_edges, columns)
    ladders = _unpacked_ladders(_whole(packed, before), packed.kernels)
    return Section(packed.operation, ladders, own, packed.fallback, packed.scope)


def unpack(packed: PackedTable) -> DispatchTable:
    """Return the table that was packed; whether it is sound `aot.core.table_check.table_fault` says.

    Raises:
        DecodeError: a text is no numbers, a number is of nothing that there is, or lists are of different lengths.
    """
    grids = _each("grids", len(packed.grids), lambda i: _unpacked_grid(packed.grids[i]))
    found = packed.sections
    sections = _each("sections", len(found), lambda i: _unpacked_section(found[i], grids, found[:i]))
    return DispatchTable(tuple(sections))
