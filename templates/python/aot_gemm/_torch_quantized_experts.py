"""A mixture's experts whose weights are packed: what `quantize` and `load_quantized` make of transformers' modules."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _row_table, errors
from ._torch_expert_kinds import WEIGHTS, Kind, gated
from ._torch_formats import format_of
from ._torch_modules import REFUSALS, ROWS, is_served, why_not_planned
from ._torch_narrow import NarrowModule
from ._torch_packed_groups import multiply_groups
from ._torch_routing import combine, routes_of
from ._torch_rows import rows

_is_compiling = torch.compiler.is_compiling


class Kernels(NamedTuple):
    """What a wheel has for a mixture's experts."""

    reason: str
    """Why torch computes them; empty where kernels do."""
    is_gathered: bool = False
    """Whether the first product takes tokens by an index, so that they are not copied."""
    has_gate: bool = False
    """Whether the wheel has the gate as an operation on rows."""


@cache
def kernels_of(name: str, kind: Kind, dtype: torch.dtype, *, has_bias: bool) -> Kernels:
    """Ask the wheel for products of packed experts, and for what stands between them.

    Args:
        name: of the format.
        kind: what the module computes.
        dtype: of x.
        has_bias: whether the products have biases.
    """
    narrow = format_of(name)
    form = getattr(narrow, "form", None)
    if form is None:
        return Kernels(f"experts have no products of {name}, whose inputs are rounded; expected packed weights")
    asked = {"weight_dtype": form.name, "groups": kind.experts, "bias": has_bias}
    for weight in WEIGHTS:
        _, n, k = kind.shape_of(weight)
        try:
            form.check(n, k)
        except errors.FormatError as error:
            return Kernels(str(error))
        reason = why_not_planned(n, k, dtype, grouping="grouped", **asked)
        if reason is not None:
            return Kernels(reason)
    _, n, k = kind.shape_of(WEIGHTS[0])
    is_gathered = why_not_planned(n, k, dtype, grouping="gathered", **asked) is None
    return Kernels("", is_gathered, _has_gate(kind, dtype))


def _has_gate(kind: Kind, dtype: torch.dtype) -> bool:
    try:
        tiers = [_row_table.plan_rows(kind.gate, m, kind.width, dtype).tier for m in ROWS]
    except errors.AotGemmError:
        return False
    return "fallback" not in tiers


class ExpertWeights(NarrowModule):
    """The packed weights of all experts of a mixture, in the place of a parameter of three dimensions.

    Buffers: `qweight`, the bytes, (experts, rows, bytes), and `scale`, float32, a factor of each row, (experts, n), or
    of no elements where the format has none. `shape` is (experts, n, k).
    """

    def __init__(self, qweight: Any, scale: Any, format: str, shape: tuple[int, int, int], dtype: Any) -> None:  # noqa: A002
        """Hold bytes and factors that belong together; nothing is copied.

        Args:
            qweight: uint8, the bytes.
            scale: float32, the factors.
            format: as `quantize` has it.
            shape: (experts, n, k).
            dtype: of inputs and results.
        """
        super().__init__()
        vars(self).update(format=format, weight_dtype=dtype, shape=tuple(shape))
        self.register_buffer("qweight", qweight)
        self.register_buffer("scale", scale)

    def dequantize(self, expert: int | None = None) -> Any:
        """Return what the bytes stand for, (experts, n, k), or (n, k) of one expert, in the type of inputs."""
        held = self.held
        if expert is None:
            return format_of(self.format).widen(self.qweight, self.scale, self.weight_dtype, held)
        scale = self.scale[expert] if self.scale.numel() else self.scale
        of_one = held._replace(shape=self.shape[1:])
        return format_of(self.format).widen(self.qweight[expert], scale, self.weight_dtype, of_one)

    def multiply(self, x: Any, offsets: Any, bias: Any, index: Any = None) -> Any:
        """Compute x @ weight^T + bias of rows in the order of the experts, or of those that an index names."""
        scale = self.scale if self.scale.numel() else None
        form = format_of(self.format).form  # type: ignore[union-attr] - experts have packed formats alone
        return multiply_groups(x, self.qweight, offsets, bias, index, scale, form.name, self.shape[1])

    def extra_repr(self) -> str:
        """Return shape and format."""
        return f"{self.shape}, format={self.format!r}"


class QuantizedExperts(nn.Module):
    """The experts of a mixture, packed, in the place of a module of transformers: the weights of 16 bits are gone.

    `gate_up_proj` and `down_proj` are modules with the packed bytes, `ExpertWeights`; biases stay parameters. It is
    called as transformers calls its own: with tokens, the experts of each, and their weights. What this package does
    not serve of calls, as those on the CPU, torch computes, expert by expert, with weights that are unpacked for it: on
    a GPU that waits for the device, and is slow. So it does in a backward pass, which gives gradients of inputs, of the
    experts' weights in the sum, and of biases.
    """

    kind: Kind
    gate_up_proj: ExpertWeights
    down_proj: ExpertWeights
    kernels: Kernels

    def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        """Compute the weighted sum of what each token's experts give.

        Args:
            hidden_states: (..., hidden).
            top_k_index: (..., choices), the experts of each token.
            top_k_weights: (..., choices), what these count for.
        """
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        chosen, weights = (y.reshape(-1, y.shape[-1]) for y in (top_k_index, top_k_weights))
        return self._computed(x, chosen, weights, self.biases).view(hidden_states.shape)

    @property
    def biases(self) -> tuple[Any, Any]:
        """Return the biases of both products, or None."""
        first, second = (self._parameters.get(f"{x}_bias") for x in WEIGHTS)
        return first, second

    def _computed(self, x: Any, chosen: Any, weights: Any, biases: tuple[Any, Any]) -> Any:
        given = (x, weights, *biases)
        needs = torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in given)
        if not self.kernels.reason and is_served(x, self.gate_up_proj.weight_dtype, biases[0]):
            if _is_compiling():
                if not needs:
                    return self._by_kernels(x, chosen, weights, biases)
            else:
                try:
                    if needs:
                        return _Recorded.apply(*given, chosen, self)
                    return self._by_kernels(x, chosen, weights, biases)
                except REFUSALS:  # torch takes it, or has an error of its own for it
                    pass
        return self.by_torch(x, chosen, weights, biases)

    def _by_kernels(self, x: Any, chosen: Any, weights: Any, biases: tuple[Any, Any]) -> Any:
        routes = routes_of(chosen, weights, self.kind.experts)
        if self.kernels.is_gathered:
            inner = self.gate_up_proj.multiply(x.contiguous(), routes.offsets, biases[0], routes.token_of)
        else:
            inner = self.gate_up_proj.multiply(x[routes.token_of], routes.offsets, biases[0])
        gate, interleaved = self.kind.gate, self.kind.interleaved
        inner = (rows if self.kernels.has_gate else gated)(gate, inner, interleaved=interleaved)
        return combine(self.down_proj.multiply(inner, routes.offsets, biases[1]), routes)

    @torch.compiler.disable
    def by_torch(self, x: Any, chosen: Any, weights: Any, biases: tuple[Any, Any]) -> Any:
        """Compute it by torch's products with what the bytes stand for, expert by expert."""
        routes = routes_of(chosen, weights, self.kind.experts)
        ends = [0, *routes.offsets.tolist()]
        given, results = x[routes.token_of.long()], [x.new_empty(0, self.kind.hidden)]
        for expert, (start, end) in enumerate(itertools.pairwise(ends)):
            if start == end:
                continue
            first, second = (None if y is None else y[expert] for y in biases)
            inner = nn.functional.linear(given[start:end], self.gate_up_proj.dequantize(expert), first)
            inner = gated(self.kind.gate, inner, interleaved=self.kind.interleaved)
            results.append(nn.functional.linear(inner, self.down_proj.dequantize(expert), second))
        return combine(torch.cat(results), routes)

    def ask(self) -> None:
        """Ask the wheel that is installed here for kernels."""
        self.kernels = self.asked(self.gate_up_proj.weight_dtype)

    def asked(self, dtype: torch.dtype) -> Kernels:
        """Return what the wheel that is installed here has for inputs of a type."""
        return kernels_of(self.gate_up_proj.format, self.kind, dtype, has_bias=self.biases[0] is not None)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply what moves or converts a module, and ask for kernels of the type that it then has."""
        super()._apply(fn, recurse)
        self.ask()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state, and ask the wheel that is installed here."""
        super().__setstate__(state)
        self.ask()


class _Recorded(torch.autograd.Function):
    """The experts by kernels, with gradients of what torch computes in their place."""

    @staticmethod
    def forward(ctx: Any, x: Any, weights: Any, first: Any, second: Any, chosen: Any, layer: QuantizedExperts) -> Any:
        """Compute the weighted sum."""
        ctx.save_for_backward(x, weights, first, second, chosen)
        ctx.layer = layer
        return layer._by_kernels(x, chosen, weights, (first, second))  # noqa: SLF001 - the module's own

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradients of inputs, weights and biases; the experts are computed again for them."""
        *given, chosen = ctx.saved_tensors
        needs = ctx.needs_input_grad[: len(given)]
        with torch.enable_grad():
            held = [
                None if x is None else x.detach().requires_grad_(need) for x, need in zip(given, needs, strict=True)
            ]
            result = ctx.layer.by_torch(held[0], chosen, held[1], tuple(held[2:]))
        wanted = [x for x, need in zip(held, needs, strict=True) if need]
        found = iter(torch.autograd.grad(result, wanted, gradient))
        return (*(next(found) if need else None for need in needs), None, None)


def experts_state(module: Any, kind: Kind, weights: dict[str, ExpertWeights]) -> dict[str, Any]:
    """Return the attributes by which QuantizedExperts differ from the module in whose place they are.

    Args:
        module: the module, which is not changed.
        kind: what it computes.
        weights: the packed ones by their names.
    """
    first, has_bias = weights[WEIGHTS[0]], module._parameters.get(f"{WEIGHTS[0]}_bias") is not None  # noqa: SLF001
    return {
        "_parameters": {key: x for key, x in module._parameters.items() if key not in WEIGHTS},  # noqa: SLF001
        "_modules": {**module._modules, **weights},  # noqa: SLF001
        "kind": kind,
        "kernels": kernels_of(first.format, kind, first.weight_dtype, has_bias=has_bias),
    }


def round_experts(name: str, parameter: Any, shape: tuple[int, int, int], *, transposed: bool) -> ExpertWeights:
    """Round the weights of all experts to a format, one after the other.

    Args:
        name: of the format.
        parameter: (experts, n, k), or (experts, k, n) where it is transposed.
        shape: (experts, n, k).
        transposed: whether it is.
    """
    narrow, qweight, scale = format_of(name), None, None
    for expert, wide in enumerate(parameter.detach()):
        data, factors = narrow.narrow(wide.t().contiguous() if transposed else wide)
        if qweight is None:
            qweight = data.new_empty(shape[0], *data.shape)
            scale = factors.new_empty(shape[:2] if factors.numel() else 0)
        qweight[expert] = data
        if factors.numel():
            scale[expert] = factors
    return ExpertWeights(qweight, scale, name, shape, parameter.dtype)
