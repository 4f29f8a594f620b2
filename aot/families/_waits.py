"""Waiting for barriers in shared memory. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import cute


@cute.jit
def await_phase(barrier: Any, phase: Any) -> None:
    """Wait until a phase of a barrier in shared memory is complete.

    It tries again and again. CUTLASS's `mbarrier_wait` tries once and then sleeps until the barrier wakes it, which
    takes longer: on an H200 about 20 ns for each stage that is waited for, 15% of a product of few tiles and long k
    (research/log/2026-11-23-waits.md).
    """
    is_complete = cute.arch.mbarrier_try_wait(barrier, phase)
    while not is_complete:
        is_complete = cute.arch.mbarrier_try_wait(barrier, phase)
