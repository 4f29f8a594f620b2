"""Render the project that a wheel is built from: manifest and templates in, files in memory out."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from jinja2 import DictLoader, Environment, StrictUndefined, TemplateError

from aot.core.dispatch import MAX_STEP_KERNELS, Section
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.errors import ManifestError, PackageError
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.core.tile_order import HEURISTIC
from aot.package.contents import licence_of
from aot.package.enumerations import enumeration_variables
from aot.package.enumerator import enumerator
from aot.package.escape import FILTERS, EscapeError, finalize
from aot.package.file_set import FileSet
from aot.package.manifest import Library, Manifest, to_json
from aot.package.render_rows import grid_of_rows, row_catalogue_variables, row_operations, row_variables
from aot.package.shared_grids import share_grids
from aot.package.states import state_variables
from aot.select.invariance import has_one_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot.core.dispatch import Grid, Ladder
    from aot.core.kernel import Kernel
    from aot.kinds.rows.dispatch import RowSection
    from aot.kinds.rows.operation import RowOperation

TEMPLATE_SUFFIX = ".j2"
TEMPLATE_MODULE = "aot_gemm"
"""Directory under templates/python/ that the wheel's import name takes the place of."""

_WHEEL_ALONE = ("python/", "pyproject.toml.j2", "README.md.j2")
"""How the templates start that a library without a wheel does not need."""

ABI_VERSION = 1
"""`AOT_GEMM_ABI_VERSION` of templates/include/aot_gemm.h; the rendered kernels.cc compares the two."""

NUM_LAYOUTS = 4
"""Numbers of `Layout.code`."""

_ARCH = re.compile(r"sm_([0-9]+)([0-9])[a-z]?")


@dataclass(frozen=True)
class _SectionRows:
    """A section as table.cc.j2 writes it."""

    index: int
    """Among the sections of all tables."""
    table: int
    number: int
    """Among the sections of its table: those of products, or those on rows."""
    tag: str
    operation: int
    """Its number: operations on rows come behind those of products."""
    grid: Grid
    """Its kernels are numbers of places in `grid_kernels`."""
    grid_owner: int
    """Index of the first section with the same grid, whose arrays this one has too."""
    grid_kernels: tuple[int, ...]
    fallback: int
    substitute: int
    layout: int = 0
    ladders: tuple[Ladder, ...] = ()
    first_rows: tuple[int, ...] = ()
    """The number of ladder rows before each ladder."""
    num_groups: int = 1
    batch_invariant: bool = False
    loads: int = 0
    has_one_order: bool = False
    """Whether it is of groups that offsets tell, and all kernels of the operation's sections add up k in one order."""

    @property
    def column_starts(self) -> tuple[int, ...]:
        """Return the number of steps before each column of the grid, and that of all steps."""
        return tuple(accumulate((len(column.m_edges) for column in self.grid.columns), initial=0))

    @property
    def column_steps(self) -> Iterator[tuple[int, ...]]:
        """Pack the steps of each column: the edge of m above the kernel's number. See templates/src/dispatch.h."""
        for column in self.grid.columns:
            steps = zip(column.m_edges, column.kernels, strict=True)
            yield tuple(m * MAX_STEP_KERNELS + kernel for m, kernel in steps)

    @property
    def has_orders(self) -> bool:
        """Say whether a step of the grid has another order of tiles than its kernel's own."""
        return any(column.tile_orders for column in self.grid.columns)

    @property
    def column_orders(self) -> Iterator[tuple[int, ...]]:
        """Return the orders of tiles of each column's steps."""
        return (x.tile_orders or (HEURISTIC,) * len(x.kernels) for x in self.grid.columns)


def _substitutes(kernel: Kernel) -> bool:
    return kernel.workspace.mode is SplitK.NONE and (kernel.m_multiple, kernel.n_multiple) == (1, 1)


def substitute(section: Section, kernels: Sequence[Kernel]) -> int:
    """Return the kernel that answers where the one chosen must not run: on a device with too few SMs for it.

    It takes every problem of the section, waits for none of its own CTAs and needs no workspace, so that one which was
    sized for another kernel is enough: the one that most of the section's rows name, else the fallback.
    """
    named = [row.general for ladder in section.ladders for row in ladder.rows]
    named += [x for column in section.grid.columns for x in column.kernels]
    fit = Counter(x for x in named if _substitutes(kernels[x]))
    return min(fit, key=lambda index: (-fit[index], index), default=section.fallback)


def _operations_of_one_order(sections: Sequence[Section], kernels: Sequence[Kernel]) -> set[Operation]:
    """Return the operations of groups of a table of which a batch-invariant call may take any kernel."""
    keys = [kernel.key for kernel in kernels]
    grouped = {x.operation for x in sections if x.operation.grouping.has_offsets}
    return {x for x in grouped if has_one_order([y for y in sections if y.operation == x], keys)}


@dataclass(frozen=True)
class _Place:
    """A section, and where it is."""

    table: int
    number: int
    """Among the sections of its table: those of products, or those on rows."""
    section: Section | RowSection
    grid: Grid


def _places(library: Library) -> list[_Place]:
    """List the sections of each table: those of products, then those on rows."""
    found: list[_Place] = []
    for place, table in enumerate(library.tables):
        found += [_Place(place, i, x, x.grid) for i, x in enumerate(table.table.sections)]
        on_rows = enumerate(table.row_table.sections)
        found += [_Place(place, i, x, grid_of_rows(x, len(library.kernels))) for i, x in on_rows]
    return found


def _sections(library: Library, number_of: Callable[[Operation | RowOperation], int]) -> list[_SectionRows]:
    places = _places(library)
    shared = share_grids(place.grid for place in places)
    owners = [number for number, _ in shared.users]
    ordered = [_operations_of_one_order(table.table.sections, library.kernels) for table in library.tables]
    found: list[_SectionRows] = []
    for place, (grid, grid_kernels) in zip(places, shared.users, strict=True):
        section = place.section
        common = _SectionRows(
            index=len(found),
            table=place.table,
            number=place.number,
            tag=section.operation.tag,
            operation=number_of(section.operation),
            grid=shared.grids[grid],
            grid_owner=owners.index(grid),
            grid_kernels=grid_kernels,
            fallback=section.fallback,
            substitute=section.fallback,
        )
        if isinstance(section, Section):
            found.append(_of_products(common, section, library.kernels, ordered[place.table]))
        else:
            fallback = len(library.kernels) + section.fallback
            found.append(replace(common, fallback=fallback, substitute=fallback))
    return found


def _of_products(
    common: _SectionRows, section: Section, kernels: Sequence[Kernel], ordered: set[Operation]
) -> _SectionRows:
    """Add what a section of products has alone."""
    return replace(
        common,
        layout=section.operation.layout.code,
        ladders=section.ladders,
        first_rows=tuple(accumulate((len(ladder.rows) for ladder in section.ladders), initial=0))[:-1],
        substitute=substitute(section, kernels),
        num_groups=section.num_groups,
        batch_invariant=section.batch_invariant,
        loads=section.loads,
        has_one_order=section.operation in ordered,
    )


@dataclass(frozen=True)
class _TableRow:
    """A table as table.cc.j2 writes it."""

    target: str
    device_names: tuple[str, ...]
    num_sms: int
    bandwidth_gb_per_s: int
    num_sections: int
    section_of: list[int]
    """By operation and layout, the index of the section that answers; -1 where there is none.

    What a table has no section of, the first table that has one answers.
    """


def _tables(library: Library, sections: Sequence[_SectionRows], num_operations: int) -> list[_TableRow]:
    rows = []
    keys = [(number, code) for number in range(num_operations) for code in range(NUM_LAYOUTS)]
    for place, table in enumerate(library.tables):
        first: dict[tuple[int, int], int] = {}
        for x in sorted(sections, key=lambda x, place=place: (x.table != place, x.index)):  # type: ignore[misc]
            first.setdefault((x.operation, x.layout), x.index)
        gb_per_s = round(table.nominal_bandwidth_bytes_per_s / 1e9)
        own = sum(x.table == place for x in sections)
        section_of = [first.get(key, -1) for key in keys]
        rows.append(_TableRow(table.target, table.device_names, table.num_sms, gb_per_s, own, section_of))
    return rows


def capability(arch: str) -> tuple[int, int]:
    """Return the compute capability that kernels of an architecture run on, such as (9, 0) of `sm_90a`.

    Raises:
        ManifestError: the name is not one that ptxas knows.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise ManifestError(f"architecture is {arch!r}; expected a name such as sm_90a")
    return int(match[1]), int(match[2])


def library_name(library: Library) -> str:
    """Return a library's file name, which is also the name by which the loader knows it (SONAME)."""
    return f"lib{library.module}.so.{ABI_VERSION}"


@dataclass(frozen=True)
class _Call:
    """An operation whatever its layout, as table.cc.j2 writes it."""

    tag: str
    """What the C API's `aot_gemm_operation` takes: `Operation.call`."""
    types: str
    """The tag's part of the types."""
    a: str
    """This and those below up to `bias`: names of enumerators in templates/src/operation.h."""
    b: str
    d: str
    bias_element: str
    scale: str
    factor_element: str
    factor_block: int
    """Elements along k that one factor of A or B serves; 0 where it serves all."""
    epilogue: str
    bias: str
    scales_d: bool
    is_fast: bool
    is_tf32: bool
    can_exchange: bool
    layouts: int
    """A bit for each layout that some table has a section of."""
    grouping: str
    batched: int
    """Number of the operation that computes a batch of these products; -1 where the library has none."""


def _element(element: ElementType) -> str:
    """Return the name of the element type that lies in memory: TF32 is float32 there."""
    return enumerator(ElementType.FLOAT32.name if element is ElementType.TFLOAT32 else element.name)


def _presence(operation: Operation) -> str:
    """Say whether a call has a bias: only the epilogue that is named by it needs one."""
    if not operation.has_bias:
        return "kNone"
    return "kRequired" if operation.epilogue is Epilogue.BIAS else "kOptional"


def _call(operation: Operation, layouts: int, batched: int) -> _Call:
    types = operation.types
    return _Call(
        tag=operation.call,
        types=types.tag,
        a=_element(types.a),
        b=_element(types.b),
        d=_element(types.d),
        bias_element=_element(operation.bias),
        scale=enumerator(types.scaling),
        factor_element=_element(ElementType.FLOAT32 if types.scale_b is None else types.scale_b.element),
        factor_block=0 if types.scale_b is None else types.scale_b.block_k,
        epilogue=enumerator(operation.epilogue.value),
        bias=_presence(operation),
        scales_d=types.scales_d,
        is_fast=types.is_fast,
        is_tf32=types.a is ElementType.TFLOAT32,
        can_exchange=operation.can_exchange,
        layouts=layouts,
        grouping=enumerator(operation.grouping.value),
        batched=batched,
    )


def _calls(library: Library) -> list[_Call]:
    """List what a library's kernels compute, in the order of the catalogue."""
    tabled = {section.operation for table in library.tables for section in table.table.sections}
    found = tabled | {kernel.operation for kernel in library.kernels}
    firsts = {x.call: x for x in sorted(found, key=lambda x: -x.position)}
    layouts = {tag: sum(1 << x.layout.code for x in tabled if x.call == tag) for tag in firsts}
    ordered = sorted(firsts.values(), key=lambda x: x.position)
    batches = {x.dense: number for number, x in enumerate(ordered) if x.grouping is Grouping.BATCHED}
    return [_call(x, layouts[x.call], next((batches[y] for y in x.layouts if y in batches), -1)) for x in ordered]


def header_of(text: str) -> str:
    """Return the line that every rendered file starts with: it names the manifest by its digest."""
    return f"generated by aot build from manifest {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _library_variables(library: Library, header: str) -> dict[str, object]:
    calls, on_rows = _calls(library), row_operations(library)
    numbers = {call.tag: number for number, call in enumerate(calls)}

    def number_of(operation: Operation | RowOperation) -> int:
        return numbers[operation.call] if isinstance(operation, Operation) else len(calls) + on_rows.index(operation)

    sections = _sections(library, number_of)
    return {
        "header": header,
        "package": library.package,
        "module": library.module,
        "version": library.version,
        "arch": library.arch,
        "capability": capability(library.arch),
        "kernels": library.kernels,
        "object_kernels": library.object_kernels,
        "object_of": library.object_places.__getitem__,
        "batch_invariant": bool(library.batch_invariant),
        "sections": sections,
        "tables": _tables(library, sections, len(calls) + len(on_rows)),
        "calls": calls,
        "number_of": number_of,
        **row_variables(library),
        **enumeration_variables(),
        "enumerators": lambda signature: [enumerator(argument.value) for argument in signature],
        "abi_version": ABI_VERSION,
        "triplet": "",
    }


def _wheel_variables(manifest: Manifest) -> dict[str, object]:
    calls = {kernel.operation.call for kernel in manifest.kernels}
    return {
        "origins": manifest.tables,
        **state_variables(manifest),
        "provenance": " and ".join(sorted({table.called for table in manifest.tables})),
        "platform_tag": manifest.platform_tag,
        "licence": licence_of(kernel.candidate.family for kernel in manifest.all_kernels),
        "catalogue": [x for x in Operation if x is x.layouts[0] and x.grouping is not Grouping.BATCHED],
        **row_catalogue_variables(manifest),
        "tags": calls,
        "prefetches_b": any(Argument.PREFETCH_B in kernel.signature for kernel in manifest.kernels),
        "adds_bias": any(x.operation.has_bias for table in manifest.tables for x in table.table.sections),
    }


def _destination(path: str, module: str) -> str:
    prefix = f"python/{TEMPLATE_MODULE}/"
    path = f"python/{module}/{path.removeprefix(prefix)}" if path.startswith(prefix) else path
    return path.removesuffix(TEMPLATE_SUFFIX)


@cache
def _environment(texts: tuple[tuple[str, str], ...]) -> Environment:
    """Return the environment of templates, (path, text) each; equal ones are compiled once."""
    environment = Environment(  # noqa: S701 - never HTML; `finalize` lets through what is escaped only
        loader=DictLoader(dict(texts)),
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= FILTERS
    return environment


def _rendered(variables: Mapping[str, object], templates: Mapping[str, bytes], module: str) -> FileSet:
    """Render the templates that end in `.j2`, and copy the others.

    Raises:
        PackageError: a template fails, or writes what is not escaped for its language, or two files have one path.
    """
    texts = {path: content.decode() for path, content in templates.items() if path.endswith(TEMPLATE_SUFFIX)}
    environment, files = _environment(tuple(texts.items())), FileSet()
    for path, content in sorted(templates.items()):
        rendered = content
        if path in texts:
            try:
                rendered = environment.get_template(path).render(variables).encode()
            except (TemplateError, EscapeError) as error:
                raise PackageError(f"template {path} does not render: {error}; mend the template") from error
        files.add(_destination(path, module), rendered)
    return files


def render_library(library: Library, templates: Mapping[str, bytes]) -> FileSet:
    """Render the project of a library alone: what no wheel is needed for.

    Raises:
        PackageError: as `render` does.
    """
    needed = {path: content for path, content in templates.items() if not path.startswith(_WHEEL_ALONE)}
    return _rendered(_library_variables(library, "generated by aot tune"), needed, library.module)


def render_consumer_files(manifest: Manifest, templates: Mapping[str, bytes], triplet: str) -> Mapping[str, bytes]:
    """Render the CMake package and the pkg-config file of a library that is one of the system's own.

    Args:
        manifest: that of the wheel with the library.
        templates: content by relative path.
        triplet: the machine as the folder below /usr/lib names it, such as `x86_64-linux-gnu`.

    Returns:
        `config.cmake` and `package.pc`.

    Raises:
        PackageError: as `render` does.
    """
    needed = {path: content for path, content in templates.items() if path.startswith("cmake/")}
    variables = _library_variables(manifest, header_of(to_json(manifest))) | {"triplet": triplet}
    files = _rendered(variables, needed, manifest.module)
    return {path.removeprefix("cmake/"): content for path, content in files.items()}


def render(manifest: Manifest, templates: Mapping[str, bytes]) -> FileSet:
    """Render the project of a wheel.

    Args:
        manifest: what the wheel is made from.
        templates: content by relative path. Those that end in `.j2` are rendered, the others copied byte for byte;
            python/aot_gemm/ becomes python/<import name>/, where the manifest itself is put too.

    Returns:
        All files of the project but the kernels' objects.

    Raises:
        ManifestError: the manifest is none that could be read again.
        PackageError: a template fails, or writes what is not escaped for its language, or two files have one path.
    """
    text = to_json(manifest)
    variables = _library_variables(manifest, header_of(text)) | _wheel_variables(manifest)
    files = _rendered(variables, templates, manifest.module)
    files.add(f"python/{manifest.module}/manifest.json", text.encode())
    return files
