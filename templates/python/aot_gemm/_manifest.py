"""What the package is, as the manifest says that it was built from: needs no GPU, and `info` no library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from . import _files, _library, errors

if TYPE_CHECKING:
    import ctypes

_HELD_OUT = ("", "tuned (n, k) at other m", "(n, k) that are not tuned")
"""By the tier that answers."""


@dataclass(frozen=True)
class Info:
    """What this package is."""

    package: str
    version: str
    target: str
    arch: str
    platform_tag: str
    provenance: str
    record: str
    conditions: tuple[dict[str, Any], ...]
    regrets: tuple[dict[str, Any], ...]
    """How far each operation's kernels are from the best times measured, as fractions, on what they were selected on.

    Empty where the times are predicted: what a model says of kernels that it picked itself says nothing of the device.
    """
    heldout: tuple[dict[str, Any], ...]
    """What the table costs on problems that no step of the selection saw, as fractions; may be empty."""
    misses_file: str | None
    """Where AOT_GEMM_MISSES has the launches counted that no tuned size answered; None where it does not.

    Before the library is loaded: where it would have them counted if it were loaded now.
    """
    kernels: tuple[str, ...]
    toolchain: dict[str, str]
    library_bytes: dict[str, int]
    library_dir: str
    include_dir: str
    cmake_dir: str
    """What CMake's find_package is given as <import name>_DIR."""
    pkgconfig_dir: str
    """What PKG_CONFIG_PATH is to hold."""
    examples_dir: str

    def __str__(self) -> str:
        """Write one line for each entry, and one for each condition and kernel."""
        lines = [
            f"{self.package} {self.version}: {len(self.kernels)} kernels for {self.arch} (target {self.target})",
            f"times: {self.provenance}, record {self.record}",
        ]
        known = ({key: value for key, value in x.items() if value is not None} for x in self.conditions)
        lines += ["  " + ", ".join(f"{key} {value}" for key, value in x.items()) for x in known]
        lines += [
            f"  {x['operation']}: {x['num_kernels']} kernels, over the best known on {x['num_problems']} problems: "
            f"mean {x['mean']:.2%}, worst {x['worst']:.2%}"
            for x in self.regrets
        ]
        if self.provenance == "predicted":
            lines += ["  how far they are from the best is not known: nothing was measured"]
        lines += [
            f"  {x['operation']}: on {x['num_problems']} problems held out, {_HELD_OUT[x['tier']]}: "
            f"mean {x['mean']:.2%}, worst {x['worst']:.2%}; of which rounding {x['bucketing_loss_mean']:.2%}, "
            f"worst {x['bucketing_loss_worst']:.2%} at {x['worst_problem']}; {x['num_unmeasured']} more not measured"
            for x in self.heldout
        ]
        lines += [f"misses are counted in {self.misses_file}" if self.misses_file else "misses are not counted"]
        lines += [f"built for {self.platform_tag} with " + ", ".join(f"{k} {v}" for k, v in self.toolchain.items())]
        lines += [
            f"libraries in {self.library_dir}: " + ", ".join(f"{k} {v:,} B" for k, v in self.library_bytes.items())
        ]
        lines += [f"header in {self.include_dir}, examples in {self.examples_dir}"]
        lines += [f"CMake package in {self.cmake_dir}, pkg-config file in {self.pkgconfig_dir}"]
        lines += ["kernels:", *(f"  {name}" for name in self.kernels)]
        return "\n".join(lines)


@cache
def manifest() -> dict[str, Any]:
    """Read the manifest that the package was built from.

    Raises:
        CorruptLibraryError: it is missing, or not as it was built.
    """
    values: dict[str, Any] = json.loads(_files.read_verified(_files.MANIFEST))
    return values


@cache
def library_of_manifest() -> ctypes.CDLL:
    """Load the library, whose answers the manifest puts into words.

    Raises:
        CorruptLibraryError: it does not load, or is not the one that the manifest was written for.
    """
    library = _library.library()
    expected = [manifest()["version"], *(kernel["name"] for kernel in manifest()["kernels"])]
    names = [library.aot_gemm_kernel_name(i) for i in range(library.aot_gemm_num_kernels())]
    found = [(x or b"").decode(errors="replace") for x in (library.aot_gemm_version(), *names)]
    if found != expected:
        raise errors.CorruptLibraryError(
            f"{_library.LIBRARY} is {found[0]} with {len(found) - 1} kernels; {_files.path_of(_files.MANIFEST)} is of "
            f"{expected[0]} with {len(expected) - 1}, or names others; reinstall the package"
        )
    return library


def info() -> Info:
    """Say what this package is: version, target, where its times come from, kernels, files.

    No library is loaded, so that this answers on a machine that the package is not for.

    Raises:
        CorruptLibraryError: the manifest is missing, or not as it was built.
    """
    values = manifest()
    is_measured = values["provenance"] == "measured"
    return Info(
        package=values["package"],
        version=values["version"],
        target=values["target"],
        arch=values["arch"],
        platform_tag=values["platform_tag"],
        provenance=values["provenance"],
        record=values["record"],
        conditions=tuple(values["conditions"]),
        regrets=tuple(values["regrets"]) if is_measured else (),
        heldout=tuple(values["heldout"]),
        misses_file=_library.misses_file(),
        kernels=tuple(kernel["name"] for kernel in values["kernels"]),
        toolchain=values["toolchain"],
        library_bytes={x.name: x.num_bytes for x in _files.recorded().values() if ".so" in x.name},
        library_dir=_files.DIRECTORY,
        include_dir=_files.path_of("include"),
        cmake_dir=_files.path_of("cmake"),
        pkgconfig_dir=_files.path_of("pkgconfig"),
        examples_dir=_files.path_of("examples"),
    )
