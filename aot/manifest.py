"""The manifest: everything a wheel is built from, as versioned JSON that is strict both ways."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from aot.candidate import Candidate, KernelKey, Workspace
from aot.dispatch import DispatchTable, table_fault
from aot.errors import ManifestError
from aot.families import family_of
from aot.measurement import Conditions
from aot.problem import Operation
from aot.selection import HeldOut, Regret
from aot.strict_json import DecodeError, decode

MANIFEST_VERSION = 2
"""Raised whenever a field is added without a default, dropped, or changes its meaning."""


@dataclass(frozen=True)
class ManifestKernel:
    """One kernel that the wheel ships."""

    name: str
    operation: Operation
    candidate: Candidate
    object_sha256: str
    object_bytes: int
    entry_symbol: str
    """The C entry that `export_to_c` made: `void entry(void** args, int32_t num_args)`."""
    init_symbol: str
    load_symbol: str
    num_strides: int
    """Strides that the entry takes for each operand: 1, the leading one, or 2, both."""
    m_multiple: int
    n_multiple: int
    workspace: Workspace
    smem_bytes: int
    tmem_columns: int
    num_threads: int
    registers: int
    spill_bytes: int

    @property
    def key(self) -> KernelKey:
        """Give the kernel's operation and candidate."""
        return KernelKey(self.operation, self.candidate)

    @property
    def reads_b_early(self) -> bool:
        """Say whether the entry takes an int32 before the stream: may B be read before the kernel in front ends."""
        return family_of(self.candidate).reads_b_early


@dataclass(frozen=True)
class Manifest:
    """A wheel's content: kernels in the order of their index in the dispatch table, and where its times come from."""

    manifest_version: int
    package: str
    """Name of the distribution, such as `aot-gemm`; the import name has underscores."""
    version: str
    """PEP 440 version; a wheel with predicted rows has a local part that says so."""
    target: str
    arch: str
    platform_tag: str
    provenance: str
    """`measured` or `predicted`."""
    record: str
    """Name of the record, or of the cost model, that the table was made from."""
    conditions: tuple[Conditions, ...]
    regrets: tuple[Regret, ...]
    """How far the kernels are from the best times known, on what they were selected on; none where nothing was."""
    heldout: tuple[HeldOut, ...]
    """What the table costs on problems that no step of the selection saw; may be empty."""
    flops_per_s: float
    """The target's rate, which `explain` states the limit of a problem by: see aot.limit."""
    bandwidth_bytes_per_s: float
    """The target's, of device memory, likewise."""
    cell_fractions: tuple[float, ...]
    """Where between the edges of a grid's cell, in m, its time was judged: see dispatch.between."""
    bigger_tiles: dict[str, tuple[str, ...]]
    """By the kernel's name, what there is against each of the next bigger tiles: see aot.tiles."""
    toolchain: dict[str, str]
    """Versions of what compiled the kernels."""
    kernels: tuple[ManifestKernel, ...]
    table: DispatchTable

    @property
    def module(self) -> str:
        """Give the import name."""
        return self.package.replace("-", "_")

    @property
    def multiples(self) -> tuple[tuple[int, int], ...]:
        """Give (m_multiple, n_multiple) of each kernel, for `dispatch.look_up`."""
        return tuple((kernel.m_multiple, kernel.n_multiple) for kernel in self.kernels)


def decode_kernel(value: object, where: str) -> ManifestKernel:
    """Read one kernel's entry from plain JSON.

    Raises:
        ManifestError: an entry is missing, unknown or of the wrong type.
    """
    try:
        kernel: ManifestKernel = decode(ManifestKernel, value, where)
    except DecodeError as error:
        raise ManifestError(str(error)) from error
    return kernel


def _check(manifest: Manifest) -> None:
    names = [kernel.name for kernel in manifest.kernels]
    if len(set(names)) != len(names):
        raise ManifestError(f"two kernels have one name: {sorted(n for n in names if names.count(n) > 1)}")
    unknown = sorted(set(manifest.bigger_tiles) - set(names))
    if unknown:
        raise ManifestError(f"bigger_tiles names {unknown[0]}, which is no kernel of the manifest")
    fault = table_fault(manifest.table, len(names))
    if fault:
        raise ManifestError(fault)
    for section in manifest.table.sections:
        if manifest.kernels[section.fallback].num_strides != 2:
            raise ManifestError(f"{section.operation.tag}: the fallback must take both strides of its operands")


def to_json(manifest: Manifest) -> str:
    """Write a manifest: sorted keys, no timestamps, so that equal manifests are equal bytes."""
    _check(manifest)
    return json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"


def from_json(text: str, where: str = "manifest") -> Manifest:
    """Read a manifest.

    Raises:
        ManifestError: it is not JSON, of another version, or an entry is missing, unknown, of the wrong type, or
            points at a kernel that is not there.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ManifestError(f"{where}: not JSON: {error}") from error
    version = value.get("manifest_version") if isinstance(value, dict) else None
    if version != MANIFEST_VERSION:
        raise ManifestError(f"{where}: version {version!r}, expected {MANIFEST_VERSION}; build it again with this aot")
    try:
        manifest: Manifest = decode(Manifest, value, where)
    except DecodeError as error:
        raise ManifestError(str(error)) from error
    _check(manifest)
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Read a manifest file; see `from_json`."""
    try:
        return from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}; give the path of a manifest.json") from error
