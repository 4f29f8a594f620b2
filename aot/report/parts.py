"""What a report's page is put together from: tables, legends and figures, which the template lays out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aot.report.facts import Cell, OperationFacts

NUM_COLOURS = 8
"""Kernels that have a colour of their own; the rest share a grey. Source: more hues than eight are not told apart with
any of the three kinds of colour blindness (report.html.j2 says how far these are apart)."""

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Bar:
    """A table's cell with a bar behind its text; `share` of the cell's width."""

    text: str
    share: float

    def __str__(self) -> str:
        """Return the text."""
        return self.text


Entry = str | int | Bar


@dataclass(frozen=True)
class Table:
    """A table; columns whose entries are numbers or bars stand to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""

    @property
    def alignments(self) -> tuple[str, ...]:
        """Return a class for each column: `n` for numbers, or nothing."""

        def is_number(entry: Entry) -> bool:
            text = str(entry).strip("%~+-" + MINUS).replace(",", "").replace(".", "")
            return text.isdigit() or not text

        columns = (tuple(row[i] for row in self.rows) for i in range(len(self.header)))
        return tuple("n" if all(map(is_number, column)) else "" for column in columns)


@dataclass(frozen=True)
class Mark:
    """An entry of a legend: the class of its swatch, and what it stands for."""

    css: str
    text: str


@dataclass(frozen=True)
class Figure:
    """A chart with its title, caption, legend and the same as a table."""

    title: str
    caption: str
    svg: str
    legend: tuple[Mark, ...]
    table: Table
    has_names: bool = False
    """Whether the legend is a list of names, to be set in columns."""


def share(value: float, digits: int = 1) -> str:
    """Write a fraction as a percentage; what rounds to no difference has no sign."""
    text = f"{100 * value:.{digits}f}%"
    return text.removeprefix("-") if float(text[:-1]) == 0 else text


def microseconds(value: float) -> str:
    """Write a time with three or more digits, without its unit."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def sizes(cell: Cell) -> str:
    """Write a row's upper edge."""
    x = cell.problem
    return f"m {x.m}, n {x.n}, k {x.k}"


def kernel_name(facts: OperationFacts, kernel: int) -> str:
    """Return a kernel's name without the operation's prefix."""
    return facts.kernels[kernel].candidate.name


def operation_name(facts: OperationFacts) -> str:
    """Say what an operation is: its tag, and its layout in words."""
    layout = facts.operation.layout
    a, b = "row-major" if layout.a_k_major else "column-major", "(n, k)" if layout.b_k_major else "(k, n)"
    types = facts.operation.types
    operands = " by ".join(dict.fromkeys([types.a.value, types.b.value if types.weight is None else types.weight.name]))
    names = operands if types.d is types.a is types.b else f"{operands} to {types.d.value}"
    return f"{facts.operation.tag}: {names}, A {a}, B {b} row-major"
