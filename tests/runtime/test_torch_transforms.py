"""torch.func, forward mode and torch.vmap over the operators: torch's derivatives, or a refusal, and never zeros."""

from __future__ import annotations

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional

from tests.runtime.torch_reference import random_tensor

M, N, K = 4, 8, 16


def bias_of(x):
    return torch.linspace(-1, 1, N).to(x.dtype)


PRODUCTS = {
    "linear": (lambda module, x, w: module.linear(x, w), functional.linear),
    "bias": (lambda module, x, w: module.linear(x, w, bias_of(x)), lambda x, w: functional.linear(x, w, bias_of(x))),
    "matmul": (lambda module, x, w: module.matmul(x, w.t()), lambda x, w: x @ w.t()),
    "many": (lambda module, x, w: module.linear_many(x, [w, w])[1], functional.linear),
    "operator": (lambda module, x, w: torch.ops.every_gemm.linear.default(x, w), functional.linear),
}


def writing(module, x, w):
    return module.linear(x, w, out=torch.empty(M, N, dtype=x.dtype))


OTHERS = {
    "gated": lambda module, x, w: module.gated_linear(x, w),
    "activation": lambda module, x, w: module.linear(x, w, activation="relu"),
    "grouped": lambda module, x, w: module.grouped_linear(x, torch.stack([w, w]), ENDS),
    "groups": lambda module, x, w: module.grouped_linear(x, [w, w], ENDS),
    "norm": lambda module, x, w: module.rms_norm(x, w[0]),
    "gate": lambda module, x, w: module.silu_mul(x),
    "quantize": lambda module, x, w: module.quantize(x)[0].float(),
    "operator of many": lambda module, x, w: torch.ops.every_gemm.linear_many.default(x, [w], [None])[0],
}
ENDS = torch.tensor([1, M], dtype=torch.int32)


def tangent(function, x, w):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x.flip(0)), w)).tangent


def square(function):
    return lambda *operands: function(*operands).float().square().sum()


DERIVATIVES = {
    "grad": lambda f, x, w: func.grad(square(f))(x, w),
    "grad of the weight": lambda f, x, w: func.grad(square(f), argnums=1)(x, w),
    "vjp": lambda f, x, w: func.vjp(f, x, w)[1](f(x, w))[1],
    "jvp": lambda f, x, w: func.jvp(f, (x, w), (x, w.flip(0)))[1],
    "forward mode": tangent,
    "jacrev": lambda f, x, w: func.jacrev(f)(x, w),
    "jacfwd": lambda f, x, w: func.jacfwd(f)(x, w),
    "hessian": lambda f, x, w: func.hessian(square(f))(x, w),
    "of samples": lambda f, x, w: torch.vmap(func.grad(square(f), argnums=1), (0, None))(x.unsqueeze(1), w),
    "through a batch": lambda f, x, w: func.grad(square(torch.vmap(f, (0, None))))(x.unsqueeze(1), w),
    "linearize": lambda f, x, w: func.linearize(f, x, w)[1](x, w.flip(0)),
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_derivatives_are_torchs(module, every_package, calls, name, derivative):
    ours, torchs = PRODUCTS[name]
    if name == "operator" and derivative == "forward mode":
        ours = PRODUCTS["linear"][0]
    x, weight = random_tensor(M, K), random_tensor(N, K)
    take = DERIVATIVES[derivative]
    found = take(lambda *operands: ours(module, *operands), x, weight)
    expected = take(torchs, x.double(), weight.double())
    assert (found.shape, found.dtype) == (expected.shape, x.dtype)
    torch.testing.assert_close(found.double(), expected, rtol=0.03, atol=0.03 * expected.abs().max().item())


@pytest.mark.parametrize("derivative", ["grad", "jvp", "forward mode", "jacrev", "hessian", "linearize"])
@pytest.mark.parametrize("name", [*OTHERS, "out"])
def test_what_has_no_derivative_is_refused(module, every_package, calls, name, derivative):
    x, weight = random_tensor(M, K), random_tensor(N, K)
    with pytest.raises(every_package.GradientError, match=r"requires a gradient|forward mode differentiates"):
        DERIVATIVES[derivative](lambda *operands: (OTHERS | {"out": writing})[name](module, *operands), x, weight)


def test_a_mode_that_torchs_product_does_not_promise_is_refused(module, every_package, calls):
    x, weight = random_tensor(M, K), random_tensor(N, K)
    with pytest.raises(every_package.GradientError, match=r"not promised to be batch_invariant.*loss\.backward"):
        func.grad(lambda x: module.linear(x, weight, batch_invariant=True).sum())(x)


def test_what_is_not_differentiated_is_the_packages_within_a_transform(module, calls):
    x, weight, other = random_tensor(M, K), random_tensor(N, K), random_tensor(M, N)
    found = func.jvp(lambda y: module.linear(x, weight, activation="relu") * y, (other,), (other,))[1]
    torch.testing.assert_close(found, functional.linear(x, weight).relu() * other, rtol=0.02, atol=0.02)


BATCHES = {"of x": (0, None), "of the weight": (None, 0), "of both": (0, 0), "of columns": (1, None)}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", OTHERS)
def test_a_batch_is_each_of_it(module, every_package, calls, name, batch):
    in_dims = BATCHES[batch]
    stacked = [
        random_tensor(3, *shape) if dim is not None else random_tensor(*shape)
        for shape, dim in zip(((M, K), (N, K)), in_dims, strict=True)
    ]
    given = [y.movedim(0, dim) if dim else y for y, dim in zip(stacked, in_dims, strict=True)]
    found = torch.vmap(lambda x, w: OTHERS[name](module, x, w), in_dims)(*given)
    each = [[y if dim is None else y[i] for y, dim in zip(stacked, in_dims, strict=True)] for i in range(3)]
    expected = torch.stack([OTHERS[name](module, *operands) for operands in each])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_residual_has_its_batch_beside_x(module, calls):
    x, residual, weight = random_tensor(3, M, K), random_tensor(3, M, K), random_tensor(K)
    found = torch.vmap(lambda x, r: module.rms_norm(x, weight, residual=r))(x, residual)
    for each, expected in zip(found, module.rms_norm(x, weight, residual=residual), strict=True):
        torch.testing.assert_close(each, expected, rtol=0, atol=0)


def test_a_batch_of_none_is_refused_where_each_is_a_call(module, every_package, calls):
    x, weights = random_tensor(M, K), random_tensor(0, N, K)
    with pytest.raises(every_package.ShapeError, match="batch of no elements"):
        torch.vmap(lambda w: module.gated_linear(x, w))(weights)


@pytest.mark.parametrize("name", ["linear", "grouped_linear", "matmul", "gated_linear"])
def test_a_batch_that_would_write_out_is_refused(module, every_package, calls, name):
    weight, out = random_tensor(N, K), torch.empty(M, N, dtype=torch.bfloat16)
    others = (ENDS,) if name == "grouped_linear" else ()
    with pytest.raises(every_package.UnsupportedError, match=rf"{name}: got out= under torch\.vmap"):
        torch.vmap(lambda x: getattr(module, name)(x, weight, *others, out=out))(random_tensor(3, M, K))
