"""Two receipts beside each other: which ratios differ by more than their rounds do, and how the machines do."""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import median
from typing import TYPE_CHECKING

from aot.core.errors import ReceiptError

if TYPE_CHECKING:
    from aot.bench.receipt import Machine, Product, Receipt, Wheel
    from aot.core.problem import Problem


@dataclass(frozen=True)
class Ratio:
    """A ratio by rounds: the median, the least and the greatest."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(above: tuple[float, ...], below: tuple[float, ...]) -> Ratio:
        """Return the ratio of two lists of rounds that took turns, round by round."""
        found = [x / y for x, y in zip(above, below, strict=True)]
        return Ratio(median(found), min(found), max(found))

    def is_apart(self, other: Ratio) -> bool:
        """Say whether every round of the one lies beyond every round of the other."""
        return self.high < other.low or other.high < self.low


@dataclass(frozen=True)
class Row:
    """One product in both receipts; `then` is the receipt's that is repeated, `now` the new one's."""

    problem: Problem
    kernel_then: str
    kernel_now: str
    wheel_us_then: float
    wheel_us_now: float
    wheel_us_is_apart: bool
    """Whether every round of the wheel's times of the one lies beyond every round of the other."""
    speedup_then: Ratio | None
    """The library's time over the wheel's; None where no library was timed."""
    speedup_now: Ratio | None

    @property
    def speedup_is_apart(self) -> bool | None:
        """Say whether the speed-ups differ by more than their rounds do; None where one is not known."""
        if self.speedup_then is None or self.speedup_now is None:
            return None
        return self.speedup_then.is_apart(self.speedup_now)


@dataclass(frozen=True)
class Difference:
    """What is not the same of wheels, machines or libraries."""

    what: str
    then: str
    now: str


@dataclass(frozen=True)
class Comparison:
    """What a repeated bench found."""

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]

    @property
    def apart(self) -> tuple[Row, ...]:
        """Return the products whose speed-ups differ by more than their rounds do."""
        return tuple(row for row in self.rows if row.speedup_is_apart)


def speedup(product: Product) -> Ratio | None:
    """Return the library's time over the wheel's; None where no library was timed."""
    return Ratio.of(product.library_us, product.wheel_us) if product.library_us else None


def _row(then: Product, now: Product) -> Row:
    own = [Ratio(median(x.wheel_us), min(x.wheel_us), max(x.wheel_us)) for x in (then, now)]
    return Row(
        problem=now.problem,
        kernel_then=then.kernel,
        kernel_now=now.kernel,
        wheel_us_then=own[0].median,
        wheel_us_now=own[1].median,
        wheel_us_is_apart=own[0].is_apart(own[1]),
        speedup_then=speedup(then),
        speedup_now=speedup(now),
    )


def _facts(wheel: Wheel, machine: Machine) -> dict[str, object]:
    """List what tells wheel and machine from others, by names for people; a date is neither."""
    found = {f"wheel's {x.name}": getattr(wheel, x.name) for x in fields(wheel)}
    conditions = machine.conditions
    found |= {x.name: getattr(conditions, x.name) for x in fields(conditions) if x.name != "date"}
    return found | {x.name: getattr(machine, x.name) for x in fields(machine) if x.name != "conditions"}


def _libraries(receipt: Receipt) -> str:
    return ", ".join(sorted({x.library for x in receipt.products if x.library})) or "none"


def _differences(then: Receipt, now: Receipt) -> tuple[Difference, ...]:
    before = _facts(then.wheel, then.machine) | {"library": _libraries(then)}
    after = _facts(now.wheel, now.machine) | {"library": _libraries(now)}
    return tuple(Difference(x, str(before[x]), str(after[x])) for x in before if before[x] != after[x])


def compare(then: Receipt, now: Receipt) -> Comparison:
    """Hold a receipt against that of its repetition: product by product, in its order.

    Raises:
        ReceiptError: the two are not of the same products.
    """
    problems = [[x.problem for x in receipt.products] for receipt in (then, now)]
    if problems[0] != problems[1]:
        raise ReceiptError(
            f"the receipts are of {len(problems[0])} and of {len(problems[1])} products, which are not the same; "
            "repeat the one with `aot bench --repeat`"
        )
    rows = tuple(_row(x, y) for x, y in zip(then.products, now.products, strict=True))
    return Comparison(rows, _differences(then, now))
