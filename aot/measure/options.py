"""What a run of a bundle is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aot.measure.supervisor import SILENCE_S
from aot.measure.tuning_set import TuningSet, read_tuning_set
from aot.search.strategy import MODEL


@dataclass(frozen=True)
class Options:
    """What a run is asked for."""

    bundle: Path
    out: Path
    problems: str | None = None
    kernels: str | None = None
    budget_s: float | None = None
    silence_s: float = SILENCE_S
    settle_s: float | None = None
    strategy: str = MODEL
    """How kernels are searched on each problem, one of `aot.search.strategy.NAMES`."""
    search_budget: float = 1.0
    """Share of a problem's kernels that the search may measure."""

    has_reference: bool = True
    """Whether torch's own product is timed beside the kernels, where it can be imported."""
    shard: tuple[int, int] | None = None
    """Number, from 1, and count: which part of the problems to measure; None: all."""
    is_fed: bool = False
    """Whether to measure the portions that are handed to the run (aot.measure.feed), rather than all."""

    def tuning_set(self) -> TuningSet:
        """Read the bundle's kernels and problems, those that are asked for.

        Raises:
            StoreError: the bundle cannot be read, or nothing is left.
        """
        found = read_tuning_set(self.bundle).filtered(self.kernels, self.problems)
        return found.shard(*self.shard) if self.shard else found

    def words(self) -> list[str]:
        """Return the options as words of a command line, but for the budget."""
        words = [str(self.bundle), "--out", str(self.out), "--silence-seconds", f"{self.silence_s:g}"]
        words += ["--problems", self.problems] if self.problems else []
        words += ["--kernels", self.kernels] if self.kernels else []
        words += ["--strategy", self.strategy] if self.strategy != MODEL else []
        words += ["--search-budget", f"{self.search_budget:g}"] if self.search_budget != 1.0 else []
        words += ["--shard", "{}/{}".format(*self.shard)] if self.shard else []
        words += ["--feed"] if self.is_fed else []
        words += [] if self.has_reference else ["--no-reference"]
        return words + ([] if self.settle_s is None else ["--settle-seconds", f"{self.settle_s:g}"])
