"""mma.sync, and the loads and stores of 8x8 matrices: ldmatrix and stmatrix.

Source: PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: mma", "Block Scaling for mma.sync", "ldmatrix",
"stmatrix". A product is summed in float64 and rounded once to float32: the order and the rounding inside of hardware
are not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import form
from aot.emulate.layouts.fragments import (
    MATRIX_B8_TRANSPOSED,
    MATRIX_B16,
    MATRIX_B16_TRANSPOSED,
    MatrixBytes,
    a_factor_lanes,
    a_fragment,
    accumulator_fragment,
    b_factor_lanes,
    b_fragment,
)
from aot.emulate.layouts.instruction_descriptor import Element
from aot.emulate.ptx import Immediate, Vector
from aot.emulate.units._operands import E2M1_VALUES, values, word_dtype
from aot.emulate.units.load_store import count_bank_conflicts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.emulate.forms import Step
    from aot.emulate.layouts.fragments import Fragment
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction, Operand
    from aot.emulate.running import Warp

ROW_BYTES = 16
"""Of a matrix in shared memory, at the address of one lane. Source: PTX ISA, ldmatrix."""

E2M1_SHIFT = 2
"""Bits below an e2m1 that has a byte to itself, as beside an operand of 8 bits. Source: PTX ISA, mma, .kind::f8f6f4."""

MAX_THREAD_IDS = 1, 3
"""Of A and of B. Source: PTX ISA, "Block Scaling for mma.sync": pairs of a quad, and threads of one."""


def _check_full(warp: Warp, where: str) -> None:
    if not warp.full:
        raise Fault(FaultKind.DIVERGENCE, f"{where}: warp {warp.index} of CTA {warp.cta.ctaid} has lanes elsewhere")


def _words(warp: Warp, slots: list[int], places: Fragment, shape: tuple[int, int]) -> NDArray[Any]:
    """Return the words of an operand's rows that the lanes of a warp have."""
    found = np.empty(shape, np.uint32)
    found[places.rows, places.columns] = np.stack([warp.registers[x] for x in slots])
    return found


@form(
    "mma.sync.aligned.m16n8k{8,16}.row.col.f32.{bf16.bf16,f16.f16}.f32",
    "mma.sync.aligned.m16n8k{4,8}.row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned.m16n8k{16,32}.row.col.f32.{e4m3,e5m2}.{e4m3,e5m2}.f32",
    "mma.sync.aligned.m16n8k{16,32}.row.col{,.satfinite}.s32.{s8,u8}.{s8,u8}.s32",
)
def multiply(program: Program, instruction: Instruction) -> Step:
    """Multiply 16 rows of A with 8 columns of B, and add C."""
    where, saturates = instruction.where, ".satfinite" in instruction.opcode
    types = [x for x in instruction.opcode.split(".") if x != "satfinite"][6:]
    a_element, b_element, is_integer = Element(types[1]), Element(types[2]), types[0] == "s32"
    d = program.destinations(instruction.operands[0])
    a, b, c = (program.sources(x, "b32") for x in instruction.operands[1:4])
    if len(d) != 4 or len(c) != 4 or len(a) != 2 * len(b):
        raise ValueError(f"{len(d)}, {len(a)}, {len(b)} and {len(c)} registers")
    a_place, b_place, accumulator = a_fragment(len(a)), b_fragment(len(b)), accumulator_fragment(4)
    width = 4 * len(b)

    def run(warp: Warp) -> None:
        _check_full(warp, where)
        a_words, b_words = _words(warp, a, a_place, (16, width)), _words(warp, b, b_place, (8, width))
        a_values = values(a_words.view(word_dtype(a_element)), a_element)
        product = a_values @ values(b_words.view(word_dtype(b_element)), b_element).T
        tiles = product[accumulator.rows, accumulator.columns]
        old = np.stack([warp.registers[x] for x in c])
        if is_integer:
            sums = tiles.astype(np.int64) + old.view(np.int32)
            new = (np.clip(sums, -(2**31), 2**31 - 1) if saturates else sums).astype(np.uint32)
        else:
            new = (tiles + old.view(np.float32)).astype(np.float32).view(np.uint32)
        for i, slot in enumerate(d):
            warp.put(slot, new[i])

    return run


def _selector(operand: Operand, num_factors: int, last_thread: int, where: str) -> tuple[int, int]:
    """Return byte-id and thread-id, constants of which the first is a multiple of the factors of a row."""
    items = operand.items if isinstance(operand, Vector) else ()
    found = tuple(x.value for x in items if isinstance(x, Immediate))
    if len(found) != 2 or found[0] not in range(0, 4, num_factors) or not 0 <= found[1] <= last_thread:
        text = f"{where}: {operand} selects no factors; expected a constant byte-id of {num_factors} bytes of a word"
        raise ValueError(f"{text}, and a thread-id of 0 to {last_thread}")
    return found[0], found[1]


def _scaled(words: NDArray[Any], element: Element, factors: NDArray[Any]) -> NDArray[np.float64]:
    """Return the values of an operand's rows, each block along k times its factor: exact in float64.

    With one factor a row, of .kind::mxf8f6f4, an e2m1 has a byte to itself.
    """
    raw = words.view(np.uint8)
    is_in_bytes = element is Element.E2M1 and factors.shape[1] == 1
    widened = E2M1_VALUES[raw >> E2M1_SHIFT & 15] if is_in_bytes else values(raw, element)
    return np.asarray(widened * np.repeat(factors, widened.shape[1] // factors.shape[1], axis=1))


@form(
    "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.{ue4m3,ue8m0}",
    "mma.sync.aligned.kind::{mxf4,mxf4nvf4}.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",
    "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32"
    ".{e4m3,e5m2,e2m1}.{e4m3,e5m2,e2m1}.f32.ue8m0",
)
def multiply_scaled(program: Program, instruction: Instruction) -> Step:
    """Multiply 16 rows of A with 8 columns of B, each block of k times the factors of both, and add C.

    A word of factors has those of one row. Of A they are taken from the lanes of a pair in each quad, of B from one.
    """
    where, types = instruction.where, instruction.opcode.split(".")
    elements, factor = [Element(x) for x in types[-4:-2]], Element(types[-1])
    num_factors = int(next(x for x in types if x.startswith("scale_vec::"))[-2])
    d = program.destinations(instruction.operands[0])
    a, b, c, factors_a, factors_b = (program.sources(instruction.operands[i], "b32") for i in (1, 2, 3, 4, 6))
    if [len(x) for x in (d, a, b, c, factors_a, factors_b)] != [4, 4, 2, 4, 1, 1]:
        raise ValueError(f"{len(d)}, {len(a)}, {len(b)} and {len(c)} registers")
    selected = [
        _selector(instruction.operands[i], num_factors, last, where)
        for i, last in zip((5, 7), MAX_THREAD_IDS, strict=True)
    ]
    lanes = a_factor_lanes(selected[0][1]), b_factor_lanes(selected[1][1])
    a_place, b_place, accumulator = a_fragment(4), b_fragment(2), accumulator_fragment(4)

    def factors(warp: Warp, side: int) -> NDArray[np.float64]:
        words = np.ascontiguousarray(warp.registers[(factors_a, factors_b)[side][0]][lanes[side]])
        first = selected[side][0]
        return values(words.view(np.uint8).reshape(-1, 4)[:, first : first + num_factors], factor)

    def run(warp: Warp) -> None:
        _check_full(warp, where)
        rows = _scaled(_words(warp, a, a_place, (16, 8)), elements[0], factors(warp, 0))
        columns = _scaled(_words(warp, b, b_place, (8, 8)), elements[1], factors(warp, 1))
        tiles = (rows @ columns.T)[accumulator.rows, accumulator.columns]
        old = np.stack([warp.registers[x] for x in c])
        new = (tiles + old.view(np.float32)).astype(np.float32).view(np.uint32)
        for i, slot in enumerate(d):
            warp.put(slot, new[i])

    return run


def _num_matrices(instruction: Instruction) -> int:
    return int(next(x for x in instruction.opcode.split(".") if x in {"x1", "x2", "x4"})[1:])


def _matrix(instruction: Instruction) -> MatrixBytes:
    if ".m16n8." in instruction.opcode:
        return MATRIX_B8_TRANSPOSED
    return MATRIX_B16_TRANSPOSED if ".trans" in instruction.opcode else MATRIX_B16


@form("ldmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}.shared{,::cta}.b16")
def load(program: Program, instruction: Instruction) -> Step:
    """Load matrices of 8 rows of 16 bytes, whose rows are at the addresses of 8 lanes each."""
    where, count, matrix = instruction.where, _num_matrices(instruction), _matrix(instruction)
    to, address = program.destinations(instruction.operands[0]), program.address(instruction.operands[1])
    if len(to) != count:
        raise ValueError(f"{len(to)} registers")

    def run(warp: Warp) -> None:
        _check_full(warp, where)
        shared = warp.cta.shared
        offsets = shared.offsets(address(warp)[: 8 * count], ROW_BYTES, where)
        count_bank_conflicts(warp, offsets, ROW_BYTES)
        rows = shared.read(warp.at(where), offsets, ROW_BYTES).reshape(count, 8, ROW_BYTES)
        for i, slot in enumerate(to):
            found = np.ascontiguousarray(rows[i][matrix.rows, matrix.columns])
            warp.put(slot, found.view(np.uint32).reshape(32))

    return run


@form(
    "stmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}.shared{,::cta}.b16",
    "stmatrix.sync.aligned.m16n8.{x1,x2,x4}.trans.shared{,::cta}.b8",
)
def store(program: Program, instruction: Instruction) -> Step:
    """Store matrices of 8 rows of 16 bytes, whose rows are at the addresses of 8 lanes each."""
    where, count, matrix = instruction.where, _num_matrices(instruction), _matrix(instruction)
    address, sources = program.address(instruction.operands[0]), program.sources(instruction.operands[1], "b32")
    if len(sources) != count:
        raise ValueError(f"{len(sources)} registers")

    def run(warp: Warp) -> None:
        _check_full(warp, where)
        shared = warp.cta.shared
        offsets = shared.offsets(address(warp)[: 8 * count], ROW_BYTES, where)
        count_bank_conflicts(warp, offsets, ROW_BYTES)
        rows = np.empty((count, 8, ROW_BYTES), np.uint8)
        for i, slot in enumerate(sources):
            word = np.ascontiguousarray(warp.registers[slot])
            rows[i][matrix.rows, matrix.columns] = word.view(np.uint8).reshape(32, 4)
        shared.write(warp.at(where), offsets, rows.reshape(-1, ROW_BYTES))

    return run
