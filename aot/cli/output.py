"""What commands print: facts as JSON where --json asks for it, else their text."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import click

from aot.cli.options import Decorator
from aot.core.candidate import Candidate, KernelKey
from aot.core.problem import Problem

_AS_JSON = "as_json"

JSON: Decorator = click.option(
    "--json", _AS_JSON, is_flag=True, help="Print JSON, and nothing else on standard output."
)
"""The option of every command that prints facts."""


def plain(value: object) -> Any:
    """Make of a value what JSON has: dataclasses become objects by their fields' names, kernels and problems names.

    A number that is not finite becomes null. Keys of mappings are texts: an enumerator's value, a kernel's name.

    Raises:
        TypeError: there is no rule for it.
    """
    match value:
        case Enum():
            found = plain(value.value)
        case None | bool() | int():
            found = value
        case float():
            found = value if math.isfinite(value) else None
        case Candidate() | KernelKey() | Problem():
            found = value.name
        case str() | Path():
            found = str(value)
        case Mapping():
            found = {str(plain(key)): plain(x) for key, x in value.items()}
        case Sequence():
            found = [plain(x) for x in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found = {x.name: plain(getattr(value, x.name)) for x in dataclasses.fields(value)}
        case _:
            raise TypeError(f"no rule for {type(value).__name__} as JSON; expected a dataclass or what JSON has")
    return found


def show(facts: Callable[[], Mapping[str, object]], text: Callable[[], str]) -> None:
    """Print what a command found: its facts as JSON where --json was given, else its text.

    Args:
        facts: gives the facts, by name.
        text: gives what is printed for people.
    """
    if is_json():
        click.echo(json.dumps(plain(facts()), indent=1))
    else:
        click.echo(text())


def is_json() -> bool:
    """Say whether the command that runs was given --json."""
    return bool(click.get_current_context().params.get(_AS_JSON))


def tell(text: str) -> None:
    """Print what goes beside the facts: on standard error where these are JSON."""
    click.echo(text, err=is_json())
