"""The products as calls of XLA: what JAX is told of each, its batches, and its gradients.

A call is one custom call to a handler of a library (xla_call.cc), registered under the import name of the wheel or
pack, so that two do not meet. Its workspace, where it needs one, is a result of its own, so that XLA may put the call
into a CUDA graph.
"""

from __future__ import annotations

import math
import os
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from . import _extras, _library, errors
from ._enumerations import ALLOW_TF32, INTERLEAVED, NAMES, READ, USE_FAST_ACCUM
from ._library import Library
from ._torch_result import TensorCall, results_of

SLOTS = tuple(NAMES.get(name, name) for name in READ[: READ.index("scale_d") + 1])
"""The operands by the bits that xla_call.cc knows them by."""
PLATFORM = "CUDA"
"""XLA's name of the platform that the handlers are for."""
RECORDED = ("bfloat16", "float16")
"""Element types that there are gradients of."""
_LAYOUTS = {"linear": (0,), "gated_linear": (0,), "matmul": (0, 1)}
"""By product, the numbers of `LAYOUTS` of row-major operands; b of a matmul, where it has one column, is of both."""


class _Device(NamedTuple):
    type: str = "cuda"


class _Abstract(NamedTuple):
    """An operand as `_torch_result` looks at it."""

    shape: tuple[int, ...]
    dtype: str
    device: _Device = _Device()

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Call(NamedTuple):
    """All of a product but its operands."""

    name: str
    """`linear`, `gated_linear` or `matmul`."""
    given: tuple[str, ...]
    """Which of `SLOTS` there are."""
    activation: str | None = None
    out_dtype: str | None = None
    flags: int = 0
    batched: tuple[bool, ...] = ()
    """Which operands have a batch in front, each of whose elements is a product's; empty where there is none."""

    @property
    def epilogue(self) -> int:
        """Return the number of `Epilogue` in operation.h."""
        return _extras.activation_number(self.name, self.activation)

    def bits(self, are_set: tuple[bool, ...]) -> int:
        """Return a number whose bits are those of the operands that something is true of."""
        return sum(1 << SLOTS.index(name) for name, is_set in zip(self.given, are_set, strict=True) if is_set)

    def of_one(self, operands: tuple[Any, ...]) -> TensorCall:
        """Return the call of one batch."""
        batched = self.batched or (False,) * len(operands)
        parts = {
            name: _Abstract(tuple(x.shape)[is_batched:], np.dtype(x.dtype).name)
            for name, x, is_batched in zip(self.given, operands, batched, strict=True)
        }
        allowed = {
            "allow_tf32": bool(self.flags & ALLOW_TF32),
            "use_fast_accum": bool(self.flags & USE_FAST_ACCUM),
            "interleaved": bool(self.flags & INTERLEAVED),
        }
        if self.name == "matmul":
            return TensorCall(self.name, {"a": parts["x"], "b": parts["weight"]})
        return TensorCall(self.name, parts, {"activation": self.activation, "out_dtype": self.out_dtype, **allowed})


def _target(name: str, library: Library | None = None) -> str:
    """Return what XLA knows a library's handler by; by default the first library's."""
    folder = (library or _library.libraries()[0]).folder
    return f"{os.path.basename(folder.directory)}_{name}"  # noqa: PTH119


@cache
def _register(library: Library) -> None:
    """Have XLA know a library's handlers, once a process."""
    for name in _LAYOUTS:
        handler = getattr(library.c, f"aot_gemm_xla_{name}")
        jax.ffi.register_ffi_target(_target(name, library), jax.ffi.pycapsule(handler), platform=PLATFORM)


def _library_of(operation: str) -> Library:
    """Return the library that computes an operation: one that answers for tuned sizes alone behind the others."""
    return next(x for x in _library.libraries() if not x.only_tuned and x.has(operation))


def _workspace_bytes(library: Library, product: TensorCall, shape: tuple[int, ...], operation: str) -> int:
    """Return the most workspace that a product needs by any of the tables: a trace does not know the device."""
    if 0 in shape:
        return 0
    k = product.x.shape[-1] * (2 if product.x.dtype == "uint8" else 1)  # of bytes that hold two elements
    n = shape[-1] if product.weight.ndim == 2 else 1
    operation_id = library.operation(operation)
    tables = range(library.c.aot_gemm_num_tables())
    plan = library.binding["plan"]
    asked = (
        _library.Asked(operation_id, layout, m=math.prod(shape) // n, n=n, k=k, table=table)
        for layout in _LAYOUTS[product.function]
        for table in tables
    )
    return max(plan(*each)["workspace_bytes"] for each in asked)


def _num_batches(call: Call, operands: tuple[Any, ...]) -> int:
    return next(x.shape[0] for x, is_batched in zip(operands, call.batched, strict=True) if is_batched)


def _emit(call: Call, *operands: Any) -> Any:
    """Emit the custom call; every batch is a launch of it."""
    product = call.of_one(operands)
    written, operation = results_of(product)
    shape, dtype = written["out"]
    library = _library_of(operation)
    num_bytes = _workspace_bytes(library, product, shape, operation)
    num_batches = _num_batches(call, operands) if call.batched else -1
    leading = (num_batches,) if call.batched else ()
    results = [jax.ShapeDtypeStruct((*leading, *shape), getattr(jnp, dtype))]
    if num_bytes > 0:
        results.append(jax.ShapeDtypeStruct((num_bytes,), jnp.uint8))
    _register(library)
    attributes = {
        "given": call.bits((True,) * len(operands)),
        "batched": call.bits(call.batched or (False,) * len(operands)),
        "num_batches": num_batches,
        "epilogue": call.epilogue,
        "flags": call.flags,
    }
    run = jax.ffi.ffi_call(_target(call.name, library), results)
    return run(*operands, **{name: np.int64(value) for name, value in attributes.items()})[0]


def _joins_rows(call: Call, are_batched: tuple[bool, ...]) -> bool:
    """Say whether a batch is only more rows of x: it alone has one, and nothing else follows the rows."""
    return not call.batched and are_batched[0] and not any(are_batched[1:]) and set(call.given) <= {*SLOTS[:3]}


def _merged(operand: Any, outer: int, inner: int, *, has_outer: bool, has_inner: bool) -> Any:
    """Give an operand of either of two batches both, as one."""
    if not has_outer and not has_inner:
        return operand
    rest = operand.shape[has_outer + has_inner :]
    if not has_outer:
        operand = operand[None]
    elif not has_inner:
        operand = operand[:, None]
    return jnp.broadcast_to(operand, (outer, inner, *rest)).reshape(outer * inner, *rest)


def _batch(call: Call, axis_size: int, are_batched: list[bool], *operands: Any) -> tuple[Any, bool]:
    """Compute a batch of products: as one of more rows where the weight is shared, else by one call that has a loop."""
    outer = tuple(are_batched)
    if _joins_rows(call, outer):
        return _batchable(call)(*operands), True
    if not call.batched:
        return _batchable(call._replace(batched=outer))(*operands), True
    num_inner = _num_batches_within(call, outer, operands)
    merged = [
        _merged(x, axis_size, num_inner, has_outer=has_outer, has_inner=has_inner)
        for x, has_outer, has_inner in zip(operands, outer, call.batched, strict=True)
    ]
    either = tuple(a or b for a, b in zip(outer, call.batched, strict=True))
    result = _batchable(call._replace(batched=either))(*merged)
    return result.reshape(axis_size, num_inner, *result.shape[1:]), True


def _num_batches_within(call: Call, outer: tuple[bool, ...], operands: tuple[Any, ...]) -> int:
    """Return the extent of a call's own batch, which lies behind that of an outer one."""
    pairs = zip(operands, outer, call.batched, strict=True)
    return next(x.shape[int(has_outer)] for x, has_outer, has_inner in pairs if has_inner)


@cache
def _batchable(call: Call) -> Any:
    """Return the function of a call's operands that jax.vmap knows."""
    function = jax.custom_batching.custom_vmap(partial(_emit, call))
    function.def_vmap(partial(_batch, call))
    return function


def _check_recordable(call: Call, operands: tuple[Any, ...]) -> None:
    """Refuse a product that there is no gradient of: all but plain ones and those with a bias.

    Raises:
        GradientError: there is no gradient of it.
    """
    dtype = np.dtype(operands[0].dtype).name
    is_plain = call.name != "gated_linear" and set(call.given) <= {*SLOTS[:3]} and call.activation is None
    if is_plain and dtype in RECORDED and call.out_dtype in (None, dtype):
        return
    raise errors.GradientError(
        f"{call.name}: there are gradients of plain products and a bias alone, in bfloat16 and float16; pass its "
        "operands through jax.lax.stop_gradient, or compose it of one of these and JAX's own functions"
    )


def _forward(call: Call, *operands: Any) -> tuple[Any, Any]:
    _check_recordable(call, operands)
    return _batchable(call)(*operands), operands[:2]


def _backward(call: Call, kept: Any, gradient: Any) -> tuple[Any, ...]:
    """Give the gradients of the operands, by JAX's own products."""
    left, right = kept
    rows = tuple(range(left.ndim - 1))
    if call.name == "matmul":
        of_left = gradient @ right.T if right.ndim == 2 else gradient[..., None] * right
        return of_left, jnp.tensordot(left, gradient, (rows, rows))
    gradients = gradient @ right, jnp.tensordot(gradient, left, (rows, rows))
    return (*gradients, gradient.sum(rows))[: len(call.given)]


@cache
def compiled(call: Call) -> Any:
    """Return the function of a call's operands: compiled by JAX for every shape, batched, and with gradients."""
    function = jax.custom_vjp(_batchable(call))
    function.defvjp(partial(_forward, call), partial(_backward, call))
    return jax.jit(function, inline=True)
