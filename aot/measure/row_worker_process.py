"""The process that measures a bundle of row operations: it touches the GPU and is expendable, as `work` of products."""

from __future__ import annotations

import os
import secrets
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aot.measure.conditions import make_conditions, read_state
from aot.measure.device import CudaGpu, read_properties
from aot.measure.protocol import plan_for
from aot.measure.row_library import RowLibrary
from aot.measure.row_results import ROW_RESULTS_VERSION, RowRun, open_row_results
from aot.measure.row_tuning_set import read_row_tuning_set
from aot.measure.row_worker import RowSession, RowWorker, protocol_of
from aot.measure.session import deadline_stop
from aot.measure.supervisor import EXIT_CONTEXT_LOST, EXIT_INTERRUPTED
from aot.measure.worker_process import (
    LIBRARY_FILE,
    check_arch,
    end_with_parent,
    finish_worker,
    interrupt_flag,
    step_reporter,
    warn,
)

if TYPE_CHECKING:
    from aot.measure.options import Options


def work_rows(options: Options) -> int:
    """Measure row kernels in this process; give its exit code."""
    end_with_parent()
    is_interrupted = interrupt_flag()
    stop = deadline_stop(options.budget_s, is_interrupted)
    tuning = read_row_tuning_set(options.bundle).filtered(options.kernels, options.problems)
    properties = read_properties()
    check_arch(tuning.arch, properties.compute_capability, properties.name)
    gpu = CudaGpu(properties)
    plan = plan_for(properties.l2_bytes, integrated=properties.integrated)
    if options.settle_s is not None:
        plan = replace(plan, settle_s=options.settle_s)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    state = read_state(properties.pci_bus_id)
    conditions = make_conditions(properties, state, tuning.arch, protocol_of(plan), date)
    with open_row_results(options.out) as results:
        results.add(RowRun(ROW_RESULTS_VERSION, tuning.target, conditions))
        rng = np.random.default_rng(secrets.randbits(62))
        library = RowLibrary(options.bundle / LIBRARY_FILE)
        session = RowSession(gpu, library, tuning, results, rng, plan, step_reporter(), stop, warn)
        code = finish_worker(RowWorker(session))
        if code != EXIT_CONTEXT_LOST:
            total = sum(len(size.kernels) for size in tuning.sizes)
            os.write(1, f"{len(results.times)} of {total} times are measured\n".encode())
            for kernel, reason in results.quarantined.items():
                sys.stderr.write(f"quarantined {kernel.split()[0]}: {reason}\n")
    return 0 if code == EXIT_INTERRUPTED and not is_interrupted() else code
