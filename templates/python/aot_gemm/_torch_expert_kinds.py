"""What a module of a mixture's experts computes, as transformers has such modules; or why it is none that is known.

Their weights are parameters of three dimensions, `gate_up_proj` and `down_proj`. Beside these a class says how it is to
be computed in other ways than its own: whether weights are transposed, have biases, and by which function gate and
linear half become one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from ._torch_modules import DTYPES
from ._torch_products import is_plain

WEIGHTS = ("gate_up_proj", "down_proj")
"""Source: transformers 5.17, integrations/moe.py, `use_experts_implementation`; so are the attributes below."""
GATES = ("silu_mul", "gelu_tanh_mul", "gpt_oss_mul")
"""The functions of rows that are gates."""
ALPHA, LIMIT = 1.702, 7.0
"""Source: OpenAI, gpt-oss, `swiglu` of gpt_oss/torch/model.py, and config.json, swiglu_limit."""


class Kind(NamedTuple):
    """What a module of experts computes."""

    gate: str
    """One of `GATES`."""
    interleaved: bool
    """Whether gate and linear half are even and odd columns, and not halves."""
    transposed: bool
    """Whether the parameters are held (experts, k, n)."""
    experts: int
    hidden: int
    width: int
    """Columns between the products."""

    def shape_of(self, weight: str) -> tuple[int, int, int]:
        """Return (experts, n, k) of one of the weights."""
        n, k = (2 * self.width, self.hidden) if weight == WEIGHTS[0] else (self.hidden, self.width)
        return self.experts, n, k


def gated(gate: str, x: Any, *, interleaved: bool) -> Any:
    """Compute a gate by torch: in float32, or float64 of such, rounded once."""
    wide = x if x.dtype == torch.float64 else x.float()
    value, line = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, -1)
    if gate == "gpt_oss_mul":
        value, line = value.clamp(max=LIMIT), line.clamp(-LIMIT, LIMIT) + 1
        return (value * torch.sigmoid(ALPHA * value) * line).to(x.dtype)
    activated = functional.silu(value) if gate == "silu_mul" else functional.gelu(value, approximate="tanh")
    return (activated * line).to(x.dtype)


def are_experts(module: Any) -> bool:
    """Say whether a module holds experts' weights by the names that transformers has for them."""
    held = (module._parameters.get(x) for x in WEIGHTS)  # noqa: SLF001
    return all(x is not None and x.ndim == 3 for x in held)


def kind_of(module: Any) -> Kind | str:
    """Return what a module of experts computes; or a text that says why that is not known, or not served."""
    name = f"it is a {type(module).__module__}.{type(module).__qualname__}"
    flags = ("has_gate", "has_bias", "is_transposed", "num_experts", "_apply_gate")
    is_stated = all(hasattr(module, x) for x in flags) and hasattr(type(module).forward, "__wrapped__")
    if is_stated and not module.has_gate:
        return f"{name}, whose experts have no gate"
    if not are_experts(module) or not is_stated:
        return f"{name}, whose forward may be its own; expected a module of experts as transformers 5 has them"
    if "forward" in vars(module):
        return "its forward was replaced on the module itself"
    first = module._parameters[WEIGHTS[0]]  # noqa: SLF001
    transposed = bool(module.is_transposed)
    n, k = first.shape[1:][::-1] if transposed else first.shape[1:]
    made = Kind("", False, transposed, module.num_experts, k, n // 2)
    reason = _why_others(module, made, first.dtype)
    if reason:
        return reason
    for gate in GATES:
        for interleaved in (False, True):
            if _is_gate(module, gate, interleaved=interleaved):
                return made._replace(gate=gate, interleaved=interleaved)
    return f"{name}, whose gate is none of {', '.join(GATES)}, of halves or of even and odd columns"


def _why_others(module: Any, kind: Kind, dtype: Any) -> str:
    """Say why the parameters are not those of such experts; empty where they are."""
    expected = {f"{x}_bias": kind.shape_of(x)[:2] for x in WEIGHTS} if module.has_bias else {}
    for weight in WEIGHTS:
        experts, n, k = kind.shape_of(weight)
        expected[weight] = (experts, k, n) if kind.transposed else (experts, n, k)
    for name, shape in expected.items():
        held = module._parameters.get(name)  # noqa: SLF001
        if held is None or tuple(held.shape) != shape:
            return f"its {name} is {None if held is None else tuple(held.shape)}; expected {shape}"
        if not (is_plain(held) or isinstance(held, FakeTensor)):
            return f"its {name} is a {type(held).__module__}.{type(held).__qualname__}, no plain tensor"
        if held.dtype not in DTYPES or held.dtype != dtype:
            return f"its {name} is {held.dtype}; expected torch.bfloat16 or torch.float16 of all"
    return ""


def _is_gate(module: Any, gate: str, *, interleaved: bool) -> bool:
    """Say whether a module's gate is one of ours, by what it gives for some numbers, small and large."""
    drawn = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-2, 3, 16, dtype=torch.float64, device="cpu")  # some are past what a gate may be cut at
    x = sizes[:, None] * torch.randn(16, 32, generator=drawn, dtype=torch.float64, device="cpu")
    try:
        with torch.no_grad():
            found = module._apply_gate(x)  # noqa: SLF001 - which transformers' own ways of computing experts call
    except Exception:  # noqa: BLE001 - whatever a model's own code raises of a tensor of another type
        return False
    expected = gated(gate, x, interleaved=interleaved)
    is_like = isinstance(found, torch.Tensor) and (found.shape, found.dtype) == (expected.shape, expected.dtype)
    return is_like and torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
