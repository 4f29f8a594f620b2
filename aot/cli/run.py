"""What a run of a command was asked, as data: its options by name, and the digests of the files that it read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli.options import as_given, is_given, regrets_text
from aot.compile.sources import sha256_of
from aot.kinds.named_operations import NamedOperations
from aot.select.runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
UNSTATED = ("output", "as_json")
"""Options that decide nothing of what is made."""


def stated(path: Path) -> str:
    """Return a path as a file may hold it: of what the project ships from its root on, elsewhere no absolute one."""
    if path.resolve().is_relative_to(ROOT):
        return path.resolve().relative_to(ROOT).as_posix()
    return path.name if path.is_absolute() else path.as_posix()


def _texts(value: Any) -> tuple[str, ...]:
    """Write an option's value as a command line takes it; of one that may repeat, its values."""
    if isinstance(value, NamedOperations):
        return (",".join(x.tag for x in value.operations),)
    if isinstance(value, tuple):
        is_regret = any(isinstance(x, float) for x in value)
        return (regrets_text((value[0], value[1])),) if is_regret else tuple(_texts(x)[0] for x in value)
    return (stated(value) if isinstance(value, Path) else f"{value:g}" if isinstance(value, float) else str(value),)


def run_of(context: click.Context, files: Iterable[Path]) -> Run:
    """Describe a run of which it is not known yet what it chooses.

    Args:
        context: of the command, with its values.
        files: what it reads.
    """
    options: dict[str, tuple[str, ...]] = {}
    defaults: dict[str, tuple[str, ...]] = {}
    for parameter in context.command.params:
        name, value = parameter.name or "", context.params.get(parameter.name or "")
        if name in UNSTATED or not isinstance(parameter, click.Option) or value in (None, ()):
            continue
        part = options if is_given(context, name) else defaults
        if not isinstance(value, bool):
            part[as_given(parameter, context.params)] = _texts(value)
        elif value or parameter.secondary_opts:
            part[as_given(parameter, context.params)] = ()
    digests: dict[str, str] = {}
    for path in filter(Path.is_file, files):
        with suppress(OSError):  # what cannot be read, or is no file, is refused by what reads it
            digests[stated(path)] = sha256_of(path)
    return Run(options, defaults, dict(sorted(digests.items())), ())
