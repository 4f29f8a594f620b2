"""What the dispatch table says of an operation on rows: kernel, reason and time of a size. Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _library, _row_request, errors
from ._catalogue import BLOCK_FORMATS, ROW_CATALOGUE, RowRow
from ._dtypes import dtype_name
from ._enumerations import BITS, SCALE_BLOCK, TIERS
from ._library import Library
from ._manifest import compare_with_manifest, manifest_in, manifest_of, row_kernels
from ._row_options import GRANULARITIES, format_scales
from ._states import of_pack, state_text
from ._table import extent_of, table_of

FUNCTIONS = tuple(dict.fromkeys(row.function for row in ROW_CATALOGUE))


@dataclass(frozen=True)
class RowPlan:
    """What one size gets. `rows` and `cols` are as asked."""

    function: str
    rows: int
    cols: int
    dtype: str
    out_dtype: str
    operation: str
    """The tag of the operation, such as `bf16_rms_norm`."""
    kernel: str
    state: str
    """How far the kernel was tried: `run`, `executed` or `compiled`, as `info().states` counts them."""
    tier: str
    """`grid`: the table's kernel; `fallback`: that does not take so many columns, or no such number of them."""
    bucket: tuple[int, int] | None
    """Upper edges (rows, cols) of the step; none for the fallback, and cols past those that the table names is 2^30."""
    time_us: float | None
    """In microseconds, at the bucket's upper edges; None where those are not this problem's, or there is no time.

    A measured time is of this problem or one with more rows.
    """
    provenance: str | None
    """`measured` or `predicted`, of the time."""
    roofline_us: float | None
    """The least time by the bandwidth of the table's target, with a cold L2; None of no rows."""
    target: str
    """The target of the table that answered: the one of the current GPU, or the one asked for."""
    pack: str
    """The distribution that has the kernel: this package, or a pack."""


def _row_of(function: str, dtype: Any, out_dtype: Any, granularity: Any) -> RowRow:
    """Find the operation of the arguments of `plan_rows`.

    Raises:
        DtypeError: there is none of the element types.
        UnsupportedError: there is no such function, or this wheel has no kernels for it.
    """
    if function not in FUNCTIONS:
        raise errors.UnsupportedError(
            f"function is {errors.show(function)}; expected one of {', '.join(map(repr, FUNCTIONS))}"
        )
    if granularity not in GRANULARITIES:
        known = ", ".join(map(repr, GRANULARITIES))
        raise errors.UnsupportedError(f"granularity is {errors.show(granularity)}; expected one of {known}")
    x = dtype_name("dtype", dtype)
    form = format_scales(out_dtype)
    if form:
        return _there(function, x, BLOCK_FORMATS[out_dtype].element, form)
    default = "float8_e4m3fn" if function == "quantize" else x
    y = default if out_dtype is None else dtype_name("out_dtype", out_dtype)
    is_row = granularity == "tensor" and function != "quantize"  # one scale is given there, as it may be of rows
    scale = "none" if BITS.get(y) != 8 else "row" if is_row else granularity
    return _there(function, x, y, scale)


def _there(function: str, x: str, y: str, scale: str) -> RowRow:
    """Return an operation that this wheel has kernels for, or refuse it."""
    row = _row_request.find(function, x, y, scale)
    if row is None or not _row_request.is_there(row):
        _row_request.refuse(f"{_row_request.PREFIX}{function} {x} {y} {scale}")
    return row


def _num_bytes(row: RowRow, rows: int, cols: int) -> int:
    """Count the fewest bytes that memory must move: `RowOperation.num_bytes` of the toolchain."""
    if row.form:
        scales = rows * -(-cols // BLOCK_FORMATS[row.form].block)
    else:
        scales = 4 * {"none": 0, "row": rows, "block": rows * -(-cols // SCALE_BLOCK), "tensor": 1}[row.scale]
    x = BITS[row.x] * (rows * cols * row.width + row.vectors * cols)
    return (x + BITS[row.y] * rows * cols) // 8 + scales


def _step_of(library: Library, table: int, tag: str, index: int) -> tuple[dict[str, Any], int]:
    """Return a step of an operation's section of the table, and the upper edge of its columns.

    Raises:
        CorruptLibraryError: the manifest has no such step.
    """
    try:
        sections = manifest_in(library.folder)["tables"][table]["table"]["sections"]
        for column in next(x for x in sections if x["operation"] == tag)["columns"]:
            if index < len(column["steps"]):
                return column["steps"][index], column["cols"]
            index -= len(column["steps"])
    except (LookupError, StopIteration):
        pass
    raise errors.CorruptLibraryError(
        f"{library.folder.path_of(library.folder.library)} answers from a place that its manifest does not have; "
        "reinstall the package"
    )


def _tells(step: dict[str, Any], rows: int) -> bool:
    """Say whether a step's time may stand for so many rows: measured steps are narrow, predicted ones are not."""
    is_measured: bool = step["provenance"] == "measured"
    return step["time_us"] > 0 and (rows == step["rows"] or (is_measured and rows < step["rows"]))


def plan_rows(
    function: str,
    rows: int,
    cols: int,
    dtype: Any = "bfloat16",
    *,
    out_dtype: Any = None,
    granularity: str = "row",
    target: str | None = None,
) -> RowPlan:
    """Say which kernel an operation on rows gets, without a GPU, for aligned and contiguous operands.

    Args:
        function: "rms_norm", "layer_norm", "silu_mul", "gelu_tanh_mul", "rotary" or "quantize", or one that the wheel
            has from another package.
        rows: of the result; of "rotary" the heads of all tokens.
        cols: of the result; of "rotary" the elements of a head.
        dtype: element type of x, by name or as torch, NumPy or JAX have it.
        out_dtype: that of the result, or of "quantize" a format of blocks, such as "nvfp4"; by default x's, and
            float8_e4m3fn of "quantize".
        granularity: as `quantize` has it, of scales that are computed.
        target: as `plan` has it.

    Raises:
        DtypeError: there is no such element type, or no such operation of it.
        ShapeError: an extent is not an integer, negative or past 2^31 - 1.
        UnsupportedError: the wheel has no kernels for it, or there is no such function, granularity or target.
        CorruptLibraryError: the library or the manifest is damaged, missing, or not for this machine.
    """
    rows, cols = extent_of("rows", rows), extent_of("cols", cols)
    row = _row_of(function, dtype, out_dtype, granularity)
    library = next(x for x in _library.here() if x.has_rows(row.tag))
    compare_with_manifest(library)
    manifest = manifest_in(library.folder)
    number = library.c.aot_rows_operation(row.tag.encode())
    found = library.binding["rows_plan"](number, rows, cols, table_of(library, target))
    kernel, tier, table = row_kernels(manifest)[found["kernel"]], found["tier"], found["table"]
    is_grid = TIERS[tier] == "grid"
    step, edge = _step_of(library, table, row.tag, found["index"]) if is_grid else (None, 0)
    is_timed = step is not None and edge == cols and _tells(step, rows)
    values = manifest["tables"][table]
    return RowPlan(
        function=function,
        rows=rows,
        cols=cols,
        dtype=row.x,
        out_dtype=row.y,
        operation=row.tag,
        kernel=kernel["name"],
        state=kernel["state"],
        tier=TIERS[tier],
        bucket=None if step is None else (step["rows"], edge),
        time_us=step["time_us"] if step is not None and is_timed else None,
        provenance=step["provenance"] if step is not None and is_timed else None,
        roofline_us=1e6 * _num_bytes(row, rows, cols) / values["bandwidth_bytes_per_s"] if rows and cols else None,
        target=values["target"],
        pack=manifest["package"],
    )


def explain_rows(function: str, rows: int, cols: int, dtype: Any = "bfloat16", **options: Any) -> str:
    """Say in words which kernel an operation on rows gets and why; arguments and errors are those of `plan_rows`."""
    got = plan_rows(function, rows, cols, dtype, **options)
    into = "" if got.out_dtype == got.dtype else f" to {got.out_dtype}"
    what = f"{got.function} of {got.dtype}{into}, rows {got.rows} cols {got.cols}"
    manifest = manifest_of(got.pack)
    lines = [f"{what}, on {manifest['arch']}, by the table of {got.target}{of_pack(got.pack)}"]
    if got.bucket is None:
        lines += ["  fallback: the table's kernel here takes no such number of columns"]
    else:
        lines += [f"  bucket     up to rows {got.bucket[0]} cols {got.bucket[1]}"]
    lines += [f"  kernel     {got.kernel}"]
    lines += [f"  state      {state_text(manifest, got.kernel, got.state)}"]
    if got.time_us is not None and got.bucket is not None:
        origin = got.provenance if got.provenance == "measured" else f"{got.provenance}, not measured"
        lines += [f"  time       {got.time_us:.2f} us at the bucket's edge, rows {got.bucket[0]}, {origin}"]
    if got.roofline_us is not None:
        lines += [f"  roofline   {got.roofline_us:.2f} us for this problem, by memory"]
    return "\n".join(lines)
