"""Several packs in one process: each call goes to the first whose library answers for it.

A library that has no operation for a call, or no tuned size where it answers for these alone, says so before it writes
or launches anything; so does one whose kernels are for another architecture than the GPU's that the operands are on. A
process with one library has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from ._routes import refuse_request
from .errors import ArchitectureError

_OF_THE_FIRST = {"plan", "rows_plan", "settle", "order_streams", "address"}
"""What every library answers alike; of the first two whoever asks for a plan chooses the library."""


_NO_TUNED_SIZE = "no tuned size"
"""What a library that answers for tuned sizes alone says of others, in the place of a request: kNoTunedSize."""


class _NotAnsweredError(Exception):
    """A library does not answer for a call."""


def _pass_on(text: str) -> NoReturn:
    raise _NotAnsweredError(text)


def in_line(routes: ModuleType, *, passes_on: bool, only_tuned: bool, of_some_gpus: bool) -> SimpleNamespace:
    """Return what the binding of one of several libraries is given in the place of `_routes`.

    Args:
        routes: the module.
        passes_on: whether another library is asked behind it.
        only_tuned: whether its library answers for tuned sizes alone.
        of_some_gpus: whether the libraries are for several architectures.
    """
    own = {"ONLY_TUNED": only_tuned, "OF_SOME_GPUS": of_some_gpus} | ({"refuse_request": _pass_on} if passes_on else {})
    return SimpleNamespace(**vars(routes) | own)


def _of(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    *first, last = functions

    def call(*values: Any) -> Any:
        refused = ""
        for function in first:
            try:
                return function(*values)
            except _NotAnsweredError as error:
                refused = refused if str(error) == _NO_TUNED_SIZE else str(error)
            except ArchitectureError:
                continue
        try:
            return last(*values)
        except ArchitectureError:
            if not refused:
                raise
        return refuse_request(refused)  # by the last library for the operands' GPU

    return call


def in_turn(bindings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return functions that ask one library after the other, by name."""
    return {
        name: function if name in _OF_THE_FIRST else _of([x[name] for x in bindings])
        for name, function in bindings[0].items()
    }
