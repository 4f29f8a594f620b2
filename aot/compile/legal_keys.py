"""Every legal kernel of operations, of any kind."""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any
from zlib import crc32

from aot.core.candidate import Accepted
from aot.kinds.registry import kind_of
from aot.space.enumeration import Patterns
from aot.space.kinds import space_of
from aot.space.legality import check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.target import Target
    from aot.core.work import AnyKey, AnyOperation


def candidates_of(operation: AnyOperation, target: Target) -> dict[str, list[AnyKey]]:
    """List every candidate of every family that computes an operation, the fallback's too, by the family's name."""
    space = space_of(operation)
    make: Any = kind_of(operation).key_type
    able = (x for x in space.families(operation, target) if not space.unbuilt(x, operation))
    return {x.name: [make(operation, y) for y in x.candidates(operation, target)] for x in able}


def _drawn(key: AnyKey) -> int:
    """Return a number that is as good as random, and always the same of a kernel."""
    return crc32(key.name.encode())


def legal_keys(
    operations: Sequence[AnyOperation],
    target: Target,
    sample: int | None = None,
    patterns: Patterns | None = None,
) -> list[AnyKey]:
    """List every legal candidate of every family, the fallback's too.

    They come in rounds, in each of which every family of every operation has one candidate, drawn at random: so what
    has been compiled when that is interrupted is a sample of all.

    Args:
        operations: whose candidates.
        target: device and host.
        sample: how many of a family and operation at most; by default all.
        patterns: on the candidates' names; by default all are kept.
    """
    kept = (patterns or Patterns()).keep

    def is_legal(key: AnyKey) -> bool:
        return isinstance(check(key.candidate, key.operation, target), Accepted)

    def legal(keys: Sequence[AnyKey]) -> list[AnyKey]:
        drawn = sorted((key for key in keys if kept(key.candidate.name)), key=_drawn)
        return list(islice((key for key in drawn if is_legal(key)), sample))

    families = [legal(keys) for operation in operations for keys in candidates_of(operation, target).values()]
    rounds = zip_longest(*families)
    return [key for found in rounds for key in found if key is not None]
