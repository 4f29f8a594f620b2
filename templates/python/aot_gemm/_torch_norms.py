"""Norms that `patch` swaps: found by what they compute, whatever their class, and computed by the package's kernels."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from . import _row_table, _torch_modules, errors
from ._torch_fused import front, unfront
from ._torch_modules import ROWS, is_served
from ._torch_products import is_compiling
from ._torch_rows import layer_norm, rms_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DIFFERING = 1 / 64
"""Share of elements that may differ by a rounding where a module computes a norm: those whose float32 sums end near a
tie. Of another order of roundings it is a quarter; see `tests/runtime/test_torch_norms.py`."""
_TOLERANCE = 2.0**-6
"""By how much an element may differ, relatively: two units in the last place of bfloat16."""
_SEED = 1


@dataclass(frozen=True)
class NormKind:
    """What a norm computes, in the words of the package's `rms_norm` and `layer_norm`."""

    eps: float
    weight_offset: float = 0.0
    round_norm: bool = False
    has_mean: bool = False
    """Whether the mean is taken off: a layer norm."""

    def compute(self, x: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
        """Call the package; with a residual, it gives the norm and the sum."""
        if self.has_mean:
            return layer_norm(x, weight, bias, eps=self.eps, residual=residual)
        options = {key: value for key, value in asdict(self).items() if key != "has_mean"}
        return rms_norm(x, weight, residual=residual, **options)

    def expected(self, x: Any, weight: Any, bias: Any) -> Any:
        """Compute it by torch, rounding as the package's kernels do."""
        wide, weight = x.float(), weight.float() + self.weight_offset
        if self.has_mean:
            added = None if bias is None else bias.float()
            return nn.functional.layer_norm(wide, weight.shape, weight, added, self.eps).to(x.dtype)
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return ((normed.to(x.dtype).float() if self.round_norm else normed) * weight).to(x.dtype)


def kind_of(module: Any) -> NormKind | None:
    """Find which norm over the last dimension a module computes, by trying it; None where it is none.

    A copy of the module, on the CPU and with drawn weights, is given rows of small and of large numbers: so eps, an
    offset of the weight and the order of roundings tell apart.
    """
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))  # noqa: SLF001
    drawing = torch.Generator().manual_seed(_SEED)
    sizes = torch.logspace(-4, 1, 8)[:, None]
    x = ((torch.randn(2, 8, weight.shape[0], generator=drawing) + 0.5) * sizes).to(weight.dtype)
    drawn = {
        name: None if own is None else torch.randn(own.shape, generator=drawing).to(own.dtype)
        for name, own in (("weight", weight), ("bias", bias))
    }
    tried = copy.copy(module)
    vars(tried)["_parameters"] = drawn
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            got = type(module).forward(tried, x.clone())
    except Exception:  # noqa: BLE001 - a module may do anything with rows; this one is no norm of them
        return None
    if not isinstance(got, torch.Tensor) or got.shape != x.shape or got.dtype != x.dtype:
        return None
    found = [(_distance(got, kind.expected(x, **drawn)), kind) for kind in _kinds(module, has_bias=bias is not None)]
    distance, kind = min(found, key=lambda each: each[0], default=(1.0, None))
    return kind if distance < _DIFFERING else None


def _kinds(module: Any, *, has_bias: bool) -> Iterator[NormKind]:
    """List what a module may compute: with every number that it holds as eps, and those of its type."""
    own = [value for value in vars(module).values() if isinstance(value, float) and 0 <= value < 1]
    epsilons = dict.fromkeys([*own, *(torch.finfo(x).eps for x in (module.weight.dtype, torch.float32))])
    for eps in epsilons:
        yield NormKind(eps, has_mean=True)
        if not has_bias:
            yield from (NormKind(eps), NormKind(eps, round_norm=True), NormKind(eps, 1.0))


def _distance(got: Any, expected: Any) -> float:
    """Return the share of elements that differ; 1 where some are no neighbours."""
    if not torch.allclose(got.float(), expected.float(), rtol=_TOLERANCE, atol=1e-6):
        return 1.0
    return float((got != expected).float().mean())


class Ready:
    """The norm of a sum that was computed with it, for the call that asks for the norm of that sum."""

    def __init__(self) -> None:
        self.last: Any = None

    def keep(self, total: Any, normed: Any) -> None:
        """Keep a norm until it is asked for."""
        self.last = (total, None if is_compiling() else version_of(total), normed)

    def take(self, x: Any) -> Any:
        """Return the norm of x where it is there, and x is the very tensor, unwritten since; else None."""
        last = self.last
        if last is None:
            return None
        self.last = None
        return last[2] if last[0] is x and (is_compiling() or last[1] == version_of(x)) else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Ready:
        """Make one that holds nothing."""
        return Ready()

    def __reduce__(self) -> Any:
        """Pickle one that holds nothing."""
        return Ready, ()


def version_of(x: Any) -> int | None:
    """Return how often torch has counted writes of a tensor; None of an inference tensor, which it does not count."""
    return None if x.is_inference() else x._version  # noqa: SLF001


class Normed:
    """What a norm's class gets in front of it; its own forward serves what this does not."""

    aot_kind: NormKind
    aot_ready: Ready
    aot_dtype: Any
    """Of the parameters when it was patched, of which there are kernels."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Compute the norm: with the sum in front of it, where that was done, and else alone.

        A norm alone is left to torch.compile, which fuses it with what stands around it.
        """
        if len(arguments) == 1 and not options:
            x = arguments[0]
            normed = self.aot_ready.take(x)
            if normed is not None:
                return normed
            if not is_compiling() and self._aot_serves(x) and (self.aot_kind.has_mean or _are_rows(x)):
                return self.aot_kind.compute(x, self.weight, self._aot_bias)  # type: ignore[attr-defined]
        return super().forward(*arguments, **options)  # type: ignore[misc]

    def aot_sum(self, left: Any, right: Any) -> Any:
        """Return left + right, and keep the norm of it, where one kernel computes both."""
        if not self._aot_serves(left) or not self._aot_serves(right) or left.shape != right.shape:
            return left + right
        if not _are_rows(right):
            return left + right
        normed, total = self.aot_kind.compute(right, self.weight, self._aot_bias, left)  # type: ignore[attr-defined]
        self.aot_ready.keep(total, normed)
        return total

    @property
    def _aot_bias(self) -> Any:
        return self._parameters.get("bias")  # type: ignore[attr-defined]

    def _aot_serves(self, x: Any) -> bool:
        """Say whether a call is one that the package computes as the module would."""
        weight = self.weight  # type: ignore[attr-defined]
        if not isinstance(x, torch.Tensor) or x.ndim < 1 or x.shape[-1] != weight.shape[0]:
            return False
        if weight.dtype is not self.aot_dtype:
            return False
        if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            return False
        if not is_served(x, weight, self._aot_bias) or torch.is_autocast_enabled(x.device.type):
            return False
        return bool(weight.is_contiguous())


def _are_rows(x: Any) -> bool:
    """Say whether a tensor is rows of one stride, which need no copy.

    Torch's layer norm copies what is not, too. A residual that is not, as what a convolution gives a vision tower, is
    copied for the first sum; then it is rows, since sums are.
    """
    shape, strides = x.shape, x.stride()
    if strides[-1] != 1:
        return False
    return all(shape[i] == 1 or strides[i] == strides[i + 1] * shape[i + 1] for i in range(x.ndim - 2))


def swap_norms(model: Any, where: Callable[[str, Any], bool] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Have a model's norms compute by the package; return their names, and why others are left."""
    swapped: list[str] = []
    left: dict[str, str] = {}
    known: dict[Any, NormKind | None] = {}
    for name, module in model.named_modules():
        if isinstance(module, Normed) or not _may_be_norm(module):
            continue
        reason = _why_left(module) if where is None or where(name, module) else "where= does not choose it"
        if reason is None:
            own = tuple(sorted((key, value) for key, value in vars(module).items() if isinstance(value, float)))
            key = type(module), module.weight.shape, module.weight.dtype, own
            if key not in known:
                known[key] = kind_of(module)
            kind = known[key]
            reason = "it computes no norm that there are kernels of" if kind is None else _why_no_kernel(module, kind)
        if reason is not None:
            left[name] = reason
            continue
        swapped.append(name)
        front(module, Normed, aot_kind=kind, aot_ready=Ready(), aot_dtype=module.weight.dtype)
    return tuple(swapped), left


def restore_norm(module: Any) -> None:
    """Give a norm the class that it had."""
    unfront(module, ("aot_kind", "aot_ready", "aot_dtype"))


def _may_be_norm(module: Any) -> bool:
    """Say whether a module has the parameters of a norm, and a name of one."""
    own = {name: x for name, x in module._parameters.items() if x is not None}  # noqa: SLF001
    if any(True for _ in module.children()) or any(True for _ in module.buffers(recurse=False)):
        return False
    is_named = "norm" in type(module).__name__.lower()
    return is_named and "weight" in own and not set(own) - {"weight", "bias"} and all(x.ndim == 1 for x in own.values())


def _why_left(module: Any) -> str | None:
    weight, bias = module.weight, module._parameters.get("bias")  # noqa: SLF001
    if "forward" in vars(module):
        return "its forward was replaced on the module itself"
    for tensor in (x for x in (weight, bias) if x is not None):
        if isinstance(tensor, FakeTensor) or type(tensor) is not nn.Parameter:
            return f"its parameters are {type(tensor).__name__}s; expected plain ones"
        if tensor.dtype not in _torch_modules.DTYPES:
            return f"its parameters are {tensor.dtype}; expected torch.bfloat16 or torch.float16"
        if tensor.device.type not in _torch_modules.DEVICES:
            return f"its parameters are on {tensor.device}; expected a GPU; move the model there first"
    return None


def _why_no_kernel(module: Any, kind: NormKind) -> str | None:
    """Say why the table has no kernel of a norm's columns; None where it has."""
    function, cols = "layer_norm" if kind.has_mean else "rms_norm", module.weight.shape[0]
    try:
        tiers = [_row_table.plan_rows(function, rows, cols, module.weight.dtype).tier for rows in ROWS]
    except errors.AotGemmError as error:
        return str(error)
    return f"{function} of {cols} columns gets the fallback" if "fallback" in tiers else None
