"""The search strategies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.errors import CandidateError
from aot.search.model import Model, Ranked
from aot.search.strategy import BAYESIAN, EVOLUTIONARY, EXHAUSTIVE, MODEL, NAMES, RANKED, Exhaustive

if TYPE_CHECKING:
    from aot.search.strategy import Strategy


def strategy_of(name: str, seed: int = 0) -> Strategy:
    """Make a strategy that has learned nothing yet.

    Args:
        name: one of `aot.search.strategy.NAMES`.
        seed: for those that draw.

    Raises:
        CandidateError: there is no such strategy.
        DependencyError: what it needs is not installed.
    """
    if name in (EVOLUTIONARY, BAYESIAN):
        from aot.search.optuna_search import Bayesian, Evolutionary

        return Evolutionary(seed) if name == EVOLUTIONARY else Bayesian(seed)
    plain: dict[str, type[Exhaustive | Ranked | Model]] = {EXHAUSTIVE: Exhaustive, RANKED: Ranked, MODEL: Model}
    if name not in plain:
        raise CandidateError(f"no search strategy {name!r}; there are: {', '.join(NAMES)}")
    return plain[name]()
