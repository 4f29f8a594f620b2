"""What a run of a bundle is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aot.measure.supervisor import SILENCE_S
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

    def words(self) -> list[str]:
        """Return the options as words of a command line, but for the budget."""
        words = [str(self.bundle), "--out", str(self.out), "--silence-seconds", f"{self.silence_s:g}"]
        words += ["--problems", self.problems] if self.problems else []
        words += ["--kernels", self.kernels] if self.kernels else []
        words += ["--strategy", self.strategy] if self.strategy != MODEL else []
        words += ["--search-budget", f"{self.search_budget:g}"] if self.search_budget != 1.0 else []
        words += [] if self.has_reference else ["--no-reference"]
        return words + ([] if self.settle_s is None else ["--settle-seconds", f"{self.settle_s:g}"])
