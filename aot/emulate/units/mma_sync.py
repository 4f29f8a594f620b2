"""mma.sync, and the loads and stores of 8x8 matrices: ldmatrix and stmatrix.

Source: PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: mma", "ldmatrix", "stmatrix". A product is summed
in float64 and rounded once to float32: the order and the rounding inside of hardware are not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import form
from aot.emulate.layouts.fragments import (
    MATRIX_B8_TRANSPOSED,
    MATRIX_B16,
    MATRIX_B16_TRANSPOSED,
    MatrixBytes,
    a_fragment,
    accumulator_fragment,
    b_fragment,
)
from aot.emulate.layouts.instruction_descriptor import Element
from aot.emulate.units._operands import values, word_dtype
from aot.emulate.units.load_store import count_bank_conflicts

if TYPE_CHECKING:
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.warp import Warp

ROW_BYTES = 16
"""Of a matrix in shared memory, at the address of one lane. Source: PTX ISA, ldmatrix."""


def _check_full(warp: Warp, where: str) -> None:
    if not warp.full:
        raise Fault(FaultKind.DIVERGENCE, f"{where}: warp {warp.index} of CTA {warp.cta.ctaid} has lanes elsewhere")


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
        registers = warp.registers
        a_words, b_words = np.empty((16, width), np.uint32), np.empty((8, width), np.uint32)
        a_words[a_place.rows, a_place.columns] = np.stack([registers[x] for x in a])
        b_words[b_place.rows, b_place.columns] = np.stack([registers[x] for x in b])
        a_values = values(a_words.view(word_dtype(a_element)), a_element)
        product = a_values @ values(b_words.view(word_dtype(b_element)), b_element).T
        tiles = product[accumulator.rows, accumulator.columns]
        old = np.stack([registers[x] for x in c])
        if is_integer:
            sums = tiles.astype(np.int64) + old.view(np.int32)
            new = (np.clip(sums, -(2**31), 2**31 - 1) if saturates else sums).astype(np.uint32)
        else:
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
