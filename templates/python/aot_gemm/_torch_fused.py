"""Modules that compute what follows their Linears in the product itself: an activation, or a gate."""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ._torch_modules import is_served, is_watched
from ._torch_rows import silu_mul

if TYPE_CHECKING:
    from ._torch_frozen import Joined
    from ._torch_patterns import Tail
    from ._torch_quantised import Feed


UP_TO = (4, 64, 1024)
"""Rows up to which the table's answer for 1, 16 and 256 rows is taken for the others; past them, that for 4096."""


class Fused:
    """What a module's class gets in front of it; its own forward serves what this does not."""

    aot_tail: Tail
    aot_joined: Joined
    aot_faster: tuple[bool, ...]
    """Whether that is faster than one by one, by the table, up to each of `UP_TO` rows and past the last."""
    aot_passed: tuple[tuple[Any, str, Any], ...] = ()
    """The submodules that are not called where this serves: owner, name and module."""
    aot_feed: Feed | None = None
    """The product behind a gate, where it takes rows of 8 bits that the gate's own kernel can give."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Compute the module's forward, with the activation or the gate in the product."""
        x = self._aot_input(arguments, options)
        result = None if x is None else self._aot_start(x)
        if result is None:
            return super().forward(*arguments, **options)  # type: ignore[misc]
        for name in self.aot_tail.rest:
            result = getattr(self, name)(result)
        return result

    def _aot_start(self, x: Any) -> Any:
        """Return the gate or the activation of the product; None where torch is to compute it behind the product."""
        tail, joined, feed = self.aot_tail, self.aot_joined, self.aot_feed
        if self._aot_is_faster(x.numel() // x.shape[-1]):
            name = "gate" if tail.is_gated else "activation"
            return joined.product(x, **{name: tail.activation})
        if feed is None or not feed.is_open(joined.weight.dtype):
            return None
        return feed.give(*silu_mul(joined.product(x), out_dtype=feed.joined.inputs.dtype))

    def _aot_input(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return the one input, where it is one that this serves; else None."""
        tail, joined = self.aot_tail, self.aot_joined
        if len(arguments) == 1 and not options:
            x = arguments[0]
        elif not arguments and set(options) == {tail.name}:
            x = options[tail.name]
        else:
            return None
        if self.training or not isinstance(x, torch.Tensor) or (torch.is_grad_enabled() and x.requires_grad):  # type: ignore[attr-defined]
            return None
        if self._aot_is_watched():
            return None
        if not joined.is_given(x) and not is_served(x, joined.weight, joined.bias):
            return None
        return x if joined.serves(x) else None

    def _aot_is_watched(self) -> bool:
        """Say whether a submodule that would not be called has hooks, is in training, as a dropout, or was replaced.

        A Linear is replaced by an adapter that wraps it, as those of LoRA.
        """
        if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:  # noqa: SLF001
            return True
        for name, module in zip(self.aot_tail.linears, self.aot_joined.modules, strict=True):
            if self._modules.get(name) is not module or is_watched(module):  # type: ignore[attr-defined]
                return True
        for owner, name, module in self.aot_passed:
            if owner._modules.get(name) is not module or module.training or is_watched(module):  # noqa: SLF001
                return True
        return False

    def _aot_is_faster(self, rows: Any) -> bool:
        for limit, is_faster in zip(UP_TO, self.aot_faster, strict=False):
            if rows <= limit:
                return is_faster
        return self.aot_faster[-1]


@cache
def fronted(first: type, kind: type) -> type:
    """Return a class of modules with another in front of it.

    It has the name of the class and the signature of its forward: transformers finds what a model records by the one,
    and what an encoder takes by the other.
    """
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}
    methods = {"forward": _forward(first, kind), "__reduce_ex__": _reduce, "_replicate_for_data_parallel": _replicate}
    return type(kind.__name__, (first, kind), names | methods)


def _forward(first: Any, kind: Any) -> Any:
    """Return the forward of a class in front of another, with the signature of the other's."""
    own = first.forward
    made = FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    made.__doc__ = own.__doc__
    with suppress(TypeError, ValueError):  # of what is not written in Python
        made.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    return made


def _reduce(module: Any, protocol: Any) -> Any:
    """Pickle by the classes that it is made of, since it is made where it is needed."""
    del protocol
    return _restored, type(module).__mro__[1:3], module.__dict__


def _replicate(module: Any) -> Any:
    """Return what nn.DataParallel gives parameters of another GPU: a module of the class that it had.

    What stands in front knows other modules, and those are of the first GPU.
    """
    replica = nn.Module._replicate_for_data_parallel(module)  # noqa: SLF001 - torch has no other name of it
    while type(replica).__reduce_ex__ is _reduce:
        replica.__class__ = type(replica).__mro__[2]
    return replica


def _restored(first: type, kind: type) -> Any:
    cls = fronted(first, kind)
    return cls.__new__(cls)


def front(module: Any, first: type, **values: Any) -> None:
    """Put a class in front of a module's, with values that it needs, which are no submodules."""
    for name, value in values.items():
        object.__setattr__(module, name, value)
    module.__class__ = fronted(first, type(module))


def unfront(module: Any, names: tuple[str, ...]) -> None:
    """Give a module the class that it had, without values of these names."""
    module.__class__ = type(module).__mro__[2]
    for name in names:
        vars(module).pop(name, None)


def fuse(module: Any, tail: Tail, joined: Joined, faster: tuple[bool, ...]) -> None:
    """Give a module the class that fuses, where that is faster."""
    passed = []
    for path in tail.passed:
        owner, _, name = path.rpartition(".")
        passed.append((module.get_submodule(owner), name, module.get_submodule(path)))
    front(module, Fused, aot_faster=faster, aot_tail=tail, aot_joined=joined, aot_passed=tuple(passed))


def unfuse(module: Any) -> None:
    """Give a module the class that it had."""
    unfront(module, ("aot_tail", "aot_joined", "aot_faster", "aot_passed", "aot_feed"))
