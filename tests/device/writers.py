"""Ways to write a tensor: each takes a scene and returns a call that writes the trial's value to the scene's target."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import aot_gemm
import torch

from tests.device.scene import Launch, Scene, UnfitError, chain_shape, early_shape, find, splits_k

try:
    from tests.device import triton_kernels
except Exception as error:  # noqa: BLE001 - whatever keeps Triton from loading, its cases are left out and say why
    triton_kernels, no_triton = None, f"no Triton: {type(error).__name__}: {error}"

Step = Callable[[Scene], Launch]

GRADIENT = 3.0
BLOCK = 1024
"""Elements that a Triton block writes at a time."""


def memcpy(scene):
    source = torch.empty_like(scene.target)
    scene.before(source.fill_)
    return lambda: scene.target.copy_(source)


def convert(scene):
    source = torch.empty_like(scene.target, dtype=torch.float32)
    scene.before(source.fill_)
    return lambda: scene.target.copy_(source)


def from_host(scene):
    source = torch.empty(scene.target.shape, dtype=scene.setting.dtype, pin_memory=True)
    scene.before(source.fill_)
    return lambda: scene.target.copy_(source, non_blocking=True)


def from_first_gpu(scene):
    source = torch.empty_like(scene.target, device="cuda:0")
    scene.before(source.fill_)
    return lambda: scene.target.copy_(source, non_blocking=True)


def broadcast(scene):
    return lambda: scene.target.copy_(scene.value)


def arithmetic(scene):
    return lambda: scene.target.zero_().add_(scene.value)


def indexed(scene):
    source = torch.empty_like(scene.target)
    scene.before(source.fill_)
    rows = torch.arange(len(source), device=scene.device)
    return lambda: scene.target.index_copy_(0, rows, source)


def foreach(scene):
    sources = [torch.empty_like(scene.target) for _ in range(2)]
    other = torch.empty_like(scene.target)
    scene.before(lambda value: [source.fill_(value) for source in sources])
    return lambda: torch._foreach_copy_([other, scene.target], sources)


def data_alias(scene):
    source = torch.empty_like(scene.target)
    scene.before(source.fill_)
    return lambda: scene.target.data.copy_(source)


def load_state_dict(scene):
    rows, columns = scene.target.shape
    source = torch.empty_like(scene.target)
    scene.before(source.fill_)
    module = torch.nn.Linear(columns, rows, bias=False, device="meta", dtype=scene.setting.dtype)
    module.weight = torch.nn.Parameter(scene.target, requires_grad=False)
    scene.adopt(module.weight)
    return lambda: module.load_state_dict({"weight": source})


def optimizer(kind, **options):
    """Train by one step: a backward pass, whose gradient is GRADIENT everywhere, and the optimizer's update.

    A twin of one number takes the same steps before each trial: it holds what the weight will be.
    """

    def step(scene):
        parameter, twin = torch.nn.Parameter(scene.target), torch.nn.Parameter(scene.zeros(1))
        scene.adopt(parameter)
        scene.written = twin.detach()
        inputs = scene.filled(GRADIENT, 1, parameter.shape[1])
        train, train_twin = kind([parameter], lr=1.0, **options), kind([twin], lr=1.0, **options)

        def prepare(value):
            for each in (parameter, twin):
                each.fill_(value + GRADIENT)
            twin.grad = torch.full_like(twin, GRADIENT)
            train_twin.step()

        def update():
            parameter.grad = None
            with torch.enable_grad():
                torch.nn.functional.linear(inputs, parameter).sum().backward()
            train.step()

        scene.before(prepare)
        return update

    return step


def dequantise(scene):
    codes, scale = torch.empty_like(scene.target, dtype=torch.int8), scene.filled(1.0)
    scene.before(codes.fill_)
    return lambda: torch.mul(codes, scale, out=scene.target)


def torch_product(scene):
    rows, columns = scene.target.shape
    left, right = scene.zeros(rows, 4096), scene.filled(1 / 4096, 4096, columns)
    scene.before(left.fill_)
    return lambda: torch.mm(left, right, out=scene.target)


def own_product(scene, k1=4096):
    rows, columns = scene.target.shape
    left, right = scene.zeros(rows, k1), scene.filled(1 / k1, columns, k1)
    scene.before(left.fill_)
    return lambda: aot_gemm.linear(left, right, out=scene.target)


def own_long_product(scene):
    return own_product(scene, chain_shape(scene.setting.dtype)[2])


def own_split_product(scene):
    rows, columns = scene.target.shape
    shapes = ((rows, columns, k1) for k1 in (2048, 4096, 8192, 16384, 32768, 65536, 131072))
    k1 = find(shapes, scene.setting.dtype, splits_k, f"split-K kernel for ({rows}, {columns})")[2]
    return own_product(scene, k1)


def own_product_of_product(scene):
    rows, columns = scene.target.shape
    left, first, second = (
        scene.zeros(rows, 1024),
        scene.filled(1 / 1024, 512, 1024),
        scene.filled(1 / 512, columns, 512),
    )
    scene.before(left.fill_)
    return lambda: aot_gemm.linear(aot_gemm.linear(left, first), second, out=scene.target)


def own_matmul(scene):
    rows, columns = scene.target.shape
    left, right = scene.zeros(rows, 1024), scene.filled(1 / 1024, 1024, columns)
    scene.before(left.fill_)
    return lambda: aot_gemm.matmul(left, right, out=scene.target)


def make_x(scene, *, constant=False):
    """Write x by a product of its own, as the layer in front does; its weight may be declared constant."""
    m, _, k = scene.setting.shape
    hidden, weight = scene.filled(1 / k, m, 256), scene.filled(1 / 256, k, 256)
    held = aot_gemm.constant(weight) if constant else weight
    return lambda: aot_gemm.linear(hidden, held, out=scene.x)


def other_layer(scene, *, constant=False):
    """Multiply what has nothing to do with the scene's product, by a weight that may be declared constant."""
    x, weight, out = scene.filled(1.0, 1, 256), scene.filled(1.0, 512, 256), scene.zeros(1, 512)
    held = aot_gemm.constant(weight) if constant else weight
    return lambda: aot_gemm.linear(x, held, out=out)


def other_early_layer(scene):
    """Multiply by another weight that is declared constant, by a kernel that reads it early."""
    m, n, k = early_shape(scene.setting.dtype, 1)
    x, weight, out = scene.filled(1.0, m, k), scene.filled(1.0, n, k), scene.zeros(m, n)
    held = aot_gemm.constant(weight)
    return lambda: aot_gemm.linear(x, held, out=out)


def elsewhere(step):
    """Enqueue on a second stream, in no order with the first."""

    def make(scene):
        enqueue, side = step(scene), torch.cuda.Stream()

        def launch():
            with torch.cuda.stream(side):
                enqueue()

        return launch

    return make


def _kernels():
    if triton_kernels is None:
        raise UnfitError(no_triton)
    return triton_kernels


def triton(*, early, us=200, blocks=32, wait=False, pdl=False):
    """Spin, then write, by a Triton kernel that may let the kernel behind it start at once."""

    def step(scene):
        kernel = partial(_kernels().write[blocks,], early=early, wait=wait, block=BLOCK, launch_pdl=pdl)
        return lambda: kernel(scene.target, scene.value, scene.target.numel(), us * 1000)

    return step


def triton_dequantise(scene):
    kernel = partial(_kernels().dequantise[32,], early=True, block=BLOCK)
    codes, scale = torch.empty_like(scene.target, dtype=torch.int8), torch.ones(1, device=scene.device)
    scene.before(codes.fill_)
    return lambda: kernel(scene.target, codes, scale, codes.numel(), 200_000)


def triton_new_storage(scene):
    """Give the target other memory, which a kernel that lets its successor start has yet to write."""
    kernel = partial(_kernels().write[32,], early=True, wait=False, block=BLOCK, launch_pdl=False)
    spare = [torch.empty_like(scene.target), torch.empty_like(scene.target)]

    def launch():
        spare.reverse()
        kernel(spare[0], scene.value, spare[0].numel(), 200_000)
        scene.target.data = spare[0]

    return launch


def stand(*, early, wait):
    """Put a small kernel in between that takes part in programmatic launch, and may never wait."""

    def step(scene):
        kernel = partial(_kernels().stand[1,], early=early, wait=wait, launch_pdl=True)
        scratch = scene.zeros(1, dtype=torch.int32)
        return lambda: kernel(scratch)

    return step
