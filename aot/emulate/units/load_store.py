"""Loads and stores.

Source: PTX ISA, "Data Movement and Conversion Instructions: ld, st, ld.global.nc, prefetch, st.async".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind, UnknownInstructionError
from aot.emulate.forms import YIELD, form
from aot.emulate.memory import PARAMETER_WINDOW, RANK_SHIFT, SHARED_WINDOW, WORD
from aot.emulate.types import BYTES, SIGNED, UNSIGNED, raw_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.warp import Value, Warp

    Bytes = NDArray[np.uint8]

BANKS, BANK_BYTES = 32, 4
"""Of shared memory. Source: CUDA C++ Programming Guide, compute capability 5.x and later."""
_TYPES = "{b8,u8,s8,b16,u16,s16,b32,u32,s32,f32,b64,u64,s64,f64}"
_STRONG = "{,.volatile,.relaxed.cta,.relaxed.cluster,.relaxed.gpu,.relaxed.sys"
_HINTS = "{,.L1::no_allocate,.L1::evict_last,.L1::evict_first}{,.L2::128B,.L2::256B}"


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


def count_bank_conflicts(warp: Warp, offsets: NDArray[np.int64], size: int) -> None:
    """Count the extra passes over shared memory's banks that an access takes."""
    if not warp.machine.counts_forms:
        return
    words = np.unique((offsets[:, None] // BANK_BYTES + np.arange(max(size // BANK_BYTES, 1))).reshape(-1))
    passes = int(np.bincount(words % BANKS).max())
    least = -(-words.size // BANKS)
    warp.machine.bytes_moved["bank conflicts"] += passes - least


def _read_parameters(warp: Warp, addresses: Value, size: int, where: str) -> Bytes:
    at = (addresses - np.uint64(PARAMETER_WINDOW)).astype(np.int64)
    content = warp.launch.parameters
    if at.min() < 0 or at.max() + size > content.size:
        raise Fault(
            FaultKind.ADDRESS, f"{where}: parameter bytes {int(at.min())} to {int(at.max()) + size} of {content.size}"
        )
    found: Bytes = content[at[:, None] + np.arange(size)]
    return found


def _read_cluster(warp: Warp, addresses: Value, size: int, where: str) -> Bytes:
    found = np.empty((addresses.size, size), np.uint8)
    for rank in np.unique(addresses >> RANK_SHIFT):
        lanes = (addresses >> RANK_SHIFT) == rank
        cta = warp.cta.cluster.cta_of(int(rank) << RANK_SHIFT, where)
        offsets = cta.shared.offsets(addresses[lanes], size, where)
        found[lanes] = cta.shared.read(warp.at(where), offsets, size)
    return found


def read(warp: Warp, space: str, addresses: Value, size: int, where: str) -> Bytes:
    """Read `size` bytes for each active lane."""
    if space == "generic":
        return _read_generic(warp, addresses, size, where)
    if addresses.size and (addresses % np.asarray(size, addresses.dtype)).any():
        raise Fault(FaultKind.ALIGNMENT, f"{where}: address {int(addresses[0]):#x}; expected a multiple of {size}")
    if space == "shared":
        offsets = warp.cta.shared.offsets(addresses, size, where)
        count_bank_conflicts(warp, offsets, size)
        return warp.cta.shared.read(warp.at(where), offsets, size)
    if space == "cluster":
        return _read_cluster(warp, addresses, size, where)
    if space == "param":
        return _read_parameters(warp, addresses, size, where)
    if not addresses.size:
        return np.empty((0, size), np.uint8)
    warp.machine.access(warp, int(addresses[0]), is_write=False, where=where)
    warp.machine.bytes_moved["global loads"] += size * addresses.size
    return warp.machine.memory.read(warp.at(where), addresses, size)


def _read_generic(warp: Warp, addresses: Value, size: int, where: str) -> Bytes:
    first = int(addresses[0]) if addresses.size else 0
    if PARAMETER_WINDOW <= first < SHARED_WINDOW:
        return read(warp, "param", addresses, size, where)
    if first >= SHARED_WINDOW:
        return read(warp, "cluster", (addresses - np.uint64(SHARED_WINDOW)).astype(np.uint32), size, where)
    return read(warp, "global", addresses, size, where)


@form(
    f"ld.param{{,.v2,.v4}}.{_TYPES}",
    f"ld{{,.volatile}}{{,.shared,.shared::cta,.shared::cluster}}{{,.v2,.v4}}.{_TYPES}",
    f"ld{_STRONG},.acquire.cta,.acquire.cluster,.acquire.gpu,.acquire.sys}}.global{_HINTS}{{,.v2,.v4,.v8}}.{_TYPES}",
    f"ld.global.nc{_HINTS}{{,.v2,.v4}}.{_TYPES}",
)
def load(program: Program, instruction: Instruction) -> Step:
    """Load one to eight elements a lane."""
    kind, space, where = instruction.opcode.rsplit(".", 1)[1], space_of(instruction), instruction.where
    slots = program.destinations(instruction.operands[0])
    items = getattr(instruction.operands[0], "items", (instruction.operands[0],))
    dtypes = [
        np.dtype(raw_dtype(program.type_of(x))) if slot is not None else None
        for x, slot in zip(items, slots, strict=True)
    ]
    size, total = BYTES[kind], BYTES[kind] * len(slots)
    address, raw = program.address(instruction.operands[1]), UNSIGNED[size]
    strong = is_strong(instruction)

    def run(warp: Warp) -> int | None:
        mask = warp.mask
        found = address(warp)[mask]
        if strong and space == "global":
            values = _strong_load(warp, found, total, where, acquires=".acquire" in instruction.opcode).view(raw)
        else:
            values = np.ascontiguousarray(read(warp, space, found, total, where)).view(raw)
        for i, slot in enumerate(slots):
            if slot is not None:
                value = values[:, i]
                if kind[0] == "s":
                    value = value.view(SIGNED[size]).astype(SIGNED[dtypes[i].itemsize]).view(dtypes[i])  # type: ignore[union-attr]
                old = np.empty(32, dtypes[i]) if warp.full else np.array(warp.registers[slot])
                old[mask] = value
                warp.registers[slot] = old
        if strong and space == "global":
            warp.polling = True
            return YIELD
        return None

    return run


def _strong_load(warp: Warp, addresses: Value, size: int, where: str, *, acquires: bool) -> Any:
    from aot.emulate.units.atomics import learn

    machine = warp.machine
    machine.access(warp, int(addresses[0]), is_write=False, where=where)
    found = np.empty((addresses.size, size), np.uint8)
    for i, x in enumerate(addresses):
        allocation = machine.memory.find(int(x), int(x) + size, where)
        at = int(x) - allocation.start
        found[i] = allocation.content[at : at + size]
        learn(warp, int(x), acquires=acquires)
    return np.ascontiguousarray(found)


@form(
    f"st{{,.volatile}}{{,.shared,.shared::cta,.shared::cluster}}{{,.v2,.v4}}.{_TYPES}",
    f"st{_STRONG},.release.cta,.release.cluster,.release.gpu,.release.sys}}.global{_HINTS}{{,.v2,.v4,.v8}}.{_TYPES}",
)
def store(program: Program, instruction: Instruction) -> Step:
    """Store one to eight elements a lane."""
    kind, space, where = instruction.opcode.rsplit(".", 1)[1], space_of(instruction), instruction.where
    slots = program.sources(instruction.operands[1], kind)
    raw = UNSIGNED[BYTES[kind]]
    address = program.address(instruction.operands[0])
    strong, releases = is_strong(instruction), ".release" in instruction.opcode

    def run(warp: Warp) -> None:
        mask = warp.mask
        found = address(warp)[mask]
        if found.size == 0:
            return
        parts = [warp.registers[x][mask].astype(raw) for x in slots]
        data = np.ascontiguousarray(np.stack(parts, 1)).view(np.uint8)
        write(warp, space, found, data, where, tells=(releases,) if strong else ())

    return run


def write(warp: Warp, space: str, addresses: Value, data: Bytes, where: str, *, tells: tuple[bool, ...] = ()) -> None:
    """Write (n, size) bytes for the active lanes; `tells` says whether a strong store releases."""
    size, machine = data.shape[1], warp.machine
    if space == "generic":
        if int(addresses[0]) >= SHARED_WINDOW:
            write(warp, "cluster", (addresses - np.uint64(SHARED_WINDOW)).astype(np.uint32), data, where)
        else:
            write(warp, "global", addresses, data, where)
        return
    if (addresses % np.asarray(size, addresses.dtype)).any():
        raise Fault(FaultKind.ALIGNMENT, f"{where}: address {int(addresses[0]):#x}; expected a multiple of {size}")
    if space == "shared":
        offsets = warp.cta.shared.offsets(addresses, size, where)
        count_bank_conflicts(warp, offsets, size)
        warp.cta.shared.write(warp.at(where), offsets, data)
    elif space == "cluster":
        for i, x in enumerate(addresses):
            cta = warp.cta.cluster.cta_of(int(x), where)
            cta.shared.write(warp.at(where), cta.shared.offsets(addresses[i : i + 1], size, where), data[i : i + 1])
    else:
        machine.access(warp, int(addresses[0]), is_write=True, where=where)
        machine.bytes_moved["global stores"] += data.size
        if tells:
            _strong_store(warp, addresses, data, where, releases=tells[0])
        else:
            machine.memory.write(warp.at(where), addresses, data)


def _strong_store(warp: Warp, addresses: Value, data: Bytes, where: str, *, releases: bool) -> None:
    from aot.emulate.units.atomics import tell

    for x, bytes_ in zip(addresses, data, strict=True):
        allocation = warp.machine.memory.find(int(x), int(x) + bytes_.size, where)
        if not allocation.writable:
            raise Fault(FaultKind.READ_ONLY, f"{where}: writes {allocation.name}")
        at = int(x) - allocation.start
        allocation.content[at : at + bytes_.size] = bytes_
        tell(warp, int(x), releases=releases)
    warp.machine.global_changed()


@form("st.async.shared::cluster.mbarrier::complete_tx::bytes{,.v2,.v4}.{b32,b64,u32,s32,f32,u64,s64}")
def store_async(program: Program, instruction: Instruction) -> Step:
    """Store to a CTA of the cluster, whose mbarrier is told of the bytes when they have come."""
    kind, where = instruction.opcode.rsplit(".", 1)[1], instruction.where
    slots = program.sources(instruction.operands[1], kind)
    raw = UNSIGNED[BYTES[kind]]
    address, barrier = program.address(instruction.operands[0]), program.address(instruction.operands[2])

    def run(warp: Warp) -> None:
        mask = warp.mask
        parts = [warp.registers[x][mask].astype(raw) for x in slots]
        data = np.ascontiguousarray(np.stack(parts, 1)).view(np.uint8)
        places, bars = address(warp)[mask], barrier(warp)[mask]
        # The lanes' stores that go to one barrier come together: a warp's 32 messages are one operation here.
        keys = bars.astype(np.uint64) << np.uint64(32) | (places >> RANK_SHIFT)
        for key in np.unique(keys):
            lanes = keys == key
            _send(warp, places[lanes], int(bars[lanes][0]), data[lanes], where)

    return run


def _send(warp: Warp, places: Value, bar: int, data: Bytes, where: str) -> None:
    """Issue stores to one CTA that one barrier is told of; data are (n, bytes)."""
    machine, cluster, size = warp.machine, warp.cta.cluster, data.shape[1]
    shared = cluster.cta_of(int(places[0]), where).shared
    offsets = shared.offsets(places, size, where)

    def complete() -> None:
        target = cluster.cta_of(int(places[0]), where)
        target.shared.content[offsets[:, None] + np.arange(size)] = data
        cluster.cta_of(bar, where).mbarrier(bar, where).complete(data.size, operation.bit)

    operation = machine.operation("st.async", warp, where, complete, is_async_proxy=True)
    operation.agent.generic = True
    shared.shadow.write(operation.agent, (offsets[:, None] // WORD + np.arange(size // WORD)).reshape(-1))
    machine.post(operation)


@form("prefetch.global.{L1,L2,L2::evict_last,L2::evict_normal}", "prefetch{,.param,.const}.tensormap", "prefetchu.L1")
def prefetch(program: Program, instruction: Instruction) -> Step:
    """Nothing that a result shows: a prefetch of an address outside is no fault on a chip either."""
    return lambda _: None


@form("discard.global.L2", "applypriority.global.L2::evict_normal")
def refuse(program: Program, instruction: Instruction) -> Step:
    """Refuse what changes memory in a way that no kernel of ours asks for."""
    raise UnknownInstructionError(instruction.opcode, instruction.text, instruction.line)
