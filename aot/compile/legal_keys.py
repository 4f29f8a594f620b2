"""Every legal kernel of operations: products, and operations on rows."""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import TYPE_CHECKING
from zlib import crc32

from aot.compile.kinds import AnyKey, verdict_of
from aot.core.candidate import Accepted, KernelKey
from aot.families import families_of
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.operation import RowOperation
from aot.row_families import row_families_for
from aot.space.enumeration import Patterns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.operation import Operation
    from aot.core.target import Target


def candidates_of(operation: Operation | RowOperation, target: Target) -> dict[str, list[AnyKey]]:
    """List every candidate of every family that computes an operation, the fallback's too, by the family's name."""
    if isinstance(operation, RowOperation):
        on_rows: dict[str, list[AnyKey]] = {
            family.name: [RowKernelKey(operation, x) for x in family.candidates(operation)]
            for family in row_families_for(target)
        }
        return {name: found for name, found in on_rows.items() if found}
    return {
        family.name: [KernelKey(operation, x) for x in family.candidates(operation, target)]
        for family in families_of(operation, target)
        if operation.types in family.types and operation.epilogue in family.epilogues
    }


def _drawn(key: AnyKey) -> int:
    """Return a number that is as good as random, and always the same of a kernel."""
    return crc32(key.name.encode())


def legal_keys(
    operations: Sequence[Operation | RowOperation],
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

    def legal(keys: Sequence[AnyKey]) -> list[AnyKey]:
        drawn = sorted((key for key in keys if kept(key.candidate.name)), key=_drawn)
        return list(islice((key for key in drawn if isinstance(verdict_of(key, target), Accepted)), sample))

    families = [legal(keys) for operation in operations for keys in candidates_of(operation, target).values()]
    rounds = zip_longest(*families)
    return [key for found in rounds for key in found if key is not None]
