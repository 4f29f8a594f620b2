"""What a module does with its Linears, found without running it: which share an input, and what follows them.

Which share an input is read from the source of the module's forward; what follows, from a trace by torch.fx. Where
either is not to be had, nothing is found, and nothing is fused.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_ACTIVATIONS: dict[Any, str] = {
    nn.functional.silu: "silu",
    nn.functional.relu: "relu",
    torch.relu: "relu",
}
_GATES = ("silu", "gelu_tanh")
"""Activations of a gate that `gated_linear` has."""
_LOOKS = {"device", "dtype", "ndim", "shape"}
"""Attributes of a tensor by which nobody writes it."""
_HOLDERS = (dict, list, set)
"""What a module may hold and write in place."""
_MAX_DEPTH = 3
"""How many modules of one submodule an activation may be wrapped in."""


@dataclass(frozen=True)
class Tail:
    """A module whose one input goes through a Linear and an activation, or through a gate, and then through others."""

    activation: str
    linears: tuple[str, ...]
    """One that the activation follows or that holds a gate's both halves; or a gate's two, the gate in front."""
    is_gated: bool
    rest: tuple[str, ...]
    """The names of the submodules that the result goes through then, in order."""
    name: str
    """Of the input, by which a caller may pass it."""
    passed: tuple[str, ...] = ()
    """The names of the submodules that are not called then: activations, and dropouts, which do nothing."""


def shared_inputs(module: Any) -> list[tuple[str, ...]]:
    """List the groups of a module's own Linears that its forward gives the same variable, unchanged in between."""
    linears = {name for name, child in module.named_children() if isinstance(child, nn.Linear)}
    if len(linears) < 2 or "forward" in vars(module):
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    except (OSError, TypeError, SyntaxError):
        return []
    calls: dict[str, list[_Call]] = {}
    for node in ast.walk(tree):
        found = _call_of(node, linears)
        if found is not None:
            calls.setdefault(found.argument.id, []).append(found)
    names = [x.name for found in calls.values() for x in found]
    return [
        tuple(x.name for x in found)
        for found in (sorted(x, key=lambda call: call.place) for x in calls.values())
        if len(found) > 1 and all(names.count(x.name) == 1 for x in found) and _is_unchanged(tree, found)
    ]


@dataclass(frozen=True)
class _Call:
    """A call self.NAME(ARGUMENT) of a Linear with a variable."""

    name: str
    argument: ast.Name

    @property
    def place(self) -> tuple[int, int]:
        """Return line and column, which is the order in which calls of one line are evaluated."""
        return self.argument.lineno, self.argument.col_offset


def _call_of(node: ast.AST, linears: set[str]) -> _Call | None:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in linears):
        return None
    owner = node.func.value
    if not (isinstance(owner, ast.Name) and owner.id == "self") or len(node.args) != 1 or node.keywords:
        return None
    argument = node.args[0]
    return _Call(node.func.attr, argument) if isinstance(argument, ast.Name) else None


def _is_unchanged(tree: ast.AST, calls: list[_Call]) -> bool:
    """Say whether nothing but the calls, and looks at its shape and type, has the variable between the first and last.

    What is given it besides may write it, and what assigns to it makes another of it. Nor is anything but the calls'
    results written in place there: it may be another name of the same memory, and torch does not count the writes of
    inference tensors.
    """
    first, last, name = calls[0].place, calls[-1].place, calls[0].argument.id
    if writes(tree, first, last, _results(tree, calls)):
        return False
    known = {id(x.argument) for x in calls}
    known |= {
        id(x.value)
        for x in ast.walk(tree)
        if isinstance(x, ast.Attribute) and x.attr in _LOOKS and isinstance(x.ctx, ast.Load)
    }
    between = (
        x
        for x in ast.walk(tree)
        if isinstance(x, ast.Name) and x.id == name and first <= (x.lineno, x.col_offset) <= last
    )
    return all(id(x) in known for x in between)


def _results(tree: ast.AST, calls: list[_Call]) -> set[str]:
    """List the variables that are assigned once, and then the result of a call."""
    arguments = {id(x.argument) for x in calls}
    in_place = {id(x.target) for x in ast.walk(tree) if isinstance(x, ast.AugAssign)}
    names = (x for x in ast.walk(tree) if isinstance(x, ast.Name) and id(x) not in in_place)
    stored = [x.id for x in names if isinstance(x.ctx, ast.Store)]
    return {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and any(id(x) in arguments for x in node.value.args)
        and len(node.targets) == 1
        and stored.count(node.targets[0].id) == 1
    }


def writes(
    tree: Any, start: tuple[int, int] = (0, 0), end: tuple[int, int] | None = None, but: Collection[str] = ()
) -> bool:
    """Say whether a function writes in place: `x += y`, items, methods with a trailing underscore, out= and inplace=.

    What is added to a tuple or a number in place is neither, nor is what is written of some variables. Only what stands
    between two places is looked at.
    """
    for node in (x for x in ast.walk(tree) if hasattr(x, "lineno")):
        place = node.lineno, node.col_offset
        if place < start or (end is not None and place >= end):
            continue
        written, is_written = None, False
        if isinstance(node, ast.AugAssign):
            written, is_written = node.target, not isinstance(node.value, (ast.Tuple, ast.Constant))
        elif isinstance(node, ast.Subscript):
            written, is_written = node.value, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            written, is_written = node.func.value, node.func.attr.endswith("_") and not node.func.attr.endswith("__")
        if is_written and not (isinstance(written, ast.Name) and written.id in but):
            return True
        if isinstance(node, ast.Call) and any(x.arg in ("out", "inplace") for x in node.keywords):
            return True
    return False


class _Tracer(fx.Tracer):
    """Traces a module down to its own submodules."""

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:  # noqa: ARG002 - as torch has it
        return True


def tail(module: Any) -> Tail | None:
    """Find what follows a module's Linears; None where its forward is not of one of the known forms."""
    if "forward" in vars(module) or not any(isinstance(x, nn.Linear) for x in module.children()):
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            graph = _Tracer().trace(_copied(module))
    except Exception:  # noqa: BLE001 - a forward may do anything with what a trace gives it
        return None
    nodes = [
        x for x in graph.nodes if not (x.op == "call_module" and isinstance(module.get_submodule(x.target), nn.Dropout))
    ]
    drops = {x: x.args[0] for x in graph.nodes if x not in nodes}
    return _Reader(module, nodes, drops).read()


def _copied(module: Any) -> Any:
    """Copy a module with what it holds, but for its submodules and parameters: a forward may write the rest."""
    copied = object.__new__(type(module))
    vars(copied).update((name, copy.copy(x) if isinstance(x, _HOLDERS) else x) for name, x in vars(module).items())
    copied._buffers.update((name, x.clone()) for name, x in module._buffers.items() if x is not None)  # noqa: SLF001
    return copied


class _Reader:
    """Reads a graph from its result backwards."""

    def __init__(self, module: Any, nodes: list[Any], drops: Mapping[Any, Any]) -> None:
        self.module, self.nodes, self.drops = module, nodes, drops

    def through(self, node: Any) -> Any:
        """Return what a node gives where dropouts do nothing."""
        while node in self.drops:
            node = self.drops[node]
        return node

    def read(self) -> Tail | None:
        inputs = [x for x in self.nodes if x.op == "placeholder"]
        used = [x for x in inputs if x.users]
        if len(used) != 1 or used[0] is not inputs[0]:
            return None
        node, rest = self.through(self.nodes[-1].args[0]), []
        while isinstance(node, fx.Node) and self.is_step(node):
            rest.append(node.target)
            node = self.through(node.args[0])
        if not isinstance(node, fx.Node):
            return None
        x = used[0]
        count = len(self.nodes) - len(rest) - len(inputs) - 1  # nodes that are to be explained
        found = self.gate(node, x) or self.half(node, x) or self.activated(node, x)
        if found is None or found[1] != count:
            return None
        linears = found[0][1]
        if any("." in name for name in (*linears, *rest)):
            return None  # of a list or of another module, where it may be replaced
        called = {node.target for node in (*self.nodes, *self.drops) if node.op == "call_module"}
        return Tail(*found[0], tuple(reversed(rest)), x.target, tuple(sorted(called - {*linears, *rest})))

    def is_step(self, node: Any) -> bool:
        """Say whether a node is a submodule that is no activation, whose one operand is not the input."""
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or self.activation(node):
            return False
        operand = self.through(node.args[0])
        return isinstance(operand, fx.Node) and operand.op != "placeholder"

    def linear(self, node: Any, x: Any) -> str | None:
        if not isinstance(node, fx.Node) or node.op != "call_module" or node.args != (x,) or node.kwargs:
            return None
        return node.target if isinstance(self.module.get_submodule(node.target), nn.Linear) else None

    def activation(self, node: Any) -> str | None:
        """Return the name of the activation that a node computes; None where it is none that is known."""
        if not isinstance(node, fx.Node) or not node.args or len(node.args) != 1:
            return None
        if node.op == "call_module":
            return activation_of(self.module.get_submodule(node.target)) if not node.kwargs else None
        if node.op == "call_function" and node.target is nn.functional.gelu:
            return _GELUS.get(node.kwargs.get("approximate", "none"))
        return (
            _ACTIVATIONS.get(node.target) if node.op == "call_function" and not set(node.kwargs) - {"inplace"} else None
        )

    def gate(self, node: Any, x: Any) -> Any:
        """Read act(gate(x)) * up(x): the tail's first fields, and how many nodes that explains."""
        for left, right in self.factors(node):
            name = self.activation(left)
            if name in _GATES:
                gate, up = self.linear(left.args[0], x), self.linear(right, x)
                if gate and up and gate != up:
                    return (name, (gate, up), True), 4
        return None

    def half(self, node: Any, x: Any) -> Any:
        """Read act(first half) * second half of one Linear's result."""
        for left, right in self.factors(node):
            name = self.activation(left)
            if name not in _GATES:
                continue
            first, second = left.args[0], right
            if not all(isinstance(y, fx.Node) and "getitem" in str(y.target) for y in (first, second)):
                continue
            chunk = first.args[0]
            is_halves = (first.args[1], second.args[1]) == (0, 1) and second.args[0] is chunk
            if is_halves and _is_chunk(chunk):
                linear = self.linear(chunk.args[0], x)
                if linear:
                    return (name, (linear,), True), 6
        return None

    def activated(self, node: Any, x: Any) -> Any:
        """Read act(linear(x))."""
        name = self.activation(node)
        linear = self.linear(node.args[0], x) if name else None
        return ((name, (linear,), False), 2) if linear else None

    def factors(self, node: Any) -> list[tuple[Any, Any]]:
        if "mul" not in str(node.target) or len(node.args) != 2:
            return []
        left, right = map(self.through, node.args)
        return [(left, right), (right, left)]


def _is_chunk(node: Any) -> bool:
    dim = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 0)
    parts = node.args[1] if len(node.args) > 1 else node.kwargs.get("chunks")
    return "chunk" in str(node.target) and parts == 2 and dim == -1


_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


def activation_of(module: Any) -> str | None:
    """Return the name of the activation that a module is, by its type or by what it does with some numbers.

    A module of one operand and without parameters is tried: its results are compared with those of the activations that
    there are kernels for, in float64, which tells gelu and its approximation apart.
    """
    if any(True for _ in module.parameters()) or isinstance(module, nn.Dropout) or module.training:
        return None
    if sum(1 for _ in module.modules()) > _MAX_DEPTH:
        return None
    x = torch.cat((torch.linspace(-6, 6, 97, dtype=torch.float64), _FAR, -_FAR))
    try:
        with torch.no_grad():
            got = module(x.clone())
    except Exception:  # noqa: BLE001 - it is no activation
        return None
    for name, function in _KNOWN.items():
        if isinstance(got, torch.Tensor) and got.shape == x.shape and torch.equal(got, function(x)):
            return name
    return None


_FAR = torch.logspace(-12, 38, 401, dtype=torch.float64)
"""Magnitudes up to the largest of bfloat16, at which what is clipped, as ReLU6, differs from what is not."""
_KNOWN: dict[str, Any] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "relu": nn.functional.relu,
}
