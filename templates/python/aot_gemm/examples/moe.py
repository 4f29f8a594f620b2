"""A mixture-of-experts layer of two calls of `grouped_linear`: gather, gate and up with SwiGLU; down; weighted sum.

    from aot_gemm.examples.moe import Experts, MixtureOfExperts

    layer = MixtureOfExperts(router, Experts(gate_up, down), top=8)  # or Experts(gate_up, down).quantized()
    y = layer(x)  # x (..., hidden), bfloat16, in GPU memory

The rows of an expert are a group. Which token a row is of is an index, by which the first product reads x while it
loads it, so that no permuted copy is made. The second product's rows lie in the order of the experts too; each token
then sums its own, in the order of its choices: there is no atomic addition, so that results are the same from run to
run. Nothing waits for the host: a CUDA graph can capture all of it, and torch.compile can compile it.

bfloat16 takes a wheel of bf16_kk_gathered_swiglu and bf16_kk_grouped, float8 one of e4m3_bf16_kk_gathered_swiglu and
e4m3_bf16_kk_grouped, NVFP4 one of nvfp4_bf16_kk_grouped_swiglu and nvfp4_bf16_kk_grouped, on a Blackwell chip, and
gathers while it rounds, by one kernel in a wheel of bf16_nvfp4_quantize too. What a wheel lacks of these the layer says
when it is made, and `lacking` lists it.

    python -m aot_gemm.examples.moe

computes all on this machine's GPU, and compares them with torch's products, expert by expert.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from .. import AotGemmError, OperandError, UnsupportedError, plan
from .._torch_routing import Routes, combine, routes_of
from ..torch import grouped_linear
from ..torch import quantize as quantize_blocks

MAX_E4M3 = 448.0
"""Largest finite float8_e4m3fn."""
OPERATIONS = {
    torch.bfloat16: ("bf16_kk_gathered_swiglu", "bf16_kk_grouped"),
    torch.float8_e4m3fn: ("e4m3_bf16_kk_gathered_swiglu", "e4m3_bf16_kk_grouped"),
    torch.uint8: ("nvfp4_bf16_kk_grouped_swiglu", "nvfp4_bf16_kk_grouped"),
}
"""By the element type of the experts' weights, the operations of the first product and of the second. Of uint8 each
byte holds two elements of NVFP4."""
NAMES = {torch.bfloat16: "bfloat16", torch.float8_e4m3fn: "float8_e4m3fn", torch.uint8: "nvfp4"}
LARGEST_ERROR = {torch.bfloat16: 0.01, torch.float8_e4m3fn: 0.08, torch.uint8: 0.3}
"""Relative Frobenius error that `main` allows: rounding to bfloat16, to 3 bits of mantissa in float8, and to 1 bit in
NVFP4, where each of the three products that a row goes through has some 13 %."""

Weights = torch.Tensor | list[torch.Tensor]
"""Of all experts, or one for each."""
Quantize = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""`quantize_rows`, or what stands for it: it compiled, or the package's `quantize` where the wheel has it."""


def route(logits: torch.Tensor, top: int) -> Routes:
    """Choose the experts of each token: softmax over all, the largest `top`, whose weights sum up to 1.

    Args:
        logits: (tokens, experts), of the router.
        top: choices of a token.
    """
    weights, chosen = torch.softmax(logits.float(), dim=-1).topk(top, dim=-1)
    return routes_of(chosen, weights / weights.sum(-1, keepdim=True), logits.shape[-1])


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row of the last dimension to float8_e4m3fn; give it, and the factors (..., 1) to multiply it by."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / MAX_E4M3
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


class Experts(NamedTuple):
    """The weights of the experts; of float8 with a factor for each row, of NVFP4 with those of blocks.

    Weights may be a list of one for each expert, of bfloat16 or NVFP4, as a model has them whose experts are modules of
    their own: they are multiplied where they lie. Factors of NVFP4 are then a list too.
    """

    gate_up: Weights
    """(experts, 2 intermediate, hidden): the gate's rows, then the linear ones; of NVFP4 in turns, (..., hidden / 2)
    bytes."""
    down: Weights
    """(experts, hidden, intermediate)."""
    gate_up_scale: Weights | None = None
    """(experts, 2 intermediate), float32; of NVFP4 the experts' atoms of factors as one run."""
    down_scale: Weights | None = None
    """(experts, hidden), float32; of NVFP4 atoms."""
    gate_up_own: torch.Tensor | None = None
    """(experts), float32: of NVFP4 each weight's own factor."""
    down_own: torch.Tensor | None = None
    """The same."""

    @staticmethod
    def of(modules: Iterable[Any], gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Experts:
        """Take the weights of experts that are modules of their own, such as of a torch.nn.ModuleList: lists.

        Those of `down` stay where they are. Gate and up of an expert are joined, since one tensor map has the rows of
        both: as much memory again until the modules are let go.

        Args:
            modules: an expert each, whose parts below are nn.Linear without a bias.
            gate: the name of the part that SiLU is of; `w1` of Mixtral's.
            up: of the linear part; `w3`.
            down: of what follows; `w2`.

        Raises:
            OperandError: there are no experts, or a part has a bias.
        """
        experts = list(modules)
        parts = [getattr(module, name) for module in experts for name in (gate, up, down)]
        if not parts or any(part.bias is not None for part in parts):
            found = "a part with a bias" if parts else "none"
            raise OperandError(f"Experts.of: got {len(experts)} experts, {found}; expected one or more, without biases")
        joined = [torch.cat((getattr(x, gate).weight, getattr(x, up).weight)).detach() for x in experts]
        return Experts(joined, [getattr(x, down).weight.detach() for x in experts])

    def quantized(self) -> Experts:
        """Round the weights to float8, expert by expert: in float32 all at once may not fit."""
        rounded: list[torch.Tensor] = []
        for weight in (self.gate_up, self.down):
            parts = [quantize_rows(x) for x in weight]
            rounded += [torch.stack([x for x, _ in parts]), torch.stack([x.squeeze(-1) for _, x in parts])]
        gate_up, gate_up_scale, down, down_scale = rounded
        return Experts(gate_up, down, gate_up_scale, down_scale)

    def in_nvfp4(self) -> Experts:
        """Round the weights to NVFP4, expert by expert, the rows of gate and up in turns."""
        in_turns = [x.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1) for x in self.gate_up]
        found: list[Any] = []
        for weight in (in_turns, self.down):
            parts = [quantize_blocks(x, "nvfp4") for x in weight]
            values, atoms = [x for x, _ in parts], [x for _, (x, _) in parts]
            found += [values, atoms] if isinstance(self.down, list) else [torch.stack(values), torch.cat(atoms)]
            found += [torch.cat([x for _, (_, x) in parts])]
        gate_up, gate_up_scale, gate_up_own, down, down_scale, down_own = found
        return Experts(gate_up, down, gate_up_scale, down_scale, gate_up_own, down_own)


def lacking(dtype: torch.dtype) -> list[str]:
    """List the operations that the wheel has no kernels for, of a layer whose weights are of an element type.

    Args:
        dtype: torch.bfloat16, torch.float8_e4m3fn, or torch.uint8 of NVFP4.

    Raises:
        UnsupportedError: the layer has no such element type.
    """
    if dtype not in OPERATIONS:
        raise UnsupportedError(
            f"the experts' weights are {dtype}; expected bfloat16, or float8_e4m3fn with factors, or uint8 of NVFP4; "
            "convert them, or call Experts.quantized() or Experts.in_nvfp4()"
        )
    found, is_narrow = [], dtype == torch.uint8
    for tag, is_first in zip(OPERATIONS[dtype], (True, False), strict=True):
        grouping = "gathered" if is_first and not is_narrow else "grouped"
        try:
            plan(1, 128, 128, NAMES[dtype], groups=1, grouping=grouping, gated=is_first)
        except UnsupportedError:
            found.append(tag)
    return found


def require(dtype: torch.dtype) -> None:
    """Check that the wheel has kernels for a layer whose weights are of an element type.

    Raises:
        UnsupportedError: it has not.
    """
    missing = lacking(dtype)
    if missing:
        from .._library import build_command

        raise UnsupportedError(
            f"this wheel lacks {' and '.join(missing)}, which a layer of {NAMES[dtype]} takes; "
            f"build one with it: {build_command(*OPERATIONS[dtype])}"
        )


def multiply(
    x: torch.Tensor, routes: Routes, experts: Experts, quantize: Quantize = quantize_rows, **modes: bool
) -> torch.Tensor:
    """Compute what the experts give of each row: (rows, hidden), bfloat16, rows in the order of the experts.

    Weights of float8 take rows of float8: a token is quantized once, and not once for each of its experts.

    Args:
        x: (tokens, hidden), bfloat16.
        routes: of `route`.
        experts: the weights.
        quantize: what rounds rows to float8.
        modes: `deterministic` and `batch_invariant`, as `grouped_linear` has them.
    """
    if experts.gate_up_scale is None:
        inner = grouped_linear(x, experts.gate_up, routes.offsets, index=routes.token_of, gate="silu", **modes)
        return grouped_linear(inner, experts.down, routes.offsets, **modes)
    if experts.gate_up_own is not None:
        return _multiply_narrow(x, routes, experts, **modes)
    named: dict[str, Any] = {"out_dtype": torch.bfloat16, **modes}
    tokens, scale = quantize(x)
    first = {"index": routes.token_of, "gate": "silu", "scale_x": scale, "scale_w": experts.gate_up_scale}
    inner = grouped_linear(tokens, experts.gate_up, routes.offsets, **first, **named)
    rows, scale = quantize(inner)
    return grouped_linear(rows, experts.down, routes.offsets, scale_x=scale, scale_w=experts.down_scale, **named)


def _multiply_narrow(x: torch.Tensor, routes: Routes, experts: Experts, **modes: bool) -> torch.Tensor:
    """Do the same in NVFP4: each token is rounded once, and its elements and factors go to the rows that it has."""
    ends = routes.offsets
    rows, scale = quantize_blocks(x, "nvfp4", offsets=ends, index=routes.token_of)
    first = {"gate": "silu", "interleaved": True, "scale_w": (experts.gate_up_scale, experts.gate_up_own)}
    inner = grouped_linear(rows, experts.gate_up, ends, scale_x=scale, **first, **modes)
    rows, scale = quantize_blocks(inner, "nvfp4", offsets=ends)
    second = {"scale_w": (experts.down_scale, experts.down_own)}
    return grouped_linear(rows, experts.down, ends, scale_x=scale, **second, **modes)


class MixtureOfExperts(torch.nn.Module):
    """The layer: the router's choice, the experts' products, and the weighted sum of each token.

    Weights are buffers: no gradient is recorded, since there is none of a gate in `grouped_linear`.
    """

    def __init__(
        self, router: torch.Tensor, experts: Experts, top: int, quantize: Quantize = quantize_rows, **modes: bool
    ) -> None:
        """Keep the weights.

        Args:
            router: (experts, hidden), of the type of x.
            experts: the weights, of bfloat16, float8 or NVFP4.
            top: experts of a token.
            quantize: as `multiply` has it.
            modes: the same.

        Raises:
            UnsupportedError: the wheel lacks an operation, which is named.
        """
        super().__init__()
        require(experts.gate_up[0].dtype)
        self.top, self.quantize, self.modes = top, quantize, modes
        self.lengths: dict[str, int] = {}
        for name, tensors in {"router": router, **experts._asdict()}.items():
            if isinstance(tensors, list):
                self.lengths[name] = len(tensors)
            for place, tensor in enumerate(tensors if name in self.lengths else [tensors]):
                self.register_buffer(f"{name}_{place}" if name in self.lengths else name, tensor)

    def _weights(self, name: str) -> Any:
        """Return one of the experts' fields, of buffers."""
        if name not in self.lengths:
            return getattr(self, name)
        return [getattr(self, f"{name}_{place}") for place in range(self.lengths[name])]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer of x (..., hidden); gives as much."""
        tokens = x.reshape(-1, x.shape[-1])
        routes = route(torch.nn.functional.linear(tokens, self.router), self.top)
        experts = Experts(*map(self._weights, Experts._fields))
        rows = multiply(tokens, routes, experts, self.quantize, **self.modes)
        return combine(rows, routes).view(x.shape)


def by_experts(x: torch.Tensor, logits: torch.Tensor, experts: Experts, top: int) -> torch.Tensor:
    """Compute the layer in float32 by torch's products, expert by expert: what the layer is compared with.

    Args:
        x: (tokens, hidden).
        logits: (tokens, experts).
        experts: the weights, not quantized.
        top: experts of a token.
    """
    weights, chosen = torch.softmax(logits.float(), dim=-1).topk(top, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    result = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        token, choice = (chosen == expert).nonzero(as_tuple=True)  # which waits for the device
        gate, linear = (x[token].float() @ gate_up.float().t()).chunk(2, dim=-1)
        rows = (torch.nn.functional.silu(gate) * linear) @ down.float().t()
        result[token] += rows * weights[token, choice, None]  # an expert has a token once
    return result


def _relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.float() - expected).norm() / expected.norm())


def _compared(values: argparse.Namespace, device: str) -> dict[torch.dtype, float]:
    """Compute the layer of random weights in each element type that the wheel has; give the relative errors."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16) / shape[-1] ** 0.5

    hidden, intermediate = values.hidden, values.intermediate
    x, router = draw(values.tokens, hidden) * hidden**0.5, draw(values.experts, hidden)
    plain = Experts(draw(values.experts, 2 * intermediate, hidden), draw(values.experts, hidden, intermediate))
    expected = by_experts(x, torch.nn.functional.linear(x, router), plain, values.top)
    errors = {}
    made = {torch.bfloat16: lambda: plain, torch.float8_e4m3fn: plain.quantized, torch.uint8: plain.in_nvfp4}
    for dtype in OPERATIONS:
        try:
            require(dtype)
            layer = MixtureOfExperts(router, made[dtype](), values.top)
        except UnsupportedError as error:
            print(error)
            continue
        errors[dtype] = _relative_error(layer(x), expected)
    return errors


def main(given: list[str] | None = None, device: str = "cuda") -> int:
    """Run from the command line; 1 if a result was wrong, or there was none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of x (256)")
    parser.add_argument("--experts", type=int, default=64, help="experts (64)")
    parser.add_argument("--top", type=int, default=8, help="experts of a token (8)")
    parser.add_argument("--hidden", type=int, default=2048, help="columns of x (2048)")
    parser.add_argument("--intermediate", type=int, default=1408, help="columns between the products (1408)")
    values = parser.parse_args(given)
    try:
        with torch.no_grad():
            errors = _compared(values, device)
    except AotGemmError as error:
        print(error)
        return 1
    for dtype, error in errors.items():
        verdict = "right" if error <= LARGEST_ERROR[dtype] else "WRONG"
        print(f"{NAMES[dtype]}: relative error {error:.4f}: {verdict}")
    return 0 if errors and all(error <= LARGEST_ERROR[dtype] for dtype, error in errors.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
