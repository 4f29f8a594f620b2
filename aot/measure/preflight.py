"""What a machine is and the state it is in, before anything is measured there: `run.py --check`, as JSON.

Needs Python alone: it runs before numpy is known to be there.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from aot.core.errors import AotError
from aot.core.measurement import mig_profile
from aot.measure.conditions import Clock, output_of, parse_nvpmodel, read_clocks, read_state

TEGRA_RELEASE = Path("/etc/nv_tegra_release")
"""Where a Jetson names its Linux for Tegra. Source: Jetson Linux developer guide."""
CPU_STATE = Path("/proc/stat")
LOOK_S = 0.5
"""How long the CPUs are watched."""
MAX_BUSY_CPUS = 0.5
"""CPUs' worth of work beside which memory-bound times are not to be trusted. An assumption: a shell and sshd need less
than a tenth of a CPU, anything that moves memory about one."""
LOCK_COMMAND = "sudo jetson_clocks"
JETPACK_RELEASE = 38
"""Jetson Linux of JetPack 7, the first for Thor. Source: JetPack 7.0 release notes."""


@dataclass(frozen=True)
class Machine:
    """A machine as it answers for itself; None or empty where it does not tell."""

    machine: str
    python: str
    """Version, such as `3.12.3`."""
    glibc: str
    has_numpy: bool
    tegra_release: str
    """First line of /etc/nv_tegra_release; empty on what is no Jetson."""
    jetpack: str
    power_mode: str | None
    """A Jetson's power mode; of a discrete GPU that was looked at, its power limit."""
    clocks: list[Clock]
    num_cpus: int
    busy_cpus: float | None
    """CPUs' worth of work going on; looked at where the CPU shares the GPU's memory."""
    gpu: str
    compute_capability: tuple[int, int] | None
    num_sms: int
    integrated: bool
    driver: str
    gpu_error: str
    """Why there is no GPU, empty where there is one."""
    mig: str | None = None
    """Profile of the MIG slice; None: the whole GPU."""

    @staticmethod
    def from_json(values: dict[str, object]) -> Machine:
        """Make it of what `as_json` gave."""
        read = Machine(**values)  # type: ignore[arg-type]
        capability = read.compute_capability
        fields = vars(read) | {
            "clocks": [Clock(**clock) for clock in read.clocks],  # type: ignore[arg-type]
            "compute_capability": None if capability is None else (capability[0], capability[1]),
        }
        return Machine(**fields)

    def as_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return asdict(self)

    def describe(self) -> list[str]:
        """Say in lines what was found."""
        clocks = ", ".join(f"{x.name} {x.now_mhz} MHz ({x.min_mhz} to {x.max_mhz})" for x in self.clocks)
        lines = [f"{self.machine}, Python {self.python}, glibc {self.glibc or 'unknown'}"]
        if self.gpu:
            capability = "{}.{}".format(*self.compute_capability) if self.compute_capability else "unknown"
            lines.append(f"{self.gpu}: compute capability {capability}, {self.num_sms} SMs, {self.driver}")
            lines += [f"MIG slice {self.mig}"] if self.mig else []
        if self.tegra_release:
            lines.append(f"{self.tegra_release}; JetPack {self.jetpack or 'unknown'}")
        if self.power_mode:
            lines.append(f"power mode {self.power_mode}")
        return lines + ([clocks] if clocks else [])


def _read_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0].strip("# \n")
    except OSError:
        return ""


def _cpu_ticks() -> tuple[int, int] | None:
    """Return the busy and all ticks of the CPUs since they started."""
    words = _read_line(CPU_STATE).split()
    if len(words) < 6 or words[0] != "cpu":
        return None
    ticks = [int(word) for word in words[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _busy_cpus(num_cpus: int) -> float | None:
    before = _cpu_ticks()
    time.sleep(LOOK_S)
    after = _cpu_ticks()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return round(num_cpus * (after[0] - before[0]) / (after[1] - before[1]), 2)


def _glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    except (OSError, ValueError):  # another C library
        return ""


def _jetpack() -> str:
    return output_of(["dpkg-query", "-W", "-f=${Version}", "nvidia-jetpack"]).strip()


def read_machine(*, with_gpu: bool = True) -> Machine:
    """Look at this machine; `with_gpu` false leaves the GPU alone."""
    gpu, capability, num_sms, integrated, driver, gpu_error = "", None, 0, False, "", ""
    power_mode = parse_nvpmodel(output_of(["nvpmodel", "-q"]))
    if with_gpu:
        from aot.measure.device import read_properties

        try:
            found = read_properties()
            gpu, capability, num_sms = found.name, found.compute_capability, found.num_sms
            integrated, driver = found.integrated, found.driver_version
            power_mode = power_mode or read_state(found.pci_bus_id).power_mode
        except AotError as error:
            gpu_error = str(error)
    num_cpus = os.cpu_count() or 1
    return Machine(
        machine=platform.machine(),
        python=platform.python_version(),
        glibc=_glibc(),
        has_numpy=importlib.util.find_spec("numpy") is not None,
        tegra_release=_read_line(TEGRA_RELEASE),
        jetpack=_jetpack(),
        power_mode=power_mode,
        clocks=read_clocks(),
        num_cpus=num_cpus,
        busy_cpus=_busy_cpus(num_cpus) if TEGRA_RELEASE.exists() else None,
        gpu=gpu,
        compute_capability=capability,
        num_sms=num_sms,
        integrated=integrated,
        driver=driver,
        gpu_error=gpu_error,
        mig=mig_profile(gpu),
    )


def _old_release(line: str) -> bool:
    words = line.replace(",", " ").split()
    return bool(words) and words[0].startswith("R") and words[0][1:].isdigit() and int(words[0][1:]) < JETPACK_RELEASE


def warnings(machine: Machine, num_sms: int | None = None) -> list[str]:
    """Say what makes times from a machine unsteady, or other than a target's.

    Args:
        machine: as it answered.
        num_sms: SMs that are expected; None: any.
    """
    found = []
    free = [clock for clock in machine.clocks if not clock.is_locked]
    if free:
        ranges = ", ".join(f"{x.name} {x.min_mhz} to {x.max_mhz} MHz" for x in free)
        found.append(f"clocks are not locked ({ranges}); lock them with: {LOCK_COMMAND}")
    if machine.tegra_release and machine.power_mode is None:
        found.append("nvpmodel does not tell the power mode, which records are keyed by; see `nvpmodel -q`")
    if _old_release(machine.tegra_release):
        found.append(f"{machine.tegra_release}: older than JetPack 7 (R{JETPACK_RELEASE}), which Thor's kernels need")
    if machine.tegra_release and machine.busy_cpus is not None and machine.busy_cpus > MAX_BUSY_CPUS:
        found.append(f"{machine.busy_cpus} of {machine.num_cpus} CPUs are busy; they share the memory: stop what runs")
    if num_sms is not None and machine.gpu and machine.num_sms != num_sms:
        cause = f"the MIG slice {machine.mig}." if machine.mig else "a MIG slice or a power mode?"
        found.append(
            f"{machine.gpu} has {machine.num_sms} SMs here, the target has {num_sms}: {cause} The record is keyed by "
            f"{'its profile, ' if machine.mig else ''}{machine.num_sms} SMs and power mode {machine.power_mode}"
        )
    return found
