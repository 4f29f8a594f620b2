"""The state of the device beside its times: driver, clocks and power mode, as the machine's own tools tell them."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.measurement import Conditions, mig_profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.measure.device import DeviceProperties

DEVFREQ = Path("/sys/class/devfreq")
"""Where a Jetson's kernel shows frequencies in Hz; its nvidia-smi answers N/A. Source: Linux
Documentation/ABI/testing/sysfs-class-devfreq."""

GPU_CLOCK, MEMORY_CLOCK = "gpu", "emc"
"""Parts of the names of a Jetson's devfreq entries. Source: those of Orin and Thor, `17000000.gpu`, `gpu-gpc-0`; the
memory's controller is EMC."""

_QUERY = "driver_version,clocks.sm,clocks.mem,enforced.power.limit"


@dataclass(frozen=True)
class DeviceState:
    """Clocks in MHz; `None` where the machine does not tell."""

    driver: str | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_mode: str | None


def _number(text: str) -> int | None:
    try:
        return round(float(text))
    except ValueError:  # `[N/A]`, `[Not Supported]`: the device has no such sensor
        return None


def parse_nvidia_smi(text: str) -> DeviceState:
    """Read one line of nvidia-smi's CSV of driver, clocks and power limit; any of them may be `[N/A]`."""
    values = [value.strip() for value in text.strip().splitlines()[0].split(",")] if text.strip() else []
    if len(values) != len(_QUERY.split(",")):
        return DeviceState(None, None, None, None)
    watts = _number(values[3])
    driver = None if values[0].startswith("[") else values[0]
    return DeviceState(driver, _number(values[1]), _number(values[2]), None if watts is None else f"{watts} W")


def parse_nvpmodel(text: str) -> str | None:
    """Read the mode's name from `nvpmodel -q`, such as `MAXN`."""
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("NV Power Mode:")]
    return names[0] if names else None


@dataclass(frozen=True)
class Clock:
    """One frequency of a Jetson in MHz, and the limits within which it is governed."""

    name: str
    now_mhz: int
    min_mhz: int
    max_mhz: int

    @property
    def is_locked(self) -> bool:
        """Say whether the governor has no choice."""
        return self.min_mhz == self.max_mhz


def read_clocks(folder: Path = DEVFREQ) -> list[Clock]:
    """Read the clocks of GPU and memory in a devfreq folder; one that cannot be read is left out."""
    clocks = []
    for entry in sorted(folder.glob("*")):
        if GPU_CLOCK not in entry.name and MEMORY_CLOCK not in entry.name:
            continue
        try:
            now, low, high = (int((entry / f"{x}_freq").read_text(encoding="ascii")) for x in ("cur", "min", "max"))
        except (OSError, ValueError):
            continue
        clocks.append(Clock(entry.name, now // 1_000_000, low // 1_000_000, high // 1_000_000))
    return clocks


def highest_mhz(clocks: list[Clock], part: str) -> int | None:
    """Return the highest current frequency of the clocks whose name has `part`; None where there is none."""
    return max((clock.now_mhz for clock in clocks if part in clock.name), default=None)


def output_of(command: list[str]) -> str:
    """Run a query; a tool that is missing, fails or hangs tells nothing, which is an answer and not an error."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_state(pci_bus_id: str) -> DeviceState:
    """Ask nvidia-smi, and on a Jetson nvpmodel and devfreq."""
    query = ["nvidia-smi", "-i", pci_bus_id, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    state = parse_nvidia_smi(output_of(query))
    mode = parse_nvpmodel(output_of(["nvpmodel", "-q"]))
    clocks = read_clocks()
    sm_clock = state.sm_clock_mhz if state.sm_clock_mhz is not None else highest_mhz(clocks, GPU_CLOCK)
    memory = state.memory_clock_mhz if state.memory_clock_mhz is not None else highest_mhz(clocks, MEMORY_CLOCK)
    return DeviceState(state.driver, sm_clock, memory, mode or state.power_mode)


CLOCKS_S = 30.0
"""Between two readings of the clocks while portions are measured: the device waits for each."""


class RareClocks:
    """Reads the clocks beside portions: after the first, whose load they are then of, and from then on now and again.

    nvidia-smi asks all GPUs of its host who they are. What a fleet of four H200s lost by portions, 0.3 to 0.45 s each
    however long they were (docs/fleet.md), is taken to be that: it was read after every one of them.
    """

    def __init__(self, read: Callable[[], DeviceState], now: Callable[[], float] = time.monotonic) -> None:
        self._read, self._now, self._last = read, now, -math.inf

    def read(self) -> DeviceState | None:
        """Return the state; None where it was read less than CLOCKS_S ago."""
        if self._now() - self._last < CLOCKS_S:
            return None
        found = self._read()
        self._last = self._now()
        return found


def make_conditions(
    properties: DeviceProperties, state: DeviceState, arch: str, protocol: str, date: str
) -> Conditions:
    """Join what the driver and the tools say; `arch` is the kernels' architecture, which the device has."""
    driver = f"{state.driver} ({properties.driver_version})" if state.driver else properties.driver_version
    return Conditions(
        device=properties.name,
        arch=arch,
        num_sms=properties.num_sms,
        driver=driver,
        sm_clock_mhz=state.sm_clock_mhz,
        memory_clock_mhz=state.memory_clock_mhz,
        power_mode=state.power_mode,
        date=date,
        protocol=protocol,
        mig=mig_profile(properties.name),
    )
