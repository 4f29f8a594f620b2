"""The best that cuBLASLt can do on a problem: every kernel that its heuristic proposes, timed by the bench's protocol.

torch.matmul takes the one kernel that cuBLAS picks. The peer here screens all that are proposed, MAX_SCREENED at most,
in one short replay each, and hands the best KEPT on, to be timed in the same rounds as wheel and torch. They may use
64 MiB of workspace and any way of reducing a split k. Their results are compared with torch's, over an output of NaN.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_float, c_int, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import torch

from research.bench import cublaslt_api as api
from research.bench.cublaslt_api import CublasLtError
from research.bench.protocol import Call, Operands, capture, relative_error, replay_us

REQUESTED = 256
MAX_SCREENED = 40
SCREENING_US = 300.0
SCREENING_LIMIT_S = 1.0
"""No further proposal of a problem is screened after this time, so that the largest do not take minutes."""
KEPT = 3
WORKSPACE_BYTES = 64 * 2**20
MAX_ERROR = 1e-2
"""Relative Frobenius error against torch: bf16 results differ by about 3e-3, those of a wrong layout by about 1."""

DATA_TYPES = {torch.bfloat16: api.CUDA_R_16BF, torch.float16: api.CUDA_R_16F}


@dataclass(frozen=True)
class Screened:
    """What screening left of a problem's proposals."""

    calls: dict[int, Call]
    """The best, KEPT at most, by rank: the place among the proposals; 0 is the heuristic's first choice."""
    num_proposals: int
    num_screened: int
    num_failed: int
    """Those of the screened that did not run, or whose result was wrong."""


@dataclass(frozen=True)
class _Descriptors:
    operation: c_void_p
    weight: c_void_p
    x: c_void_p
    out: c_void_p


class CublasLt:
    """A handle of the cuBLASLt that torch ships, on the current device, and its workspace.

    Raises:
        CublasLtError: the library is not found, does not load or makes no handle.
    """

    def __init__(self) -> None:
        self.path = api.find_library()
        self._library = api.load(self.path)
        self.version = int(self._library.cublasLtGetVersion())
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._handle = c_void_p()
        self._run("cublasLtCreate", byref(self._handle))

    def _run(self, name: str, *arguments: Any) -> None:
        api.check(self._library, name, getattr(self._library, name)(*arguments))

    @contextlib.contextmanager
    def _made(self, kind: str, *arguments: Any) -> Iterator[c_void_p]:
        """Create a descriptor, and destroy it in the end."""
        descriptor = c_void_p()
        self._run(f"cublasLt{kind}Create", byref(descriptor), *arguments)
        try:
            yield descriptor
        finally:
            self._run(f"cublasLt{kind}Destroy", descriptor)

    @contextlib.contextmanager
    def _described(self, operands: Operands) -> Iterator[_Descriptors]:
        """Describe out (m, n) = x (m, k) @ weight (n, k)^T, all row-major, in cuBLAS's column-major terms.

        Memory of a row-major matrix is that of its transpose, column-major: out^T (n, m) = weight (n, k) @ x^T (k, m),
        where weight is given as (k, n) and transposed, and x as (k, m) and not.
        """
        x, weight, out = operands
        (m, k), n, dtype = x.shape, weight.shape[0], DATA_TYPES[out.dtype]
        with contextlib.ExitStack() as stack:
            operation = stack.enter_context(self._made("MatmulDesc", api.COMPUTE_32F, api.CUDA_R_32F))
            for attribute, value in ((api.DESC_TRANSA, api.OP_T), (api.DESC_TRANSB, api.OP_N)):
                code = c_int(value)
                self._run("cublasLtMatmulDescSetAttribute", operation, attribute, *api.pointer_to(code))
            layouts = (
                stack.enter_context(self._made("MatrixLayout", dtype, rows, columns, step))
                for rows, columns, step in ((k, n, k), (k, m, k), (n, m, n))
            )
            yield _Descriptors(operation, *layouts)

    @contextlib.contextmanager
    def _preferred(self, sets: Sequence[Operands]) -> Iterator[c_void_p]:
        """State what the heuristic may propose: the workspace, and alignments where they are below the default."""
        with self._made("MatmulPreference") as preference:
            size = c_uint64(WORKSPACE_BYTES)
            setter = "cublasLtMatmulPreferenceSetAttribute"
            self._run(setter, preference, api.PREF_MAX_WORKSPACE_BYTES, *api.pointer_to(size))
            for matrix, column in {"a": 1, "b": 0, "c": 2, "d": 2}.items():
                num_bytes = min(alignment(operands[column].data_ptr()) for operands in sets)
                if num_bytes < api.DEFAULT_ALIGNMENT_BYTES:
                    value = c_uint32(num_bytes)
                    self._run(setter, preference, api.PREF_MIN_ALIGNMENT_BYTES[matrix], *api.pointer_to(value))
            yield preference

    def _proposals(self, product: _Descriptors, sets: Sequence[Operands]) -> dict[int, api.Algorithm]:
        """Give the configured kernels that the heuristic proposes, by rank."""
        results, count = (api.HeuristicResult * REQUESTED)(), c_int()
        matrices = (product.weight, product.x, product.out, product.out)
        with self._preferred(sets) as preference:
            fixed = (self._handle, product.operation, *matrices, preference)
            self._run("cublasLtMatmulAlgoGetHeuristic", *fixed, REQUESTED, results, byref(count))
        return {
            rank: api.Algorithm.from_buffer_copy(result.algorithm)
            for rank, result in enumerate(results[: count.value])
            if result.state == api.STATUS_SUCCESS and result.workspace_bytes <= WORKSPACE_BYTES
        }

    def _call(self, product: _Descriptors, algorithm: api.Algorithm) -> Call:
        function = self._library.cublasLtMatmul
        alpha, beta = c_float(1.0), c_float(0.0)
        workspace = (self._workspace.data_ptr(), WORKSPACE_BYTES)

        def call(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
            first = (self._handle, product.operation, byref(alpha), weight.data_ptr(), product.weight, x.data_ptr())
            written = (out.data_ptr(), product.out)
            stream = torch.cuda.current_stream().cuda_stream
            status = function(*first, product.x, byref(beta), *written, *written, byref(algorithm), *workspace, stream)
            api.check(self._library, "cublasLtMatmul", status)

        return call

    @contextlib.contextmanager
    def screened(self, sets: Sequence[Operands], expected: torch.Tensor) -> Iterator[Screened]:
        """Screen the proposals for a problem; what is given can be called until the context ends.

        Args:
            sets: the operands that the graphs rotate over.
            expected: torch's result of the first set, (m, n).

        Raises:
            CublasLtError: cuBLASLt proposes nothing, or nothing that runs and gives the right result.
        """
        with self._described(sets[0]) as product:
            proposals = self._proposals(product, sets)
            calls = {rank: self._call(product, algorithm) for rank, algorithm in proposals.items()}
            times = screen(calls, sets)
            ranks = [rank for _, rank in sorted((us, rank) for rank, us in times.items() if us is not None)]
            right: dict[int, Call] = {}
            num_failed = len(times) - len(ranks)
            for rank in ranks:
                if len(right) == KEPT:
                    break
                if is_right(calls[rank], sets[0], expected):
                    right[rank] = calls[rank]
                else:
                    num_failed += 1
            if not right:
                raise CublasLtError(
                    f"{num_failed} of {len(proposals)} proposals failed or were wrong; expected one right"
                )
            yield Screened(right, len(proposals), len(times), num_failed)


def screen(calls: Mapping[int, Call], sets: Sequence[Operands]) -> dict[int, float | None]:
    """Time one short replay of each call, in microseconds a call; None where it failed.

    The first MAX_SCREENED calls are screened, and none after SCREENING_LIMIT_S.
    """
    times: dict[int, float | None] = {}
    end = time.monotonic() + SCREENING_LIMIT_S
    for rank, call in list(calls.items())[:MAX_SCREENED]:
        if times and time.monotonic() > end:
            break
        try:
            times[rank] = replay_us(*capture(call, sets, SCREENING_US))
        except RuntimeError:  # cuBLASLt's, or torch's of a graph
            times[rank] = None
    return times


def alignment(address: int) -> int:
    """Give the largest power of two that divides an address, in bytes; 256 where it is more."""
    return min(address & -address, api.DEFAULT_ALIGNMENT_BYTES) if address else api.DEFAULT_ALIGNMENT_BYTES


def is_right(call: Call, operands: Operands, expected: torch.Tensor) -> bool:
    """Say whether a call computes what torch does, every element of it."""
    x, weight, out = operands
    out.fill_(float("nan"))
    call(x, weight, out)
    return relative_error(out, expected) < MAX_ERROR
