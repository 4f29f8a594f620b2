"""Draws calls of the package's operations on rows for python_api.py, most of which go together."""

from __future__ import annotations

import ctypes

from aot.kinds.rows.catalogue import row_operations
from tests.runtime.rows import RowLaunch

EXTENTS = (0, 1, 2, 3, 8, 16, 64, 72, 100, 4096)
ODD_OBJECTS = (1, 0.5, "text", [1], {}, object(), b"", True, -1)
BFLOAT16, FLOAT16, FLOAT32 = (4, 16), (2, 16), (2, 32)
DTYPES = {
    "bfloat16": BFLOAT16,
    "float16": FLOAT16,
    "float32": FLOAT32,
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "float8_e8m0fnu": (14, 8),
    "int8": (0, 8),
    "float4_e2m1fn": (1, 8),
}
"""By torch's name; elements that share bytes are held in those."""


def _shape_of_scales(operation, rows, cols):
    """Return the shape of the scales: of factors in atoms their bytes."""
    if operation.factors is None:
        return operation.shape_of_scales(rows, cols)
    return (operation.factors.size_of(rows, cols),)


def _maybe(rng, chance, make):
    """Return what `make` gives, seldom what is no tensor, or None."""
    if rng.random() < 0.01:
        return rng.choice(ODD_OBJECTS)
    return make() if rng.random() < chance else None


def _written(rng, kind, shapes):
    """Draw what is written, by name: each of a shape and a type."""
    drawn = {name: _maybe(rng, 0.3, lambda shape=shape: kind(rng, *shape)) for name, shape in shapes.items()}
    return {name: tensor for name, tensor in drawn.items() if tensor is not None}


def _called(package, function, operands):
    """Return what computes a function, and its operands: where the package has none of the name, `rows` by it."""
    if hasattr(package, function):
        return getattr(package, function), operands
    return package.rows, (function, *operands)


def row_call(package, rng, kinds):
    """Draw a call of an operation on rows."""
    operation = rng.choice(tuple(row_operations()))
    first, oddness = rng.choice(kinds), rng.choice((0.1, 1.0))

    def kind(*arguments):
        return (first if rng.random() < 0.9 else rng.choice(kinds))(*arguments, oddness)

    function, x_type, y_type = operation.function.name, DTYPES[operation.x.value], DTYPES[operation.y.value]
    rows, cols = rng.choice(EXTENTS), rng.choice(EXTENTS)
    if operation.is_rotary:
        heads, dim = rng.choice((0, 1, 2, 8)), rng.choice((0, 2, 8, 64, 72))
        x = kind(rng, (rows, heads, dim), x_type)
        angles = [kind(rng, (rng.choice((rows, rows, 1)), dim // 2), x_type) for _ in range(2)]
        named = {"interleaved": rng.random() < 0.5, "rotary_dim": rng.choice((None, None, dim, -1, "8", 2**40))}
        named |= _written(rng, kind, {"out": ((rows, heads, dim), x_type)})
        return package.rotary, (x, *angles), named
    wide = 2 * cols if operation.is_pair else cols
    x = kind(rng, (rows, wide), x_type)
    shapes = {"out": ((rows, cols // operation.multiple), y_type)}
    if operation.is_quantized:
        shapes["scale_out"] = (_shape_of_scales(operation, rows, cols), DTYPES[operation.scale_element.value])
    named, operands = {}, (x,)
    if operation.is_quantized and rng.random() < (0.9 if operation.has_tensor_scale else 0.2):
        named["scale"] = _maybe(rng, 0.9, lambda: kind(rng, rng.choice(((), (1,), (rows,), (rows, 1))), FLOAT32))
    if function == "quantize":
        granularity = "row" if operation.form else operation.scale.value
        named |= {"dtype": operation.form or operation.y.value, "granularity": granularity}
    elif y_type != x_type or rng.random() < 0.1:
        named["out_dtype"] = (
            (operation.form or operation.y.value) if rng.random() < 0.95 else rng.choice((*ODD_OBJECTS, "float32"))
        )
    if operation.is_norm:
        named["residual"] = _maybe(rng, 0.5, lambda: kind(rng, (rows, cols), x_type))
        if named["residual"] is not None:
            shapes["residual_out"] = ((rows, cols), x_type)
        operands += (_maybe(rng, 0.5, lambda: kind(rng, (cols,), x_type)),)
        named["eps"] = rng.choice((1e-6, 0.0, -1.0, float("nan"), 10**400, "small")) if rng.random() < 0.1 else 1e-5
    if operation.is_pair:
        named["interleaved"] = rng.random() < 0.5
    return *_called(package, function, operands), named | _written(rng, kind, shapes)


def row_operations_launched(library, operations):
    """Return the operations, of those by row kernel, whose kernels the recorder has launches of."""
    record, found = RowLaunch(), set()
    for index in range(library.recorder_num_rows()):
        library.recorder_rows(index, ctypes.byref(record))
        found.add(operations[record.kernel])
    return found
