"""Run every kernel of the installed wheel under compute-sanitizer, in several processes, and say what it found.

    python -m tests.device.sanitize --tool memcheck --processes 12 --budget-seconds 130 --out build/sanitize
    python -m tests.device.sanitize --tool racecheck --processes 12 --budget-seconds 130 --out build/sanitize
    python -m tests.device.sanitize --tool synccheck --processes 12 --budget-seconds 130 --out build/sanitize

from the repository's root, with the wheel and numpy installed. Results are compared with the reference too. What was
watched is kept in OUT/TOOL.jsonl by the digest of the kernel's code, and is not watched again: a run whose budget is
spent goes on where it ended, with the same file, also with another wheel. OUT/TOOL.json is the summary. Exit code 1
if there is a report or a wrong result, 2 if nothing was found and that proves nothing: not all cases were watched, the
tool did not see its control, or something was in trouble, as a report that is of no case.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aot.core.errors import CandidateError, DeviceError
from aot.space.enumeration import Patterns
from research.bench.dispatched import library_of
from tests.device.sanitize_cases import ShippedKernel, read_kernels
from tests.device.sanitize_pool import Pool, Shard
from tests.device.sanitize_summary import summarise, text_of

TOOLS = ("memcheck", "racecheck", "synccheck")

END_S = 5.0
"""Of the budget, what is left for processes to end and to print what they found."""


def command_of(tool: str, sanitizer: str) -> list[str]:
    """Return how a tool is started, up to the program that it watches.

    racecheck would otherwise take every core for each process; and the library's kernels alone are watched, by the
    beginning of their names.
    """
    options = ["--tool", tool, "--kernel-name", "kns=kernel_cutlass", "--print-limit", "1000000"]
    options += ["--show-backtrace", "no", "--launch-timeout", "100"]
    options += ["--racecheck-num-workers", "1"] if tool == "racecheck" else []
    return [sanitizer, *options]


def read_records(path: Path) -> list[dict]:
    """Return what earlier runs wrote; a line that a run broke off in is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def shards(kernels: list[ShippedKernel], count: int, plan: dict, folder: Path) -> list[Shard]:
    """Deal kernels to processes, like ones to different processes."""
    return [Shard(folder / f"plan_{part}.json", kernels[part::count], plan) for part in range(min(count, len(kernels)))]


def watch(values: argparse.Namespace, library: Path, kernels: list[ShippedKernel]) -> dict:
    """Watch what was not watched yet, and return the summary."""
    started = time.time()
    records_path = values.out / f"{values.tool}.jsonl"
    records = read_records(records_path)
    plan = {"library": str(library), "deadline": started + values.budget_seconds - END_S}
    start = command_of(values.tool, values.sanitizer)
    with tempfile.TemporaryDirectory() as folder, records_path.open("a", encoding="utf-8") as file:
        pool = Pool(start, records, file, values.tool)
        left = pool.left(kernels)
        control = pool.begin_control(Path(folder))
        pool.run(shards(left, values.processes, plan, Path(folder)))
        sees_fault = pool.end_control(control)
    return summarise(
        tool=values.tool,
        sees_fault=sees_fault,
        kernels=kernels,
        records=pool.records,
        troubles=pool.troubles,
        seconds=time.time() - started,
    )


def patterns(text: str) -> Patterns:
    """Read patterns on names, for argparse."""
    try:
        return Patterns.parse(text)
    except CandidateError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; end the program where it is wrong, or there is no sanitizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tool", choices=TOOLS, default="memcheck")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 4))
    parser.add_argument("--budget-seconds", type=float, default=130.0, help="stop in time for this (130)")
    parser.add_argument(
        "--kernels", type=patterns, default=Patterns(), help="patterns on kernels' names: '*_quack_*,-*_c2x1_*' (all)"
    )
    parser.add_argument("--package", default="aot_gemm", help="name of the wheel's package (aot_gemm)")
    parser.add_argument("--out", type=Path, default=Path("build/sanitize"), help="folder of the results, also earlier")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program (compute-sanitizer)")
    values = parser.parse_args(arguments)
    if not shutil.which(values.sanitizer):
        parser.error(
            f"there is no {values.sanitizer} here; install the CUDA toolkit's compute-sanitizer, or give its path"
        )
    if values.processes < 1 or values.budget_seconds <= END_S:
        parser.error(f"--processes is at least 1, and --budget-seconds more than {END_S:.0f}")
    values.out.mkdir(parents=True, exist_ok=True)
    return values


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    values = parse(arguments)
    try:
        library = library_of(values.package)
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 2
    kernels = [x for x in read_kernels(library.parent / "manifest.json") if values.kernels.keep(x.name)]
    summary = watch(values, library, kernels)
    (values.out / f"{values.tool}.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(text_of(summary))
    if summary["faults"] or summary["reports"]:
        return 1
    is_whole = summary["num_whole"] == summary["num_kernels"] > 0
    return 0 if is_whole and summary["sees_fault"] and not summary["troubles"] else 2


if __name__ == "__main__":
    sys.exit(main())
