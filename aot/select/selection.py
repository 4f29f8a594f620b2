"""A selection: the kernels to ship and their table, decided but not compiled. Versioned JSON, strict both ways."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from aot.core.candidate import Candidate, KernelKey
from aot.core.constraints import Count, Excess, Extent, Grammar, Label, Positive, Range, Rate, TargetName, Version
from aot.core.dispatch import DispatchTable, Tier
from aot.core.errors import CandidateError, SelectionError
from aot.core.formats import ALIGNMENT_BYTES
from aot.core.json_text import write_json
from aot.core.measurement import Conditions, Provenance
from aot.core.operation import Operation
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.table_check import table_fault
from aot.core.whole_file import write_whole
from aot.core.work import AnyOperation
from aot.families import check_knobs, family_of, rows_family_of
from aot.kinds.registry import Catalogued
from aot.kinds.rows.candidate import RowKernelKey, RowLimits
from aot.kinds.rows.dispatch import RowSection, RowTable, look_up_rows, row_table_fault
from aot.kinds.rows.operation import RowOperation
from aot.kinds.rows.problem import RowProblem
from aot.select.coverage import REFUSED, Answer, Coverage, answer, answer_of_steps, multiples_of
from aot.select.runs import Run

SELECTION_VERSION = 4
"""Raised whenever a field is dropped, changes its meaning, or is added that may not be absent."""


ProblemName = Annotated[
    str,
    Grammar(r"[a-z0-9_]+(( g[0-9]+)?( [mnk][0-9]+){3}| rows [0-9]+ cols [0-9]+)|", "the name of a problem, or nothing"),
]


BY_IMPUTED_TIMES = ", by imputed times"
BY_COST_MODEL = ", by the cost model"


@dataclass(frozen=True)
class Regret:
    """How far one operation's kernels are from the best times known, over the problems that they were selected on.

    Regrets are fractions: 0.02 is 2 percent above the best.
    """

    operation: Catalogued
    num_problems: Count
    num_kernels: Count
    """Those that are compiled: one of several widths counts once."""
    mean: Excess
    worst: Excess
    method: Label
    """How the kernels were chosen: `exact`, or `greedy and exchange`; and by which times where not by its own."""
    mean_bound: Excess
    """Proven: no portfolio of as many kernels has a lower mean regret over these problems."""

    @property
    def is_known(self) -> bool:
        """Say whether the regrets are over times that were measured: against the model's own times they say nothing."""
        return not self.method.endswith(BY_COST_MODEL)


@dataclass(frozen=True)
class CurvePoint:
    """What a number of kernels costs in regret and in bytes, on the problems that were selected on."""

    num_kernels: Extent
    mean: Excess
    worst: Excess
    mean_bound: Excess
    """Proven: no portfolio of this size has a lower mean."""
    wheel_bytes: Count
    """What the kernels take in the wheel, compressed."""
    is_estimate: bool
    """Whether some of the kernels were not compiled here, so that their bytes are the others' mean."""


@dataclass(frozen=True)
class Curve:
    """One operation's regret against its number of kernels, ascending."""

    operation: Operation
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True)
class HeldOut:
    """What the table costs on problems that no step of the selection saw: measured, not predicted.

    `rounding_*` is the time of the kernel that the table names over the best shipped kernel's time on the very shape:
    the bucketing loss. `mean` and `worst` are regrets: over the best time known of any kernel.

    Of an operation on rows each measured size inside the others is left out in turn, and scored by the table that is
    selected without it.
    """

    operation: Catalogued
    tier: Annotated[int, Range(1, 2)]
    """1: tuned (n, k) at another m; 2: another (n, k), or other rows and columns."""
    num_problems: Count
    num_unmeasured: Count
    """Held-out problems besides, whose kernel was not timed on them."""
    bucketing_loss_mean: Excess
    bucketing_loss_worst: Excess
    mean: Excess
    worst: Excess
    worst_problem: ProblemName
    """Name of the problem of `bucketing_loss_worst`."""


@dataclass(frozen=True)
class AgainstReference:
    """How the kernels that the table names compare with the reference library, torch say, in the record's own runs.

    Speeds are the library's time over the kernel's, so that more than 1 is faster than the library.
    """

    operation: Operation
    is_heldout: bool
    """Whether no step of the selection saw these problems."""
    num_problems: Positive
    """Those on which both the library and the kernel were timed."""
    num_untimed: Count
    """Those besides on which the library was timed and the kernel was not."""
    mean: Rate
    """Geometric mean of the speeds."""
    num_below_98: Count
    """Problems with a speed below 0.98."""
    num_below_93: Count
    worst: Rate
    worst_problem: ProblemName


@dataclass(frozen=True)
class Price:
    """What one order of sums for all m costs: the time of the batch-invariant table's kernel over the other table's."""

    operation: Operation
    num_problems: Positive
    """Those on which both kernels have a time."""
    mean: Rate
    """Geometric mean of the ratios, each 1 or more but for noise."""
    mean_to_512: Rate
    """The same of those of up to 512 rows; 1 where there are none."""
    worst: Rate
    worst_problem: ProblemName


@dataclass(frozen=True)
class FamilyRowKernel:
    """What the families say of a kernel of an operation on rows, for `aot.kinds.rows.dispatch.row_table_fault`."""

    operation: RowOperation
    limits: RowLimits

    @staticmethod
    def of(key: RowKernelKey) -> FamilyRowKernel:
        """Ask a kernel's family.

        Raises:
            CandidateError: there is no such family, or it has other knobs.
        """
        family = rows_family_of(key.candidate)
        check_knobs(key.candidate)
        return FamilyRowKernel(key.operation, family.limits(key.candidate, key.operation))


@dataclass(frozen=True)
class Stepped:
    """What is decided of the kinds whose tables have one key axis and steps: of operations on rows."""

    kernels: tuple[RowKernelKey, ...]
    """By the index that the table uses."""
    table: RowTable

    @cached_property
    def family_kernels(self) -> tuple[FamilyRowKernel, ...]:
        """Return what the families say of the kernels; errors as `FamilyRowKernel.of`."""
        return tuple(map(FamilyRowKernel.of, self.kernels))

    def section(self, operation: AnyOperation) -> RowSection | None:
        """Return the section of an operation; None where there is none."""
        return next((x for x in self.table.sections if x.operation == operation), None)

    def answer(self, problem: RowProblem) -> Answer:
        """Say how a packed problem is answered."""
        section = self.section(problem.operation)
        if section is None:
            return Answer(REFUSED, f"no kernels of {problem.operation.tag}")
        return answer_of_steps(section, [x.limits for x in self.family_kernels], problem)

    def look_up(self, problem: RowProblem) -> tuple[Candidate, Tier]:
        """Return what a problem of aligned tensors gets, and the part of the table that answers.

        Raises:
            SelectionError: there is no table for its operation.
        """
        section = self.section(problem.operation)
        if section is None:
            raise SelectionError(f"the selection has no table for {problem.operation.tag}")
        found = look_up_rows(section, problem, [x.limits for x in self.family_kernels], ALIGNMENT_BYTES)
        return self.kernels[found.kernel].candidate, found.tier


NO_STEPS = Stepped((), RowTable())
"""Of a selection of products alone."""


@dataclass(frozen=True)
class Selection:
    """What `aot select` decides and `aot build` compiles."""

    selection_version: Version
    target: TargetName
    provenance: Provenance
    record: Label
    """Name of the record, or version of the cost model."""
    conditions: tuple[Conditions, ...]
    regrets: tuple[Regret, ...]
    curves: tuple[Curve, ...]
    """Of the operations whose problems are many; may be empty."""
    heldout: tuple[HeldOut, ...]
    """Empty where nothing was held out, as in a predicted selection."""
    kernels: tuple[KernelKey, ...]
    """Those of products, by the index that their table uses."""
    table: DispatchTable
    references: tuple[AgainstReference, ...] = ()
    """Of the operations that a reference library was timed on."""
    coverage: Coverage | None = None
    """How the problems that it was made for are answered; None in selections that do not say it."""
    prices: tuple[Price, ...] | None = None
    """Of the operations that have a batch-invariant table; None in selections that do not say it."""
    like: TargetName | None = None
    """The target by whose times kernels and table were chosen, where it is another one."""
    stepped: Stepped | None = None
    """What operations of other kinds have; None where there are none, of which its file says nothing."""
    runs: tuple[Run, ...] | None = None
    """How it was made, the last run first; None where that is not known, of which its file says nothing."""

    @property
    def others(self) -> Stepped:
        """Return what operations of other kinds have: `NO_STEPS` where there are none."""
        return self.stepped or NO_STEPS

    @property
    def all_kernels(self) -> tuple[KernelKey | RowKernelKey, ...]:
        """Return the kernels of products, then those of the other kinds."""
        return (*self.kernels, *self.others.kernels)

    @property
    def products(self) -> tuple[Operation, ...]:
        """Return the products that it has a table of, each once."""
        return tuple(dict.fromkeys(section.operation for section in self.table.sections))

    @property
    def operations(self) -> tuple[AnyOperation, ...]:
        """Return the operations of all kinds that it has a table of, the products first."""
        return (*self.products, *(section.operation for section in self.others.table.sections))

    @cached_property
    def multiples(self) -> tuple[tuple[int, int], ...]:
        """Return what m and n must be multiples of for each kernel of products; errors as `family_of`."""
        return multiples_of(self.kernels)

    def answer(self, problem: Any) -> Answer:
        """Say how a packed problem of any kind is answered."""
        if isinstance(problem, RowProblem):
            return self.others.answer(problem)
        return answer(self.table, self.multiples, problem)

    def as_json(self) -> dict[str, Any]:
        """Return what its file has of it, which was the same before there were other kinds than products, and runs."""
        names = sorted(x.name for x in fields(self) if x.name not in ("stepped", "runs") or getattr(self, x.name))
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class FamilyKernel:
    """What the families say of a kernel, for `aot.core.table_check.table_fault`: what the manifest will hold of it."""

    operation: Operation
    num_strides: int
    m_multiple: int
    n_multiple: int
    load_alignment: int
    store_alignment: int
    orders_tiles: bool

    @staticmethod
    def of(key: KernelKey) -> FamilyKernel:
        """Ask a kernel's family.

        Raises:
            CandidateError: there is no such family, or it has other knobs.
        """
        family = family_of(key.candidate)
        check_knobs(key.candidate)
        alignment = family.alignment(key.candidate)
        asked = (*family.multiples(key.candidate), alignment.loads, alignment.stores)
        return FamilyKernel(key.operation, family.num_strides, *asked, family.orders_tiles)


def _check(selection: Selection) -> None:
    """Refuse kernels and tables that no wheel can have (DecodeError)."""
    names = [key.name for key in selection.all_kernels]
    if len(set(names)) != len(names):
        raise DecodeError(f"two kernels have the name {max(names, key=names.count)}")
    try:
        kernels = [FamilyKernel.of(key) for key in selection.kernels]
        of_rows = selection.others.family_kernels
    except CandidateError as error:
        raise DecodeError(str(error)) from error
    has_products = bool(selection.kernels or selection.table.sections or not of_rows)
    fault = table_fault(selection.table, kernels) if has_products else ""
    fault = fault or row_table_fault(selection.others.table, of_rows)
    if fault:
        raise DecodeError(fault)


def parse_selection(content: bytes, where: str) -> Selection:
    """Read a selection's JSON.

    Raises:
        SelectionError: it is of another version, or not a selection.
    """
    try:
        selection = decode_version(Selection, parse_json(content), "selection_version", SELECTION_VERSION)
        _check(selection)
    except DecodeError as error:
        raise SelectionError(f"{where}: {error}; run `aot select` again, or give another file") from error
    return selection


def read_selection(path: Path) -> Selection:
    """Read a selection file; see `parse_selection`."""
    try:
        content = read_content(path)
    except DecodeError as error:
        raise SelectionError(f"cannot read the selection {path}: {error}; run `aot select`, or give another") from error
    return parse_selection(content, str(path))


def write_selection(path: Path, selection: Selection) -> None:
    """Write a selection, compressed where the path ends with `.gz`; equal selections are equal bytes.

    Raises:
        SelectionError: it is none that could be read again.
    """
    content = write_json(selection).encode()
    parse_selection(content, f"the selection for {path}")
    write_whole(path, gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)
