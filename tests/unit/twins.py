"""In-memory twins of the GPU and of a kernel library: host memory, numpy products, and a clock that kernels set."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass, field

import numpy as np

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.element import ElementType
from aot.core.errors import DeviceError
from aot.core.grouping import Grouping
from aot.core.measurement import Conditions
from aot.core.numerics import bits_type, decode, encode
from aot.core.operands import AtomMatrix, element_of
from aot.core.operation import ELEMENTS, Layout, Operation
from aot.core.problem import Problem
from aot.core.reference import is_16_bit_product
from aot.core.signature import Argument
from aot.core.tile_order import order_name
from aot.kinds.gemm.tuned import TunedKernel
from aot.kinds.rows.call import RowCall
from aot.kinds.trials import trial_of
from aot.measure.gpu import OutOfMemoryError
from tests.unit.row_twins import compute_rows, spoil

BF16 = Operation.of(ElementType.BFLOAT16)
CONDITIONS = Conditions("Twin", "sm_90a", 4, "1.0", 1000, 2000, "100 W", "2026-11-20", "p1")


SEPARATOR = "separator"


def kernel_of(tile_m=128, tile_n=128, *, sha="ab", operation=BF16, family="twin", **more):
    fields = {name: more.pop(name) for name in ("m_multiple", "n_multiple", "is_fallback") if name in more}
    return TunedKernel(
        KernelKey(operation, gemm_candidate(family, tile_m, tile_n, **more)), sha.ljust(64, "0"), **fields
    )


def problem_of(m: int, n: int, k: int, operation: Operation = BF16) -> Problem:
    return Problem(operation, m, n, k)


def memory(address: int, num_elements: int, dtype: ElementType = ElementType.BFLOAT16) -> np.ndarray:
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * dtype.size_of(num_elements)).from_address(address))
    if dtype.num_sharing > 1:
        return np.stack([flat & 15, flat >> 4], 1).ravel()  # a copy: nothing writes such elements
    return flat.view(bits_type(dtype))


class TwinGpu:
    """Satisfies `aot.measure.gpu.Gpu`; addresses are host addresses."""

    def __init__(self, l2_bytes: int = 1 << 16):
        self.stream = 77
        self.l2_bytes = l2_bytes
        self.lost = False
        self.capturing = None
        self.clock_us = 0.0
        self.graphs = {}
        self.num_graphs = 0
        self.replayed = []
        self.warmed_up = []
        self.flushed = []
        self.memory_bytes = None
        self.slow = {}
        self.separator_us = 2.0
        self._owned = {}

    def alloc(self, num_bytes):
        if self.memory_bytes is not None and num_bytes > self.memory_bytes:
            raise OutOfMemoryError(f"cuMemAlloc of {num_bytes} bytes failed")
        array = np.zeros(max(num_bytes, 1) + 256, np.uint8)
        address = (array.ctypes.data + 255) // 256 * 256
        self._owned[address] = array
        return address

    def free(self, address):
        del self._owned[address]

    def upload(self, address, bits):
        ctypes.memmove(address, bits.ctypes.data, bits.nbytes)

    def download(self, address, bits):
        ctypes.memmove(bits.ctypes.data, address, bits.nbytes)

    def copy(self, target, source, num_bytes):
        ctypes.memmove(target, source, num_bytes)

    def fill(self, address, value, num_bytes):
        ctypes.memset(address, value, num_bytes)

    def synchronize(self):
        pass

    def time_us(self, launch):
        before = self.clock_us
        launch()
        return self.clock_us - before

    def flushed_us(self, launch, count, flush, flush_bytes):
        self.flushed.append((count, flush, flush_bytes))
        return [self.time_us(lambda i=i: launch(i)) for i in range(count)]

    def capture(self, launch):
        self.capturing = []
        launch()
        self.num_graphs += 1
        self.graphs[self.num_graphs] = self.capturing
        self.capturing = None
        return self.num_graphs

    def launch_separator(self):
        if self.capturing is None:
            self.clock_us += self.separator_us
        else:
            self.capturing.append((SEPARATOR, self.separator_us))

    def replay_us(self, graph, *, warms_up=True):
        self.warmed_up.append(warms_up)
        """Note the kernel that a graph holds, and give its time; a graph of nothing but separators is not noted."""
        self.replayed += [name for name, _ in self.graphs[graph] if name != SEPARATOR][:1]
        factor = self.slow.get(len(self.replayed), 1.0)
        return sum(us if name == SEPARATOR else factor * us for name, us in self.graphs[graph])

    def destroy(self, graph):
        del self.graphs[graph]

    def is_lost(self):
        return self.lost

    @property
    def num_allocations(self):
        return len(self._owned)


@dataclass
class TwinKernels:
    """Twin of aot.measure.gpu.Kernels. `faults` maps a kernel's name to a fault, or to (fault, least m that has it)."""

    gpu: TwinGpu
    kernels: list[TunedKernel]
    times_us: dict[str, float] = field(default_factory=dict)
    faults: dict[str, tuple[str, int]] = field(default_factory=dict)
    workspace: int = 0
    launches: list[tuple[str, int]] = field(default_factory=list)
    promised: list[bool] = field(default_factory=list)

    @property
    def names(self):
        return tuple(kernel.name for kernel in self.kernels)

    def baseline(self, operation):
        return trial_of(operation).baseline(operation)

    def bind(self, call, *, b_is_constant=False):
        self.promised.append(b_is_constant)
        return call

    def workspace_bytes(self, kernel, bound):
        if self._fault(self._name(kernel), rows_of(bound)) == "refused":
            raise DeviceError("at most 8 GiB can be addressed")
        return self.workspace

    def max_active_clusters(self, kernel, bound, workspace, workspace_bytes):
        return 0 if self._fault(self._name(kernel), rows_of(bound)) == "clusters" else None

    def _name(self, kernel):
        """Name a kernel; one whose tiles are taken in another order, with that behind it."""
        order, index = divmod(kernel, len(self.names))
        return f"{self.names[index]} {order_name(order)}".rstrip()

    def _fault(self, name, m):
        fault, least = self.faults.get(name, ("", 0))
        return fault if m >= least else ""

    def launch(self, kernel, bound, workspace, workspace_bytes, stream):
        assert stream == self.gpu.stream
        assert workspace_bytes == self.workspace
        name = self._name(kernel)
        us = self.times_us.get(name, 10.0)
        if self.gpu.capturing is not None:
            self.gpu.capturing.append((name, us))
            return
        self.launches.append((name, next(iter(bound.tensors.values())).address if is_on_rows(bound) else bound.d))
        self.gpu.clock_us += us
        fault = self._fault(name, rows_of(bound))
        if fault in ("error", "lost"):
            self.gpu.lost = fault == "lost"
            raise DeviceError("launch refused")
        if fault == "hang":
            time.sleep(1000)
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "slow":
            time.sleep(0.02)
        self._compute(bound, fault)

    def product(self, operation, operands, is_interleaved):
        """Compute D's bits; those of 16-bit operands alone without torch, which takes a second to load."""
        if not is_16_bit_product(operation):
            from tests.unit.torch_twin import compute

            return compute(operation, operands, is_interleaved=is_interleaved)
        values = {x: decode(operation.d, y) for x, y in operands.items()}
        total = values[Argument.A] @ values[Argument.B].T + values.get(Argument.BIAS, 0.0)
        return encode(operation.d, total.astype(np.float32))

    def _compute(self, call, fault):
        if is_on_rows(call):
            compute_rows(call)
            spoil(call, fault, len(self.launches))
            return
        for group in range(call.tensors[Argument.D].matrix.num_groups):
            self._compute_group(call, fault, group)

    def _compute_group(self, call, fault, group):
        operation, dtype = call.problem.operation, call.problem.operation.d
        operands = {x: matrix_bits(element_of(operation, x), y, group) for x, y in call.tensors.items()}
        d = operands.pop(Argument.D)
        if call.is_linear_first:
            operands[Argument.B] = np.roll(operands[Argument.B], len(operands[Argument.B]) // 2, axis=0)
        bits = self.product(operation, operands, call.is_interleaved)[:, : d.shape[1]]
        if fault == "wrong":
            bits[-1, -1] = encode(dtype, np.float32([1e3]))[0]
        if fault == "unstable":
            bits[0, 0] ^= bits.dtype.type(len(self.launches) & 1)
        written = slice(-1 if fault == "unwritten" and call.problem.m > 1 else None)
        d[written] = bits[written]
        stride = call.tensors[Argument.D].matrix.row_stride
        if fault == "guards":
            memory(call.d - dtype.num_bytes, 1, dtype)[0] = 0
        if fault == "padding" and stride > call.problem.n and call.problem.m > 1:
            memory(call.d + dtype.num_bytes * call.problem.n, 1, dtype)[0] = 0


def is_on_rows(call):
    return isinstance(call, RowCall)


def rows_of(call):
    return call.problem.rows if is_on_rows(call) else call.problem.m


def matrix_bits(dtype, tensor, group=0):
    """Return the elements of an operand in memory, (rows, columns); of a stack, those of one matrix."""
    matrix = tensor.matrix
    flat = memory(tensor.address, matrix.num_elements, dtype)[group * matrix.group_stride :]
    if isinstance(matrix, AtomMatrix):
        return flat[matrix.positions(np.arange(matrix.num_rows), np.arange(matrix.num_columns))]
    strides = (flat.itemsize * matrix.row_stride, flat.itemsize * matrix.column_stride)
    return np.lib.stride_tricks.as_strided(flat, (matrix.num_rows, matrix.num_columns), strides)


BATCHES = [x for x in Operation if x.grouping is Grouping.BATCHED]
ALL_LAYOUTS = [Operation.of(dtype, layout) for dtype in ELEMENTS for layout in Layout]
