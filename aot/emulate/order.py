"""What happens before what: vector clocks over warps and asynchronous operations, and the accesses that they order.

Each warp has a component of its own, its *epoch*, which it raises whenever it lets others know what it has done: by an
arrival at a barrier, a store with release. An asynchronous operation (a TMA copy, a wgmma, a tcgen05.mma, a cp.async)
has one bit, for it either is known to be complete or is not. So what somebody knows to have happened is a vector of
epochs and a set of bits. Source: PTX ISA, section "Memory Consistency Model", causality order; the epochs are those of
C. Flanagan and S. Freund, FastTrack: efficient and precise dynamic race detection, PLDI 2009.

The generic proxy and the async proxy are two views of shared memory: what a thread wrote with st, stmatrix or cp.async
may be read or overwritten through the async proxy only behind a fence.proxy.async that is ordered behind the write. So
a warp keeps two clocks: what it has seen, and what of that has been fenced. Source: PTX ISA, section "Async proxy";
membar/fence, fence.proxy.async. A read through the generic proxy needs no such fence before an asynchronous write to
the same place, by the practice of CUTLASS's pipelines, which this follows.

Lanes of one warp count as one agent: a race between lanes of one warp is not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import FindingKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Cells = NDArray[np.int64] | slice
    Report = Callable[[FindingKind, str, str], None]

NOBODY = 0
"""Who last wrote a cell that nothing has written yet."""
HOST = np.iinfo(np.int32).max
"""Who last wrote a cell that the host filled before the launch."""


MAX_CLUSTER_WARPS = 1024
"""Warps of a cluster at the most, for numbers: 16 CTAs of 32. Warp i of cluster c has the number 1024 c + i."""
ANY_CLUSTER = -1
"""The cluster of what belongs to none, such as a flag in global memory."""


class Clock:
    """What is known to have happened: epochs of warps, operations that are complete, and launches that have ended.

    Nearly all that a warp knows is of its own cluster, whose epochs are an array. Those of other clusters, of which one
    hears through global memory alone, are arrays by cluster, which are never changed in place.
    """

    __slots__ = ("cluster", "done", "epochs", "launches", "others")

    def __init__(self, cluster: int, num_warps: int) -> None:
        self.cluster, self.epochs = cluster, np.zeros(num_warps, np.int32)
        self.others: dict[int, NDArray[np.int32]] = {}
        self.done = self.launches = 0

    def copy(self) -> Clock:
        """Return what is known now."""
        found = Clock.__new__(Clock)
        found.cluster, found.epochs, found.others = self.cluster, self.epochs.copy(), self.others
        found.done, found.launches = self.done, self.launches
        if self.others:
            found.others = dict(self.others)
        return found

    def join(self, other: Clock) -> None:
        """Learn what another knows."""
        self.done |= other.done
        self.launches |= other.launches
        if other.cluster == self.cluster:
            np.maximum(self.epochs, other.epochs, out=self.epochs)
        elif other.cluster != ANY_CLUSTER:
            self._learn(other.cluster, other.epochs.copy())
        if other.others:
            for cluster, epochs in other.others.items():
                self._learn(cluster, epochs)

    def _learn(self, cluster: int, epochs: NDArray[np.int32]) -> None:
        if cluster == self.cluster:
            np.maximum(self.epochs, epochs, out=self.epochs)
            return
        mine = self.others.get(cluster)
        if not self.others:
            self.others = {}  # it may be shared with a copy
        self.others[cluster] = epochs if mine is None else np.maximum(mine, epochs)

    def epoch_of(self, warp: int) -> int:
        """Return the last epoch of a warp, by its number, that is known; 0 where none is."""
        cluster, local = divmod(warp, MAX_CLUSTER_WARPS)
        epochs = self.epochs if cluster == self.cluster else self.others.get(cluster)
        return 0 if epochs is None else int(epochs[local])

    def knows(self, warps: NDArray[np.int32], epochs: NDArray[np.int32], low: int, high: int) -> bool:
        """Say whether epochs of warps, from `low` to `high`, are known: those of other clusters count as not known."""
        first = self.cluster * MAX_CLUSTER_WARPS
        if low < first or high >= first + self.epochs.size:
            return False
        return bool((self.epochs[warps - first] >= epochs).all())


class Knowledge:
    """What an agent or a barrier has seen, what of it was fenced, and which mbarriers it knows to be initialised."""

    __slots__ = ("fenced", "initialised", "seen")

    def __init__(self, cluster: int, num_warps: int) -> None:
        self.seen, self.fenced, self.initialised = (Clock(cluster, num_warps) for _ in range(3))

    def copy(self) -> Knowledge:
        """Return what is known now."""
        found = Knowledge.__new__(Knowledge)
        found.seen, found.fenced, found.initialised = self.seen.copy(), self.fenced.copy(), self.initialised.copy()
        return found

    def join(self, other: Knowledge) -> None:
        """Learn what another knows."""
        self.seen.join(other.seen)
        self.fenced.join(other.fenced)
        self.initialised.join(other.initialised)

    def join_done(self, done: int) -> None:
        """Learn that operations are complete."""
        self.seen.done |= done


@dataclass(eq=False, slots=True)
class Agent:
    """Who accesses memory: a warp at an epoch, or an asynchronous operation."""

    knowledge: Knowledge
    where: str
    """The instruction, for messages."""
    who: str
    """The warp or unit, for messages."""
    is_async_proxy: bool
    warp: int = -1
    """A warp's number; -1 of an operation."""
    epoch: int = 0
    bit: int = 0
    """An operation's bit."""
    token: int = 0
    """An operation's number, from 1."""
    generic: bool = False
    """Whether an operation writes through the generic proxy, as cp.async does."""
    issuer: int = -1
    """The warp that issued an operation, by number."""
    launch: int = 0
    """Which launch it is of, by number."""


@dataclass(slots=True)
class _AsyncRead:
    """Cells that an operation reads, as the bits of a whole number, so that sets of cells are cheap to intersect."""

    agent: Agent
    cells: int


class Shadow:
    """Who last wrote and read each cell of a memory.

    Args:
        num_cells: cells; their size is the memory's to say.
        operations: every asynchronous operation of the launch by its token, which the machine keeps.
        report: called with each access that is not ordered.
        has_proxies: whether the memory is seen through two proxies, as shared memory is.
        launch_of: the number of the launch that a cluster is of, where the memory outlives a launch.
    """

    def __init__(
        self,
        num_cells: int,
        operations: dict[int, Agent],
        report: Report,
        *,
        has_proxies: bool,
        launch_of: Callable[[int], int] | None = None,
    ) -> None:
        self._launch_of_cluster = launch_of
        self._by = np.zeros(num_cells, np.int32)
        self._at = np.zeros(num_cells, np.int32)
        self._operations, self._report, self._has_proxies = operations, report, has_proxies
        self._readers: dict[int, NDArray[np.int32]] = {}
        self._strong_readers: dict[int, NDArray[np.int32]] = {}
        self._strong_writers: dict[int, NDArray[np.int32]] = {}
        self._async_reads: list[_AsyncRead] = []
        self._places: dict[tuple[int, int], str] = {}

    def fill(self, cells: Cells) -> None:
        """Say that the host has written cells."""
        self._by[cells] = HOST

    def _name(self, by: int, at: int) -> str:
        if by < 0:
            found = self._operations[-by]
            return f"{found.who} of {found.where}"
        return self._places.get((by, at), f"warp {by - 1}")

    def _launch_of(self, warp: int) -> int | None:
        return None if self._launch_of_cluster is None else self._launch_of_cluster(warp // MAX_CLUSTER_WARPS)

    @staticmethod
    def _is_over(knowledge: Knowledge, launch: int | None) -> bool:
        """Say whether a launch is known to have ended, and all that it did with it."""
        return launch is not None and bool(knowledge.seen.launches >> launch & 1)

    def _check_writer(self, agent: Agent, by: int, at: int, *, is_write: bool) -> None:
        knowledge = agent.knowledge
        if by == NOBODY:
            if not is_write:
                self._report(FindingKind.UNINITIALISED, agent.where, f"{agent.who} reads what nothing has written")
            return
        if by == HOST or by - 1 == agent.warp >= 0:
            return
        needs_fence = self._has_proxies and agent.is_async_proxy
        if by > 0:
            is_seen = self._is_over(knowledge, self._launch_of(by - 1)) or knowledge.seen.epoch_of(by - 1) >= at
            is_fenced = knowledge.fenced.epoch_of(by - 1) >= at
        else:
            writer = self._operations[-by]
            is_seen = (
                bool(knowledge.seen.done & writer.bit) or writer is agent or self._is_over(knowledge, writer.launch)
            )
            is_fenced = bool(knowledge.fenced.done & writer.bit) or writer is agent
            needs_fence = needs_fence and writer.generic
        if not is_seen:
            kind = FindingKind.WRITE_BEFORE_WRITE if is_write else FindingKind.READ_BEFORE_WRITE
            if is_write and self._may_write_again(agent, by):
                kind = FindingKind.LETTER
            self._report(kind, agent.where, f"{agent.who}, not ordered behind the write by {self._name(by, at)}")
        elif needs_fence and not is_fenced:
            self._report(FindingKind.PROXY_FENCE, agent.where, f"{agent.who}, written by {self._name(by, at)}")

    def _may_write_again(self, agent: Agent, by: int) -> bool:
        """Say whether both writes are TMA stores of one warp to global memory, which nothing orders.

        Tiles in steps of 8 columns are stored by boxes of 32 that overlap, with equal values: in whichever order they
        arrive. Where values differ, a schedule shows it as a wrong result.
        """
        return self._launch_of_cluster is not None and by < 0 and self._operations[-by].issuer == agent.issuer >= 0

    def _check_writers(self, agent: Agent, cells: Cells, *, is_write: bool) -> None:
        by, at = self._by[cells], self._at[cells]
        if not by.size:
            return
        needs_fence = self._has_proxies and agent.is_async_proxy
        known = agent.knowledge.fenced if needs_fence else agent.knowledge.seen
        # Nearly always warps wrote all of it, and all is known: one comparison. A warp's own epoch is among what it
        # has seen; the numbers of operations, below zero, and of nobody and the host are left to the check of each.
        low, high = int(by.min()), int(by.max())
        if low > NOBODY and known.knows(by - 1, at, low - 1, high - 1):
            return
        if low == high:
            self._check_writer(agent, low, int(at.max()), is_write=is_write)
            return
        for x in np.unique(by):
            self._check_writer(agent, int(x), int(at[by == x].max()), is_write=is_write)

    def read(self, agent: Agent, cells: Cells, as_bits: int | None = None) -> None:
        """Note a read, and report it where it is not ordered behind the write.

        Args:
            agent: who reads.
            cells: numbers of cells, or a slice of them.
            as_bits: the same cells as the bits of a number; of an operation's read.
        """
        self._check_writers(agent, cells, is_write=False)
        self._check_table(agent, cells, self._strong_writers, FindingKind.READ_BEFORE_WRITE)
        if agent.token:
            bits = bits_of(cells) if as_bits is None else as_bits
            last = self._async_reads[-1] if self._async_reads else None
            if last is not None and last.agent is agent:
                last.cells |= bits
            else:
                self._async_reads.append(_AsyncRead(agent, bits))
            return
        self._note(agent, cells, self._readers)

    def _note(self, agent: Agent, cells: Cells, table: dict[int, NDArray[np.int32]]) -> None:
        if agent.warp not in table:
            table[agent.warp] = np.zeros(self._by.size, np.int32)
        table[agent.warp][cells] = agent.epoch

    def _check_table(self, agent: Agent, cells: Cells, table: dict[int, NDArray[np.int32]], kind: FindingKind) -> None:
        """Report an access that is not ordered behind those of other warps in a table."""
        seen = agent.knowledge.seen
        for warp, at in table.items():
            if warp == agent.warp or not (at[cells] > seen.epoch_of(warp)).any():
                continue
            if not self._is_over(agent.knowledge, self._launch_of(warp)):
                access = "a read" if kind is FindingKind.WRITE_BEFORE_READ else "an atomic or strong write"
                self._report(kind, agent.where, f"{agent.who}, not ordered behind {access} by warp {warp}")

    def strong(self, agent: Agent, cells: Cells, *, is_write: bool) -> None:
        """Note an atomic or a strong access of a warp, which races with weak accesses alone.

        Source: PTX ISA, "Memory Consistency Model: data race": of two morally strong operations there is none.
        """
        self._check_writers(agent, cells, is_write=is_write)
        if not is_write:
            self._note(agent, cells, self._strong_readers)
            return
        self._check_table(agent, cells, self._readers, FindingKind.WRITE_BEFORE_READ)
        if self._async_reads:
            self._check_async_reads(agent, bits_of(cells))
        by = self._by[cells]
        self._by[cells] = np.where(by == NOBODY, HOST, by)  # it is written now, and who did so is in the table
        self._note(agent, cells, self._strong_writers)

    def write(self, agent: Agent, cells: Cells) -> None:
        """Note a write, and report it where it is not ordered behind earlier accesses."""
        self._check_writers(agent, cells, is_write=True)
        for table in (self._readers, self._strong_readers):
            self._check_table(agent, cells, table, FindingKind.WRITE_BEFORE_READ)
        self._check_table(agent, cells, self._strong_writers, FindingKind.WRITE_BEFORE_WRITE)
        if self._async_reads:
            self._check_async_reads(agent, bits_of(cells))
        if agent.token:
            self._by[cells] = -agent.token
        else:
            self._by[cells], self._at[cells] = agent.warp + 1, agent.epoch
            self._places.setdefault((agent.warp + 1, agent.epoch), f"{agent.who} of {agent.where}")

    def _check_async_reads(self, agent: Agent, cells: int) -> None:
        left = []
        for read in self._async_reads:
            if read.cells & cells and read.agent is not agent:
                is_seen = agent.knowledge.seen.done & read.agent.bit
                if not is_seen and not self._is_over(agent.knowledge, read.agent.launch):
                    text = f"{agent.who}, not ordered behind the read by {read.agent.who} of {read.agent.where}"
                    self._report(FindingKind.WRITE_BEFORE_READ, agent.where, text)
                read.cells &= ~cells
            if read.cells:
                left.append(read)
        self._async_reads = left


def bits_of(cells: Cells) -> int:
    """Return cells as the bits of a whole number."""
    if isinstance(cells, slice):
        low_end, high_end = int(cells.start), int(cells.stop)
        return ((1 << (high_end - low_end)) - 1) << low_end
    if not cells.size:
        return 0
    low = int(cells.min())
    mask = np.zeros(int(cells.max()) - low + 1, np.uint8)
    mask[cells - low] = 1
    packed: bytes = np.packbits(mask, bitorder="little").tobytes()
    return int.from_bytes(packed, "little") << low
