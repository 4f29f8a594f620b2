"""Time the installed wheel beside torch.mm over a shape set, `atlas_heldout` unless another is given.

    PYTHONPATH=. python research/bench/atlas.py --out atlas.json
    PYTHONPATH=. python research/bench/atlas.py --table run1.json run2.json run3.json

Protocol of research/bench/protocol.py: medians over interleaved rounds of CUDA-graph replays, operands that rotate over
three times the L2. Products are timed back to back, and each behind an elementwise kernel that takes part in no
programmatic dependent launch, as in a model: torch's neg of 1,024 float32 (overlap.py), whose own time back to back, in
the same round, is taken off. Every result of the wheel is compared with torch's. Ends with 1 where one is
wrong or fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `atlas`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import torch

from aot.bench.products import drawn
from aot.core.errors import ShapeFileError
from aot.core.operation import Operation
from aot.core.shape_set import load_shape_set
from research.bench.atlas_summary import COLUMNS, figures, joined, speedups, summary
from research.bench.host import clocks
from research.bench.options import add_files, positive, print_table, write
from research.bench.overlap import NUM_ELEMENTS, behind, medians
from research.bench.protocol import TOLERANCE, Call, Captured, Operands, capture, interleave, num_sets, relative_error

ALIGNMENT = 256
"""Elements that operands start at multiples of, as those of torch's allocator do: 512 bytes."""
MAX_TRIES = 3
"""Times a problem is measured where one of its times is not positive, as one was on an H100, 2026-11-24. Supposed, not
measured: the host was late with the replay of the kernels in front alone."""
LAYOUTS = {"kk": Operation.BF16_KK, "kn": Operation.BF16_KN, "mk": Operation.BF16_MK, "mn": Operation.BF16_MN}
"""Layouts, and the operation whose problems of a shape set are measured."""
CHUNK = 2**26
"""Elements that are drawn at once, in float32."""


class UnsteadyError(Exception):
    """The kernels in front took longer alone than with a product behind them, as where the host is late."""


class Pool:
    """Memory for the operands of every problem of a run, allocated once: drawn inputs, and outputs.

    Capturing a graph empties torch's cache, so that fresh operands for each problem would take longer than their
    products. Outputs lie apart, since an output that were read as the next problem's input would grow with each.
    """

    def __init__(
        self, sizes: Sequence[tuple[int, int, int]], dtype: torch.dtype, device: str = "cuda", layout: str = "kk"
    ) -> None:
        """Allocate what the largest of some sizes, (n, k, m), needs.

        `layout` says what x and the weight are contiguous along.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        self.layout = layout
        self.l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
        needs = [self._elements(m, n, k) for n, k, m in sizes]
        self.inputs = torch.empty(max(x for x, _ in needs), dtype=dtype, device=device)
        self.outputs = torch.empty(max(x for _, x in needs), dtype=dtype, device=device)
        for chunk in self.inputs.split(CHUNK):
            chunk.copy_(torch.randn(len(chunk), device=device))

    def _elements(self, m: int, n: int, k: int) -> tuple[int, int]:
        count = num_sets(m, n, k, self.l2_bytes)
        x, weight, out = (-(-size // ALIGNMENT) * ALIGNMENT for size in (m * k, n * k, m * n))
        return count * (x + weight), count * out

    def sets(self, m: int, n: int, k: int) -> list[Operands]:
        """Return operands of a problem, (m, k), (n, k) and (m, n): as many sets as exceed the L2 three times over.

        What is not contiguous along k is a transposed view.
        """
        starts = [0, 0]

        def taken(which: int, rows: int, columns: int) -> torch.Tensor:
            start = starts[which]
            starts[which] = -(-(start + rows * columns) // ALIGNMENT) * ALIGNMENT
            return (self.inputs, self.outputs)[which][start : start + rows * columns].view(rows, columns)

        def operand(rows: int, major: str) -> torch.Tensor:
            return taken(0, rows, k) if major == "k" else taken(0, k, rows).t()

        count = num_sets(m, n, k, self.l2_bytes)
        of_x, of_weight = tuple(self.layout)
        return [(operand(m, of_x), operand(n, of_weight), taken(1, m, n)) for _ in range(count)]


def ours(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call the wheel."""
    return aot_gemm.linear(x, weight, out=out)


def theirs(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call torch."""
    return torch.mm(x, weight.t(), out=out)


def elementwise() -> tuple[torch.Tensor, Captured]:
    """Return the vector of the kernel in front, and a graph of that kernel alone."""
    vector = torch.ones(NUM_ELEMENTS, device="cuda")
    call: Call = lambda *_: torch.neg(vector, out=vector)  # noqa: E731
    return vector, capture(call, [(vector, vector, vector)])


def steady_medians(graphs: Mapping[str, Captured]) -> dict[str, float]:
    """Time graphs as `medians` says, again where a time is not positive.

    Raises:
        UnsteadyError: a time is not positive, MAX_TRIES times.
    """
    for _ in range(MAX_TRIES):
        us = medians(interleave(graphs))
        least = min(us, key=us.__getitem__)
        if us[least] > 0:
            return us
    raise UnsteadyError(f"the time of {least} is {us[least]:.3f} us in {MAX_TRIES} tries; run the bench again")


def compare(
    m: int, n: int, k: int, pool: Pool, columns: Sequence[str], front: tuple[torch.Tensor, Captured]
) -> dict[str, Any]:
    """Time wheel and torch on one problem in the same rounds, and compare their results.

    Args:
        m: rows of x.
        n: rows of the weight.
        k: columns of both.
        pool: where the operands are.
        columns: `plain`, `behind` or both; a column that is left out has the other's times.
        front: what `elementwise` returned.

    Raises:
        AotGemmError: the wheel refuses the problem, or fails.
        OutOfMemoryError: the operands do not fit.
        UnsteadyError: a time is not positive, MAX_TRIES times.
    """
    vector, alone = front
    sets = pool.sets(m, n, k)
    x, weight, out = sets[0]
    expected = torch.mm(x, weight.t())
    ours(x, weight, out.fill_(float("nan")))
    error = relative_error(out, expected)
    del expected
    calls: dict[str, Call] = {"wheel": ours, "torch": theirs}
    graphs = {name: capture(call, sets) for name, call in calls.items() if "plain" in columns}
    if "behind" in columns:
        graphs |= {f"{name}_behind": capture(behind(call, vector), sets) for name, call in calls.items()}
    us = steady_medians({**graphs, "elementwise": alone})
    name = str(x.dtype).removeprefix("torch.")
    kernel = aot_gemm.plan(m, n, k, name, pool.layout).kernel
    row = {"m": m, "n": n, "k": k, "kernel": kernel, "error": round(error, 6)}
    for each in calls:
        plain = us.get(each, us.get(f"{each}_behind"))
        row |= {f"{each}_us": round(plain, 3), f"{each}_behind_us": round(us.get(f"{each}_behind", plain), 3)}
    return row | speedups(row)


def run(
    result: dict[str, Any],
    sizes: Sequence[tuple[int, int, int]],
    columns: Sequence[str],
    max_seconds: float,
    report: Callable[[str], None],
) -> None:
    """Measure sizes (n, k, m) until the time is over; put rows and failures into `result`, as they come."""
    start = time.monotonic()
    pool, front = Pool(sizes, getattr(torch, result["dtype"]), layout=result["layout"]), elementwise()
    report(f"operands: {(pool.inputs.nbytes + pool.outputs.nbytes) / 2**30:.1f} GiB")
    for i, (n, k, m) in enumerate(sizes):
        if time.monotonic() - start > max_seconds:
            report(f"{max_seconds:g} s are over: {len(sizes) - i} problems are left out")
            break
        try:
            row = compare(m, n, k, pool, columns, front)
        except (aot_gemm.AotGemmError, torch.OutOfMemoryError, UnsteadyError) as error:
            reason = f"{type(error).__name__}: {error}"
            result["failures"].append({"m": m, "n": n, "k": k, "reason": reason})
            torch.cuda.empty_cache()
            continue
        result["rows"].append(row)
        if not row["error"] <= TOLERANCE:  # NaN is not
            reason = f"{row['kernel']}: relative error {row['error']}; expected at most {TOLERANCE}"
            result["failures"].append({"m": m, "n": n, "k": k, "reason": reason})
        if i % 50 == 49:
            report(f"{i + 1} of {len(sizes)}")
    result["seconds"] = round(time.monotonic() - start, 1)
    result["clocks_after"] = clocks()


def describe(values: argparse.Namespace, sizes: Sequence[object]) -> dict[str, Any]:
    """Say what is measured."""
    return {
        "description": __doc__,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "wheel": aot_gemm.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "shapes": values.shapes,
        "dtype": values.dtype,
        "layout": values.layout,
        "seed": values.seed,
        "num_problems": len(sizes),
        "rows": [],
        "failures": [],
    }


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="atlas_heldout", help="a shipped shape set or a file (atlas_heldout)")
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16", help="element type (bfloat16)")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="kk",
        help="what x and the weight are contiguous along: kk is torch's linear, kn matmul of row-major operands (kk)",
    )
    parser.add_argument("--columns", choices=["plain", "behind"], nargs="+", default=["plain", "behind"], help="both")
    parser.add_argument("--limit", type=positive, help="measure so many problems at most, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which problems are measured")
    parser.add_argument("--max-seconds", type=float, default=300, help="start no problem after this time (300)")
    add_files(parser)
    return parser, parser.parse_args()


def main() -> int:
    """Run from the command line; 1 if a result was wrong or failed."""
    parser, values = arguments()
    if values.table:
        print_table(parser, values.table, joined, summary)
        return 0
    try:
        problems = load_shape_set(values.shapes).problems(LAYOUTS[values.layout])
    except ShapeFileError as error:
        parser.error(str(error))
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; run this where there is one, or give --table")
    start = time.monotonic()
    sizes = [(x.n, x.k, x.m) for x in problems]
    result = describe(values, sizes)
    torch.manual_seed(values.seed)
    try:
        run(
            result,
            drawn(sizes, values.limit, values.seed),
            values.columns,
            values.max_seconds,
            lambda line: print(f"[{time.monotonic() - start:5.1f} s] {line}", file=sys.stderr, flush=True),
        )
    finally:
        rows = result["rows"]
        result["figures"] = {x: figures([row[x] for row in rows]) for x in COLUMNS} if rows else {}
        write(values.out, result)
    print(summary(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
