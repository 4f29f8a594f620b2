"""Candidates by their names."""

from __future__ import annotations

import re
from functools import cache

from aot.core.candidate import Accepted, gemm_candidate
from aot.core.knobs import SplitK
from aot.core.target import load_target
from aot.families import families
from aot.space.legality import check
from tests.unit.twins import BF16

_TILE = re.compile(r"(\d+)x(\d+)_c(\d+)x(\d+)_?(.*)")
_SPLIT = re.compile(r"([a-z]+)(\d+)")


@cache
def named(name):
    """Give the candidate of a name, which says all `GemmKnobs`; of another package's family, as that enumerates it."""
    family = max((x for x in families() if name.startswith(f"{x}_")), key=len)
    match = _TILE.fullmatch(name.removeprefix(f"{family}_"))
    if match is None:
        return next(x for x in families()[family].candidates(BF16, load_target("h200")) if x.name == name)
    *sizes, words = match.groups()
    knobs = {"use_tma_store": "direct" not in words.split("_")}
    for word in filter(None, words.split("_")):
        mode, count = match.groups() if (match := _SPLIT.fullmatch(word)) else ("", "")
        if word in ("2cta", "swap"):
            knobs[{"2cta": "use_2cta", "swap": "swap_ab"}[word]] = True
        elif mode == "st":
            knobs["num_stages"] = int(count)
        elif mode in set(SplitK):
            knobs |= {"split_k": int(count), "split_k_mode": SplitK(mode)}
        elif word != "direct":
            knobs["schedule"] = word
    found = gemm_candidate(family, *map(int, sizes), **knobs)
    assert found.name == name, found.name
    return found


def resources(name, target_name, operation=BF16):
    """Give what a legal candidate takes, as (shared memory without the barriers' 1 KiB, stages, threads, TMEM columns).

    The first is what a compiler reports as the kernel's shared storage.
    """
    verdict = check(named(name), operation, load_target(target_name))
    assert isinstance(verdict, Accepted)
    used = verdict.resources
    return used.smem_bytes - 1024, used.num_stages, used.num_threads, used.tmem_columns


def reason(candidate, target_name, operation=BF16):
    """Give why a candidate is out, and the message."""
    verdict = check(candidate, operation, load_target(target_name))
    return verdict.reason, verdict.message
