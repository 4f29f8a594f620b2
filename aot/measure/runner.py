"""Run a bundle on a device, from its command line: `run.py`, and the worker process behind it.

Needs Python 3.10 and numpy, which a bundle may carry in site/, and a driver; nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.errors import AotError, DependencyError, OutputError
from aot.measure import background
from aot.measure.background import EXIT_INTERRUPTED
from aot.measure.options import Options
from aot.measure.preflight import read_machine, warnings
from aot.measure.supervisor import SILENCE_S, end_with_parent, supervise
from aot.search import strategy as search
from aot.search.strategy import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_START = (
    "import sys; here = sys.argv.pop(1); sys.path.insert(0, here); "
    "sys.path += [here + '/aot/outside', here + '/site']; "
    "from aot.measure.runner import main; sys.exit(main())"
)
"""Starts another process of this very package: `-m` would take an `aot` of the working directory first."""


def _command(options: Options, left_s: float | None, *more: str) -> list[str]:
    here = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", _START, str(here), *options.words(), *more]
    return command + ([] if left_s is None else ["--budget-seconds", f"{left_s:.3f}"])


def run_bundle(options: Options, *, lock: int | None = None) -> int:
    """Measure a bundle on this machine's GPU into `options.out`, resuming what is there.

    Args:
        options: what to measure, and how.
        lock: the lock of `options.out`, where this process holds it already.

    Returns:
        0 when all is measured or the budget is spent, EXIT_INTERRUPTED after Ctrl-C, else the error's exit code; the
        worker has printed what it was.

    Raises:
        DependencyError: numpy cannot be imported.
        StoreError: the bundle or the store cannot be read, or the patterns leave nothing.
        DeviceError: the worker died without a kernel to blame.
    """
    options.tuning_set()
    check_numpy()
    for text in warnings(read_machine(with_gpu=False)):
        sys.stderr.write(f"warning: {text}\n")
    return supervise(
        lambda left: _command(options, left, "--worker"),
        options.out,
        options.budget_s,
        silence_s=options.silence_s,
        lock=lock,
    )


def _share(text: str) -> float:
    """Read a share of all, 0.1 or 10%: a bare 10, the percentage that `aot tune` takes, would be no limit here."""
    value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"is {text}; expected a share above 0 and at most 1: 0.1 or 10% for a tenth")
    return value


def _seconds(text: str) -> float:
    """Read a number of seconds, which is not negative and has an end."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"is {text}; expected a number of seconds, 0 or more")
    return value


def _shard(text: str) -> tuple[int, int]:
    """Read which part of how many: 2/8 is the second of eight."""
    number, separator, count = text.partition("/")
    if not (separator and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"is {text!r}; expected I/N with I from 1 to N: 2/8 for the second of eight")
    return int(number), int(count)


def check_numpy() -> None:
    """Find out whether numpy can be imported, before a store is made.

    Raises:
        DependencyError: it cannot.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise DependencyError(
            f"{sys.executable} cannot import numpy: {error}; install it (pip install numpy), or unpack its wheel into "
            "site/ beside run.py"
        ) from error
    del np


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run.py", description="Measure the bundle's kernels on this machine's GPU.")
    parser.add_argument("bundle", type=Path, help="the bundle's directory")
    parser.add_argument("--out", type=Path, help="results file; a second run carries on in it")
    parser.add_argument("--problems", help="measure only problems whose name contains or matches this")
    parser.add_argument("--kernels", help="measure only kernels whose name contains or matches this")
    shard = "I/N: measure the I-th of N equal parts of the problems, one for each GPU, into a file of its own"
    parser.add_argument("--shard", type=_shard, help=shard)
    parser.add_argument("--budget-seconds", type=_seconds, help="end in good order before this long")
    parser.add_argument("--strategy", choices=search.NAMES, default=MODEL, help="how to search; exhaustive times all")
    budget = "share of a problem's kernels to time, such as 0.1 or 10%%"
    parser.add_argument("--search-budget", type=_share, default=1.0, help=budget)
    parser.add_argument(
        "--no-reference", action="store_true", help="do not time torch's own product beside the kernels"
    )
    parser.add_argument("--silence-seconds", type=_seconds, default=SILENCE_S, help="a kernel this long at work hangs")
    parser.add_argument("--settle-seconds", type=_seconds, help="wait this long for a throttled device to recover")
    parser.add_argument("--check", action="store_true", help="print what this machine is, as JSON, and measure nothing")
    parser.add_argument("--background", choices=background.ACTIONS, help="start, look at, stop or copy a detached run")
    parser.add_argument("--owned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--feed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--offset", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def _do(values: argparse.Namespace, options: Options) -> int:
    if values.worker:
        from aot.measure.worker_process import work

        return work(options)
    if values.owned:
        end_with_parent()
    if values.background == "serve":
        return background.serve(options.out, lambda lock: _report(lambda: run_bundle(options, lock=lock)))
    if values.background:
        command = _command(options, options.budget_s, "--background", "serve")
        background.answer(values.background, options.out, values.offset, command)
        return 0
    return run_bundle(options)


def _report(action: Callable[[], int]) -> int:
    """Do something and return its exit code; an error is printed and has its own."""
    try:
        return action()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"\nerror: {where}{error.strerror or error}; check the path, the disk and the permissions\n")
        return OutputError.exit_code
    except AotError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line: `run.py` of a bundle, and the processes that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = _parser()
    values = parser.parse_args(arguments)
    if values.check:
        sys.stdout.write(json.dumps(read_machine().as_json()) + "\n")
        return 0
    if values.out is None:
        parser.error("--out is needed: a results file, which a second run carries on in")
    options = Options(
        values.bundle,
        values.out,
        values.problems,
        values.kernels,
        values.budget_seconds,
        values.silence_seconds,
        values.settle_seconds,
        values.strategy,
        values.search_budget,
        not values.no_reference,
        values.shard,
        values.feed,
    )
    return _report(lambda: _do(values, options))


if __name__ == "__main__":
    sys.exit(main())
