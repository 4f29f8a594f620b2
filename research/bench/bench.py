"""Measure the installed wheel against torch, and the best of cuBLASLt, on this machine's GPU; write JSON and a table.

Needs the wheel, torch and nothing of the toolchain: python research/bench/bench.py --out h200.json

Times of products: medians over interleaved rounds of CUDA-graph replays; each graph holds launches that rotate over
sets of operands of three times the L2 in all, so that the L2 is cold. cuBLASLt is the one that torch ships, asked for
every kernel that it proposes (cublaslt.py); without it that column is left out. Host times: wall clock of calls with
`out=` that are only enqueued. wheel_us is the wheel by default, constant_us with weights promised constant. First
calls: in fresh processes, torch imported and the CUDA context made. What programmatic dependent launch has to do with
    it: overlap.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aot_gemm  # type: ignore[import-not-found]  # the wheel, which is not in .venv
import torch

if not __package__:  # run as a file, beside which this file itself would be found as `bench`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from research.bench import overlap
from research.bench.cublaslt import CublasLt, Screened
from research.bench.cublaslt_api import CublasLtError
from research.bench.host import clocks, first_call_ms, host_us
from research.bench.protocol import Call, Operands, capture, interleave, make_sets, relative_error, spread
from research.bench.summary import medians, summary

LADDER = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WEIGHTS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192))
UNTUNED = (
    (7, 14336, 5120),
    (12, 3584, 14336),
    (23, 19456, 2560),
    (40, 2560, 9728),
    (64, 13824, 5120),
    (90, 8192, 3584),
    (128, 5120, 14336),
    (180, 6144, 2560),
    (250, 2816, 2816),
    (333, 28672, 3584),
    (512, 5120, 4096),
    (640, 7168, 2048),
    (900, 2560, 9728),
    (1300, 8192, 3584),
    (2500, 5120, 4096),
    (6000, 2816, 2816),
)
"""Shapes that no tuning saw: (m, n, k) of other models, and m off the ladder."""

PEER = (
    "cublaslt_best_us: the best by median of the three fastest of all kernels that cuBLASLt's heuristic "
    "proposes (256 asked for, 40 screened at most, for a second at most), timed in the same rounds as wheel and torch; "
    "64 MiB of workspace, float32 accumulation, any reduction of a split k. cublaslt_speedup: it over wheel_us. "
    "cublaslt_best_rank: its place among the proposals, 0 for the heuristic's own choice."
)


def ours(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call the wheel as it is by default: no operand is read before the kernel in front has ended."""
    return aot_gemm.linear(x, weight, out=out)


def constant(sets: Sequence[Operands]) -> Call:
    """Promise the weights of some operands to be constant; return a call of the wheel with them."""
    promised = {id(weight): aot_gemm.constant(weight) for _, weight, _ in sets}

    def call(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
        return aot_gemm.linear(x, promised[id(weight)], out=out)

    return call


def theirs(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call torch."""
    return torch.matmul(x, weight.t(), out=out)


def mm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call torch's least general product."""
    return torch.mm(x, weight.t(), out=out)


def compare(m: int, n: int, k: int, dtype: torch.dtype, peer: CublasLt | None) -> dict[str, Any]:
    """Time all on one problem in interleaved rounds, and check that they agree."""
    sets = make_sets(m, n, k, dtype)
    x, weight, out = sets[0]
    expected = torch.matmul(x, weight.t())
    screened: Screened | None = None
    failure: str | None = None
    with contextlib.ExitStack() as stack:
        if peer is not None:
            try:
                screened = stack.enter_context(peer.screened(sets, expected))
            except CublasLtError as error:
                failure = str(error)
        proposals = {f"cublaslt_{rank}": call for rank, call in (screened.calls if screened else {}).items()}
        calls: dict[str, Call] = {"wheel": ours, "constant": constant(sets), "torch": theirs, **proposals}
        times = interleave({name: capture(call, sets) for name, call in calls.items()})
    ours(x, weight, out.fill_(float("nan")))
    name = str(dtype).removeprefix("torch.")
    medians = {name: statistics.median(values) for name, values in times.items()}
    row = {
        "m": m,
        "n": n,
        "k": k,
        "dtype": name,
        "kernel": aot_gemm.plan(m, n, k, name).kernel,
        "wheel_us": round(medians["wheel"], 3),
        "torch_us": round(medians["torch"], 3),
        "wheel_spread": round(spread(times["wheel"]), 4),
        "torch_spread": round(spread(times["torch"]), 4),
        "speedup": round(medians["torch"] / medians["wheel"], 4),
        "constant_us": round(medians["constant"], 3),
        "constant_speedup": round(medians["torch"] / medians["constant"], 4),
        "difference": round(relative_error(out, expected), 6),
    }
    if screened is not None:
        row |= best_proposal(screened, times)
    elif failure is not None:
        row |= {"cublaslt_best_us": None, "cublaslt_speedup": None, "cublaslt_error": failure}
    return row


def best_proposal(screened: Screened, times: dict[str, list[float]]) -> dict[str, Any]:
    """Give the peer's part of a row: the best by median of the proposals that took part in the rounds."""
    us, rank = min((statistics.median(times[f"cublaslt_{rank}"]), rank) for rank in screened.calls)
    return {
        "cublaslt_best_us": round(us, 3),
        "cublaslt_best_spread": round(spread(times[f"cublaslt_{rank}"]), 4),
        "cublaslt_speedup": round(us / statistics.median(times["wheel"]), 4),
        "cublaslt_best_rank": rank,
        "cublaslt_proposals": screened.num_proposals,
        "cublaslt_screened": screened.num_screened,
        "cublaslt_failed": screened.num_failed,
    }


def open_peer(report: Callable[[str], None]) -> CublasLt | None:
    """Open cuBLASLt; None where that fails, which is said."""
    try:
        peer = CublasLt()
    except CublasLtError as error:
        report(f"cuBLASLt: {error}; going on without its column")
        return None
    report(f"cuBLASLt {peer.version} of {peer.path}")
    return peer


def describe(wheel: Any, peer: CublasLt | None) -> dict[str, Any]:
    """Say what is measured, and measure what has no shapes: first calls and calls on the host."""
    folder = Path(aot_gemm.__file__).parent
    first = {name: first_call_ms(name) for name in ("wheel", "torch")}
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "wheel": wheel.version,
        "num_kernels": len(wheel.kernels),
        "library_bytes": sum(path.stat().st_size for path in folder.glob("*.so*")),
        "cublaslt": None if peer is None else {"version": peer.version, "description": PEER},
        "first_call_ms": {name: round(values[0], 2) for name, values in first.items()},
        "preload_ms": round(first["wheel"][1], 2),
        "host_us": host_us(
            {"wheel": lambda _: ours, "constant": constant, "torch_matmul": lambda _: theirs, "torch_mm": lambda _: mm},
            16,
            4096,
            4096,
        ),
    }


def run(result: dict[str, Any], dtypes: Sequence[str], peer: CublasLt | None, report: Callable[[str], None]) -> None:
    """Measure everything; put what is written as JSON into `result`, as it comes."""
    result |= {**describe(aot_gemm.info(), peer), "tuned": [], "untuned": []}
    for name in dtypes:
        problems = [("tuned", m, n, k) for n, k in WEIGHTS for m in LADDER]
        problems += [("untuned", *shape) for shape in UNTUNED]
        for kind, m, n, k in problems:
            row = compare(m, n, k, getattr(torch, name), peer)
            result[kind].append(row)
            best = f", cublaslt {row.get('cublaslt_error', row.get('cublaslt_best_us'))}" if peer else ""
            report(f"{name} {kind} m{m} n{n} k{k}: {row['wheel_us']} us, torch {row['torch_us']}{best}")
    result["overlap"] = overlap.measure(ours, constant, theirs, report)
    result["clocks_after"] = clocks()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float16"], help="default: both")
    parser.add_argument("--no-cublaslt", action="store_true", help="leave out the best of cuBLASLt's proposals")
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="JSON", help="measure nothing; print what is in these, their medians"
    )
    values = parser.parse_args()
    if (values.out is None) == (values.table is None):
        parser.error("got neither or both of --out and --table; expected one: a file to write, or files to print")
    if values.out is not None:
        values.out.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()

        def report(line: str) -> None:
            print(f"[{time.monotonic() - start:5.1f} s] {line}", file=sys.stderr, flush=True)

        result: dict[str, Any] = {}
        path = values.out.with_suffix(".partial.json")
        try:
            peer = None if values.no_cublaslt else open_peer(report)
            run(result, values.dtype or ["bfloat16", "float16"], peer, report)
            path = values.out
        finally:
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            report(f"wrote {path}")
    try:
        print(summary(medians([json.loads(path.read_text(encoding="utf-8")) for path in values.table or [values.out]])))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
