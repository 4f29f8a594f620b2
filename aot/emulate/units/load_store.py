"""Loads and stores.

Source: PTX ISA, "Data Movement and Conversion Instructions: ld, st, ld.global.nc, prefetch, st.async".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import YIELD, form
from aot.emulate.memory import FILL, PARAMETER_WINDOW, RANK_SHIFT, SHARED_WINDOW, WORD
from aot.emulate.types import BYTES, SIGNED, UNSIGNED, raw_dtype
from aot.emulate.units._accesses import is_strong, learn, note_poll, space_of, tell
from aot.emulate.units.barrier import check_initialised

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp
    from aot.emulate.types import Value

    Bytes = NDArray[np.uint8]

BANKS, BANK_BYTES = 32, 4
"""Of shared memory. Source: CUDA C++ Programming Guide, compute capability 5.x and later."""
_NARROW, _WIDE = "b8,u8,s8,b16,u16,s16,b32,u32,s32,f32", "b64,u64,s64,f64"
_ELEMENTS = (f".{{{_NARROW},{_WIDE}}}", f".v2.{{{_NARROW},{_WIDE}}}", f".v4.{{{_NARROW}}}")
"""Up to 16 bytes."""
_GLOBAL_ELEMENTS = (*_ELEMENTS, f".v4.{{{_WIDE}}}", ".v8.{b32,u32,s32,f32}")
"""Up to 32, which global memory alone has."""
_SPACES = "{,.shared,.shared::cta,.shared::cluster}"
_ORDERS = "{relaxed,%s}.{cta,cluster,gpu,sys}.global"
_L1 = "{,.L1::no_allocate,.L1::evict_last,.L1::evict_first}"
_L2 = "{,.L2::128B,.L2::256B}"
_LOADS = ("ld.param", f"ld{{,.volatile}}{_SPACES}", f"ld.global.nc{_L1}{_L2}")
_GLOBAL_LOADS = (f"ld.volatile.global{_L2}", f"ld.global{_L1}{_L2}", f"ld.{_ORDERS % 'acquire'}{_L1}{_L2}")
_STORES = (f"st{{,.volatile}}{_SPACES}",)
_GLOBAL_STORES = ("st.volatile.global", f"st.global{_L1}", f"st.{_ORDERS % 'release'}{_L1}")


def count_bank_conflicts(warp: Warp, offsets: NDArray[np.int64], size: int) -> None:
    """Count the extra passes over shared memory's banks that an access takes."""
    if not warp.device.counts_forms:
        return
    words = np.unique((offsets[:, None] // BANK_BYTES + np.arange(max(size // BANK_BYTES, 1))).reshape(-1))
    passes = int(np.bincount(words % BANKS).max())
    least = -(-words.size // BANKS)
    warp.device.bytes_moved["bank conflicts"] += passes - least


def _read_parameters(warp: Warp, addresses: Value, size: int, where: str) -> Bytes:
    at = (addresses - np.uint64(PARAMETER_WINDOW)).astype(np.int64)
    content = warp.launch.parameters
    if at.min() < 0 or at.max() + size > content.size:
        raise Fault(
            FaultKind.ADDRESS, f"{where}: parameter bytes {int(at.min())} to {int(at.max()) + size} of {content.size}"
        )
    found: Bytes = content[at[:, None] + np.arange(size)]
    return found


def _own_offsets(warp: Warp, addresses: Value, size: int, where: str) -> NDArray[np.int64]:
    """Turn addresses that must be this CTA's into offsets: .shared alone means .shared::cta."""
    if (addresses >> RANK_SHIFT != warp.cta.rank).any():
        text = f"{where}: {int(addresses[0]):#x} is of another CTA of the cluster; expected shared::cluster"
        raise Fault(FaultKind.ADDRESS, text)
    return warp.cta.shared.offsets(addresses, size, where)


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
        offsets = _own_offsets(warp, addresses, size, where)
        count_bank_conflicts(warp, offsets, size)
        return warp.cta.shared.read(warp.at(where), offsets, size)
    if space == "cluster":
        return _read_cluster(warp, addresses, size, where)
    if space == "param":
        return _read_parameters(warp, addresses, size, where)
    if not addresses.size:
        return np.empty((0, size), np.uint8)
    warp.note_early(int(addresses[0]), is_write=False, where=where)
    warp.device.bytes_moved["global loads"] += size * addresses.size
    return warp.device.memory.read(warp.at(where), addresses, size)


def by_space(addresses: Value) -> Iterator[tuple[str, Value, Value]]:
    """Part generic addresses by what they are of: the space, which of the addresses, and these as addresses there."""
    of_shared = addresses >= np.uint64(SHARED_WINDOW)
    of_parameters = ~of_shared & (addresses >= np.uint64(PARAMETER_WINDOW))
    for space, which in (("cluster", of_shared), ("param", of_parameters), ("global", ~(of_shared | of_parameters))):
        if which.any():
            mine = addresses[which]
            yield space, which, (mine - np.uint64(SHARED_WINDOW)).astype(np.uint32) if space == "cluster" else mine


def _read_generic(warp: Warp, addresses: Value, size: int, where: str) -> Bytes:
    found = np.empty((addresses.size, size), np.uint8)
    for space, which, mine in by_space(addresses):
        found[which] = read(warp, space, mine, size, where)
    return found


@form(
    *(name + elements for name in _LOADS for elements in _ELEMENTS),
    *(name + elements for name in _GLOBAL_LOADS for elements in _GLOBAL_ELEMENTS),
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
            note_poll(warp, found, values)
            return YIELD
        return None

    return run


def _strong_load(warp: Warp, addresses: Value, size: int, where: str, *, acquires: bool) -> Any:
    device = warp.device
    if (addresses % np.uint64(size)).any():
        raise Fault(FaultKind.ALIGNMENT, f"{where}: address {int(addresses[0]):#x}; expected a multiple of {size}")
    warp.note_early(int(addresses[0]), is_write=False, where=where)
    device.memory.note_strong(warp.at(where), addresses, size, is_write=False)
    found = np.empty((addresses.size, size), np.uint8)
    for i, x in enumerate(addresses):
        allocation = device.memory.find(int(x), int(x) + size, where)
        at = int(x) - allocation.start
        found[i] = allocation.content[at : at + size]
        learn(warp, int(x), acquires=acquires)
    return np.ascontiguousarray(found)


@form(
    *(name + elements for name in _STORES for elements in _ELEMENTS),
    *(name + elements for name in _GLOBAL_STORES for elements in _GLOBAL_ELEMENTS),
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
    size, device = data.shape[1], warp.device
    if space == "generic":
        for part, which, mine in by_space(addresses):
            write(warp, part, mine, data[which], where)
        return
    if space == "param":
        raise Fault(FaultKind.READ_ONLY, f"{where}: writes parameters")
    if (addresses % np.asarray(size, addresses.dtype)).any():
        raise Fault(FaultKind.ALIGNMENT, f"{where}: address {int(addresses[0]):#x}; expected a multiple of {size}")
    if space == "shared":
        offsets = _own_offsets(warp, addresses, size, where)
        count_bank_conflicts(warp, offsets, size)
        warp.cta.shared.write(warp.at(where), offsets, data)
    elif space == "cluster":
        for i, x in enumerate(addresses):
            cta = warp.cta.cluster.cta_of(int(x), where)
            cta.shared.write(warp.at(where), cta.shared.offsets(addresses[i : i + 1], size, where), data[i : i + 1])
    else:
        warp.note_early(int(addresses[0]), is_write=True, where=where)
        device.bytes_moved["global stores"] += data.size
        if tells:
            _strong_store(warp, addresses, data, where, releases=tells[0])
        else:
            device.memory.write(warp.at(where), addresses, data)


def _strong_store(warp: Warp, addresses: Value, data: Bytes, where: str, *, releases: bool) -> None:
    for x, bytes_ in zip(addresses, data, strict=True):
        allocation = warp.device.memory.find(int(x), int(x) + bytes_.size, where)
        if not allocation.writable:
            raise Fault(FaultKind.READ_ONLY, f"{where}: writes {allocation.name}")
        at = int(x) - allocation.start
        allocation.content[at : at + bytes_.size] = bytes_
    warp.device.memory.note_strong(warp.at(where), addresses, data.shape[1], is_write=True)
    for x in addresses:
        tell(warp, int(x), releases=releases)
    warp.launch.turns.global_changed()


@form(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes{,.v2}.{b32,b64,u32,s32,f32,u64,s64,f64}",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.{b32,u32,s32,f32}",
)
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
    device, cluster, size = warp.device, warp.cta.cluster, data.shape[1]
    cta = cluster.cta_of(int(places[0]), where)
    if cluster.cta_of(bar, where) is not cta:
        text = f"{where}: stores to CTA {cta.rank} of the cluster, and tells mbarrier {bar:#x} of another"
        raise Fault(FaultKind.BARRIER, text)
    check_initialised(warp, cta.mbarrier(bar, where), where, is_async=True)
    shared = cta.shared
    offsets = shared.offsets(places, size, where)

    def complete() -> None:
        target = cluster.cta_of(int(places[0]), where)
        target.shared.content[offsets[:, None] + np.arange(size)] = data
        cluster.cta_of(bar, where).mbarrier(bar, where).complete(data.size, operation.bit)

    operation = device.operations.make("st.async", warp.agent, where, complete, is_async_proxy=True)
    operation.agent.generic = True
    shared.shadow.write(operation.agent, (offsets[:, None] // WORD + np.arange(size // WORD)).reshape(-1))
    shared.content[offsets[:, None] + np.arange(size)] = FILL  # it may be written from now on
    device.operations.post(operation)


@form("prefetch.global.{L1,L2,L2::evict_last,L2::evict_normal}", "prefetch{,.param,.const}.tensormap", "prefetchu.L1")
def prefetch(program: Program, instruction: Instruction) -> Step:
    """Nothing that a result shows: a prefetch of an address outside is no fault on a chip either."""
    return lambda _: None
