"""What modules of narrow weights have in common: buffers that are moved, converted, saved and loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ._torch_formats import Held, format_of
from ._torch_modules import DTYPES

BUFFERS = ("qweight", "scale")
"""The bytes, and the factors."""
INPUT_SCALE = "input_scale"
"""What a module that has one calls the own factor of its inputs, float32, one element."""
STATED = "aot_gemm"
"""What the metadata of a state dict calls the format of a module and the type of its factors, as torch its version."""


class NarrowModule(nn.Module):
    """A module whose weight, or weights of one size, are elements of a narrow format: `qweight`, and factors: `scale`.

    A subclass has `shape`, that of the weight that they stand for, and `ask`, which asks the wheel about it.
    """

    qweight: Any
    scale: Any
    shape: tuple[int, ...]
    format: str
    weight_dtype: torch.dtype
    _factor_dtype: torch.dtype | None = None
    """Of int4's factors, where `weight_dtype` is none that they can have."""

    @property
    def held(self) -> Held:
        """Return what the buffers do not tell of the weight."""
        return Held(self.shape, self._factor_dtype or self.weight_dtype)

    @property
    def stated(self) -> dict[str, str]:
        """Return what a state dict says of the buffers beside their bytes."""
        return {"format": self.format, "dtype": str(self.held.dtype).removeprefix("torch.")}

    def ask(self) -> None:
        """Ask the wheel that is installed here for what depends on the weight and its type."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply what moves or converts a module; elements and factors are moved alone."""
        kept = [x for x in (*BUFFERS, INPUT_SCALE) if self._buffers.get(x) is not None]
        held = {name: self._buffers.pop(name) for name in kept}
        try:
            super()._apply(fn, recurse)
            moved = {name: fn(tensor) for name, tensor in held.items()}
            dtype = fn(torch.empty(0, dtype=self.weight_dtype, device=held["scale"].device)).dtype
            same = {x: y if y.dtype is held[x].dtype else held[x].to(y.device) for x, y in moved.items()}
            if dtype in DTYPES:
                same["qweight"] = format_of(self.format).retyped(same["qweight"], same["scale"], self.held, dtype)
                vars(self).pop("_factor_dtype", None)
            elif dtype is not self.weight_dtype:  # factors stay what they are
                self._factor_dtype = self.held.dtype
            held, is_other, self.weight_dtype = same, dtype is not self.weight_dtype, dtype
        finally:
            self._buffers.update(held)
        if is_other:
            self.ask()
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save the buffers and the bias, and beside torch's version what the bytes do not tell."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        versions = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if versions is not None:
            versions[STATED] = self.stated

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: Any, missing: Any, unexpected: Any, failed: Any
    ) -> None:
        """Take elements of this format; int4's factors get the module's type."""
        given = state_dict.get(f"{prefix}qweight")
        if isinstance(given, torch.Tensor):  # else torch says what it is
            stated = local_metadata.get(STATED, {})
            form, narrow = stated.get("format", self.format), format_of(self.format)
            if form != self.format or given.dtype is not narrow.dtype:
                failed.append(
                    f"{prefix}qweight is {given.dtype}, of the format {form}; expected {narrow.dtype} of "
                    f"{self.format}, as this module is; quantize a model to {form} and load it into that"
                )
                return
            rows, own = (x.get("rows", "in order") for x in (stated or self.stated, self.stated))
            if rows != own:
                failed.append(
                    f"{prefix}qweight has rows {rows}; expected rows {own}, as this module has; load its folder"
                )
                return
            bias = state_dict.get(f"{prefix}bias")
            dtype = getattr(torch, stated.get("dtype", ""), self.held.dtype if bias is None else bias.dtype)
            self._take(state_dict, prefix, dtype, is_assigned=bool(local_metadata.get("assign_to_params_buffers")))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, failed)

    def _take(self, state_dict: Any, prefix: str, dtype: torch.dtype, *, is_assigned: bool) -> None:
        """Have elements of a state dict mean here what they mean in a module whose factors are of a type."""
        if dtype not in DTYPES or dtype is self.held.dtype:
            return
        narrow, qweight, scale = format_of(self.format), *(state_dict.get(f"{prefix}{x}") for x in BUFFERS)
        if is_assigned:  # the module becomes what is assigned
            self.weight_dtype = dtype
            self.ask()
            vars(self).pop("_factor_dtype", None)
        elif qweight.shape == self.qweight.shape:  # else torch says that it is of another shape
            held = Held(self.held.shape, dtype)
            state_dict[f"{prefix}qweight"] = narrow.retyped(qweight, scale, held, self.held.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles hold: elements as bytes, since pickle reads no tensors of float8."""
        return vars(self) | {"_buffers": {**self._buffers, "qweight": self.qweight.view(torch.uint8)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the bytes as elements, and ask the wheel that is installed here."""
        super().__setstate__(state)
        narrow = format_of(self.format)
        self._buffers["qweight"] = self._buffers["qweight"].view(narrow.dtype)
        self.ask()
