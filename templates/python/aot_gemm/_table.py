"""What the dispatch table says of a shape: which kernel it gets, why, and at which time. Needs no GPU."""

from __future__ import annotations

import operator
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _files, _library, _packed, errors
from ._enumerations import LAYOUTS, TIERS, TILE_ORDERS
from ._extras import mode_flags
from ._library import Library
from ._manifest import compare_with_manifest, device_table, manifest_in
from ._packed import Row
from ._plan_groups import Shape, grouping_of, of_a_group, skew_of
from ._request import Computed, Request, find, request_of
from ._roofline import Rates, rates_of

if TYPE_CHECKING:
    from typing import Unpack

MAX_EXTENT = 2**31 - 1


@dataclass(frozen=True)
class Plan:
    """What one shape gets. `m`, `n`, `k` are as asked."""

    m: int
    n: int
    k: int
    dtype: str
    layout: str
    bias: bool
    batch: int
    """Products that are asked for."""
    grouping: str
    """`dense` or `batched`; of groups `grouped`, `gathered` or `kgrouped`."""
    groups: int
    """Groups that are asked for; 1 without."""
    expected: int
    """Rows that are expected of one group, ceil(m / groups), by which the table is asked; of `kgrouped` of k."""
    launches: int
    """Of kernels: one, or one for each product of a batch that the wheel has no kernels for."""
    batch_invariant: bool
    deterministic: bool
    operation: str
    """The tag of the operation, such as `bf16_bias`: the types, then what is added."""
    kernel: str
    state: str
    """How far the kernel was tried: `run`, `executed` or `compiled`, as `info().states` counts them."""
    tier: str
    """`tuned`: this (n, k) has a ladder of its own; `grid`: any other; `fallback`: no tuned kernel takes it."""
    bucket: tuple[int, int, int] | None
    """Upper edges (m, n, k) of the bucket or cell, of the problem or group as looked up; none for the fallback."""
    bucket_batch: int | None
    """Products that the bucket's times are of, or groups."""
    skew: float | None
    """Of groups: the time is of two loads in turn, an even one, and one whose largest group has so many times the mean.

    None where no time is known."""
    time_us: float | None
    """In microseconds, at the bucket's upper edges, which are this problem or one with more rows or products.

    None where no time is known for this problem, as `no_time` says; never below the problem's roofline.
    """
    no_time: str | None
    """Why `time_us` is None, in words; None where it is not."""
    provenance: str | None
    """`measured` or `predicted`, of the time."""
    runner_up: str | None
    """The kernel that came second where the time is of; None where no time is known."""
    runner_up_us: float | None
    library_us: float | None
    """What torch took there, measured in the same runs: its own product, with the epilogue as kernels of its own. None
    where that was not timed, or no time is known."""
    roofline_us: float | None
    """The least time that m by n by k can take with a cold L2, by the rates of the table's target; none of an empty
    product. Of groups that of as many as are expected."""
    roofline_bound: str | None
    """What sets it: `compute` or `memory`."""
    roofline_fraction: float | None
    """The fraction of the roofline that `time_us` achieves: of the roofline of the very shape that the time is of."""
    bigger_tiles: tuple[str, ...]
    """What there is against the kernel with a bigger tile: not legal, or slower where it was compared."""
    workspace_bytes: int
    tile_order: str | None
    """How the kernel walks its tiles, where that was measured to be faster than its own way: `m2` is along the m of its
    own product in groups of 2 clusters."""
    target: str
    """The target of the table that answered: the one of the current GPU, or the one asked for."""
    pack: str
    """The distribution that has the kernel: this package, or a pack."""


def extent_of(name: str, value: Any) -> int:
    """Return an extent as an int.

    Raises:
        ShapeError: it is not an integer, or not one that a library takes.
    """
    try:
        extent = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        extent = None
    if extent is None:
        raise errors.ShapeError(
            f"{name} is {errors.show(value)}, a {type(value).__name__}; expected an integer from 0 to {MAX_EXTENT}"
        )
    if not 0 <= extent <= MAX_EXTENT:
        advice = "; split the problem" if extent > 0 else ""
        raise errors.ShapeError(f"{name} is {errors.show(extent)}; expected 0 to {MAX_EXTENT}{advice}")
    return extent


class Selection(NamedTuple):
    """What a library says of a problem: fields of `aot_gemm_selection_t`, the bytes of workspace, and a cell."""

    library: Library
    call: str
    """The operation's tag."""
    kernel: int
    tier: int
    section: int
    index: int
    m: int
    n: int
    k: int
    workspace_bytes: int
    table: int
    num_groups: int
    num_launches: int
    tile_order: int
    cell_m: int
    cell_n: int
    cell_k: int
    """The upper edges of a grid's cell, which the library alone has; zeros where no grid answers."""

    @property
    def manifest(self) -> dict[str, Any]:
        """Return that of the library."""
        return manifest_in(self.library.folder)


@dataclass(frozen=True)
class _Place:
    """Where in the table a problem was answered."""

    row: Row | None
    """The row of a ladder; a grid has none, and no times."""
    bucket: Shape
    """Upper edges of the bucket or cell."""
    num_groups: int
    """Products that the times are of."""


def _num_groups(section: dict[str, Any]) -> int:
    """Return how many products a section's times are of."""
    return section["scope"]["num_groups"] if section["scope"] else 1


def _find_place(selection: Selection) -> _Place | None:
    """Find where in the table a problem was answered; None for the fallback.

    Raises:
        CorruptLibraryError: the manifest has no such place.
    """
    try:
        table = selection.manifest["tables"][selection.table]["table"]
        section = table["sections"][selection.section]
        if TIERS[selection.tier] == "tuned":
            ladder = _packed.find_ladder(table, section, selection.n, selection.k)
            edges = _packed.ladder_edges(ladder)
            step = min(bisect_left(edges, selection.m), len(edges) - 1)
            bucket = edges[step], selection.n, selection.k
            return _Place(_packed.row_of(ladder, step), bucket, _num_groups(section))
        if TIERS[selection.tier] == "grid":
            cell = selection.cell_m, selection.cell_n, selection.cell_k
            return _Place(None, cell, _num_groups(section))
    except (LookupError, ValueError) as error:
        folder = selection.library.folder
        raise errors.CorruptLibraryError(
            f"{folder.path_of(folder.library)} answers from a place that {folder.path_of(_files.MANIFEST)} does not "
            "have; reinstall the package"
        ) from error
    return None


def _why_unlike(place: _Place, selection: Selection) -> str | None:
    """Say why the table's times are of other sizes than a problem's, or of another kernel; None where they are not."""
    edge = place.bucket[0]
    if selection.num_groups > place.num_groups:
        return f"the table's times are of up to {place.num_groups} products or groups"
    if selection.m > edge:
        return f"the table's last bucket ends at m {edge}: no time is known for m {selection.m}"
    if place.row is not None and place.row.kernel != selection.kernel:
        is_general = place.row.general == selection.kernel
        return f"the table's time here is of a kernel that {'takes whole tiles only' if is_general else 'is left out'}"
    return None


def _why_no_time(place: _Place | None, selection: Selection, roofline_us: float, rates: Rates) -> str | None:
    """Say why the table has no time for a problem that is not empty; None where it has one."""
    if selection.num_launches > 1:
        return f"each of the {selection.num_launches} products is a launch of its own"
    if place is None or place.row is None:
        of = "of the fallback" if place is None else "in its grid, which is filled by predictions of other shapes"
        return f"the table has no times {of}"
    unlike = _why_unlike(place, selection)
    if unlike is not None:
        return unlike
    if not place.row.time_us > 0:
        return "the table has none for this kernel here"
    if place.row.time_us < max(roofline_us, rates.roofline_us(place.bucket, place.num_groups)):
        return "the table's time here is less than the roofline, so that it is not this problem's"
    return None


def table_of(library: Library, target: str | None) -> int:
    """Return the index of a target's table; without one, of the current GPU's, or where there is none, the first.

    Raises:
        UnsupportedError: there is no table of the target.
    """
    targets = [table["target"] for table in manifest_in(library.folder)["tables"]]
    if target is None:
        table = device_table(library)[0] if len(targets) > 1 else 0
        return 0 if table is None else table
    if target not in targets:
        raise errors.UnsupportedError(f"target is {errors.show(target)}; this wheel has tables of {', '.join(targets)}")
    return targets.index(target)


def select(request: Request, layout: object, shape: Shape, batch: int, flags: int, target: str | None) -> Selection:
    """Ask the libraries for what is requested, in a layout, one after the other as products do.

    Raises:
        DtypeError: there is no product of the element types.
        StrideError: there is no such layout.
        UnsupportedError: there are no kernels for it, or there is no table of the target.
    """
    found = find(request)
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise errors.StrideError(f"layout is {errors.show(layout)}; expected one of {', '.join(LAYOUTS)}")
    for library, call in found:
        compare_with_manifest(library)
        number, table = library.operation(call), table_of(library, target)
        asked = _library.Asked(number, LAYOUTS.index(layout), *shape, batch, flags, table)
        selection = Selection(library, call, **library.binding["plan"](*asked))
        if not library.only_tuned or TIERS[selection.tier] == "tuned":
            break
    return selection


def _answer(selection: Selection, shape: Shape, count: int, *, is_grouped: bool) -> dict[str, Any]:
    """Return the fields of a `Plan` that library and table answer.

    Args:
        selection: what the library says of the problem.
        shape: (m, n, k) of one product, or what is expected of one group.
        count: how many products or groups there are.
        is_grouped: whether these are groups.

    Raises:
        CorruptLibraryError: the manifest does not have the place that the library answers from.
    """
    if is_grouped:
        selection = selection._replace(m=shape[0], k=shape[2])
    manifest = selection.manifest
    names = [kernel["name"] for kernel in manifest["kernels"]]
    place = _find_place(selection)
    rates = rates_of(manifest, selection.table, selection.call)
    is_empty = 0 in (*shape[:2], count)
    least = {} if is_empty else {name: count * us for name, us in rates.least_us(*shape).items()}
    bound = max(least, key=least.__getitem__, default=None)
    roofline_us = None if bound is None else least[bound]
    empty = "an empty product launches nothing"
    no_time = empty if roofline_us is None else _why_no_time(place, selection, roofline_us, rates)
    timed = place.row if place and no_time is None else None
    fraction = rates.roofline_us(place.bucket, place.num_groups) / timed.time_us if place and timed else None
    table = manifest["tables"][selection.table]
    return {
        "operation": selection.call,
        "launches": selection.num_launches,
        "kernel": names[selection.kernel],
        "state": manifest["kernels"][selection.kernel]["state"],
        "tier": TIERS[selection.tier],
        "bucket": place.bucket if place else None,
        "bucket_batch": place.num_groups if place else None,
        "skew": skew_of(place.num_groups) if place and timed and is_grouped else None,
        "time_us": timed.time_us if timed else None,
        "no_time": no_time,
        "provenance": timed.provenance if timed else None,
        "runner_up": names[timed.runner_up] if timed else None,
        "runner_up_us": timed.runner_up_us if timed else None,
        "library_us": timed.library_us if timed else None,
        "roofline_us": roofline_us,
        "roofline_bound": bound,
        "roofline_fraction": fraction,
        "bigger_tiles": tuple(table["bigger_tiles"].get(names[selection.kernel], ())),
        "workspace_bytes": selection.workspace_bytes,
        "tile_order": TILE_ORDERS[selection.tile_order],
        "target": table["target"],
        "pack": manifest["package"],
    }


def plan(
    m: int,
    n: int,
    k: int,
    dtype: Any = "bfloat16",
    layout: str = "kk",
    *,
    batch: int = 1,
    groups: int | None = None,
    grouping: str | None = None,
    batch_invariant: bool = False,
    deterministic: bool = False,
    target: str | None = None,
    **options: Unpack[Computed],
) -> Plan:
    """Say which kernel a product gets, without a GPU: by dtypes where `linear` and `gated_linear` take tensors.

    Args:
        m: rows of A and D. Extents are integers of any type (`operator.index`).
        n: columns of D; rows of B as held (n, k), or (2 n, k) where it is gated.
        k: columns of A and of B.
        dtype: element type of x, by name or as torch, NumPy or JAX have it: `torch.float16`; or "nvfp4", "mxfp4" or
            "mxfp8", of which both operands are, unless `weight_dtype` is "mxfp4" beside "mxfp8".
        layout: which mode of A, then of B, is contiguous: `k`, or `m` for A and `n` for B. A torch weight is `k`; the
            right operand of a plain matmul is `n`. Operands are taken as contiguous and aligned, D as row-major.
        batch: products of the same sizes, as `matmul` computes them of leading dimensions; none share an operand.
        groups: how many `grouped_linear` is given, of rows, with a weight (n, k) each, or (2 n, k) where it is gated; m
            is the rows of all. None for no groups.
        grouping: what they are: "grouped", the default; "gathered" by an index; or "kgrouped", runs of k, where k is
            that of all, and the layout mostly "mn".
        batch_invariant: as `linear` has it.
        deterministic: as `linear` has it; torch's own setting is not asked here.
        target: whose table is asked, such as `h200`. By default it is that of the current GPU, for which the driver is
            asked if the wheel has several tables; where there is no GPU, the first table.
        options: what is computed, as `linear` has it: `bias` and `residual` as booleans, `activation`, `out_dtype`,
            `allow_tf32` and `use_fast_accum`; `gated` for `gated_linear`, whose activation is by default "silu";
            `many` for `torch.linear_many`, with the n of all weights; `weight_dtype`, where it is not that of x; and
            `scales`, "vector" for factors of rows or one for all, "block" for those of blocks, by default those that
            the types need: vectors for float8, and for int8 of a floating result.

    Raises:
        DtypeError: there is no such element type, or no product of those.
        ShapeError: an extent is not an integer, negative or past 2^31 - 1.
        StrideError: there is no such layout.
        UnsupportedError: the wheel has no kernels for it, or there is no such activation, grouping or target.
        CorruptLibraryError: the library or the manifest is damaged, missing, or not for this machine.
    """
    shape = extent_of("m", m), extent_of("n", n), extent_of("k", k)
    request = request_of(dtype, **options)
    batch = extent_of("batch", batch)
    num_groups = None if groups is None else extent_of("groups", groups)
    kind = grouping_of(num_groups, grouping, batch)
    modes = {"batch_invariant": batch_invariant, "deterministic": deterministic}
    return _plan(request._replace(grouping=kind), shape, layout, batch, num_groups, modes, target)


def _plan(
    request: Request,
    shape: Shape,
    layout: str,
    batch: int,
    num_groups: int | None,
    modes: dict[str, bool],
    target: str | None,
) -> Plan:
    """Ask the library for what is requested, and find in the table what is known of it."""
    kind, count = request.grouping, num_groups or batch
    selection = select(request, layout, shape, count, mode_flags(**modes), target)
    one = of_a_group(kind, shape, count)
    return Plan(
        *shape,
        dtype=request.a,
        layout=layout,
        bias=request.bias,
        batch=batch,
        grouping="batched" if batch > 1 else kind,
        groups=num_groups or 1,
        expected=one[2] if kind == "kgrouped" else one[0],
        **modes,
        **_answer(selection, one, count, is_grouped=num_groups is not None),
    )
