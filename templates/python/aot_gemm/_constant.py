"""A weight that is promised to be constant."""

from __future__ import annotations

from typing import Any


class ConstantWeight:
    """A weight and the promise that nothing writes it while it is in use: what `constant` returns.

    `linear` and `matmul` take it in the weight's place. `tensor` is the weight itself.
    """

    __slots__ = ("_version", "address", "tensor")

    def __init__(self, tensor: Any, address: int) -> None:
        self.tensor = tensor
        self.address = address
        self._version = _version_of(tensor)

    @property
    def is_kept(self) -> bool:
        """Say whether the promise still holds, as far as the framework can tell: torch counts its writes of a tensor.

        A write that torch counts ends the promise: the weight is then read as any other, until `constant` is called
        again. So does a tensor that has got other memory than it had. A write through another framework, or by a
        kernel of the caller's own, is not counted.
        """
        place = getattr(self.tensor, "data_ptr", None)  # that of torch's tensors; the library looks at the others'
        is_there = place is None or place() == self.address
        return is_there and (self._version is None or _version_of(self.tensor) == self._version)

    def __repr__(self) -> str:
        """Name the tensor by type and shape, and say whether the promise holds."""
        shape = tuple(getattr(self.tensor, "shape", ()))
        return (
            f"<ConstantWeight of a {type(self.tensor).__name__} {shape}, {'kept' if self.is_kept else 'written since'}>"
        )


def _version_of(tensor: Any) -> int | None:
    try:
        version: int | None = tensor._version  # noqa: SLF001 - torch's documented counter of in-place writes
    except (AttributeError, RuntimeError):  # not torch's, or an inference tensor, whose writes torch does not count
        return None
    return version
