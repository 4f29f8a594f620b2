"""The binding over DLPack's C exchange API: what it asks of a framework, gives back and holds, and what it refuses."""

from __future__ import annotations

import gc
import inspect
import re
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
import torch

from tests.runtime.exchange import Framework, capsule_of
from tests.runtime.host import LAUNCH, SYNCHRONIZE
from tests.runtime.tensors import BFLOAT16, CUDA, FLOAT16, UINT8, FakeTensor

SOURCES = Path(__file__).parents[2] / "templates" / "src"
PLAIN = (65, 33, 65)  # m, n, k that only the fallback takes, which needs no workspace


@pytest.fixture
def framework():
    return Framework()


def operands(kind, shape=PLAIN, *, out=True):
    m, n, k = shape
    tensors = [kind((m, k)), kind((n, k))]
    return (*tensors, kind((m, n)) if out else None)


def linear(package, tensors):
    """Call `linear` with an x, a weight and an out, which may be None."""
    return package.linear(tensors[0], tensors[1], out=tensors[2])


def split_shape(package, manifest):
    """Give (m, n, k) of bfloat16 kk whose kernel needs a workspace."""
    ladders = manifest.tables[0].table.sections[0].ladders
    shapes = ((m, x.n, x.k) for x in ladders for m in x.m_edges)
    return next(shape for shape in shapes if package.plan(*shape).workspace_bytes > 0)


def test_addresses_shapes_and_stream_are_the_frameworks(package, library, framework):
    x, weight, out = operands(framework.Tensor)
    assert package.linear(x, weight, out=out) is out
    (launch,) = library.fake_launches()
    assert (launch.a.data, launch.b.data, launch.d.data) == (x.address, weight.address, out.address)
    assert (tuple(launch.a.shape), tuple(launch.b.shape), tuple(launch.d.shape)) == ((65, 65), (33, 65), (65, 33))
    assert (launch.stream, framework.device) == (0x5550, (CUDA, 0))
    assert (x.streams, framework.exported, framework.allocated, framework.deleted) == ([], [], [], [])


def test_operands_may_be_given_by_position_or_by_name(package, library, framework):
    x, weight, out = operands(framework.Tensor)
    assert package.linear(weight=weight, out=out, x=x) is package.linear(x, weight, None, out=out) is out
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'weight'"):
        package.linear(x)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'scale'"):
        package.linear(x, weight, scale=x)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        package.matmul(x, weight, out)
    assert len(library.fake_launches()) == 2
    assert [str(inspect.signature(x)) for x in (package.linear, package.matmul)] == [
        (
            "(x: 'Any', weight: 'Any', bias: 'Any' = None, *, activation: 'str | None' = None, scale_x: 'Any' = None, "
            "scale_w: 'Any' = None, residual: 'Any' = None, out: 'Any' = None, out_dtype: 'Any' = None, "
            "scale_out: 'Any' = None, allow_tf32: 'bool' = False, use_fast_accum: 'bool' = False, "
            "deterministic: 'bool' = False, batch_invariant: 'bool' = False) -> 'Any'"
        ),
        (
            "(a: 'Any', b: 'Any', *, out: 'Any' = None, deterministic: 'bool' = False, "
            "batch_invariant: 'bool' = False) -> 'Any'"
        ),
    ]


def biased(tensor, shape=PLAIN, dtype=BFLOAT16):
    """Make x, weight and bias of a shape."""
    m, n, k = shape
    return tensor((m, k), dtype), tensor((n, k), dtype), tensor((n,), dtype)


@pytest.mark.parametrize("by_capsules", [False, True])
def test_torchs_third_argument_is_a_bias(package, library, framework, by_capsules):
    tensor = FakeTensor if by_capsules else framework.Tensor
    x, weight, bias = biased(tensor)
    out = tensor(PLAIN[:2], BFLOAT16)
    assert package.linear(x, weight, bias, out=out) is out
    assert package.linear(x, weight, bias=bias, out=out) is out
    package.linear(x, weight, None, out=out)
    launches = library.fake_launches()
    assert [(y.bias.data, y.bias.shape[0]) for y in launches] == [(bias.address, 33)] * 2 + [(None, 0)]
    plans = [package.plan(*PLAIN, bias=y) for y in (True, False)]
    assert [library.c.aot_gemm_kernel_name(y.kernel).decode() for y in launches[1:]] == [y.kernel for y in plans]
    assert (["bias" in y.kernel for y in plans], [y.bias for y in plans]) == ([True, False], [True, False])
    assert package.explain(48, 64, 72, bias=True).startswith(
        "bfloat16 m 48 n 64 k 72, layout kk, with a bias, on sm_90a"
    )


@pytest.mark.parametrize("by_capsules", [False, True])
def test_a_bias_that_the_wheel_has_no_kernels_for_is_refused(package, library, framework, by_capsules):
    tensor = FakeTensor if by_capsules else framework.Tensor
    x, weight, bias = biased(tensor, dtype=FLOAT16)
    with pytest.raises(package.UnsupportedError) as caught:
        package.linear(x, weight, bias, out=tensor(PLAIN[:2], FLOAT16))
    assert str(caught.value) == (
        "linear: this wheel has no kernels for fp16_bias (float16 by float16 into float16 with bias); of these types "
        "it has fp16; the nearest that it has is fp16: add the bias to its result; build a wheel with it: aot build "
        "--target h200 --operations default,fp16_kk_bias; an output is named by keyword, out=, since the third "
        "argument is a bias"
    )
    assert isinstance(caught.value, NotImplementedError)
    with pytest.raises(package.UnsupportedError, match=r"^plan: this wheel has no kernels for fp16_bias"):
        package.plan(*PLAIN, "float16", bias=True)
    assert library.fake_launches() == []


WRONG_BIASES = [
    (
        lambda tensor: tensor((32,), BFLOAT16),
        "ShapeError",
        r"linear: bias has shape \(32,\); expected \(33,\)",
    ),
    (
        lambda tensor: tensor(PLAIN[:2], BFLOAT16),
        "ShapeError",
        r"linear: bias has shape \(65, 33\); expected \(33,\)",
    ),
    (
        lambda tensor: tensor((), BFLOAT16),
        "ShapeError",
        r"linear: bias has shape \(\); expected \(33,\)",
    ),
    (
        lambda tensor: tensor((33,), FLOAT16),
        "DtypeError",
        "linear: bias is float16; expected bfloat16; convert it",
    ),
    (
        lambda tensor: tensor((33,), BFLOAT16, strides=(2,)),
        "StrideError",
        "the bias of 33 elements has the stride 2",
    ),
    (
        lambda tensor: tensor((33,), BFLOAT16, strides=(0,)),
        "StrideError",
        "the bias of 33 elements has the stride 0",
    ),
    (lambda tensor: tensor((33,), BFLOAT16, device=(CUDA, 1)), "DeviceError", "linear: bias is on GPU 1, x on GPU 0"),
    (lambda tensor: 5, "DtypeError", "linear: got a int; expected a tensor that speaks DLPack"),
]


@pytest.mark.parametrize("by_capsules", [False, True])
@pytest.mark.parametrize(("make", "kind", "message"), WRONG_BIASES, ids=range(len(WRONG_BIASES)))
def test_a_bias_that_does_not_fit_is_refused(package, library, framework, make, kind, message, by_capsules):
    tensor = FakeTensor if by_capsules else framework.Tensor
    x, weight, _ = biased(tensor)
    with pytest.raises(getattr(package, kind), match=message):
        package.linear(x, weight, make(tensor), out=tensor(PLAIN[:2], BFLOAT16))
    assert library.fake_launches() == []


def test_an_out_over_the_bias_is_refused(package, library, framework):
    x, weight, bias = biased(framework.Tensor)
    out = framework.Tensor(PLAIN[:2], BFLOAT16)
    out.address = bias.address
    with pytest.raises(package.StrideError, match="overlaps the bias at address"):
        package.linear(x, weight, bias, out=out)
    assert library.fake_launches() == []


def test_the_stream_of_another_framework_is_ordered_around_its_bias(package, library, framework):
    other = Framework(stream=0x7770)
    x, weight, _ = biased(framework.Tensor)
    package.linear(x, weight, other.Tensor((33,), BFLOAT16), out=framework.Tensor(PLAIN[:2], BFLOAT16))
    pairs = [(order.first, order.second, order.num_launches) for order in library.orders()]
    assert pairs == [(0x7770, 0x5550, 0), (0x5550, 0x7770, 1)]


def test_the_result_is_allocated_by_the_framework(package, library, framework):
    x, weight = framework.Tensor((2, 3, 65), FLOAT16), framework.Tensor((65, 17), FLOAT16)
    out = package.matmul(x, weight)
    ((_, allocated),) = framework.allocated
    assert out is allocated
    assert (out.shape, out.dtype, out.device) == ((2, 3, 17), FLOAT16, (CUDA, 0))
    assert library.fake_launches()[0].d.data == out.address
    assert framework.deleted == []


def test_the_workspace_is_the_frameworks_and_released_after_the_launch(package, library, manifest, framework):
    shape = split_shape(package, manifest)
    x, weight, out = operands(framework.Tensor, shape)
    package.linear(x, weight, out=out)
    (launch,) = library.fake_launches()
    ((address, workspace),) = framework.allocated
    assert (workspace.shape, workspace.dtype) == ((package.plan(*shape).workspace_bytes,), UINT8)
    assert (launch.workspace, launch.workspace_floats * 4) == (workspace.address, workspace.shape[0])
    assert framework.deleted == [address]


def test_a_framework_without_views_has_its_tensors_deleted_once(package, library):
    framework = Framework(views=False)
    linear(package, operands(framework.Tensor))
    assert len(library.fake_launches()) == 1
    assert len(framework.exported) == 3
    assert sorted(framework.deleted) == sorted(framework.exported)


def test_what_was_asked_for_is_deleted_once_when_the_launch_fails(package, library, manifest):
    framework = Framework(views=False)
    library.c.recorder_fail(LAUNCH, 719)
    with pytest.raises(package.CudaError, match="launching kernel"):
        linear(package, operands(framework.Tensor, split_shape(package, manifest), out=False))
    assert (len(framework.exported), len(framework.allocated)) == (2, 2)  # x and weight; out and the workspace
    assert sorted(framework.deleted) == sorted([*framework.exported, *(x for x, _ in framework.allocated)])


def test_operands_that_are_refused_are_deleted_once(package, library):
    framework = Framework(views=False)
    with pytest.raises(package.ShapeError, match="has k 8, weight"):
        package.linear(framework.Tensor((4, 8)), framework.Tensor((4, 9)))
    with pytest.raises(package.DtypeError, match="got a list; expected a tensor that speaks DLPack"):
        package.linear(framework.Tensor((4, 8)), [1, 2])
    with pytest.raises(package.DtypeError, match="got a NoneType; expected a tensor that speaks DLPack"):
        package.linear(framework.Tensor((4, 8)), None)
    assert len(framework.exported) == 4
    assert sorted(framework.deleted) == sorted(framework.exported)
    assert (library.fake_launches(), framework.allocated) == ([], [])


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ((b"MemoryError", b"no memory left"), MemoryError, "^no memory left$"),
        ((b"TheirAllocator", b"no memory left"), RuntimeError, "^TheirAllocator: no memory left$"),
        ((b"", b""), RuntimeError, "^a framework gave no memory$"),
    ],
)
def test_an_allocators_error_is_raised(package, library, framework, error, kind, message):
    framework.error = error
    with pytest.raises(kind, match=message):
        linear(package, operands(framework.Tensor, out=False))
    assert library.fake_launches() == []


class Torch(Framework):
    """torch, whose tensors claim to be in GPU memory."""

    def __init__(self):
        super().__init__()
        capsule = self.Tensor.__dlpack_c_exchange_api__
        self.kind = type("Parameter", (torch.Tensor,), {"__dlpack_c_exchange_api__": capsule})

    def tensor(self, shape):
        tensor = torch.empty(shape, dtype=torch.bfloat16).as_subclass(self.kind)
        tensor.claimed = FakeTensor(shape)
        return tensor

    def _view(self, tensor, out):
        return super()._view(tensor.claimed, out)


@pytest.mark.parametrize("what", ["out", "workspace"])
@pytest.mark.parametrize(
    ("message", "kind"),
    [("CUDA out of memory. Tried to allocate 2 GiB.", torch.OutOfMemoryError), ("CUDA error: no", RuntimeError)],
)
def test_torchs_lack_of_memory_has_torchs_class(package, library, manifest, what, message, kind):
    """Programs that halve their batch catch it by that; torch's allocator calls it a MemoryError, as DLPack has it."""
    framework = Torch()
    framework.error = (b"MemoryError", message.encode())
    tensors = operands(framework.tensor, split_shape(package, manifest), out=what == "workspace")
    with torch.no_grad(), pytest.raises(RuntimeError, match=f"^{re.escape(message)}$") as caught:
        linear(package, tensors)
    assert type(caught.value) is kind
    assert library.fake_launches() == []


def test_a_framework_that_fails_without_a_word_gives_an_error(package, framework):
    framework.error = "view"
    with pytest.raises(package.OperandError, match=r"no plain strided memory \(a tensor gave no DLTensor\)"):
        linear(package, operands(framework.Tensor))


def test_a_frameworks_own_error_is_the_cause_of_ours(package):
    sparse = torch.zeros((2, 2), dtype=torch.bfloat16).to_sparse()
    with pytest.raises(package.OperandError, match=r"no plain strided memory .*expected a dense tensor") as caught:
        package.linear(sparse, sparse)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_torch_on_the_cpu_is_refused_by_the_binding(package, library):
    x = torch.zeros((2, 2), dtype=torch.bfloat16)
    for weight in (x, torch.nn.Parameter(x)):
        with pytest.raises(package.DeviceError, match=r"^linear: x is not in GPU memory \(DLPack device type 1\)"):
            package.linear(x, weight, out=x)
    assert library.fake_launches() == []


def test_each_operand_is_read_by_its_own_type(package, library, framework):
    other = Framework(views=False, stream=0x6660)
    derived = type("Derived", (framework.Tensor,), {})
    x, weight, out = derived((65, 65)), other.Tensor((33, 65)), framework.Tensor((65, 33))
    package.linear(x, weight, out=out)
    (launch,) = library.fake_launches()
    assert (launch.a.data, launch.b.data, launch.d.data) == (x.address, weight.address, out.address)
    assert launch.stream == 0x5550
    assert other.deleted == other.exported != []
    # The launch waits for what the weight's framework has enqueued, and that waits for the launch.
    assert [(x.first, x.second, x.num_launches) for x in library.orders()] == [(0x6660, 0x5550, 0), (0x5550, 0x6660, 1)]


def test_operands_without_the_api_go_along_as_capsules(package, library, framework):
    x, weight, out = framework.Tensor((65, 65)), FakeTensor((33, 65)), FakeTensor((65, 33))
    assert package.linear(x, weight, out=out) is out
    (launch,) = library.fake_launches()
    assert (launch.b.data, launch.d.data, launch.stream) == (weight.address, out.address, 0x5550)
    assert (x.streams, weight.streams, out.streams) == ([], [0x5550], [0x5550])
    assert library.count(SYNCHRONIZE) == 2  # of a framework whose stream is not known, the launch is waited for


def test_an_api_of_another_major_version_is_not_used(package, library):
    newer = Framework(major=2)
    x, weight, out = operands(newer.Tensor)
    package.linear(x, weight, out=out)
    assert ([len(t.streams) for t in (x, weight, out)], library.fake_launches()[0].stream) == ([1, 1, 1], None)


def test_an_older_api_is_found_behind_a_newer_one(package, library, framework):
    newer = Framework(major=2, older=framework)
    x, weight, out = operands(newer.Tensor)
    package.linear(x, weight, out=out)
    assert (x.streams, library.fake_launches()[0].stream) == ([], 0x5550)


@pytest.mark.parametrize("attribute", [None, 7, capsule_of(1, b"another")])
def test_an_attribute_that_is_no_api_is_passed_over(package, library, attribute):
    kind = type("Tensor", (FakeTensor,), {"__dlpack_c_exchange_api__": attribute})
    linear(package, operands(kind))
    assert len(library.fake_launches()) == 1


def test_an_attribute_that_fails_is_an_error(package):
    def fail(self):
        raise LookupError("not today")

    meta = type("Meta", (type,), {"__dlpack_c_exchange_api__": property(fail)})
    with pytest.raises(LookupError, match="not today"):
        linear(package, operands(meta("Tensor", (FakeTensor,), {})))


def test_more_types_than_are_kept_are_taken(package, library, framework):
    for _ in range(100):
        kind = type("Derived", (framework.Tensor,), {})
        for _ in range(2):
            linear(package, operands(kind))
    assert {x.stream for x in library.fake_launches()} == {0x5550}
    assert len(library.fake_launches()) == 200


def test_threads_meet_new_types_together(package, library, framework):
    kinds = [type("Derived", (framework.Tensor,), {}) for _ in range(4)]
    barrier = threading.Barrier(8)

    def work():
        barrier.wait()
        for _ in range(20):
            for kind in kinds:
                linear(package, operands(kind))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(library.fake_launches()) == 8 * 20 * len(kinds)


def test_no_reference_is_lost_or_kept(package, library, manifest, framework):
    x, weight, out = operands(framework.Tensor)
    plain = operands(FakeTensor)
    bad = framework.Tensor((65, 64))

    def work():
        package.linear(x, weight, out=out)
        package.linear(x, package.constant(weight), out=out)
        linear(package, plain)
        package.linear(x, weight)
        package.linear(x, plain[1], out=out)
        for left, right in ((bad, weight), (x, None), (x, [1])):
            with pytest.raises(package.AotGemmError):
                package.linear(left, right, out=out)
        framework.allocated.clear()
        framework._alive.clear()
        for tensor in plain:
            tensor.streams.clear()

    watched = [x, weight, out, *plain, bad, framework.Tensor, FakeTensor, None]

    def change():
        """Return how many references come or go in 50 turns; what is lost or kept in a turn is so in every one."""
        work()
        gc.collect()
        before = [sys.getrefcount(value) for value in watched]
        for _ in range(50):
            work()
        gc.collect()
        after = [sys.getrefcount(value) for value in watched]
        return max(abs(x - y) for x, y in zip(before, after, strict=True))

    assert min(change() for _ in range(3)) < 10  # of None some go whenever earlier tests' garbage does


def test_the_functions_beneath_refuse_what_they_cannot_read(package, library):
    functions = package._library.binding()
    tensors = [FakeTensor(shape).__dlpack__() for shape in ((65, 65), (33, 65), (65, 33))]
    on, measure = functions["linear_on"], functions["linear_workspace_bytes"]
    tensors.insert(2, None)
    assert (on(tuple(tensors), 0, None, 0x4440), measure(tuple(tensors), 0)) == (None, 0)
    assert library.fake_launches()[0].stream == 0x4440
    for name, function in functions.items():
        with pytest.raises(package.AotGemmError, match=r"^got 64 arguments; expected \d+$"):
            function(*[None] * 64)  # more than any takes
        with pytest.raises(package.AotGemmError, match=r"^got 0 arguments; expected \d+$"):
            function()
        with pytest.raises(TypeError, match=f"{name}.* takes no keyword arguments"):
            function(out=None)
    for wrong in (None, 1, capsule_of(1, b"used_dltensor")):
        with pytest.raises(package.DtypeError, match="the right operand is not a DLPack capsule"):
            measure((tensors[0], wrong, *tensors[2:]), 0)
    with pytest.raises(package.DtypeError, match="the workspace is not a vector of bytes"):
        on(tuple(tensors), 0, tensors[0], 0)
    for wrong in ("stream", None, 2**80):
        with pytest.raises((TypeError, OverflowError)):
            on(tuple(tensors), 0, None, wrong)
    for wrong in (None, 3, [*tensors], (), tuple(tensors[:3])):
        with pytest.raises((package.AotGemmError, SystemError)):
            measure(wrong, 0)
    assert len(library.fake_launches()) == 1


def test_versioned_capsules_are_read(package, library):
    framework = Framework()
    shapes = ((65, 65), (33, 65), (65, 33))
    capsules = [capsule_of(framework._manage(FakeTensor(x, BFLOAT16)), b"dltensor_versioned") for x in shapes]
    capsules.insert(2, None)
    package._library.binding()["linear_on"](tuple(capsules), 0, None, 0)
    assert (len(library.fake_launches()), framework.deleted) == (1, [])
    framework._alive[list(framework._alive)[-1]][0].flags = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
    with pytest.raises(package.OperandError, match="out is read-only"):
        package._library.binding()["linear_on"](tuple(capsules), 0, None, 0)
    framework._alive[framework._manage(FakeTensor((65, 65)))][0].version[0] = 2
    address = next(reversed(framework._alive))
    with pytest.raises(RuntimeError, match="another major version of DLPack"):
        package._library.binding()["linear_workspace_bytes"](
            (capsule_of(address, b"dltensor_versioned"), *capsules[1:]), 0
        )


LIMITED = "#define Py_LIMITED_API 0x030a0000\n#include <Python.h>\n"


def test_declarations_are_those_of_cpythons_stable_abi(tmp_path):
    """What the limited API of 3.10 lacks does not compile; nor does what it has otherwise than we declare it."""
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        pytest.skip("no headers of Python here")
    header = (SOURCES / "python_api.h").read_text()
    names = re.findall(r"^AOT_GEMM_OF_PYTHON .*?(\w+)[(;]", header, re.MULTILINE)
    assert {"Py_DecRef", "PyCMethod_New", "_Py_NoneStruct", "PyExc_AttributeError"} < set(names)
    used = ", ".join(f"reinterpret_cast<const void*>(&{name})" for name in names)
    (tmp_path / "has.cc").write_text(f"{LIMITED}#undef PyCMethod_New\nconst void* names[] = {{{used}}};\n")
    flags = [x.replace("=", "==") for x in re.findall(r"constexpr int (\w+ = \w+);", header)]
    assert len(flags) == 2
    checks = "".join(f"static_assert({x});\n" for x in flags)
    check = f'#undef PyCMethod_New\n#include "python_api.h"\n{checks}'
    (tmp_path / "equals.cc").write_text(LIMITED + check)
    flags = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{include}", f"-I{SOURCES}"]
    for source in ("has.cc", "equals.cc"):
        subprocess.run(["g++", *flags, tmp_path / source], check=True)
