"""Kernels that ship are executed in the interpreter, and the committed records say what was found.

Of the default Thor wheel `make test` executes a few kernels of each family on their smaller cases, each under one of
the record's kinds of schedule, and holds their PTX against the record's; test_launches.py does that of all kernels that
it compiles, for PTX does not depend on the host (tests/unit/compile/test_compiler.py). `make walk` executes all of the
wheel's, on all cases of the record and under all of its schedules. So `aot build` says executed of what was executed.

Of an H200's kernels, most of which ran on one, the record has smaller cases in one order each. `make test` executes
none of them again, `make walk` some of each family.
"""

from collections import defaultdict

import pytest

from aot.cli.emulate import DEFAULT_MODES
from aot.cli.emulate_record import recorded_execution
from aot.emulate.execute import MAX_INSTRUCTIONS, ExecutionOptions, Executor
from aot.emulate.schedule import Mode, Schedule
from aot.select.pipeline import committed_selection
from aot.select.selection import read_selection
from aot.space.widths import shared
from tests.compiling import EVERY
from tests.emulated import emulated_set, target_of
from tests.equivalence import kernels
from tests.equivalence.records import AGAIN, check_ptx, record_of
from tests.readings import readings

__all__ = ["readings"]  # the fixture

pytestmark = pytest.mark.slow
FEW = {"thor": 6_000, "h200": 6_000}
"""Warp instructions of the cases that `make test` executes."""
SCHEDULES = tuple(Schedule(mode, 0) for mode in DEFAULT_MODES)
OF_HOPPER = (Schedule(Mode.RANDOM, 0),)
MOST = {"thor": MAX_INSTRUCTIONS, "h200": 20_000}
"""Warp instructions of the records' cases."""
OF_A_FAMILY = 4
SAME = ("num_cases", "num_schedules", "num_runs", "worst_error")


def options(target, schedules):
    return ExecutionOptions(schedules, max_instructions=(MOST if EVERY else FEW)[target])


def check(target, result):
    """Hold what executing a kernel showed against the record."""
    assert result.is_right, [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right]
    found, recorded = recorded_execution(result), record_of(target)[result.name]
    check_ptx(target, result)
    assert recorded.num_findings == 0
    if EVERY:
        assert [getattr(found, x) for x in SAME] == [getattr(recorded, x) for x in SAME], (result.name, AGAIN[target])
    else:
        assert found.worst_error <= recorded.worst_error
        assert 1 <= found.num_cases <= recorded.num_cases


def keys():
    """Give the wheel's kernels, or of each family those that differ in how many CTAs multiply and what is swapped.

    Of those on rows that is the one that rounds x by itself.
    """
    if EVERY:
        return kernels.wheel().all_kernels
    chosen = {}
    for key in kernels.selection().kernels:
        knobs = key.candidate.gemm
        chosen.setdefault((key.candidate.family, knobs.use_2cta, knobs.swap_ab, knobs.split_k > 1), key)
    rounding = (x for x in kernels.wheel().others.kernels if x.operation.tag == "bf16_nvfp4_quantize")
    return (*chosen.values(), *rounding)


def test_the_record_has_every_kernel_of_the_wheel():
    record = record_of("thor")
    assert sorted(record) == sorted(key.name for key in kernels.wheel().all_kernels), AGAIN["thor"]
    assert {x.num_schedules for x in record.values()} == {len(SCHEDULES)}


def test_kernels_do_what_the_record_says(tmp_path):
    """All of them in one test: which they are is known where the wheel's kernels have been selected."""
    of_thor = emulated_set(keys(), "thor", tmp_path)
    for number, name in enumerate(of_thor.names):
        schedules = SCHEDULES if EVERY else (SCHEDULES[number % len(SCHEDULES)],)
        check("thor", Executor(of_thor, options("thor", schedules)).execute(name))


def hopper_keys():
    """Give the kernels of an H200's wheel, by name."""
    path = committed_selection(target_of("h200"))
    return {key.name: key for key in read_selection(path).kernels}


def test_the_record_of_an_h200_has_every_kernel_of_its_wheel_and_all_are_right():
    record = record_of("h200")
    assert sorted(record) == sorted(hopper_keys()), AGAIN["h200"]
    assert [x.kernel for x in record.values() if not x.is_right] == []
    assert {x.num_schedules for x in record.values()} == {len(OF_HOPPER)}


def sample_of_hopper():
    """Give kernels of each family, in the order of their PTX's hashes, which prefers none.

    A kernel that is shipped as a wider one is not among them, but the wider one can be.
    """
    record, shipped, of_family = record_of("h200"), hopper_keys(), defaultdict(list)
    widest = shared(list(shipped.values()), target_of("h200"))
    own = [key for key in shipped.values() if widest.get(key, (key, 0))[0] == key]
    for key in sorted(own, key=lambda x: record[x.name].ptx_sha256):
        of_family[key.candidate.family].append(key)
    return [key for found in of_family.values() for key in found[:OF_A_FAMILY]]


@pytest.mark.walk
def test_a_kernel_of_each_family_of_an_h200_does_what_the_record_says(tmp_path):
    sample = sample_of_hopper()
    executor = Executor(emulated_set(sample, "h200", tmp_path), options("h200", OF_HOPPER))
    for key in sample:
        check("h200", executor.execute(key.name))
