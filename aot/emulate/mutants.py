"""Kernels with one fault each, made of a right one: by how many of them are found, one knows what the interpreter sees.

Each mutant takes a synchronising instruction out, or changes one of its operands, or a descriptor, or a layout. What is
taken out is the order between two accesses, so that a vector clock should show it in every schedule; a changed operand
shows as a fault, a deadlock or a wrong result. A mutant that nothing shows is either a redundancy of the kernel, which
orders the accesses otherwise too, or a blind spot of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from aot.emulate.ptx import Address, Immediate, Instruction, Kernel, Operand, Register, Vector

NOTHING = "bar.warp.sync"
"""A form that does nothing here, and that a mutant has in the place of an instruction that is taken out."""


class Change(Enum):
    """What is changed in a mutant."""

    WAIT = "wait for an mbarrier taken out"
    ARRIVAL = "arrival at a barrier taken out"
    THREAD_BARRIER = "barrier of threads taken out"
    CLUSTER_BARRIER = "barrier of a cluster taken out"
    GROUP_WAIT = "wait for a group of asynchronous operations taken out"
    PROXY_FENCE = "proxy fence taken out"
    INIT_FENCE = "fence of an mbarrier's initialisation taken out"
    PRODUCT_FENCE = "wgmma.fence taken out"
    MEMORY_FENCE = "memory fence taken out"
    FRONT = "wait for the kernel in front taken out"
    PARITY = "parity of a wait shifted"
    BYTES_LESS = "16 bytes less expected"
    BYTES_MORE = "16 bytes more expected"
    COUNT = "one arrival more expected"
    START = "operand's start address moved by 16 bytes"
    LEADING = "operand's leading offset changed by 16 bytes"
    STRIDE = "operand's stride offset changed by 16 bytes"
    SWIZZLE = "operand's swizzle exchanged"
    MAJOR = "operand's major mode exchanged"
    TRANSPOSED = "matrix stored or loaded as its transpose"
    COORDINATE = "box moved by one along its first mode"
    BOX_ADDRESS = "box's place in shared memory moved by 128 bytes"


@dataclass(frozen=True)
class Mutant:
    """A kernel with one fault."""

    change: Change
    line: int
    text: str
    """The instruction, as it was."""
    kernel: Kernel


_REMOVED: tuple[tuple[str, Change], ...] = (
    ("mbarrier.arrive", Change.ARRIVAL),
    ("tcgen05.commit", Change.ARRIVAL),
    ("cp.async.mbarrier.arrive", Change.ARRIVAL),
    ("bar.arrive", Change.ARRIVAL),
    ("bar.sync", Change.THREAD_BARRIER),
    ("barrier.sync", Change.THREAD_BARRIER),
    ("barrier.cluster.arrive", Change.CLUSTER_BARRIER),
    ("barrier.cluster.wait", Change.CLUSTER_BARRIER),
    ("cp.async.bulk.wait_group", Change.GROUP_WAIT),
    ("cp.async.wait_group", Change.GROUP_WAIT),
    ("cp.async.wait_all", Change.GROUP_WAIT),
    ("wgmma.wait_group", Change.GROUP_WAIT),
    ("tcgen05.wait", Change.GROUP_WAIT),
    ("fence.proxy.async", Change.PROXY_FENCE),
    ("fence.mbarrier_init", Change.INIT_FENCE),
    ("wgmma.fence", Change.PRODUCT_FENCE),
    ("fence.acq_rel", Change.MEMORY_FENCE),
    ("fence.sc", Change.MEMORY_FENCE),
    ("membar", Change.MEMORY_FENCE),
    ("griddepcontrol.wait", Change.FRONT),
)
"""What is taken out, by the start of its form."""

_WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")


def _insert(kernel: Kernel, at: int, new: tuple[Instruction, ...], changed: Instruction) -> Kernel:
    """Put instructions in front of one, which is changed too; branches to it go to the first of them."""

    def moved(instruction: Instruction) -> Instruction:
        target = instruction.target
        return replace(instruction, target=target + len(new)) if target is not None and target > at else instruction

    old = [moved(x) for x in kernel.instructions]
    return replace(kernel, instructions=(*old[:at], *new, moved(changed), *old[at + 1 :]))


class _Editor:
    """Makes the mutants of one instruction."""

    def __init__(self, kernel: Kernel, at: int) -> None:
        self._kernel, self._at = kernel, at
        self.instruction = kernel.instructions[at]

    def _mutant(self, change: Change, kernel: Kernel) -> Mutant:
        return Mutant(change, self.instruction.line, self.instruction.text, kernel)

    def replaced(self, change: Change, **fields: object) -> Mutant:
        """Change fields of the instruction."""
        changed = replace(self.instruction, **fields)  # type: ignore[arg-type]
        return self._mutant(change, _insert(self._kernel, self._at, (), changed))

    def taken_out(self, change: Change) -> Mutant:
        """Take the instruction out."""
        return self.replaced(change, opcode=NOTHING, operands=(Immediate(-1),))

    def computed(self, change: Change, number: int, opcode: str, value: int, kind: str) -> Mutant:
        """Let an operand be computed from the original one by an instruction with a constant."""
        operand = self.instruction.operands[number]
        register = f"%mutant{self._at}"
        operands = list(self.instruction.operands)
        operands[number] = Register(register)
        new = Instruction(
            self.instruction.line, opcode, (Register(register), operand, Immediate(value)), None, None, ""
        )
        kernel = replace(self._kernel, registers={**self._kernel.registers, register: kind})
        changed = replace(self.instruction, operands=tuple(operands))
        return self._mutant(change, _insert(kernel, self._at, (new,), changed))

    def coordinates(self, change: Change, number: int) -> Mutant:
        """Move a box by one along its first mode."""
        operand = self.instruction.operands[number]
        if not isinstance(operand, Address) or not isinstance(operand.rest[0], Vector):
            raise TypeError(f"{self.instruction.where}: operand {number} has no coordinates")
        register = f"%mutant{self._at}"
        items = operand.rest[0].items
        moved = replace(operand, rest=(Vector((Register(register), *items[1:])), *operand.rest[1:]))
        new = Instruction(
            self.instruction.line, "add.s32", (Register(register), items[0], Immediate(1)), None, None, ""
        )
        kernel = replace(self._kernel, registers={**self._kernel.registers, register: "b32"})
        operands = [*self.instruction.operands]
        operands[number] = moved
        changed = replace(self.instruction, operands=tuple(operands))
        return self._mutant(change, _insert(kernel, self._at, (new,), changed))


def _of_barriers(editor: _Editor) -> Iterator[Mutant]:
    opcode, operands = editor.instruction.opcode, editor.instruction.operands
    if opcode.startswith(_WAITS):
        yield editor.replaced(Change.WAIT, opcode="mov.pred", operands=(operands[0], Immediate(1)))
        yield editor.computed(Change.PARITY, 2, "xor.b32", 1, "b32")
    if ".expect_tx" in opcode:
        count = len(operands) - 1
        yield editor.computed(Change.BYTES_LESS, count, "sub.s32", 16, "b32")
        yield editor.computed(Change.BYTES_MORE, count, "add.s32", 16, "b32")
    if opcode.startswith("mbarrier.init"):
        yield editor.computed(Change.COUNT, 1, "add.s32", 1, "b32")


def _descriptors(instruction: Instruction) -> list[int]:
    """List the operands that are shared memory descriptors."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode.startswith("wgmma.mma_async"):
        return [1, 2] if not isinstance(operands[1], Vector) else [2]
    if opcode.startswith("tcgen05.mma"):
        return [i for i in (1, 2) if not isinstance(operands[i], Address)]
    return [1] if opcode.startswith("tcgen05.cp") else []


def _of_descriptors(editor: _Editor) -> Iterator[Mutant]:
    """Change each field of a shared memory descriptor: bits 0 to 13 start, 16 to 29 leading, 32 to 45 stride offset.

    Source: PTX ISA, "Matrix Descriptor Format" of wgmma, "Shared Memory Descriptor" of tcgen05; the swizzle is in bits
    62 and 63 of the one, 61 to 63 of the other.
    """
    for number in _descriptors(editor.instruction):
        yield editor.computed(Change.START, number, "add.s64", 1, "b64")
        yield editor.computed(Change.LEADING, number, "xor.b64", 1 << 16, "b64")
        yield editor.computed(Change.STRIDE, number, "xor.b64", 1 << 32, "b64")
        yield editor.computed(Change.SWIZZLE, number, "xor.b64", 1 << 62, "b64")


def _flipped(operand: Operand) -> Operand:
    if not isinstance(operand, Immediate):
        raise TypeError(f"{operand} is no constant")
    return Immediate(1 - operand.value)


def _of_layouts(editor: _Editor) -> Iterator[Mutant]:
    opcode, operands = editor.instruction.opcode, editor.instruction.operands
    if opcode.startswith(("stmatrix", "ldmatrix")) and ".m8n8." in opcode:
        other = opcode.replace(".trans", "") if ".trans" in opcode else opcode.replace(".shared", ".trans.shared")
        yield editor.replaced(Change.TRANSPOSED, opcode=other)
    if opcode.startswith("tcgen05.mma") and "block_scale" not in opcode:
        yield editor.computed(Change.MAJOR, 3, "xor.b32", 1 << 15, "b32")
        yield editor.computed(Change.MAJOR, 3, "xor.b32", 1 << 16, "b32")
    is_16_bit = opcode.startswith("wgmma.mma_async") and opcode.endswith(("bf16.bf16", "f16.f16"))
    for number in range(6, len(operands)) if is_16_bit else ():
        changed = (*operands[:number], _flipped(operands[number]), *operands[number + 1 :])
        yield editor.replaced(Change.MAJOR, operands=changed)


def _of_boxes(editor: _Editor) -> Iterator[Mutant]:
    opcode, operands = editor.instruction.opcode, editor.instruction.operands
    if not opcode.startswith("cp.async.bulk.tensor"):
        return
    is_store = ".global.shared::cta" in opcode
    yield editor.coordinates(Change.COORDINATE, 0 if is_store else 1)
    place = operands[1 if is_store else 0]
    if isinstance(place, Address):
        moved = replace(place, offset=place.offset + 128)
        changed = (operands[0], moved, *operands[2:]) if is_store else (moved, *operands[1:])
        yield editor.replaced(Change.BOX_ADDRESS, operands=changed)


_MAKERS: tuple[Callable[[_Editor], Iterator[Mutant]], ...] = (_of_barriers, _of_descriptors, _of_layouts, _of_boxes)


def mutants(kernel: Kernel) -> Iterator[Mutant]:
    """Make all mutants of a kernel, in the order of its instructions."""
    for at, instruction in enumerate(kernel.instructions):
        editor = _Editor(kernel, at)
        for start, change in _REMOVED:
            if instruction.opcode.startswith(start) and ".expect_tx.relaxed" not in instruction.opcode:
                yield editor.taken_out(change)
                break
        for maker in _MAKERS:
            yield from maker(editor)
