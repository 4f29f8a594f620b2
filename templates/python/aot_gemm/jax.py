"""The products for JAX: under jax.jit, jax.vmap and jax.grad, on XLA's stream and in XLA's memory.

The package's own `linear` takes arrays of JAX too, outside of a trace: it waits for its operands, and for the result.
The functions here are custom calls of a compiled program, and wait for nothing.

- Under jax.vmap a batch of x alone becomes more rows of one product. Where a weight or any other operand is batched,
  the products are launched one after the other.
- There are gradients of plain products and of a bias, in bfloat16 and float16, by JAX's own products, and none in
  forward mode.
- XLA gathers the operands of a custom call that are sharded: call it inside of jax.shard_map.
- There is no `constant`, since XLA may copy a weight in front of a call.
- What is wrong by shapes, types and options is raised as an error of this package while JAX traces. What a launch
  finds, such as that there is no usable GPU, is XLA's error with the package's text.
"""

from __future__ import annotations

from typing import Any

import jax

from . import _extras, errors
from ._dtypes import dtype_name
from ._enumerations import ALLOW_TF32, INTERLEAVED, USE_FAST_ACCUM
from ._factors import pack_factors
from ._jax_calls import SLOTS, Call, compiled

if not hasattr(jax, "ffi"):
    raise errors.UnsupportedError(f"jax {jax.__version__} is too old for foreign functions; expected 0.5 or newer")

GPU = "gpu"
"""JAX's name of the platform of CUDA devices."""
_MATRIX_DIMS = 2


def _check_device(product: str, name: str, operand: Any) -> None:
    """Refuse an array that is not on a GPU; where one that is being traced will be, nobody knows."""
    if isinstance(operand, jax.core.Tracer) or not isinstance(operand, jax.Array):
        return
    platforms = {device.platform for device in operand.devices()} - {GPU}
    if platforms:
        raise errors.DeviceError(
            f"{product}: {name} is on {' and '.join(sorted(platforms))}; expected a GPU; move it by jax.device_put, or "
            "use JAX's own product there"
        )


def _run(
    product: str,
    operands: tuple[Any, ...],
    *,
    activation: str | None = None,
    out_dtype: Any = None,
    flags: int = 0,
) -> Any:
    """Call a product of the operands that are not None, in the order of `SLOTS`."""
    given = {name: x for name, x in zip(SLOTS, operands, strict=False) if x is not None}
    for name, operand in given.items():
        if not hasattr(operand, "dtype"):
            raise errors.OperandError(f"{product}: {name} is {errors.show(operand)}; expected an array of JAX")
        _check_device(product, name, operand)
    _extras.activation_number(product, activation)
    dtype = None if out_dtype is None else dtype_name("out_dtype", out_dtype)
    return compiled(Call(product, tuple(given), activation, dtype, flags))(*given.values())


def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    scale_x: Any = None,
    scale_w: Any = None,
    residual: Any = None,
    scale_out: Any = None,
    activation: str | None = None,
    out_dtype: Any = None,
    allow_tf32: bool = False,
    use_fast_accum: bool = False,
) -> Any:
    """Compute activation(x @ weight^T + bias) + residual: the package's `linear`, as part of a program of JAX.

    Arguments are those of the package's `linear`, which has more of each.

    Args:
        x: (..., k) of bfloat16, float16, float32, float8_e4m3fn, float8_e5m2 or int8; or (..., k / 2) bytes of uint8.
        weight: (n, k), or (n, k / 2).
        bias: (n,).
        scale_x: float32 factors of x, of float8 and int8 operands, or narrow ones, as the package's `linear` has them;
            so is `scale_w`, of weight.
        scale_w: see `scale_x`.
        residual: (..., n), of the result's element type.
        scale_out: one float32 by which a float8 result is multiplied.
        activation: None, "relu", "gelu", "gelu_tanh" or "silu".
        out_dtype: element type of the result.
        allow_tf32: whether float32 operands may be rounded to TF32.
        use_fast_accum: whether FP8 sums may stay in the tensor core's accumulator.

    Returns:
        (..., n).

    Raises:
        AotGemmError: one of its classes, as `linear` of the package has them.
    """
    flags = ALLOW_TF32 * bool(allow_tf32) + USE_FAST_ACCUM * bool(use_fast_accum)
    scale_x, scale_w, scale_out = _extras.split_factors("linear", scale_x, scale_w, scale_out)
    operands = x, weight, bias, _in_atoms(scale_x), _in_atoms(scale_w), residual, scale_out
    return _run("linear", operands, activation=activation, out_dtype=out_dtype, flags=flags)


def _in_atoms(scale: Any) -> Any:
    """Return factors of 8 bits in atoms, where they lie in rows of blocks; others as they are."""
    is_narrow = getattr(getattr(scale, "dtype", None), "itemsize", None) == 1
    return pack_factors(scale) if is_narrow and scale.ndim > 1 else scale


def gated_linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    scale_x: Any = None,
    scale_w: Any = None,
    scale_out: Any = None,
    activation: str = "silu",
    interleaved: bool = False,
    out_dtype: Any = None,
) -> Any:
    """Compute activation(x @ gate^T) * (x @ up^T): the package's `gated_linear`, as part of a program of JAX.

    Args:
        x: (..., k).
        weight: (2 n, k), the rows of the gate and then the others, or in pairs where `interleaved`.
        bias: (2 n,).
        scale_x: as `linear` has it; so is `scale_w`.
        scale_w: see `scale_x`.
        scale_out: of NVFP4, as the package's `gated_linear` has it.
        activation: "silu" or "gelu_tanh".
        interleaved: whether rows are in pairs, the gate's first.
        out_dtype: element type of the result.

    Returns:
        (..., n).

    Raises:
        AotGemmError: one of its classes, as `gated_linear` of the package has them.
    """
    scale_x, scale_w, scale_out = _extras.split_factors("gated_linear", scale_x, scale_w, scale_out)
    operands = x, weight, bias, _in_atoms(scale_x), _in_atoms(scale_w), None, scale_out
    flags = INTERLEAVED * bool(interleaved)
    return _run("gated_linear", operands, activation=activation, out_dtype=out_dtype, flags=flags)


def matmul(a: Any, b: Any) -> Any:
    """Compute a @ b: the package's `matmul`, as part of a program of JAX.

    Args:
        a: (..., m, k) or (k,).
        b: (k, n) or (k,). For a batched b use jax.vmap.

    Returns:
        (..., m, n), without the modes that an operand does not have.

    Raises:
        AotGemmError: one of its classes, as `matmul` of the package has them.
    """
    if getattr(b, "ndim", 0) > _MATRIX_DIMS:
        raise errors.ShapeError(
            f"matmul: b has shape {tuple(b.shape)}; expected b (k, n) or (k,); map over the leading dimensions by "
            "jax.vmap"
        )
    return _run("matmul", (a, b))
