"""Random calls of the Python API: each gives the right product or a typed error, and writes `out` only.

    python -m tests.device.fuzz --calls 500000 --seed 1 --seconds 240 --processes 6

from the repository's root, with the wheel and torch installed, and CuPy if it is to take part. One call in eight has an
epilogue, factors or a gate, or quantises; what the wheel has no kernels for it refuses. A line about a call is
a command that makes it again. Exit code 1 if a call gave a wrong result, or an error that is not the package's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.device.fuzz_cases import draw

if TYPE_CHECKING:
    from tests.device.fuzz_calls import Tally

OPERATIONS_EVERY = 8
"""One of so many calls is of an operation beside the plain products."""
BATCH = 64
"""Calls between two waits for the GPU."""
STUCK_S = 90.0
"""A process that makes no call for so long is taken to hang."""
RESULT_S = 10.0
"""How long the result of a process that has ended may be on its way."""


def reproducer(seed: int, index: int) -> str:
    """Return the command that makes one call again."""
    return f"python -m tests.device.fuzz --seed {seed} --first {index} --calls 1"


def work(options: argparse.Namespace, part: int, deadline: float, current, results) -> None:
    """Make every call of one process; `current` shows the number of the one in hand."""
    import warnings

    import torch

    from tests.device.fuzz_calls import Judge
    from tests.device.fuzz_operations import draw_operation
    from tests.device.fuzz_tensors import Kit

    warnings.simplefilter("ignore")
    kit = Kit(options.seed)
    judge = Judge(kit, partial(reproducer, options.seed))
    index, size = options.first, 1 if options.each else BATCH
    try:
        for index in range(options.first + part, options.first + options.calls, options.processes):
            if time.time() > deadline:
                break
            current[part] = index
            if index % OPERATIONS_EVERY == OPERATIONS_EVERY - 1:
                judge.run_operation(index, draw_operation(options.seed, index))
            else:
                num_gpus = torch.cuda.device_count()
                judge.run(index, draw(options.seed, index, has_cupy=kit.cupy is not None, num_gpus=num_gpus))
            if judge.is_full(size):
                judge.flush(index)
        judge.flush(index)
    except RuntimeError as error:  # CUDA's, of some call of this batch; nothing works in this process any more
        again = reproducer(options.seed, judge.first).replace("--calls 1", f"--calls {index - judge.first + 1} --each")
        judge.tally.wrong.append(f"{again}  # the GPU failed: {error}")
    results.put((part, judge.tally))


def watch(processes, current, results, options: argparse.Namespace) -> Tally:
    """Gather what the processes found; report one that ended without a word, or makes no call any more."""
    from tests.device.fuzz_calls import Tally

    total, started = Tally(), time.monotonic()
    seen, since, reported = list(current), [started] * len(processes), started
    ended: set[int] = set()
    while len(ended) < len(processes):
        try:
            part, tally = results.get(timeout=1.0)
            total.add(tally)
            ended.add(part)
            continue
        except queue.Empty:
            now = time.monotonic()
        for part, process in enumerate(processes):
            if current[part] != seen[part]:
                seen[part], since[part] = current[part], now
            died = process.exitcode is not None and now - since[part] > RESULT_S
            hangs = process.exitcode is None and now - since[part] > STUCK_S
            if part not in ended and (died or hangs):
                ended.add(part)
                what = f"the process ended with {process.exitcode}" if died else f"no call for {STUCK_S:.0f} s"
                total.wrong.append(f"{reproducer(options.seed, current[part])}  # {what} at or before this call")
                process.kill()
        if now - reported >= 10:
            reported = now
            print(f"{now - started:.0f} s: at call {max(current)}", flush=True)
    return total


def report(total: Tally, seconds: float) -> None:
    """Print what came of the calls."""
    from tests.device.fuzz_calls import MAX_LINES

    print(f"{total.calls} calls in {seconds:.0f} s, {total.calls / seconds:.0f} a second")
    print(f"  products right: {total.right}")
    print(f"  typed errors: {sum(total.typed.values())}")
    for name, count in total.typed.most_common():
        print(f"    {name}: {count}")
    print(f"  refused, though torch takes them: {total.num_refused}, of {len(total.refused)} kinds")
    print(f"  out of memory: {total.out_of_memory}")
    print(f"  not made: {sum(total.unbuilt.values())}")
    lists = {"refused": [*total.refused.values()], "wrong": total.wrong, "untyped": total.untyped}
    for name, count in total.unbuilt.most_common(10):
        print(f"    {name}: {count}")
    print(f"  wrong: {len(total.wrong)}\n  untyped: {len(total.untyped)}")
    for name, lines in lists.items():
        for line in lines[:MAX_LINES]:
            print(f"{name}: {line}")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=240.0, help="stop after this time")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument(
        "--each", action="store_true", help="wait for the GPU after each call, to name the one at fault"
    )
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    current, results = context.Array("q", [options.first] * options.processes), context.Queue()
    started = time.monotonic()
    deadline = time.time() + options.seconds
    processes = [
        context.Process(target=work, args=(options, part, deadline, current, results), daemon=True)
        for part in range(options.processes)
    ]
    for process in processes:
        process.start()
    total = watch(processes, current, results, options)
    report(total, time.monotonic() - started)
    return 1 if total.wrong or total.untyped or not total.calls else 0


if __name__ == "__main__":
    sys.exit(main())
