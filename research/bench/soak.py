"""Launch every 16-bit kernel of the installed wheel millions of times, and notice a hang or a result that is wrong.

    PYTHONPATH=. python research/bench/soak.py --launches 10000000 --seconds 480

from the repository's root, on the GPU that the wheel is for, with torch and the wheel installed. First each kernel runs
alone at each shape that it takes, with and without the promise that B is constant. Then CUDA graphs of one such launch
over and over, or of six mixed, are replayed back to back, some with other work on a second stream: torch's products,
copies, or another such graph. Results are checked at the end of each graph.

Exit code 0 if all launches ran and were right, 1 if a result was wrong, 2 if time ran out before all launches were
made, 3 if nothing ended for 20 s: a kernel hangs, and the GPU may have to be reset.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import aot_gemm
import torch
from aot_gemm import _library

from aot.core.reference import is_16_bit_product
from aot.measure.call_structs import B_CONSTANT, CURRENT_DEVICE, ProblemStruct, TensorStruct
from aot.measure.kernel_library import operation_of
from tests.device.reference import error_bound

SHAPES = (
    # One row, one column, k of less than one stage.
    *((1, 3584, 18944), (1, 18944, 3584), (1, 4096, 4096), (1, 256, 64), (1, 264, 8), (8, 1, 1024), (5, 3, 264)),
    # Odd, with partial tiles, or tiles of a cluster that lie outside.
    *((3, 1037, 777), (7, 13, 1001), (17, 129, 4097), (33, 65, 24), (40, 264, 392), (65, 264, 392), (129, 1032, 648)),
    *((304, 1032, 648), (8, 2056, 520), (200, 72, 1000)),
    # k of few stages, k of many.
    *((64, 512, 16), (128, 4096, 64), (256, 256, 128), (16, 3584, 18944), (64, 3584, 18944), (16, 128, 65536)),
    # Many waves of tiles.
    *((2048, 4096, 256), (4096, 8192, 64), (8192, 512, 512), (300, 28672, 128), (256, 4096, 4096)),
)
"""(m, n, k). Leading strides are padded to 16 bytes, as the fast kernels need them."""
NOT_TAKEN = {3, 4}
"""AOT_GEMM_ERROR_SHAPE and AOT_GEMM_ERROR_STRIDE: a kernel does not take a shape."""

GRAPH_US = 1500.0
"""How long one graph is to run."""
MAX_IN_GRAPH, MIXED = 256, 6
"""Launches of one kind in a graph, at the most, and how many kinds a mixed one has."""
REPLAY_MS = 12.0
"""How long each graph is replayed."""
HANG_S, REPORT_S = 20.0, 10.0
LOADS = ("", "", "matmul", "copy", "products")
"""What the second stream does, by how often it is drawn."""


@dataclass
class Entry:
    """A kernel at a shape, with or without the promise, and how it did."""

    kernel: int
    name: str
    shape: tuple[int, int, int]
    flags: int
    workspace_bytes: int = 0
    us: float = 0.0
    launches: int = 0
    wrong: int = 0

    def __str__(self) -> str:
        """Name all that a launch needs to be repeated."""
        return "{} m{} n{} k{} flags {}".format(self.name, *self.shape, self.flags)

    @property
    def group(self) -> tuple[str, str]:
        """Family and cluster, as the kernel's name has them."""
        found = re.fullmatch(r"[^_]+_[^_]+_(?:bias_)?(.+?)_\d+x\d+_c(\d+x\d+).*", self.name)
        return (found[1], found[2]) if found else (self.name, "")

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the kernel's operands."""
        return getattr(torch, operation_of(self.name).element.value)


class Watchdog:
    """Ends the process where nothing ends any more.

    Args:
        report: prints what is known by then.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._what = ""
        self._since = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def expect(self, what: str) -> None:
        """Note that all before has ended, and what is run now."""
        self._what, self._since = what, time.monotonic()

    def _watch(self) -> None:
        while True:
            time.sleep(1.0)
            if time.monotonic() - self._since > HANG_S:
                self._report()
                print(f"HANG: nothing ended for {HANG_S:.0f} s; running: {self._what}", flush=True)
                os._exit(3)


class Kernels:
    """The C API of the wheel's library, and operands for its kernels."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(_library.library()._name)  # noqa: SLF001 - the file that the package has loaded
        self._c.aot_gemm_kernel_name.restype = ctypes.c_char_p
        self._c.aot_gemm_last_error.restype = ctypes.c_char_p
        which = (ctypes.c_int32, ctypes.POINTER(ProblemStruct))
        self._c.aot_gemm_launch_kernel.argtypes = (*which, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._c.aot_gemm_kernel_workspace_bytes.argtypes = (*which, ctypes.POINTER(ctypes.c_size_t))
        indices = range(self._c.aot_gemm_num_kernels())
        self.names = [self._c.aot_gemm_kernel_name(i).decode() for i in indices]
        self._matrices: dict[tuple[str, tuple[int, int], torch.dtype], torch.Tensor] = {}
        self._held: dict[tuple[str, tuple[int, int], torch.dtype, bool], torch.Tensor] = {}
        self._expected: dict[tuple[tuple[int, int, int], torch.dtype, bool], torch.Tensor] = {}

    def _matrix(self, name: str, rows: int, k: int, dtype: torch.dtype) -> torch.Tensor:
        key = (name, (rows, k), dtype)
        if key not in self._matrices:
            self._matrices[key] = torch.randn(rows, k, device="cuda").to(dtype)
        return self._matrices[key]

    def operand(self, name: str, entry: Entry) -> torch.Tensor:
        """Return A or B of an entry, held as its kernel wants it, rows padded."""
        m, n, k = entry.shape
        rows = m if name == "a" else n
        is_k_major = getattr(operation_of(entry.name), name).is_k_major
        key = (name, (rows, k), entry.dtype, is_k_major)
        if key not in self._held:
            matrix = self._matrix(name, rows, k, entry.dtype)
            self._held[key] = padded(matrix) if is_k_major else padded(matrix.t()).t()
        return self._held[key]

    def expected(self, entry: Entry) -> torch.Tensor:
        """Return the product in float32, with the bias where the kernel adds one."""
        m, n, k = entry.shape
        has_bias = operation_of(entry.name).has_bias
        key = entry.shape, entry.dtype, has_bias
        if key not in self._expected:
            a, b = (self._matrix(name, rows, k, entry.dtype).float() for name, rows in (("a", m), ("b", n)))
            self._expected[key] = a @ b.t() + (self._matrix("bias", 1, n, entry.dtype).float() if has_bias else 0)
        return self._expected[key]

    def state(self, entry: Entry, out: torch.Tensor) -> ProblemStruct:
        """State an entry's problem for the C API."""
        operation = operation_of(entry.name)
        tensors = (self.operand("a", entry), self.operand("b", entry), out)
        matrices = [TensorStruct(x.data_ptr(), tuple(x.stride())) for x in tensors]
        size = ctypes.sizeof(ProblemStruct)
        number = _library.libraries()[0].operation(operation.call)
        problem = ProblemStruct(size, number, CURRENT_DEVICE, *entry.shape, *matrices, entry.flags)
        if operation.has_bias:
            bias = self._matrix("bias", 1, entry.shape[1], entry.dtype)
            problem.bias = TensorStruct(bias.data_ptr(), tuple(bias.stride()))
        return problem

    def workspace_bytes(self, entry: Entry, problem: ProblemStruct) -> int | None:
        """Return the workspace that a kernel needs; None if it does not take the shape."""
        size = ctypes.c_size_t()
        status = self._c.aot_gemm_kernel_workspace_bytes(entry.kernel, problem, ctypes.byref(size))
        if status in NOT_TAKEN:
            return None
        self._check(status, entry)
        return size.value

    def launch(self, entry: Entry, problem: ProblemStruct, workspace: torch.Tensor) -> None:
        """Put an entry on the current stream."""
        stream, num_bytes = torch.cuda.current_stream().cuda_stream, entry.workspace_bytes
        address = workspace.data_ptr() if num_bytes else None
        self._check(self._c.aot_gemm_launch_kernel(entry.kernel, problem, address, num_bytes, stream), entry)

    def _check(self, status: int, entry: Entry) -> None:
        if status:
            raise RuntimeError(f"{entry}: status {status}: {self._c.aot_gemm_last_error().decode()}")


def padded(matrix: torch.Tensor) -> torch.Tensor:
    """Copy a matrix to rows that begin at multiples of 16 bytes."""
    rows, columns = matrix.shape
    wide = torch.zeros(rows, -(-columns // 8) * 8, dtype=matrix.dtype, device=matrix.device)
    wide[:, :columns] = matrix
    return wide[:, :columns]


def fresh_out(entry: Entry) -> torch.Tensor:
    """Return a D for an entry, of NaN."""
    m, n, _ = entry.shape
    return padded(torch.full((m, n), float("nan"), dtype=entry.dtype, device="cuda"))


def is_right(kernels: Kernels, entry: Entry, out: torch.Tensor) -> torch.Tensor:
    """Say, on the GPU, whether every element of a result is within the bound."""
    expected = kernels.expected(entry)
    return ((out.float() - expected).abs() <= error_bound(expected, entry.shape[2], entry.dtype)).all()


def workspace_for(entries: Sequence[Entry]) -> torch.Tensor:
    """Allocate one workspace that serves launches one after the other."""
    return torch.empty(max(1, *(entry.workspace_bytes for entry in entries)), dtype=torch.uint8, device="cuda")


class Graph:
    """A captured graph of launches, each as many as fill its share of GRAPH_US, shuffled, and their results."""

    def __init__(self, kernels: Kernels, entries: Sequence[Entry]) -> None:
        self._kernels = kernels
        self._results = [(entry, fresh_out(entry)) for entry in entries]
        problems = [(entry, kernels.state(entry, out)) for entry, out in self._results]
        share_us = GRAPH_US / len(entries)
        self._counts = [max(2, min(MAX_IN_GRAPH, round(share_us / entry.us))) for entry in entries]
        sequence = [pair for pair, count in zip(problems, self._counts, strict=True) for _ in range(count)]
        random.shuffle(sequence)
        self._workspace = workspace_for(entries)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            self._graph.capture_begin()
            for entry, problem in sequence:
                kernels.launch(entry, problem, self._workspace)
            self._graph.capture_end()

    def __str__(self) -> str:
        """Name the launches."""
        return "; ".join(f"{count} of {entry}" for (entry, _), count in zip(self._results, self._counts, strict=True))

    def replay(self) -> None:
        """Enqueue all launches, and count them."""
        for (entry, _), count in zip(self._results, self._counts, strict=True):
            entry.launches += count
        self._graph.replay()

    def check(self) -> list[str]:
        """Compare the results of the last replay; name the entries whose are wrong."""
        flags = torch.stack([is_right(self._kernels, entry, out) for entry, out in self._results]).tolist()
        wrong = [entry for (entry, _), flag in zip(self._results, flags, strict=True) if not flag]
        for entry in wrong:
            entry.wrong += 1
        return [str(entry) for entry in wrong]


class Load:
    """Work on a second stream, about as long as one replay."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._factors = [torch.randn(2048, 2048, device="cuda").to(torch.bfloat16) for _ in range(3)]
        self._memory = [torch.empty(1 << 26, dtype=torch.uint8, device="cuda") for _ in range(2)]

    def enqueue(self, kind: str, products: Graph | None) -> None:
        """Enqueue one share of it."""
        with torch.cuda.stream(self._stream):
            if kind == "matmul":
                for _ in range(20):
                    torch.mm(self._factors[0], self._factors[1], out=self._factors[2])
            elif kind == "copy":
                for _ in range(20):
                    self._memory[0].copy_(self._memory[1])
            elif products is not None:
                products.replay()


def time_ms(call: Callable[[], object]) -> float:
    """Time what a call enqueues, in milliseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def run_alone(kernels: Kernels, entry: Entry) -> bool:
    """Run an entry by itself, and time it; False if its kernel does not take the shape."""
    out = fresh_out(entry)
    problem = kernels.state(entry, out)
    num_bytes = kernels.workspace_bytes(entry, problem)
    if num_bytes is None:
        return False
    entry.workspace_bytes = num_bytes
    workspace = workspace_for([entry])
    torch.cuda.synchronize()  # B is promised to be complete
    kernels.launch(entry, problem, workspace)
    entry.us = max(2.0, 1000 * time_ms(lambda: kernels.launch(entry, problem, workspace)))
    entry.launches += 2
    entry.wrong += not is_right(kernels, entry, out).item()
    return True


def hands(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Deal all entries, shuffled: alone or mixed."""
    rest = random.sample(entries, len(entries))
    while rest:
        count = random.choice((1, 1, MIXED))  # noqa: S311 - a draw, no secret
        yield rest[:count]
        del rest[:count]


def run_hand(
    kernels: Kernels, hand: list[Entry], others: list[Entry], kind: str, load: Load, watchdog: Watchdog
) -> None:
    """Replay a graph of a hand for REPLAY_MS beside work of some kind on a second stream."""
    graph = Graph(kernels, hand)
    beside = Graph(kernels, others) if kind == "products" else None
    watchdog.expect(f"{graph}; beside: {beside or kind or 'nothing'}")
    ms = time_ms(graph.replay)
    for _ in range(max(1, round(REPLAY_MS / ms))):
        if kind:
            load.enqueue(kind, beside)
        graph.replay()
    torch.cuda.synchronize()
    watchdog.expect("the check of results")
    for each in (graph, beside) if beside else (graph,):
        for text in each.check():
            print(f"WRONG: {text}; beside: {beside or kind or 'nothing'}", flush=True)


def table(entries: Sequence[Entry], num_hangs: int = 0) -> str:
    """Write a line for each family and cluster, and one for all."""
    groups = defaultdict(list)
    for entry in entries:
        groups[entry.group].append(entry)
    lines = [f"{'family':16} {'cluster':8} {'kernels':>8} {'problems':>9} {'launches':>12} {'wrong':>6}"]
    for (family, cluster), members in [*sorted(groups.items()), (("all", ""), list(entries))]:
        cells = len({x.kernel for x in members}), len(members), sum(x.launches for x in members)
        wrong = sum(x.wrong for x in members)
        lines.append(f"{family:16} {cluster:8} {cells[0]:8} {cells[1]:9} {cells[2]:12,} {wrong:6}")
    return "\n".join([*lines, f"hangs: {num_hangs}"])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--launches", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--kernels", default="", help="only kernels whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    """Run from the command line."""
    options = arguments()
    started = time.monotonic()
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    aot_gemm.preload()
    kernels = Kernels()
    named = [(i, x) for i, x in enumerate(kernels.names) if options.kernels in x]
    chosen = [(i, x) for i, x in named if is_16_bit_product(operation_of(x))]
    entries: list[Entry] = []
    watchdog = Watchdog(lambda: print(table(entries, num_hangs=1), flush=True))
    for (kernel, name), shape, flags in ((x, y, z) for y in SHAPES for x in chosen for z in (0, B_CONSTANT)):
        entry = Entry(kernel, name, shape, flags)
        watchdog.expect(f"alone: {entry}")
        if run_alone(kernels, entry):
            entries.append(entry)
            if entry.wrong:
                print(f"WRONG: alone: {entry}", flush=True)
    print(f"{len(chosen)} kernels, each alone: {len(entries)} problems, {time.monotonic() - started:.0f} s", flush=True)
    load, reported, is_over, num_passes = Load(), time.monotonic(), not entries, 0
    while not is_over:
        for hand in hands(entries):
            others = random.sample(entries, min(2, len(entries)))
            kind = random.choice(LOADS)  # noqa: S311
            run_hand(kernels, hand, others, kind, load, watchdog)
            now, launches = time.monotonic(), sum(x.launches for x in entries)
            if now - reported > REPORT_S:
                reported = now
                passed = f"{now - started:.0f} s: {launches:,} launches, pass {num_passes + 1}"
                print(f"{passed}; last {hand[0]}", flush=True)
            is_over = now - started > options.seconds or (num_passes > 0 and launches >= options.launches)
            if is_over:
                break
        num_passes += 1
    print(table(entries))
    if any(x.wrong for x in entries) or not entries:
        return 1
    return 0 if sum(x.launches for x in entries) >= options.launches else 2


if __name__ == "__main__":
    sys.exit(main())
