"""What the bench of a fleet that compiles takes, and when it is right."""

from __future__ import annotations

from dataclasses import replace

from aot.core.target import load_target
from research.bench.fleet_compile import Compiling, keys_of

GONE = "worker a-compilers-7 is gone; what it had goes to another"
DONE = Compiling("x86_64", 2, 4, 1, 500, 498, 2, 60.0, (GONE,), ())


def test_kernels_are_those_of_the_command_and_no_more_than_are_asked_for():
    found = keys_of(load_target("l4"), "bf16_kk", "mma_sync_*", 5)
    assert len(set(found)) == len(found) == 5
    assert {x.candidate.family for x in found} == {"mma_sync"}


def test_it_is_right_where_nothing_is_missing_different_or_untold():
    assert DONE.is_right
    assert not replace(DONE, num_artifacts=497).is_right
    assert not replace(DONE, sample_differs=("bf16_kk_x",)).is_right
    assert not replace(DONE, said=()).is_right
    assert replace(DONE, said=(), num_killed=0).is_right
