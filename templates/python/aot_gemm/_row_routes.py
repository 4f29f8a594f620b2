"""Row operations over tensors of a framework without DLPack's C exchange API, which is asked in Python."""

from __future__ import annotations

from typing import Any

from . import _library, _routes
from ._enumerations import ELEMENTS
from ._frameworks import framework_of

_OUT, _RESIDUAL_OUT, _SCALE_OUT, _SCALE = 6, 7, 8, 5
"""Places in the tuple of tensors, which `RowTensor` of row_tensors.h has too."""


def run(product: str, x: Any, tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> Any:
    """Run a row operation with stream and memory of x's framework.

    Args:
        product: its name.
        x: what it reads.
        tensors: the others, each or None, as `_rows` puts them together.
        numbers: what `_rows` says beside them.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    for tensor in (x, *given):
        _routes.check_operand(product, tensor)
    for tensor in tensors[_OUT:]:
        if tensor is not None:
            _routes.check_writable(product, tensor)
    framework = framework_of(x)
    binding = _library.binding()
    x = x if _routes.is_matrix(x, 2 if product == "rotary" else 1) else framework.compact(x)
    device = x.__dlpack_device__()[1]
    stream = framework.stream(device)
    held = _routes.capsule(product, x, stream)
    capsules = tuple(None if tensor is None else _routes.capsule(product, tensor, stream) for tensor in tensors)
    element, writes_residual, has_scale, writes_scale, *extents = binding[f"{product}_result"](held, capsules, numbers)
    half = len(extents) // 2
    dtype = x.dtype if element < 0 else framework.dtype(ELEMENTS[element])
    wanted = {_OUT: (tuple(extents[:half]), dtype)}
    if writes_residual:
        wanted[_RESIDUAL_OUT] = (tuple(x.shape), x.dtype)
    if writes_scale:
        wanted[_SCALE_OUT] = (tuple(extents[half:]), framework.dtype("float32"))
    whole = list(tensors)
    for place, (shape, kind) in wanted.items():
        if whole[place] is None:
            whole[place] = framework.empty(shape, kind)
    stated = tuple(
        _routes.capsule(product, tensor, stream) if own is None and tensor is not None else own
        for own, tensor in zip(capsules, whole, strict=True)
    )
    binding[f"{product}_on"](held, stated, numbers, stream)
    for each in dict.fromkeys(framework_of(tensor) for tensor in (x, *whole) if tensor is not None):
        each.finish(device, stream)
    _count_writes(tensors)
    places = [*wanted, *([_SCALE] if has_scale and not writes_scale else [])]
    results = tuple(whole[place] for place in places)
    return results[0] if len(results) == 1 else results


def _count_writes(tensors: tuple[Any, ...]) -> None:
    """Tell torch of its tensors that were written."""
    for tensor in tensors[_OUT:]:
        if tensor is not None and _routes.examine(type(tensor)):
            _routes.note_write(tensor)
