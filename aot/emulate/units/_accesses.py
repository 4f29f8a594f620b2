"""What accesses to memory have in common: state spaces, and what strong ones tell and learn.

A release tells all that the warp knows; a relaxed store tells what it knew at its last fence. An acquire learns what
the place was told; a relaxed load keeps that for the next fence. Source: PTX ISA, "Memory Consistency Model: release
and acquire patterns".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.emulate.order import ANY_CLUSTER, Knowledge

if TYPE_CHECKING:
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp
    from aot.emulate.types import Value

MAX_POLLED = 64
"""Places whose last values a warp remembers, to tell a loop that waits from a loop over many places."""


def space_of(instruction: Instruction) -> str:
    """Return the state space that a form names: shared, cluster, global, param, or generic where it names none."""
    for part in instruction.opcode.split(".")[1:]:
        if part == "shared::cluster":
            return "cluster"
        if part.startswith("shared"):
            return "shared"
        if part in ("global", "param", "const", "local"):
            return part
    return "generic"


def is_strong(instruction: Instruction) -> bool:
    """Say whether an access is strong, which orders by itself or through fences, and is no data race."""
    return bool({"volatile", "relaxed", "acquire", "release"} & set(instruction.opcode.split(".")))


def tell(warp: Warp, place: int, *, releases: bool) -> None:
    """Let others learn at a place what the warp knows, or knew at its last fence."""
    known = warp.release() if releases else warp.fences
    if known is not None:
        told = warp.device.told.setdefault(place, Knowledge(ANY_CLUSTER, 0))
        told.join(known)


def learn(warp: Warp, place: int, *, acquires: bool) -> None:
    """Learn what a place was told, at once or by the next fence."""
    told = warp.device.told.get(place)
    if told is None:
        return
    if acquires:
        warp.knowledge.join(told)
    else:
        keep_for_fence(warp, told)


def keep_for_fence(warp: Warp, told: Knowledge) -> None:
    """Keep what a relaxed operation was told: the next fence learns it."""
    if warp.acquiring is None:
        warp.acquiring = Knowledge(ANY_CLUSTER, 0)
    warp.acquiring.join(told)


def note_poll(warp: Warp, addresses: Value, values: Value) -> None:
    """Let a warp that has read the same from the same place before wait until something may have changed."""
    place, found = (warp.pc, addresses.tobytes()), values.tobytes()
    warp.polling = warp.polled.get(place) == found
    if len(warp.polled) >= MAX_POLLED:
        warp.polled.clear()
    warp.polled[place] = found
