"""How a selection was made: the runs of `aot select` behind it, each with its options and the files that it read."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.constraints import Label, Sha256, Text
from aot.kinds.registry import Catalogued

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from aot.core.work import AnyOperation


@dataclass(frozen=True)
class Run:
    """A run of `aot select`."""

    options: dict[Label, tuple[Text, ...]]
    """What was given, by the option's name: its values, of one that may repeat several, of a switch none."""
    defaults: dict[Label, tuple[Text, ...]]
    """The values of the other options that it ran with."""
    inputs: dict[Label, Sha256]
    """The digests of the files that it read, by path: shape sets, records, selections."""
    operations: tuple[Catalogued, ...]
    """Those of the selection of which it chose kernels or tables."""

    @property
    def command(self) -> str:
        """Return the command that makes it again."""
        words = ["aot", "select"]
        for name, values in sorted(self.options.items(), key=lambda x: (x[0] != "--target", x)):
            words += [x for value in values for x in (name, value)] if values else [name]
        return shlex.join(words)

    @property
    def text(self) -> str:
        """Return the command, and behind it the first digits of what it read: `aot select ... # h200.jsonl.gz 1a2b`."""
        read = (f"{path.rpartition('/')[2]} {digest[:12]}" for path, digest in self.inputs.items())
        return f"{self.command}  # {', '.join(read)}" if self.inputs else self.command


def runs_of(runs: Iterable[Run], operations: Collection[AnyOperation]) -> tuple[Run, ...]:
    """Keep what runs say of some operations, and leave those out that chose none of them."""
    kept = (Run(x.options, x.defaults, x.inputs, tuple(y for y in x.operations if y in operations)) for x in runs)
    return tuple(x for x in kept if x.operations)
