"""What a worker says of itself when it joins, and whether that fits what is to be done."""

from __future__ import annotations

import platform
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from aot.compile.compiler import TOOLCHAIN
from aot.core.constraints import Word
from aot.measure.preflight import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aot.core.target import Target

PROTOCOL = 1
"""Version of what clients and workers say to each other."""


class Role(Word):
    """What a worker does; also the name of the resource, in Dask's sense, that a task takes of it."""

    COMPILES = "aot-compile"
    MEASURES = "aot-measure"


@dataclass(frozen=True)
class Announcement:
    """A worker: what it does, on which machine, with what."""

    role: Role
    host: str
    toolchain: dict[str, str]
    """Versions of what compiles kernels, and of this package."""
    machine: Machine | None = None
    """The device of one that measures."""
    place: str = ""
    """Where that is, if not on the worker's own host: a login and a folder."""
    protocol: int = PROTOCOL

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self) | {"role": str(self.role), "machine": self.machine and self.machine.as_json()}

    @staticmethod
    def from_json(values: dict[str, Any]) -> Announcement:
        """Make it of what `as_json` gave.

        Raises:
            TypeError: it is of another version, or none.
            ValueError: likewise.
        """
        if values.get("protocol") != PROTOCOL:
            raise ValueError(f"it speaks version {values.get('protocol')} of what workers say, expected {PROTOCOL}")
        machine = values["machine"]
        fields = values | {"role": Role(values["role"]), "machine": machine and Machine.from_json(machine)}
        return Announcement(**fields)


def toolchain() -> dict[str, str]:
    """Return the versions that decide what a worker makes of a kernel.

    What is not installed has none: a worker that measures needs no compiler, and a checkout is no distribution.
    """
    found = {}
    for name in ("aot-kernels", *TOOLCHAIN):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def of_compiler() -> Announcement:
    """Announce the processes of this machine."""
    return Announcement(Role.COMPILES, platform.node(), toolchain())


def of_device(machine: Machine, place: str = "") -> Announcement:
    """Announce a device that was asked what it is."""
    return Announcement(Role.MEASURES, platform.node(), toolchain(), machine, place)


def compiles_unlike(found: Announcement) -> str:
    """Say why a worker cannot compile for this process; empty if it can."""
    own = toolchain()
    other = [name for name in {**own, **found.toolchain} if own.get(name) != found.toolchain.get(name)]
    if not other:
        return ""
    name = min(other)
    there, here = (x.get(name, "of no version, for it is not installed") for x in (found.toolchain, own))
    return f"has {name} {there}, this machine {here}; the same versions compile the same objects"


Kind = tuple[str, int, str | None, str | None]
"""What must be equal of devices whose times are to stand beside each other: name, SMs, MIG profile, power mode."""


def kind_of_device(machine: Machine) -> Kind:
    """Return a device's kind."""
    return (machine.gpu, machine.num_sms, machine.mig, machine.power_mode)


def measures_unlike(found: Announcement, target: Target) -> str:
    """Say why a worker's device cannot run a target's kernels; empty if it can."""
    machine = found.machine
    if machine is None or machine.gpu_error:
        return f"has no usable GPU: {machine.gpu_error if machine else 'it announced none'}"
    if machine.machine != target.machine or machine.compute_capability != target.compute_capability:
        return (
            f"has {machine.gpu} on {machine.machine}, compute capability {machine.compute_capability}; target "
            f"{target.name} is {target.compute_capability} on {target.machine}"
        )
    return ""


def text_of(kind: Kind) -> str:
    """Write a kind of device for people."""
    name, num_sms, mig, power_mode = kind
    return f"{name}, {num_sms} SMs, power mode {power_mode}{f', MIG {mig}' if mig else ''}"


def chosen_kind(found: Iterable[Kind], known: Kind | None) -> Kind | None:
    """Choose the kind of device to measure on: what was measured on before, or else that of the most workers."""
    counts = Counter(found)
    if known is not None:
        return known
    return min(counts, key=lambda kind: (-counts[kind], text_of(kind)), default=None)
