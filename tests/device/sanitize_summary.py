"""The summary of what a sanitizer said of a wheel's kernels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.device.sanitize_cases import ShippedKernel

MAX_SHOWN = 12
"""Reports, faults and troubles that are printed; the file has all."""


def _reports(kernels: list[ShippedKernel], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gather reports of the same kind: the same text but for offsets in the code, in kernels of one family."""
    families, found = {x.name: x.family for x in kernels}, {}
    for record in records:
        for report in record.get("reports", ()):
            kind = report.split(" at ")[0].splitlines()[0]
            group = found.setdefault((families[record["kernel"]], kind), {"kernels": {}, "example": report})
            group["kernels"].setdefault(record["kernel"], record["case"])
    return [
        {"family": family, "kind": kind, "num_kernels": len(group["kernels"]), **group}
        for (family, kind), group in sorted(found.items())
    ]


def summarise(
    *,
    tool: str,
    sees_fault: bool,
    kernels: list[ShippedKernel],
    records: list[dict[str, Any]],
    troubles: list[str],
    seconds: float,
) -> dict[str, Any]:
    """Return what is written and printed.

    Args:
        tool: of the sanitizer.
        sees_fault: whether it reported the fault that is made for it.
        kernels: of the wheel.
        records: of all cases, also of other wheels.
        troubles: what is no result of a kernel.
        seconds: that this run took.
    """
    watched = {(x["digest"], x["case"]): x for x in records}
    cases = {x.name: [watched.get((x.digest, case.name)) for case in x.cases()] for x in kernels}
    ours = [record for found in cases.values() for record in found if record]
    return {
        "tool": tool,
        "sees_fault": sees_fault,
        "seconds": round(seconds, 1),
        "num_kernels": len(kernels),
        "num_whole": sum(all(found) for found in cases.values()),
        "num_clean": sum(
            all(x and not x.get("fault") and not x.get("reports") for x in found) for found in cases.values()
        ),
        "num_cases": sum(len(found) for found in cases.values()),
        "num_cases_watched": len(ours),
        "case_seconds": round(sum(x.get("seconds", 0.0) for x in ours), 1),
        "families": dict(Counter(x.family for x in kernels if all(cases[x.name]))),
        "faults": [f"{x['kernel']} {x['case']}: {x['fault']}" for x in ours if x.get("fault")],
        "reports": _reports(kernels, ours),
        "not_reached": [name for name, found in cases.items() if not any(found)],
        "troubles": [f"{count} times: {text}" for text, count in Counter(troubles).most_common()],
        "slowest": [
            f"{x['seconds']:.1f} s {x['kernel']} {x['case']}"
            for x in sorted(ours, key=lambda x: -x.get("seconds", 0.0))[:5]
        ],
    }


def text_of(summary: dict[str, Any]) -> str:
    lines = [
        (
            f"{summary['tool']}: {summary['num_clean']} of {summary['num_kernels']} kernels clean in all their cases; "
            f"{summary['num_whole']} watched whole, {len(summary['not_reached'])} not at all; "
            f"{summary['num_cases_watched']} of {summary['num_cases']} cases; {summary['seconds']:.0f} s"
        ),
        f"the fault that is made for it: {'reported' if summary['sees_fault'] else 'NOT REPORTED'}",
    ]
    lines += [
        f"report: {x['family']}, {x['num_kernels']} kernels, {min(x['kernels'])}: {x['example']}"
        for x in summary["reports"][:MAX_SHOWN]
    ]
    for what in ("faults", "troubles", "slowest"):
        lines += [f"{what}: {x[:400]}" for x in summary[what][:MAX_SHOWN]]
    return "\n".join(lines)
