"""A mixture's experts whose inputs are rounded to NVFP4: two products, between which nothing leaves 4 bits.

The first product has the gate, and writes elements and factors where the second one reads them. So the rows of gate and
linear half are in turns, and the factor of all that stands between is known beforehand, as of a calibration.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from . import errors
from ._manifest import is_batch_invariant
from ._row_table import plan_rows
from ._table import Plan, plan
from ._torch_activations import AUTO, NARROW, WIDE, rounding_us, why_not_narrow
from ._torch_blocks import quantize
from ._torch_expert_kinds import WEIGHTS, Kind
from ._torch_grouped import grouped_linear
from ._torch_packed import rows_and_atoms
from ._weight_format import NVFP4_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ._torch_routing import Routes

GATE = "silu_mul"
"""The only gate that groups in NVFP4 have."""
_MOST_ROWS = 1 << 16
"""Most rows of which the tables are asked."""


class Stack(Protocol):
    """The weights of a mixture's experts, as `ExpertWeights` of `_torch_quantized_experts.py` holds them."""

    qweight: Any
    scale: Any
    shape: tuple[int, ...]
    format: str
    input_scale: Any
    """The own factor by which their inputs are rounded, or None."""
    is_interleaved: bool
    """Whether its rows, of a gate and of a linear half, are in turns though the module's were halves."""


class Asked(NamedTuple):
    """What is asked of the wheel's tables."""

    kind: Kind
    dtype: torch.dtype
    """Of x and of the result."""
    wide: str | None
    """The grouping of the first product of inputs of 16 bits, of which gate and linear half are apart; None where the
    wheel has no kernels for experts with such inputs."""


def why_not_held(kind: Kind, first: Stack, second: Stack, *, has_bias: bool) -> str:
    """Say why no inputs are rounded of experts as they are held, whatever the wheel has; empty where they may be.

    Args:
        kind: what the module computes.
        first: the weights of gate and linear half.
        second: those of what follows.
        has_bias: whether the products have biases.
    """
    if first.format != NVFP4_ROWS.name:
        return (
            f"the weights are {first.format}; expected {NVFP4_ROWS.name}, as of `aot pack --format {NVFP4_ROWS.name}`"
        )
    if kind.gate != GATE or has_bias:
        return f"the gate is {kind.gate}{', with biases' if has_bias else ''}; expected {GATE} without biases"
    if second.input_scale is None:
        return (
            "no factor is known of what stands between the products; expected an input_scale of each expert's second "
            "weight in the checkpoint that was packed, as ModelOpt's NVFP4 has it"
        )
    if not (kind.interleaved or first.is_interleaved):
        return "gate and linear half of an expert have own factors that differ, or are one stack of halves"
    if first.input_scale is None and is_batch_invariant({}):
        return "no factor of x is known, and one that is found of all rows is none of a wheel that is batch-invariant"
    return ""


def may_be_in_turns(kind: Kind, name: str, input_scale: float | None) -> bool:
    """Say whether a stack's rows of gate and linear half are held in turns, so that inputs may be rounded.

    Args:
        kind: what the module computes.
        name: of the format.
        input_scale: of the weights that follow, or None.
    """
    return kind.gate == GATE and name == NVFP4_ROWS.name and input_scale is not None


def least_rows(asked: Asked, activation_format: str) -> tuple[int | None, str]:
    """Return from how many rows on inputs are rounded; None of none, and why none may be.

    Args:
        asked: what the module computes, in which types.
        activation_format: as `linear` has it. "auto" takes a power of two from which on the wheel's tables have it
            faster at each one, by measured or predicted times.
    """
    reason = _why_not_planned(asked.kind, asked.dtype)
    if reason or activation_format == WIDE:
        return None, reason
    if activation_format == NARROW or asked.wide is None:
        return 0, ""
    if activation_format == AUTO and is_batch_invariant({}):
        return None, ""
    return _least_of_tables(asked), ""


def _products(kind: Kind, dtype: torch.dtype) -> tuple[tuple[int, int, dict[str, Any]], ...]:
    """Return n, k and what else `plan` is told of both products."""
    (_, _, hidden), (experts, n, width) = (kind.shape_of(x) for x in WEIGHTS)
    result = str(dtype).removeprefix("torch.")
    gated = {"gated": True, "activation": "silu", "out_dtype": NARROW, "groups": experts}
    return (width, hidden, gated), (n, width, {"out_dtype": result, "groups": experts})


@cache
def _why_not_planned(kind: Kind, dtype: torch.dtype) -> str:
    """Say why this wheel has no tuned products of experts with inputs that are rounded; empty where it has."""
    reasons = (why_not_narrow(n, k, dtype, bias=False, **asked) for n, k, asked in _products(kind, dtype))
    return next((x for x in reasons if x is not None), "")


@cache
def _least_of_tables(asked: Asked) -> int | None:
    """Return the least power of two from which on tables have rounded inputs faster, or None.

    It is no less than there are experts: fewer rows are to the tables as many, one of each.
    """
    return _least_power(asked.kind, lambda rows: _is_faster(rows, asked))


def _least_power(kind: Kind, is_better: Callable[[int], bool]) -> int | None:
    """Return the least power of two of rows, no less than the experts, of which and of all larger ones that is so."""
    found, rows = None, _MOST_ROWS
    while rows >= kind.experts and is_better(rows):
        found, rows = rows, rows // 2
    return found


def least_copied(kind: Kind, name: str, dtype: torch.dtype) -> int | None:
    """Return from how many rows on tokens are copied by expert, in the place of being gathered by a packed product.

    It is a power of two from which on the wheel's tables give rows in order a kernel that they do not give gathered
    ones, as of Hopper's for many rows, which cannot gather; None where they never do, and in a wheel that is
    batch-invariant, since two kernels may be two orders of sums.
    """
    if is_batch_invariant({}):
        return None
    _, n, k = kind.shape_of(WEIGHTS[0])
    asked = {"weight_dtype": name, "groups": kind.experts}

    def has_another(rows: int) -> bool:
        try:
            names = {
                plan(rows, n, k, str(dtype).removeprefix("torch."), grouping=x, **asked).kernel.partition(f"_{x}_")[2]
                for x in ("grouped", "gathered")
            }
        except errors.AotGemmError:
            return False
        return len(names) > 1

    return _least_power(kind, has_another)


def _is_faster(rows: int, asked: Asked) -> bool:
    """Say whether rounding inputs and multiplying them takes less time than inputs of 16 bits, by the wheel's tables.

    The gate of these inputs, and what x's own factor takes to be found where none is known, are not counted.
    """
    kind, dtype, wide = asked
    result = str(dtype).removeprefix("torch.")
    try:
        rounding = plan_rows("quantize", rows, kind.hidden, dtype, out_dtype=NARROW)
        narrow = [plan(rows, n, k, NARROW, **given) for n, k, given in _products(kind, dtype)]
        groupings = zip(WEIGHTS, (wide, "grouped"), strict=True)
        packed = {"weight_dtype": NVFP4_ROWS.name, "groups": kind.experts}
        others = [plan(rows, *kind.shape_of(x)[1:], result, grouping=y, **packed) for x, y in groupings]
    except errors.AotGemmError:
        return False
    if rounding.tier == "fallback":
        return False
    before, sums = rounding_us(rounding), [_sum(x, by_table=True) for x in (narrow, others)]
    if None in sums:
        sums = [_sum(x, by_table=False) for x in (narrow, others)]
    return before + (sums[0] or 0.0) < (sums[1] or 0.0)


def _sum(plans: list[Plan], *, by_table: bool) -> float | None:
    """Return the times of products by the table, None where it has not all; or the least that they can take."""
    times = [x.time_us if by_table else x.roofline_us or 0.0 for x in plans]
    known = [x for x in times if x is not None]
    return sum(known) if len(known) == len(times) else None


def multiply_rounded(x: Any, routes: Routes, first: Stack, second: Stack) -> Any:
    """Compute what the experts give of each row: (rows, hidden), rows in the order of the experts.

    Args:
        x: (tokens, hidden).
        routes: the rows of each expert.
        first: the weights of gate and linear half, whose rows are in turns.
        second: those of what follows.
    """
    ends, dtype = routes.offsets, x.dtype
    rows, scale = quantize(x, NARROW, scale=first.input_scale, offsets=ends, index=routes.token_of)
    (elements, *factors), own = _operands(first), second.input_scale
    gate = {"gate": "silu", "interleaved": True, "out_dtype": NARROW, "scale_out": own}
    inner, scale = grouped_linear(rows, elements, ends, scale_x=scale, scale_w=tuple(factors), **gate)
    elements, *factors = _operands(second)
    return grouped_linear(inner, elements, ends, scale_x=scale, scale_w=tuple(factors), out_dtype=dtype)


def _operands(weights: Stack) -> tuple[Any, Any, Any]:
    """Return elements, atoms and own factors of a stack, of which all rows of an expert have the same."""
    return *rows_and_atoms(NVFP4_ROWS, weights.qweight, weights.shape), weights.scale[:, 0]
