"""The prior: what the cost model assumes of a target before anything is measured there, and how far off it is.

Published times of others stand in published/TARGET.toml. Here they are compared with, not fitted to: the constants are
those that every target starts with. prior_calibrated.py fits some to them. Pure but for reading that file and the
target's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aot.core.constraints import Extent, Label, TargetName, Text
from aot.core.constraints import Rate as PositiveRate
from aot.core.dispatch import takes
from aot.core.element import ElementType
from aot.core.errors import TargetError
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.strict_json import shown
from aot.core.strict_toml import TomlError, parse_toml
from aot.core.target import RATES
from aot.families import family_of
from aot.space.cost import DEFAULTS, EXPOSED_PROMOTION, PROMOTED_BY, Constants, estimate
from aot.space.cost_operands import Column
from aot.space.enumeration import has_tuned_kernels, legal
from aot.space.roofline import roofline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aot.core.candidate import Candidate
    from aot.core.target import Target

FIGURES = {
    "num_sms": (1.0, ""),
    "flops_per_s": (1e12, "TFLOP/s"),
    "fp8_flops_per_s": (1e12, "TFLOP/s"),
    "int8_flops_per_s": (1e12, "TOP/s"),
    "tf32_flops_per_s": (1e12, "TFLOP/s"),
    "fp32_flops_per_s": (1e12, "TFLOP/s"),
    "bandwidth_bytes_per_s": (1e9, "GB/s"),
    "smem_bytes_per_block": (2**10, "KiB"),
    "launch_us": (1.0, "us"),
    "clock_hz": (1e9, "GHz"),
}
"""The figures of a target that the model uses, with the unit that they are shown in and its size."""

BY_HAND = "set by hand on H200 measurements"
RECORD = "the H200 record"
ASSUMED = "an assumption"
NEUTRAL = "neutral until calibrated"

ORIGINS = {
    "mma_half_edge": ("elements", BY_HAND),
    "blocking_epilogue": ("share", f"{BY_HAND}; for stores without TMA {ASSUMED}"),
    "hidden_epilogue": ("share", BY_HAND),
    "l2_bytes_a_clock_an_sm": ("B", ASSUMED),
    "sm_share_of_bandwidth": ("times", BY_HAND),
    "ramp_us": ("us", f"{BY_HAND}; times launch_us over the H200's"),
    "memory_latency_us": ("us", ASSUMED),
    "outside_row_ns": ("ns", RECORD),
    "unhidden_share": ("share", BY_HAND),
    "serial_handover_us": ("us", BY_HAND),
    "flops_share": ("share", NEUTRAL),
    "bandwidth_share": ("share", NEUTRAL),
}
"""Unit and origin of each of `Constants`. Source: the docstrings of aot.space.cost."""


PUBLISHED = Path(__file__).with_name("published")


@dataclass(frozen=True)
class Assumption:
    """A figure that the model rests on, as it is shown, and where it comes from."""

    figure: str
    value: float
    unit: str
    origin: str


@dataclass(frozen=True)
class Clock:
    """The GPU clocks between which a target's power modes lie, in hertz."""

    lowest_hz: PositiveRate
    highest_hz: PositiveRate
    source: Text


@dataclass(frozen=True)
class Rate:
    """A rate that was measured elsewhere: a figure of `Target`, in its unit."""

    figure: Label
    value: PositiveRate
    source: Text


@dataclass(frozen=True)
class Point:
    """One published product: sizes in elements; microseconds, those of a library first, or the library's TFLOP/s."""

    m: Extent
    n: Extent
    k: Extent
    dtype: ElementType | None = None
    """Of both operands and D; None where the source names an operation."""
    us: tuple[PositiveRate, ...] | None = None
    tflops: PositiveRate | None = None

    def __post_init__(self) -> None:
        """Refuse a point without a time, or with two (ValueError)."""
        if bool(self.us) == (self.tflops is not None):
            raise ValueError(f"expected `us`, or `tflops`, not {shown(self.us)} and {self.tflops}")
        if self.dtype is not None:
            Operation.of(self.dtype)

    def times_us(self) -> tuple[float, ...]:
        """Return the times in microseconds, the library's first."""
        if self.tflops is not None:
            return (2 * self.m * self.n * self.k / self.tflops / 1e6,)
        return self.us or ()


@dataclass(frozen=True)
class Source:
    """Points from one place, of products of one element type in a layout, or of an operation."""

    name: Label
    address: Text
    also: Text
    """What was timed beside the library's default."""
    conditions: Text
    cold_l2: bool
    """Whether the conditions say that nothing of the operands was in L2, as the model has it."""
    point: tuple[Point, ...]
    layout: Layout | None = None
    operation: Operation | None = None

    def __post_init__(self) -> None:
        """Refuse points whose operation is not said, or twice (ValueError)."""
        own = self.operation is not None
        if own == (self.layout is not None) or any(own == (x.dtype is not None) for x in self.point):
            raise ValueError("expected `layout`, and `dtype` of each point, or `operation` in the place of both")

    def problems(self) -> list[Problem]:
        """List the points' problems."""
        return [Problem(self._operation(x), x.m, x.n, x.k) for x in self.point]

    def _operation(self, point: Point) -> Operation:
        if self.operation is not None:
            return self.operation
        assert point.dtype is not None  # noqa: S101 - `__post_init__` has refused that
        assert self.layout is not None  # noqa: S101
        return Operation.of(point.dtype, self.layout)


@dataclass(frozen=True)
class Published:
    """What is published of a target."""

    target: TargetName
    clock: Clock
    rate: tuple[Rate, ...]
    source: tuple[Source, ...]


def published_names() -> list[str]:
    """List the targets of which something is published."""
    return sorted(file.stem for file in PUBLISHED.glob("*.toml"))


def parse_published(text: str, where: str) -> Published:
    """Read what is published of a target from TOML.

    Raises:
        TargetError: the text is not that.
    """
    try:
        return parse_toml(text, where, Published)
    except TomlError as error:
        raise TargetError(f"{error}; mend the entry") from error


@cache
def load_published(target: str) -> Published:
    """Load what is published of a target.

    Raises:
        TargetError: there is nothing, or the file is damaged.
    """
    if target not in published_names():
        known = ", ".join(published_names())
        raise TargetError(
            f"no published times of {target!r} to hold the prior against; there are of: {known}; give --target"
        )
    file = PUBLISHED / f"{target}.toml"
    return parse_published(file.read_text(encoding="utf-8"), str(file))


def assumptions(target: Target, constants: Constants = DEFAULTS) -> list[Assumption]:
    """List what the model rests on: the target's figures, the clock, and the constants."""
    found = [
        Assumption(name, getattr(target, name) / size, unit, target.sources[name])
        for name, (size, unit) in FIGURES.items()
        if getattr(target, name) is not None
    ]
    if PROMOTED_BY in target.features:
        found.append(Assumption("exposed_promotion", EXPOSED_PROMOTION, "share", f"{ASSUMED}, of FP8 sums in float32"))
    values = [(field.name, float(getattr(constants, field.name))) for field in fields(constants)]
    return found + [Assumption(name, value, *ORIGINS[name]) for name, value in values]


def at_clock(target: Target, hz: float) -> Target:
    """Return the target with another SM clock: the rates of tensor cores and L2 follow it, memory does not."""
    known = {name: getattr(target, name) for name in RATES.values()}
    rates = {name: rate * hz / target.clock_hz for name, rate in known.items() if rate is not None}
    return replace(target, clock_hz=hz, **rates)


def times_us(
    candidates: Sequence[Candidate], problems: Sequence[Problem], target: Target, constants: Constants = DEFAULTS
) -> Column:
    """Predict times in microseconds, (problem, candidate); infinite where a candidate does not take a problem."""
    multiples = [family_of(candidate).multiples(candidate) for candidate in candidates]
    fits = np.array([[takes(problem, *multiple) for multiple in multiples] for problem in problems])
    found: Column = np.where(fits, estimate(candidates, problems, target, constants).total_us, np.inf)
    return found


def first_choices(
    candidates: Sequence[Candidate], problems: Sequence[Problem], target: Target, constants: Constants = DEFAULTS
) -> list[tuple[Candidate, float]]:
    """Return of each problem the candidate that the model puts first, and its predicted time in microseconds."""
    times = times_us(candidates, problems, target, constants)
    return [(candidates[j], float(row[j])) for row in times for j in [int(row.argmin())]]


@dataclass(frozen=True)
class Check:
    """A published point beside the model: times in microseconds.

    `predicted_us` is of `kernel`, the best legal candidate; `slow_us` is of the best one
    at the target's lowest clock.
    """

    source: str
    problem: Problem
    library_us: float
    best_us: float
    roofline_us: float
    bound: str
    kernel: str
    predicted_us: float
    slow_us: float

    @property
    def ratio(self) -> float:
        """Return the published best time over the predicted one: how many times too good the model is."""
        return self.best_us / self.predicted_us

    @property
    def slow_ratio(self) -> float:
        """Return the same at the lowest clock."""
        return self.best_us / self.slow_us

    @property
    def explained(self) -> float | None:
        """Return the share of what the model lacks to the published best that the lowest clock adds.

        Above 1 the lowest clock is slower than the published best. None where the model lacks nothing.
        """
        lacking_us = self.best_us - self.predicted_us
        return (self.slow_us - self.predicted_us) / lacking_us if lacking_us > 0 else None


def check_source(source: Source, target: Target, clock: Clock) -> list[Check]:
    """Put a source's points beside the model's times at the highest and at the lowest clock.

    Raises:
        CandidateError: the target has no legal candidate.
    """
    found = []
    pairs = zip(source.problems(), source.point, strict=True)
    for operation, group in groupby(pairs, key=lambda pair: pair[0].operation):
        problems, points = zip(*group, strict=True)
        candidates = legal(operation, target)
        fast, slow = (
            first_choices(candidates, problems, at_clock(target, hz)) for hz in (clock.highest_hz, clock.lowest_hz)
        )
        for problem, point, (first, us), (_, slow_us) in zip(problems, points, fast, slow, strict=True):
            times, roof = point.times_us(), roofline(problem, target)
            found.append(
                Check(source.name, problem, times[0], min(times), roof.time_us, roof.bound, first.name, us, slow_us)
            )
    return found


@dataclass(frozen=True)
class Prediction:
    """What the model says of a problem: times in microseconds, and the best legal candidate; none where there is none.

    Nothing of it was measured.
    """

    problem: Problem
    kernel: str
    predicted_us: float | None
    roofline_us: float
    bound: str


def predict(operation: Operation, sizes: Sequence[tuple[int, int, int]], target: Target) -> list[Prediction]:
    """Predict the times of an operation's best legal candidates, of each (m, n, k)."""
    problems = [Problem(operation, *size) for size in sizes]
    candidates = legal(operation, target) if has_tuned_kernels(operation, target) else []
    firsts: list[tuple[str, float | None]] = [("", None)] * len(problems)
    if candidates:
        firsts = [(first.name, us) for first, us in first_choices(candidates, problems, target)]
    found = []
    for problem, (kernel, us) in zip(problems, firsts, strict=True):
        roof = roofline(problem, target)
        found.append(Prediction(problem, kernel, us, roof.time_us, roof.bound))
    return found


@dataclass(frozen=True)
class Spread:
    """Geometric mean, least and most of some ratios, and the standard deviation of their logarithms."""

    mean: float
    least: float
    most: float
    deviation: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Return the spread of one or more ratios above 0."""
        found = np.array(list(values))
        logs = np.log(found)
        return Spread(float(np.exp(logs.mean())), float(found.min()), float(found.max()), float(logs.std()))
