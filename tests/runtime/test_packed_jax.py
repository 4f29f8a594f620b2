"""Elements of 4 bits and factors of blocks in programs of JAX: what kernels are given, and what is put into atoms."""

from __future__ import annotations

import functools
from importlib import import_module

import numpy as np
import pytest

pytest.importorskip("ml_dtypes", reason="NOT TESTED: jax is not installed, nor what it brings")

from aot.core import block_quantization
from aot.core.factor_atoms import pack_factors
from tests.later import Later
from tests.runtime import xla as xla_module
from tests.runtime.host import Library

jax, jnp = Later("jax"), Later("jax.numpy")
M, N, K = 5, 72, 160


@pytest.fixture(scope="module")
def registered(atoms_package, atoms_manifest):
    """Register the handlers of `linear` and `gated_linear` with XLA's CPU."""
    calls = import_module(f"{atoms_package.__name__}._jax_calls")
    cpu = xla_module.CpuXla(atoms_manifest, Library(atoms_package._library.LIBRARY))
    for name in ("linear", "gated_linear"):
        cpu.register(name, calls._target(name))
    return cpu


@pytest.fixture
def functions(atoms_package, registered, monkeypatch):
    """Give the package's functions for JAX."""
    found = import_module(f"{atoms_package.__name__}.jax")
    monkeypatch.setattr(found, "GPU", "cpu")
    yield found
    assert registered.failures == []


@pytest.fixture
def seen(monkeypatch):
    """Give the operation of each launch, and the bytes of its operands."""
    launches = []

    def bytes_at(vector, count):
        return xla_module.array_at(vector.data, (count,), (1,), np.uint8).copy()

    def compute(launch, kernel):
        operation = kernel.operation
        both = (launch.a, M, operation.a), (launch.b, N, operation.b)
        operands = [bytes_at(y, held.element.size_of(rows * K)) for y, rows, held in both]
        factors = [bytes_at(y.vector, y.vector.shape[0]) for y in (launch.scale_a, launch.scale_b)]
        own = xla_module.array_at(launch.scale_d.data, (1,), (1,), np.float32).copy() if launch.scale_d.data else None
        launches.append((operation.call, operands, factors, own))

    monkeypatch.setattr(xla_module, "compute", compute)
    return launches


@pytest.mark.parametrize("in_atoms", [False, True], ids=["rows of blocks", "atoms"])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("names", [("nvfp4",), ("mxfp4",), ("mxfp8",), ("mxfp8", "mxfp4")], ids="".join)
def test_a_program_hands_bytes_and_atoms_to_the_kernel(functions, atoms_package, seen, names, jit, in_atoms):
    rng = np.random.default_rng(3)
    name, both = names[0], (names[0], names[-1])
    x, weight = (
        block_quantization.quantize(rng.standard_normal((r, K)).astype(np.float32), y)
        for r, y in zip((M, N), both, strict=True)
    )
    kinds = [jnp.float8_e4m3fn if y == "mxfp8" else jnp.uint8 for y in both]
    factor = jnp.float8_e4m3fn if name == "nvfp4" else jnp.float8_e8m0fnu

    def scale(rounded):
        factors = jnp.asarray(rounded.factors).view(factor)
        factors = atoms_package.pack_factors(factors) if in_atoms else factors
        return factors if rounded.tensor_factor is None else (factors, jnp.asarray([rounded.tensor_factor]))

    held = [jnp.asarray(y.packed).view(kind) for y, kind in zip((x, weight), kinds, strict=True)]
    linear = jax.jit(functions.linear) if jit else functions.linear
    y = linear(*held, scale_x=scale(x), scale_w=scale(weight)).block_until_ready()
    assert (y.shape, y.dtype) == ((M, N), jnp.bfloat16)
    ((call, operands, factors, own),) = seen
    assert call == f"{''.join(names)}_bf16"
    for got, rounded in zip(operands, (x, weight), strict=True):
        assert np.array_equal(got, rounded.packed.reshape(-1))
    for got, rounded in zip(factors, (x, weight), strict=True):
        assert np.array_equal(got, pack_factors(rounded.factors))
    assert own == (None if x.tensor_factor is None else x.tensor_factor * weight.tensor_factor)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_a_gate_has_its_rows_in_turns(functions, atoms_package, seen, name):
    rng = np.random.default_rng(3)
    x, weight = (block_quantization.quantize(rng.standard_normal((r, K)).astype(np.float32), name) for r in (M, 2 * N))
    element = jnp.float8_e4m3fn if name == "mxfp8" else jnp.uint8
    factor = jnp.float8_e4m3fn if name == "nvfp4" else jnp.float8_e8m0fnu
    scales = [jnp.asarray(y.factors).view(factor) for y in (x, weight)]
    if name == "nvfp4":
        scales = [(y, jnp.asarray([z.tensor_factor])) for y, z in zip(scales, (x, weight), strict=True)]
    held = [jnp.asarray(y.packed).view(element) for y in (x, weight)]
    call = functools.partial(jax.jit(functions.gated_linear, static_argnames="interleaved"), *held)
    y = call(scale_x=scales[0], scale_w=scales[1], interleaved=True).block_until_ready()
    assert (y.shape, y.dtype) == ((M, N), jnp.bfloat16)
    ((call_name, _, factors, own),) = seen
    assert call_name == f"{name}_bf16_swiglu"
    assert np.array_equal(factors[1], pack_factors(weight.factors))
    assert own == (None if x.tensor_factor is None else x.tensor_factor * weight.tensor_factor)
    with pytest.raises(atoms_package.OperandError, match="got halves of a gate; expected one weight of both"):
        call(scale_x=scales[0], scale_w=scales[1])


def test_what_is_wrong_is_refused_while_jax_traces(functions, atoms_package, seen):
    x, weight = jnp.zeros((M, K // 2), jnp.uint8), jnp.zeros((N, K // 2), jnp.uint8)
    with pytest.raises(atoms_package.OperandError, match="need factors, of which the format is known"):
        functions.linear(x, weight)
    with pytest.raises(atoms_package.ShapeError, match=r"scale_x has shape \(512,\), of 5 rows and k 160; expected"):
        functions.linear(x, weight, scale_x=jnp.zeros(512, jnp.uint8), scale_w=jnp.zeros((N, K // 32), jnp.uint8))
    assert seen == []
