"""Prove the installed wheel's operations right and time them beside torch's calls, on this machine's GPU.

    PYTHONPATH=. python research/bench/operands.py --out operands.json
    PYTHONPATH=. python research/bench/operands.py --operations none --shapes operands_heldout --times e4m3_bf16_kk

from the repository's root, with the wheel, numpy and torch. Of each operation that the wheel has, 300 random problems
are held against float64: sizes, strides and addresses of all kinds, scales by row or one for all, biases there or not,
both arrangements of gates, one in ten with NaNs, infinities, subnormal and largest numbers. Operands lie between
guards; what is written beside D, or left unwritten, is found. The bounds are those of `aot tune`
(aot/core/reference.py). Then some operations are timed by the protocol of research/bench/protocol.py: medians over
interleaved rounds of CUDA-graph replays, operands that rotate over three times the L2. Ends with 1 where a result is
wrong or a call fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `operands`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from aot.core.errors import DeviceError, VerificationError
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.shape_set import load_shape_set
from aot.measure.dispatched import DispatchedLibrary, RefusedError
from aot.measure.gpu import Gpu
from aot.measure.verify import Verifier
from research.bench.dispatched import library_of
from research.bench.operand_cases import SIZES, TIMED, is_right, random_case, summary
from research.bench.options import positive, write

ALL = tuple(Operation)
"""What is checked here, as far as the wheel has it."""
DENSE = tuple(x for x in ALL if x.grouping is Grouping.DENSE and not x.has_parts)
"""What can be timed here: one product a call, of one weight."""
MAX_FAULTS = 5
"""Faults of an operation that are told in full."""
CHECK_SHARE = 0.6
"""Share of the time that checking may take; timing has the rest."""

NO_TORCH = "none, so that nothing is timed"

Report = Callable[[str], None]


def check(
    gpu: Gpu, library: DispatchedLibrary, operation: Operation, num_problems: int, seed: int, end: float
) -> dict[str, Any]:
    """Run random problems of an operation, and hold their results against float64.

    Args:
        gpu: the device.
        library: the wheel.
        operation: what is computed.
        num_problems: how many, unless the time is over before.
        seed: of all that is drawn.
        end: when the time is over, by time.monotonic.

    Raises:
        DeviceError: the GPU's context is lost, so that nothing more can be run.
    """
    rng = np.random.default_rng((seed, operation.position))
    verifier = Verifier(gpu, library, rng)
    found: dict[str, Any] = {"operation": operation.tag, "num_problems": 0, "num_right": 0, "num_refused": 0}
    found |= {"relative_error": 0.0, "faults": []}
    for number in range(num_problems):
        if time.monotonic() > end:
            break
        shape = random_case(operation, number, rng)
        found["num_problems"] += 1
        try:
            relative = verifier.run_once(shape)
        except RefusedError as error:
            found["num_refused"] += 1
            found.setdefault("refused", f"{shape}: {error}")
        except (VerificationError, DeviceError) as error:
            found["faults"] = [*found["faults"], f"{shape}: {error}"][:MAX_FAULTS]
            if gpu.is_lost():
                raise DeviceError(f"{operation.tag}: the context is lost after {shape}: {error}") from error
        else:
            found["num_right"] += 1
            found["relative_error"] = max(found["relative_error"], relative)
    verifier.close()
    return found


@contextmanager
def _noted(result: dict[str, Any], problem: Problem) -> Iterator[None]:
    """Turn what fails of a problem into a line of the result."""
    try:
        yield
    except (DeviceError, RuntimeError) as error:  # torch has no other type for what it refuses
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        row = {"operation": problem.operation.tag, "m": problem.m, "n": problem.n, "k": problem.k}
        result["failures"].append(row | {"reason": reason})


def time_problem(library: DispatchedLibrary, problem: Problem, *, compiles: bool) -> dict[str, Any]:
    """Time the wheel and torch's calls on a problem in the same rounds; a baseline that torch refuses is named.

    Raises:
        DeviceError: the wheel refuses the problem or fails.
        RuntimeError: torch fails otherwise.
    """
    import torch

    from research.bench.operand_calls import Tensors, baselines, make_sets
    from research.bench.protocol import capture, interleave

    sets = make_sets(problem, torch.cuda.get_device_properties(0).L2_cache_size)
    bound = {id(x): library.bind(x.call()) for x in sets}
    first = bound[id(sets[0])]
    num_bytes = library.workspace_bytes(0, first)
    workspace = torch.empty(max(num_bytes, 1), dtype=torch.uint8, device="cuda")

    def wheel(x: Tensors) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        library.launch(0, bound[id(x)], workspace.data_ptr(), num_bytes, stream)

    graphs, refused = {"wheel": capture(wheel, [(x,) for x in sets])}, {}
    for name, call in baselines(problem, compiles=compiles).items():
        try:
            call(sets[0])
        except RuntimeError as error:
            refused[name] = str(error).splitlines()[0]
            continue
        graphs[name] = capture(call, [(x,) for x in sets])
    us = {name: round(float(np.median(times)), 3) for name, times in interleave(graphs).items()}
    row = {"operation": problem.operation.tag, "m": problem.m, "n": problem.n, "k": problem.k}
    return row | {"kernel": library.chosen(first), "us": us} | ({"refused": refused} if refused else {})


def to_time(timed: Sequence[Operation], values: argparse.Namespace) -> list[Problem]:
    """List the problems to time; those of a shape set are shuffled, so that what is cut off at the end is any of them.

    Raises:
        ShapeFileError: there is no such shape set.
    """
    if values.shapes is None:
        return [Problem(operation, *size) for size in SIZES for operation in timed]
    shapes = load_shape_set(values.shapes)
    problems = [x for operation in timed for x in shapes.problems(operation)]
    return [problems[i] for i in np.random.default_rng(values.seed).permutation(len(problems))]


def run(
    result: dict[str, Any],
    library: DispatchedLibrary,
    gpu: Gpu,
    values: argparse.Namespace,
    report: Report,
) -> None:
    """Check, then time, until the time is over; put what is found into `result` as it comes.

    Raises:
        DeviceError: the GPU's context is lost.
    """
    start = time.monotonic()
    there = [x for x in values.operations if library.has(x)]
    result["missing"] = [x.tag for x in values.operations if x not in there]
    for i, operation in enumerate(there):
        end = start + CHECK_SHARE * values.max_seconds * (i + 1) / len(there)
        result["checks"].append(check(gpu, library, operation, values.problems, values.seed, end))
        report(f"checked {operation.tag}")
    timed = [x for x in values.times if x in DENSE and library.has(x)]
    problems = to_time(timed, values)
    for number, problem in enumerate(problems):
        if time.monotonic() - start > values.max_seconds:
            report(f"{values.max_seconds:g} s are over")
            return
        with _noted(result, problem):
            result["rows"].append(time_problem(library, problem, compiles=values.compile))
        report(f"timed {number + 1} of {len(problems)}: {problem.name}")


def torch_version() -> str:
    """Return torch's version; NO_TORCH where it cannot be imported."""
    try:
        import torch
    except ImportError:
        return NO_TORCH
    return str(torch.__version__)


def operations(text: str) -> list[Operation]:
    """Read tags of operations, or parts of them, between commas, `all` or `none`; raise ValueError for others."""
    if text in ("all", "none"):
        return list(ALL) if text == "all" else []
    found = {part: [x for x in ALL if part == x.tag or part in x.tag] for part in text.split(",")}
    unknown = [part for part, matches in found.items() if not part or not matches]
    if unknown:
        raise ValueError(text)
    return list(dict.fromkeys(x for matches in found.values() for x in matches))


def arguments(given: Sequence[str] | None = None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--package", default="aot_gemm", help="name of the wheel's package (aot_gemm)")
    parser.add_argument("--operations", type=operations, default=list(ALL), help="to check: tags or parts (all)")
    parser.add_argument("--times", type=operations, default=list(TIMED), help="to time: tags or parts, all, none")
    parser.add_argument("--shapes", help="what is timed: a shipped shape set or a file; by default 11 sizes")
    parser.add_argument("--problems", type=positive, default=300, help="random problems of each operation (300)")
    parser.add_argument(
        "--compile", action="store_true", help="time torch.compile of the eager calls too: seconds each"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random problems")
    parser.add_argument("--max-seconds", type=float, default=140, help="start nothing after this time (140)")
    return parser, parser.parse_args(given)


def main() -> int:
    """Run from the command line; 1 if a result was wrong or failed."""
    parser, values = arguments()
    from aot.measure.device import CudaGpu, read_properties

    start = time.monotonic()
    result: dict[str, Any] = {"description": __doc__, "seed": values.seed, "checks": [], "rows": [], "failures": []}
    result |= {"torch": NO_TORCH, "missing": [], "date": time.strftime("%Y-%m-%d", time.gmtime())}
    try:
        properties = read_properties()
        library = DispatchedLibrary(library_of(values.package))
        result |= {"device": properties.name, "wheel": getattr(sys.modules[values.package], "__version__", "unknown")}
        result["torch"] = torch_version()
        values.times = values.times if result["torch"] != NO_TORCH else []
        run(
            result,
            library,
            CudaGpu(properties),
            values,
            lambda line: print(f"[{time.monotonic() - start:5.1f} s] {line}", file=sys.stderr, flush=True),
        )
    except DeviceError as error:
        if not result["checks"]:
            parser.error(str(error))
        result["failures"].append({"operation": "all", "m": 0, "n": 0, "k": 0, "reason": str(error)})
    finally:
        result["seconds"] = round(time.monotonic() - start, 1)
        write(values.out, result)
    print(summary(result))
    return 0 if is_right(result) else 1


if __name__ == "__main__":
    sys.exit(main())
