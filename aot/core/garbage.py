"""How seldom Python looks for unreachable objects: selections, records and kernels under way are millions that stay."""

import gc

COLLECT_AFTER = 50_000
"""New objects after which Python looks for unreachable ones among them. With its own 700, a third of the time in which
the H200's selection is read, and a twelfth of that in which a kernel is compiled, goes into looking. Source: process
times of both on 2026-11-28."""


def collect_seldom() -> None:
    """Have this process look for unreachable objects after `COLLECT_AFTER` new ones."""
    gc.set_threshold(COLLECT_AFTER)
