"""What `aot emulate --trace` prints of an instruction: where, which lanes, and the values that it reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.errors import CandidateError
from aot.emulate.ptx import Address, Negated, Pair, Register, Vector

if TYPE_CHECKING:
    from aot.emulate.ptx import Instruction, Operand
    from aot.emulate.running import Warp
    from aot.emulate.types import Value

_PLACE = re.compile(r"(\d+),(\d+),(\d+):(\d+)")
NUM_SHOWN = 4
"""Lanes whose values are shown where they differ."""


@dataclass(frozen=True)
class TracedWarp:
    """One warp of a launch."""

    cta: tuple[int, int, int]
    warp: int

    @staticmethod
    def parse(text: str) -> TracedWarp | None:
        """Read `X,Y,Z:WARP`; `all` is None.

        Raises:
            CandidateError: it is neither.
        """
        if text == "all":
            return None
        found = _PLACE.fullmatch(text)
        if found is None:
            raise CandidateError(f"{text!r} is no warp; write X,Y,Z:WARP, such as 0,0,0:1, or all")
        x, y, z, warp = map(int, found.groups())
        return TracedWarp((x, y, z), warp)

    def is_of(self, warp: Warp) -> bool:
        """Say whether this is the warp."""
        return (tuple(warp.cta.ctaid), warp.index) == (self.cta, self.warp)


def _registers(operand: Operand) -> list[str]:
    match operand:
        case Register(name):
            return [name]
        case Vector(items):
            return [name for x in items for name in _registers(x)]
        case Pair(first, second):
            return [*_registers(first), *_registers(second)]
        case Negated(x):
            return _registers(x)
        case Address(base, _, rest):
            return [*_registers(base), *(name for x in rest for name in _registers(x))]
    return []


def _shown(value: Value, mask: Value) -> str:
    """Return a register's raw bits: one number where it is the same in all active lanes, else those of the first."""
    active = value[mask]
    if not active.size:
        return "-"
    texts = ["".join(f"{int(x):x}" for x in np.atleast_1d(lane)[::-1]) for lane in active]
    if len(set(texts)) == 1:
        return texts[0]
    return " ".join(texts[:NUM_SHOWN]) + (" ..." if len(texts) > NUM_SHOWN else "")


def trace_line(warp: Warp, instruction: Instruction) -> str:
    """Return the line of an instruction that a warp is about to execute.

    It has the CTA, the warp, the mask of active lanes in hexadecimal, the instruction's line of the PTX and text, and
    the bits of each register that it names before it is executed, in hexadecimal: of a destination what is overwritten.
    """
    guard = [] if instruction.guard is None else [instruction.guard.register]
    names = dict.fromkeys([*guard, *(name for x in instruction.operands for name in _registers(x))])
    slots = warp.launch.kernel.slots
    values = [f"{name}={_shown(warp.registers[slots[name]], warp.mask)}" for name in names]
    mask = int(np.packbits(warp.mask, bitorder="little").view(np.uint32)[0])
    place = f"{','.join(map(str, warp.cta.ctaid))}:{warp.index} {mask:08x}"
    return f"{place}  {instruction.line}: {instruction.text}  {' '.join(values)}".rstrip()
