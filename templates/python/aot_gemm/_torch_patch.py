"""Models under the wheel: `patch` changes classes of modules, `quantize` holds weights in narrow formats."""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from . import _torch_modules, errors
from ._table import plan
from ._torch_activations import WIDE, check_format, is_rounding, why_not_narrow
from ._torch_expert_kinds import WEIGHTS
from ._torch_formats import format_beside
from ._torch_modules import ROWS, Linear, why_left, why_no_linear
from ._torch_narrow import BUFFERS
from ._torch_promises import promise, release
from ._torch_quantize_experts import choose_experts, experts_states, not_finite
from ._torch_quantized import QuantizedLinear, quantized_state
from ._torch_quantized_experts import QuantizedExperts
from ._torch_report import PatchReport, QuantizeReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def patch(model: Any, *, where: Callable[[str, Any], bool] | None = None, constant: bool = False) -> PatchReport:
    """Have every nn.Linear of a model that this wheel has tuned kernels for compute by `linear`.

    Each gets another class, a subclass of nn.Linear, and nothing else changes: no parameter is moved, copied, joined or
    frozen. What may be done with an nn.Linear may be done with it: hooks, adapters and their merges, pruning,
    parametrizations, offloading, sharding, state dicts, copies, compiling, tracing. Results are tensors of their own
    memory, as torch's are, within the rounding of the element type. Calls that the wheel does not serve torch computes.
    A model that is pickled whole needs this package where it is loaded. Where this raises, the model is as it was.

    Args:
        model: an nn.Module whose weights are in GPU memory.
        where: a function of a module's name and the module that says whether it may be swapped; all by default.
        constant: your promise that nobody writes the weights while they are in use, as `constant` of the package has
            it of one: products may then read them before the kernel in front has ended, which few rows gain from. A
            write that torch counts, as of load_state_dict, or other memory ends the promise of that weight; call this
            again for a new one. A write that torch does not count, through `.data` or by a kernel of your own, must not
            run while a product is under way. By default nothing is promised.

    Returns:
        Which modules were swapped and left, and why.

    Raises:
        OperandError: the model is no nn.Module.
        CorruptLibraryError: a file of the package is damaged.
    """
    return _patch(model, where, constant=constant)[0]


def _patch(
    model: Any, where: Callable[[str, Any], bool] | None, *, constant: bool
) -> tuple[PatchReport, list[_Change]]:
    """Swap classes; return the report, and what undoes the changes."""
    _check_model("patch", model)
    linears = _linears(model)
    already = tuple(name for name, module in linears.items() if isinstance(module, Linear))
    left = {name: reason for name, x in linears.items() if name not in already and (reason := _why(name, x, where))}
    swapped = {name: x for name, x in linears.items() if name not in left and name not in already}
    promised = [x.weight for x in linears.values() if isinstance(x, Linear) and why_left(x) is None]
    promised = [*promised, *(x.weight for x in swapped.values())] if constant else []
    report = PatchReport(
        tuple(swapped), already, left, bool(promised), dict(_batches(model)), _times(list(swapped.values()))
    )
    return report, _commit([_Change(x, Linear, {}) for x in swapped.values()], promised)


def unpatch(model: Any) -> tuple[str, ...]:
    """Give every module of a model the class that it had before `patch`; return the names of those that change.

    Promises of their weights end. Quantized modules stay: their weights of 16 bits are gone.

    Raises:
        OperandError: the model is no nn.Module.
    """
    _check_model("unpatch", model)
    return _unpatch([(name, x) for name, x in model.named_modules() if isinstance(x, Linear)])


def _unpatch(modules: list[tuple[str, Any]]) -> tuple[str, ...]:
    known: dict[type, type] = {Linear: nn.Linear}
    named = [(name, _Change(x, _without(type(x), known), {})) for name, x in modules]
    named = [(name, change) for name, change in named if change.kind is not type(change.module)]
    _commit([change for _, change in named], [])
    for _, change in named:
        release(change.module._parameters.get("weight"))  # noqa: SLF001 - None where a parametrization computes it
    return tuple(name for name, _ in named)


@contextmanager
def patched(
    model: Any, *, where: Callable[[str, Any], bool] | None = None, constant: bool = False
) -> Iterator[PatchReport]:
    """Patch a model for a block of code; behind it, what this call swapped is as it was.

    Arguments and errors are those of `patch`, whose report the block gets.
    """
    report, changed = _patch(model, where, constant=constant)
    try:
        yield report
    finally:
        _unpatch([("", x.module) for x in changed if isinstance(x.module, Linear)])


def quantize_model(
    model: Any,
    format: Any,  # noqa: A002 - what the thing is called
    *,
    where: Callable[[str, Any], bool] | None = None,
    constant: bool = False,
    activation_format: str = WIDE,
) -> QuantizeReport:
    """Hold the weights of a model's nn.Linear's and experts in a narrow format; `quantize` of a model.

    Raises:
        FormatError: a weight has a number that is not finite, which the format has not; the model is as it was.
    """
    _check_model("quantize", model)
    narrow = format_beside(format, activation_format)
    if activation_format != WIDE:
        check_format(activation_format, narrow.name)
    linears = _linears(model)
    already = tuple(x for x, module in model.named_modules() if isinstance(module, (QuantizedLinear, QuantizedExperts)))
    planned = narrow.why_not
    if is_rounding(activation_format):
        planned = partial(why_not_narrow, weight_format=narrow.name)
    reasons = {key: _why_wide(key, x, where, planned) for key, x in linears.items() if key not in already}
    experts, others = choose_experts(model, narrow.name, activation_format, where)
    weights = {key: {"weight": linears[key].weight} for key, reason in reasons.items() if reason is None}
    weights |= {key: x.weights for key, x in experts.items()}
    reasons |= others | _shared(model, weights)
    left = {key: reason for key, reason in reasons.items() if reason is not None}
    chosen = {key: linears[key] for key in reasons if key in linears and key not in left}
    experts = {key: x for key, x in experts.items() if key not in left}
    states = _states(chosen, narrow)
    if activation_format != WIDE:
        for state in states.values():
            state["_activation_format"] = activation_format
    of_experts = experts_states(experts, narrow.name)
    tensors = {id(x): x for x in (*model.parameters(), *model.buffers())}
    before = _num_bytes(tensors.values())
    gone = {id(x) for key in (*chosen, *experts) for x in weights[key].values()}
    holding = [x["_buffers"] for x in states.values()]
    holding += [x._buffers for state in of_experts.values() for x in state["_modules"].values()]  # noqa: SLF001
    made = {id(x[name]): x[name] for x in holding for name in BUFFERS if name in x}
    held = [x["_buffers"]["qweight"] for x in states.values()]
    promised = [x for x in held if x.device.type in _torch_modules.DEVICES] if constant else []
    rounding = {key: [state["has_kernel"]] for key, state in states.items()}
    rounding |= {key: [state["_modules"][x].has_kernel for x in WEIGHTS] for key, state in of_experts.items()}
    report = QuantizeReport(
        narrow.name,
        (*chosen, *experts),
        already,
        left,
        before,
        _num_bytes([*(x for key, x in tensors.items() if key not in gone), *made.values()]),
        tuple(key for key, made in rounding.items() if not all(made)),
        bool(promised),
    )
    changes = [_Change(module, QuantizedLinear, states[key]) for key, module in chosen.items()]
    changes += [_Change(x.module, QuantizedExperts, of_experts[key]) for key, x in experts.items()]
    _commit(changes, promised)
    return report


@torch.no_grad()
def _states(chosen: dict[str, Any], narrow: Any) -> dict[str, dict[str, Any]]:
    """Round all weights, those that several modules have once; return what each module is to have."""
    rounded: dict[int, Any] = {}
    for name, module in chosen.items():
        if id(module.weight) not in rounded:
            try:
                rounded[id(module.weight)] = narrow.narrow(module.weight.detach())
            except errors.FormatError as error:  # its extents fit, so that a number does not
                raise errors.FormatError(not_finite(name, error)) from error
    return {
        key: quantized_state(module, narrow.name, module.weight, *rounded[id(module.weight)])
        for key, module in chosen.items()
    }


class _Change(NamedTuple):
    module: Any
    kind: type
    attributes: dict[str, Any]


def _commit(changes: list[_Change], promised: list[Any]) -> list[_Change]:
    """Make all changes and promises or none; return what undoes the changes.

    What can fail by itself is done before; what is left is assigning, which an interrupt may still cut.
    """
    undo = [_Change(x.module, type(x.module), dict(vars(x.module))) for x in changes]
    try:
        for weight in promised:
            promise(weight)
        for change in changes:
            _set(change)
    except BaseException:
        for change in undo:
            vars(change.module).clear()
            _set(change)
        for weight in promised:
            release(weight)
        raise
    return undo


def _set(change: _Change) -> None:
    vars(change.module).update(change.attributes)
    object.__setattr__(change.module, "__class__", change.kind)


def _check_model(function: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise errors.OperandError(f"{function}: got a {type(model).__name__}; expected a torch.nn.Module")


def _linears(model: Any) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def _why(name: str, module: Any, where: Callable[[str, Any], bool] | None) -> str | None:
    if isinstance(module, QuantizedLinear):
        return f"it is quantized to {module.format}, and computes by this package already"
    return why_left(module) if where is None or where(name, module) else "where= does not choose it"


def _why_wide(name: str, module: Any, where: Callable[[str, Any], bool] | None, why_not: Any) -> str | None:
    """Say why a Linear is not to be quantized; None where it may be."""
    if where is not None and not where(name, module):
        return "where= does not choose it"
    reason = why_no_linear(module)
    if reason is not None:
        return reason
    found: str | None = why_not(*module.weight.shape, module.weight.dtype, bias=module.bias is not None)
    return found


def _shared(model: Any, weights: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Say why weights are not quantized that stay elsewhere in 16 bits, so that they would be held twice.

    Args:
        model: the model.
        weights: what is to be quantized, by the names of modules and of parameters.
    """
    places = {
        id(x): f"{name}.{key}"
        for name, module in model.named_modules()
        for key, x in module._parameters.items()  # noqa: SLF001
        if x is not None and key not in weights.get(name, ())
    }
    return {
        name: f"its {key} is {places[id(x)]} too, where it stays as it is"
        for name, held in weights.items()
        for key, x in held.items()
        if id(x) in places
    }


def _num_bytes(tensors: Iterable[Any]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def _times(modules: list[Any]) -> dict[int, float]:
    """Add up the table's times of modules, at the numbers of rows at which it has one of each."""
    shapes = [(*x.weight.shape, x.weight.dtype, x.bias is not None) for x in modules]
    found = {}
    for m in ROWS:
        known = {each: plan(m, *each[:3], bias=each[3]).time_us for each in set(shapes)}
        times = [known[each] for each in shapes]
        if times and all(time is not None for time in times):
            found[m] = math.fsum(times)
    return found


def _batches(model: Any) -> Iterator[tuple[str, str]]:
    """List the modules that have parameters of three dimensions, and which."""
    for name, module in model.named_modules():
        own = {key: tuple(x.shape) for key, x in module.named_parameters(recurse=False) if x.ndim == 3}
        if own and not isinstance(module, nn.modules.conv._ConvNd):  # noqa: SLF001
            texts = " and ".join(f"{key} {shape}" for key, shape in own.items())
            yield name, f"its {texts} are batches of matrices and no nn.Linear: torch computes them"


def _without(kind: type, known: dict[type, type]) -> type:
    """Return the class that a module would have if nn.Linear had been in Linear's place all along.

    Libraries derive a class for one module at run time, as torch's parametrizations and sharding do: such a one is made
    anew. A class that a program has written, and that its module has by name, is its own affair.
    """
    if kind not in known:
        home = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
        bases = tuple(_without(x, known) for x in kind.__bases__) if issubclass(kind, Linear) else kind.__bases__
        own = {key: x for key, x in vars(kind).items() if key not in {"__dict__", "__weakref__"}}
        known[kind] = kind if home is kind or bases == kind.__bases__ else type(kind)(kind.__name__, bases, own)
    return known[kind]
