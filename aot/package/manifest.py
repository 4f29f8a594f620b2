"""The manifest: everything a wheel is built from, as versioned JSON that is strict both ways."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from aot.core.captured import CapturedLosses
from aot.core.constraints import (
    Arch,
    Count,
    Distribution,
    Extent,
    Form,
    Grammar,
    KernelName,
    Label,
    Positive,
    Rate,
    Release,
    TargetName,
    Text,
    Version,
)
from aot.core.dispatch import DispatchTable
from aot.core.errors import CandidateError, ManifestError
from aot.core.execution import Execution, KernelState, execution_of
from aot.core.json_text import write_json
from aot.core.kernel import Kernel
from aot.core.measurement import Conditions, Provenance
from aot.core.operation import Operation
from aot.core.strict_json import DecodeError, decode_version, parse_json
from aot.core.table_check import table_fault
from aot.families import signature
from aot.kinds.rows.dispatch import RowTable, row_table_fault
from aot.kinds.rows.kernel import RowKernel
from aot.package.distribution import Package, WheelVersion
from aot.package.manifest_file import FileValues, file_values
from aot.package.packed_table import PackedTable, unpack
from aot.select.coverage import Coverage, called
from aot.select.selection import HeldOut, Regret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.target import Target

MANIFEST_VERSION = 12
"""Raised whenever a field is added without a default, dropped, or changes its meaning."""

PlatformTag = Annotated[
    str, Grammar(r"manylinux_[0-9]+_[0-9]+_[a-z0-9_]+", "a platform, such as manylinux_2_28_x86_64")
]


CallTag = Annotated[str, Grammar(r"[a-z][a-z0-9_]*", "what a caller asks for an operation by, such as bf16_bias", 40)]


@dataclass(frozen=True)
class ElementBits:
    """Bits of one element of each operand of an operation, 0 of one that it does not take; and how many there are."""

    a: Positive
    b: Positive
    d: Positive
    bias: Count
    residual: Count = 0
    factor: Count = 0
    """Of a factor of A or B."""
    factor_block: Count = 0
    """Elements along k, and rows of B, that a factor serves; 0 where there is one for each row."""
    parts: Positive = 1
    """Rows of B, and elements of a bias, for each column of D: 2 with a gate."""
    group: Count = 0
    """Elements along k of a packed weight that have a factor in its bytes; 0 where none have."""
    group_bits: Count = 0
    """Of such a factor, and of a zero point."""
    factors_of_a: Count = 1
    """0 where A has no factors, and B may have."""

    @staticmethod
    def of(operation: Operation) -> ElementBits:
        """Return those of an operation."""
        weight = operation.b.weight
        return ElementBits(
            a=operation.types.a.bits,
            b=operation.types.b.bits if weight is None else weight.code.bits,
            d=operation.d.bits,
            bias=operation.bias.bits if operation.has_bias else 0,
            residual=operation.d.bits if operation.has_residual else 0,
            factor=0 if operation.b.scale is None else operation.b.scale.element.bits,
            factor_block=0 if operation.b.scale is None else operation.b.scale.block_k,
            parts=operation.num_rows_of_b(1),
            group=0 if weight is None else weight.group,
            group_bits=0 if weight is None else weight.group_bits,
            factors_of_a=int(weight is None),
        )


@dataclass(frozen=True, kw_only=True)
class DeviceTable:
    """The dispatch table of one device, and what the device is known by where the library is loaded."""

    target: TargetName
    device_names: tuple[Label, ...]
    num_sms: Extent
    nominal_bandwidth_bytes_per_s: Rate
    table: Annotated[DispatchTable, Form(PackedTable, unpack)]
    """Of products. A file has no grids, which the library has."""
    row_table: RowTable = field(default_factory=RowTable)
    """Of row operations. In a file its sections are behind those of `table`."""


@dataclass(frozen=True, kw_only=True)
class WheelTable(DeviceTable):
    """The table of a wheel, and where the times behind it come from."""

    provenance: Provenance
    record: Text
    """Name of the record, or of the cost model, that the table was made from."""
    conditions: tuple[Conditions, ...]
    regrets: tuple[Regret, ...]
    """How far the kernels are from the best times known, on what they were selected on; none where nothing was."""
    heldout: tuple[HeldOut, ...]
    """What the table costs on problems that no step of the selection saw; may be empty."""
    coverage: Coverage | None
    """How the problems that it was made for are answered; None where that is not known."""
    peak_flops_per_s: dict[CallTag, Rate]
    """The target's, by operation, which `explain` states the roofline of a problem by: see aot.space.roofline."""
    bandwidth_bytes_per_s: Rate
    """The target's, of device memory, likewise."""
    bigger_tiles: dict[KernelName, tuple[Text, ...]]
    """By the kernel's name, what there is against each of the next bigger tiles: see aot.select.score.tiles."""
    captured: CapturedLosses | None = None
    """What products lose of their advance over torch in captured layers; None where that was not measured."""

    @property
    def called(self) -> Provenance:
        """Say what the table is called: measured only where most of what it was made for is."""
        return called(self.provenance, self.coverage)


MAX_TABLES = 8
"""Tables of one library; their targets' names are parts of a wheel's version, which is a part of its file's name."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library for C: its kernels, in the order of their index in the dispatch tables, and a table for each device."""

    package: Package
    """Name of the distribution, such as `aot-gemm`; the import name has underscores."""
    version: WheelVersion
    """PEP 440 version; a wheel with predicted rows has a local part that says so."""
    arch: Arch
    kernels: tuple[Kernel, ...]
    tables: tuple[DeviceTable, ...]
    """The first answers where there is no device to ask for."""
    batch_invariant: bool | None = None
    """Whether every call is computed as if it asked for results whose rows' bits do not depend on m; None: no."""
    row_kernels: tuple[RowKernel, ...] = ()
    """Those of row operations, in the order of their index in the tables' row tables. In a file they are behind the
    others in one list, and numbered so."""

    @property
    def all_kernels(self) -> tuple[Kernel | RowKernel, ...]:
        """Return the kernels of products, then those of row operations."""
        return (*self.kernels, *self.row_kernels)

    @property
    def families(self) -> set[str]:
        """Return the families of its kernels."""
        return {kernel.candidate.family for kernel in self.all_kernels}

    @property
    def functions(self) -> set[str]:
        """Return the functions of rows that its kernels compute."""
        return {kernel.operation.function.name for kernel in self.row_kernels}

    @property
    def object_places(self) -> dict[str, int]:
        """Return by name the index of the first kernel of the same object: kernels of several widths share one."""
        firsts: dict[str, int] = {}
        for index, kernel in enumerate(self.kernels):
            firsts.setdefault(kernel.entry_symbol, index)
        return {kernel.name: firsts[kernel.entry_symbol] for kernel in self.kernels}

    @property
    def object_kernels(self) -> tuple[Kernel, ...]:
        """Return the first kernel of each object."""
        return tuple(self.kernels[i] for i in dict.fromkeys(self.object_places.values()))

    @property
    def with_objects(self) -> tuple[Kernel | RowKernel, ...]:
        """Return a kernel for each object: kernels of products, then those of row operations."""
        return (*self.object_kernels, *self.row_kernels)

    @property
    def module(self) -> str:
        """Return the import name."""
        return self.package.replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Manifest(Library):
    """A wheel's content: its library, and where the times behind its tables come from."""

    manifest_version: Version
    platform_tag: PlatformTag
    tables: tuple[WheelTable, ...]
    element_bits: dict[CallTag, ElementBits]
    """By operation, what `explain` counts the bytes of a problem by."""
    toolchain: dict[Distribution, Release]
    """Versions of what compiled the kernels."""
    executions: tuple[Execution, ...]
    """What the interpreter found of the kernels, in their order; none of one that it did not execute."""

    @property
    def multiples(self) -> tuple[tuple[int, int], ...]:
        """Return (m_multiple, n_multiple) of each kernel, for `dispatch.look_up`."""
        return tuple((kernel.m_multiple, kernel.n_multiple) for kernel in self.kernels)


def device_table(target: Target, table: DispatchTable, row_table: RowTable | None = None) -> DeviceTable:
    """Return the table of a target's device."""
    return DeviceTable(
        target=target.name,
        device_names=target.device_names,
        num_sms=target.num_sms,
        nominal_bandwidth_bytes_per_s=target.nominal_bandwidth_bytes_per_s,
        table=table,
        row_table=row_table or RowTable(),
    )


def _check_kernel(kernel: Kernel | RowKernel) -> None:
    if kernel.name != kernel.key.name:
        raise DecodeError(f"the kernel {kernel.name} is of {kernel.key.name}; the two are one name")
    if isinstance(kernel, Kernel) and kernel.num_sms is None:
        raise DecodeError(f"the kernel {kernel.name} does not say how many SMs it was built for; compile it again")
    try:
        expected = signature(kernel.key) if isinstance(kernel, Kernel) else kernel.operation.signature
    except CandidateError as error:
        raise DecodeError(str(error)) from error
    if kernel.signature != expected:
        raise DecodeError(
            f"the kernel {kernel.name} takes {', '.join(kernel.signature)}; expected {', '.join(expected)}"
        )


def _sms_fault(table: DeviceTable, kernels: Sequence[Kernel]) -> str:
    """Say which row has a kernel that was built for a number of SMs which does not suit the table's; empty if none.

    CTAs that wait for each other must all be resident, so that their kernel must not be built for more SMs than the
    device has. And a measured time is of a kernel that was built for the device's own number.
    """
    for section in table.table.sections:
        rows = [row for ladder in section.ladders for row in ladder.rows]
        named = [x for row in rows for x in (row.kernel, row.general)]
        named += [x for column in section.grid.columns for x in column.kernels]
        for kernel in (kernels[x] for x in dict.fromkeys(named)):
            if kernel.resident_sms > table.num_sms:
                return (
                    f"{section.operation.tag}: {kernel.name} waits for its own CTAs, and was built for "
                    f"{kernel.num_sms} SMs; {table.target} has {table.num_sms}"
                )
        for kernel in (kernels[x.kernel] for x in rows if x.provenance == Provenance.MEASURED):
            if kernel.num_sms != table.num_sms:
                return (
                    f"{section.operation.tag}: a time of {kernel.name} is measured on {table.num_sms} SMs, and the "
                    f"kernel was built for {kernel.num_sms}"
                )
    return ""


def _check_states(manifest: Manifest) -> None:
    """Refuse a kernel without a state, and one that is called executed of which no execution says so (DecodeError)."""
    known = {kernel.name: kernel.ptx_sha256 for kernel in manifest.all_kernels}
    for execution in manifest.executions:
        if known.get(execution.kernel) != execution.ptx_sha256:
            raise DecodeError(f"an execution is of {execution.kernel} with a PTX that no kernel of the manifest has")
    for kernel in manifest.all_kernels:
        if kernel.state is None:
            raise DecodeError(f"the kernel {kernel.name} has no state; expected one of {', '.join(KernelState)}")
        found = execution_of(kernel.name, kernel.ptx_sha256, manifest.executions)
        if kernel.state is KernelState.EXECUTED and not (found and found.is_right):
            raise DecodeError(f"the kernel {kernel.name} is {kernel.state}, and no execution says so")


def _check_symbols(manifest: Manifest) -> None:
    """Refuse two objects of one symbol, and two kernels of one object and width (DecodeError)."""
    same = {kernel.entry_symbol: kernel for kernel in manifest.kernels}
    for kernel in manifest.kernels:
        other = same[kernel.entry_symbol]
        if (kernel.object_sha256, kernel.symbols) != (other.object_sha256, other.symbols):
            raise DecodeError(f"two objects have the symbol {kernel.entry_symbol}")
        if kernel.num_narrower and not kernel.orders_tiles:
            columns = 8 * kernel.num_narrower
            raise DecodeError(
                f"the kernel {kernel.name} is {columns} columns narrower than its object, which no argument tells it"
            )
    entries = [(kernel.entry_symbol, kernel.num_narrower) for kernel in manifest.kernels]
    if len(set(entries)) != len(entries):
        raise DecodeError(f"two kernels are the same width of {max(entries, key=entries.count)[0]}")
    symbols = [x for kernel in manifest.with_objects for x in kernel.symbols]
    if len(set(symbols)) != len(symbols):
        raise DecodeError(f"two entries have the symbol {max(symbols, key=symbols.count)}")


def _check_table(table: WheelTable, manifest: Manifest, names: set[str], calls: set[str], *, has_grids: bool) -> None:
    fault = table_fault(table.table, manifest.kernels, has_grids=has_grids) or _sms_fault(table, manifest.kernels)
    fault = fault or row_table_fault(table.row_table, manifest.row_kernels)
    if fault:
        raise DecodeError(f"the table of {table.target}: {fault}")
    if not table.device_names:
        raise DecodeError(f"the table of {table.target}: it names no device; expected the name that CUDA has for it")
    unknown = sorted(set(table.bigger_tiles) - names)
    if unknown:
        raise DecodeError(f"the table of {table.target}: bigger_tiles names {unknown[0]}, no kernel of the manifest")
    if set(table.peak_flops_per_s) != calls:
        raise DecodeError(
            f"the table of {table.target}: peak_flops_per_s is of {', '.join(sorted(table.peak_flops_per_s))}; the "
            f"kernels compute {', '.join(sorted(calls))}"
        )


def _check_devices(tables: Sequence[DeviceTable]) -> None:
    """Refuse tables by which no device could be given its own (DecodeError)."""
    if not 1 <= len(tables) <= MAX_TABLES:
        raise DecodeError(f"there are {len(tables)} tables; expected 1 to {MAX_TABLES}")
    targets = [table.target for table in tables]
    if len(set(targets)) != len(targets):
        raise DecodeError(f"two tables are of the target {max(targets, key=targets.count)}")
    devices = [(name, table.num_sms) for table in tables for name in table.device_names]
    if len(set(devices)) != len(devices):
        name, num_sms = max(devices, key=devices.count)
        raise DecodeError(f"two tables are of the device {name} with {num_sms} SMs")


def _check(manifest: Manifest, *, has_grids: bool) -> None:
    """Refuse what no wheel can be built from (DecodeError); that of a file has no grids."""
    if not manifest.module.isidentifier() or keyword.iskeyword(manifest.module):
        raise DecodeError(f"the package {manifest.package} would be imported as {manifest.module}, a word of Python's")
    every = manifest.all_kernels
    names = [kernel.name for kernel in every]
    if len(set(names)) != len(names):
        raise DecodeError(f"two kernels have one name: {sorted(n for n in names if names.count(n) > 1)}")
    for kernel in manifest.all_kernels:
        _check_kernel(kernel)
    _check_symbols(manifest)
    _check_states(manifest)
    bits = {kernel.operation.call: ElementBits.of(kernel.operation) for kernel in manifest.kernels}
    if manifest.element_bits != bits:
        raise DecodeError("element_bits are not those of the kernels' operations")
    _check_devices(manifest.tables)
    for table in manifest.tables:
        _check_table(table, manifest, set(names), set(bits), has_grids=has_grids)


def _decoded(text: str | bytes) -> Manifest:
    values = parse_json(text)
    if not isinstance(values, dict) or values.get("manifest_version") != MANIFEST_VERSION:
        return decode_version(Manifest, values, "manifest_version", MANIFEST_VERSION)  # which says so
    parted = FileValues(values)
    try:
        return decode_version(Manifest, parted.values, "manifest_version", MANIFEST_VERSION)
    except DecodeError as error:
        raise DecodeError(error.problem, parted.place_in_file(error.place)) from None


def to_json(manifest: Manifest) -> str:
    """Write a manifest: sorted keys, no timestamps, so that equal manifests are equal bytes.

    Raises:
        ManifestError: it is none that could be read again.
    """
    try:
        text = write_json(file_values(vars(manifest), manifest.kernels, manifest.row_kernels, manifest.tables))
        _decoded(text)
        _check(manifest, has_grids=True)
    except DecodeError as error:
        raise ManifestError(f"manifest: {error}; build it again with this aot") from error
    return text


def from_json(text: str | bytes, where: str = "manifest") -> Manifest:
    """Read a manifest, whose sections then have no grids: `aot.package.packed_table.NO_GRID`.

    Raises:
        ManifestError: it is not JSON, of another version, or an entry is missing, unknown, of the wrong type, out of
            its range, or points at a kernel that is not there or cannot stand there.
    """
    try:
        manifest = _decoded(text)
        _check(manifest, has_grids=False)
    except DecodeError as error:
        raise ManifestError(f"{where}: {error}; build it again with this aot") from error
    return manifest
