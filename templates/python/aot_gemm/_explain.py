"""What `plan` finds of a shape, in words. Needs no GPU."""

from __future__ import annotations

from typing import Any

from ._manifest import manifest_of
from ._plan_groups import GROUPINGS, Shape, of_a_group
from ._states import of_pack, state_text
from ._table import Plan, plan

_SHOWN = {"bias", "target", "batch", "batch_invariant", "deterministic"}
"""Arguments of `plan` that are said beside the operation."""


def _products(got: Plan) -> str:
    """Say how many products, or groups, a plan's bucket is of, where that is more than one."""
    what = "groups of so many" if got.grouping in GROUPINGS else "products"
    return f", {got.bucket_batch} {what}" if (got.bucket_batch or 1) > 1 else ""


def _groups(got: Plan) -> list[str]:
    """Say what a plan's groups are, and what is expected of one."""
    if got.grouping not in GROUPINGS:
        return []
    of, what = ("k", "runs of k") if got.grouping == "kgrouped" else ("rows", f"{got.grouping} rows")
    lines = [
        f"  groups     {got.groups} of {what}; the table is asked for {got.expected} {of} of each, what is expected"
    ]
    if got.skew is not None:
        lines.append(
            f"  skew       timed on even groups and on skewed ones in turn, the largest {got.skew:.1f} times the mean"
        )
    return lines


def _explain_time(got: Plan, bucket: Shape) -> list[str]:
    """Say in words what is known of a plan's time."""
    if got.time_us is None or got.runner_up_us is None:
        return [f"  time       none: {got.no_time}"]
    margin = got.runner_up_us / got.time_us - 1
    table = next(x for x in manifest_of(got.pack)["tables"] if x["target"] == got.target)
    where = "".join(f" on {x['device']}, {x['date']}" for x in table["conditions"][-1:])
    origin = f"measured{where}" if got.provenance == "measured" else f"{got.provenance}, not measured"
    edge = f"at the bucket's edge m {bucket[0]}" + _products(got)
    one = of_a_group(got.grouping, (got.m, got.n, got.k), got.groups)
    what = "for this problem" if bucket == one and got.bucket_batch == max(got.batch, got.groups) else edge
    lines = [f"  time       {got.time_us:.2f} us {what}, {origin}"]
    if got.runner_up != got.kernel:
        lines.append(f"  runner-up  {got.runner_up}, {got.runner_up_us:.2f} us ({margin:+.1%})")
    if got.library_us is not None:
        lines.append(f"  torch      {got.library_us:.2f} us, measured there ({got.library_us / got.time_us - 1:+.1%})")
    return lines


def explain(
    m: int,
    n: int,
    k: int,
    dtype: Any = "bfloat16",
    layout: str = "kk",
    **options: Any,
) -> str:
    """Say in words which kernel a product gets and why; arguments and errors are those of `plan`."""
    got = plan(m, n, k, dtype, layout, **options)
    m, n, k, manifest = got.m, got.n, got.k, manifest_of(got.pack)
    reasons = {
        "tuned": "tier 1: this (n, k) has a ladder of m of its own",
        "grid": "tier 2: n and k are rounded up onto the grid, m to a step of its column",
        "fallback": "fallback: no tuned kernel takes these strides and addresses, or k is 0",
    }
    what = f"{got.dtype} m {m} n {n} k {k}, layout {layout}{', with a bias' if got.bias else ''}"
    what += f", a batch of {got.batch}" if got.batch > 1 else ""
    what += ", batch-invariant" if got.batch_invariant else ""
    what += ", deterministic" if got.deterministic else ""
    what += f", operation {got.operation}" if set(options) - _SHOWN else ""
    lines = [
        f"{what}, on {manifest['arch']}, by the table of {got.target}{of_pack(got.pack)}",
        f"  {reasons[got.tier]}",
    ]
    lines += _groups(got)
    bucket = got.bucket or (0, 0, 0)
    if got.bucket is not None:
        lines.append("  bucket     up to m {} n {} k {}".format(*bucket) + _products(got))
    lines += [f"  kernel     {got.kernel}" + (f", tiles in order {got.tile_order}" if got.tile_order else "")]
    lines += [f"  state      {state_text(manifest, got.kernel, got.state)}"]
    if got.launches > 1:
        by_torch = "" if got.batch_invariant or got.deterministic else ", so that torch computes it of torch's tensors"
        lines.append(f"  launches   {got.launches}: this wheel has no kernels for such a batch{by_torch}")
    lines += _explain_time(got, bucket)
    if got.roofline_us is not None:
        lines.append(f"  roofline   {got.roofline_us:.2f} us for this problem, by {got.roofline_bound}")
    if got.roofline_fraction is not None:
        of = f"the roofline at m {bucket[0]}"
        lines.append(f"  achieved   {got.roofline_fraction:.0%} of {of}; {got.provenance}")
    lines.append(f"  workspace  {got.workspace_bytes:,} bytes")
    lines += ["  bigger tiles of the family, all else equal"] if got.bigger_tiles else []
    lines += [f"    {text}" for text in got.bigger_tiles]
    return "\n".join(lines)
