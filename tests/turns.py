"""Which tests take turns: `make test` runs a seventh of the long files, by the commit, and all others each time.

All of them take two cores a quarter of an hour. `make test TURN=all` runs them all, `TURN=0` to 6 one seventh.
`python -m tests.turns FILE` deals them out anew by the seconds of a whole run, of which pytest wrote FILE:
`make test TURN=all PYTEST_ADDOPTS=--junitxml=FILE`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".json")
NUM_TURNS = 7
LONG_S = 1.0
"""Seconds of a file's tests from which on it takes turns."""
ALWAYS = (
    "tests/equivalence/test_executed.py",  # the wheel's kernels are those that were executed
    "tests/package/test_wheels.py",
    "tests/runtime/test_arguments.py",
    "tests/runtime/test_damage.py",
    "tests/runtime/test_dispatch.py",
    "tests/simulated/test_fleet.py",
    "tests/simulated/test_tuning.py",
    "tests/unit/cli/test_cli.py",
    "tests/unit/select/test_committed.py",
    "tests/unit/test_docs.py",
    "tests/unit/test_hostile_texts.py",
    "tests/unit/test_layers.py",
    "tests/unit/test_turns.py",
    "tests/unit/test_versions.py",
)
"""How files begin that every run has: each stage of the road once, what is committed, and what keeps harm out."""


@cache
def turns():
    """Give the files of each turn."""
    return [frozenset(x) for x in json.loads(LIST.read_text())["turns"]]


def turn_of_commit():
    """Give the turn of the commit that is checked out; 0 where there is none."""
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git
        return 0
    return int(done.stdout.strip() or "0", 16) % NUM_TURNS


@cache
def turn():
    """Give whose turn it is, by AOT_TURN: a number, or `commit`; None where all are run."""
    asked = os.environ.get("AOT_TURN", "all")
    if asked in ("all", "commit"):
        return turn_of_commit() if asked == "commit" else None
    if asked not in map(str, range(NUM_TURNS)):
        raise pytest.UsageError(f"AOT_TURN is {asked!r}; expected all, commit, or a turn from 0 to {NUM_TURNS - 1}")
    return int(asked)


def waits(path):
    """Say whether it is another turn's files that this one is among."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    return turn() is not None and any(name in x for i, x in enumerate(turns()) if i != turn())


def dealt(seconds):
    """Deal files out, the longest first, each to the turn that has least so far."""
    long = [x for x, time in seconds.items() if time >= LONG_S and not x.startswith(ALWAYS)]
    found, sums = [[] for _ in range(NUM_TURNS)], [0.0] * NUM_TURNS
    for name in sorted(long, key=lambda x: (-seconds[x], x)):
        least = sums.index(min(sums))
        found[least].append(name)
        sums[least] += seconds[name]
    return [sorted(x) for x in found]


def seconds_of(path):
    """Add up the seconds of each file's tests."""
    found = Counter()
    for case in ET.parse(path).getroot().iter("testcase"):
        parts = case.get("classname").split(".")
        found["/".join(parts) + ".py"] += float(case.get("time"))
    return found


if __name__ == "__main__":
    LIST.write_text(json.dumps({"turns": dealt(seconds_of(Path(sys.argv[1])))}, indent=1) + "\n")
