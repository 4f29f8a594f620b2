"""The table of instruction forms: what is registered is executed, whatever is not is refused by name."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.running import Warp

    Step = Callable[[Warp], int | None]
    """Executes an instruction for a warp. Returns None to go on, the number of an instruction to branch to, or one of
    `STAY` and `YIELD`."""
    Build = Callable[..., Step]
    """Makes one of a program and an instruction."""

STAY = -1
"""The warp gives up its turn, and executes the same instruction when it goes on."""
YIELD = -2
"""The warp gives up its turn behind the instruction."""

FORMS: dict[str, Build] = {}

_ALTERNATIVES = re.compile(r"\{([^{}]*)\}")


def expand(pattern: str) -> list[str]:
    """List the forms of a pattern, in which {a,b} stands for either."""
    found = _ALTERNATIVES.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [form for x in found[1].split(",") for form in expand(before + x + after)]


def form(*patterns: str) -> Callable[[Build], Build]:
    """Register what builds the instructions of some forms.

    Raises:
        ValueError: a form is registered already.
    """

    def register(build: Build) -> Build:
        for pattern in patterns:
            for name in expand(pattern):
                if name in FORMS:
                    raise ValueError(f"{name} is registered twice")
                FORMS[name] = build
        return build

    return register


@cache
def load_units() -> None:
    """Import every unit, which registers its forms."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent / "units")]):
        importlib.import_module(f"aot.emulate.units.{module.name}")


def build_of(opcode: str) -> Build | None:
    """Return what builds the instructions of a form; None of a form that no unit registers."""
    load_units()
    return FORMS.get(opcode)
