"""bench/operands.py without a GPU: what it draws, its checks over the twins, its calls of torch, and its text."""

import json
import sys
import time
import types

import numpy as np
import pytest
import torch

from aot.core.alignment import is_aligned
from aot.core.errors import DeviceError
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.kinds.gemm.edge_shapes import SIZES, Content, arrangements_of
from aot.measure.dispatched import RefusedError
from research.bench import operand_calls, operand_cases, operands
from tests.compiling import some
from tests.unit.twins import TwinGpu, TwinKernels, kernel_of, problem_of

ALL = list(operands.ALL)


@pytest.mark.slow
@pytest.mark.parametrize("operation", some(ALL, 12), ids=lambda x: x.tag)
def test_random_problems_are_of_all_kinds(operation):
    rng = np.random.default_rng(1)
    cases = [operand_cases.random_case(operation, i, rng) for i in range(300)]
    assert cases != [operand_cases.random_case(operation, i, rng) for i in range(300)]
    assert 180 < sum(is_aligned(x.problem) and not x.offset for x in cases) < 260
    is_dense, is_packed = operation.grouping is Grouping.DENSE, operation.b.weight is not None
    assert sum(x.content is Content.SPECIAL for x in cases) == (30 if is_dense and not is_packed else 0)
    for x in cases:
        if x.content is Content.SPECIAL:
            assert (x.problem.m >= 40, x.problem.n >= 24, x.problem.k >= 200) == (True, True, True)
    is_free = is_dense and not is_packed and not operation.has_parts
    assert len({x.arrangement for x in cases}) == (32 if is_free else len(set(arrangements_of(operation))))
    assert {x.problem.num_groups for x in cases} == ({1} if is_dense else set(range(1, 10)))
    assert {x.sizes for x in cases} == set(SIZES)
    assert {x.padding for x in cases} == {0, 1, 3, 16}
    assert {x.offset for x in cases} == {0, 1}
    assert min(x.problem.m for x in cases) <= 2
    assert max(x.problem.m for x in cases) > 256


class Wheel(TwinKernels):
    """A wheel of the twins: it refuses problems of n 8, and leaves the bias away on m 16 and more if told to."""

    def has(self, operation):
        return operation in {x.key.operation for x in self.kernels}

    def workspace_bytes(self, kernel, bound):
        if bound.problem.n == 8:
            raise RefusedError("no n of 8")
        return 0


def wheel(operation, fault=("", 0)):
    gpu, kernel = TwinGpu(), kernel_of(operation=operation)
    return gpu, Wheel(gpu, [kernel], faults={kernel.name: fault})


def check(gpu, library, operation, count=30, seconds=100.0):
    return operands.check(gpu, library, operation, count, 5, time.monotonic() + seconds)


OF_ALL_SORTS = [
    Operation.BF16_KK,
    Operation.E4M3_BF16_KK_SWIGLU,
    Operation.INT8_INT32_KK,
    Operation.FP16_KN_BATCHED,
    Operation.BF16_KK_MANY,
    Operation.BF16_INT4_G64_ZEROS_KK,
]


@pytest.mark.slow
@pytest.mark.parametrize("operation", OF_ALL_SORTS)
def test_a_right_wheel_has_no_faults_and_what_it_refuses_is_counted(operation):
    gpu, library = wheel(operation)
    found = check(gpu, library, operation)
    assert (found["operation"], found["num_problems"], found["faults"]) == (operation.tag, 30, [])
    assert found["num_right"] + found["num_refused"] == 30
    if found["num_refused"]:
        assert found["refused"].endswith(": no n of 8")
    assert 0 <= found["relative_error"] < 4e-3
    assert gpu.num_allocations == 0


def test_a_wrong_wheel_is_found_and_the_first_faults_are_told():
    gpu, library = wheel(Operation.BF16_KK_SILU, ("wrong", 10))
    found = check(gpu, library, Operation.BF16_KK_SILU)
    wrong = found["num_problems"] - found["num_right"] - found["num_refused"]
    assert wrong > 5
    assert len(found["faults"]) == 5
    assert all("wrong result on bf16_kk_silu" in x for x in found["faults"])


def test_a_lost_context_ends_the_check():
    gpu, library = wheel(Operation.BF16_KK, ("lost", 1))
    with pytest.raises(DeviceError, match="bf16_kk: the context is lost after bf16_kk m"):
        check(gpu, library, Operation.BF16_KK)


def test_no_problem_is_started_when_the_time_is_over():
    gpu, library = wheel(Operation.BF16_KK)
    assert check(gpu, library, Operation.BF16_KK, seconds=-1)["num_problems"] == 0


def test_operations_are_read_by_tags_and_parts():
    assert operands.operations("all") == ALL
    assert operands.operations("none") == []
    assert operands.operations("tf32_kk,bf16_kk_many") == [Operation.TF32_KK, Operation.BF16_KK_MANY]
    for text in ("tf32_kk,", "fp7", "kk,,"):
        with pytest.raises(ValueError, match=text):
            operands.operations(text)


def test_what_is_timed_is_of_the_catalogue_and_aligned():
    for operation in operand_cases.TIMED:
        for size in operand_cases.SIZES:
            assert is_aligned(problem_of(*size, operation))


CPU = [
    (Operation.BF16_KK_GELU, ["eager mm"]),
    (Operation.BF16_KK_RESIDUAL, ["eager mm"]),
    (Operation.BF16_KK_SWIGLU, ["eager mm"]),
    (Operation.INT8_BF16_KK, ["int_mm"]),
    (Operation.TF32_KK, ["mm"]),
    (Operation.FP16_KK, ["mm"]),
    (Operation.E4M3_BF16_BLOCK_KK, []),
]


@pytest.mark.parametrize(("operation", "names"), CPU)
def test_torchs_calls_are_of_the_wheels_operands(operation, names):
    problem = problem_of(32, 48, 64, operation)
    sets = operand_calls.make_sets(problem, 1 << 10, "cpu")
    assert len(sets) == 2
    calls = operand_calls.baselines(problem)
    assert list(calls) == names
    x = sets[0]
    call = x.call()
    for argument, tensor in call.tensors.items():
        assert tensor.address == x[argument].data_ptr()
        assert tuple(x[argument].shape) == (tensor.matrix.num_rows, tensor.matrix.num_columns)
    from tests.unit.torch_twin import bits_of, compute

    bits = {argument: bits_of(y) for argument, y in x.by_argument.items() if argument.value != "d"}
    for run in calls.values():
        found = run(x)
        if operation is Operation.INT8_BF16_KK:
            assert torch.equal(found, x["a"].int() @ x["b"].int().T)
            continue
        expected = torch.from_numpy(compute(operation, bits).view(f"i{operation.d.num_bytes}")).view(found.dtype)
        assert (found.float() - expected.float()).norm() <= 1e-2 * expected.float().norm()


@pytest.mark.parametrize(
    ("operation", "m", "names"),
    [
        (Operation.E4M3_BF16_KK, 16, ["scaled_mm", "scaled_mm_rowwise"]),
        (Operation.E4M3_FP16_KK, 16, ["scaled_mm"]),
        (Operation.E5M2E4M3_BF16_KK, 16, ["scaled_mm"]),
        (Operation.E4M3_BF16_KK_SILU, 16, ["eager scaled_mm", "eager scaled_mm_rowwise"]),
        (Operation.INT8_BF16_KK, 16, []),
    ],
)
def test_the_names_of_what_a_cpu_does_not_compute(operation, m, names):
    assert list(operand_calls.baselines(problem_of(m, 32, 32, operation))) == names


RESULT = {
    "device": "NVIDIA H200",
    "wheel": "0.1.0",
    "torch": "2.11.0",
    "date": "2026-11-23",
    "missing": ["fp32_kk"],
    "checks": [
        {
            "operation": "tf32_kk",
            "num_problems": 300,
            "num_right": 298,
            "num_refused": 1,
            "refused": "tf32_kk m1: no",
            "relative_error": 1.25e-7,
            "faults": ["tf32_kk m2: wrong"],
        }
    ],
    "rows": [
        {"operation": "tf32_kk", "m": 1, "n": 2, "k": 3, "us": {"wheel": 10.0, "mm": 20.0}},
        {"operation": "tf32_kk", "m": 4, "n": 2, "k": 3, "us": {"wheel": 10.0, "mm": 5.0}},
    ],
    "failures": [{"operation": "tf32_kk", "m": 5, "n": 6, "k": 7, "reason": "DeviceError: no"}],
}


def test_the_text_has_a_line_for_all():
    assert operand_cases.summary(RESULT).splitlines() == [
        "NVIDIA H200, wheel 0.1.0, torch 2.11.0, 2026-11-23",
        "not in the wheel: fp32_kk",
        "tf32_kk                  298 of 300 right, 1 refused, largest relative error 1.25e-07",
        "    tf32_kk m2: wrong",
        "    refused: tf32_kk m1: no",
        "tf32_kk                  over mm: 1.000x, worst 0.500x of 2",
        "failed: tf32_kk 5 6 7: DeviceError: no",
    ]


def test_right_is_what_has_checks_and_neither_faults_nor_failures():
    right = RESULT | {"failures": [], "checks": [RESULT["checks"][0] | {"faults": []}]}
    assert operand_cases.is_right(right)
    assert not operand_cases.is_right(right | {"checks": []})
    assert not operand_cases.is_right(RESULT | {"failures": []})
    assert not operand_cases.is_right(right | {"failures": RESULT["failures"]})


class Timed(Wheel):
    """A wheel whose kernels are named and bound by what they compute."""

    def bind(self, call, *, b_is_constant=False):
        self.bound = [*getattr(self, "bound", []), call]
        return call

    def chosen(self, bound):
        return f"kernel_{bound.problem.m}"

    def launch(self, kernel, bound, workspace, workspace_bytes, stream):
        self._compute(bound, self._fault(self.names[0], bound.problem.m))


@pytest.fixture
def on_cpu(monkeypatch):
    """Let the bench time on the CPU: graphs are the calls themselves, each of 10 us, the wheel's of 8."""
    import research.bench.protocol

    def capture(call, sets):
        call(*sets[0])
        return call

    times = {"wheel": 8.0}
    make_sets = operand_calls.make_sets
    monkeypatch.setattr(research.bench.protocol, "capture", capture)
    monkeypatch.setattr(
        research.bench.protocol, "interleave", lambda graphs: {x: [times.get(x, 10.0)] * 3 for x in graphs}
    )
    monkeypatch.setattr(operand_calls, "make_sets", lambda problem, l2_bytes: make_sets(problem, l2_bytes, "cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(L2_cache_size=1 << 10))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=77))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: empty(*shape, **{**options, "device": "cpu"}))


def test_a_problem_is_timed_beside_torch(on_cpu):
    gpu, _ = wheel(Operation.BF16_KK_SWIGLU)
    library = Timed(gpu, [kernel_of(operation=Operation.BF16_KK_SWIGLU)])
    row = operands.time_problem(library, problem_of(16, 32, 48, Operation.BF16_KK_SWIGLU), compiles=False)
    size = {"m": 16, "n": 32, "k": 48}
    us = {"wheel": 8.0, "eager mm": 10.0}
    assert row == {"operation": "bf16_kk_swiglu", **size, "kernel": "kernel_16", "us": us}


def test_a_run_checks_times_and_writes_what_the_wheel_has(on_cpu, monkeypatch, tmp_path):
    monkeypatch.setattr(operands, "SIZES", ((32, 48, 64), (40, 48, 64)))
    gpu, _ = wheel(Operation.BF16_KK_SILU)
    library = Timed(gpu, [kernel_of(operation=Operation.BF16_KK_SILU)])
    _, values = operands.arguments(["--operations", "silu", "--problems", "3", "--out", str(tmp_path / "x.json")])
    result = {"checks": [], "rows": [], "failures": []}
    operands.run(result, library, gpu, values, lambda _line: None)
    others = [x for x in Operation if x.tag.endswith("_kk_silu") and x is not Operation.BF16_KK_SILU]
    assert (result["missing"], len(others)) == (others, 9)
    assert [x["operation"] for x in result["checks"]] == ["bf16_kk_silu"]
    assert [(x["m"], x["us"]["wheel"]) for x in result["rows"]] == [(32, 8.0), (40, 8.0)]
    operands.write(values.out, result)
    assert json.loads((tmp_path / "x.json").read_text())["rows"] == result["rows"]


def test_what_fails_is_a_line_and_the_rest_goes_on(on_cpu, monkeypatch):
    monkeypatch.setattr(operands, "SIZES", ((32, 8, 64), (40, 48, 64)))
    gpu, _ = wheel(Operation.TF32_KK)
    library = Timed(gpu, [kernel_of(operation=Operation.TF32_KK)])
    _, values = operands.arguments(["--operations", "none"])
    result = {"checks": [], "rows": [], "failures": []}
    operands.run(result, library, gpu, values, lambda _line: None)
    assert [x["m"] for x in result["rows"]] == [40]
    (failure,) = result["failures"]
    assert failure == {"operation": "tf32_kk", "m": 32, "n": 8, "k": 64, "reason": "RefusedError: no n of 8"}


def test_without_a_gpu_or_a_wheel_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["operands.py"])
    with pytest.raises(SystemExit):
        operands.main()
    assert "error: no usable NVIDIA driver" in capsys.readouterr().err


def test_torch_is_not_needed_to_check(monkeypatch):
    assert operands.torch_version() == torch.__version__
    monkeypatch.setitem(sys.modules, "torch", None)
    assert operands.torch_version() == operands.NO_TORCH


def test_the_program_writes_what_it_prints(on_cpu, monkeypatch, tmp_path, capsys):
    from aot.measure import device

    monkeypatch.setattr(operands, "SIZES", ((32, 48, 64),))
    gpu, _ = wheel(Operation.BF16_KK_SILU)
    library = Timed(gpu, [kernel_of(operation=Operation.BF16_KK_SILU)])
    monkeypatch.setattr(device, "read_properties", lambda: types.SimpleNamespace(name="A GPU"))
    monkeypatch.setattr(device, "CudaGpu", lambda _properties: gpu)
    monkeypatch.setattr(operands, "library_of", lambda package: package)
    monkeypatch.setattr(operands, "DispatchedLibrary", lambda _path: library)
    monkeypatch.setitem(sys.modules, "a_wheel", types.ModuleType("a_wheel"))
    out = tmp_path / "x.json"
    command = ["operands.py", "--package", "a_wheel", "--problems", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    assert operands.main() == 0
    written = json.loads(out.read_text())
    assert (written["device"], written["wheel"], len(written["missing"])) == ("A GPU", "unknown", len(ALL) - 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("bf16_kk_silu             2 of 4 right, 2 refused, largest relative error")
    assert lines[-1] == "bf16_kk_silu             over eager mm: 1.250x, worst 1.250x of 1"
    library.faults = {library.names[0]: ("wrong", 0)}
    assert operands.main() == 1
