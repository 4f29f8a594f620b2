"""What torch.func, forward mode and torch.vmap do with the operators.

torch.library records gradients for a backward pass. It says nothing of the transforms of torch.func, which need more
of an operator than that, nor of tangents, which it loses: an operator without a rule has a tangent of zeros. So a
product that is differentiated by them is torch's own, and what has no derivative is refused, as in a backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_interpreters = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 - no public function says whether torch.func transforms
_Interpreter = torch._C._functorch.CInterpreter  # noqa: SLF001
_forward_ad = torch.autograd.forward_ad
MATRIX_DIMS = 2


def is_transformed() -> bool:
    """Say whether torch.func transforms the code that runs, or tangents are carried forward."""
    if isinstance(_interpreters(), _Interpreter):  # a comparison with None is one that torch.compile takes for false
        return True
    return _forward_ad._current_level >= 0  # noqa: SLF001


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    """List the tensors among values, and those of lists among them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


def has_derivative(values: Iterable[Any]) -> bool:
    """Say whether torch is to differentiate by one of these: in a backward pass, by torch.func, or forward."""
    tensors = list(_tensors(values))
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    if _forward_ad._current_level < 0:  # noqa: SLF001
        return False
    return any(_forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def below_autograd(operator: Any, keys: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call an operator's kernel from what torch calls in front of it."""
    with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as torch.library's own kernels of autograd
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *operands, **options)  # noqa: SLF001


class _Taken:
    """Takes what torch.library makes of a backward pass, in the place of the library that would register it."""

    def impl(self, _name: str, kernel: Any, _key: str, *, with_keyset: bool) -> None:  # noqa: ARG002
        self.kernel = kernel


def register_derivatives(library: Any, name: str, backward: Any, save: Any, by_torch: Callable[..., Any]) -> None:
    """Register an operator's backward pass, and what torch.func and forward mode differentiate in its place.

    Args:
        library: the operators' library, whose namespace the operator is in.
        name: the operator.
        backward: as torch.library.register_autograd has it.
        save: its `setup_context`.
        by_torch: computes the operator by operators of torch, which have all derivatives; or raises GradientError.
    """
    taken: Any = _Taken()
    torch.library.register_autograd(f"{library.ns}::{name}", backward, setup_context=save, lib=taken)

    def call(keys: Any, *operands: Any, **options: Any) -> Any:
        if is_transformed() and has_derivative(operands):
            return by_torch(*operands, **options)
        return taken.kernel(keys, *operands, **options)

    library.impl(name, call, "Autograd", with_keyset=True)


def refuse_derivatives(library: Any, name: str, advice: str, overload: str = "default") -> None:
    """Register that an operator has no derivative: GradientError, with advice, where torch would take one."""
    operator = getattr(getattr(getattr(torch.ops, library.ns), name), overload)

    def check(keys: Any, *operands: Any, **options: Any) -> Any:
        if has_derivative((*operands, *options.values())):
            raise errors.GradientError(f"{name}: an operand requires a gradient{advice}")
        return below_autograd(operator, keys, operands, options)

    library.impl(_named(name, overload), check, "Autograd", with_keyset=True)


def _named(name: str, overload: str) -> str:
    return name if overload == "default" else f"{name}.{overload}"


def refuse_of_out(library: Any, name: str) -> None:
    """Register that an operator which writes `out` has no derivative, and nothing for torch.vmap."""
    advice = ", and torch records none of a product that writes out=; leave out= away, or run it under torch.no_grad()"
    refuse_derivatives(library, name, advice, "out")

    def refuse(*_: Any, **__: Any) -> Any:
        raise errors.UnsupportedError(
            f"{name}: got out= under torch.vmap, where results are new tensors; leave out= away, or call it outside of "
            "vmap, whose leading dimensions it takes as they are"
        )

    library.impl(f"{name}.out", refuse, "FuncTorchBatched")


# What torch.vmap does.


def _at(value: Any, dim: Any, place: int) -> Any:
    """Return one of a batch, of each tensor of a list too; what has no batch is the same for all."""
    if isinstance(dim, (list, tuple)):
        return [_at(x, each, place) for x, each in zip(value, dim, strict=True)]
    return value if dim is None else value.select(dim, place)


def _in_turn(operator: Any, size: int, in_dims: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call an operator for each of a batch, and join the results."""
    if size == 0:
        raise errors.ShapeError(
            f"{operator}: got a batch of no elements under torch.vmap, of which each is a call; expected one or more"
        )
    results = [
        operator(*(_at(x, dim, place) for x, dim in zip(operands, in_dims, strict=True)), **options)
        for place in range(size)
    ]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    joined = [torch.stack(each) for each in zip(*results, strict=True)]
    return joined, [0] * len(joined)


def _is_batched(dim: Any) -> bool:
    return any(map(_is_batched, dim)) if isinstance(dim, (list, tuple)) else dim is not None


def register_batches(
    library: Any,
    name: str,
    leading: Callable[..., bool] | None = None,
    whole: Callable[..., Any] | None = None,
    *,
    overload: str = "default",
) -> None:
    """Register what torch.vmap makes of an operator: one call where that can be, else a call for each of the batch.

    Args:
        library: the operators' library, whose namespace the operator is in.
        name: the operator.
        leading: a function of which operands have a batch, of the operands and of the options, that says whether
            batches in front of these operands are leading dimensions like any other, and so one call.
        whole: a function of operands that all have a batch in front, and None for those that are not there, and of the
            options, that gives the result for all; or None where it does not.
        overload: of the operator.
    """
    operator = getattr(getattr(getattr(torch.ops, library.ns), name), overload)

    def call(info: Any, in_dims: Any, *operands: Any, **options: Any) -> Any:
        in_dims = in_dims[: len(operands)]
        batched = [_is_batched(dim) for dim in in_dims]
        if leading is not None and leading(batched, operands, options):
            pairs = zip(operands, in_dims, strict=True)
            result = operator(*(x if dim is None else x.movedim(dim, 0) for x, dim in pairs), **options)
            return result, 0 if isinstance(result, torch.Tensor) else [0] * len(result)
        if whole is not None:
            pairs = zip(operands, in_dims, strict=True)
            spread = [_spread(x, dim, info.batch_size) for x, dim in pairs]
            result = whole(*spread, **options)
            if result is not None:
                return result, 0
        return _in_turn(operator, info.batch_size, in_dims, operands, options)

    torch.library.register_vmap(f"{library.ns}::{_named(name, overload)}", call, lib=library)


def _spread(tensor: Any, dim: int | None, size: int) -> Any:
    """Return an operand with the batch in front, which one without a batch is repeated for, without a copy."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
