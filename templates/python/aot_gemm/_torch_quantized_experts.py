"""A mixture's experts whose weights are narrow: what `quantize` and `load_quantized` make of transformers' modules."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _row_table, errors
from ._packed_folder import PackedLayer
from ._torch_activations import NARROW, WIDE, check_format
from ._torch_expert_kinds import WEIGHTS, Kind, gated
from ._torch_formats import PackedFormat, format_of
from ._torch_modules import REFUSALS, ROWS, is_served
from ._torch_narrow import INPUT_SCALE, NarrowModule
from ._torch_packed_join import bytes_in_turns
from ._torch_rounded_experts import Asked, least_copied, least_rows, multiply_rounded, why_not_held
from ._torch_routing import combine, routes_of
from ._torch_rows import rows
from ._torch_stored import ELEMENTS

GATED = {"silu_mul": "silu", "gelu_tanh_mul": "gelu_tanh"}
"""Gates that products of groups may have, by the function of rows: as `grouped_linear` names them."""
_is_compiling = torch.compiler.is_compiling


class Kernels(NamedTuple):
    """What a wheel has for a mixture's experts."""

    reason: str
    """Why torch computes them; empty where kernels do."""
    is_gathered: bool = False
    """Whether the first product takes tokens by an index, so that they are not copied."""
    is_gated: bool = False
    """Whether the first product has the gate."""
    has_gate: bool = False
    """Whether the wheel has the gate as an operation on rows."""
    copied_from: int | None = None
    """From how many rows on tokens are copied all the same, since rows in order have a faster kernel; None of none."""


@cache
def kernels_of(name: str, kind: Kind, dtype: torch.dtype, *, has_bias: bool) -> Kernels:
    """Ask the wheel for a format's products of experts, and for what stands between them.

    Args:
        name: of the format.
        kind: what the module computes.
        dtype: of x.
        has_bias: whether the products have biases.
    """
    narrow = format_of(name)

    def why_not(n: int, k: int, **asked: Any) -> str | None:
        return narrow.why_not(n, k, dtype, bias=has_bias, groups=kind.experts, **asked)

    for weight in WEIGHTS:
        reason = why_not(*kind.shape_of(weight)[1:], grouping="grouped")
        if reason is not None:
            return Kernels(reason)
    has_gate = _has_gate(kind, dtype)
    gate = None if kind.interleaved else GATED.get(kind.gate)
    gates: tuple[dict[str, Any], ...] = ({},) if gate is None else ({"gated": True, "activation": gate}, {})
    for grouping, options in itertools.product(("gathered", "grouped"), gates):
        n = kind.width if options else 2 * kind.width
        if why_not(n, kind.hidden, grouping=grouping, **options) is None:
            found = Kernels("", grouping == "gathered", bool(options), has_gate)
            if found.is_gathered and isinstance(narrow, PackedFormat):
                found = found._replace(copied_from=least_copied(kind, narrow.form.name, dtype))
            return found
    return Kernels("", has_gate=has_gate)


def _has_gate(kind: Kind, dtype: torch.dtype) -> bool:
    try:
        tiers = [_row_table.plan_rows(kind.gate, m, kind.width, dtype).tier for m in ROWS]
    except errors.AotGemmError:
        return False
    return "fallback" not in tiers


class ExpertWeights(NarrowModule):
    """The narrow weights of all experts of a mixture, in the place of a parameter of three dimensions.

    Buffers: `qweight`, the elements, (experts, n, k), or of packed formats the bytes, (experts, rows, bytes); and
    `scale`, float32, a factor of each row, (experts, n), of "fp8_block" one of each 128 by 128 elements, (experts,
    ceil(n / 128), ceil(k / 128)), or of no elements where the format has none. `shape` is (experts, n, k). Of a folder
    with factors of inputs there is the largest of these too, `input_scale`, float32, one element; gate and linear half
    are then in turns, `is_interleaved`: row 2 j is the gate's of column j.
    """

    has_kernel: bool
    """Whether the package has a kernel that rounds their inputs, where the format has these rounded."""
    is_interleaved: bool
    input_scale: Any

    def __init__(
        self,
        qweight: Any,
        scale: Any,
        format: str,  # noqa: A002 - what the thing is called
        shape: tuple[int, int, int],
        dtype: Any,
        *,
        is_interleaved: bool = False,
        input_scale: float | None = None,
    ) -> None:
        """Hold elements and factors that belong together; nothing is copied.

        Args:
            qweight: the elements, or uint8, the bytes.
            scale: float32, the factors.
            format: as `quantize` has it.
            shape: (experts, n, k).
            dtype: of inputs and results.
            is_interleaved: whether rows of a gate and of a linear half are in turns, though the module's were halves.
            input_scale: the own factor by which inputs are rounded, where they may be.
        """
        super().__init__()
        vars(self).update(format=format, weight_dtype=dtype, shape=tuple(shape), is_interleaved=is_interleaved)
        self.register_buffer("qweight", qweight)
        self.register_buffer("scale", scale)
        own = None if input_scale is None else torch.full((1,), input_scale, dtype=torch.float32, device=scale.device)
        self.register_buffer(INPUT_SCALE, own)
        self.ask()

    @classmethod
    def of_matrices(
        cls,
        format: str,  # noqa: A002 - what the thing is called
        shape: tuple[int, int, int],
        dtype: Any,
        device: Any,
        each: Any,
        *,
        is_interleaved: bool = False,
        input_scale: float | None = None,
    ) -> ExpertWeights:
        """Hold the elements and factors of one expert after another, in memory of their own.

        Args:
            format: as `quantize` has it.
            shape: (experts, n, k).
            dtype: of inputs and results.
            device: where they are held.
            each: gives of each expert the elements of its weights, and their factors, and their rows.
            is_interleaved: whether the rows of both weights of an expert are put in turns, and not one behind the
                other.
            input_scale: the own factor of inputs.
        """
        narrow, tensors = format_of(format), PackedLayer(format, shape).tensors
        qweight, scale = (torch.empty(size, dtype=ELEMENTS[x], device=device) for _, x, size in tensors)
        for expert, weights in enumerate(each):
            if is_interleaved:
                (gate, _, rows), (line, *_) = weights
                qweight[expert] = bytes_in_turns(narrow.form, gate, line, (rows, shape[2])).to(device)
            else:
                qweight[expert] = narrow.joined([(elements, rows) for elements, _, rows in weights]).to(device)
            if scale.numel():
                factors = [narrow.factors_in_stack(held, rows) for _, held, rows in weights]
                scale[expert] = torch.cat(factors).to(device)
        return cls(qweight, scale, format, shape, dtype, is_interleaved=is_interleaved, input_scale=input_scale)

    @property
    def stated(self) -> dict[str, str]:
        """Return what a state dict says of the buffers beside their bytes."""
        return super().stated | ({"rows": "in turns"} if self.is_interleaved else {})

    def dequantize(self, expert: int | None = None) -> Any:
        """Return what the buffers stand for, (experts, n, k), or (n, k) of one expert, in the type of inputs."""
        held = self.held
        if expert is None:
            return format_of(self.format).widen(self.qweight, self.scale, self.weight_dtype, held)
        scale = self.scale[expert] if self.scale.numel() else self.scale
        of_one = held._replace(shape=self.shape[1:])
        return format_of(self.format).widen(self.qweight[expert], scale, self.weight_dtype, of_one)

    def multiply(self, x: Any, offsets: Any, bias: Any, index: Any = None, gate: str | None = None) -> Any:
        """Compute x @ weight^T + bias of rows in the order of the experts, or of those that an index names."""
        return format_of(self.format).product_of_groups(x, self, offsets, bias, index, gate)

    def ask(self) -> None:
        """Ask the wheel that is installed here for a kernel that rounds inputs."""
        self.has_kernel = format_of(self.format).has_kernel(self.shape[-1], self.weight_dtype)

    def extra_repr(self) -> str:
        """Return shape and format."""
        return f"{self.shape}, format={self.format!r}"


class QuantizedExperts(nn.Module):
    """The experts of a mixture, narrow, in the place of a module of transformers: the weights of 16 bits are gone.

    `gate_up_proj` and `down_proj` are modules with the narrow weights, `ExpertWeights`; biases stay parameters. It is
    called as transformers calls its own: with tokens, the experts of each, and their weights. What this package does
    not serve of calls, as those on the CPU, torch computes, expert by expert, with weights that are unpacked for it: on
    a GPU that waits for the device, and is slow. So it does in a backward pass, which gives gradients of inputs, of the
    experts' weights in the sum, and of biases.

    Where `activation_format` is set so, inputs of both products are rounded to NVFP4 by the factors of a calibration.
    """

    kind: Kind
    gate_up_proj: ExpertWeights
    down_proj: ExpertWeights
    kernels: Kernels
    _activation_format: str = WIDE
    _rounded_from: int | None = None
    """The number of rows, tokens times choices, from which on inputs are rounded; None where none are."""

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
        has_kernels = not self.kernels.reason or self._are_rounded(chosen)
        if has_kernels and is_served(x, self.gate_up_proj.weight_dtype, biases[0]):
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

    def _are_rounded(self, chosen: Any) -> bool:
        """Say whether a call's inputs are rounded to NVFP4."""
        return self._rounded_from is not None and chosen.shape[0] * chosen.shape[1] >= self._rounded_from

    def _by_kernels(self, x: Any, chosen: Any, weights: Any, biases: tuple[Any, Any]) -> Any:
        routes, kernels, kind = routes_of(chosen, weights, self.kind.experts), self.kernels, self.kind
        if self._are_rounded(chosen):
            return combine(multiply_rounded(x.contiguous(), routes, self.gate_up_proj, self.down_proj), routes)
        is_many = kernels.copied_from is not None and chosen.shape[0] * chosen.shape[1] >= kernels.copied_from
        is_copied = is_many or not kernels.is_gathered
        given, index = (x[routes.token_of], None) if is_copied else (x.contiguous(), routes.token_of)
        gate = GATED[kind.gate] if kernels.is_gated else None
        inner = self.gate_up_proj.multiply(given, routes.offsets, biases[0], index, gate)
        if gate is None:
            inner = (rows if kernels.has_gate else gated)(kind.gate, inner, interleaved=self._are_in_turns)
        return combine(self.down_proj.multiply(inner, routes.offsets, biases[1]), routes)

    @torch.compiler.disable
    def by_torch(self, x: Any, chosen: Any, weights: Any, biases: tuple[Any, Any]) -> Any:
        """Compute it by torch's products with what the buffers stand for, expert by expert."""
        routes = routes_of(chosen, weights, self.kind.experts)
        ends = [0, *routes.offsets.tolist()]
        given, results = x[routes.token_of.long()], [x.new_empty(0, self.kind.hidden)]
        for expert, (start, end) in enumerate(itertools.pairwise(ends)):
            if start == end:
                continue
            first, second = (None if y is None else y[expert] for y in biases)
            inner = nn.functional.linear(given[start:end], self.gate_up_proj.dequantize(expert), first)
            inner = gated(self.kind.gate, inner, interleaved=self._are_in_turns)
            results.append(nn.functional.linear(inner, self.down_proj.dequantize(expert), second))
        return combine(torch.cat(results), routes)

    @property
    def _are_in_turns(self) -> bool:
        """Say whether columns of gate and linear half of the first product are even and odd ones."""
        return self.kind.interleaved or self.gate_up_proj.is_interleaved

    @property
    def activation_format(self) -> str:
        """Return what inputs are multiplied as: "16-bit", "nvfp4", or "auto", as `linear` of a packed weight has it.

        It may be set, of experts of a folder that was packed as "nvfp4rows" with the checkpoint's factors of inputs.
        """
        return self._activation_format

    @activation_format.setter
    def activation_format(self, asked: str) -> None:
        check_format(asked, self.gate_up_proj.format)
        if asked != WIDE:
            reason = why_not_held(self.kind, self.gate_up_proj, self.down_proj, has_bias=self.biases[0] is not None)
            if not reason and asked == NARROW:
                reason = self._least_rows(asked)[1]
            if reason:
                raise errors.UnsupportedError(
                    f"activation_format is {asked!r}, and inputs of these experts cannot be rounded: {reason}; leave "
                    f"it {WIDE!r}"
                )
        vars(self)["_activation_format"] = asked
        self.ask()

    def _least_rows(self, asked: str) -> tuple[int | None, str]:
        wide = None if self.kernels.reason else "gathered" if self.kernels.is_gathered else "grouped"
        return least_rows(Asked(self.kind, self.gate_up_proj.weight_dtype, wide), asked)

    def ask(self) -> None:
        """Ask the wheel that is installed here for kernels."""
        self.kernels = self.asked(self.gate_up_proj.weight_dtype)
        is_asked = self._activation_format != WIDE
        vars(self)["_rounded_from"] = self._least_rows(self._activation_format)[0] if is_asked else None

    def asked(self, dtype: torch.dtype) -> Kernels:
        """Return what the wheel that is installed here has for inputs of a type, which stay of 16 bits."""
        return kernels_of(self.gate_up_proj.format, self.kind, dtype, has_bias=self.biases[0] is not None)

    def extra_repr(self) -> str:
        """Return what inputs are multiplied as, where they may be rounded."""
        return "" if self._activation_format == WIDE else f"activation_format={self._activation_format!r}"

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
        weights: the narrow ones by their names.
    """
    first, has_bias = weights[WEIGHTS[0]], module._parameters.get(f"{WEIGHTS[0]}_bias") is not None  # noqa: SLF001
    return {
        "_parameters": {key: x for key, x in module._parameters.items() if key not in WEIGHTS},  # noqa: SLF001
        "_modules": {**module._modules, **weights},  # noqa: SLF001
        "kind": kind,
        "kernels": kernels_of(first.format, kind, first.weight_dtype, has_bias=has_bias),
        "_activation_format": WIDE,
        "_rounded_from": None,
    }


def round_experts(name: str, parameter: Any, shape: tuple[int, int, int], *, transposed: bool) -> ExpertWeights:
    """Round the weights of all experts to a format, one after the other.

    Args:
        name: of the format.
        parameter: (experts, n, k), or (experts, k, n) where it is transposed.
        shape: (experts, n, k).
        transposed: whether it is.
    """
    narrow, n = format_of(name), shape[1]
    matrices = (x.t().contiguous() if transposed else x for x in parameter.detach())
    each = ([(*narrow.narrow(x), n)] for x in matrices)
    return ExpertWeights.of_matrices(name, shape, parameter.dtype, parameter.device, each)
