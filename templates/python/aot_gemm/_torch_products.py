"""The products for torch: the package's own functions, or its operators where torch is to know of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _operations
from ._constant import ConstantWeight
from ._dtypes import dtype_name
from ._extras import is_in_blocks, split_factors
from ._torch_gates import gate_of_parts
from ._torch_in_blocks import call_in_blocks
from ._torch_operators import LIBRARY
from ._torch_packed import PackedWeight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_operators: Any = getattr(torch.ops, LIBRARY.ns)
is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_num_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 - no public function says whether a mode is on
_interpreters = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 - nor whether torch.func transforms
_forward_ad = torch.autograd.forward_ad
PLAIN = (torch.Tensor, torch.nn.Parameter)
_WEIGHTS = (*PLAIN, ConstantWeight)
_FACTORS = ("scale_x", "scale_w", "scale_out")


def is_plain(tensor: Any) -> bool:
    """Say whether a tensor is handled by torch's own code."""
    kind = type(tensor)
    return kind in PLAIN or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def is_recorded(*operands: Any) -> bool:
    """Say whether torch is to know of a call: it records a gradient, or traces or counts operators."""
    if _num_modes() or _interpreters() is not None or _forward_ad._current_level >= 0:  # noqa: SLF001
        return True
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    if _is_grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    return not all(map(is_plain, tensors))


def dispatch(name: str, direct: Any, operands: tuple[Any, ...], out: Any, options: dict[str, Any]) -> Any:
    """Call an operator where torch is to know of it, else the package's function."""
    is_traced = is_compiling()
    if not is_traced and not (
        isinstance(operands[0], torch.Tensor) and is_recorded(*_flat((*operands, out, *options.values())))
    ):
        return direct(*operands, out=out, **options)
    if is_in_blocks(options.get("out_dtype")):
        return call_in_blocks(name, tuple(map(_without_promises, operands)), out, options)
    operands = tuple(map(_without_promises, operands))
    if name in ("linear", "gated_linear"):
        given = split_factors(name, *(options.get(x) for x in _FACTORS))
        options = options | {x: y for x, y in zip(_FACTORS, given, strict=True) if y is not None}
    if options.get("out_dtype") is not None:
        options = {**options, "out_dtype": _torch_dtype(options["out_dtype"])}
    operator = getattr(_operators, name)
    if out is None:
        return operator.default(*operands, **options)
    operator.out(*operands, **options, out=out)
    return out


def _tensor_of(operand: Any) -> Any:
    """Return a weight that is promised to be constant without the promise, which operators do not carry."""
    return operand.tensor if isinstance(operand, ConstantWeight) else operand


def _without_promises(operand: Any) -> Any:
    """Return an operand, or the tensors of a list, as operators take them."""
    return list(_flat(operand)) if isinstance(operand, list) else _tensor_of(operand)


def _flat(operands: Iterable[Any]) -> Iterator[Any]:
    """List operands, and those of lists among them, without promises."""
    for operand in operands:
        yield from map(_tensor_of, operand if isinstance(operand, (list, tuple)) else (operand,))


def _torch_dtype(dtype: Any) -> Any:
    return dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype_name("out_dtype", dtype))


def linear(x: Any, weight: Any, bias: Any = None, *, out: Any = None, **options: Any) -> Any:
    """Compute activation(x @ weight^T + bias) + residual: the package's `linear`, under torch.compile and autograd too.

    Arguments, result and errors are those of the package's `linear`, whose operands are torch's tensors here. Where a
    compiler or a dispatch mode traces, or a gradient is recorded, torch's dispatcher is given an operator; else the
    package's function is called at once.

    Gradients are recorded of x, weight and bias in bfloat16 and float16, without further arguments. The backward pass
    is torch's own products: a wheel has tuned kernels for what a forward pass needs. Other recorded products raise
    GradientError. An autocast is not heeded. The promise of `constant` holds in eager calls alone.

    The weight may be one that `pack` returned too, with `bias`, `out`, `out_dtype` and the modes alone beside it.
    """
    if (
        not (options or is_compiling())
        and type(x) in PLAIN
        and type(weight) in _WEIGHTS
        and not _num_modes()
        and _interpreters() is None
        and _forward_ad._current_level < 0  # noqa: SLF001 - no tangents are carried forward
        and not (
            _is_grad_enabled()
            and (x.requires_grad or getattr(weight, "requires_grad", True) or getattr(bias, "requires_grad", False))
        )
    ):
        return _operations.linear(x, weight, bias, out=out)
    if type(weight) is PackedWeight:
        from ._torch_packed_linear import packed_linear  # which imports this module

        return packed_linear(x, weight, bias, out=out, **options)
    return dispatch("linear", _operations.linear, (x, weight, bias), out, options)


def gated_linear(x: Any, weight: Any, bias: Any = None, *, out: Any = None, **options: Any) -> Any:
    """Compute activation(gate) * linear: the package's `gated_linear`, under torch.compile too.

    Arguments, result and errors are those of the package's `gated_linear`. No gradient is recorded: GradientError.
    Where torch traces, a list of two weights has an activation alone beside it: else UnsupportedError.

    The two weights may be ones that `pack` returned, with `bias`, `activation`, `out`, `out_dtype` and the modes alone
    beside them: one launch where the wheel has it and it is the faster way by its tables, else two products.
    """
    if _is_packed(weight):
        from ._torch_packed_gates import packed_gated_linear  # which imports this module

        return packed_gated_linear(x, weight, bias, out=out, **options)
    if isinstance(weight, (list, tuple)) and (is_compiling() or is_recorded(x, *weight, bias, out, *options.values())):
        return gate_of_parts(x, weight, bias, out=out, **options)
    return dispatch("gated_linear", _operations.gated_linear, (x, weight, bias), out, options)


def _is_packed(weight: Any) -> bool:
    """Say whether a weight is packed, or some of a list are."""
    each = weight if isinstance(weight, (list, tuple)) else (weight,)
    return any(isinstance(x, PackedWeight) for x in each)


def matmul(a: Any, b: Any, *, out: Any = None, deterministic: bool = False, batch_invariant: bool = False) -> Any:
    """Compute a @ b: the package's `matmul`, under torch.compile and autograd too, as `linear` is here.

    Arguments, result and errors are those of the package's `matmul`.
    """
    if (
        not (deterministic or batch_invariant or is_compiling())
        and type(a) in PLAIN
        and type(b) in PLAIN
        and not _num_modes()
        and _interpreters() is None
        and _forward_ad._current_level < 0  # noqa: SLF001 - no tangents are carried forward
        and not (_is_grad_enabled() and (a.requires_grad or b.requires_grad))
    ):
        return _operations.matmul(a, b, out=out)
    modes = {"deterministic": deterministic, "batch_invariant": batch_invariant}
    return dispatch("matmul", _operations.matmul, (a, b), out, {name: True for name, is_on in modes.items() if is_on})
