"""What the package knows of itself: which kernel a shape gets, why, and where its times come from. Needs no GPU."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from . import _library, errors
from ._manifest import library_of_manifest, manifest

DTYPES = ("bfloat16", "float16")
"""By aot_gemm_dtype_t."""
LAYOUTS = ("kk", "kn", "mk", "mn")
"""By the number of aot_gemm_selection_t.layout."""
TIERS = ("", "tuned", "grid", "fallback")
"""By aot_gemm_tier_t."""
ELEMENT_BYTES = 2
"""Of either type."""

Shape = tuple[int, int, int]
"""(m, n, k)."""


@dataclass(frozen=True)
class Plan:
    """What one shape gets. `m`, `n`, `k` are as asked."""

    m: int
    n: int
    k: int
    dtype: str
    layout: str
    kernel: str
    tier: str
    """`tuned`: this (n, k) has a ladder of its own; `grid`: the coarse grid; `fallback`: not aligned to 16 bytes."""
    bucket: tuple[int, int, int] | None
    """Upper edges (m, n, k) of the bucket or cell, of the problem as looked up; none for the fallback."""
    time_us: float | None
    """In microseconds: at the bucket's upper edge (`tuned`), or the geometric mean over the cell's shapes (`grid`).

    None where the table has none for this kernel.
    """
    provenance: str | None
    """`measured` or `predicted`, of the time."""
    runner_up: str | None
    runner_up_us: float | None
    limit_us: float | None
    """The least time that m by n by k can take with a cold L2, by the target's rates; none of an empty product."""
    limit_by: str | None
    """What sets it: `compute` or `memory`."""
    reached: float | None
    """The fraction of the limit that `time_us` reaches: of the limit of the very shapes that the time is of."""
    bigger_tiles: tuple[str, ...]
    """What there is against the kernel with a bigger tile: not legal, or slower where it was compared."""
    workspace_bytes: int


def _state(m: int, n: int, k: int, dtype: str, layout: str) -> _library.Problem:
    if dtype not in DTYPES:
        raise errors.DtypeError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    if layout not in LAYOUTS:
        raise errors.StrideError(f"layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    pair = ctypes.c_int64 * 2
    return _library.Problem(
        struct_bytes=ctypes.sizeof(_library.Problem),
        dtype=DTYPES.index(dtype),
        device=-1,
        m=m,
        n=n,
        k=k,
        a=_library.Tensor(None, pair(k, 1) if layout[0] == "k" else pair(1, m)),
        b=_library.Tensor(None, pair(k, 1) if layout[1] == "k" else pair(1, n)),
        d=_library.Tensor(None, pair(n, 1)),
    )


def _find_row(selection: _library.Selection) -> tuple[dict[str, Any], Shape, list[Shape]] | None:
    """Find the table's row, the upper edges of its bucket, and the shapes whose mean its time is."""
    section = manifest()["table"]["sections"][selection.section]
    if TIERS[selection.tier] == "tuned":
        ladder = next(x for x in section["ladders"] if (x["n"], x["k"]) == (selection.n, selection.k))
        step = min(bisect_left(ladder["m_edges"], selection.m), len(ladder["m_edges"]) - 1)
        corner = ladder["m_edges"][step], ladder["n"], ladder["k"]
        return ladder["rows"][step], corner, [corner]
    if TIERS[selection.tier] == "grid":
        grid = section["grid"]
        rest, k = divmod(selection.index, len(grid["k_edges"]))
        m, n = divmod(rest, len(grid["n_edges"]))
        corner = grid["m_edges"][m], grid["n_edges"][n], grid["k_edges"][k]
        inside = [(x, corner[1], corner[2]) for x in _between(grid["m_edges"], m)]
        return grid["cells"][selection.index], corner, inside
    return None


def _between(edges: list[int], index: int) -> list[int]:
    """Give the extents at which a cell was judged: the twin of `between` in the toolchain's dispatch.py."""
    low = edges[index - 1] if index else 0
    fractions = manifest()["cell_fractions"]
    return sorted({low + max(1, round(fraction * (edges[index] - low))) for fraction in fractions})


def _limits_us(m: int, n: int, k: int) -> dict[str, float]:
    """Give the least times by the rate of the tensor cores, and by that of device memory."""
    num_bytes = (m * k + n * k + m * n) * ELEMENT_BYTES
    return {
        "compute": 2e6 * m * n * k / manifest()["flops_per_s"],
        "memory": 1e6 * num_bytes / manifest()["bandwidth_bytes_per_s"],
    }


def _mean_limit_us(shapes: list[Shape]) -> float:
    return math.exp(math.fsum(math.log(max(_limits_us(*shape).values())) for shape in shapes) / len(shapes))


def plan(m: int, n: int, k: int, dtype: str = "bfloat16", layout: str = "kk") -> Plan:
    """Say which kernel a product gets, without a GPU.

    Args:
        m: rows of A and D.
        n: rows of B as held (n, k), columns of D.
        k: columns of A and of B.
        dtype: `bfloat16` or `float16`.
        layout: which mode of A, then of B, is contiguous: `k`, or `m` for A and `n` for B. A torch weight is `k`; the
            right operand of a plain matmul is `n`. Operands are taken as contiguous and aligned, D as row-major.

    Raises:
        DtypeError: there are no kernels for the element type.
        ShapeError: an extent is negative or past 2^31 - 1.
        StrideError: there is no such layout.
    """
    library = library_of_manifest()
    problem = _state(m, n, k, dtype, layout)
    selection = _library.Selection(struct_bytes=ctypes.sizeof(_library.Selection))
    num_bytes = ctypes.c_size_t()
    _library.check(library.aot_gemm_select(ctypes.byref(problem), ctypes.byref(selection)))
    _library.check(library.aot_gemm_workspace_bytes(ctypes.byref(problem), ctypes.byref(num_bytes)))
    names = [kernel["name"] for kernel in manifest()["kernels"]]
    found = _find_row(selection)
    row, bucket, shapes = found or ({}, None, [])
    # The row's time is of the row's kernel, which may have given way to one that needs no whole tiles.
    timed = row.get("kernel") == selection.kernel and row["time_us"] > 0
    limits = _limits_us(m, n, k) if m and n else {}
    by = max(limits, key=limits.__getitem__, default=None)
    return Plan(
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        layout=layout,
        kernel=names[selection.kernel],
        tier=TIERS[selection.tier],
        bucket=bucket,
        time_us=row["time_us"] if timed else None,
        provenance=row["provenance"] if timed else None,
        runner_up=names[row["runner_up"]] if timed else None,
        runner_up_us=row["runner_up_us"] if timed else None,
        limit_us=None if by is None else limits[by],
        limit_by=by,
        reached=_mean_limit_us(shapes) / row["time_us"] if timed and limits else None,
        bigger_tiles=tuple(manifest()["bigger_tiles"].get(names[selection.kernel], ())),
        workspace_bytes=num_bytes.value,
    )


def explain(m: int, n: int, k: int, dtype: str = "bfloat16", layout: str = "kk") -> str:
    """Say in words which kernel a product gets and why; arguments and errors are those of `plan`."""
    got = plan(m, n, k, dtype, layout)
    reasons = {
        "tuned": "tier 1: this (n, k) has a ladder of m of its own",
        "grid": "tier 2: rounded up onto the coarse grid of (m, n, k)",
        "fallback": "fallback: a leading stride or an address is not a multiple of 16 bytes, or k is 0",
    }
    lines = [f"{dtype} m {m} n {n} k {k}, layout {layout}, on {manifest()['arch']}", f"  {reasons[got.tier]}"]
    if got.bucket is not None:
        edges = "m {} n {} k {}".format(*got.bucket)
        past = [x for x, edge in zip((m, n, k), got.bucket, strict=True) if x > edge]
        lines.append(f"  bucket     up to {edges}" + (", the last there is" if past else ""))
    lines.append(f"  kernel     {got.kernel}")
    if got.time_us is None or got.runner_up_us is None:
        lines.append("  time       none in the table for this kernel here")
    else:
        margin = got.runner_up_us / got.time_us - 1
        where = "".join(f" on {x['device']}, {x['date']}" for x in manifest()["conditions"][-1:])
        origin = f"measured{where}" if got.provenance == "measured" else f"{got.provenance}, not measured"
        what = "at the bucket's edge" if got.tier == "tuned" else "as the mean of the cell"
        lines.append(f"  time       {got.time_us:.2f} us {what}, {origin}")
        if got.runner_up != got.kernel:
            lines.append(f"  runner-up  {got.runner_up}, {got.runner_up_us:.2f} us ({margin:+.1%})")
    if got.limit_us is not None:
        lines.append(f"  limit      {got.limit_us:.2f} us for this problem, by {got.limit_by}")
    if got.reached is not None:
        of = "the limit at the bucket's edge" if got.tier == "tuned" else "the limit of the cell's shapes, as a mean"
        lines.append(f"  reached    {got.reached:.0%} of {of}; {got.provenance}")
    lines.append(f"  workspace  {got.workspace_bytes:,} bytes")
    lines += ["  bigger tiles of the family, all else equal"] if got.bigger_tiles else []
    lines += [f"    {text}" for text in got.bigger_tiles]
    return "\n".join(lines)
