"""How far a kernel of a selection was tried: before there is a wheel, by its PTX in the artifact store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aot.compile.artifact import Artifact
from aot.compile.compiler import ArtifactStore
from aot.core.candidate import KernelKey
from aot.core.execution import KernelState, committed_executions, execution_of, state_of
from aot.core.measurement import OperationTimes
from aot.core.target import Target
from aot.core.work import AnyKey
from aot.package.states import execution_text, measured_kernels, measured_steps
from aot.select.selection import Selection
from aot.space.widths import shared


@dataclass(frozen=True)
class Tried:
    """How far a kernel of a selection was tried."""

    state: KernelState | None
    """None where the kernel is not compiled here, so that no record can be compared with its PTX."""
    text: str
    """The same in words, with what the interpreter found."""


def tried(key: AnyKey, selection: Selection, timed: OperationTimes, target: Target, artifacts: Path) -> Tried:
    """Say how far a kernel of a selection was tried, as a wheel of the selection would say it.

    Args:
        key: one of the selection's kernels.
        selection: kernels and table.
        timed: the measured times behind it, where they are at hand.
        target: its device.
        artifacts: the artifact store, whose PTX records are compared with.

    Raises:
        StoreError: a record of executions is damaged.
    """
    others = selection.others
    measured: set[AnyKey] = {*measured_kernels(selection.table, selection.kernels, timed)}
    if key in measured | measured_steps(others.table, others.kernels):
        return Tried(KernelState.RUN, f"{KernelState.RUN}: a time of it was taken on the device")
    own = shared(selection.kernels, target).get(key, (key, 0))[0] if isinstance(key, KernelKey) else key
    artifact = ArtifactStore(artifacts).get(own, target)
    if not isinstance(artifact, Artifact):
        return Tried(None, "not compiled here, so that no record is compared with its PTX; `aot build` compiles it")
    found = execution_of(key.name, artifact.kernel.ptx_sha256, committed_executions())
    state = state_of(found, is_measured=False)
    return Tried(state, f"{state}: {execution_text(found)}" if found else f"{state}: no record speaks of its PTX")
