"""Which product a norm's result goes to, and to nothing else, so that the norm's kernel may give it rows of 8 bits.

It is read from the sources of the layer's forward and of the module that the layer gives the norm to: the norm's result
is used once, and what gets it gives it to the Linears of one product alone. Where a source does not show that, the
product's input is quantised in front of it.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ._torch_frozen import FrozenLinear
from ._torch_fused import Fused
from ._torch_norms import Normed
from ._torch_quantised import Feed, has_kernel
from ._torch_sums import source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOKS = {"device", "ndim", "shape"}
"""Attributes of a tensor that are the same whatever its element type."""
_SCOPES = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""What may read a variable later, or more than once."""


def feed_norms(model: Any, kind: str) -> dict[str, str]:
    """Have norms give rows of 8 bits to the products behind them; return which, by the layer's name."""
    found: dict[str, str] = {}
    for name, layer in model.named_modules():
        texts = []
        for norm_name, norm, consumer_name, joined in _norms_of(layer):
            if not has_kernel(norm.aot_kind.function, norm.aot_cols, norm.aot_dtype, kind):
                continue
            consumer = getattr(layer, consumer_name)
            linears = [(consumer, key, x) for key, x in consumer.named_children() if x in joined.modules]
            places = (layer, norm_name, norm), (layer, consumer_name, consumer), *linears
            object.__setattr__(norm, "aot_feed", Feed(joined, places))
            texts.append(f"{norm_name} gives rows of {kind}")
        if texts:
            found[name] = " and ".join(texts)
    return found


def _norms_of(layer: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """List a layer's own norms that go to one product of 8 bits: name, norm, who gets it by name, the product."""
    norms = {name: child for name, child in layer.named_children() if isinstance(child, Normed)}
    tree = _tree_of(layer) if norms else None
    if tree is None:
        return
    for name, norm in norms.items():
        calls = [x for x in ast.walk(tree) if _is_own_attribute(x, tree, name)]
        found = _consumer(tree, name) if len(calls) == 1 else None
        if found is None:
            continue
        joined = _product_of(getattr(layer, found[0], None), found[1])
        if joined is not None and joined.inputs is not None and joined.weight.shape[1] == norm.aot_cols:
            yield name, norm, found[0], joined


def _tree_of(module: Any) -> Any:
    """Return the source of a module's forward as it was before `patch`; None where it is not to be had."""
    if "forward" in vars(module):
        return None
    return source_of((type(module).__mro__[2] if isinstance(module, Fused) else type(module)).forward)


def _is_own_attribute(node: Any, tree: Any, name: str) -> bool:
    """Say whether a node is self.NAME."""
    is_named = isinstance(node, ast.Attribute) and node.attr == name
    return is_named and isinstance(node.value, ast.Name) and node.value.id == tree.args.args[0].arg


def _own_call(node: Any, tree: Any) -> str | None:
    """Return the name of the module that a call self.NAME(...) calls; None of any other node."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    return node.func.attr if _is_own_attribute(node.func, tree, node.func.attr) else None


def _consumer(tree: Any, norm: str) -> tuple[str, int | str] | None:
    """Return the name of the module that gets a norm's result, and as which argument; None where others may use it."""
    for block in _blocks(tree):
        for place, statement in enumerate(block):
            given = [x for x in ast.walk(statement) if _own_call(x, tree) == norm]
            if len(given) != 1 or given[0].keywords or len(given[0].args) != 1:
                continue
            if isinstance(statement, ast.Assign) and statement.value is given[0]:
                return _user(tree, statement.targets, block[place + 1 :], is_last=block is tree.body)
            if isinstance(statement, (ast.Assign, ast.Return, ast.Expr)):
                return _argument(tree, statement, given[0])
    return None


def _blocks(tree: Any) -> Iterator[list[Any]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _argument(tree: Any, statement: Any, value: Any) -> tuple[str, int | str] | None:
    """Return which module a node is an argument of, in a statement, and which argument it is."""
    for node in ast.walk(statement):
        name = _own_call(node, tree)
        if name is None or any(isinstance(x, ast.Starred) for x in node.args):
            continue
        for place, given in enumerate(node.args):
            if given is value:
                return name, place
        for keyword in node.keywords:
            if keyword.value is value and keyword.arg is not None:
                return name, keyword.arg
    return None


def _user(tree: Any, targets: list[Any], behind: list[Any], *, is_last: bool) -> tuple[str, int | str] | None:
    """Return which module gets a variable that was assigned, where that is all that happens to it."""
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return None
    uses = _uses(targets[0].id, behind, is_last=is_last)
    if uses is None or len(uses) != 1:
        return None
    return next((x for x in (_argument(tree, y, uses[0]) for y in behind) if x is not None), None)


def _uses(name: str, statements: list[Any], *, is_last: bool) -> list[Any] | None:
    """List where a variable's value is read, up to its next assignment; None where that is not clear.

    Args:
        name: of the variable.
        statements: of one block, behind the assignment.
        is_last: whether nothing behind the block can read the variable.
    """
    found: list[Any] = []
    for statement in statements:
        names = [x for x in ast.walk(statement) if isinstance(x, ast.Name) and x.id == name]
        if names and any(isinstance(x, _SCOPES) for x in ast.walk(statement)):
            return None
        found += [x for x in names if isinstance(x.ctx, ast.Load)]
        if any(not isinstance(x.ctx, ast.Load) for x in names):
            return found if isinstance(statement, ast.Assign) else None
        if names and not isinstance(statement, (ast.Assign, ast.Return, ast.Expr)) and not _only_looks(statement, name):
            return None
    return found if is_last else None


def _only_looks(statement: Any, name: str) -> bool:
    """Say whether a statement has a variable for its shape and device alone."""
    looks = {id(x.value) for x in ast.walk(statement) if isinstance(x, ast.Attribute) and x.attr in _LOOKS}
    return all(id(x) in looks for x in ast.walk(statement) if isinstance(x, ast.Name) and x.id == name)


def _product_of(consumer: Any, argument: int | str) -> Any:
    """Return the one product that a module gives an argument to, and nothing else; None where there is none."""
    if isinstance(consumer, FrozenLinear):
        joined = consumer.aot_joined
        return joined if joined is not None and len(joined.modules) == 1 else None
    tree = None if consumer is None else _tree_of(consumer)
    name = None if tree is None else _parameter(tree, argument)
    uses = None if name is None else _uses(name, tree.body, is_last=True)
    if not uses:
        return None
    looks = {id(x.value) for x in ast.walk(tree) if isinstance(x, ast.Attribute) and x.attr in _LOOKS}
    linears = [_linear_of(tree, consumer, x) for x in uses if id(x) not in looks]
    joined = linears[0].aot_joined if linears and linears[0] is not None else None
    if joined is None or {id(x) for x in linears} != {id(x) for x in joined.modules}:
        return None
    return joined if len(linears) == len(joined.modules) else None


def _parameter(tree: Any, argument: int | str) -> str | None:
    """Return the name of the parameter that an argument is given to."""
    names = [x.arg for x in tree.args.args[1:]]
    if isinstance(argument, str):
        return argument if argument in {*names, *(x.arg for x in tree.args.kwonlyargs)} else None
    return names[argument] if argument < len(names) else None


def _linear_of(tree: Any, owner: Any, use: Any) -> Any:
    """Return the Linear of a module that is called with a variable alone; None of any other use."""
    for node in ast.walk(tree):
        name = _own_call(node, tree)
        if name is not None and node.args == [use] and not node.keywords:
            module = getattr(owner, name, None)
            return module if isinstance(module, FrozenLinear) else None
    return None
