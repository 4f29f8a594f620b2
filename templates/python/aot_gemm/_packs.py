"""Packs of kernels: distributions that hold a library and its tables, and none of the functions.

A package without kernels of its own takes its libraries from those that can run here: each answers for the operations
that it has, the first in order first.
"""

from __future__ import annotations

import ctypes
import json
from configparser import ConfigParser
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

from . import _files, _library, errors
from ._runtime import RUNTIME
from ._version import ABI_VERSION, __version__

GROUP = f"{_files.MODULE}.packs"
"""The entry points by which packs are found: the name is the distribution's, the value the folder's."""
DESCRIPTION = "pack.json"
TUNED = "tuned"

_OWN_NAME = _files.MODULE.replace("_", "-")
_MAX_GPUS = 64
"""Ordinals that a library knows: kMaxDevices of devices.h."""
_NO_GPU, _ARCHITECTURE = (errors.OF_STATUS.index(x) for x in (errors.NoGpuError, errors.ArchitectureError))


class Pack(NamedTuple):
    """One pack that is installed."""

    name: str
    version: str
    arch: str
    folder: _files.Folder
    answers: str
    """For what it answers: `all` that it has kernels for, or `tuned` sizes of its table alone."""

    @property
    def is_own(self) -> bool:
        """Say whether it is named as the packs that go with this package are; any other is a user's."""
        return self.name.startswith(f"{_OWN_NAME}-sm")

    def __str__(self) -> str:
        return f"{self.name} {self.version} for {self.arch} in {self.folder.directory}"


def _entries(distribution: Distribution) -> dict[str, str]:
    """Return the packs that a distribution says it has: their folders by name."""
    text = distribution.read_text("entry_points.txt") or ""
    if GROUP not in text:
        return {}
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.read_string(text)
    return dict(parser[GROUP]) if parser.has_section(GROUP) else {}


def _pack_of(distribution: Distribution, module: str) -> Pack:
    """Read what a pack is.

    Raises:
        PackError: it is missing, or does not go with this package.
        CorruptLibraryError: it is damaged.
    """
    name, version = distribution.metadata["Name"], distribution.version
    folder = _files.Folder(str(distribution.locate_file(module)))
    if not Path(folder.directory).is_dir():
        raise errors.PackError(
            f"the pack {name} {version} has no folder {folder.directory}; reinstall it: "
            f"pip install --force-reinstall {name}"
        )
    values = json.loads(folder.read_verified(DESCRIPTION))
    found = {key: values.get(key) for key in ("abi_version", "runtime")}
    expected = {"abi_version": ABI_VERSION, "runtime": RUNTIME}
    if found != expected:
        what = " and ".join(f"{key} {found[key]}" for key in expected if found[key] != expected[key])
        needed = " and ".join(f"{key} {expected[key]}" for key in expected if found[key] != expected[key])
        raise errors.PackError(
            f"the pack {name} {version} has {what}; {_OWN_NAME} {__version__} needs {needed}: they are of two builds; "
            f"install both from one, or remove the pack: pip uninstall {name}"
        )
    return Pack(name, version, values["arch"], folder, values["answers"])


@cache
def found() -> tuple[Pack, ...]:
    """Return the packs that are installed, in the order in which they are asked: a user's first, then by name.

    Raises:
        PackError: one does not go with this package, or is installed twice.
        CorruptLibraryError: one is damaged.
    """
    packs: dict[str, Pack] = {}
    for distribution in distributions():
        for module in _entries(distribution).values():
            pack = _pack_of(distribution, module)
            other = packs.setdefault(pack.name, pack)
            if other.folder.directory != pack.folder.directory:
                raise errors.PackError(
                    f"the pack {pack.name} is installed twice: {other.version} in {other.folder.directory} and "
                    f"{pack.version} in {pack.folder.directory}; remove one: pip uninstall {pack.name}"
                )
    return tuple(sorted(packs.values(), key=lambda x: (x.is_own, x.name)))


def refusal(pack: Pack, device: int = -1) -> tuple[int, str]:
    """Ask a pack's library whether it can run on a GPU (-1: the current one).

    Returns:
        The status of its C API, and why it cannot.

    Raises:
        CorruptLibraryError: the library does not load.
        PackError: its C API is of another version.
    """
    library = _library.load(pack.folder, ctypes.CDLL, {"aot_gemm_last_error": ctypes.c_char_p})
    abi_version = library.aot_gemm_abi_version()
    if abi_version != ABI_VERSION:
        raise errors.PackError(f"the library of {pack} has ABI version {abi_version}; expected {ABI_VERSION}")
    table, reason = ctypes.c_int32(), ctypes.c_char_p()
    status: int = library.aot_gemm_device_table(ctypes.c_int32(device), ctypes.byref(table), ctypes.byref(reason))
    return status, library.aot_gemm_last_error().decode() if status else ""


def _runs_on_another(pack: Pack) -> bool:
    """Say whether a pack that the current GPU cannot run is for another GPU of this process."""
    for device in range(_MAX_GPUS):
        status, _ = refusal(pack, device)
        if status != _ARCHITECTURE:
            return status == 0  # past the last GPU CUDA knows no such ordinal
    return False


@cache
def answering() -> tuple[tuple[Pack, bool], ...]:
    """Return the packs that answer in this process, in the order in which they are asked.

    They are those that the current GPU can run, then those that another GPU of the process can; without a GPU those for
    the architecture of the first. One that answers for tuned sizes alone is asked for all that it has behind the others
    of its architecture, where none of these has kernels.

    Returns:
        Beside each whether it answers for tuned sizes alone.

    Raises:
        PackError: there is none, or one that does not go with this package.
        ArchitectureError: none is for a GPU that is here.
        CudaError: CUDA failed.
        CorruptLibraryError: a pack is damaged.
    """
    packs = found()
    if not packs:
        raise errors.PackError(
            f"{_OWN_NAME} {__version__} holds no kernels, and no pack of them is installed; install the one for this "
            f"GPU, such as {_OWN_NAME}-sm90a, from where {_OWN_NAME} is from"
        )
    answers = {pack: refusal(pack) for pack in packs}
    for status, reason in answers.values():
        if status not in (0, _NO_GPU, _ARCHITECTURE):
            raise errors.OF_STATUS[status](reason)
    if any(status == _NO_GPU for status, _ in answers.values()):
        return _in_order([x for x in packs if x.arch == packs[0].arch])
    able = [x for x in packs if answers[x][0] == 0]
    others = [x for x in packs if x not in able and _runs_on_another(x)]
    if not (able or others):
        reasons = "; ".join(f"{pack.name}: {reason}" for pack, (_, reason) in answers.items())
        raise errors.ArchitectureError(f"no pack is for this GPU; install one that is: {reasons}")
    by_arch = dict.fromkeys(x.arch for x in [*able, *others])
    return tuple(y for arch in by_arch for y in _in_order([x for x in [*able, *others] if x.arch == arch]))


def _in_order(packs: list[Pack]) -> tuple[tuple[Pack, bool], ...]:
    """Return packs of one architecture in the order in which they are asked, as `answering` says."""
    if len(packs) == 1:
        return ((packs[0], False),)
    limited = [x for x in packs if x.answers == TUNED]
    return (*((x, x in limited) for x in packs), *((x, False) for x in limited))
