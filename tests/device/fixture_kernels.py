"""Which Hopper kernels a GPU's results are recorded of: some of every family, for each kind of operands and epilogue.

What is drawn is the same every time: candidates are ordered by a checksum of their names.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from aot.core.candidate import Accepted, Candidate, KernelKey
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.families import families_of, rows_families_of
from aot.families.sm90_one_tile import FAMILY as ONE_TILE
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.catalogue import row_operations
from aot.select.selection import read_selection
from aot.space.legality import check, unbuilt
from aot.space.widths import of_widths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aot.core.target import Target
    from aot.core.work import AnyKey
    from aot.families import Family

SELECTIONS = tuple(Path("aot/selections", f"{x}.json.gz") for x in ("h200", "h200.groups", "h200.operands"))
SHIPPED_EACH = 2
"""Kernels of each family in a selection of those that ship."""
PER_OPERANDS = 2
"""Kernels of each family and kind of operands, at the least."""
SMALL_TILE = 64 * 64
"""Elements of a tile of which a product of more tiles than the device has SMs is small."""

Kind: TypeAlias = tuple[str, ...]


def operands_kind(operation: Operation) -> Kind:
    """Return what kernels' loads and products depend on: types and grouping, of all 16-bit operands and FP8 alike."""
    element, scale = operation.a.element, operation.types.scaling
    width = "16 bits" if element.num_bytes == 2 else "FP8" if element.value.startswith("float8") else element.value
    return width, scale, operation.grouping.value


def _kind(operation: Operation) -> Kind:
    """Return what a family has a kernel of: operands, layout, and what the epilogue does."""
    activation = "activation" if operation.activation else ""
    return (
        *operands_kind(operation),
        operation.layout.value,
        activation,
        str(operation.gate is not None),
        str(operation.has_residual),
    )


def _order(key: AnyKey) -> tuple[int, str]:
    return crc32(key.name.encode()), key.name


def _any(candidate: Candidate) -> bool:
    return candidate is not None


def _first(
    family: Family, operation: Operation, target: Target, suits: Callable[[Candidate], bool] = _any
) -> KernelKey | None:
    """Draw a legal kernel of a family; None where no candidate is legal and suits."""
    if unbuilt(family, operation):
        return None
    keys = (KernelKey(operation, x) for x in family.candidates(operation, target) if suits(x))
    legal = (x for x in sorted(keys, key=_order) if isinstance(check(x.candidate, operation, target), Accepted))
    return next(legal, None)


def _operations(kind_of: Callable[[Operation], Kind]) -> dict[Kind, list[Operation]]:
    """List the operations of each kind, in an order of their own."""
    found: dict[Kind, list[Operation]] = defaultdict(list)
    for operation in sorted(Operation, key=lambda x: crc32(x.tag.encode())):
        found[kind_of(operation)].append(operation)
    return found


def _of_kinds(target: Target) -> Iterator[KernelKey]:
    """Draw one kernel of each family and kind; of families that compute everything, one of each kind of operands."""
    for is_fallback, kind_of in ((False, _kind), (True, operands_kind)):
        for operations in _operations(kind_of).values():
            for family in (x for x in families_of(operations[0], target) if x.is_fallback == is_fallback):
                found = (_first(family, x, target) for x in operations)
                yield from (x for x in [next(filter(None, found), None)] if x)


def _topped_up(drawn: Sequence[KernelKey], target: Target) -> Iterator[KernelKey]:
    """Draw more kernels of families that have fewer than `PER_OPERANDS` of a kind of operands."""
    for kind, operations in _operations(operands_kind).items():
        for family in families_of(operations[0], target):
            there = [x for x in drawn if x.candidate.family == family.name and operands_kind(x.operation) == kind]
            if there and not family.is_fallback:
                taken = {x.candidate for x in there}
                found = (_first(family, x, target, lambda c: c not in taken) for x in reversed(operations))  # noqa: B023
                fresh = [x for x in found if x and x not in there]
                yield from fresh[: PER_OPERANDS - len(there)] if len(there) < PER_OPERANDS else []


def _of_splits(target: Target) -> Iterator[KernelKey]:
    """Draw kernels of each way to bring split k together."""
    for operation in (Operation.BF16_KK, Operation.FP16_MN):
        for family in families_of(operation, target):
            for mode in (SplitK.SERIAL, SplitK.PARALLEL, SplitK.SEPARATE):
                found = _first(family, operation, target, lambda x: x.gemm.split_k_mode is mode)  # noqa: B023
                yield from [found] if found else []


def _of_small_tiles(target: Target) -> Iterator[KernelKey]:
    """Draw kernels with so small tiles that a CTA of a small product takes several."""

    def is_small(candidate: Candidate) -> bool:
        is_whole = candidate.gemm.split_k_mode in (SplitK.NONE, SplitK.TAIL)
        return candidate.gemm.tile_m * candidate.gemm.tile_n <= SMALL_TILE and is_whole

    names = ("sm90_quack", "sm90_partial_tile", "sm90_prefetch_b", "sm90_stream_k", "sm90_block_scale")
    for operation in (Operation.FP16_KK, Operation.E4M3_BF16_KK, Operation.E4M3_BF16_BLOCK_KK):
        for family in (x for x in families_of(operation, target) if x.name in names):
            found = _first(family, operation, target, is_small)
            yield from [found] if found else []


def _shipped(target: Target) -> Iterator[KernelKey]:
    """Draw kernels of each family that wheels ship."""
    for path in SELECTIONS:
        of_family: dict[str, list[KernelKey]] = defaultdict(list)
        for key in sorted(read_selection(path).kernels, key=_order):
            of_family[key.candidate.family].append(key)
        for found in of_family.values():
            yield from found[:SHIPPED_EACH]
    yield from _of_several_widths(target)


def _of_several_widths(target: Target) -> Iterator[KernelKey]:
    """Take shipped kernels that one object computes, of several widths: its widest, and narrower ones."""
    groups: dict[Candidate, list[KernelKey]] = defaultdict(list)
    for key in read_selection(SELECTIONS[0]).kernels:
        if key.candidate.family == ONE_TILE.name and key.operation is Operation.BF16_KK:
            wide = of_widths(key.candidate, key.operation, target)
            if wide is not None:
                groups[wide[0]].append(key)
    for found in sorted(groups.values(), key=len)[-2:]:
        yield from sorted(found, key=_order)[:3]


def product_keys(target: Target) -> list[KernelKey]:
    drawn = list(dict.fromkeys([*_shipped(target), *_of_splits(target), *_of_small_tiles(target), *_of_kinds(target)]))
    return list(dict.fromkeys([*drawn, *_topped_up(drawn, target)]))


def _legal_rows(keys: Iterable[RowKernelKey], target: Target) -> Iterator[RowKernelKey]:
    drawn = sorted(keys, key=_order)
    return (x for x in drawn if isinstance(check(x.candidate, x.operation, target), Accepted))


def row_keys(target: Target) -> list[RowKernelKey]:
    """List the kernels of row operations: of each operation one of some family, and of each family some."""
    found = []
    for number, operation in enumerate(row_operations()):
        families = [
            [*_legal_rows((RowKernelKey(operation, x) for x in family.candidates(operation, target)), target)]
            for family in rows_families_of(operation, target)
        ]
        able = [x for x in families if x]
        found.append(able[number % len(able)][0])
        found += [able[(number + 1) % len(able)][0]] if number % 2 else []
    return list(dict.fromkeys(found))
