"""The Python package over the recorder: routes of frameworks, shapes, errors, and what an import does."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm_ffi

from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.operation import Layout
from aot.core.signature import Argument
from tests.runtime.host import SYNCHRONIZE
from tests.runtime.tensors import (
    CPU,
    CUDA,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FakeTensor,
    install_cupy,
    install_jax,
    install_old_torch,
)

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "templates" / "include" / "aot_gemm.h"


def strides_of(tensor):
    return tuple(tensor.strides)


def test_linear_launches_on_out(package, library):
    x, weight, out = FakeTensor((2, 3, 65)), FakeTensor((17, 65)), FakeTensor((2, 3, 17))
    assert package.linear(x, weight, out=out) is out
    (launch,) = library.fake_launches()
    assert (launch.a.data, launch.b.data, launch.d.data) == (x.address, weight.address, out.address)
    assert (tuple(launch.a.shape), tuple(launch.b.shape), tuple(launch.d.shape)) == ((6, 65), (17, 65), (6, 17))
    assert (strides_of(launch.a), strides_of(launch.b), strides_of(launch.d)) == ((65, 1), (65, 1), (17, 1))


def test_matmul_exchanges_the_strides_of_b(package, library):
    a, b, out = FakeTensor((5, 65), FLOAT16), FakeTensor((65, 17), FLOAT16), FakeTensor((5, 17), FLOAT16)
    package.matmul(a, b, out=out)
    (launch,) = library.fake_launches()
    assert (tuple(launch.b.shape), strides_of(launch.b)) == ((17, 65), (1, 17))


@pytest.mark.parametrize(
    ("a", "b", "out", "shapes"),
    [
        ((64,), (64, 16), (16,), ((1, 64), (16, 64), (1, 16))),
        ((8, 64), (64,), (8,), ((8, 64), (1, 64), (8, 1))),
        ((64,), (64,), (), ((1, 64), (1, 64), (1, 1))),
        ((4, 8, 64), (64,), (4, 8), ((32, 64), (1, 64), (32, 1))),
        ((4, 8, 64), (64, 16), (4, 8, 16), ((32, 64), (16, 64), (32, 16))),
    ],
)
def test_matmul_takes_vectors_and_leading_dimensions(package, library, a, b, out, shapes):
    package.matmul(FakeTensor(a, offset=2), FakeTensor(b), out=FakeTensor(out))
    (launch,) = library.fake_launches()
    assert tuple(tuple(x.shape) for x in (launch.a, launch.b, launch.d)) == shapes


def test_tensors_of_tvm_ffi_are_taken_on_the_environments_stream(package, library):
    tensors = [tvm_ffi.from_dlpack(FakeTensor(x)) for x in ((65, 65), (65, 65), (65, 65))]
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0x7770):
        assert package.linear(*tensors[:2], out=tensors[2]) is tensors[2]
    assert library.fake_launches()[0].stream == 0x7770


def test_cupy_is_asked_for_stream_and_memory(package, library, manifest, monkeypatch):
    cupy = install_cupy(monkeypatch, 0x8880)
    split = next(x for x in manifest.tables[0].table.sections[0].ladders)
    for m in (1, 64, 300, 20000):
        library.c.recorder_reset()
        x, weight = cupy.ndarray((m, split.k)), cupy.ndarray((split.n, split.k))
        out = package.linear(x, weight)
        assert type(out) is cupy.ndarray
        assert (out.shape, out.dtype) == ((m, split.n), x.dtype)
        (launch,) = library.fake_launches()
        assert (launch.stream, x.streams) == (0x8880, [-1])
        assert {launch.d.data} == {out.address}
        needs = manifest.kernels[launch.kernel].workspace.num_bytes(m, split.n, split.k)
        assert launch.workspace_floats * 4 == needs


def test_jax_gives_a_new_array_and_waits(package, library, monkeypatch):
    jax = install_jax(monkeypatch)
    x, weight = jax.Array((16, 72)), jax.Array((72, 24))
    out = package.matmul(x, weight)
    assert (type(out), out.shape) == (jax.Array, (16, 24))
    assert library.count(SYNCHRONIZE) == 1
    with pytest.raises(package.AotGemmError, match="out= was given, but JAX arrays are immutable"):
        package.matmul(x, weight, out=out)


def test_a_torch_without_the_exchange_api_is_asked_for_stream_and_memory(package, library, monkeypatch):
    torch = install_old_torch(monkeypatch, 0x9990)
    x, weight = torch.Tensor((65, 65)), torch.Tensor((33, 65))
    out = package.linear(x, weight)
    assert (type(out), out.shape, x.streams) == (torch.Tensor, (65, 33), [-1])
    assert library.fake_launches()[0].stream == 0x9990


@pytest.mark.parametrize("install", [install_cupy, install_jax, install_old_torch])
def test_a_result_lies_where_its_operands_do_whichever_gpu_is_current(package, library, monkeypatch, install):
    found = install(monkeypatch) if install is install_jax else install(monkeypatch, 0x8880)
    kind = next(getattr(found, name) for name in ("ndarray", "Array", "Tensor") if hasattr(found, name))
    x, weight = kind((65, 72), device=(CUDA, 1)), kind((40, 72), device=(CUDA, 1))
    assert package.linear(x, weight).__dlpack_device__() == (CUDA, 1)
    assert library.fake_launches()[0].device == 1
    with pytest.raises(package.DeviceError, match=r"is on GPU 0, x on GPU 1; expected one GPU"):
        package.linear(x, kind((40, 72)))


def early_shape(package, manifest):
    """Give (m, n, k) of bfloat16 kk whose kernel reads B early and needs no workspace."""
    early = {x.name for x in manifest.kernels if (Argument.PREFETCH_B in x.signature)}
    rng = random.Random(5)
    shapes = [tuple(8 * rng.randint(1, 2500) for _ in range(3)) for _ in range(500)]
    plans = ((shape, package.plan(*shape)) for shape in shapes)
    return next(shape for shape, plan in plans if plan.kernel in early and plan.workspace_bytes == 0)


def test_a_weight_is_read_late_unless_it_is_promised_constant(package, library, manifest):
    m, n, k = early_shape(package, manifest)
    x, weight, out = FakeTensor((m, k)), FakeTensor((n, k)), FakeTensor((m, n))
    package.linear(x, weight, out=out)
    promised = package.constant(weight)
    assert (type(promised), promised.tensor, promised.is_kept) == (package.ConstantWeight, weight, True)
    assert package.constant(promised).tensor is weight
    package.linear(x, promised, out=out)
    package.linear(x, weight, out=out)
    assert [launch.reads_early for launch in library.fake_launches()] == [0, 1, 0]
    assert {launch.b.data for launch in library.fake_launches()} == {weight.address}


def test_matmul_takes_a_promised_operand_too(package, library, manifest):
    m, n, k = early_shape(package, manifest)
    weight = FakeTensor((k, n), strides=(1, k))
    for right in (weight, package.constant(weight)):
        package.matmul(FakeTensor((m, k)), right, out=FakeTensor((m, n)))
    assert [(x.b.data, x.reads_early) for x in library.fake_launches()] == [(weight.address, 0), (weight.address, 1)]


def test_a_promise_waits_for_what_wrote_the_weight(package, library, monkeypatch):
    cupy = install_cupy(monkeypatch, 0x8880)
    package.constant(cupy.ndarray((16, 64)))
    assert library.count(SYNCHRONIZE) == 1
    library.c.recorder_set_capturing(True)
    with pytest.raises(package.AotGemmError, match="cannot wait for a stream that is being captured"):
        package.constant(cupy.ndarray((16, 64)))
    assert library.count(SYNCHRONIZE) == 1
    with pytest.raises(package.DtypeError, match="constant: got a list; expected a tensor"):
        package.constant([1])


class Counted(FakeTensor):
    _version = 3


def test_a_write_that_the_framework_counts_ends_the_promise(package, library, manifest):
    m, n, k = early_shape(package, manifest)
    x, weight, out = FakeTensor((m, k)), Counted((n, k)), FakeTensor((m, n))
    promised = package.constant(weight)
    assert repr(promised) == f"<ConstantWeight of a Counted ({n}, {k}), kept>"
    package.linear(x, promised, out=out)
    weight._version = 4
    assert repr(promised).endswith("written since>")
    package.linear(x, promised, out=out)
    package.linear(x, package.constant(promised), out=out)
    assert [launch.reads_early for launch in library.fake_launches()] == [1, 0, 1]


def test_memory_that_was_exchanged_ends_the_promise(package, library, manifest):
    m, n, k = early_shape(package, manifest)
    x, weight, out = FakeTensor((m, k)), FakeTensor((n, k)), FakeTensor((m, n))
    promised = package.constant(weight)
    before = weight.address
    for address in (before, before + 16, before):
        weight.address = address
        package.linear(x, promised, out=out)
    assert [launch.reads_early for launch in library.fake_launches()] == [1, 0, 1]


def test_torch_counts_its_writes(package):
    weight = torch.zeros(4, 4)
    promised = package.ConstantWeight(weight, weight.data_ptr())
    assert promised.is_kept
    weight.add_(1)
    assert not promised.is_kept
    with torch.inference_mode():
        weight = torch.zeros(4, 4)
        assert package.ConstantWeight(weight, weight.data_ptr()).is_kept


def test_other_memory_ends_a_promise(package):
    weight = torch.zeros(4, 4)
    promised = package.ConstantWeight(weight, weight.data_ptr())
    weight.data = torch.zeros(4, 4)
    assert not promised.is_kept


FRESH = """
import sys
from tests.runtime.host import Library
from tests.runtime.tensors import FakeTensor
sys.path.insert(0, sys.argv[1])
import aot_gemm
m, n, k = map(int, sys.argv[2:])
library = Library(aot_gemm._library.LIBRARY)
aot_gemm.linear(FakeTensor((m, k)), aot_gemm.constant(FakeTensor((n, k))), out=FakeTensor((m, n)))
(launch,) = library.fake_launches()
print(launch.reads_early)
"""


@pytest.mark.parametrize(
    ("variables", "answer"),
    [
        ({}, "1"),
        ({"AOT_GEMM_WEIGHT_PREFETCH": "1"}, "1"),
        ({"AOT_GEMM_WEIGHT_PREFETCH": "0"}, "0"),
    ],
)
def test_the_environment_can_turn_early_reads_off(package, manifest, variables, answer):
    directory = Path(package.__file__).parents[1]
    command = [sys.executable, "-c", FRESH, directory, *map(str, early_shape(package, manifest))]
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (answer, 0), done.stderr


E2 = (2, 2)
CASES = [
    ("linear", ([1], [2]), "DtypeError", "linear: got a list; expected a tensor that speaks DLPack"),
    (
        "linear",
        (np.zeros(E2, np.float16), np.zeros(E2, np.float16)),
        "DeviceError",
        (
            "linear: got a ndarray that is not in GPU memory (DLPack device type 1); expected a CUDA tensor; move "
            "it there first"
        ),
    ),
    (
        "linear",
        (torch.zeros(E2), torch.zeros(E2)),
        "DeviceError",
        "linear: x is not in GPU memory (DLPack device type 1); expected a CUDA tensor; move it there first",
    ),
    (
        "linear",
        (FakeTensor(E2), FakeTensor(E2, device=(CUDA, 1)), FakeTensor(E2)),
        "DeviceError",
        "linear: weight is on GPU 1, x on GPU 0; expected one GPU",
    ),
    (
        "linear",
        (FakeTensor(E2), FakeTensor(E2, device=(CPU, 0)), FakeTensor(E2)),
        "DeviceError",
        (
            "linear: got a FakeTensor that is not in GPU memory (DLPack device type 1); expected a CUDA tensor; move "
            "it there first"
        ),
    ),
    (
        "matmul",
        (FakeTensor(E2, FLOAT64), FakeTensor(E2, FLOAT64), FakeTensor(E2, FLOAT64)),
        "DtypeError",
        "matmul: a is float64; expected bfloat16, float16, float32, float8_e4m3fn, float8_e5m2 or int8; convert it",
    ),
    (
        "matmul",
        (FakeTensor(E2, FLOAT32), FakeTensor(E2, FLOAT32), FakeTensor(E2, FLOAT32)),
        "UnsupportedError",
        (
            "matmul: this wheel has no kernels for fp32 (float32 by float32 into float32); it has bf16, fp16, "
            "bf16_bias, none of these types; the nearest that it has is bf16: convert the operands to bfloat16; build "
            "a wheel with it: aot build --target h200 --operations default,fp32_kk"
        ),
    ),
    (
        "linear",
        (FakeTensor(E2), FakeTensor(E2, FLOAT16), FakeTensor(E2)),
        "DtypeError",
        (
            "linear: there is no product of bfloat16 by float16 into bfloat16; expected one of bfloat16 by bfloat16 "
            "into bfloat16; convert an operand, or give another out_dtype"
        ),
    ),
    (
        "linear",
        (FakeTensor((4, 8)), FakeTensor((3, 9)), FakeTensor((4, 3))),
        "ShapeError",
        "linear: x (4, 8) has k 8, weight (3, 9) has k 9; expected one k",
    ),
    (
        "linear",
        (FakeTensor((4, 8)), FakeTensor((8,)), FakeTensor((4, 3))),
        "ShapeError",
        "linear: got x (4, 8) and weight (8,); expected x (..., k) and weight (n, k)",
    ),
    (
        "matmul",
        (FakeTensor((3, 4, 8)), FakeTensor((2, 8, 4)), FakeTensor((4, 3))),
        "ShapeError",
        (
            "matmul: got a (3, 4, 8) and b (2, 8, 4); expected leading dimensions that are equal or 1, counted from "
            "the last two on; expand or permute one"
        ),
    ),
    (
        "matmul",
        (FakeTensor((4, 8)), FakeTensor((8, 4)), FakeTensor((4, 3))),
        "ShapeError",
        "matmul: out has shape (4, 3); expected (4, 4)",
    ),
    (
        "linear",
        (FakeTensor((2, 4, 8), strides=(64, 8, 1)), FakeTensor((8, 8)), FakeTensor((2, 4, 8))),
        "StrideError",
        (
            "a FakeTensor of shape (2, 4, 8) is not one matrix in memory; expected leading dimensions that join into "
            "rows of one stride; make it contiguous"
        ),
    ),
    (
        "linear",
        (FakeTensor((2, 8)), FakeTensor((8, 8)), FakeTensor((2, 8), strides=(0, 1))),
        "StrideError",
        "D (2, 8) with strides (0, 1) overlaps itself; expected distinct elements; give D storage of its own",
    ),
    (
        "linear",
        (FakeTensor((2, 8)), FakeTensor((8, 8))),
        "AotGemmError",
        "cannot allocate (2, 8) for this type of tensor; pass out=, or use torch or CuPy",
    ),
]


@pytest.mark.parametrize(("product", "tensors", "kind", "message"), CASES)
def test_errors_are_typed_and_exact(package, library, product, tensors, kind, message):
    with pytest.raises(getattr(package, kind), match=f"^{re.escape(message)}$") as caught:
        getattr(package, product)(*tensors[:2], out=tensors[2] if len(tensors) > 2 else None)
    assert type(caught.value).__name__ == kind
    assert library.fake_launches() == []


def test_errors_of_the_runtime_reach_python(package, library):
    library.c.recorder_fail(2, 719)
    with pytest.raises(package.CudaError, match="launching kernel"):
        package.linear(FakeTensor((65, 65)), FakeTensor((65, 65)), out=FakeTensor((65, 65)))
    library.c.recorder_fail(3, 100)
    with pytest.raises(package.NoGpuError, match="no usable NVIDIA GPU"):
        package.preload()


IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import aot_gemm
assert not {"aot_gemm._check", "aot_gemm._table", "aot_gemm._routes", "hashlib"} & set(sys.modules)
assert "libaot_gemm" not in open("/proc/self/maps").read()
assert set(aot_gemm.__all__) <= set(dir(aot_gemm))
assert not hasattr(aot_gemm, "no_such_name") and not hasattr(aot_gemm._products, "__path__")
assert "libaot_gemm" not in open("/proc/self/maps").read()
from aot_gemm import *
assert plan(1, 64, 64).m == 1 and isinstance(info(), Info)
"""


def test_importing_loads_what_a_product_needs_and_no_library(package):
    command = [sys.executable, "-c", IMPORT, Path(package.__file__).parents[1]]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_statuses_are_those_of_the_header(package):
    header = HEADER.read_text()
    statuses = re.findall(r"AOT_GEMM_(?:OK|ERROR_(\w+)) = (\d)", header)
    assert [int(number) for _, number in statuses] == list(range(len(package.errors.OF_STATUS)))
    names = [f"{name.title().replace('_', '')}Error" for name, _ in statuses]
    others = {"TableError": package.CorruptLibraryError, "OperationError": package.UnsupportedError}
    named = [others.get(x, getattr(package, x, None)) for x in names]
    assert list(package.errors.OF_STATUS) == [x or package.AotGemmError for x in named]


def test_words_have_the_numbers_of_the_toolchain(package):
    assert list(package._dtypes.ELEMENTS) == [x.value for x in ElementType if x.tag != "tf32"]
    assert list(package._request.EPILOGUES) == [x.value for x in Epilogue]
    numbers = package._extras.ACTIVATIONS | {"swiglu": package._extras.GATES["silu"]}
    assert numbers | {"geglu": package._extras.GATES["gelu_tanh"]} == {
        **{x.value: place for place, x in enumerate(Epilogue) if x.value not in ("none", "bias", "residual", "many")},
        None: 0,
    }
    assert list(package._table.LAYOUTS) == sorted((x.value for x in Layout), key=lambda x: Layout(x).code)
