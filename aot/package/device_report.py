"""What a wheel's kernels do on a device, as one file to send home: `aot verify WHEEL --device --report FILE`.

The file has the device and its state, the wheel's hash, each kernel's error on its edge cases, and times of a few
problems of each operation, by the protocol that `aot tune` has: `aot import` makes them the beginning of a record.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from aot.compile.tuned import tuned_kernel
from aot.core.constraints import Error, Form, KernelName, Label, Sha256, TargetName, Text, Version, one_line
from aot.core.errors import StoreError
from aot.core.grouping import Grouping
from aot.core.json_text import write_json
from aot.core.measurement import Conditions
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.target import load_target
from aot.kinds.kind import Use
from aot.kinds.registry import kind_of
from aot.select.times.record import from_store, parse_record, record_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot.core.measurement import AnyRecord
    from aot.core.work import AnyOperation, AnyProblem
    from aot.kinds.kind import Tuned
    from aot.measure.conditions import DeviceState
    from aot.measure.gpu import Gpu, Kernels
    from aot.measure.protocol import TimingPlan
    from aot.measure.worker import Worker
    from aot.package.manifest import Manifest

REPORT_VERSION = 1
"""Raised whenever a field is added without a default, dropped, or changes its meaning."""
ROWS = (1, 16, 256)
"""Rows of x of the problems that are timed: decoding alone, decoding of a batch, a prefill's piece."""
WIDTHS = (4096, 128)
"""Of both sides of their weights, or of their rows: the first that a kernel takes."""
NUM_GROUPS = 8


@dataclass(frozen=True)
class CheckedKernel:
    """What came of a kernel's edge cases."""

    name: KernelName
    relative_error: Error | None = None
    """The largest; None where it was not right, or not run."""
    fault: Text = ""
    """Why it is wrong, or did not run; empty where it is right."""
    is_left: bool | None = None
    """True where it was not run; absent of earlier reports, which say so in `fault` alone."""

    @property
    def was_run(self) -> bool:
        """Say whether it was run, as far as the report says."""
        return not self.is_left


@dataclass(frozen=True)
class DeviceReport:
    """A file."""

    version: Version
    wheel: Label
    """The file's name."""
    wheel_sha256: Sha256
    target: TargetName
    """Of the wheel's tables the one whose device has as many SMs, or else the first."""
    conditions: Conditions
    kernels: tuple[CheckedKernel, ...]
    record: tuple[Annotated[Any, Form(Any, lambda value: value)], ...] = ()
    """The lines of a record of the times; empty where nothing was timed."""

    @property
    def faults(self) -> list[CheckedKernel]:
        """List the kernels that were not right, or not run."""
        return [x for x in self.kernels if x.fault]

    @property
    def summary(self) -> str:
        """Say in a line what it has."""
        mode = self.conditions.power_mode or "power mode not known"
        kernels = f"{len(self.kernels) - len(self.faults)} of {len(self.kernels)} kernels right"
        wrong, left = len(self.wrong), len(self.faults) - len(self.wrong)
        kernels += f", {wrong} wrong" * bool(wrong) + f", {left} not run" * bool(left)
        return f"{self.conditions.device}, {mode}; {kernels}; {max(0, len(self.record) - 1)} times"

    @property
    def wrong(self) -> list[str]:
        """Say of each kernel that was run and is wrong what it did."""
        return [f"{x.name}: {x.fault}" for x in self.faults if x.was_run]

    @property
    def not_run(self) -> dict[str, int]:
        """Return why kernels were not run, and how many for each reason."""
        return dict(Counter(x.fault for x in self.faults if not x.was_run))

    def text(self) -> str:
        """Write the file: equal reports are equal texts."""
        return write_json(self)

    def times(self, where: str) -> AnyRecord:
        """Return the times as a record.

        Raises:
            StoreError: there are none, or they are no record of the target.
        """
        if not self.record:
            why = "; ".join((self.summary, *self.wrong[:1]))
            raise StoreError(f"{where}: the report has no times ({why}); expected some; make it again on the device")
        return parse_record("\n".join(map(json.dumps, self.record)), f"{where}: its record")


def read_report(path: Path) -> DeviceReport:
    """Read a report.

    Raises:
        StoreError: the file cannot be read, is damaged or of another version.
    """
    try:
        return decode_version(DeviceReport, parse_json(read_content(path)), "version", REPORT_VERSION)
    except DecodeError as error:
        raise StoreError(f"{path}: {error}; make it again by `aot verify WHEEL --device --report FILE`") from error


def is_report(path: Path) -> bool:
    """Say whether a file of results is a report, and not a store."""
    with path.open("rb") as file:
        return file.read(1) == b"{"


def timed_problems(kernels: Sequence[Tuned]) -> tuple[AnyProblem, ...]:
    """List the problems that are timed: of each operation some rows, and the first width that a kernel takes."""
    found: list[AnyProblem] = []
    for operation in dict.fromkeys(x.key.operation for x in kernels):
        own = [x for x in kernels if x.key.operation == operation]
        for rows in ROWS:
            problems = (_problem(operation, rows, width) for width in WIDTHS)
            found += next(([x] for x in problems if any(kernel.takes(x) for kernel in own)), [])
    return tuple(found)


def _problem(operation: AnyOperation, rows: int, width: int) -> AnyProblem:
    is_one = getattr(operation, "grouping", Grouping.DENSE) is Grouping.DENSE
    sizes = {Use.LADDER: rows, Use.KEY: width, Use.COUNT: 1 if is_one else NUM_GROUPS}
    kind = kind_of(operation)
    problem: AnyProblem = kind.problem(operation, {axis.name: sizes[axis.use] for axis in kind.axes})
    return problem


def make_report(wheel: Path, tell: Callable[[str], None]) -> DeviceReport:
    """Run every kernel of a wheel on this machine's GPU, time a few problems, and say what came of it.

    Args:
        wheel: the wheel.
        tell: told what is being done, and of what a person should know.

    Raises:
        DeviceError: there is no GPU of the wheel's architecture.
    """
    from aot.measure.conditions import make_conditions, read_state
    from aot.measure.device import CudaGpu
    from aot.measure.kernel_library import KernelLibrary
    from aot.measure.protocol import plan_for
    from aot.package.wheel_check import on_device  # which reads ELF files

    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with on_device(wheel) as (manifest, properties, library):
        target = target_of(manifest, properties.num_sms)
        plan = plan_for(properties.l2_bytes, integrated=properties.integrated)
        gpu, kernels = CudaGpu(properties), KernelLibrary(library)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        read = partial(read_state, properties.pci_bus_id)
        conditions = make_conditions(properties, read(), manifest.arch, plan.protocol, date)
        checked, record = measured(manifest, target, (gpu, kernels, plan), conditions, read, tell)
    return DeviceReport(REPORT_VERSION, wheel.name, digest, target, conditions, checked, record)


def target_of(manifest: Manifest, num_sms: int) -> str:
    """Return the target, of those that a wheel has tables for, that a device of so many SMs is."""
    names = [table.target for table in manifest.tables]
    return next((x for x in names if load_target(x).num_sms == num_sms), names[0])


def measured(
    manifest: Manifest,
    target: str,
    device: tuple[Gpu, Kernels, TimingPlan],
    conditions: Conditions,
    read: Callable[[], DeviceState],
    tell: Callable[[str], None],
) -> tuple[tuple[CheckedKernel, ...], tuple[Any, ...]]:
    """Verify the kernels and time them; return what came of each, and the lines of a record.

    Args:
        manifest: the wheel's.
        target: whose record it is.
        device: the GPU, the wheel's library and the protocol.
        conditions: as they were before.
        read: reads the clocks, after the load.
        tell: as `make_report` has it.
    """
    from aot.measure.session import Session
    from aot.measure.store import open_store
    from aot.measure.tuning_set import TuningSet
    from aot.measure.worker import Worker

    tuned = tuple(map(tuned_kernel, manifest.all_kernels))
    tuning = TuningSet(target, manifest.arch, tuned, timed_problems(tuned))
    gpu, kernels, plan = device

    def at(done: int, total: int, what: str) -> None:
        tell(f"{done} of {total}: {what}")

    with tempfile.TemporaryDirectory(prefix="aot-report-") as scratch:
        path, seed = Path(scratch) / "results.sqlite", secrets.randbits(62)
        with open_store(path) as store:
            run = store.add_run(target, seed, conditions)
            ended_by = _ended_by(Worker(Session(gpu, kernels, tuning, store, run, seed, plan, at, warn=tell)))
            if ended_by != INTERRUPTED:  # after which a process has a second and a half to end
                state = read()
                store.add_clocks(run, state.sm_clock_mhz, state.memory_clock_mhz)
            verified, faults = store.verified(), store.quarantined()
            numbers, is_timed = {x.name: store.kernel_id(x) for x in tuned}, bool(store.finished())
        lines = record_text(from_store(path)).splitlines() if is_timed else []
    errors = ((name, verified.get(number), faults.get(number, "")) for name, number in numbers.items())
    checked = (_checked(*x, ended_by) for x in errors)
    return tuple(checked), tuple(map(json.loads, lines))


INTERRUPTED = "the command was interrupted"


def _ended_by(worker: Worker) -> str:
    """Run a worker; say what ended it early, if something did: what is known then is still told.

    That is a kernel that took the process's context with it, or whoever interrupts the command.
    """
    from aot.measure.gpu import ContextLostError

    try:
        worker.run()
    except ContextLostError as error:
        return str(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return ""


def _checked(name: str, error: float | None, fault: str, ended_by: str) -> CheckedKernel:
    was_run = error is not None or bool(fault)
    if not was_run:
        fault = f"not run, after {ended_by}" if ended_by else "the device cannot run it: none of its clusters fits"
    return CheckedKernel(name, None if fault else error, one_line(fault), None if was_run else True)
