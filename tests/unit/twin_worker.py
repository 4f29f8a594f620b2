"""A worker process over the twins, for tests of the supervisor: twin_worker.py STORE KERNELS FAULTS_JSON [BUDGET]."""

import json
import os
import secrets
import sys
from pathlib import Path

from aot.kinds.gemm import edge_shapes
from aot.measure.protocol import TimingPlan
from aot.measure.session import Session, deadline_stop
from aot.measure.store import open_store
from aot.measure.supervisor import end_with_parent
from aot.measure.tuning_set import TuningSet
from aot.measure.worker import Worker
from aot.measure.worker_process import finish_worker, interrupt_flag, step_reporter
from tests.unit.twins import CONDITIONS, TwinGpu, TwinKernels, kernel_of, problem_of

KERNELS = tuple(kernel_of(16 * (i + 1)) for i in range(4))
PROBLEMS = (problem_of(1000, 16, 16), problem_of(1200, 16, 24))


def main():
    path, faults = Path(sys.argv[1]), json.loads(sys.argv[2])
    end_with_parent()
    stop = deadline_stop(float(sys.argv[3]) if len(sys.argv) > 3 else None, interrupt_flag())
    edge_shapes.ALIGNED_SHAPES = edge_shapes.ALIGNED_SHAPES[:2]
    gpu = TwinGpu()
    kernels = TwinKernels(gpu, list(KERNELS), faults={name: tuple(fault) for name, fault in faults.items()})
    os.write(1, b"a kernel printed this\n")
    with open_store(path) as store:
        run = store.add_run("h200", secrets.randbits(62), CONDITIONS)
        tuning = TuningSet("h200", "sm_90a", KERNELS, PROBLEMS)
        session = Session(
            gpu,
            kernels,
            tuning,
            store,
            run,
            1,
            TimingPlan(max_launches=4, reference_rounds=0),
            step_reporter(0.0),
            stop,
            1 << 14,
        )
        return finish_worker(Worker(session))


if __name__ == "__main__":
    sys.exit(main())
