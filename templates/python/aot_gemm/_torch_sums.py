"""Sums in front of norms: layers whose residual + x is computed by the kernel of the norm that follows.

The forward of a layer is read as source, and compiled anew with `residual + x` given to the norm that is called next.
That gives the sum, which the layer goes on with, and keeps its norm until it is asked for the norm of that very tensor.
So a wrong guess of which norm follows costs time and never a result, as long as nobody writes the sum in between: torch
counts no writes of inference tensors and of those that a compiler traces. The source says that no layer does. A hook is
not in the source, so that where one stands between a sum and its norm, the two are computed apart.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules import module as torch_module

from ._torch_fused import front, fronted, unfront
from ._torch_norms import Normed
from ._torch_patterns import writes

if TYPE_CHECKING:
    from collections.abc import Iterator

_HARMLESS = {"isinstance", "len", "tuple"}
_METHOD = "aot_sum"
_CHECKPOINTING = "transformers.modeling_layers"


@dataclass(frozen=True)
class _Event:
    """Something that a forward does: a sum that it assigns or returns, or a call of a norm of its own."""

    start: tuple[int, int]
    end: tuple[int, int]
    norm: str | None
    """The norm's name; None of a sum."""
    names: tuple[str, ...]
    """The variable that the sum is assigned to; the one that the norm is of."""


@dataclass
class _Layer:
    """A layer as its source has it: its sums and norms in order."""

    name: str
    module: Any
    tree: Any
    function: Any
    events: list[_Event]
    targets: list[Any]
    """By sum: the norm that follows it, or None."""
    next: Any = None
    """The module whose call lies between the last sum and its norm, where that is another layer's."""

    @property
    def sums(self) -> list[_Event]:
        return [x for x in self.events if x.norm is None]

    @property
    def first(self) -> Any:
        """Return the norm that the layer begins with; None where it begins otherwise."""
        event = self.events[0]
        if event.norm is None or _calls_between(self.tree, (0, 0), event.start):
            return None
        return getattr(self.module, event.norm)


def source_of(function: Any) -> Any:
    """Return the tree of a function's source, at its lines of the file; None where it has none that can be compiled."""
    plain, num_wrappers = inspect.unwrap(function), _num_wrappers(function)
    if not isinstance(plain, FunctionType) or plain.__code__.co_freevars:
        return None
    try:
        lines, first = inspect.getsourcelines(plain)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef) or tree.name != plain.__name__ or not tree.args.args:
        return None
    if num_wrappers > len(tree.decorator_list):
        return None  # something has wrapped it that the source does not show
    if any(_is_private(x.attr if isinstance(x, ast.Attribute) else getattr(x, "id", "")) for x in ast.walk(tree)):
        return None  # names that a class changes, as it is compiled
    ast.increment_lineno(tree, first - 1)
    if num_wrappers == 0:
        tree.decorator_list = []  # they gave the function itself
    return tree


def _is_private(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _num_wrappers(function: Any) -> int:
    """Count what wraps a function, without transformers' own checkpointing of layers, which is of training alone."""
    count = 0
    while hasattr(function, "__wrapped__"):
        count += getattr(function, "__globals__", {}).get("__name__") != _CHECKPOINTING
        function = function.__wrapped__
    return count


def _place(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: Any) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


def _own_call(node: Any, owner: str) -> str | None:
    """Return the name of the module that a call self.NAME(variable) calls; None of any other node."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords):
        return None
    is_own = isinstance(node.func.value, ast.Name) and node.func.value.id == owner
    return node.func.attr if is_own and len(node.args) == 1 and isinstance(node.args[0], ast.Name) else None


def _sum_of(node: Any) -> tuple[Any, tuple[str, ...]] | None:
    """Return the sum that a statement assigns to a variable or returns, and the variable."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        value, names = node.value, (node.targets[0].id,)
    elif isinstance(node, ast.Return):
        value, names = node.value, ()
    else:
        return None
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)):
        return None
    if isinstance(value.left, ast.Tuple) or isinstance(value.right, ast.Tuple):
        return None
    return (value, names) if isinstance(value.left, ast.Name) or isinstance(value.right, ast.Name) else None


def _events(tree: Any, module: Any) -> list[_Event]:
    owner, found = tree.args.args[0].arg, []
    for node in ast.walk(tree):
        added, called = _sum_of(node), _own_call(node, owner)
        if added is not None:
            found.append(_Event(_place(added[0]), _end(added[0]), None, added[1]))
        elif called is not None and isinstance(getattr(module, called, None), Normed):
            found.append(_Event(_place(node), _end(node), called, (node.args[0].id,)))
    return sorted(found, key=lambda event: event.start)


def _calls_between(tree: Any, start: tuple[int, int], end: tuple[int, int]) -> bool:
    """Say whether something is called between two places, which might write a tensor; torch's functions do not."""
    return any(
        isinstance(node, ast.Call) and start <= _place(node) < end and not _is_harmless(node) for node in ast.walk(tree)
    )


def _is_harmless(node: ast.Call) -> bool:
    root: Any = node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and (root.id in _HARMLESS or root.id == "torch")


def _layer_of(name: str, module: Any) -> _Layer | None:
    """Read a layer that has norms of its own and sums; None of any other module."""
    if "forward" in vars(module) or not any(isinstance(x, Normed) for x in module.children()):
        return None
    tree = source_of(type(module).forward)
    if tree is None or writes(tree):
        return None
    events = _events(tree, module)
    if not any(x.norm is None for x in events) or not any(x.norm for x in events):
        return None
    layer = _Layer(name, module, tree, type(module).forward, events, [])
    for event, behind in zip(events, [*events[1:], None], strict=True):
        if event.norm is None:
            layer.targets.append(_following(layer, event, behind))
    return layer


def _following(layer: _Layer, event: _Event, behind: _Event | None) -> Any:
    """Return the norm that is called next, with nothing else called in between."""
    if (
        behind is None
        or behind.norm is None
        or behind.start < event.end
        or _calls_between(layer.tree, event.end, behind.start)
    ):
        return None
    return getattr(layer.module, behind.norm)


def _is_passed_on(layer: _Layer) -> bool:
    """Say whether the last sum is what leaves the layer, as far as nothing is called behind it."""
    return layer.events[-1].norm is None and not _calls_between(layer.tree, layer.events[-1].end, (1 << 30, 0))


def _lists(model: Any) -> Iterator[tuple[Any, str, list[Any]]]:
    """List the modules that hold layers in a list, its name, and the layers."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) > 0:
                yield module, name, list(child)


def _loop_of(tree: Any, owner: str, name: str) -> ast.For | None:
    """Return the one loop over self.NAME, or a part of it; None where there is none, or several."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            over = [x for x in ast.walk(node.iter) if isinstance(x, ast.Attribute) and x.attr == name]
            if any(isinstance(x.value, ast.Name) and x.value.id == owner for x in over):
                found.append(node)
    return found[0] if len(found) == 1 else None


def _result_names(loop: ast.For) -> set[str] | None:
    """Return the variables of what a loop's layer gives; None where something else is called with one of them."""
    target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
    if not isinstance(target, ast.Name):
        return None
    assigned = [x for node in loop.body for x in ast.walk(node) if isinstance(x, ast.Assign)]
    names: set[str] = set()
    for _ in range(2):  # then those that are assigned from these
        for node in assigned:
            used = {x.id for x in ast.walk(node.value) if isinstance(x, ast.Name)}
            if target.id in used or used & names:
                names |= {x.id for y in node.targets for x in ast.walk(y) if isinstance(x, ast.Name)}
    for node in (x for each in loop.body for x in ast.walk(each) if isinstance(x, ast.Call)):
        is_layer = isinstance(node.func, ast.Name) and (node.func.id == target.id or node.func.id in _HARMLESS)
        given = {x.id for y in (*node.args, *(z.value for z in node.keywords)) for x in ast.walk(y) if _is_name(x)}
        if given & names and not is_layer:
            return None
    return names


def _is_name(node: Any) -> bool:
    return isinstance(node, ast.Name)


def _chain(model: Any, layers: dict[int, _Layer]) -> None:
    """Give the last sum of each layer of a list the norm that the next one begins with, or that follows the list."""
    for owner, name, members in _lists(model):
        found = [layers.get(id(x)) for x in members]
        if not any(found) or "forward" in vars(owner):
            continue
        tree = source_of(type(owner).forward)
        loop = None if tree is None else _loop_of(tree, tree.args.args[0].arg, name)
        names = None if loop is None or writes(tree, _place(loop)) else _result_names(loop)
        if not names:
            continue
        after = [x for x in _events(tree, owner) if x.norm and x.start > _end(loop) and x.names[0] in names]
        is_next = bool(after) and not _calls_between(tree, _end(loop), after[0].start)
        behind = getattr(owner, after[0].norm) if is_next and after[0].norm else None
        following = [*((x and x.first, x and x.module) for x in found[1:]), (behind, None)]
        for layer, (norm, other) in zip(found, following, strict=True):
            if layer is not None and norm is not None and _is_passed_on(layer):
                layer.targets[-1], layer.next = norm, other


class _Rewriter(ast.NodeTransformer):
    """Gives sums at known places to a method of the layer."""

    def __init__(self, places: dict[tuple[int, int], int], owner: str) -> None:
        self.places, self.owner = places, owner

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Replace a sum."""
        number = self.places.get(_place(node)) if isinstance(node.op, ast.Add) else None
        if number is None:
            return self.generic_visit(node)
        method = ast.Attribute(ast.Name(self.owner, ast.Load()), _METHOD, ast.Load())
        call = ast.Call(method, [ast.Constant(number), node.left, node.right], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _rewritten(layer: _Layer) -> Any:
    """Compile a layer's forward with its sums given to `aot_sum`; None where that does not go."""
    plain = inspect.unwrap(layer.function)
    places = {x.start: i for i, x in enumerate(layer.sums)}
    tree = _Rewriter(places, layer.tree.args.args[0].arg).visit(layer.tree)
    tree.returns = None
    for argument in ast.walk(tree.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    names: dict[str, Any] = {}
    try:
        code = compile(ast.Module([tree], []), inspect.getsourcefile(plain) or "<layer>", "exec", dont_inherit=True)
        exec(code, plain.__globals__, names)  # noqa: S102 - the layer's own source, with sums given to a method
    except Exception:  # noqa: BLE001 - decorators may do anything
        return None
    made = names[plain.__name__]
    if not tree.decorator_list:
        made.__defaults__, made.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
    return made


class Summed:
    """What a layer's class gets in front of it; in training its own forward serves."""

    aot_forward: Any = None
    """The layer's forward, compiled anew, of the class; None where such a layer was unpickled in another process."""

    aot_source: Any = None
    """The forward that it was compiled of."""

    aot_norms: tuple[Any, ...]
    """By sum: the norm that follows it, or None."""

    aot_next: tuple[Any, ...]
    """The layer that the last sum is given to, where its norm is that layer's; else nothing."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Compute the layer's forward, with sums and the norms behind them in one kernel."""
        forward = type(self).aot_forward
        if forward is None or self.training:  # type: ignore[attr-defined]
            return super().forward(*arguments, **options)  # type: ignore[misc]
        return forward(self, *arguments, **options)

    def aot_sum(self, place: int, left: Any, right: Any) -> Any:
        """Return left + right, by the norm that follows it."""
        norm = self.aot_norms[place]
        return left + right if norm is None or self._aot_is_hooked(norm) else norm.aot_sum(left, right)

    def _aot_is_hooked(self, norm: Any) -> bool:
        """Say whether a hook may see a sum before the norm that follows it does, and write it."""
        if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:  # noqa: SLF001
            return True
        before = (norm, *self.aot_next)
        return bool(self._forward_hooks) or any(x._forward_pre_hooks for x in before)  # type: ignore[attr-defined]  # noqa: SLF001


def join_sums(model: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Have layers compute sums with the norms behind them; return which, by the layer's name, and why others do not."""
    found = [_layer_of(name, module) for name, module in model.named_modules() if not isinstance(module, Summed)]
    layers = {id(x.module): x for x in found if x is not None}
    _chain(model, layers)
    names = {id(module): name for name, module in model.named_modules()}
    joined: dict[str, str] = {}
    left: dict[str, str] = {}
    for layer in layers.values():
        if not any(x is not None for x in layer.targets):
            if layer.first is not None:  # else it is no layer: it may add an embedding, and has a norm elsewhere
                left[layer.name] = (
                    "sums in front of norms: its source calls something between each sum and the norm behind it"
                )
            continue
        cls: Any = fronted(Summed, type(layer.module))
        if cls.aot_forward is None:
            cls.aot_forward, cls.aot_source = _rewritten(layer), layer.function
        if cls.aot_forward is None or cls.aot_source is not layer.function:
            left[layer.name] = f"sums in front of norms: {_why_not_rewritten(cls)}"
            continue
        others = () if layer.next is None else (layer.next,)
        front(layer.module, Summed, aot_norms=tuple(layer.targets), aot_next=others)
        followers = " and ".join(names[id(x)] for x in layer.targets if x is not None)
        joined[layer.name] = f"the sum in front of {followers} in the kernel of that norm"
    return joined, left


def _why_not_rewritten(cls: Any) -> str:
    if cls.aot_forward is None:
        return "its forward cannot be compiled anew"
    return "the forward of its class was replaced since one was patched"


def restore_sums(module: Any) -> None:
    """Give a layer the class that it had."""
    unfront(module, ("aot_norms", "aot_next"))
