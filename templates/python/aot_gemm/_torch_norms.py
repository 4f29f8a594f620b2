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

    from ._torch_quantised import Feed

_DIFFERING = 1 / 64
"""Share of elements that may differ by a rounding where a module computes a norm: those whose float32 sums end near a
tie. Of another order of roundings it is a quarter; see `tests/runtime/test_torch_norms.py`."""
_TOLERANCE = 2.0**-6
"""By how much an element may differ, relatively: two units in the last place of bfloat16."""
_MAX_COMPILED_ROWS = 64
"""Rows up to which torch.compile gets a sum and its norm as one kernel; above, it fuses them itself. Source: a Llama of
four layers on an H200, one run: 2.6, 2.2, 0.5 and 0.6 percent less time at 1, 4, 16 and 64 rows, 3.1 and 2.6 more at
512 and 2048 (bench/results/h200_20261123_patch_last.json)."""
_SEED = 1


@dataclass(frozen=True)
class NormKind:
    """What a norm computes, in the words of the package's `rms_norm` and `layer_norm`."""

    eps: float
    weight_offset: float = 0.0
    round_norm: bool = False
    has_mean: bool = False
    """Whether the mean is taken off: a layer norm."""

    @property
    def function(self) -> str:
        """Return the name of the package's function."""
        return "layer_norm" if self.has_mean else "rms_norm"

    def compute(self, x: Any, weight: Any, bias: Any, residual: Any = None, out_dtype: Any = None) -> Any:
        """Call the package; with a residual, it gives the norm and the sum, and of 8 bits the rows' factors too."""
        if self.has_mean:
            return layer_norm(x, weight, bias, eps=self.eps, residual=residual, out_dtype=out_dtype)
        options = {key: value for key, value in asdict(self).items() if key != "has_mean"}
        return rms_norm(x, weight, residual=residual, out_dtype=out_dtype, **options)

    def expected(self, x: Any, weight: Any, bias: Any) -> Any:
        """Compute it by torch, rounding as the package's kernels do."""
        wide, factor = x.float(), None if weight is None else weight.float() + self.weight_offset
        if self.has_mean:
            added = None if bias is None else bias.float()
            return nn.functional.layer_norm(wide, x.shape[-1:], factor, added, self.eps).to(x.dtype)
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        normed = normed.to(x.dtype).float() if self.round_norm else normed
        return (normed if factor is None else normed * factor).to(x.dtype)


def kind_of(module: Any, cols: int, dtype: Any) -> NormKind | None:
    """Find which norm over the last dimension a module computes, by trying it; None where it is none.

    A copy of the module, on the CPU and with drawn weights, is given rows of zeros, of small and of large numbers: so
    eps, an offset of the weight and the order of roundings tell apart.
    """
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))  # noqa: SLF001
    drawing = torch.Generator().manual_seed(_SEED)
    sizes = torch.cat((torch.tensor([0.0, 1e-16, 1e-8]), torch.logspace(-4, 1, 8)))[:, None]
    x = ((torch.randn(2, len(sizes), cols, generator=drawing) + 0.5) * sizes).to(dtype)
    drawn = {
        name: None if own is None else torch.randn(own.shape, generator=drawing).to(own.dtype)
        for name, own in (("weight", weight), ("bias", bias))
    }
    tried = copy.copy(module)
    vars(tried)["_parameters"] = {name: x for name, x in drawn.items() if name in module._parameters}  # noqa: SLF001
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            got = type(module).forward(tried, x.clone())
    except Exception:  # noqa: BLE001 - a module may do anything with rows; this one is no norm of them
        return None
    if not isinstance(got, torch.Tensor) or got.shape != x.shape or got.dtype != x.dtype:
        return None
    found = [(_distance(got, kind.expected(x, **drawn)), kind) for kind in _kinds(module, dtype)]
    distance, kind = min(found, key=lambda each: each[0], default=(1.0, None))
    return kind if distance < _DIFFERING else None


def _kinds(module: Any, dtype: Any) -> Iterator[NormKind]:
    """List what a module may compute: with every number that it holds as eps, and those of its type."""
    own = [value for value in vars(module).values() if isinstance(value, float) and 0 <= value < 1]
    epsilons = dict.fromkeys([*own, *(torch.finfo(x).eps for x in (dtype, torch.float32))])
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))  # noqa: SLF001
    for eps in epsilons:
        yield NormKind(eps, has_mean=True)
        if bias is None:
            yield NormKind(eps)
        if bias is None and weight is not None:
            yield from (NormKind(eps, round_norm=True), NormKind(eps, 1.0))


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
    """Of the parameters when it was patched, or without any of the model's, of which there are kernels."""
    aot_cols: int
    aot_feed: Feed | None = None
    """The one product that the result goes to, where that takes rows of 8 bits, as the norm's kernel can give them."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Compute the norm: with the sum in front of it, where that was done, and else alone.

        A norm alone is left to torch.compile, which fuses it with what stands around it.
        """
        if len(arguments) == 1 and not options:
            x = arguments[0]
            normed = self.aot_ready.take(x)
            if normed is None and self._aot_serves(x):
                normed = self._aot_alone(x)
            if normed is not None:
                return self.aot_feed.give(*normed) if isinstance(normed, tuple) else normed  # type: ignore[union-attr]
        return super().forward(*arguments, **options)  # type: ignore[misc]

    def _aot_alone(self, x: Any) -> Any:
        """Return the norm of x without a sum; None where it is to be left to torch."""
        element = self._aot_element(x)
        if (element is None and is_compiling()) or not (self.aot_kind.has_mean or _are_rows(x)):
            return None
        return self.aot_kind.compute(x, self._aot_weight, self._aot_bias, None, element)

    def _aot_element(self, x: Any) -> Any:
        """Return the element type of 8 bits that the norm of x may have; None where it is to be that of x."""
        feed = self.aot_feed
        return feed.joined.inputs.dtype if feed is not None and feed.is_open(x.dtype) else None

    def aot_sum(self, left: Any, right: Any) -> Any:
        """Return left + right, and keep the norm of it, where one kernel computes both."""
        if not self._aot_serves(left) or not self._aot_serves(right) or left.shape != right.shape:
            return left + right
        if not _are_rows(right):
            return left + right
        element = self._aot_element(right)
        if element is None and is_compiling() and _are_many(right):
            return left + right
        residual = left if _are_rows(left) else left.contiguous()
        normed, total, *scale = self.aot_kind.compute(right, self._aot_weight, self._aot_bias, residual, element)
        self.aot_ready.keep(total, (normed, *scale) if scale else normed)
        return total

    @property
    def _aot_weight(self) -> Any:
        return self._parameters.get("weight")  # type: ignore[attr-defined]

    @property
    def _aot_bias(self) -> Any:
        return self._parameters.get("bias")  # type: ignore[attr-defined]

    def _aot_serves(self, x: Any) -> bool:
        """Say whether a call is one that the package computes as the module would."""
        weight = self._aot_weight
        if not isinstance(x, torch.Tensor) or x.ndim < 1 or x.shape[-1] != self.aot_cols:
            return False
        if x.dtype is not self.aot_dtype or torch.is_autocast_enabled(x.device.type):
            return False
        if torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
            return False
        if weight is None:
            return is_served(x, x, None)
        return (
            weight.shape[0] == self.aot_cols and is_served(x, weight, self._aot_bias) and bool(weight.is_contiguous())
        )


def _are_rows(x: Any) -> bool:
    """Say whether a tensor is rows of one stride, which need no copy.

    Torch's layer norm copies what is not, too. A residual that is not, as what a convolution gives a vision tower, is
    copied for the first sum; then it is rows, since sums are.
    """
    shape, strides = x.shape, x.stride()
    if strides[-1] != 1:
        return False
    return all(shape[i] == 1 or strides[i] == strides[i + 1] * shape[i + 1] for i in range(x.ndim - 2))


def _are_many(x: Any) -> bool:
    """Say whether x has more rows than torch.compile is given a sum and its norm for in one kernel.

    A symbolic number of rows does not count as more: to ask for it would narrow the shapes that an export takes.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes time, and a compiler has it

    return bool(statically_known_true(x.numel() > _MAX_COMPILED_ROWS * x.shape[-1]))


def swap_norms(model: Any, where: Callable[[str, Any], bool] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Have a model's norms compute by the package; return their names, and why others are left."""
    swapped: list[str] = []
    left: dict[str, str] = {}
    known: dict[Any, NormKind | None] = {}
    common = next((x for x in model.parameters() if x.dtype in _torch_modules.DTYPES), None)
    for name, module in model.named_modules():
        cols = None if isinstance(module, Normed) else _columns(module)
        if cols is None:
            continue
        like = module._parameters.get("weight", common)  # noqa: SLF001
        like = common if like is None else like
        reason = _why_left(module, like) if where is None or where(name, module) else "where= does not choose it"
        if reason is None:
            key = _likeness(module), cols, like.dtype
            if key not in known:
                known[key] = kind_of(module, cols, like.dtype)
            kind = known[key]
            is_none = "it computes no norm that there are kernels of"
            reason = is_none if kind is None else _why_no_kernel(kind, cols, like.dtype)
        if reason is not None:
            left[name] = reason
            continue
        swapped.append(name)
        front(module, Normed, aot_kind=kind, aot_ready=Ready(), aot_dtype=like.dtype, aot_cols=cols)
    return tuple(swapped), left


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, str, tuple, type(None), torch.dtype)


def _likeness(module: Any) -> Any:
    """Return what norms that compute alike have in common, so that one of them is tried for all.

    That is all which a module holds of its own. Where that is more than numbers, texts and types, it is like no other.
    """
    own = {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
    if not all(isinstance(value, _PLAIN) for value in own.values()):
        return id(module)
    names = frozenset(name for name, x in module._parameters.items() if x is not None)  # noqa: SLF001
    return type(module), names, frozenset((name, repr(value)) for name, value in own.items())


def restore_norm(module: Any) -> None:
    """Give a norm the class that it had."""
    unfront(module, ("aot_kind", "aot_ready", "aot_dtype", "aot_cols", "aot_feed"))


def _columns(module: Any) -> int | None:
    """Return the columns of a module that has the parameters of a norm, and a name of one; None of any other.

    A norm without parameters is one of torch's, which say how many columns they are of.
    """
    own = {name: x for name, x in module._parameters.items() if x is not None}  # noqa: SLF001
    if any(True for _ in module.children()) or any(True for _ in module.buffers(recurse=False)):
        return None
    if "norm" not in type(module).__name__.lower() or set(own) - {"weight", "bias"}:
        return None
    if not own:
        shape = getattr(module, "normalized_shape", None)
        return int(shape[0]) if isinstance(shape, tuple) and len(shape) == 1 else None
    return int(own["weight"].shape[0]) if "weight" in own and all(x.ndim == 1 for x in own.values()) else None


def _why_left(module: Any, like: Any) -> str | None:
    """Say why a norm is not tried; one without parameters is as one of the model's own, `like`."""
    if "forward" in vars(module):
        return "its forward was replaced on the module itself"
    own = [x for x in module._parameters.values() if x is not None]  # noqa: SLF001
    if not own and like is None:
        return (
            "neither it nor the model has parameters of torch.bfloat16 or torch.float16, which say of which type it is"
        )
    for tensor in own or [like]:
        if isinstance(tensor, FakeTensor) or type(tensor) is not nn.Parameter:
            return f"its parameters are {type(tensor).__name__}s; expected plain ones"
        if tensor.dtype not in _torch_modules.DTYPES:
            return f"its parameters are {tensor.dtype}; expected torch.bfloat16 or torch.float16"
        if tensor.device.type not in _torch_modules.DEVICES:
            return f"its parameters are on {tensor.device}; expected a GPU; move the model there first"
    return None


def _why_no_kernel(kind: NormKind, cols: int, dtype: Any) -> str | None:
    """Say why the table has no kernel of a norm's columns; None where it has."""
    function = kind.function
    try:
        tiers = [_row_table.plan_rows(function, rows, cols, dtype).tier for rows in ROWS]
    except errors.AotGemmError as error:
        return str(error)
    return f"{function} of {cols} columns gets the fallback" if "fallback" in tiers else None
