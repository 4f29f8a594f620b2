"""The process that a bundle's supervisor starts: it touches the GPU, reports each step on stdout, and is expendable."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aot.core.errors import DeviceError
from aot.measure.background import EXIT_INTERRUPTED
from aot.measure.conditions import RareClocks, make_conditions, read_state
from aot.measure.device import CudaGpu, read_properties
from aot.measure.feed import note_done, portions
from aot.measure.gpu import ContextLostError
from aot.measure.kernel_library import KernelLibrary
from aot.measure.protocol import plan_for
from aot.measure.session import Session, StoppedError, deadline_stop
from aot.measure.store import open_store
from aot.measure.supervisor import EXIT_CONTEXT_LOST, STEP, end_with_parent
from aot.measure.torch_library import load_torch
from aot.measure.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.measure.feed import Portion
    from aot.measure.options import Options
    from aot.measure.store import Store
    from aot.measure.tuning_set import TuningSet

LIBRARY_FILE = "kernels.so"


def step_reporter(interval_s: float = 0.1) -> Callable[[int, int, str], None]:
    """Make a `report` that prints steps on stdout for the supervisor, at most one in an interval."""
    last = 0.0

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= interval_s or done == total:
            last = now
            # Unbuffered, and it fails when the supervisor is gone: no worker outlives it.
            os.write(1, f"{STEP}{done} {total} {what}\n".encode())

    return report


def warn(text: str) -> None:
    """Return the supervisor a line to show."""
    os.write(1, f"warning: {text}\n".encode())


def interrupt_flag() -> Callable[[], bool]:
    """Let Ctrl-C set a flag, so that no measurement or commit is cut in two; give what asks for the flag."""
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    return lambda: bool(seen)


class Runs(Protocol):
    """What measures in a process."""

    def run(self) -> None:
        """Measure to the end."""


def finish_worker(worker: Runs) -> int:
    """Run a worker to its end and give its process's exit code."""
    try:
        worker.run()
    except StoppedError:
        return EXIT_INTERRUPTED
    except ContextLostError as error:
        sys.stderr.write(f"\nquarantined {error}\n")
        return EXIT_CONTEXT_LOST
    except BrokenPipeError:
        return EXIT_INTERRUPTED
    return 0


def say_progress(tuning: TuningSet, store: Store) -> None:
    """Say how many of a tuning's problems a store has to the end."""
    done = len(store.finished().intersection(tuning.problems))
    rest = "" if done == len(tuning.problems) else "; run again with the same --out to carry on"
    os.write(1, f"{done} of {len(tuning.problems)} problems are measured{rest}\n".encode())


def work(options: Options) -> int:
    """Measure in this process, the only kind that touches the GPU."""
    end_with_parent()
    is_interrupted = interrupt_flag()
    stop = deadline_stop(options.budget_s, is_interrupted)
    tuning = options.tuning_set()
    properties = read_properties()
    check_arch(tuning.arch, properties.compute_capability, properties.name)
    gpu = CudaGpu(properties)
    kernels = KernelLibrary(options.bundle / LIBRARY_FILE)
    plan = plan_for(properties.l2_bytes, integrated=properties.integrated)
    if options.settle_s is not None:
        plan = replace(plan, settle_s=options.settle_s)
    state = read_state(properties.pci_bus_id)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    seed = secrets.randbits(62)
    with open_store(options.out) as store:
        run = store.add_run(tuning.target, seed, make_conditions(properties, state, tuning.arch, plan.protocol, date))
        session = Session(gpu, kernels, tuning, store, run, seed, plan, step_reporter(), stop, warn=warn)
        session.strategy, session.search_budget = options.strategy, options.search_budget
        session.num_sms = properties.num_sms
        session.library = load_torch(gpu.stream, warn) if options.has_reference else None
        if options.is_fed:
            clocks = RareClocks(lambda: read_state(properties.pci_bus_id))

            def finished(portion: Portion) -> None:
                now = clocks.read()
                if now is not None:
                    store.add_clocks(run, now.sm_clock_mhz, now.memory_clock_mhz)
                note_done(options.out, portion)

            session.portions, session.finished = partial(portions, options.out), finished
        code = finish_worker(Worker(session))
        if code != EXIT_CONTEXT_LOST:
            state = read_state(properties.pci_bus_id)
            store.add_clocks(run, state.sm_clock_mhz, state.memory_clock_mhz)
            say_progress(tuning, store)
    return 0 if code == EXIT_INTERRUPTED and not is_interrupted() else code


def check_arch(arch: str, capability: tuple[int, int], name: str) -> None:
    """Compare the architecture of a tuning's kernels with the device's.

    Raises:
        DeviceError: they differ.
    """
    there = f"sm_{capability[0]}{capability[1]}"
    if arch.rstrip("af") != there:
        raise DeviceError(f"the kernels are for {arch}, {name} is {there}; make a bundle for this target")
