"""Several packs in one process: each call goes to the first whose library answers for it.

A library that has no operation for a call, or no tuned size where it answers for these alone, says so before it writes
or launches anything. A process with one library has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

_OF_THE_FIRST = {"plan", "rows_plan", "settle", "order_streams", "address"}
"""What every library answers alike; of the first two whoever asks for a plan chooses the library."""


class _NotAnsweredError(Exception):
    """A library does not answer for a call."""


def _pass_on(_text: str) -> NoReturn:
    raise _NotAnsweredError


def passing_on(routes: ModuleType, *, only_tuned: bool) -> SimpleNamespace:
    """Return what a binding is given in the place of `_routes`, where another library is asked behind it.

    Args:
        routes: the module.
        only_tuned: whether its library answers for tuned sizes alone.
    """
    return SimpleNamespace(**vars(routes) | {"refuse_request": _pass_on, "ONLY_TUNED": only_tuned})


def _of(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    *first, last = functions

    def call(*values: Any) -> Any:
        for function in first:
            try:
                return function(*values)
            except _NotAnsweredError:
                continue
        return last(*values)

    return call


def in_turn(bindings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return functions that ask one library after the other, by name."""
    return {
        name: function if name in _OF_THE_FIRST else _of([x[name] for x in bindings])
        for name, function in bindings[0].items()
    }
