"""Of which pack a kernel is, and how far it was tried before that was built. Needs no GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ._files import answering

STATES = {
    "run": "ran on a GPU that this package is for",
    "executed": "executed in the toolchain's interpreter, not on a GPU",
    "compiled": "compiled, and neither run nor executed",
}
"""What each state means, the furthest first: the members of the toolchain's `KernelState`."""


def counts(manifest: dict[str, Any]) -> dict[str, int]:
    """Count the kernels of products and of operations on rows by their states; a state without a kernel counts 0."""
    found = Counter(kernel["state"] for kernel in manifest["kernels"])
    return {state: found[state] for state in STATES}


def counts_text(found: dict[str, int]) -> str:
    """Say in a line how many kernels are in which state."""
    return "kernels: " + "; ".join(f"{count} {STATES[state]}" for state, count in found.items() if count)


def state_text(manifest: dict[str, Any], name: str, state: str) -> str:
    """Say in words how far a kernel was tried, and what the interpreter found of it."""
    found = next((x for x in manifest["executions"] if x["kernel"] == name), None)
    text = f"{state}: {STATES[state]}"
    if found is None:
        return text
    orders = f"{found['num_runs']} runs of {found['num_cases']} cases in {found['num_schedules']} orders"
    faults = f"{found['num_findings']} faults found, " if found["num_findings"] else ""
    worst = f"{faults}worst error {found['worst_error']:.0%} of what is allowed"
    return f"{text}; the interpreter, {found['date']}: {orders}, {worst}"


def of_pack(pack: str) -> str:
    """Say which pack has a kernel, where several might."""
    return f" of {pack}" if len(answering()) > 1 else ""
