"""How a manifest writes a dispatch table: its ladders, in the digits of `number_text`, and the hashes of its grids.

The steps of grids are in the library alone, which its Python asks for them: in the manifest they would take half of its
bytes in a wheel. A list has an entry for each ladder, whose numbers are those of its rows. A ladder that is another
type's stands once: where a section's entries are empty, the ladder of this n and k is that of the first section before
it with the same grid that has one, and all its rows are predicted. The wheel's Python reads single ladders:
templates/python/aot_gemm/_packed.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

from aot.core.constraints import Extent, Index, Microseconds, Sha256
from aot.core.dispatch import DispatchTable, Grid, Ladder, Row, Scope, Section
from aot.core.json_text import json_line
from aot.core.measurement import Provenance
from aot.core.operation import Operation
from aot.core.strict_json import DecodeError, decode
from aot.core.tile_order import TileOrder
from aot.package.number_text import Numbers, number_text, read_numbers, signed, time_number, time_of, unsigned
from aot.package.shared_grids import share_grids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")

PROVENANCES = tuple(Provenance)
"""By their numbers."""

NO_GRID = Grid((), (), ())
"""What a section has that was read."""

OWN = frozenset({"provenances", "library"})
"""What a ladder has of its own that is another section's otherwise."""


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
    """In the numbers of `time_number`, `signed`: how much more than in the row before, or than 0."""
    runners_up: tuple[Numbers, ...]
    """Places in `PackedSection.kernels`."""
    margins: tuple[Numbers, ...]
    """The same numbers, `signed`: how much more the runner-up's is than the kernel's."""
    library: tuple[Numbers, ...]
    """0 where the library was not timed, else 1 and its number less the kernel's, `signed`."""


@dataclass(frozen=True)
class PackedSection:
    """A section."""

    operation: Operation
    kernels: tuple[Index, ...]
    """The manifest's kernels that it names, those of its grid first."""
    grid: Sha256
    """Of its grid, whose kernels are numbers of places in `kernels`: of sections that share one, the same."""
    ladders: PackedLadders
    fallback: Index
    scope: Scope | None = None


@dataclass(frozen=True)
class PackedTable:
    """A dispatch table."""

    sections: tuple[PackedSection, ...]


def _packed_ladders(ladders: Sequence[Ladder], places: dict[int, int]) -> PackedLadders:
    times = [[time_number(row.time_us) for row in ladder.rows] for ladder in ladders]
    seconds = [[time_number(row.runner_up_us) for row in ladder.rows] for ladder in ladders]

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
            lambda x: 0 if x.library_us is None else 1 + signed(time_number(x.library_us) - time_number(x.time_us))
        ),
    )


Ladders = dict[tuple[str, int, int], tuple[str, ...]]
"""The texts of the first ladder of a grid, n and k, without its provenances and the library's times."""


def _once(ladders: PackedLadders, grid: str, known: Ladders) -> PackedLadders:
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
        DecodeError: a time has more digits than a wheel's, or an edge is below the one before.
    """
    shared = share_grids(section.grid for section in table.sections)
    hashes = [hashlib.sha256(json_line(grid).encode()).hexdigest() for grid in shared.grids]
    sections, known = list[PackedSection](), Ladders()
    for section, (place, kernels) in zip(table.sections, shared.users, strict=True):
        grid = hashes[place]
        rows = [row for ladder in section.ladders for row in ladder.rows]
        named = [index for row in rows for index in (row.kernel, row.general, row.runner_up)]
        every = tuple(dict.fromkeys((*kernels, *sorted(named))))
        packed = _packed_ladders(section.ladders, {kernel: i for i, kernel in enumerate(every)})
        ladders = _once(packed, grid, known)
        sections.append(PackedSection(section.operation, every, grid, ladders, section.fallback, section.scope))
    return PackedTable(tuple(sections))


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
        decode(tuple[Microseconds, ...], list(map(time_of, lists["times"]))),
        _at(PROVENANCES, lists["provenances"], "provenances"),
        _at(kernels, lists["runners_up"], "kernels"),
        decode(tuple[Microseconds, ...], list(map(time_of, seconds))),
        decode(tuple[TileOrder | None, ...], [x - 1 if x else None for x in lists["tile_orders"]]),
        decode(tuple[Microseconds | None, ...], [None if x is None else time_of(x) for x in library]),
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


def _unpacked_section(packed: PackedSection, before: Sequence[PackedSection]) -> Section:
    ladders = _unpacked_ladders(_whole(packed, before), packed.kernels)
    return Section(packed.operation, ladders, NO_GRID, packed.fallback, packed.scope)


def unpack(packed: PackedTable) -> DispatchTable:
    """Return the table that was packed, without grids; whether it is sound `aot.core.table_check.table_fault` says.

    Kernels that only a grid names are checked where a manifest is written, and by the library.

    Raises:
        DecodeError: a text is no numbers, a number is of nothing that there is, or lists are of different lengths.
    """
    found = packed.sections
    return DispatchTable(tuple(_each("sections", len(found), lambda i: _unpacked_section(found[i], found[:i]))))
