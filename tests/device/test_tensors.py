"""Tensors that are not plain memory, gradients, and overlaps: a typed error each, and nothing is written."""

import ctypes
import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import aot_gemm
import torch

from tests.device.fuzz_cases import ILLEGAL, Operand, View
from tests.device.fuzz_tensors import Kit, build
from tests.device.reference import poisoned, randn, relative_error
from tests.runtime.tensors import DLTensor

SQUARE = View((64, 64), (64, 1))
KINDS = [kind for kind in ILLEGAL if kind != "other_gpu"]
CLASSES = {
    **dict.fromkeys(("none", "list", "string", "integer", "capsule", "handle"), "DtypeError"),
    **dict.fromkeys(("float32", "float64", "int8", "int16", "bool", "complex32"), "DtypeError"),
    **dict.fromkeys(("numpy", "cpu", "pinned"), "DeviceError"),
    **dict.fromkeys(("negative", "fake", "wrapper", "sparse_coo", "sparse_csr", "nested"), "OperandError"),
}
"""The errors' classes, where the operand's kind leaves no choice."""


@pytest.fixture(scope="module")
def kit():
    return Kit(7)


def half(*shape):
    return randn(*shape, dtype=torch.float16)


@pytest.mark.parametrize("place", ["x", "weight", "out"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_operand_is_refused(kit, kind, place):
    if (kind, place) in {("none", "out"), ("handle", "weight")}:
        pytest.skip("this is legal")
    arguments = {"x": half(64, 64), "weight": half(64, 64), "out": poisoned(64, 64, dtype=torch.float16)}
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    operands = arguments | {place: build(kit, Operand(kind, "float16", SQUARE))}
    # A weight alone may be of int8: what it lacks, kernels or factors, is told by errors of other classes.
    refusal = "AotGemmError" if (kind, place) == ("int8", "weight") else CLASSES.get(kind, "AotGemmError")
    with pytest.raises(getattr(aot_gemm, refusal)):
        aot_gemm.linear(operands["x"], operands["weight"], out=operands["out"])
    torch.cuda.synchronize()
    for name, tensor in arguments.items():
        assert torch.equal(tensor.view(torch.int16), before[name].view(torch.int16)), name
    assert not kit.restore()


@pytest.fixture
def mesh():
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("this torch has no distributed package")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cuda", (1,))
    distributed.destroy_process_group()


def test_distributed_tensors_are_refused(mesh):
    from torch.distributed.tensor import DTensor, Replicate

    plain = half(64, 64)
    wrapped = DTensor.from_local(plain, mesh, [Replicate()], run_check=False)
    for x, weight, out in ((wrapped, plain, None), (plain, wrapped, None), (plain, half(64, 64), wrapped)):
        with pytest.raises(aot_gemm.OperandError, match="DTensor"):
            aot_gemm.linear(x, weight, out=out)
    with pytest.raises(aot_gemm.OperandError, match="DTensor"):
        aot_gemm.constant(wrapped)
    assert relative_error(aot_gemm.linear(wrapped.to_local(), plain), plain, plain.t()) <= 2e-3


class _Managed(ctypes.Structure):
    """`DLManagedTensorVersioned` of dlpack.h."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


class ReadOnly:
    """A matrix in GPU memory whose capsule says that it must not be written."""

    def __init__(self, tensor):
        self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), tensor.dtype
        pair = ctypes.c_int64 * 2
        self._keep = pair(*tensor.shape), pair(*tensor.stride())
        described = DLTensor(tensor.data_ptr(), (ctypes.c_int32 * 2)(2, 0), 2, 2, 16, 1, *self._keep, 0)
        self._managed = _Managed((ctypes.c_uint32 * 2)(1, 0), None, None, 1, described)

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor_versioned", None)


def test_a_read_only_capsule_is_an_operand_but_no_out():
    x, weight, memory = half(64, 64), half(64, 64), poisoned(64, 64, dtype=torch.float16)
    assert relative_error(aot_gemm.linear(x, ReadOnly(weight)), x, weight.t()) <= 2e-3
    with pytest.raises(aot_gemm.OperandError, match="read-only"):
        aot_gemm.linear(x, weight, out=ReadOnly(memory))
    torch.cuda.synchronize()
    assert memory.isnan().all()


def test_an_array_of_jax_is_no_out():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    out = jax.numpy.full((64, 64), 3, "float16").block_until_ready()
    for x, weight in ((half(64, 64), half(64, 64)), (jax.numpy.ones((64, 64), "float16"),) * 2):
        with pytest.raises(aot_gemm.OperandError):
            aot_gemm.linear(x, weight, out=out)
    torch.cuda.synchronize()
    assert (out == 3).all()


@pytest.mark.parametrize("place", [0, 1])
def test_a_gradient_that_would_be_lost_is_refused(place):
    operands = [half(8, 64), half(16, 64)]
    operands[place].requires_grad_()
    for recorded in (operands, [operands[0] * 1, operands[1] * 1]):
        for weight in (recorded[1], aot_gemm.constant(recorded[1].detach())) if place == 0 else (recorded[1],):
            with pytest.raises(aot_gemm.GradientError, match=r"torch\.no_grad\(\)"):
                aot_gemm.linear(recorded[0], weight)
        with pytest.raises(aot_gemm.GradientError, match=r"torch\.no_grad\(\)"):
            aot_gemm.matmul(recorded[0], recorded[1].t())
    expected = aot_gemm.linear(*(operand.detach() for operand in operands))
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            result = aot_gemm.linear(*operands)
        assert torch.equal(result, expected)
        assert not result.requires_grad


def test_an_out_that_requires_a_gradient_is_refused():
    out = poisoned(8, 16, dtype=torch.float16).requires_grad_()
    with pytest.raises(aot_gemm.GradientError):
        aot_gemm.linear(half(8, 64), half(16, 64), out=out)
    torch.cuda.synchronize()
    assert out.isnan().all()


def test_tangents_and_transforms_are_refused():
    x, weight = half(8, 64), half(16, 64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(aot_gemm.AotGemmError):
            aot_gemm.linear(dual, weight)
    for transform in (
        lambda: torch.vmap(lambda row: aot_gemm.linear(row, weight))(half(4, 8, 64)),
        lambda: torch.vmap(lambda each: aot_gemm.linear(x, each))(half(4, 16, 64)),
        lambda: torch.func.grad(lambda each: aot_gemm.linear(each, weight).sum())(x),
        lambda: torch.func.jvp(lambda each: aot_gemm.linear(each, weight), (x,), (torch.ones_like(x),)),
    ):
        with pytest.raises(aot_gemm.AotGemmError):
            transform()


def test_autograd_hears_of_a_saved_tensor_that_out_overwrites():
    parameter, saved = torch.ones(8, 16, device="cuda", dtype=torch.float16, requires_grad=True), half(8, 16)
    loss = (parameter * saved).sum()
    version = saved._version
    aot_gemm.linear(half(8, 64), half(16, 64), out=saved)
    assert saved._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def overlaps():
    """Give operands and an `out` that share elements, by how."""
    both = half(128, 64)
    yield "out is a", both[:64], half(64, 64), both[:64]
    yield "out is b", half(64, 64), both[:64], both[:64]
    yield "out is a, transposed", both[:64], half(64, 64), both[:64].t()
    yield "out begins in a", both[:64], half(64, 64), both[63:127]
    yield "out ends in b", half(64, 64), both[64:], both[1:65]
    flat = half(64 * 130)
    yield "one element", flat[: 64 * 64].view(64, 64), half(64, 64), flat[64 * 64 - 1 : 128 * 64 - 1].view(64, 64)
    wide = half(64, 96)
    yield "columns", wide[:, :64], half(64, 64), wide[:, 32:]
    row = half(1, 64)
    yield "an expanded a", row.expand(64, 64), half(64, 64), row.as_strided((64, 64), (0, 1)).expand(64, 64)


@pytest.mark.parametrize("index", range(8))
def test_an_out_that_overlaps_an_operand_is_refused(index):
    how, a, b, out = list(overlaps())[index]
    before = a.clone(), b.clone(), out.clone()
    with pytest.raises(aot_gemm.StrideError):
        aot_gemm.matmul(a, b, out=out)
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(before, (a, b, out), strict=True)), how


def test_an_out_between_the_elements_of_an_operand_is_right():
    wide, b = half(64, 160), half(64, 96)
    a, out = wide[:, :64], wide[:, 64:]
    step = half(64, 64, 2)
    for left, right, result in ((a, b, out), (step[..., 0], b[:, :64], step[..., 1])):
        expected = left.float() @ right.float()
        try:
            aot_gemm.matmul(left, right, out=result)
        except aot_gemm.StrideError:
            pytest.skip("refused, as it may be")
        torch.testing.assert_close(result.float(), expected, rtol=5e-3, atol=5e-2)


def test_the_third_argument_is_the_bias():
    x, weight, bias = half(8, 64), half(16, 64), half(16)
    expected = x.float() @ weight.float().t() + bias.float()
    for result in (aot_gemm.linear(x, weight, bias), aot_gemm.linear(x, weight, bias=bias)):
        torch.testing.assert_close(result.float(), expected, rtol=2e-3, atol=2e-3)
    out = poisoned(8, 16, dtype=torch.float16)
    with pytest.raises(aot_gemm.AotGemmError):
        aot_gemm.linear(x, weight, out)
    with pytest.raises(TypeError):
        aot_gemm.matmul(x, weight.t(), out)
    torch.cuda.synchronize()
    assert out.isnan().all()
    assert torch.equal(aot_gemm.linear(x, weight, None), aot_gemm.linear(x, weight, bias=None))


@pytest.mark.parametrize("weight", [None, [1], "w", 3])
def test_nothing_but_a_tensor_is_declared_constant(weight):
    with pytest.raises(aot_gemm.AotGemmError):
        aot_gemm.constant(weight)


@pytest.mark.parametrize("kind", ["cpu", "meta", "sparse_coo", "fake", "functional", "wrapper", "float64", "negative"])
def test_no_tensor_but_a_plain_one_is_declared_constant(kit, kind):
    with pytest.raises(aot_gemm.AotGemmError):
        aot_gemm.constant(build(kit, Operand(kind, "float16", SQUARE)))
