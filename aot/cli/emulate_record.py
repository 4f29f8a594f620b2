"""Where `aot emulate --record` notes what it finds: a target's file of executions."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.execution import Execution, interpreter_sha256, merged, read_executions, write_executions
from aot.core.whole_file import writing_alone

if TYPE_CHECKING:
    from collections.abc import Collection

    from aot.emulate.kernels import EmulatedSet
    from aot.emulate.results import KernelResult


def recorded_execution(result: KernelResult) -> Execution | None:
    """Return what a record says of a kernel; None where it was not executed."""
    if result.error or not result.num_runs:
        return None
    executed = [x for x in result.cases if x.num_runs]
    return Execution(
        kernel=result.name,
        ptx_sha256=result.ptx_sha256,
        interpreter_sha256=interpreter_sha256(),
        num_cases=len(executed),
        num_schedules=max(x.num_runs for x in executed),
        num_runs=result.num_runs,
        worst_error=round(result.worst_share, 4),
        num_findings=result.num_faults,
        date=dt.datetime.now(dt.UTC).date().isoformat(),
    )


@dataclass(frozen=True)
class RecordFile:
    """A file of executions, which may not be there yet."""

    path: Path
    target: str

    @property
    def known(self) -> tuple[Execution, ...]:
        """Read what it says.

        Raises:
            StoreError: it is damaged, or of another target.
        """
        return read_executions(self.path, self.target) if self.path.exists() else ()

    def checked(self) -> RecordFile:
        """Return this, once it is known that it can be read: before the work whose results are added.

        Raises:
            StoreError: it is damaged, or of another target.
        """
        _ = self.known
        return self

    def add(self, result: KernelResult) -> None:
        """Note a result, in the place of what was known of the kernel."""
        found = recorded_execution(result)
        if found is not None:
            with writing_alone(self.path):
                write_executions(self.path, self.target, merged(self.known, [found]))

    def keep_only(self, names: Collection[str]) -> int:
        """Forget all kernels but some, such as those that ship; return how many were forgotten."""
        with writing_alone(self.path):
            known = self.known
            kept = [x for x in known if x.kernel in names]
            if len(kept) < len(known):
                write_executions(self.path, self.target, tuple(kept))
        return len(known) - len(kept)

    def unrecorded(self, kernels: EmulatedSet) -> EmulatedSet:
        """Return a set of which only those kernels are executed whose PTX the file does not have."""
        recorded = {(x.kernel, x.ptx_sha256) for x in self.known}
        compiled = {(x.kernel.name, x.kernel.ptx_sha256) for x in kernels.products}
        compiled |= {(x.kernel.name, x.kernel.ptx_sha256) for x in kernels.rows}
        missing = {name for name, _ in compiled - recorded}
        return replace(kernels, names=tuple(x for x in kernels.names if x in missing))
