"""The manifest: everything a wheel is built from, as versioned JSON that is strict both ways."""

from __future__ import annotations

import json
import keyword
from dataclasses import asdict, dataclass
from typing import Annotated

from aot.core.constraints import (
    Arch,
    Distribution,
    Grammar,
    KernelName,
    Rate,
    Release,
    TargetName,
    Text,
    Version,
)
from aot.core.dispatch import DispatchTable, table_fault
from aot.core.errors import CandidateError, ManifestError
from aot.core.kernel import Kernel
from aot.core.measurement import Conditions, Provenance
from aot.core.strict_json import DecodeError, decode_version, parse_json
from aot.families import signature
from aot.select.selection import HeldOut, Regret

MANIFEST_VERSION = 4
"""Raised whenever a field is added without a default, dropped, or changes its meaning."""


Package = Annotated[str, Grammar(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", "a distribution's name, such as aot-gemm", 80)]
WheelVersion = Annotated[
    str,
    Grammar(r"[0-9]+(\.[0-9]+)*[a-z0-9.]*(\+[a-z0-9]+(\.[a-z0-9]+)*)?", "a version, such as 0.1.0+h200", 200),
]
PlatformTag = Annotated[
    str, Grammar(r"manylinux_[0-9]+_[0-9]+_[a-z0-9_]+", "a platform, such as manylinux_2_28_x86_64")
]


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library for C: its kernels, in the order of their index in the dispatch table, and the table."""

    package: Package
    """Name of the distribution, such as `aot-gemm`; the import name has underscores."""
    version: WheelVersion
    """PEP 440 version; a wheel with predicted rows has a local part that says so."""
    arch: Arch
    kernels: tuple[Kernel, ...]
    table: DispatchTable

    @property
    def module(self) -> str:
        """Return the import name."""
        return self.package.replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Manifest(Library):
    """A wheel's content: its library, and where the times behind its table come from."""

    manifest_version: Version
    target: TargetName
    platform_tag: PlatformTag
    provenance: Provenance
    record: Text
    """Name of the record, or of the cost model, that the table was made from."""
    conditions: tuple[Conditions, ...]
    regrets: tuple[Regret, ...]
    """How far the kernels are from the best times known, on what they were selected on; none where nothing was."""
    heldout: tuple[HeldOut, ...]
    """What the table costs on problems that no step of the selection saw; may be empty."""
    flops_per_s: Rate
    """The target's rate, which `explain` states the limit of a problem by: see aot.space.roofline."""
    bandwidth_bytes_per_s: Rate
    """The target's, of device memory, likewise."""
    bigger_tiles: dict[KernelName, tuple[Text, ...]]
    """By the kernel's name, what there is against each of the next bigger tiles: see aot.select.tiles."""
    toolchain: dict[Distribution, Release]
    """Versions of what compiled the kernels."""

    @property
    def multiples(self) -> tuple[tuple[int, int], ...]:
        """Return (m_multiple, n_multiple) of each kernel, for `dispatch.look_up`."""
        return tuple((kernel.m_multiple, kernel.n_multiple) for kernel in self.kernels)


def _check_kernel(kernel: Kernel) -> None:
    if kernel.name != kernel.key.name:
        raise DecodeError(f"the kernel {kernel.name} is of {kernel.key.name}; the two are one name")
    try:
        expected = signature(kernel.key)
    except CandidateError as error:
        raise DecodeError(str(error)) from error
    if kernel.signature != expected:
        raise DecodeError(
            f"the kernel {kernel.name} takes {', '.join(kernel.signature)}; expected {', '.join(expected)}"
        )


def _check(manifest: Manifest) -> None:
    """Refuse what no wheel can be built from (DecodeError)."""
    if not manifest.module.isidentifier() or keyword.iskeyword(manifest.module):
        raise DecodeError(f"the package {manifest.package} would be imported as {manifest.module}, a word of Python's")
    names = [kernel.name for kernel in manifest.kernels]
    if len(set(names)) != len(names):
        raise DecodeError(f"two kernels have one name: {sorted(n for n in names if names.count(n) > 1)}")
    for kernel in manifest.kernels:
        _check_kernel(kernel)
    symbols = [x for kernel in manifest.kernels for x in (kernel.entry_symbol, kernel.init_symbol, kernel.load_symbol)]
    if len(set(symbols)) != len(symbols):
        raise DecodeError(f"two entries have the symbol {max(symbols, key=symbols.count)}")
    unknown = sorted(set(manifest.bigger_tiles) - set(names))
    if unknown:
        raise DecodeError(f"bigger_tiles names {unknown[0]}, which is no kernel of the manifest")
    fault = table_fault(manifest.table, manifest.kernels)
    if fault:
        raise DecodeError(fault)


def to_json(manifest: Manifest) -> str:
    """Write a manifest: sorted keys, no timestamps, so that equal manifests are equal bytes.

    Raises:
        ManifestError: it is none that could be read again.
    """
    text = json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"
    from_json(text)
    return text


def from_json(text: str | bytes, where: str = "manifest") -> Manifest:
    """Read a manifest.

    Raises:
        ManifestError: it is not JSON, of another version, or an entry is missing, unknown, of the wrong type, out of
            its range, or points at a kernel that is not there or cannot stand there.
    """
    try:
        manifest = decode_version(Manifest, parse_json(text), "manifest_version", MANIFEST_VERSION)
        _check(manifest)
    except DecodeError as error:
        raise ManifestError(f"{where}: {error}; build it again with this aot") from error
    return manifest
