"""What a sanitizer watches of each kernel of a wheel: few launches, small ones, that go through the whole kernel."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate
from aot.core.grouping import Grouping
from aot.core.knobs import GemmKnobs
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.core.tile_order import HEURISTIC, NUM_ORDERS, order_name
from aot.families import tiling_of
from aot.kinds.gemm.edge_shapes import BATCH, GROUPS, SIZES, EdgeShape, arrangements_of, rounded
from aot.kinds.rows.call import RowCase, row_cases
from aot.kinds.rows.candidate import RowLimits
from aot.kinds.rows.catalogue import row_operation

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 2
"""Tiles that each SM takes in the case of many tiles, in whole: both consumer warp groups of a kernel come round."""

EXTRA_TILES = 8
"""Tiles beyond those, so that some SMs take one more."""

BEYOND = 9
"""Rows and columns beyond a whole cluster of tiles, at most."""

FALLBACK = "simt"
"""The family of the kernels that take operands of any address and extents."""

EARLY_WIDTHS = 2
"""Widths of a row kernel that are watched in the first turn; wider rows take longer."""


@dataclass(frozen=True)
class Case:
    """One case of a kernel: what is launched, and when its turn is."""

    name: str
    turn: int
    """All kernels' cases of a turn come before those of the next, so that time that runs out leaves no kernel out."""
    shape: EdgeShape | None = None
    """Of a product."""
    promises: tuple[bool, ...] = ()
    """For each launch of a product, whether B is promised to be constant: a kernel may load it earlier then."""
    order: int = HEURISTIC
    """In which the kernel takes its tiles."""
    rows: tuple[RowCase, ...] = ()
    """Of a row kernel, a launch each."""


@dataclass(frozen=True)
class ShippedKernel:
    """A kernel of a wheel, by what its manifest says of it."""

    name: str
    digest: str
    """SHA-256 of the compiled object: a kernel that was watched need not be watched again in another wheel."""
    index: int
    """In the library, among products or among row kernels."""
    is_on_rows: bool
    facts: dict[str, Any]

    @property
    def family(self) -> str:
        return str(self.facts["candidate"]["family"])

    @property
    def is_fallback(self) -> bool:
        """Say whether it takes operands of any address and extents."""
        return self.family == FALLBACK

    def cases(self) -> list[Case]:
        return _row_cases(self) if self.is_on_rows else _product_cases(self)


def read_kernels(manifest: Path) -> list[ShippedKernel]:
    """List the kernels of a wheel's manifest, products first, sorted so that like ones are neighbours."""
    content = json.loads(manifest.read_text(encoding="utf-8"))
    found = [
        ShippedKernel(facts["name"], facts["object_sha256"], index, is_on_rows, facts)
        for is_on_rows in (False, True)
        for index, facts in enumerate(x for x in content["kernels"] if ("limits" in x) == is_on_rows)
    ]
    return sorted(found, key=lambda x: (x.is_on_rows, x.family, x.name))


def _in_flight(tiling: GemmKnobs, operation: Operation, smem_bytes: int) -> int:
    """Return about how many elements of k a tile's CTAs hold in shared memory at once; rather too many."""
    types, bits = operation.types, operation.b.element.bits
    weight_bits = bits if types.weight is None else types.weight.code.bits
    row_bytes = (tiling.tile_m * operation.a.element.bits + tiling.tile_n * weight_bits) // 8
    return max(1, smem_bytes // row_bytes) * tiling.split_k * tiling.cluster_m * tiling.cluster_n


def _extents(kernel: ShippedKernel, tiling: GemmKnobs, operation: Operation) -> dict[str, tuple[int, int, int]]:
    """Return (m, n, k) of each case of a product, before they are rounded up to what its types need."""
    rows, columns = tiling.tile_m, tiling.tile_n
    across, along = rows * tiling.cluster_m, columns * tiling.cluster_n
    if tiling.swap_ab:
        rows, across, along = columns, along, across
    num_tiles = ROUNDS * kernel.facts["num_sms"] + EXTRA_TILES
    if operation.grouping is Grouping.BATCHED:
        num_tiles = -(-num_tiles // BATCH)
    k = _in_flight(tiling, operation, kernel.facts["smem_bytes"]) * 3 // 2 + BEYOND
    return {
        "few": (across + min(BEYOND, across), along + min(BEYOND, along), k),
        "one": (1, 8, 8),
        "many": (rows * num_tiles - 1, 8, 40),
    }


def _product_cases(kernel: ShippedKernel) -> list[Case]:
    """List the cases of a product.

    few: a cluster of tiles and a part of the next, each way, and a k that goes round the pipeline; with B promised to
    be constant and without. one: the smallest problem. many: several tiles for each SM, most of them partial.
    """
    operation = Operation(kernel.facts["operation"])
    tiling = tiling_of(Candidate.read_json(kernel.facts["candidate"]))
    arrangements, orders = arrangements_of(operation), Argument.TILE_ORDER.value in kernel.facts["signature"]
    groups = {Grouping.DENSE: 1, Grouping.BATCHED: BATCH}.get(operation.grouping, GROUPS)
    found = []
    least = groups if operation.grouping.has_offsets else 1
    for turn, (name, (m, n, k)) in enumerate(_extents(kernel, tiling, operation).items()):
        problem = Problem(operation, max(m, least), n, max(k, least), groups)
        if kernel.is_fallback:  # of any extents, at addresses that are not aligned
            problem, offset = replace(problem, operation=operation.layouts[turn % len(operation.layouts)]), 1
        else:
            problem, offset = rounded(problem, kernel.facts["m_multiple"], kernel.facts["n_multiple"]), 0
        arrangement = arrangements[(kernel.index + turn) % len(arrangements)]
        sizes = SIZES[(kernel.index + turn) % len(SIZES)]
        shape = EdgeShape(problem, 0, offset, arrangement=arrangement, sizes=sizes)
        promises = (False, True) if name == "few" else (bool(turn % 2),)
        order = kernel.index % NUM_ORDERS if orders and name == "many" else HEURISTIC
        found.append(Case(f"{name} {shape} {order_name(order)}".rstrip(), turn, shape, promises, order))
    return found


def _row_cases(kernel: ShippedKernel) -> list[Case]:
    """List the edge cases of a kernel of an operation on rows by their width."""
    operation, limits = row_operation(kernel.facts["operation"]), RowLimits(**kernel.facts["limits"])
    widths: dict[int, list[RowCase]] = {}
    for case in row_cases(operation, limits):
        widths.setdefault(case.cols, []).append(case)
    return [
        Case(f"rows of {cols} columns", 0 if i < EARLY_WIDTHS else 1, rows=tuple(cases))
        for i, (cols, cases) in enumerate(sorted(widths.items()))
    ]
