import ctypes
import importlib
import sys
from math import lcm
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aot.core.comparison import compare
from aot.core.errors import DeviceError
from aot.core.grouping import Grouping
from aot.core.measurement import LibraryTime
from aot.core.numerics import bits_type
from aot.core.operands import GemmCall, Tensor, element_of, operands
from aot.core.operation import Operation
from aot.core.reference import needed, reference, values_of
from aot.core.signature import Argument
from aot.kinds.gemm.baselines import Agreement, baseline_of
from aot.kinds.gemm.inputs import SCALED, draw_scales
from aot.kinds.inputs import deviation, draw
from aot.measure.bench import Operands, ProblemBench, Workspace
from aot.measure.inputs import RandomPools
from aot.measure.library_times import LibraryBench
from aot.measure.protocol import TimingPlan, num_sets, set_bytes
from aot.measure.torch_library import TorchLibrary, load_torch
from tests.compiling import some
from tests.unit.twins import TwinGpu, TwinKernels, kernel_of, problem_of

pytestmark = pytest.mark.slow


class CpuTorch:
    """torch on the CPU in the place of torch on a GPU: it reads the memory that an address tells of."""

    __version__ = "2.11.0+cu130"
    Stream = SimpleNamespace

    def __init__(self, is_available=True):
        self.streams, self.calls, self.tf32 = [], [], []
        self.cuda = SimpleNamespace(
            is_available=lambda: is_available,
            ExternalStream=lambda handle: ("stream", handle),
            set_stream=self.streams.append,
        )
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32="before")))
        self.ops = torch.ops

    def __getattr__(self, name):
        return getattr(torch, name)

    def as_tensor(self, memory, device):
        found = memory.__cuda_array_interface__
        assert (device, found["version"], found["data"][1]) == ("cuda", 3, False)
        kind = np.dtype(found["typestr"])
        spans = [(extent - 1) * stride for extent, stride in zip(found["shape"], found["strides"], strict=True)]
        flat = (ctypes.c_uint8 * (sum(spans) + kind.itemsize)).from_address(found["data"][0])
        whole = torch.frombuffer(flat, dtype=getattr(torch, kind.name))
        return whole.as_strided(found["shape"], [x // kind.itemsize for x in found["strides"]])

    def empty(self, shape, dtype, device):
        assert device == "cuda"
        return torch.empty(shape, dtype=dtype)

    def mm(self, a, b, *, out):
        self.calls.append("mm")
        self.tf32.append(self.backends.cuda.matmul.allow_tf32)
        return torch.mm(a, b, out=out)

    def addmm(self, bias, a, b, *, out):
        self.calls.append("addmm")
        return torch.addmm(bias, a, b, out=out)

    def _scaled_mm(self, a, b, scale_a, scale_b, **options):
        """Do what the GPU's does: the CPU's takes no scale_result and one type of A and B alone."""
        self.calls.append("_scaled_mm")
        assert (scale_a.numel(), scale_b.numel(), scale_a.dtype) == (1, 1, torch.float32)
        assert b.stride() == (1, b.shape[0])
        total = (a.float() @ b.float()) * scale_a * scale_b
        if options["bias"] is not None:
            total += options["bias"].float()
        if options["scale_result"] is not None:
            total *= options["scale_result"]
        assert options["out"].dtype is options["out_dtype"]
        options["out"].copy_(total.clamp(-448, 448) if options["out_dtype"].itemsize == 1 else total)


def drawn(operation, argument, matrix, rng):
    if argument is Argument.B and operation.b.weight is not None:
        return rng.integers(0, 256, (matrix.num_rows, matrix.num_columns), np.uint8)
    shape = (matrix.num_rows, matrix.num_columns)
    if argument in SCALED:
        return draw_scales(rng, shape, 0.25 / deviation(element_of(operation, SCALED[argument])))
    return draw(element_of(operation, argument), rng, shape)


def placed(problem, arrangement, rng):
    """Put random operands into memory; return the call, its buffers, and the reference of all of D."""
    tensors, buffers, bits = {}, {}, {}
    for argument, matrix in operands(problem, 0, arrangement).items():
        kind = bits_type(element_of(problem.operation, argument))
        buffer = buffers[argument] = np.zeros(matrix.num_elements, kind)
        strides = (kind.itemsize * matrix.row_stride, kind.itemsize * matrix.column_stride)
        view = np.lib.stride_tricks.as_strided(buffer, (matrix.num_rows, matrix.num_columns), strides)
        if argument is not Argument.D:
            view[:] = drawn(problem.operation, argument, matrix, rng)
            bits[argument] = view
        tensors[argument] = Tensor(buffer.ctypes.data, matrix)
    indices = needed(problem, np.arange(problem.m), np.arange(problem.n), arrangement)
    columns = np.arange(problem.n)
    values = {x: values_of(problem, x, y[np.ix_(*indices[x])], columns) for x, y in bits.items()}
    return GemmCall(problem, tensors), buffers, reference(problem.operation, values)


KEPT = []
"""Memory that calls have the address of."""


def call_of(problem):
    call, buffers, _ = placed(problem, baseline_of(problem.operation).arrangement, np.random.default_rng(2))
    KEPT.append(buffers)
    return call


WITH_BASELINE = [
    x for x in Operation if baseline_of(x) is not None and x.grouping is Grouping.DENSE and x.types.weight is None
]


def test_a_packed_weight_is_timed_beside_one_of_16_bits():
    problem, fake = problem_of(24, 32, 128, Operation.BF16_INT4_G128_KK), CpuTorch()
    library = TorchLibrary(fake, 77)
    baseline = library.baseline(problem.operation)
    bound = library.bind(call_of(problem))
    library.launch(0, bound, 0, 0, 77)
    assert (tuple(bound.b_transposed.shape), bound.b_transposed.dtype) == ((128, 32), torch.bfloat16)
    assert torch.equal(bound.d, torch.mm(bound.a, bound.b_transposed))
    assert (baseline.name("torch 2.11"), fake.calls) == ("torch 2.11 mm of bf16", ["mm"])


@pytest.mark.parametrize("operation", some(WITH_BASELINE, 12), ids=lambda x: x.tag)
def test_torchs_calls_compute_the_operation_on_its_operands_in_place(operation):
    problem, rng, fake = problem_of(24, 32, 48, operation), np.random.default_rng(1), CpuTorch()
    library = TorchLibrary(fake, 77)
    baseline = library.baseline(operation)
    call, buffers, expected = placed(problem, baseline.arrangement, rng)
    bound = library.bind(call)
    library.launch(0, bound, 0, 0, 77)
    assert fake.streams == [("stream", 77)]
    found = buffers[Argument.D].reshape(24, 32)
    if baseline.agreement is Agreement.NONE:
        sums = call_sums(buffers, problem)
        assert np.array_equal(bound.sums.numpy(), sums)
        return
    relative = compare(operation, found, expected).relative_error
    unit = {8: 2**-4, 16: 2**-8 if operation.d.tag == "bf16" else 2**-11, 32: 2**-22}[operation.d.bits]
    assert relative < 2 * unit
    if baseline.agreement is Agreement.EXACT:
        assert compare(operation, found, expected).fault == ""


def call_sums(buffers, problem):
    a, b = (buffers[x].view(np.int8).astype(np.int64) for x in (Argument.A, Argument.B))
    return a.reshape(problem.m, problem.k) @ b.reshape(problem.n, problem.k).T


@pytest.mark.parametrize(
    ("operation", "name", "calls"),
    [
        (Operation.BF16_MN, "torch 2.11.0+cu130", ["mm"]),
        (Operation.FP16_KK_BIAS, "torch 2.11.0+cu130", ["addmm"]),
        (Operation.BF16_KK_GELU, "torch 2.11.0+cu130 addmm + gelu", ["addmm"]),
        (Operation.BF16_KK_RESIDUAL, "torch 2.11.0+cu130 mm + residual", ["mm"]),
        (Operation.FP16_KK_SWIGLU, "torch 2.11.0+cu130 mm + swiglu", ["mm"]),
        (Operation.E4M3_BF16_KK, "torch 2.11.0+cu130 _scaled_mm", ["_scaled_mm"]),
        (Operation.E4M3_BF16_KK_SILU, "torch 2.11.0+cu130 _scaled_mm + silu", ["_scaled_mm"]),
        (Operation.INT8_BF16_KK, "torch 2.11.0+cu130 _int_mm", []),
        (Operation.TF32_KK, "torch 2.11.0+cu130 mm allow_tf32", ["mm"]),
        (Operation.FP32_KK, "torch 2.11.0+cu130 mm", ["mm"]),
    ],
)
def test_a_record_names_the_calls(operation, name, calls):
    fake = CpuTorch()
    library = TorchLibrary(fake, 77)
    baseline = library.baseline(operation)
    assert baseline.name(library.names[0]) == name
    library.launch(0, library.bind(call_of(problem_of(24, 32, 48, operation))), 0, 0, 77)
    assert fake.calls == calls


def test_float32_is_multiplied_in_tf32_only_where_the_operation_is_of_it():
    fake = CpuTorch()
    library = TorchLibrary(fake, 77)
    for operation in (Operation.TF32_KK, Operation.FP32_KK, Operation.BF16_KK):
        library.launch(0, library.bind(call_of(problem_of(24, 32, 48, operation))), 0, 0, 77)
    assert fake.tf32 == [True, False, "before"]
    assert fake.backends.cuda.matmul.allow_tf32 == "before"


def test_the_sets_of_a_problem_share_the_memory_of_their_sums():
    library = TorchLibrary(CpuTorch(), 77)
    operation = Operation.FP16_KK_SWIGLU
    bound = [library.bind(call_of(problem_of(m, 32, 48, operation))) for m in (24, 24, 40)]
    assert [tuple(x.sums.shape) for x in bound] == [(24, 64), (24, 64), (40, 64)]
    assert bound[0].sums is bound[1].sums


def test_blocks_have_no_baseline():
    library, operation = TorchLibrary(CpuTorch(), 77), Operation.E4M3_BF16_BLOCK_KK
    assert library.baseline(operation) is None
    with pytest.raises(DeviceError, match=r"^torch 2\.11\.0\+cu130 has no call for e4m3_bf16_block_kk$"):
        library.bind(GemmCall(problem_of(1, 16, 16, operation), {}))


class Times:
    """A store that takes a library's times alone."""

    def __init__(self):
        self.times = []

    def add_library_time(self, run, time):
        self.times.append(time)


def library_bench(operation, fake):
    """Make the bench of a library on 2 sets of operands of a problem."""
    problem, gpu, plan, rng = (
        problem_of(24, 32, lcm(48, operation.k_step), operation),
        TwinGpu(l2_bytes=1 << 10),
        TimingPlan(),
        np.random.default_rng(4),
    )
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, plan) * set_bytes(problem))
    made = Operands(gpu, RandomPools(gpu, rng, 1 << 12), arena, problem, plan, rng)
    kernels = TwinKernels(gpu, [kernel_of(operation=operation)])
    warned, store = [], Times()
    library = TorchLibrary(fake, 77)
    session = SimpleNamespace(gpu=gpu, library=library, store=store, run=1, warn=warned.append)
    bench = LibraryBench(session, ProblemBench(gpu, kernels, made, Workspace(0, 0), plan))
    return bench, problem, store, warned


@pytest.mark.parametrize(
    "operation", some((x for x in Operation if x.layout.value == "kk" and not x.grouping.has_offsets), 12), ids=str
)
def test_every_baseline_is_checked_and_stored_under_its_name(operation):
    bench, problem, store, warned = library_bench(operation, CpuTorch())
    bench.screen()
    assert warned == []
    bench.store([2.0, 1.0, 3.0])
    baseline = baseline_of(operation)
    if baseline is None:
        assert (bench.numbers, store.times) == ((), [])
        return
    assert store.times == [LibraryTime(baseline.name("torch 2.11.0+cu130"), problem, 2.0, 1.5, 2.5, 3)]


def test_a_baseline_that_computes_something_else_is_left_out(monkeypatch):
    fake = CpuTorch()
    monkeypatch.setattr(fake, "_scaled_mm", lambda a, b, *_, **options: options["out"].copy_(a.float() @ b.float()))
    bench, _, store, (*warned,) = library_bench(Operation.E4M3_BF16_KK, fake)
    bench.screen()
    assert bench.numbers == ()
    bench, _, _, warned = library_bench(Operation.E4M3_BF16_KK, fake)
    bench.screen()
    (line,) = warned
    assert line.startswith(
        "the library's time on e4m3_bf16_kk m24 n32 k48 is not recorded: wrong result on sampled rows"
    )
    assert store.times == []


def test_what_torch_refuses_is_a_device_error():
    fake = CpuTorch()

    def refuse(*_arguments, **_options):
        raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

    library = TorchLibrary(fake, 77)
    call = call_of(problem_of(1, 8, 8))
    fake.as_tensor = refuse
    with pytest.raises(DeviceError, match=r"^torch 2\.11\.0\+cu130: CUDA error: out of memory Compile with"):
        library.bind(call)


def load(monkeypatch, found):
    def import_module(name):
        assert name == "torch"
        if isinstance(found, Exception):
            raise found
        return found

    said = []
    monkeypatch.setattr(importlib, "import_module", import_module)
    return load_torch(77, said.append), said


def test_torch_is_used_where_it_is_there(monkeypatch):
    library, said = load(monkeypatch, CpuTorch())
    assert library.names == ("torch 2.11.0+cu130",)
    assert said == []


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (ImportError("No module named 'torch'"), "No module named 'torch'"),
        (OSError("libcudart.so.13: cannot open shared object file"), "libcudart.so.13: cannot open shared object file"),
        (CpuTorch(is_available=False), "torch 2.11.0+cu130 finds no GPU"),
    ],
)
def test_where_it_is_not_one_line_says_so(monkeypatch, found, why):
    library, said = load(monkeypatch, found)
    assert library is None
    assert said == [f"torch's times are not recorded beside the kernels: {why} ({sys.executable})"]
