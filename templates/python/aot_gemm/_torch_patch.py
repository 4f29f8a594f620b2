"""Models under the wheel: which layers compute by its products, which are fused, and the report of which are left."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from . import errors
from ._torch_feeds import feed_norms
from ._torch_frozen import FrozenLinear, Joined
from ._torch_fused import Fused, fuse, unfuse
from ._torch_modules import ROWS, Linear, num_padded, why_left, why_not_planned
from ._torch_norms import Normed, restore_norm, swap_norms
from ._torch_patterns import shared_inputs, tail
from ._torch_quantised import QUANTISED, Feed, has_kernel
from ._torch_report import PatchReport
from ._torch_sums import Summed, join_sums, restore_sums
from ._torch_times import STEP_US, bandwidth, is_for_few_rows, time_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_FRONTS = (Fused, Normed, Summed)
_EIGHT_BITS = {"fp8": "float8_e4m3fn", "int8": "int8"}
_UNTIMED = 0.05
"""The share of a product's time that a gate in it must spare where the table has no time of it, since it takes as much
longer. Source: an H200, 2026-11-22, e4m3, gate and up of 28672 x 4096 with kernels chosen without times, eight m from 1
to 8192: 1 to 26% longer, 5% by the median (`fp8_gates` of bench/results)."""


def patch(
    model: Any,
    *,
    where: Callable[[str, Any], bool] | None = None,
    frozen: bool | None = None,
    quantise: str | None = None,
    norms: bool = True,
    sums: bool = True,
) -> PatchReport:
    """Have every nn.Linear of a model that this wheel has tuned kernels for compute by `linear`, fused where that goes.

    Names, state dicts, hooks, isinstance, copies and torch.compile are as before; state dicts can be loaded. Classes of
    modules change, to subclasses of their own. A model that is pickled whole needs this package where it is loaded;
    unpatch it before that, and before torch.jit.script. Calling it again changes nothing.

    A model in evaluation mode is frozen, as `frozen` says otherwise. Its parameters then require no gradient, and the
    weights are promised to be constant (`constant`), so that they are prefetched, in code that torch.compile compiled
    too. Nobody may write them but by load_state_dict, and move them but by the model's own methods; unpatch first. Of a
    frozen model these are computed as one, where the wheel has the operation:

    - Linears of one input, as of query, key and value: found in the source of their module's forward, and checked with
      each call. Their weights become rows of one matrix.
    - act(gate(x)) * up(x), and the activation behind a Linear, in modules that torch.fx can trace, at the numbers of
      rows at which the table's times say that it is faster.

    - Norms over the last dimension, of any class: each is tried on rows of numbers, and swapped where it rounds as
      `rms_norm` or `layer_norm` does. Where a gradient may be recorded, torch computes them.
    - residual + x and the norm that follows, in one kernel, in layers whose source shows that: within a layer, and from
      one layer of a list to the next. Results have the bits that the sum and the norm would have alone. An epilogue of
      the product in front would spare the norm's kernel one read, but few kernels for few rows have it.

    A Linear of 7 or 50 rows gets rows of zeros behind them, and with them a tuned kernel.

    Args:
        model: an nn.Module whose weights are in GPU memory.
        where: a function of a module's name and the module that says whether it may be swapped; all by default.
        frozen: whether to freeze what is swapped; by default where the model is in evaluation mode.
        quantise: "fp8" or "int8" for products of such elements: weights by rows, once, and inputs by rows with each
            call. A norm gives rows of fp8 itself where the sources show that one product alone gets them, and SiLU
            times linear does for the product behind it; else the wheel's kernel quantises, or torch where it has none.
            The weights themselves stay, for state dicts and unpatch. Asks for a frozen model.
        norms: whether to swap norms too.
        sums: whether to compute sums with the norms that follow them, which takes swapped ones.

    Returns:
        Which modules were swapped, fused and left, and why.

    Raises:
        OperandError: the model is no nn.Module, or what is asked for does not go together.
        CorruptLibraryError: a file of the package is damaged.
    """
    _check_model("patch", model)
    if frozen is None:
        frozen = not model.training and not any(isinstance(x, FakeTensor) for x in model.parameters())
    if quantise is not None and quantise not in QUANTISED:
        raise errors.OperandError(f"patch: quantise is {errors.show(quantise)}; expected 'fp8', 'int8' or None")
    if quantise and not frozen:
        raise errors.OperandError("patch: quantise needs parameters that stay as they are; pass frozen=True")
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    already = tuple(name for name, module in linears.items() if isinstance(module, Linear))
    others = {name: module for name, module in linears.items() if name not in already}
    reasons = {
        name: _why_left(module, quantise, frozen=frozen)
        if where is None or where(name, module)
        else "where= does not choose it"
        for name, module in others.items()
    }
    left = {name: reason for name, reason in reasons.items() if reason is not None}
    swapped = {name: module for name, module in others.items() if name not in left}
    for module in swapped.values():
        module.__class__ = FrozenLinear if frozen else Linear
    fusion = _Fusion(swapped, quantise)
    if frozen:
        fusion.freeze(model)
    swapped_norms, norms_left = swap_norms(model, where) if frozen and norms else ((), {})
    if quantise is not None:
        fusion.note_all(feed_norms(model, quantise), {})
    if frozen and sums:
        fusion.note_all(*join_sums(model))
    return PatchReport(
        tuple(swapped),
        already,
        left,
        fusion.fused,
        fusion.unfused,
        frozen and bool(swapped),
        {name: text for name, text in _batches(model) if text},
        tuple(fusion.padded),
        quantise if swapped else None,
        swapped_norms,
        norms_left,
        fusion.gains(),
        tuple(x for x, module in swapped.items() if quantise and not module.aot_joined.inputs.has_kernel),
    )


def unpatch(model: Any) -> tuple[str, ...]:
    """Make every nn.Linear of a model that `patch` swapped what it was; return their names.

    Values are what they were, bit for bit; so are classes, and whether parameters require a gradient.

    Raises:
        OperandError: the model is no nn.Module.
    """
    _check_model("unpatch", model)
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, Linear)]
    _restore([*(module for _, module in found), *(x for x in model.modules() if isinstance(x, _FRONTS))])
    return tuple(name for name, _ in found)


@contextmanager
def patched(
    model: Any,
    *,
    where: Callable[[str, Any], bool] | None = None,
    frozen: bool | None = None,
    quantise: str | None = None,
    norms: bool = True,
    sums: bool = True,
) -> Iterator[PatchReport]:
    """Patch a model for a block of code; behind it, what this call swapped is as it was.

    Arguments and errors are those of `patch`, whose report the block gets.
    """
    report = patch(model, where=where, frozen=frozen, quantise=quantise, norms=norms, sums=sums)
    names = {*report.swapped, *report.fused, *report.norms}
    modules = [module for name, module in model.named_modules() if name in names]
    try:
        yield report
    finally:
        _restore([x for x in modules if isinstance(x, (Linear, *_FRONTS))])


def _restore(modules: Iterable[Any]) -> None:
    for module in modules:
        if isinstance(module, Summed):
            restore_sums(module)
        if isinstance(module, Normed):
            restore_norm(module)
        elif isinstance(module, Fused):
            unfuse(module)
        elif isinstance(module, FrozenLinear):
            module.aot_thaw()
        elif isinstance(module, Linear):
            module.__class__ = nn.Linear


def _check_model(function: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise errors.OperandError(f"{function}: got a {type(model).__name__}; expected a torch.nn.Module")


def _product_options(modules: Iterable[Any], kind: str | None) -> dict[str, Any]:
    """Return what `plan` is to be told of the product of some modules beside its sizes."""
    members = list(modules)
    dtype = members[0].weight.dtype
    options: dict[str, Any] = {"dtype": dtype, "bias": any(x.bias is not None for x in members)}
    if kind is not None:
        options |= {"dtype": _EIGHT_BITS[kind], "scales": "vector", "out_dtype": dtype}
    return options


def _why_left(module: Any, kind: str | None, *, frozen: bool) -> str | None:
    reason = why_left(module, may_pad=frozen)
    return _why_not_quantised(module, kind) if reason is None and kind else reason


def _why_not_quantised(module: Any, kind: str) -> str | None:
    n, k = module.weight.shape
    options = _product_options([module], kind)
    return why_not_planned(n + num_padded(n, module.weight), k, **options)


def _batches(model: Any) -> Iterator[tuple[str, str]]:
    """List the modules that have parameters of three dimensions, of 16 bits, and which."""
    for name, module in model.named_modules():
        own = {key: tuple(x.shape) for key, x in module.named_parameters(recurse=False) if x.ndim == 3}
        if own and not isinstance(module, nn.modules.conv._ConvNd):  # noqa: SLF001
            texts = " and ".join(f"{key} {shape}" for key, shape in own.items())
            yield name, f"its {texts} are batches of matrices and no nn.Linear: torch computes them"


def _near(are_chosen: list[bool]) -> str:
    """Say at which numbers of rows something is done; nothing where it is at all."""
    chosen = [str(m) for m, x in zip(ROWS, are_chosen, strict=True) if x]
    return "" if all(are_chosen) else f", near {' and '.join(chosen)} rows"


class _Fusion:
    """What is computed as one in a frozen model."""

    def __init__(self, swapped: dict[str, Any], kind: str | None) -> None:
        self.names = {id(module): name for name, module in swapped.items()}
        self.swapped, self.kind = swapped, kind
        self.fused: dict[str, str] = {}
        self.unfused: dict[str, str] = {}
        self.padded: list[str] = []
        self._takers: list[tuple[Any, Any]] = []
        self._times: dict[int, list[float]] = {m: [0.0, 0.0] for m in ROWS}

    def freeze(self, model: Any) -> None:
        """Freeze what is swapped, and fuse what goes together."""
        for module in self.swapped.values():
            module.aot_note()
        for module in self.swapped.values():
            module.aot_freeze()
        for name, module in model.named_modules():
            if not isinstance(module, (Linear, Fused)):
                self._join(name, module)
        self._finish()

    def _join(self, name: str, module: Any) -> None:
        """Fuse what a module does with its own Linears."""
        found = tail(module)
        if found is not None:
            self._follow(name, module, found)
        for group in shared_inputs(module):
            members = [getattr(module, x) for x in group]
            members = [x for x in members if id(x) in self.names and x.aot_joined is None]
            if len(members) < 2:
                continue
            reason = self._why_apart(members)
            if reason is not None:
                self._note(self.unfused, name, reason)
                continue
            self._bind(Joined(tuple(members), self.kind))
            self._note(self.fused, name, " and ".join(self._own(members)) + " in one product")
            self._count(members, sum(x.weight.shape[0] for x in members), {})

    def _own(self, members: Iterable[Any]) -> list[str]:
        return [self.names[id(x)].rpartition(".")[2] for x in members]

    def note_all(self, fused: dict[str, str], unfused: dict[str, str]) -> None:
        """Note what is computed as one in modules, and what is not and why."""
        for notes, texts in ((self.fused, fused), (self.unfused, unfused)):
            for name, text in texts.items():
                self._note(notes, name, text)

    @staticmethod
    def _note(notes: dict[str, str], name: str, text: str) -> None:
        notes[name] = f"{notes[name]}; {text}" if name in notes else text

    @staticmethod
    def _bind(joined: Joined) -> None:
        for place, module in enumerate(joined.modules):
            object.__setattr__(module, "aot_joined", joined)
            module.aot_place = place

    def _why_apart(self, members: list[Any]) -> str | None:
        """Say why Linears of one input are not computed as one; None where they are."""
        own = " and ".join(self._own(members))
        if len({(x.weight.dtype, x.weight.device, x.weight.shape[1]) for x in members}) > 1:
            return f"{own} differ in type, device or input features"
        if len({id(x.weight) for x in members}) < len(members):
            return f"{own} have one weight in common"
        first, rows = members[0], sum(x.weight.shape[0] for x in members)
        columns = rows + num_padded(rows, first.weight)
        reason = why_not_planned(columns, first.weight.shape[1], **_product_options(members, self.kind))
        return None if reason is None else f"{own}: {reason}"

    def _follow(self, name: str, module: Any, found: Any) -> None:
        """Fuse the gate or the activation that follows a module's Linears."""
        members = [getattr(module, x) for x in found.linears]
        if any(id(x) not in self.names for x in members):
            return
        own = " and ".join(self._own(members))
        what = f"{found.activation} in the product of {own}"
        reason = self._why_not_followed(members, found)
        if reason is not None:
            self._note(self.unfused, name, f"{what}: {reason}")
            return
        behind = self._taker(module, found, members)
        faster = [self._is_faster(m, members, found, gives_rows=behind is not None) for m in ROWS]
        if not any(faster) and behind is None:
            self._note(self.unfused, name, f"{what}: by the table's times it is slower at every number of rows")
            return
        joined = Joined(tuple(members), self.kind)
        self._bind(joined)
        fuse(module, found, joined, tuple(faster))
        if any(faster):
            self._note(self.fused, name, what + _near(faster))
        if behind is not None:
            self._takers.append((module, behind))
            apart = [not x for x in faster]
            if any(apart):
                text = f"{found.activation} of {own} and rows of {self.kind} for {found.rest[0]} in one kernel"
                self._note(self.fused, name, text + _near(apart))

    def _taker(self, module: Any, found: Any, members: list[Any]) -> Any:
        """Return the Linear behind a gate whose product takes rows of 8 bits that the gate's own kernel can give."""
        if self.kind is None or not found.is_gated or found.activation != "silu" or not found.rest:
            return None
        taker = getattr(module, found.rest[0])
        columns = sum(x.weight.shape[0] for x in members) // 2
        is_there = id(taker) in self.names and has_kernel("silu_mul", columns, members[0].weight.dtype, self.kind)
        return taker if is_there else None

    def _is_faster(self, m: int, members: list[Any], found: Any, *, gives_rows: bool) -> bool:
        """Say whether a gate or an activation in the product is faster than behind it, as far as the table knows.

        Where the kernel behind the product gives rows of 8 bits, it stands in the place of one that quantises: then the
        gate spares but the bytes of twice the columns.

        Where the table has no times, it is, unless a kernel for few rows answers the product alone: those read weights
        faster.
        """
        rows, k = sum(x.weight.shape[0] for x in members), members[0].weight.shape[1]
        known = _product_options(members, self.kind)
        columns = rows // 2 if found.is_gated else rows
        fused = known | {"activation": found.activation, "gated": found.is_gated}
        whole, apart = time_us(m, columns, k, fused), time_us(m, rows, k, known)
        size = members[0].weight.element_size()
        if math.isfinite(whole) and math.isfinite(apart):
            if gives_rows:
                return whole <= apart + 1e6 * m * columns * size / bandwidth(m, rows, k, known)
            return whole <= apart + STEP_US + 1e6 * m * (rows + columns) * size / bandwidth(m, rows, k, known)
        if gives_rows and math.isfinite(apart):
            return 2e6 * m * columns * size / bandwidth(m, rows, k, known) >= _UNTIMED * apart
        return is_for_few_rows(m, columns, k, fused) or not is_for_few_rows(m, rows, k, known)

    def _why_not_followed(self, members: list[Any], found: Any) -> str | None:
        """Say why an activation or a gate is not computed in the product; None where it is."""
        first, rows = members[0], sum(x.weight.shape[0] for x in members)
        if any(x.aot_joined is not None for x in members):
            return "they are in one product with others"
        if (
            num_padded(rows, first.weight)
            or len({x.weight.shape for x in members}) > 1
            or (found.is_gated and rows % 2)
        ):
            return f"{rows} rows; expected as many of each, and a result of multiples of 16 bytes"
        reason = self._why_apart(members) if len(members) > 1 else None
        if reason is not None:
            return reason
        options = {"activation": found.activation, "gated": found.is_gated}
        columns = rows // 2 if found.is_gated else rows
        return why_not_planned(columns, first.weight.shape[1], **_product_options(members, self.kind), **options)

    def _finish(self) -> None:
        """Pad and quantise what is not fused with others."""
        for name, module in self.swapped.items():
            needs_rows = num_padded(module.weight.shape[0], module.weight) > 0
            if module.aot_joined is None and (needs_rows or self.kind):
                self._bind(Joined((module,), self.kind))
            if needs_rows and len(module.aot_joined.modules) == 1:
                self.padded.append(name)
        for module, taker in self._takers:
            places = ((module, module.aot_tail.rest[0], taker),)
            object.__setattr__(module, "aot_feed", Feed(taker.aot_joined, places))

    def _count(self, members: list[Any], rows: int, options: dict[str, Any]) -> None:
        """Add up the table's times of Linears apart and as one."""
        first, known = members[0], _product_options(members, self.kind)
        for m, sums in self._times.items():
            each = [(x.weight.shape, _product_options([x], self.kind)) for x in members]
            apart = [time_us(m, *shape, own) for shape, own in each]
            whole = time_us(m, rows, first.weight.shape[1], known | options)
            if math.isfinite(whole) and all(map(math.isfinite, apart)):
                sums[0] += sum(apart)
                sums[1] += whole

    def gains(self) -> dict[int, float]:
        """Return the ratio of the two sums, of the m that have any."""
        return {m: apart / whole for m, (apart, whole) in self._times.items() if whole}
