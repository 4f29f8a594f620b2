"""tcgen05.mma: products whose results are in tensor memory, dense and of blocks with scale factors.

Source: PTX ISA, "Tensorcore 5th Generation Family Instructions": tcgen05.mma, "Matrix shape", "Scale factors". Operands
are read, and results written, at a time that the scheduler chooses; products of one warp complete in order.

A product is summed in float64 and rounded once to float32: the order and the rounding inside of hardware are not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import form
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.instruction_descriptor import (
    Element,
    InstructionDescriptor,
    Kind,
    decode_instruction_descriptor,
)
from aot.emulate.layouts.matrix_descriptor import K_BYTES, Major, MatrixUnit
from aot.emulate.layouts.tensor_memory import (
    NUM_LANES,
    Cells,
    accumulator_cells,
    factor_cells,
    split_address,
)
from aot.emulate.ptx import Address, Vector
from aot.emulate.tensor_memory import TENSOR_COLUMNS, TENSOR_GROUP_LANES
from aot.emulate.units._operands import (
    ELEMENT_BITS,
    Places,
    check_inside,
    located,
    operand_places,
    read_operand,
    values,
    word_dtype,
)
from aot.emulate.units.tcgen05_order import ctas_of_group, enqueue, make_ordered, single_lane

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.emulate.forms import Step
    from aot.emulate.operation import Operation
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Cta, Warp
    from aot.emulate.tensor_memory import TensorMemory

_COLLECTOR = "{,.collector::a::discard,.collector::a::lastuse,.collector::a::fill,.collector::a::use}"
"""Hints about the reuse of A, which change no result. Source: PTX ISA, tcgen05.mma, .collector_usage."""

FACTOR_ADDRESS_MASK = 0x3FFFFFFF
"""Bits 30 and 31 of a factor's address are the byte of a column, which the instruction descriptor has as well.

Source: CUTLASS, mma_sm100_desc.hpp, make_runtime_instr_desc_block_scaled.
"""


@dataclass(frozen=True)
class _Product:
    """One product as it was issued."""

    where: str
    ctas: list[Cta]
    descriptor: InstructionDescriptor
    d: Cells
    """Where each CTA has its rows of D."""
    a: Places | Cells
    """Where each CTA has its rows of A, in shared or in tensor memory."""
    b: Places
    """Where each CTA has its part of the rows of B."""
    accumulates: bool
    a_factors: _Factors | None = None
    b_factors: _Factors | None = None


@dataclass(frozen=True)
class _Factors:
    """Scale factors in tensor memory."""

    cells: Cells
    factor_bytes: NDArray[np.int64]
    block: int


@lru_cache(maxsize=1024)
def _accumulator(m: int, n: int, group: int, address: int) -> Cells:
    cells = accumulator_cells(m, n, group)
    lane, column = split_address(address)
    may_move = group == 1 and m == 64
    if lane and not (may_move and lane == 16):
        expected = "0 or 16" if may_move else "0"
        raise Fault(
            FaultKind.TENSOR_MEMORY, f"D of {m} rows of {group} CTAs begins in lane {lane}; expected {expected}"
        )
    return Cells(cells.lanes + lane, cells.columns + column)


@lru_cache(maxsize=1024)
def _ordered_cells(cells: Cells) -> NDArray[np.int64]:
    """Return what accesses to cells of tensor memory are ordered by: see `TensorMemory.cells`."""
    return np.unique(cells.lanes // TENSOR_GROUP_LANES * TENSOR_COLUMNS + cells.columns)


def _check_columns(tensor: TensorMemory, cells: Cells) -> None:
    low, high = int(cells.columns.min()), int(cells.columns.max())
    tensor.check_allocated(low, high + 1 - low, "operand of tcgen05.mma")


@form(f"tcgen05.mma.cta_group::{{1,2}}.kind::{{f16,tf32,f8f6f4,i8}}{_COLLECTOR}")
def multiply(program: Program, instruction: Instruction) -> Step:
    """Multiply operands of shared memory, or A of tensor memory, and add to D where the predicate holds."""
    where, (kind, group) = instruction.where, _kind(instruction)
    operands = instruction.operands
    d = program.address(operands[0])
    in_tensor_memory = isinstance(operands[1], Address)
    a_address = program.address(operands[1]) if in_tensor_memory else None
    a_slot = None if in_tensor_memory else program.source(operands[1], "b64")
    b_slot, descriptor = program.source(operands[2], "b64"), program.source(operands[3], "b32")
    masks = program.sources(operands[4], "b32") if isinstance(operands[4], Vector) else []
    accumulate = program.source(operands[4 + bool(masks)], "pred")
    if len(operands) != 5 + bool(masks):
        raise ValueError("an input scale of D")

    def run(warp: Warp) -> None:
        lane = single_lane(warp, where)
        registers = warp.registers
        if any(int(registers[x][lane]) for x in masks):
            raise UnsupportedLayoutError(f"{where}: disables lanes of D; expected none disabled")
        with located(where):
            found = decode_instruction_descriptor(int(registers[descriptor][lane]), kind, group)
            if a_address is not None:
                a: Places | Cells = _a_in_tensor_memory(found, int(a_address(warp)[lane]), group)
            else:
                a = _operand_a(found, int(registers[a_slot or 0][lane]), group)
            product = _Product(
                where,
                _ctas(warp, group, where),
                found,
                _accumulator(found.m, found.n, group, int(d(warp)[lane])),
                a,
                _operand_b(found, int(registers[b_slot][lane]), group),
                bool(registers[accumulate][lane]),
            )
            _issue(warp, product)

    return run


@form(
    f"tcgen05.mma.cta_group::{{1,2}}.kind::mxf4nvf4.block_scale.{{block16,block32}}{_COLLECTOR}",
    f"tcgen05.mma.cta_group::{{1,2}}.kind::{{mxf4,mxf8f6f4}}.block_scale{{,.block32}}{_COLLECTOR}",
)
def multiply_blocks(program: Program, instruction: Instruction) -> Step:
    """Multiply operands of shared memory whose blocks along k have scale factors in tensor memory."""
    where, (kind, group) = instruction.where, _kind(instruction)
    block = 16 if ".block16" in instruction.opcode else 32
    operands = instruction.operands
    d, a_scale, b_scale = (program.address(operands[i]) for i in (0, 4, 5))
    a_slot, b_slot = (program.source(x, "b64") for x in operands[1:3])
    descriptor, accumulate = program.source(operands[3], "b32"), program.source(operands[6], "pred")

    def run(warp: Warp) -> None:
        lane = single_lane(warp, where)
        registers = warp.registers
        with located(where):
            found = decode_instruction_descriptor(int(registers[descriptor][lane]), kind, group)
            if found.m != NUM_LANES * group:
                raise UnsupportedLayoutError(f"block-scaled product of M {found.m} of {group} CTAs; expected 128 a CTA")
            product = _Product(
                where,
                _ctas(warp, group, where),
                found,
                _accumulator(found.m, found.n, group, int(d(warp)[lane])),
                _operand_a(found, int(registers[a_slot][lane]), group),
                _operand_b(found, int(registers[b_slot][lane]), group),
                bool(registers[accumulate][lane]),
                _factors(NUM_LANES, found.k, found.a_factor_byte, block, int(a_scale(warp)[lane])),
                # Each CTA of a pair has half of B, and the factors of all of it.
                _factors(found.n, found.k, found.b_factor_byte, block, int(b_scale(warp)[lane])),
            )
            _issue(warp, product)

    return run


def _kind(instruction: Instruction) -> tuple[Kind, int]:
    parts = instruction.opcode.split(".")
    return Kind(next(x for x in parts if x.startswith("kind::"))[6:]), int(parts[2][-1])


def _ctas(warp: Warp, group: int, where: str) -> list[Cta]:
    ctas = ctas_of_group(warp, group, where)
    if warp.cta is not ctas[0]:
        raise Fault(FaultKind.TENSOR_MEMORY, f"{where}: issued by the odd CTA of a pair; expected the even one")
    return ctas


def _operand_a(found: InstructionDescriptor, value: int, group: int) -> Places:
    rows = found.m // group
    return _places(found, found.a, value, rows, found.a_major)


def _operand_b(found: InstructionDescriptor, value: int, group: int) -> Places:
    rows = found.n // group
    return _places(found, found.b, value, rows, found.b_major)


def _places(found: InstructionDescriptor, element: Element, value: int, rows: int, major: Major) -> Places:
    is_padded = found.is_padded(element)
    return operand_places(value, MatrixUnit.TCGEN05, rows, 0, rows, ELEMENT_BITS[element], major, is_padded=is_padded)


@lru_cache(maxsize=1024)
def _a_in_tensor_memory(found: InstructionDescriptor, address: int, group: int) -> Cells:
    """Return where A lies: the lanes are those of D, a column has 4 bytes of k."""
    if group == 2 and found.m == NUM_LANES:
        raise UnsupportedLayoutError("A in tensor memory of a pair with 64 rows a CTA; expected 128 rows a CTA")
    cells = accumulator_cells(found.m, K_BYTES // 4, group)
    lane, column = split_address(address)
    return Cells(cells.lanes + lane, cells.columns + column)


@lru_cache(maxsize=1024)
def _factors(rows: int, k: int, first_byte: int, block: int, address: int) -> _Factors:
    lane, column = split_address(address & FACTOR_ADDRESS_MASK)
    if lane:
        raise UnsupportedLayoutError(f"scale factors from lane {lane} on; expected lane 0")
    found = factor_cells(rows, k // block, first_byte)
    return _Factors(Cells(found.lanes, found.columns + column), found.factor_bytes, block)


def _issue(warp: Warp, product: _Product) -> None:
    def complete() -> None:
        if any(x.done for x in product.ctas):
            raise Fault(FaultKind.EXITED, f"{product.where}: a CTA of the product has exited")
        _complete(product)

    operation = make_ordered(warp, "tcgen05.mma", product.where, complete)
    for cta in product.ctas:
        _declare(operation, cta, product)
    enqueue(warp, operation)


def _declare(operation: Operation, cta: Cta, product: _Product) -> None:
    """Check and note what a product reads and writes of one CTA."""
    tensor, agent = cta.tensor_memory, operation.agent
    factors = [x.cells for x in (product.a_factors, product.b_factors) if x is not None]
    read = [*factors, product.a] if isinstance(product.a, Cells) else factors
    for cells in read:
        _check_columns(tensor, cells)
        tensor.shadow.read(agent, _ordered_cells(cells))
    for places in (product.a, product.b):
        if isinstance(places, Places):
            check_inside(cta, places)
            cta.shared.shadow.read(agent, places.cells, places.bits)
    _check_columns(tensor, product.d)
    tensor.shadow.write(agent, _ordered_cells(product.d))


def _complete(product: _Product) -> None:
    found = product.descriptor
    b = np.concatenate([read_operand(x, product.b, found.b) for x in product.ctas])
    for cta in product.ctas:
        words = cta.tensor_memory.words
        a = _read_a(cta, product)
        if product.a_factors is not None and product.b_factors is not None and found.factor is not None:
            a = a * _read_factors(words, product.a_factors, found.factor)
            scaled = b * _read_factors(words, product.b_factors, found.factor)
            product_of_rows = a @ scaled.T
        else:
            product_of_rows = a @ b.T
        at = (product.d.lanes, product.d.columns)
        words[at] = _accumulate(words[at], found.sign * product_of_rows, product)


def _read_a(cta: Cta, product: _Product) -> NDArray[np.float64]:
    element = product.descriptor.a
    if isinstance(product.a, Places):
        return read_operand(cta, product.a, element)
    words = np.ascontiguousarray(cta.tensor_memory.words[product.a.lanes, product.a.columns])
    return values(words.view(word_dtype(element)), element)


def _read_factors(words: NDArray[np.uint32], factors: _Factors, element: Element) -> NDArray[np.float64]:
    """Return the factor of each element of k, of shape (rows, k)."""
    columns = words[factors.cells.lanes, factors.cells.columns]
    raw = (columns >> (8 * factors.factor_bytes).astype(np.uint32) & np.uint32(0xFF)).astype(np.uint8)
    return np.repeat(values(raw, element), factors.block, axis=1)


def _accumulate(old: NDArray[np.uint32], new: NDArray[np.float64], product: _Product) -> NDArray[np.uint32]:
    d, sums = product.descriptor.d, new
    if d is Element.S32:
        whole: Any = new.astype(np.int64)
        if product.accumulates:
            whole = whole + old.view(np.int32)
        if product.descriptor.saturates:
            whole = np.clip(whole, -(2**31), 2**31 - 1)
        return np.asarray(whole.astype(np.uint32))
    if d is not Element.F32:
        raise UnsupportedLayoutError(f"{product.where}: D of {d.value}; expected f32 or s32")
    if product.accumulates:
        sums = new + old.view(np.float32)
    return sums.astype(np.float32).view(np.uint32)
