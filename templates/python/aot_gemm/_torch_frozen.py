"""Linears whose parameters `patch` has frozen: weights that lie in one matrix, that are promised, padded or quantised.

The parameters stay what they were, with their names and values; those of one product become views of its rows
and of its bias: nothing is held twice, a state dict is loaded into the matrix itself, and what writes them writes it.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from . import _torch_modules
from ._torch_modules import ALIGNMENT, Linear, is_served, is_watched
from ._torch_products import gated_linear, linear
from ._torch_promises import promise, promised, release
from ._torch_quantised import Inputs, quantise_rows

_is_compiling = torch.compiler.is_compiling


class Joined:
    """The matrix of one product: the rows of the weights of one or several Linears of the same input, and their bias.

    Where some have a bias and others none, the others' is 0.

    Args:
        modules: the Linears, in the order in which the forward of their owner calls them.
        kind: "fp8" or "int8", where the product is of elements of 8 bits; None for the weights' own.
    """

    def __init__(self, modules: tuple[Any, ...], kind: str | None = None) -> None:
        self.modules, self.kind = modules, kind
        self.sizes = [x.weight.shape[0] for x in modules]
        rows = sum(self.sizes)
        self.num_padded = -rows % (ALIGNMENT // modules[0].weight.element_size())
        self.weight: Any = None
        self.bias: Any = None
        self.quantised: Any = None
        self.scale: Any = None
        self.inputs: Inputs | None = None
        self.last: Any = None
        self.rebuild()

    @property
    def columns(self) -> list[int]:
        """Return the columns of a result, by the Linear; those of the padding are the last."""
        return [*self.sizes, self.num_padded] if self.num_padded else self.sizes

    @torch.no_grad()
    def rebuild(self) -> None:
        """Make the matrix anew of what the parameters hold, where these are of one type and on one device."""
        addresses = [x.weight.data_ptr() for x in self.modules]
        self._hold([x.weight for x in self.modules], [x.bias for x in self.modules])
        for module, address in zip(self.modules, addresses, strict=True):
            if module.weight.data_ptr() != address:
                module.aot_renew()

    @torch.no_grad()
    def _hold(self, weights: list[Any], biases: list[Any]) -> None:
        """Make the matrix of these parameters, and have them lie in it."""
        if self.weight is not None and len({(x.dtype, x.device) for x in weights}) != 1:
            return
        self.forget()
        first = weights[0]
        if self.weight is None or (self.weight.dtype, self.weight.device) != (first.dtype, first.device):
            self.weight = first.new_zeros(sum(self.columns), first.shape[1])
            has_bias = any(x is not None for x in biases)
            self.bias = first.new_zeros(sum(self.columns)) if has_bias else None
        start, places = 0, []
        for weight, bias in zip(weights, biases, strict=True):
            end = start + weight.shape[0]
            places.append((weight, self.weight[start:end].data_ptr()))
            _move(weight, self.weight[start:end])
            if bias is not None:
                places.append((bias, self.bias[start:end].data_ptr()))
                _move(bias, self.bias[start:end])
            start = end
        if self.kind is not None:
            quantised, scale = quantise_rows(self.weight, self.kind)
            self.quantised, self.scale = self._kept(quantised, self.quantised), self._kept(scale, self.scale)
            self.inputs = Inputs(self.kind, first.shape[1], first.dtype)
        self._weights, self._biases, self._places = weights, biases, places
        self._versions = self._written()
        if first.device.type in _torch_modules.DEVICES:
            held = self.weight if self.quantised is None else self.quantised
            promise(held, (*weights, *([] if held is self.weight else [held])), self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles hold: parameters alone, of which they make matrices of their own."""
        return vars(self) | dict.fromkeys(("weight", "bias", "quantised", "scale", "last"))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the matrix of the copied parameters; the Linears themselves may not be whole yet."""
        vars(self).update(state)
        self._hold(self._weights, self._biases)

    @staticmethod
    def _kept(new: Any, old: Any) -> Any:
        """Return new values in the tensor that was there before, so that what was compiled or captured has them."""
        return new if old is None or old.device != new.device else old.copy_(new)

    def _written(self) -> list[int | None]:
        """Return how often torch has counted writes of the weights, where there are copies of them."""
        return [] if self.quantised is None else [_version_of(x) for x in self._weights]

    def forget(self) -> None:
        """Take the promises of the matrix back, before something writes it."""
        for held in (self.weight, self.quantised):
            if held is not None:
                release(held)

    def is_held(self) -> bool:
        """Say whether the Linears have the parameters that the matrix was made of, and not others for this call."""
        for module, weight, bias in zip(self.modules, self._weights, self._biases, strict=True):
            if module.weight is not weight or module.bias is not bias:
                return False
        return True

    def is_tied(self) -> bool:
        """Say whether the parameters still are parts of the matrix and of the bias, and copies what they are copies of.

        Else somebody has given them other memory, or has written what is quantised.
        """
        for parameter, place in self._places:
            if parameter.data_ptr() != place:
                return False
        return self._written() == self._versions

    def product(self, x: Any, *, gate: str | None = None, activation: str | None = None) -> Any:
        """Compute the product of all rows, with a gate or an activation behind it."""
        options: dict[str, Any] = {}
        weight = self.weight if self.quantised is None else self.quantised
        if self.inputs is not None:
            x, scale_x = self.inputs.take(x)
            options = {"scale_x": scale_x, "scale_w": self.scale, "out_dtype": self.weight.dtype}
        if not _is_compiling():
            weight = promised(weight)
        if gate is not None:
            return gated_linear(x, weight, self.bias, activation=gate, **options)
        if activation is not None:
            options["activation"] = activation
        return linear(x, weight, self.bias, **options)

    def serves(self, x: Any) -> bool:
        """Say whether the matrix may stand for its Linears: not where a quantised one would need a gradient."""
        if self.quantised is not None and torch.is_grad_enabled() and x.requires_grad:
            return False
        return self.is_current()

    def is_current(self) -> bool:
        """Say whether the matrix holds what its Linears do."""
        return self.is_held() and (_is_compiling() or self.is_tied())

    def is_given(self, x: Any) -> bool:
        """Say whether an input is rows of 8 bits that were made for this product."""
        if self.inputs is None or x.dtype is not self.inputs.dtype:
            return False
        return self.inputs.scale_of(x) is not None or (self.last is not None and self.last[0] is x)

    def part(self, x: Any, place: int) -> Any:
        """Return what one of the Linears gives of x; None where it is to compute that itself.

        The first that is called computes all; the others take theirs of it, once each, where they are given the same
        tensor, unwritten since, and gradients are recorded as they were.
        """
        mark, last = self._mark_of(x), self.last
        if last is not None and last[0] is x and mark is not None and last[1] == mark and last[3] >> place & 1:
            rest = last[3] & ~(1 << place)
            self.last = (*last[:3], rest) if rest else None
            return last[2][place]
        if not self.serves(x):
            return None
        result = self.product(x)
        if len(self.columns) == 1:
            return result
        # No split: autograd lets nobody write a part of one in place, as a rotary embedding may.
        starts = itertools.accumulate(self.columns, initial=0)
        parts = tuple(result.narrow(-1, *each) for each in zip(starts, self.columns, strict=False))
        if len(self.modules) > 1 and mark is not None:
            self.last = (x, mark, parts, (1 << len(self.modules)) - 1 & ~(1 << place))
        return parts[place]

    def _mark_of(self, x: Any) -> tuple[bool, int] | None:
        """Return what is the same for two Linears of one product: that gradients are recorded, and the count of writes.

        It is None where a hook may write x in between, and torch counts no writes.
        """
        version = None if _is_compiling() else _version_of(x)
        if version is None:
            if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:  # noqa: SLF001
                return None
            if any(is_watched(each) for each in self.modules):
                return None
        return torch.is_grad_enabled(), version or 0


def _move(parameter: Any, place: Any) -> None:
    """Have a parameter lie where its part of a matrix or of a bias does.

    One of another type stays where it is, so that the product is not used.
    """
    if parameter.data_ptr() == place.data_ptr():
        return
    place.copy_(parameter)
    release(parameter)
    if (parameter.dtype, parameter.device) == (place.dtype, place.device):
        parameter.data = place


def _version_of(x: Any) -> int | None:
    return None if x.is_inference() else x._version  # noqa: SLF001


class FrozenLinear(Linear):
    """A Linear whose parameters nobody writes while it is in use; what loads or moves them is heeded."""

    aot_joined: Joined | None = None
    aot_place: int = 0
    aot_required: tuple[bool, ...] = ()
    """Whether weight and bias required a gradient before they were frozen."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - nn.Linear's name of it
        """Compute input @ weight^T + bias for an input (..., in_features)."""
        weight, bias, joined = self.weight, self.bias, self.aot_joined
        is_given = joined is not None and joined.is_given(input)
        if not is_given and not is_served(input, weight, bias):
            return nn.functional.linear(input, weight, bias)
        if joined is not None and joined.modules[self.aot_place] is self:  # and no shallow copy with other parameters
            result = joined.part(input, self.aot_place)
            if result is not None:
                return result
        if is_given:  # whose product has changed since they were made
            return nn.functional.linear(joined.inputs.restored(input, weight.dtype), weight, bias)  # type: ignore[union-attr]
        return linear(input, weight if _is_compiling() else promised(weight), bias)

    def aot_note(self) -> None:
        """Note whether the parameters require a gradient."""
        self.aot_required = tuple(x.requires_grad for x in (self.weight, self.bias) if x is not None)

    def aot_freeze(self) -> None:
        """Take gradients from the parameters, and promise that nobody writes the weight."""
        self.requires_grad_(requires_grad=False)
        self.aot_renew()

    def aot_renew(self) -> None:
        """Promise anew what lies in the parameters now."""
        if self.weight.device.type in _torch_modules.DEVICES and self.weight.data_ptr() % ALIGNMENT == 0:
            promise(self.weight.detach(), (self.weight,), self)

    def aot_thaw(self) -> None:
        """Make this what it was before it was frozen: parameters of their own memory, with their gradients."""
        release(self.weight)
        if self.aot_joined is not None:
            self.aot_joined.forget()
            for parameter in (self.weight, self.bias):
                if parameter is not None:
                    parameter.data = parameter.data.clone()
        for parameter, required in zip((self.weight, self.bias), self.aot_required, strict=False):
            parameter.requires_grad_(required)
        for name in ("aot_joined", "aot_place", "aot_required"):
            vars(self).pop(name, None)
        self.__class__ = nn.Linear

    def _replicate_for_data_parallel(self) -> Any:
        """Return what nn.DataParallel gives parameters of another GPU: a Linear that has no matrix."""
        replica = super()._replicate_for_data_parallel()
        replica.__class__ = Linear
        return replica

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Promise the weight of a copy, too."""
        super().__setstate__(state)
        self.aot_renew()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        release(self.weight)
        result = super()._apply(fn, recurse)
        self._aot_settle()
        return result

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        release(self.weight)
        if self.aot_joined is not None:
            self.aot_joined.forget()
        super()._load_from_state_dict(*arguments, **options)
        self._aot_settle()

    def _aot_settle(self) -> None:
        """Have what is made of the parameters follow them."""
        self.requires_grad_(requires_grad=False)  # a state dict that is assigned brings parameters of its own
        if self.aot_joined is not None:
            self.aot_joined.rebuild()
        self.aot_renew()
