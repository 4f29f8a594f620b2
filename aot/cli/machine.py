"""What this machine is, what it can and cannot do with this toolchain, and which command comes next."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aot.compile.compiler import TOOLCHAIN
from aot.core.errors import REPAIR, DeviceError
from aot.core.target import Target, load_target, target_names
from aot.measure.device import DeviceProperties, read_properties
from aot.package.toolchain import LINKERS, TOOLCHAIN_CACHE, cached_toolchain

MIN_DISK_BYTES = 2 * 2**30
"""Free disk that a build should find. An assumption: four times build/ after `make release`, 0.5 GiB on 2026-11-22."""
MIN_CUDA = (13, 0)
"""Of the driver. Source: aot.package.toolchain.CUDA_RUNTIME, whose kernels no older driver loads."""
BINFMT = Path("/proc/sys/fs/binfmt_misc")
EMULATORS = {"aarch64": ("qemu-aarch64-static", "qemu-aarch64"), "x86_64": ("qemu-x86_64-static", "qemu-x86_64")}


@dataclass(frozen=True)
class Machine:
    """What was found on this machine."""

    machine: str
    """As `uname -m` prints it."""
    system: str
    python: str
    num_cpus: int
    memory_bytes: int
    free_disk_bytes: int
    gpu: DeviceProperties | None
    no_gpu: str
    """Why there is none to be used; empty where there is one."""
    compilers: dict[str, str | None]
    """Version of each package that compiles kernels; None where it is missing."""
    linkers: dict[str, str | None]
    """The same of those that render, compile and link a wheel's library."""
    cached: tuple[str, ...]
    """Machines whose CUDA runtime has been fetched."""
    emulators: dict[str, str | None]
    """By machine, what runs its programs here: a program, or `binfmt_misc`; None where nothing does."""
    torch: str | None
    torch_cuda: str | None
    """The CUDA that torch was built with; None for one without, or where it is missing."""
    programs: dict[str, str | None] = field(default_factory=dict)
    """Paths of other programs that some commands need."""


@dataclass(frozen=True)
class Ability:
    """Something that this toolchain does, and whether it can be done here."""

    name: str
    can: bool
    why: str
    """What it can do it with, or what is missing and how to get it."""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    """Read which CUDA the installed torch was built with, without importing it, which takes seconds."""
    spec = importlib.util.find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if path is None or not path.is_file():
        return None
    found = re.search(r"^cuda\b.*= *['\"]([0-9.]+)['\"]", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


def _emulator(machine: str, binfmt: Path = BINFMT) -> str | None:
    found = next((path for name in EMULATORS[machine] if (path := shutil.which(name))), None)
    return found or ("binfmt_misc" if (binfmt / f"qemu-{machine}").exists() else None)


def _gpu() -> tuple[DeviceProperties | None, str]:
    try:
        return read_properties(), ""
    except DeviceError as error:
        return None, str(error)


def _existing(path: Path) -> Path:
    """Return the nearest folder above a path that is there."""
    return next(x for x in (path.absolute(), *path.absolute().parents) if x.is_dir())


def read_machine() -> Machine:
    """Look at this machine; nothing is written and no network used."""
    gpu, no_gpu = _gpu()
    here = platform.machine()
    hosts = sorted({load_target(name).machine for name in target_names()})
    return Machine(
        machine=here,
        system=f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        python=platform.python_version(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        free_disk_bytes=shutil.disk_usage(_existing(Path("build"))).free,
        gpu=gpu,
        no_gpu=no_gpu,
        compilers={name: _version(name) for name in TOOLCHAIN},
        linkers={name: _version(name) for name in LINKERS},
        cached=tuple(x for x in hosts if cached_toolchain(x, TOOLCHAIN_CACHE).is_dir()),
        emulators={x: _emulator(x) for x in hosts if x != here},
        torch=_version("torch"),
        torch_cuda=_torch_cuda(),
        programs={name: shutil.which(name) for name in ("git", "make", "npx", "ssh", "unshare")},
    )


def target_of(gpu: DeviceProperties, targets: Sequence[Target]) -> Target | None:
    """Return the target that a GPU is: by its name and number of SMs."""
    return next((x for x in targets if gpu.num_sms == x.num_sms and gpu.name in x.device_names), None)


def _cuda_version(gpu: DeviceProperties) -> tuple[int, ...]:
    return tuple(int(x) for x in gpu.driver_version.removeprefix("CUDA ").split(".") if x.isdigit())


def _missing(packages: dict[str, str | None]) -> list[str]:
    return [name for name, number in packages.items() if number is None]


def _build(machine: Machine, targets: Sequence[Target]) -> Ability:
    missing = _missing(machine.compilers | machine.linkers)
    if missing:
        return Ability("build wheels", False, f"{', '.join(missing)} missing; {REPAIR}")
    if machine.free_disk_bytes < MIN_DISK_BYTES:
        free = f"{machine.free_disk_bytes / 2**30:.1f} GiB of disk free"
        return Ability("build wheels", False, f"{free}; free at least {MIN_DISK_BYTES / 2**30:.0f} GiB")
    names = ", ".join(x.name for x in targets)
    return Ability("build wheels", True, f"for {names}; needs no GPU")


def _offline(machine: Machine, hosts: Sequence[str]) -> Ability:
    missing = [x for x in hosts if x not in machine.cached]
    if missing:
        text = f"the CUDA runtime for {' and '.join(missing)} is fetched by the first build, or `make wheelhouse`"
        return Ability("build without a network", False, text)
    return Ability("build without a network", True, f"the CUDA runtime for {' and '.join(hosts)} is here")


def _run(machine: Machine, targets: Sequence[Target]) -> Ability:
    name, gpu = "run kernels", machine.gpu
    if gpu is None:
        return Ability(name, False, machine.no_gpu)
    capability = ".".join(map(str, gpu.compute_capability))
    fit = [x for x in targets if x.compute_capability == gpu.compute_capability]
    if not fit:
        text = f"{gpu.name} has compute capability {capability}; expected one of "
        known = [".".join(map(str, pair)) for pair in sorted({x.compute_capability for x in targets})]
        return Ability(name, False, f"{text}{', '.join(known)}; CONTRIBUTING.md says how a target is added")
    if _cuda_version(gpu) < MIN_CUDA:
        least = ".".join(map(str, MIN_CUDA))
        return Ability(name, False, f"the driver supports {gpu.driver_version}; install one for CUDA {least} or newer")
    return Ability(name, True, f"{gpu.name}, {gpu.num_sms} SMs, wheels for {', '.join(x.name for x in fit)}")


def _tune(machine: Machine, targets: Sequence[Target]) -> Ability:
    own = target_of(machine.gpu, targets) if machine.gpu else None
    if machine.gpu and own:
        return Ability("tune here", True, f"as {own.name}")
    if machine.gpu:
        text = (
            f"{machine.gpu.name} with {machine.gpu.num_sms} SMs is no target; copy the nearest of aot/targets/ for it"
        )
        return Ability("tune here", False, text)
    return Ability(
        "tune here", False, "no GPU; `aot tune --on ssh://DEVICE`, or `aot tune --bundle DIRECTORY` to carry"
    )


def _remote(machine: Machine) -> Ability:
    ssh = machine.programs.get("ssh")
    return Ability("tune by SSH", ssh is not None, ssh or "ssh is not installed; install OpenSSH's client")


def _torch(machine: Machine) -> Ability:
    name = "time torch beside the kernels"
    if machine.torch is None:
        return Ability(name, False, "torch is not installed; a tuning does without, by --no-reference")
    if machine.torch_cuda is None:
        text = f"torch {machine.torch} is built without CUDA; install one with CUDA, or tune with --no-reference"
        return Ability(name, False, text)
    return Ability(name, machine.gpu is not None, f"torch {machine.torch}, CUDA {machine.torch_cuda}")


def _emulate(machine: Machine) -> list[Ability]:
    return [
        Ability(
            f"run {name} programs, for tests",
            found is not None,
            found
            or "no qemu-user; the tests fetch one where Debian's packages can be had, and say what they leave out",
        )
        for name, found in machine.emulators.items()
    ]


def abilities(machine: Machine, targets: Sequence[Target]) -> list[Ability]:
    """Say what this toolchain can do on a machine."""
    hosts = sorted({x.machine for x in targets})
    missing = [name for name in ("git", "make") if machine.programs.get(name) is None]
    release = Ability("make a release", not missing, f"{' and '.join(missing)} missing" if missing else "git and make")
    found = [_build(machine, targets), _offline(machine, hosts), _run(machine, targets), _tune(machine, targets)]
    return [*found, _remote(machine), _torch(machine), *_emulate(machine), release]


def next_command(machine: Machine, targets: Sequence[Target]) -> str:
    """Return the command that comes next on a machine."""
    if _missing(machine.compilers | machine.linkers):
        return "make setup"
    own = target_of(machine.gpu, targets) if machine.gpu else None
    if own:
        return f"aot tune --target {own.name}"
    fit = [x for x in targets if machine.gpu and x.compute_capability == machine.gpu.compute_capability]
    return f"aot build --target {fit[0].name if fit else 'thor'}"
