"""The state of the device beside its times: driver, clocks and power mode, as the machine's own tools tell them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.measurement import Conditions

if TYPE_CHECKING:
    from aot.device import DeviceProperties

DEVFREQ = Path("/sys/class/devfreq")
"""Where a Jetson's kernel shows the GPU's frequency in Hz; its nvidia-smi answers N/A. Source: Linux
Documentation/ABI/testing/sysfs-class-devfreq."""

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


def parse_devfreq(folder: Path) -> int | None:
    """Read the highest current frequency, in MHz, of the GPU's entries in a devfreq folder."""
    entries = sorted(folder.glob("*gpu*/cur_freq"))
    readings = [int(entry.read_text(encoding="ascii")) // 1_000_000 for entry in entries]
    return max(readings, default=None)


def _output(command: list[str]) -> str:
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
    state = parse_nvidia_smi(_output(query))
    mode = parse_nvpmodel(_output(["nvpmodel", "-q"]))
    clock = state.sm_clock_mhz if state.sm_clock_mhz is not None else parse_devfreq(DEVFREQ)
    return DeviceState(state.driver, clock, state.memory_clock_mhz, mode or state.power_mode)


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
    )
