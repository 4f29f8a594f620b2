"""Charts as inline SVG text: scales, axes and marks. Colours are classes, so that a page's CSS decides them. Pure.

A chart is 560 units wide and as wide as its column. Text is sized by the page's CSS: 12 units on a desktop, 17 on a
phone, where the chart is two thirds as wide; the margins here leave room for the latter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH = 560.0
"""Of every chart, in units of its view box."""


def number(value: float) -> str:
    """Write a coordinate with at most one decimal."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def element(tag: str, content: str = "", *, title: str = "", **attributes: object) -> str:
    """Make an element; `content` is markup, everything else is escaped. `class_` is class, `a_b` is a-b."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    inner = (f"<title>{escape(title)}</title>" if title else "") + content
    return f"<{tag}{words}>{inner}</{tag}>" if inner else f"<{tag}{words}/>"


class Kind(Enum):
    """How an axis maps values to lengths."""

    LINEAR = "linear"
    LOG = "logarithmic"
    ROOT = "square root"

    def apply(self, value: float) -> float:
        """Map a value to something proportional to length."""
        if self is Kind.LINEAR:
            return value
        return math.log(value) if self is Kind.LOG else math.sqrt(value)


@dataclass(frozen=True)
class Axis:
    """One axis: what it measures with its unit, its range, and its ticks with their texts."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    kind: Kind = Kind.LINEAR

    def at(self, value: float) -> float:
        """Return a value's place, 0 at the low end and 1 at the high end; what is outside is put at the end."""
        low, high = self.kind.apply(self.low), self.kind.apply(self.high)
        return (self.kind.apply(min(max(value, self.low), self.high)) - low) / (high - low)


def log_ticks(low: float, high: float, most: int = 7) -> tuple[float, ...]:
    """Choose ticks of a logarithmic axis: 1, 2 and 5 of each decade, or 1 of every so manieth."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    inside: list[float] = []
    for steps, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        decades = range(first, last + 1, every)
        inside = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in inside if low * 0.999 <= tick <= high * 1.001]
        if len(inside) <= most:
            break
    return tuple(inside)


def short(value: float) -> str:
    """Write a tick: 0.5, 20, 1k, 3M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def log_axis(label: str, values: Iterable[float], *, most: int = 7) -> Axis:
    """Make a logarithmic axis over positive values."""
    known = list(values)
    low, high = min(known) / 1.15, max(known) * 1.15
    return Axis(label, low, high, tuple((tick, short(tick)) for tick in log_ticks(low, high, most)), Kind.LOG)


PERCENT_TICKS = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0)


def percent(value: float) -> str:
    """Write a fraction as a percentage, as a tick has it."""
    return f"{100 * value:.0f}%" if value >= 1 else f"{100 * value:.3g}%"


def root_axis(label: str, highest: float) -> Axis:
    """Make an axis of fractions from 0 whose small values have room."""
    high = max(highest * 1.02, 0.02)
    ticks = [tick for tick in PERCENT_TICKS if tick <= high]
    spaced = [tick for tick in ticks if tick == 0 or math.sqrt(tick / high) > 0.09]
    return Axis(label, 0.0, high, tuple((tick, percent(tick)) for tick in spaced), Kind.ROOT)


M_LOW = 0.7
"""Where an axis of m starts: below 1, so that the bucket of m 1 has a width."""


def m_axis(last: int) -> Axis:
    """Make the axis of m, past its last edge, since the last bucket is open."""
    ticks = [2**i for i in range(0, 32, 2) if 2**i <= last]
    return Axis("m, rows of A (logarithmic)", M_LOW, last * 1.6, tuple((x, short_m(x)) for x in ticks), Kind.LOG)


def short_m(value: int) -> str:
    """Write a power of two: 64, 1k for 1024."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else str(value)


@dataclass(frozen=True)
class Plot:
    """A rectangle for marks, with axes around it, in units of the view box."""

    x: Axis
    y: Axis
    height: float = 300.0
    left: float = 58.0
    right: float = 14.0
    top: float = 30.0

    @property
    def bottom(self) -> float:
        """Return the lower edge's place."""
        return self.top + self.height

    @property
    def total(self) -> float:
        """Return the height with all axes and texts."""
        return self.bottom + 52

    def px(self, value: float) -> float:
        """Return a value's abscissa."""
        return self.left + self.x.at(value) * (WIDTH - self.left - self.right)

    def py(self, value: float) -> float:
        """Return a value's ordinate."""
        return self.bottom - self.y.at(value) * self.height

    def points(self, values: Iterable[tuple[float, float]]) -> str:
        """Return the path of a line through values."""
        return "M" + "L".join(f"{number(self.px(x))} {number(self.py(y))}" for x, y in values)

    def ordinate(self) -> str:
        """Draw the ticks of y and the base, with no grid."""
        parts = [
            element("text", escape(text), x=self.left - 7, y=self.py(value), dy=".34em", class_="tick end")
            for value, text in self.y.ticks
        ]
        base = f"M{number(self.left)} {number(self.bottom)}H{number(WIDTH - self.right)}"
        return "".join([*parts, element("path", d=base, class_="base")])

    def axes(self, *, is_map: bool = False) -> str:
        """Draw the ticks and the label of x, and of y unless a map has its own; a map has no grid."""
        parts, edge = [self.ordinate()], WIDTH - self.right
        for value, _ in () if is_map else self.y.ticks:
            line = f"M{number(self.left)} {number(self.py(value))}H{number(edge)}"
            parts.insert(0, element("path", d=line, class_="grid"))
        for value, text in self.x.ticks:
            at = self.px(value)
            start = self.bottom if is_map else self.top
            line = f"M{number(at)} {number(start)}V{number(self.bottom + 4)}"
            parts.insert(0, element("path", d=line, class_="grid"))
            parts += [element("text", escape(text), x=at, y=self.bottom + 20, class_="tick mid")]
        middle = (self.left + edge) / 2
        parts.append(element("text", escape(self.x.label), x=middle, y=self.bottom + 44, class_="label mid"))
        if not is_map:
            parts.append(element("text", escape(self.y.label), x=2, y=16, class_="label"))
        return "".join(parts)


def steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the corners of an empirical distribution: (value, share of values up to it)."""
    ordered = sorted(values)
    corners = [(0.0, 0.0)]
    for i, value in enumerate(ordered):
        corners += [(value, i / len(ordered)), (value, (i + 1) / len(ordered))]
    kept = [corners[0]]
    for corner in corners[1:]:
        if corner != kept[-1]:
            kept.append(corner)
    return kept


def figure(content: str, height: float, description: str) -> str:
    """Wrap a chart's marks; the description is what a screen reader says."""
    box = f"0 0 {number(WIDTH)} {number(height)}"
    return element("svg", content, viewBox=box, role="img", aria_label=description)


def rectangles(boxes: Iterable[tuple[float, float, float, float]]) -> str:
    """Return one path of rectangles (left, top, right, bottom)."""
    return "".join(
        f"M{number(x)} {number(y)}H{number(right)}V{number(bottom)}H{number(x)}z" for x, y, right, bottom in boxes
    )
