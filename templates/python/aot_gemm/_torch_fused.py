"""Modules that compute what follows their Linears in the product itself: an activation, or a gate."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ._torch_modules import is_served

if TYPE_CHECKING:
    from ._torch_frozen import Joined
    from ._torch_patterns import Tail


UP_TO = (4, 64, 1024)
"""Rows up to which the table's answer for 1, 16 and 256 rows is taken for the others; past them, that for 4096."""


class Fused:
    """What a module's class gets in front of it; its own forward serves what this does not."""

    aot_tail: Tail
    aot_joined: Joined
    aot_faster: tuple[bool, ...]
    """Whether that is faster than one by one, by the table, up to each of `UP_TO` rows and past the last."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Compute the module's forward, with the activation or the gate in the product."""
        x = self._aot_input(arguments, options)
        if x is None:
            return super().forward(*arguments, **options)  # type: ignore[misc]
        tail = self.aot_tail
        if tail.is_gated:
            result = self.aot_joined.product(x, gate=tail.activation)
        else:
            result = self.aot_joined.product(x, activation=tail.activation)
        for name in tail.rest:
            result = getattr(self, name)(result)
        return result

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
        for module in joined.modules:
            if module._forward_hooks or module._forward_pre_hooks:  # noqa: SLF001
                return None
        if not is_served(x, joined.weight, joined.bias) or not joined.serves(x):
            return None
        return x if self._aot_is_faster(x.numel() // x.shape[-1]) else None

    def _aot_is_faster(self, rows: Any) -> bool:
        for limit, is_faster in zip(UP_TO, self.aot_faster, strict=False):
            if rows <= limit:
                return is_faster
        return self.aot_faster[-1]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the class that was there before, since this one is made where it is needed."""
        return _restored, (type(self).__mro__[2],), self.__dict__


@cache
def fused_class(kind: type) -> type:
    """Return a class of modules with `Fused` in front of it."""
    names = {"__module__": __name__, "__doc__": Fused.__doc__, "__qualname__": f"Fused{kind.__name__}"}
    return type(f"Fused{kind.__name__}", (Fused, kind), names)


def _restored(kind: type) -> Any:
    cls = fused_class(kind)
    return cls.__new__(cls)


def fuse(module: Any, tail: Tail, joined: Joined, faster: tuple[bool, ...]) -> None:
    """Give a module the class that fuses, where that is faster."""
    object.__setattr__(module, "aot_faster", faster)
    object.__setattr__(module, "aot_tail", tail)
    object.__setattr__(module, "aot_joined", joined)
    module.__class__ = fused_class(type(module))


def unfuse(module: Any) -> None:
    """Give a module the class that it had."""
    module.__class__ = type(module).__mro__[2]
    for name in ("aot_tail", "aot_joined", "aot_faster"):
        vars(module).pop(name, None)
