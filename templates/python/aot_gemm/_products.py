"""The binding's functions as attributes of this module, loaded with the first use of one.

A module of its own, for an attribute of a module is the cheapest look-up that Python has: the cover of a product costs
little more than its frame.
"""

from __future__ import annotations

from typing import Any

from . import _library


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what the import system and inspect ask any module for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    functions = _library.binding()
    if name not in functions:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(functions)
    return functions[name]
