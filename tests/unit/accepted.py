"""Candidates by their names, as a family enumerates them."""

from __future__ import annotations

from functools import cache

from aot.core.candidate import Accepted
from aot.core.target import load_target
from aot.families import families
from aot.space.legality import check
from tests.unit.twins import BF16


@cache
def _by_name(family, target_name):
    return {x.name: x for x in families()[family].candidates(BF16, load_target(target_name))}


def named(name, target_name):
    """Give the candidate of a name."""
    family = max((x for x in families() if name.startswith(f"{x}_")), key=len)
    return _by_name(family, target_name)[name]


def resources(name, target_name, operation=BF16):
    """Give what a legal candidate takes, as (shared memory without the barriers' 1 KiB, stages, threads, TMEM columns).

    The first is what a compiler reports as the kernel's shared storage.
    """
    verdict = check(named(name, target_name), operation, load_target(target_name))
    assert isinstance(verdict, Accepted)
    used = verdict.resources
    return used.smem_bytes - 1024, used.num_stages, used.num_threads, used.tmem_columns


def reason(candidate, target_name, operation=BF16):
    """Give why a candidate is out, and the message."""
    verdict = check(candidate, operation, load_target(target_name))
    return verdict.reason, verdict.message
