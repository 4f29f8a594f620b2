"""An emulated GPU: a device that `aot.measure` verifies kernels on, of guarded memory and an interpreter."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from aot.core.errors import DeviceError
from aot.emulate.device import Report
from aot.emulate.machine import Machine
from aot.emulate.memory import GlobalMemory
from aot.emulate.schedule import Mode, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from aot.core.numerics import Bits
    from aot.emulate.code import DeviceCode
    from aot.emulate.launch import Launch
    from aot.emulate.running import Trace
    from aot.measure.gpu import Handle

STREAM = 0x5712EA
"""The handle of the one stream: any number, which kernels never see."""

LIMIT = 20_000_000
"""Warp instructions of what is launched together, past which it is taken for endless: a minute of interpretation."""

RESIDENT = 2
"""Clusters that run at once, of kernels whose CTAs do not wait for each other: others start as these end."""
ALL_RESIDENT = 1 << 20
"""The same of kernels whose CTAs do, which a device launches only where all of them fit."""


@dataclass(frozen=True)
class KernelLaunch:
    """A launch on the stream, and the code that it executes."""

    code: DeviceCode
    launch: Launch


@dataclass(frozen=True)
class Clear:
    """The clearing of memory on the stream."""

    address: int
    num_bytes: int


@dataclass(frozen=True)
class Separator:
    """A kernel that takes no part in programmatic dependent launch: what is behind it starts when it has ended."""


StreamOperation: TypeAlias = KernelLaunch | Clear | Separator


@dataclass(frozen=True)
class Execution:
    """What launches that could overlap did."""

    kernels: tuple[str, ...]
    """Names of the kernels, in stream order."""
    schedule: Schedule
    report: Report
    seconds: float
    last_lines: range
    """Lines of the PTX that the last of the kernels has."""
    is_complete: bool
    """Whether it came to an end; else a fault ended it."""


def _no_clock(what: str) -> NoReturn:
    raise DeviceError(f"an emulated device cannot {what}: it has no clock; measure on a GPU, with `aot tune`")


class EmulatedGpu:
    """A device of guarded memory and one stream; satisfies `aot.measure.gpu.Gpu`, but for times.

    Every access of a kernel outside of an allocation ends its execution, so that operands need no guards around them.

    Args:
        l2_bytes: the size of the L2 cache that it says it has.
        schedules: the order in which warps and units go on, for one execution after the other; the last one stays. By
            default one at random.
        limit: warp instructions that an execution may take.
        counts: whether executions of each form, bytes and bank conflicts are counted, which takes time.
        trace: called before each instruction of each warp.
    """

    def __init__(
        self,
        l2_bytes: int,
        schedules: Iterable[Schedule] = (),
        *,
        limit: int = LIMIT,
        counts: bool = False,
        trace: Trace | None = None,
    ) -> None:
        self.memory, self.limit, self._counts, self._trace = GlobalMemory(), limit, counts, trace
        self._l2_bytes = l2_bytes
        self._pending: list[StreamOperation] = []
        self.executions: list[Execution] = []
        """All that was executed since `forget`, in order."""
        self.use(schedules)

    @property
    def stream(self) -> int:
        """Return the handle of the stream."""
        return STREAM

    @property
    def l2_bytes(self) -> int:
        """Return the size of the L2 cache."""
        return self._l2_bytes

    def use(self, schedules: Iterable[Schedule]) -> None:
        """Set the schedules of the next executions; the last one stays."""
        self._schedules: Iterator[Schedule] = iter(tuple(schedules))
        self.schedule = Schedule()

    def forget(self) -> None:
        """Forget what was executed, and what is still to be."""
        self.executions.clear()
        self._pending.clear()

    def alloc(self, num_bytes: int) -> int:
        """Allocate device memory, aligned to 256 bytes, that ends with its last byte."""
        return self.memory.allocate(num_bytes, f"a buffer of {num_bytes} bytes")

    def free(self, address: int) -> None:
        """Free what `alloc` gave."""
        self.memory.free(address)

    def declare(self, operands: Mapping[str, int], written: Iterable[str]) -> None:
        """Say what buffers are, for messages, and which of them a kernel may write.

        Args:
            operands: an address within the buffer of each operand, by the operand's name; 0 where there is none.
            written: the operands that a kernel may write.
        """
        names = set(written)
        for name, address in operands.items():
            if address:
                found = self.memory.find(address, address + 1, f"the operand {name}")
                found.name = name
                self.memory.protect(found.start, writable=name in names)

    def upload(self, address: int, bits: Bits) -> None:
        """Copy a contiguous host array to the device."""
        self.synchronize()
        self.memory.view(address, bits.nbytes)[:] = np.frombuffer(bits.tobytes(), np.uint8)

    def download(self, address: int, bits: Bits) -> None:
        """Copy from the device into a contiguous host array."""
        self.synchronize()
        bits.reshape(-1).view(np.uint8)[:] = self.memory.view(address, bits.nbytes)

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Copy from device to device, in stream order."""
        self.synchronize()
        self.memory.view(target, num_bytes)[:] = self.memory.view(source, num_bytes).copy()

    def fill(self, address: int, value: int, num_bytes: int) -> None:
        """Set every byte to `value`, in stream order."""
        self.synchronize()
        self.memory.view(address, num_bytes)[:] = value

    def launch_separator(self) -> None:
        """Put a small kernel on the stream that takes no part in programmatic dependent launch."""
        self._pending.append(Separator())

    def enqueue(self, operation: StreamOperation) -> None:
        """Put something on the stream; it is done when the host waits for the stream."""
        self._pending.append(operation)

    def synchronize(self) -> None:
        """Do what is on the stream. Launches that follow each other directly may overlap, where they ask for that.

        Raises:
            Fault: the execution of a kernel cannot go on.
        """
        pending, self._pending = self._pending, []
        for kind, operations in groupby(pending, type):
            found = list(operations)
            if kind is KernelLaunch:
                self._execute([x for x in found if isinstance(x, KernelLaunch)])
            for clear in (x for x in found if isinstance(x, Clear)):
                self.memory.view(clear.address, clear.num_bytes)[:] = 0

    def _execute(self, launches: list[KernelLaunch]) -> None:
        self.schedule = next(self._schedules, self.schedule)
        programs, renamed = {}, []
        for x in launches:
            # Kernels of two objects may have one name.
            name = f"{x.code.name}/{x.launch.kernel}"
            programs[name] = x.code.programs[x.launch.kernel]
            renamed.append(replace(x.launch, kernel=name))
        waits = any(x.code.waits for x in launches)
        resident = ALL_RESIDENT if waits else RESIDENT
        if self.schedule.mode is Mode.BEHIND_ITSELF and not waits:  # else the workspace is not what it was
            renamed, resident = [*renamed, *renamed], 2 * RESIDENT
        machine = Machine(
            programs,
            self.memory,
            self.schedule,
            num_registers=max(x.code.registers for x in launches),
            resident=resident,
            limit=self.limit,
            counts=self._counts,
            trace=self._trace,
        )
        lines = [x.line for x in launches[-1].code.kernels[launches[-1].launch.kernel].instructions]
        start = time.perf_counter()
        is_complete = False
        try:
            machine.run(renamed)
            is_complete = True
        finally:
            execution = Execution(
                tuple(x.code.name for x in launches),
                self.schedule,
                machine.found(),
                time.perf_counter() - start,
                range(min(lines), max(lines) + 1),
                is_complete,
            )
            self.executions.append(execution)

    def time_us(self, launch: Callable[[], None]) -> float:
        """Refuse (DeviceError)."""
        del launch
        _no_clock("time launches")

    def flushed_us(self, launch: Callable[[int], None], count: int, flush: int, flush_bytes: int) -> list[float]:
        """Refuse (DeviceError)."""
        del launch, count, flush, flush_bytes
        _no_clock("time launches")

    def capture(self, launch: Callable[[], None]) -> Handle:
        """Refuse (DeviceError)."""
        del launch
        _no_clock("capture a graph")

    def replay_us(self, graph: Handle, *, warms_up: bool = True) -> float:
        """Refuse (DeviceError)."""
        del graph, warms_up
        _no_clock("replay a graph")

    def destroy(self, graph: Handle) -> None:
        """Refuse (DeviceError)."""
        del graph
        _no_clock("have a graph")

    def is_lost(self) -> bool:
        """Say no: a kernel's fault leaves the memory as it was."""
        return False
