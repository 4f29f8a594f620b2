"""Draws calls with packed weights, and with several weights, for python_api.py, most of which go together."""

from __future__ import annotations

from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.weight_format import PackedLayout
from tests.fuzz.python_rows import DTYPES, EXTENTS, ODD_OBJECTS

PACKED = tuple(x for x in Operation if x.types.weight is not None and x.grouping is Grouping.DENSE)
GROUPED = tuple(x for x in Operation if x.types.weight is not None and x.grouping.groups_rows)
MANY = tuple(x for x in Operation if x.has_parts)
UINT8, FLOAT32, INT32 = (1, 8), DTYPES["float32"], (0, 32)
MAX_WEIGHTS = 4


def _drawn_by(rng, kinds, oddness):
    """Return what draws a tensor, mostly of one of some kinds."""
    first = rng.choice(kinds)

    def kind(shape, dtype):
        return (first if rng.random() < 0.95 else rng.choice(kinds))(rng, shape, dtype, oddness)

    return kind


def packed_linear_call(package, rng, kinds):
    """Draw a call of `packed_linear`, whose weight mostly has the bytes of its format."""
    operation, kind = rng.choice(PACKED), _drawn_by(rng, kinds, rng.choice((0.02, 0.1, 1.0)))
    form, dtype = operation.types.weight, DTYPES[operation.d.value]
    (m, n), k = (rng.choice(EXTENTS) for _ in range(2)), form.quantum * rng.choice((0, 1, 2, 3, 32))
    k += rng.choice((1, 8)) if rng.random() < 0.03 else 0
    odd = (rng.choice((*EXTENTS, -1)), rng.choice(EXTENTS))
    shape = PackedLayout(form).shape(n, k) if rng.random() < 0.97 else odd
    operands = kind((m, k), dtype), kind(shape, UINT8)
    named = {"weight_format": form.name, "columns": n}
    if form.has_row_factors or rng.random() < 0.02:
        shapes = ((1,), (), (n,), (n, 1))
        named["scale_w"] = kind(rng.choice(shapes), FLOAT32) if rng.random() < 0.97 else rng.choice(ODD_OBJECTS)
    if rng.random() < 0.4:
        named["bias"] = kind((n,), dtype)
    if rng.random() < 0.7:
        named["out"] = kind((m, n), dtype)
    if rng.random() < 0.02:
        named["columns"] = rng.choice((*ODD_OBJECTS, 2**62, -(2**63), None))
    if rng.random() < 0.02:
        named["weight_format"] = rng.choice((*ODD_OBJECTS, "int5", None))
    return package.packed_linear, operands, named


def packed_grouped_call(package, rng, kinds):
    """Draw a call of `packed_grouped_linear`, whose weights mostly have the bytes of their format."""
    operation, kind = rng.choice(GROUPED), _drawn_by(rng, kinds, rng.choice((0.02, 0.1, 1.0)))
    form, dtype = operation.types.weight, DTYPES[operation.d.value]
    (m, n), k, groups = (
        (rng.choice(EXTENTS) for _ in range(2)),
        form.quantum * rng.choice((0, 1, 3)),
        rng.choice((1, 5)),
    )
    of_one = PackedLayout(form).shape(n, k)
    weight = kind((groups, *of_one), UINT8)
    if rng.random() < 0.3:
        weight = [kind(of_one, UINT8) for _ in range(groups)]
    is_gathered = operation.grouping is Grouping.GATHERED
    operands = kind((rng.choice(EXTENTS) if is_gathered else m, k), dtype), weight, kind((groups,), INT32)
    named = {"weight_format": form.name, "columns": n if rng.random() < 0.97 else rng.choice((*ODD_OBJECTS, -1))}
    if is_gathered:
        named["index"] = kind((m,), INT32)
    if form.has_row_factors or rng.random() < 0.02:
        named["scale_w"] = kind(rng.choice(((1,), (groups,), (groups, n))), FLOAT32)
    if rng.random() < 0.4:
        named["bias"] = kind((groups, n), dtype)
    if rng.random() < 0.7:
        named["out"] = kind((m, n), dtype)
    return package.packed_grouped_linear, operands, named


def many_call(package, rng, kinds):
    """Draw a call of `linear_many`, with weights, biases and results that mostly go together."""
    operation, kind = rng.choice(MANY), _drawn_by(rng, kinds, rng.choice((0.02, 0.1, 1.0)))
    dtype, count = DTYPES[operation.d.value], rng.randint(1, MAX_WEIGHTS if rng.random() < 0.97 else MAX_WEIGHTS + 3)
    m, k = rng.choice(EXTENTS), rng.choice(EXTENTS)
    rows = [rng.choice(EXTENTS) for _ in range(count)]
    weights = [kind((n, k), dtype) for n in rows]
    biases = [kind((n,), dtype) if rng.random() < 0.3 else None for n in rows]
    results = [kind((m, n), dtype) for n in rows]
    given = rng.choice((weights, biases, results))
    if rng.random() < 0.05:
        given[rng.randrange(count)] = rng.choice((*ODD_OBJECTS, None))
    if rng.random() < 0.03:
        given.pop()
    return package._operations.linear_many, (kind((m, k), dtype), weights, biases), {"out": results}
