"""Loads from tensor memory, and stores to it, that a warp has issued and not waited for.

tcgen05.ld and tcgen05.st are asynchronous: what they read or write is ordered for others only by tcgen05.wait. The
registers of a load are there behind tcgen05.wait::ld. In machine code they are also waited for where they are used, so
that a kernel which uses them without the wait is right on the chips that are known, and a load whose registers were
used is over. Copies of registers by mov are no use: the assembler removes them. Source: PTX ISA, tcgen05.ld,
tcgen05.wait, "Tensorcore 5th Generation Family Instructions: Memory Consistency Model"; that a use waits is inferred
from the machine code of kernels without a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class TensorLoads:
    """What a warp has under way, by the bits of its operations."""

    __slots__ = ("loads", "registers", "stores")

    def __init__(self) -> None:
        self.loads = self.stores = 0
        self.registers: dict[int, int] = {}
        """Slots that loads under way write, and copies of them, with the bits of the loads."""

    def load(self, bit: int, slots: Iterable[int | None]) -> None:
        """Note that a load is under way to registers."""
        self.loads |= bit
        self.registers.update((x, bit) for x in slots if x is not None)

    def bits_of(self, slots: Collection[int]) -> int:
        """Return the bits of the loads that registers wait for."""
        found = 0
        for x in slots:
            found |= self.registers.get(x, 0)
        return found

    def copy(self, bits: int, slots: Iterable[int | None]) -> None:
        """Note that registers hold copies of what loads bring."""
        self.registers.update((x, bits) for x in slots if x is not None)

    def end(self, bits: int) -> int:
        """Take loads as over; return their bits, which the warp knows to be complete from then on."""
        self.loads &= ~bits
        self.registers = {slot: left for slot, x in self.registers.items() if (left := x & ~bits)}
        return bits

    def end_loads(self) -> int:
        """Take all loads as over, as tcgen05.wait::ld does; return their bits."""
        return self.end(self.loads)

    def end_stores(self) -> int:
        """Take all stores as over, as tcgen05.wait::st does; return their bits."""
        found, self.stores = self.stores, 0
        return found
