"""What the package is, as the manifest says that it was built from: needs no GPU."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

from . import _files, _library, _states, errors
from ._library import Library

_HELD_OUT = ("", "tuned (n, k) at other m", "(n, k) that are not tuned")
"""By the tier that answers."""

_OF_A_RUN = ("sm_clock_mhz", "memory_clock_mhz", "date")
"""What differs from run to run on one device: shown as a range."""


def _summaries(conditions: Iterable[dict[str, Any]]) -> list[str]:
    """Write one line for all runs that differ in their clocks and dates alone."""
    runs: dict[str, dict[str, list[Any]]] = {}
    for condition in conditions:
        known = {key: value for key, value in condition.items() if value is not None}
        device = str({key: value for key, value in known.items() if key not in _OF_A_RUN})
        values = runs.setdefault(device, {})
        for key, value in known.items():
            values.setdefault(key, []).append(value)
    return [", ".join(f"{key} {_range(x)}" for key, x in values.items()) for values in runs.values()]


def _range(values: list[Any]) -> str:
    first, last = min(values), max(values)
    return str(first) if first == last else f"{first} to {last}"


@dataclass(frozen=True)
class TableInfo:
    """One dispatch table, which is for one device."""

    target: str
    device_names: tuple[str, ...]
    """What CUDA calls the device."""
    num_sms: int
    provenance: str
    record: str
    conditions: tuple[dict[str, Any], ...]
    regrets: tuple[dict[str, Any], ...]
    """How far each operation's kernels are from the best times measured, as fractions, on what they were selected on.

    Empty where the times are predicted: what a model says of kernels that it picked itself says nothing of the device.
    """
    heldout: tuple[dict[str, Any], ...]
    """What the table costs on problems that no step of the selection saw, as fractions; may be empty."""
    coverage: dict[str, Any] | None
    """How many of the problems that it was made for are answered by a measured row, and how else; may be None."""

    def __str__(self) -> str:
        """Write a line for the table, one for each device and way of measuring, and one for each score."""
        names = " or ".join(self.device_names)
        lines = [
            f"table {self.target}, for {names} with {self.num_sms} SMs: times {self.provenance}, record {self.record}"
        ]
        lines += [f"  {x}" for x in _summaries(self.conditions)]
        if self.coverage is not None:
            general, refused = (sum(self.coverage[x].values()) for x in ("general", "refused"))
            known_by = f"{self.coverage['num_measured']} are measured, {self.coverage['num_predicted']} predicted"
            others = f"{general} left to the fallback, {refused} not answered"
            lines += [f"  of the problems that it was made for, {known_by}, {others}"]
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
        return "\n".join(lines)


def _kind(kernel: str) -> str:
    """Take the name of a kernel up to its first size, such as the 128x256 of a tile."""
    words = takewhile(lambda x: not x[:1].isdigit(), kernel.split("_"))
    return "_".join(words)


@dataclass(frozen=True)
class Info:
    """What this package is."""

    package: str
    version: str
    arch: str
    platform_tag: str
    tables: tuple[TableInfo, ...]
    """One for each device that the package was built for; the first answers where there is no GPU."""
    table: str | None
    """The target of the table that answers on the current GPU; None where there is none that the kernels run on."""
    table_reason: str
    """Why it is that table, such as `no table for X: nearest is h100`, or why there is none."""
    choices_sha256: str | None
    """The hash of all that decides which kernel a product gets on the current GPU; None where `table` is.

    Of tables, kernels and code, of the table that answers, of the GPU's number of SMs and AOT_GEMM_WEIGHT_PREFETCH:
    two processes with the same hash choose alike. The C API gives it as aot_gemm_choices. Of several packs it is that
    of theirs.
    """
    misses_file: str | None
    """Where AOT_GEMM_MISSES has the launches counted that no tuned size answered; None where it does not.

    Before the library is loaded: where it would have them counted if it were loaded now.
    """
    kernels: tuple[str, ...]
    row_kernels: tuple[str, ...]
    """Those of operations on rows, as norms; there may be none."""
    states: dict[str, int]
    """How many kernels, of both kinds, are in each state.

    `run`: a time of it was taken on a GPU that a table is for. `executed`: the toolchain's interpreter executed the PTX
    that it was assembled from, with right results and without a finding. `compiled`: neither.
    """
    toolchain: dict[str, str]
    library_bytes: dict[str, int]
    library_dir: str
    include_dir: str
    cmake_dir: str
    """What CMake's find_package is given as <import name>_DIR."""
    pkgconfig_dir: str
    """What PKG_CONFIG_PATH is to hold."""
    examples_dir: str
    packs: tuple[str, ...]
    """The distributions whose kernels answer here, in the order in which they are asked.

    The rest is of the first for the current GPU: of GPUs of several architectures each has packs of its own.
    """
    memory: dict[str, int]
    """Bytes of memory by what they are for.

    `library_file`: the library, of which the operating system keeps what is touched, once for all processes.
    `kernels_in_file`: of which so many are kernels' objects, each an image for the GPU and its host code.
    `kernels_loaded`: of which so many are loaded on the current GPU, where CUDA has an image of each in device memory;
    0 where there is no such GPU. `manifest_file`: the file that `plan`, `explain` and `info` read; a process that asked
    one of them holds two to four times as much, and one that does not has none of it. Workspaces are not among them:
    each call takes its own from the operands' framework and gives it back.
    """

    def __str__(self) -> str:
        """Write one line for each entry. Kernels are counted by kind; `kernels` and `row_kernels` have their names."""
        targets = ", ".join(x.target for x in self.tables)
        here = "no table is known to answer" if self.table is None else f"table {self.table}"
        num_kernels = len(self.kernels) + len(self.row_kernels)
        lines = [
            f"{self.package} {self.version}: {num_kernels} kernels for {self.arch} (target {targets})",
            f"here: {here}: {self.table_reason}",
            *([] if self.choices_sha256 is None else [f"choices here: sha256 {self.choices_sha256}"]),
            *map(str, self.tables),
        ]
        lines += [f"misses are counted in {self.misses_file}" if self.misses_file else "misses are not counted"]
        lines += [f"built for {self.platform_tag} with " + ", ".join(f"{k} {v}" for k, v in self.toolchain.items())]
        lines += [
            f"libraries in {self.library_dir}: " + ", ".join(f"{k} {v:,} B" for k, v in self.library_bytes.items())
        ]
        lines += [f"header in {self.include_dir}, examples in {self.examples_dir}"]
        lines += [f"CMake package in {self.cmake_dir}, pkg-config file in {self.pkgconfig_dir}"]
        kinds = Counter(map(_kind, (*self.kernels, *self.row_kernels)))
        lines += ["memory in bytes: " + ", ".join(f"{k} {v:,}" for k, v in self.memory.items())]
        lines += [_states.counts_text(self.states)]
        lines += ["kernels by kind: " + ", ".join(f"{x} {kinds[x]}" for x in sorted(kinds))]
        return "\n".join(lines)


def manifest() -> dict[str, Any]:
    """Read the manifest that the package was built from, or the pack that is asked first.

    Raises:
        CorruptLibraryError: it is missing, or not as it was built.
    """
    return manifest_in(_files.kernels())


def is_batch_invariant(options: dict[str, Any]) -> bool:
    """Say whether a row's bits are not to depend on the other rows: a call asks for it, or the package was built so."""
    return bool(options.get("batch_invariant") or manifest().get("batch_invariant"))


def row_kernels(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """List the kernels of operations on rows, which are behind those of products and say what they ask of a problem."""
    return [kernel for kernel in manifest["kernels"] if "limits" in kernel]


@cache
def manifest_in(folder: _files.Folder) -> dict[str, Any]:
    """Read the manifest that lies in a folder; errors are those of `manifest`."""
    values: dict[str, Any] = json.loads(folder.read_verified(_files.MANIFEST))
    return values


def manifest_of(pack: str) -> dict[str, Any]:
    """Return the manifest of a distribution whose library answers here, by its name."""
    found = (manifest_in(folder) for folder, _ in _files.answering())
    return next(x for x in found if x["package"] == pack)


@cache
def compare_with_manifest(of: Library) -> None:
    """Compare a library with the manifest that puts its answers into words.

    Raises:
        CorruptLibraryError: it is not the one that the manifest was written for.
    """
    library, values = of.c, manifest_in(of.folder)
    expected = [values["version"], *(kernel["name"] for kernel in values["kernels"])]
    expected += [table["target"] for table in values["tables"]]
    names = [library.aot_gemm_kernel_name(i) for i in range(library.aot_gemm_num_kernels())]
    names += [library.aot_rows_kernel_name(i) for i in range(library.aot_rows_num_kernels())]
    names += [library.aot_gemm_table_target(i) for i in range(library.aot_gemm_num_tables())]
    found = [(x or b"").decode(errors="replace") for x in (library.aot_gemm_version(), *names)]
    if found != expected:
        raise errors.CorruptLibraryError(
            f"{of.folder.path_of(of.folder.library)} is {found[0]} with {library.aot_gemm_num_kernels()} kernels; "
            f"{of.folder.path_of(_files.MANIFEST)} is of {expected[0]} with {len(values['kernels'])}, or "
            "names others; reinstall the package"
        )


def device_table(library: Library | None = None) -> tuple[int | None, str]:
    """Return the index of the table that answers on the current GPU, and why; None where there is no such GPU.

    The table is that of a library, by default of the one that is asked first.

    A library that is not loaded yet is first compared with what was built: `info` is asked where something is amiss,
    and a damaged library could end the process.
    """
    try:
        if _library.libraries.cache_info().currsize == 0:
            for folder, _ in _files.answering():
                folder.verify(folder.library)
        return (library or _library.here()[0]).device_table()
    except errors.AotGemmError as error:
        return None, str(error)


def _table_info(values: dict[str, Any]) -> TableInfo:
    return TableInfo(
        target=values["target"],
        device_names=tuple(values["device_names"]),
        num_sms=values["num_sms"],
        provenance=values["provenance"],
        record=values["record"],
        conditions=tuple(values["conditions"]),
        regrets=tuple(values["regrets"]) if values["provenance"] == "measured" else (),
        heldout=tuple(values["heldout"]),
        coverage=values["coverage"],
    )


def _choices() -> str:
    """Return the hash of all that decides what a product gets here: of several packs that of theirs, in their order."""
    found = _library.here()
    if len(found) == 1:
        return found[0].choices()
    return hashlib.sha256(" ".join(f"{x.only_tuned} {x.choices()}" for x in found).encode()).hexdigest()


def _memory(values: dict[str, Any], folder: _files.Folder, *, is_here: bool) -> dict[str, int]:
    """Return what `Info.memory` holds; `is_here` says whether the current GPU can run the kernels."""
    sizes = {kernel["entry_symbol"]: kernel["object_bytes"] for kernel in values["kernels"]}
    files = folder.recorded()
    return {
        "library_file": files[folder.library].num_bytes,
        "kernels_in_file": sum(sizes.values()),
        "kernels_loaded": _library.here()[0].memory().loaded_bytes if is_here else 0,
        "manifest_file": files[_files.MANIFEST].num_bytes,
    }


def info() -> Info:
    """Say what this package is: version, tables, where their times come from, kernels, files.

    Asks the driver which GPU is the current one, for the table that answers there. Answers on a machine that the
    package is not for, too.

    Raises:
        CorruptLibraryError: the manifest is missing, or not as it was built.
    """
    values, folder = manifest(), _files.kernels()
    misses_file = _library.misses_file()
    table, reason = device_table()
    return Info(
        package=values["package"],
        version=values["version"],
        arch=values["arch"],
        platform_tag=values["platform_tag"],
        tables=tuple(map(_table_info, values["tables"])),
        table=None if table is None else values["tables"][table]["target"],
        table_reason=reason,
        choices_sha256=None if table is None else _choices(),
        misses_file=misses_file,
        kernels=tuple(kernel["name"] for kernel in values["kernels"] if "limits" not in kernel),
        row_kernels=tuple(kernel["name"] for kernel in row_kernels(values)),
        states=_states.counts(values),
        toolchain=values["toolchain"],
        library_bytes={x.name: x.num_bytes for x in folder.recorded().values() if ".so" in x.name},
        library_dir=folder.directory,
        include_dir=folder.path_of("include"),
        cmake_dir=folder.path_of("cmake"),
        pkgconfig_dir=folder.path_of("pkgconfig"),
        examples_dir=folder.path_of("examples"),
        packs=tuple(dict.fromkeys(manifest_in(x)["package"] for x, _ in _files.answering())),
        memory=_memory(values, folder, is_here=table is not None),
    )
