"""Map the box of a TMA copy to shared memory and to rows of global memory.

The order of chunks and the swizzle are tested against CuTe DSL's layouts of the same tile. The rules at the borders are
those of the PTX ISA, and of results of kernels on an H200. Nothing independent checks gather4 and scatter4 but the PTX
ISA's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.swizzle import Addresses, Swizzle, swizzle
from aot.emulate.layouts.tensor_map import TensorMap

CHUNK_BYTES = 16
"""What is exchanged as one by every swizzle. Source: PTX ISA, "Tensor swizzling modes"."""

BOX_ALIGNMENT_BYTES = 128
"""Of a box in shared memory. Source: PTX ISA, cp.async.bulk.tensor: dstMem and srcMem are aligned to 128 bytes."""

GATHER_ROWS = 4
"""Source: PTX ISA, "tile::gather4 and tile::scatter4 modes"."""


@dataclass(frozen=True)
class BoxRows:
    """The rows of a box in global memory; `copied_row_bytes` of each go to shared memory."""

    starts: npt.NDArray[np.uint64]
    """Address of the first byte that is inside of the tensor, of each row that is."""
    indices: npt.NDArray[np.int64]
    """Which rows of the box these are."""
    first_byte: int
    """Bytes of each row in front of those that are inside."""
    num_bytes: int
    """Bytes of each row that are inside; none where there are no rows."""


@lru_cache(maxsize=1024)
def _chunks(mode: Swizzle, shared_address: int, num_chunks: int) -> Addresses:
    addresses = swizzle(shared_address + CHUNK_BYTES * np.arange(num_chunks, dtype=np.int64), mode)
    addresses.flags.writeable = False
    return addresses


def chunk_addresses(tensor_map: TensorMap, shared_address: int, num_rows: int | None = None) -> Addresses:
    """Return the shared addresses of the box's 16-byte chunks, in the order of the box, fastest mode first.

    Args:
        tensor_map: the descriptor.
        shared_address: of the box, within the shared memory window of a CTA.
        num_rows: rows that the copy moves; those of the box unless said, 4 for gather4 and scatter4.

    Raises:
        Fault: the address is not aligned to 128 bytes.
    """
    if shared_address % BOX_ALIGNMENT_BYTES:
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"TMA box at shared address {shared_address:#x}; expected a multiple of {BOX_ALIGNMENT_BYTES}; "
            "align the buffer",
        )
    rows = tensor_map.num_rows if num_rows is None else num_rows
    return _chunks(tensor_map.swizzle, shared_address, rows * tensor_map.row_bytes // CHUNK_BYTES)


def _columns(tensor_map: TensorMap, column: int) -> tuple[int, int, int]:
    """Return the first byte inside of a row, how many are, and the offset in global memory of the first."""
    bits = tensor_map.element.bits
    first, last = max(column, 0), min(column + tensor_map.box[0], tensor_map.extents[0])
    if first >= last:
        return 0, 0, 0
    counts = ((first - column) * bits, (last - first) * bits, first * bits)
    if any(count % 8 for count in counts):
        raise UnsupportedLayoutError(
            f"TMA box at column {column} of {tensor_map.extents[0]} elements of {bits} bits cuts a byte; "
            "expected an even column and extent"
        )
    skip, size, offset = (count // 8 for count in counts)
    return skip, size, offset


def _rows(tensor_map: TensorMap, column: int, coordinates: npt.NDArray[np.int64]) -> BoxRows:
    """Find the rows at `coordinates` of shape (rows, rank - 1)."""
    skip, size, offset = _columns(tensor_map, column)
    extents = np.array(tensor_map.extents[1:], np.int64)
    is_inside = ((coordinates >= 0) & (coordinates < extents)).all(axis=1)
    indices = np.flatnonzero(is_inside) if size else np.zeros(0, np.int64)
    # Ragged tensors of CuTe DSL count on addresses that wrap: unsigned numpy arithmetic is modulo 2^64.
    strides = np.array(tensor_map.strides, np.uint64)
    steps = (coordinates[indices].astype(np.uint64) * strides).sum(axis=1, dtype=np.uint64)
    starts = np.uint64((tensor_map.address + offset) % 2**64) + steps
    return BoxRows(starts, indices, skip, size)


@lru_cache(maxsize=256)
def _box_offsets(outer: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Enumerate the rows of a box, of shape (rows, modes), fastest mode first."""
    count = int(np.prod(outer, dtype=np.int64))
    return np.stack(np.unravel_index(np.arange(count), outer, order="F"), axis=1) if outer else np.zeros((1, 0), int)


def box_rows(tensor_map: TensorMap, coordinates: Sequence[int]) -> BoxRows:
    """Find the rows in global memory of the box at `coordinates`, fastest mode first; they may be negative.

    A row whose coordinates are outside of the tensor in any mode is not listed: a load fills it with zeros, a store
    leaves it out. Of the other rows the columns outside are treated so.

    Source: PTX ISA, "Tensor access modes" and cp.async.bulk.tensor: coordinates are signed 32-bit integers.

    Raises:
        Fault: there are not as many coordinates as modes.
    """
    if len(coordinates) != tensor_map.rank:
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"TMA copy with {len(coordinates)} coordinates of a tensor map of rank {tensor_map.rank}; "
            "expected one of each mode",
        )
    first = np.array(coordinates[1:], np.int64)
    return _rows(tensor_map, coordinates[0], first + _box_offsets(tensor_map.box[1:]))


def gathered_rows(tensor_map: TensorMap, coordinates: Sequence[int]) -> BoxRows:
    """Find the rows of a tile::gather4 or tile::scatter4 copy: a column, then the coordinates of four rows.

    Source: PTX ISA, "tile::gather4 and tile::scatter4 modes": the tensor has two dimensions, the box has one row, and
    five coordinates select four rows.

    Raises:
        Fault: the tensor is not of rank 2, its box not of one row, or there are not five coordinates.
    """
    if tensor_map.rank != 2 or tensor_map.box[1] != 1 or len(coordinates) != 1 + GATHER_ROWS:
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"gather4 or scatter4 with {len(coordinates)} coordinates, rank {tensor_map.rank}, box {tensor_map.box}; "
            "expected 5 coordinates, rank 2 and a box of one row",
        )
    return _rows(tensor_map, coordinates[0], np.array(coordinates[1:], np.int64)[:, None])
