"""One product behind one writer: its operands, its trials, and how many of them multiply by values of the past.

Every trial writes one value, which the trial before did not write, to a whole tensor, and multiplies so that all of the
result must be that value: weight and x hold one value each, and one of the two is 1/k. k is a power of two, so that
every sum is exact. The GPU is idle when a trial starts.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import aot_gemm
import torch
from aot_gemm._constant import ConstantWeight

DEFAULT = "default"
"""No promise: the writer writes the weight."""
BEHIND = "behind"
"""No promise: the writer writes the weight, then a kernel of ours runs that has nothing to do with it, and behind that
the product takes the weight for constant: as products of a compiled graph do."""
PROMISE = "promise"
"""The weight is declared constant, and is; the writer writes another tensor of its shape."""
PROMISE_X = "promise, x written"
"""The weight is declared constant, and is; the writer writes x."""
BROKEN_SEEN = "broken, seen"
"""The weight is declared constant, then written in a way that torch sees: the promise ends by itself."""
BROKEN_UNSEEN = "broken, unseen"
"""The weight is declared constant, then written in a way that nobody sees: the control, which must be stale."""
TORCH = "torch"
"""The writer writes the weight; torch multiplies: what any program that is right gives."""
MODES = (DEFAULT, BEHIND, PROMISE, PROMISE_X, BROKEN_SEEN, BROKEN_UNSEEN, TORCH)

Launch = Callable[[], object]
"""Enqueues, and may return anything."""
Shape = tuple[int, int, int]
"""(m, n, k)."""

WARM_UPS = 3
FRONT = 256
"""Rows and columns of the weight of the product in front."""


class UnfitError(Exception):
    """A case that cannot be made here: no second GPU, no Triton, no such kernel in the wheel's table."""


@dataclass(frozen=True)
class Setting:
    """What the product is, and what is promised of its weight."""

    mode: str = DEFAULT
    product: str = "linear"
    """Or `matmul`, whose weight is held (k, n)."""
    dtype: torch.dtype = torch.bfloat16
    shape: Shape | None = (1, 256, 1024)
    """None leaves it to the case."""
    device: int = 0

    def __str__(self) -> str:
        text = f"{self.product} {str(self.dtype).removeprefix('torch.')}"
        if self.shape is not None:
            text += " m{} n{} k{}".format(*self.shape)
        return f"{text} on GPU {self.device}" if self.device else text

    @property
    def kernel(self) -> str:
        """Name of the kernel that multiplies."""
        return kernel_of(self.shape, self.dtype, "kk" if self.product == "linear" else "kn")


def kernel_of(shape: Shape, dtype: torch.dtype, layout: str = "kk") -> str:
    """Return the name of the kernel that a product of packed operands gets."""
    return aot_gemm.plan(*shape, dtype=str(dtype).removeprefix("torch."), layout=layout).kernel


def reads_early(kernel: str) -> bool:
    """Say whether a kernel can read a weight before the kernel in front has ended."""
    return re.search("overlap|prefetch|cluster_split_k|one_tile", kernel) is not None


def splits_k(kernel: str) -> bool:
    """Say whether several blocks of a kernel share one tile of the result."""
    return re.search("serial|parallel|separate|cluster_split_k", kernel) is not None


def find(shapes: Iterable[Shape], dtype: torch.dtype, fits: Callable[[str], bool], what: str) -> Shape:
    """Return the first shape whose kernel fits."""
    for shape in shapes:
        if fits(kernel_of(shape, dtype)):
            return shape
    raise UnfitError(f"the wheel's table has no {what} for {dtype}")


@functools.cache
def early_shape(dtype: torch.dtype, m: int) -> Shape:
    """Find a small product whose kernel can read its weight early."""
    sizes = [(256, 1024), *((n, k) for k in (1024, 512, 2048, 4096) for n in range(64, 4097, 64))]
    return find(((m, n, k) for n, k in sizes), dtype, reads_early, "kernel that reads weights early")


def num_blocks(shape: Shape, kernel: str) -> int:
    """Count the blocks that a kernel without split-K has for a product."""
    tile_m, tile_n, cluster_m, cluster_n = map(int, re.search(r"_(\d+)x(\d+)_c(\d+)x(\d+)", kernel).groups())
    rows, columns = shape[:2] if not kernel.endswith("swap") else shape[1::-1]
    return math.prod(
        -(-extent // (tile * cluster)) * cluster
        for extent, tile, cluster in ((rows, tile_m, cluster_m), (columns, tile_n, cluster_n))
    )


@functools.cache
def chain_shape(dtype: torch.dtype) -> tuple[int, int, int]:
    """Find a weight (n, k) made by a long product over k1, whose blocks leave SMs free and let the next kernel start.

    Returns:
        (n, k, k1).
    """
    for k1 in (131072, 65536, 32768, 16384):
        for k in (512, 1024, 2048):
            for n in range(64, 4097, 64):
                kernel = kernel_of((n, k, k1), dtype)
                makes = reads_early(kernel) and not splits_k(kernel) and 89 <= num_blocks((n, k, k1), kernel) <= 108
                if makes and reads_early(kernel_of((1, n, k), dtype)):
                    return n, k, k1
    raise UnfitError(f"the wheel's table has no chain of kernels that read weights early for {dtype}")


def synchronize(device: int) -> None:
    """Wait for the GPU of a setting, and for the first, on which some of its work may be."""
    for ordinal in {0, device}:
        torch.cuda.synchronize(ordinal)


class Scene:
    """The tensors of a setting: what is multiplied, and `target`, which a case writes just in front."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        m, n, k = setting.shape
        self.device = torch.device("cuda", setting.device)
        held = (n, k) if setting.product == "linear" else (k, n)
        self.x, self.weight, self.out = (self.zeros(*shape) for shape in ((m, k), held, (m, n)))
        self.value = torch.zeros(1, device=self.device)
        """One float32 on the GPU: what this trial writes."""
        self.written = self.value
        """One number on the GPU: what the target then holds, of either type."""
        self.is_replayed = False
        """Whether a trial replays a graph: torch then sees none of its writes."""
        self._operand: object = None
        self._before: list[Callable[[float], object]] = []
        self._front = [self.zeros(1, FRONT), self.zeros(FRONT, FRONT), self.zeros(1, FRONT)]
        if setting.mode == PROMISE_X:
            self.target = self.x
            self.weight.fill_(1 / k)
        else:
            self.target = self.zeros(*held) if setting.mode == PROMISE else self.weight
            self.x.fill_(1 / k)

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return zeros on the setting's GPU, of its type."""
        return torch.zeros(shape, dtype=dtype or self.setting.dtype, device=self.device)

    def filled(self, value: float, *shape: int) -> torch.Tensor:
        return self.zeros(*shape).fill_(value)

    def before(self, call: Callable[[float], object]) -> None:
        """Have something called with the value of each trial, before it starts."""
        self._before.append(call)

    def adopt(self, parameter: torch.nn.Parameter) -> None:
        """Multiply by a parameter that is the target, where the target is the weight."""
        if self.target is self.weight:
            self.weight = parameter
        self.target = parameter

    def prepare(self, value: float) -> None:
        """Set up a trial, and wait until all of that is done."""
        self.value.fill_(value)
        self.out.fill_(math.nan)
        for call in self._before:
            call(value)
        if self.setting.mode == PROMISE:
            self.weight.fill_(value)
        promised = self.setting.mode in {PROMISE, PROMISE_X, BROKEN_SEEN, BROKEN_UNSEEN}
        self._operand = aot_gemm.constant(self.weight) if promised else self.weight
        self._seen = (self.weight._version, self.weight.data_ptr())
        synchronize(self.setting.device)

    def multiply(self) -> None:
        """Enqueue the product."""
        linear = self.setting.product == "linear"
        if self.setting.mode == BEHIND:
            x, weight, out = self._front
            aot_gemm.linear(x, weight, out=out)
            self._operand = ConstantWeight(self.weight, self.weight.data_ptr())
        if self.setting.mode == TORCH:
            torch.mm(self.x, self.weight.t() if linear else self.weight, out=self.out)
        elif linear:
            aot_gemm.linear(self.x, self._operand, out=self.out)
        else:
            aot_gemm.matmul(self.x, self._operand, out=self.out)

    def is_stale(self) -> bool:
        """Say whether the finished product is not of what was written; the writer must have written.

        Raises:
            AssertionError: the target does not hold what was to be written, or torch did not see that it was.
        """
        expected = self.value if self.setting.mode == PROMISE else self.written
        stale, unwritten = torch.stack([(self.out != expected).any(), (self.target != self.written).any()]).tolist()
        assert not unwritten, "the writer did not write"
        if self.setting.mode == BROKEN_SEEN and not self.is_replayed:
            assert (self.weight._version, self.weight.data_ptr()) != self._seen, "torch did not see the write"
        return stale


def capture(body: Launch) -> torch.cuda.CUDAGraph:
    """Capture what a call enqueues into a CUDA graph."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            body()
        finally:
            graph.capture_end()
    return graph


def value_of(trial: int) -> float:
    """Return what a trial writes: exact in either type, and never that of the trial before."""
    return float(1 + trial % 100)


def count_stale(scene: Scene, launch: Launch, trials: int) -> int:
    """Run the trials; return how many were stale."""
    stale = 0
    for trial in range(-WARM_UPS, trials):
        scene.prepare(value_of(trial))
        launch()
        synchronize(scene.setting.device)
        stale += scene.is_stale() and trial >= 0
    return stale
