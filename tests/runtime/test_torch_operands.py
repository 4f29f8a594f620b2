"""Torch's tensors that are no plain memory, or that torch would record: a typed error each, in every place.

There is no GPU here. On the CPU, whatever is said before DeviceError is said of any device; and `GpuTensor` is a
subclass of torch's class that claims to be in GPU memory, through an exchange API of the tests.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd import forward_ad
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.runtime.exchange import Framework
from tests.runtime.tensors import BFLOAT16, CUDA, FLOAT16

pytestmark = pytest.mark.usefixtures("fresh_binding")
BF16 = torch.bfloat16
M, N, K = 4, 6, 8
WEIGHT = torch.zeros(N, K, dtype=BF16)


def tensor(*shape, dtype=BF16, **options):
    return torch.zeros(*shape or (M, K), dtype=dtype, **options)


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise AssertionError("nothing is to be computed")


class Plain(torch.Tensor):
    pass


def fake(*shape):
    with FakeTensorMode():
        return tensor(*shape)


def functional(shape):
    """Make a functional tensor whose offset into its storage, which has no memory, is 16."""
    wrapped = torch._to_functional_tensor(tensor(100))
    torch._enable_functionalization(reapply_views=True)
    try:
        return wrapped[16 : 16 + shape[0] * shape[1]].view(shape)
    finally:
        torch._disable_functionalization()


def functional_subclass(shape):
    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(tensor(*shape))


class Failing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        raise LookupError("not today")


@pytest.fixture(scope="session")
def mesh():
    from torch.distributed.tensor import init_device_mesh

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


NO_STORAGE = "no plain strided memory (Cannot access data pointer of Tensor that doesn't have storage)"
KINDS = {
    "fake": (fake, "got a torch._subclasses.fake_tensor.FakeTensor, a wrapper with a __torch_dispatch__ of its own"),
    "fake_parameter": (lambda *shape: torch.nn.Parameter(fake(*shape), requires_grad=False), "a wrapper with"),
    "wrapper": (lambda *shape: Wrapper(tensor(*shape)), "Wrapper, a wrapper with a __torch_dispatch__ of its own"),
    "functional": (lambda *shape: functional(shape), "got a tensor that has no memory"),
    "functional_subclass": (lambda *shape: functional_subclass(shape), "functional_tensor.FunctionalTensor, a wrapper"),
    "sparse": (lambda *shape: tensor(*shape).to_sparse(), NO_STORAGE),
    "sparse_rows": (lambda *shape: tensor(*shape).to_sparse_csr(), NO_STORAGE),
    "mkldnn": (lambda *shape: tensor(*shape).to_mkldnn(), NO_STORAGE),
    "quantised": (
        lambda *shape: torch.quantize_per_tensor(torch.zeros(*shape), 1.0, 0, torch.qint8),
        "no plain strided memory (QUInt/QInt types are not supported by dlpack)",
    ),
    "meta": (lambda *shape: tensor(*shape, device="meta"), "no plain strided memory (Cannot pack tensors on meta)"),
    "nested": (lambda *shape: torch.nested.nested_tensor([tensor(*shape)]), "no plain strided memory"),
    "jagged": (
        lambda *shape: torch.nested.nested_tensor([tensor(*shape)], layout=torch.jagged),
        "NestedTensor, a wrapper with a __torch_dispatch__ of its own",
    ),
    "negative": (
        lambda *shape: torch.zeros(*shape, dtype=torch.complex32).conj().imag,
        "whose memory holds the negative of its values (is_neg()); expected a plain one; pass tensor.resolve_neg()",
    ),
    "failing": (lambda *shape: tensor(*shape).as_subclass(Failing), "no plain strided memory (not today)"),
    "uninitialised": (
        lambda *shape: torch.nn.parameter.UninitializedParameter(requires_grad=False),
        "no plain strided memory (Attempted to use an uninitialized parameter",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_memory_is_refused(package, library, kind):
    make, message = KINDS[kind]
    framework = Framework()
    places = [
        lambda: package.linear(make(M, K), WEIGHT),
        lambda: package.matmul(make(M, K), WEIGHT),
        lambda: package.constant(make(N, K)),
        lambda: package.linear(framework.Tensor((M, K)), make(N, K)),
        lambda: package.linear(framework.Tensor((M, K)), framework.Tensor((N, K)), out=make(M, N)),
    ]
    for place in places:
        with pytest.raises(package.OperandError) as caught:
            place()
        assert message in str(caught.value)
    assert library.fake_launches() == []


def test_a_distributed_tensor_is_refused(package, library, mesh):
    from torch.distributed.tensor import DTensor, Replicate

    framework = Framework()
    wrapped = DTensor.from_local(WEIGHT, mesh, [Replicate()])
    for x, weight in ((wrapped, WEIGHT), (framework.Tensor((M, K)), wrapped)):
        with pytest.raises(
            package.OperandError, match=r"got a torch\.distributed\.tensor\.DTensor, a wrapper .*to_local"
        ):
            package.linear(x, weight)
    assert library.fake_launches() == []


TRANSFORMS = {
    "vmap": lambda function: torch.vmap(function)(tensor(3, M, K)),
    "grad": lambda function: torch.func.grad(lambda x: function(x).sum())(tensor()),
    "jvp": lambda function: torch.func.jvp(function, (tensor(),), (tensor(),)),
    "trace": torch.fx.symbolic_trace,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("grad", [True, False])
def test_what_a_transform_passes_is_refused(package, library, transform, grad):
    framework = Framework()
    for function in (lambda x: package.linear(x, WEIGHT), lambda x: package.linear(framework.Tensor((M, K)), x)):
        with torch.set_grad_enabled(grad), pytest.raises(package.OperandError, match="no plain strided memory"):
            TRANSFORMS[transform](function)
    assert library.fake_launches() == []


ACCEPTED = {
    "plain": tensor,
    "subclass": lambda *shape: tensor(*shape).as_subclass(Plain),
    "parameter": lambda *shape: torch.nn.Parameter(tensor(*shape), requires_grad=False),
    "buffer": lambda *shape: torch.nn.Buffer(tensor(*shape)),
    "imaginary": lambda *shape: torch.zeros(*shape, dtype=torch.complex32).imag,
    "resolved": lambda *shape: torch.zeros(*shape, dtype=torch.complex32).conj().imag.resolve_neg(),
    "complex": lambda *shape: torch.zeros(*shape, dtype=torch.complex32).conj(),
    "inference": torch.inference_mode()(tensor),
    "float32": torch.zeros,
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_plain_memory_comes_as_far_as_the_device(package, library, kind):
    make, framework = ACCEPTED[kind], Framework()
    for x, weight in ((make(M, K), WEIGHT), (framework.Tensor((M, K)), make(N, K))):
        name = "x" if weight is WEIGHT else "weight"
        with pytest.raises(
            package.DeviceError, match=rf"^linear: {name} is not in GPU memory \(DLPack device type 1\)"
        ):
            package.linear(x, weight)
    assert library.fake_launches() == []


class GpuTensor(torch.Tensor):
    """A tensor of torch that claims to be in GPU memory; `address` is where."""

    framework = Framework()
    __dlpack_c_exchange_api__ = framework.Tensor.__dlpack_c_exchange_api__
    device, dtype, offset = (CUDA, 0), BFLOAT16, 0

    @property
    def strides(self):
        return self.stride()


def gpu_tensor(*shape, address, inner=None):
    made = (tensor(*shape) if inner is None else inner).as_subclass(GpuTensor)
    made.address = address
    return made


def operands():
    return [gpu_tensor(*x, address=i << 42) for i, x in enumerate(((M, K), (N, K), (M, N)), 1)]


def test_torch_hears_that_out_was_written(package, library):
    x, weight, out = operands()
    for written in (1, 2):
        assert package.linear(x, weight, out=out) is out
        assert [t._version for t in (x, weight, out)] == [0, 0, written]
    assert len(library.fake_launches()) == 2


def test_a_backward_pass_that_needs_what_was_overwritten_fails(package, library):
    x, weight, out = operands()
    with torch.no_grad():
        square = out.as_subclass(torch.Tensor).float().requires_grad_()
    saved = square.exp()
    loss = saved.sum()
    package.linear(x, weight, out=gpu_tensor(address=3 << 42, inner=saved.detach()))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_gradient_that_would_be_lost_is_refused(package, library, place):
    tensors = operands()
    tensors[place].requires_grad_()
    x, weight, out = tensors
    for _ in range(2):
        with pytest.raises(package.GradientError) as caught:
            package.linear(x, weight, out=out)
    shape = ((M, K), (N, K), (M, N))[place]
    assert str(caught.value) == (
        f"linear: an operand of shape {shape} requires a gradient, which this would not record; run it under "
        "torch.no_grad() or torch.inference_mode(), or pass tensor.detach(); "
        f"{package.__name__}.torch.linear records it"
    )
    assert (library.fake_launches(), out._version) == ([], 0)
    with torch.no_grad():
        package.linear(x, weight, out=out)
    assert len(library.fake_launches()) == 1


@pytest.mark.parametrize("grad", [True, False])
def test_a_tangent_that_would_be_lost_is_refused(package, library, grad):
    x, weight, out = operands()
    with torch.set_grad_enabled(grad), forward_ad.dual_level():
        package.linear(x, weight, out=out)
        dual = forward_ad.make_dual(tensor(), tensor())
        for left, right in ((dual, weight), (x, forward_ad.make_dual(tensor(N, K), tensor(N, K)))):
            with pytest.raises(package.GradientError, match="has a tangent of forward-mode differentiation"):
                package.linear(left, right)
    assert len(library.fake_launches()) == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_a_parameter_is_taken(package, mode):
    parameter = torch.nn.Parameter(WEIGHT.clone())
    with pytest.raises(package.GradientError):
        package.linear(parameter, WEIGHT)
    with mode(), pytest.raises(package.DeviceError):
        package.linear(parameter, WEIGHT)


def test_a_negative_view_of_memory_on_the_gpu_is_refused(package, library):
    _, weight, out = operands()
    halves = torch.zeros(M, K, dtype=torch.complex32)
    view = gpu_tensor(address=1 << 43, inner=halves.conj().imag)
    view.dtype = FLOAT16
    with pytest.raises(package.OperandError, match=r"is_neg\(\)"):
        package.linear(view, weight, out=out)
    assert library.fake_launches() == []


@pytest.mark.parametrize("offset", [0, 1, 16, 5000])
def test_an_address_that_is_an_offset_is_refused(package, library, offset):
    """So are functional tensors on the GPU: their storage begins at null."""
    _, weight, out = operands()
    inner = tensor(offset + M * K)[offset:].view(M, K)
    with pytest.raises(package.OperandError, match="has no memory"):
        package.linear(gpu_tensor(address=2 * offset, inner=inner), weight, out=out)
    assert library.fake_launches() == []


@pytest.mark.filterwarnings("ignore")
def test_a_trace_that_would_hold_the_result_as_a_constant_is_refused(package):
    x, weight = torch.zeros(4, 8, dtype=torch.bfloat16), torch.zeros(4, 8, dtype=torch.bfloat16)
    with torch.no_grad(), pytest.raises(package.UnsupportedError, match=r"linear: torch\.jit is tracing"):
        torch.jit.trace(lambda operand: package.linear(operand, weight), x)
