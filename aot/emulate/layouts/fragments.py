"""Which thread of a warp has which element: fragments of mma.sync and wgmma, and the matrices of ldmatrix and stmatrix.

All are tested against the thread-value layouts of CuTe DSL's MMA and copy atoms.

Source: PTX ISA, "Matrix fragments for mma.m16n8k8" and the following sections; wgmma.mma_async, "Register fragments";
ldmatrix and stmatrix, fragment layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
_THREAD = np.arange(32)[None, :]


@dataclass(frozen=True)
class Fragment:
    """Row and column of what a register of a thread holds, each of shape (registers, 32)."""

    rows: Indices
    columns: Indices


def _fragment(rows: Indices, columns: Indices) -> Fragment:
    rows, columns = (np.ascontiguousarray(x, np.int64) for x in np.broadcast_arrays(rows, columns))
    rows.flags.writeable = columns.flags.writeable = False
    return Fragment(rows, columns)


@lru_cache(maxsize=64)
def a_fragment(num_registers: int) -> Fragment:
    """Return where the 32-bit words of A lie in a 16-row operand: the column counts words of four bytes of k.

    It is the same for every type, since k of an instruction is measured in bytes: 16 with two registers (m16n8k8 of
    16-bit types, m16n8k4 of tf32), 32 with four, and a wgmma's A in registers.
    """
    register = np.arange(num_registers)[:, None]
    return _fragment(_THREAD // 4 + 8 * (register % 2), _THREAD % 4 + 4 * (register // 2))


@lru_cache(maxsize=64)
def b_fragment(num_registers: int) -> Fragment:
    """Return where the 32-bit words of B lie: row n of 8, and the column counts words of four bytes of k."""
    register = np.arange(num_registers)[:, None]
    return _fragment(_THREAD // 4, _THREAD % 4 + 4 * register)


@lru_cache(maxsize=64)
def accumulator_fragment(num_registers: int) -> Fragment:
    """Return row of 16 and column of the 32-bit accumulators of a warp.

    With 4 registers it is that of mma.sync m16n8; with n / 2 that of a warp of wgmma m64, whose warp w has the rows
    from 16 w on.
    """
    register = np.arange(num_registers)[:, None]
    column = 8 * (register // 4) + 2 * (_THREAD % 4) + register % 2
    return _fragment(_THREAD // 4 + 8 * (register // 2 % 2), column)


@lru_cache(maxsize=2)
def a_factor_lanes(thread_id: int) -> Indices:
    """Return the lanes whose word has the scale factors of A's 16 rows, by the selector's pair of each quad.

    The pair's first thread has those of the quad's row, its second those of the row 8 below. Source: PTX ISA, "Block
    Scaling for mma.sync"; CUTLASS, include/cute/atom/mma_traits_sm120.hpp, SFALayout.
    """
    rows = np.arange(16)
    return np.asarray(4 * (rows % 8) + 2 * thread_id + rows // 8, np.int64)


@lru_cache(maxsize=4)
def b_factor_lanes(thread_id: int) -> Indices:
    """Return the lanes whose word has the scale factors of B's 8 columns, by the selector's thread of each quad.

    Source: the same.
    """
    return np.asarray(4 * np.arange(8) + thread_id, np.int64)


@dataclass(frozen=True)
class MatrixBytes:
    """Row of 8 and byte of 16 of the four bytes that a thread has of one matrix, each of shape (32, 4)."""

    rows: Indices
    columns: Indices


_BYTE = np.arange(4)[None, :]
_THREADS = np.arange(32)[:, None]


def _matrix(rows: Indices, columns: Indices) -> MatrixBytes:
    rows, columns = np.broadcast_arrays(rows, columns)
    return MatrixBytes(np.array(rows, np.int64), np.array(columns, np.int64))


MATRIX_B16 = _matrix(_THREADS // 4, 4 * (_THREADS % 4) + _BYTE)
"""m8n8 of 16-bit elements: a row of 16 bytes is at each of 8 addresses."""

MATRIX_B16_TRANSPOSED = _matrix(2 * (_THREADS % 4) + _BYTE // 2, 2 * (_THREADS // 4) + _BYTE % 2)
"""m8n8 of 16-bit elements with .trans."""

MATRIX_B8_TRANSPOSED = _matrix(2 * (_THREADS % 4) + _BYTE % 2, _THREADS // 4 + 8 * (_BYTE // 2))
"""m16n8 of 8-bit elements with .trans, of stmatrix: 8 rows of 16 bytes in shared memory."""
