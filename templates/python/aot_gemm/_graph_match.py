"""Patterns of expressions in a graph of ATen operators: what a node computes, whatever spelling a tracer gave it.

A pattern is a function of a node and of what is bound so far. It returns each way in which the node can be read, as
bindings: names, and the nodes or numbers that they stand for. A name that is bound already fits what it is bound to
alone. So `x * sigmoid(x)` is `call(MUL, bind("x"), call(SIGMOID, bind("x")), commutes=True)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from operator import getitem
from typing import Any

import torch
import torch._prims
from torch.fx import Node

Bindings = Mapping[str, Any]
Pattern = Callable[[Any, Bindings], Iterator[dict[str, Any]]]

aten, prims = torch.ops.aten, torch.ops.prims
_COPY, _VIEW = aten._to_copy.default, aten._unsafe_view.default  # noqa: SLF001 - operators that torch names so
CONVERSIONS = (prims.convert_element_type.default, _COPY, aten.to.dtype, aten.type_as.default)
VIEWS = (aten.view.default, aten.reshape.default, _VIEW)
ADD = (aten.add.Tensor, aten.add.Scalar)
MUL = (aten.mul.Tensor, aten.mul.Scalar)


def value_of(node: Any) -> Any:
    """Return the fake tensor that a node stands for; None where it is no node, or gives no tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def dtype_of(node: Any) -> Any:
    """Return the element type of a node; None where it gives no tensor."""
    value = value_of(node)
    return None if value is None else value.dtype


def same_extent(one: Any, other: Any) -> bool:
    """Say whether two extents are equal in whatever the graph is called with; asking puts no condition on it."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt) and one.node.expr == other.node.expr


def same_shape(one: Any, other: Any) -> bool:
    """Say whether two shapes are equal in whatever the graph is called with."""
    return len(one) == len(other) and all(map(same_extent, one, other))


def bind(name: str, *, where: Callable[[Any], bool] = lambda _: True) -> Pattern:
    """Match what fulfils a condition, and the same node or number wherever the name stands."""

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        if name in known:
            if known[name] is node:
                yield dict(known)
        elif where(node):
            yield {**known, name: node}

    return match


def tensor(name: str) -> Pattern:
    """Match a node that gives a tensor."""
    return bind(name, where=lambda node: value_of(node) is not None)


def number(expected: float) -> Pattern:
    """Match a number, to within the rounding of a float32."""

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        if isinstance(node, (int, float)) and math.isclose(node, expected, rel_tol=1e-6):
            yield dict(known)

    return match


def any_number(name: str) -> Pattern:
    """Match any number."""
    return bind(name, where=lambda node: isinstance(node, (int, float)) and not isinstance(node, bool))


def call(targets: Any, *arguments: Pattern, commutes: bool = False) -> Pattern:
    """Match a call of one of some operators, by its first arguments; the others must be as by default.

    Args:
        targets: the operators, or one.
        arguments: a pattern for each argument.
        commutes: whether two arguments may stand in either order.
    """
    known_targets = targets if isinstance(targets, tuple) else (targets,)
    orders = [arguments, arguments[::-1]] if commutes else [arguments]

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        if not isinstance(node, Node) or node.target not in known_targets:
            return
        if len(node.args) != len(arguments) or any(value is not None for value in node.kwargs.values()):
            return
        for order in orders:
            yield from _match_all(order, node.args, known)

    return match


def _match_all(patterns: tuple[Pattern, ...], nodes: tuple[Any, ...], known: Bindings) -> Iterator[dict[str, Any]]:
    if not patterns:
        yield dict(known)
        return
    for found in patterns[0](nodes[0], known):
        yield from _match_all(patterns[1:], nodes[1:], found)


def either(*patterns: Pattern) -> Pattern:
    """Match what one of some patterns does."""

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        for pattern in patterns:
            yield from pattern(node, known)

    return match


def narrowed(pattern: Pattern) -> Pattern:
    """Match a conversion of what a pattern matches, and give the type that it converts to as `dtype`."""

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        if is_conversion(node):
            yield from pattern(node.args[0], {**known, "dtype": dtype_of(node)})

    return match


def maybe_converted(pattern: Pattern) -> Pattern:
    """Match what a pattern matches, or a conversion of it."""

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        if is_conversion(node):
            yield from pattern(node.args[0], known)
        yield from pattern(node, known)

    return match


def is_conversion(node: Any) -> bool:
    """Say whether a node gives its input in another element type, in whatever layout; not on another device."""
    if not isinstance(node, Node) or node.target not in CONVERSIONS:
        return False
    before, after = value_of(node.args[0]), value_of(node)
    return before is not None and after is not None and before.device == after.device


def item(pattern: Pattern, place: int) -> Pattern:
    """Match one result of several of a node."""

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        if isinstance(node, Node) and node.target is getitem and node.args[1] == place:
            yield from pattern(node.args[0], known)

    return match


def first(pattern: Pattern, node: Any) -> dict[str, Any] | None:
    """Return the first way in which a pattern matches a node; None where it does not."""
    return next(pattern(node, {}), None)


def is_used_by(node: Node, user: Node) -> bool:
    """Say whether all that uses a node ends in one other: whether it is not needed where that is computed otherwise."""
    pending = list(node.users)
    seen: set[Node] = set()
    if not pending:
        return False
    while pending:
        found = pending.pop()
        if found is user or found in seen:
            continue
        if found.op != "call_function" or not found.users:
            return False
        seen.add(found)
        pending.extend(found.users)
        if len(seen) > _MOST_BETWEEN:
            return False
    return True


_MOST_BETWEEN = 32
"""Nodes at most between a product and what it is joined with; the longest, GELU by tanh, has 13."""
