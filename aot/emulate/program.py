"""A kernel made executable: each instruction becomes a function of a warp, by the table of forms."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind, FindingKind, UnknownInstructionError
from aot.emulate.forms import YIELD, build_of
from aot.emulate.memory import PARAMETER_WINDOW, SHARED_START
from aot.emulate.ptx import (
    Address,
    Discard,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from aot.emulate.types import BYTES, LANES, UNSIGNED, raw_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aot.emulate.forms import Step
    from aot.emulate.running import Warp
    from aot.emulate.types import Value

_SPECIAL = re.compile(
    r"%(n?tid|n?ctaid|cluster_n?ctaid|n?clusterid)\.[xyz]|%cluster_n?ctarank|%(laneid|warpid|n?smid|clock(64)?|globaltimer)"
)
"""The special registers that are known."""
POISON = 0xDEADBEEFDEADBEEF
"""What registers hold that nothing has written."""


def _registers(operand: Operand) -> Iterator[Register]:
    match operand:
        case Register():
            yield operand
        case Vector(items):
            for x in items:
                yield from _registers(x)
        case Pair(first, second):
            yield from (*_registers(first), *_registers(second))
        case Negated(x):
            yield from _registers(x)
        case Address(base, _, rest):
            for x in (base, *rest):
                yield from _registers(x)


class Program:
    """A kernel whose instructions are functions.

    Raises:
        UnknownInstructionError: a form is not in the table, or its operands are not of the shape that it takes.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._slots = kernel.slots
        self._initial: list[Value | None] = [self._poison(x) for x in kernel.registers.values()]
        self._constants: dict[tuple[int, Any], int] = {}
        self._specials: dict[tuple[str, Any], int] = {}
        self._code = [self._compile(x) for x in kernel.instructions]
        self._touched = [self._registers_of(x) for x in kernel.instructions]

    @staticmethod
    def _poison(kind: str) -> Value:
        if kind == "b128":
            return np.full((32, 2), POISON, np.uint64)
        dtype = np.dtype(raw_dtype(kind))
        return np.zeros(32, bool) if kind == "pred" else np.full(32, POISON >> (64 - 8 * dtype.itemsize), dtype)

    # What builders ask.

    def refuse(self, instruction: Instruction, why: str = "") -> UnknownInstructionError:
        """Return the error of an instruction whose form is known, and whose operands are not of a known shape."""
        return UnknownInstructionError(
            f"{instruction.opcode} with such operands {why}".rstrip(), instruction.text, instruction.line
        )

    def constant(self, value: int, kind: str) -> int:
        """Return the slot of a constant of a type."""
        dtype = raw_dtype(kind)
        bits = 1 if dtype is np.bool_ else 8 * np.dtype(dtype).itemsize
        key = (value & ((1 << bits) - 1), dtype)
        if key not in self._constants:
            self._constants[key] = len(self._initial)
            self._initial.append(np.full(32, key[0], dtype))
        return self._constants[key]

    def constant_value(self, operand: Operand) -> int:
        """Return the value of an operand that must be a constant."""
        if not isinstance(operand, Immediate):
            raise TypeError(f"{operand} is no constant")
        return operand.value

    def _special(self, name: str, dtype: Any) -> int:
        if (name, dtype) not in self._specials:
            self._specials[name, dtype] = len(self._initial)
            self._initial.append(None)
        return self._specials[name, dtype]

    def type_of(self, operand: Operand) -> str:
        """Return the declared type of a register."""
        if not isinstance(operand, Register):
            raise TypeError(f"{operand} is no register")
        return self.kernel.registers[operand.name]

    def source(self, operand: Operand, kind: str) -> int:
        """Return the slot of a source operand of a type: its raw bits in all lanes."""
        match operand:
            case Register(name):
                return self._slots[name]
            case Immediate(value):
                return self.constant(value, kind)
            case Special(name) if _SPECIAL.fullmatch(name):
                return self._special(name, raw_dtype(kind))
            case Symbol(name) if name in self.kernel.parameters:
                return self.constant(PARAMETER_WINDOW + self.kernel.parameters[name][0], kind)
            case Symbol(name) if name in self.kernel.shared or name in self.kernel.dynamic:
                return self._special(f"&{name}", raw_dtype(kind))
        raise TypeError(f"{operand} is no source")

    def sources(self, operand: Operand, kind: str) -> list[int]:
        """Return the slots of a vector's parts, or of a single operand, of a type each."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return [self.source(x, kind) for x in items]

    def destination(self, operand: Operand) -> int | None:
        """Return the slot of a destination; None of one that is discarded."""
        if isinstance(operand, Discard):
            return None
        if isinstance(operand, Register):
            return self._slots[operand.name]
        raise TypeError(f"{operand} is no destination")

    def destinations(self, operand: Operand) -> list[int | None]:
        """Return the slots of a vector's parts, or of a single destination."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return [self.destination(x) for x in items]

    def address(self, operand: Operand) -> Callable[[Warp], Value]:
        """Return a function from a warp to the addresses of its 32 lanes, of 32 or 64 bits."""
        if not isinstance(operand, Address):
            raise TypeError(f"{operand} is no address")
        base = operand.base
        is_narrow = isinstance(base, Register) and BYTES[self.kernel.registers[base.name]] == 4
        is_narrow |= isinstance(base, Symbol) and base.name not in self.kernel.parameters
        kind = "b32" if is_narrow else "b64"
        slot = self.source(base, kind)
        if operand.offset == 0:
            return lambda warp: warp.registers[slot]
        dtype = UNSIGNED[BYTES[kind]]
        add = dtype(operand.offset & (2 ** (8 * BYTES[kind]) - 1))
        return lambda warp: warp.registers[slot] + add

    # Compiling.

    def _registers_of(self, instruction: Instruction) -> frozenset[int] | None:
        """Return the slots that an instruction reads or writes; None of wgmma.mma_async, which may chain."""
        if instruction.opcode.startswith("wgmma."):
            return None
        return frozenset(self._slots[x.name] for operand in instruction.operands for x in _registers(operand))

    def _compile(self, instruction: Instruction) -> Step:
        build = build_of(instruction.opcode)
        if build is None:
            raise UnknownInstructionError(instruction.opcode, instruction.text, instruction.line)
        try:
            run = build(self, instruction)
        except (TypeError, ValueError, IndexError) as error:
            raise self.refuse(instruction, str(error)) from error
        if instruction.guard is None or instruction.opcode.split(".")[0] in ("bra", "ret", "exit"):
            return run  # these look at the predicate themselves
        slot, is_negated = self._slots[instruction.guard.register], instruction.guard.is_negated

        def guarded(warp: Warp) -> int | None:
            predicate = warp.registers[slot]
            mask = warp.mask & (~predicate if is_negated else predicate)
            if not mask.any():
                return None
            old, full = warp.mask, warp.full
            warp.mask, warp.full = mask, bool(mask.all())
            result = run(warp)
            if not warp.done:
                warp.mask, warp.full = old, full
            return result

        return guarded

    def guard_slot(self, instruction: Instruction) -> tuple[int, bool] | None:
        """Return the slot of an instruction's predicate, and whether it is negated."""
        guard = instruction.guard
        return None if guard is None else (self._slots[guard.register], guard.is_negated)

    # Executing.

    def registers_of(self, warp: Warp) -> list[Value]:
        """Make the registers of a warp that begins."""
        registers = list(self._initial)
        for (name, dtype), slot in self._specials.items():
            value = np.asarray(self._value_of(name, warp))
            registers[slot] = np.broadcast_to(value, (32,)).astype(dtype)
        return registers  # type: ignore[return-value]

    def _value_of(self, name: str, warp: Warp) -> Any:
        """Return a special register's value, or the address of a shared variable.

        Source: PTX ISA, "Special Registers".
        """
        launch, cta = warp.launch.launch, warp.cta
        if name[0] == "&":
            kernel = self.kernel
            offset = kernel.dynamic_start if name[1:] in kernel.dynamic else kernel.shared[name[1:]]
            return cta.window + SHARED_START + offset
        block, grid, cluster = launch.block, launch.grid, launch.cluster
        linear = 32 * warp.index + LANES
        rank = cta.rank
        vectors: dict[str, tuple[Any, Any, Any]] = {
            "%tid": (linear % block[0], linear // block[0] % block[1], linear // block[0] // block[1]),
            "%ntid": block,
            "%ctaid": cta.ctaid,
            "%nctaid": grid,
            "%cluster_ctaid": (rank % cluster[0], rank // cluster[0] % cluster[1], rank // cluster[0] // cluster[1]),
            "%cluster_nctaid": cluster,
            "%clusterid": tuple(cta.ctaid[i] // cluster[i] for i in range(3)),  # type: ignore[dict-item]
            "%nclusterid": tuple(grid[i] // cluster[i] for i in range(3)),  # type: ignore[dict-item]
        }
        scalars = {
            "%cluster_ctarank": rank,
            "%cluster_nctarank": cluster[0] * cluster[1] * cluster[2],
            "%laneid": LANES,
            "%warpid": warp.index,
            "%smid": cta.cluster.number,
            "%nsmid": warp.device.resident,
            "%clock": 0,
            "%clock64": 0,
            "%globaltimer": 0,
        }
        if name in scalars:
            return scalars[name]
        vector, _, axis = name.rpartition(".")
        return vectors[vector]["xyz".index(axis)]

    def execute(self, warp: Warp, quantum: int) -> None:
        """Let a warp execute up to `quantum` instructions."""
        code, touched = self._code, self._touched
        observe = warp.device.counts_forms or warp.launch.trace is not None
        count = 0
        while count < quantum:
            if warp.pending:
                warp.reconverge()
            at = warp.pc
            if warp.untouchable:
                registers = touched[at]
                if registers and not warp.untouchable.isdisjoint(registers):
                    self._refuse_touch(warp)
            if warp.tensor_loads.registers:
                self._note_use(warp)
            if observe:
                self._observe(warp)
            result = code[at](warp)
            count += 1
            if result is None:
                warp.pc = at + 1
            elif result >= 0:
                warp.pc = result
            else:
                if result == YIELD:
                    warp.pc = at + 1
                break
        warp.count += count

    def _observe(self, warp: Warp) -> None:
        instruction = self.kernel.instructions[warp.pc]
        warp.device.counts[instruction.opcode] += 1
        if warp.launch.trace is not None:
            warp.launch.trace(warp, instruction)

    def _refuse_touch(self, warp: Warp) -> None:
        """Fault where an instruction that is not predicated off uses a register of a wgmma that was not waited for."""
        instruction = self.kernel.instructions[warp.pc]
        if self._is_predicated_off(warp, instruction):
            return
        text = f"{instruction.where}: uses a register of a wgmma in flight, before wgmma.wait_group"
        raise Fault(FaultKind.REGISTERS, text)

    def _is_predicated_off(self, warp: Warp, instruction: Instruction) -> bool:
        """Say whether an instruction that is no branch does nothing in any lane."""
        guard = self.guard_slot(instruction)
        if guard is None or instruction.target is not None:
            return False
        predicate = warp.registers[guard[0]]
        return not (warp.mask & (~predicate if guard[1] else predicate)).any()

    def _note_use(self, warp: Warp) -> None:
        """Take loads from tensor memory as over whose registers are used before a wait: see `TensorLoads`."""
        loads, touched = warp.tensor_loads, self._touched[warp.pc]
        bits = loads.bits_of(touched or ())
        instruction = self.kernel.instructions[warp.pc]
        if not bits or self._is_predicated_off(warp, instruction):
            return
        if instruction.opcode.startswith("mov."):
            loads.copy(bits, self.destinations(instruction.operands[0]))
            return
        warp.knowledge.join_done(loads.end(bits))
        warp.device.report(
            FindingKind.LETTER, instruction.where, "uses a register of a tcgen05.ld before tcgen05.wait::ld"
        )
