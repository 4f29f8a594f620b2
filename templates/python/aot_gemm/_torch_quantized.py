"""Linears whose weight is held in a narrow format alone: what `quantize(model, "fp8")` makes of an nn.Linear."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import Proxy
from torch.utils._pytree import tree_map_only

from . import errors
from ._torch_activations import WIDE, check_format
from ._torch_check import check_tensor
from ._torch_formats import PackedFormat, format_beside, format_of
from ._torch_modules import REFUSALS, is_served, traced_call
from ._torch_narrow import STATED, NarrowModule
from ._torch_promises import promised
from ._torch_transforms import is_transformed

if TYPE_CHECKING:
    from collections.abc import Callable

_is_compiling = torch.compiler.is_compiling


class QuantizedLinear(NarrowModule, nn.Linear):
    """A Linear of narrow elements, in an nn.Linear's place: the weight of 16 bits is gone.

    Buffers, by which it is saved and loaded: `qweight` (out_features, in_features), of float8_e4m3fn or int8, and
    `scale` (out_features, 1), float32, the factor of each row; of "fp8_block" one of each 128 by 128 elements. Of a
    format of the weight alone, `qweight` are its packed bytes, and `scale` its float32 factors, of no elements where it
    has none. `bias` stays a parameter. What follows of it:

    - `weight` is what these stand for, in `weight_dtype`: computed where it is read, and written by nobody. A write of
      it, as of adapters that are merged, is a ReadOnlyError; `requantize` takes another weight.
    - Changes of the model's type, as by half(), are of `weight_dtype` and the bias, and leave the buffers.
    - A state dict of an nn.Linear is taken too: its weight is quantized.
    - Gradients are recorded of inputs and the bias: those of torch's product with `weight`.
    - What `patch` leaves to torch of an nn.Linear's calls, as those on the CPU, torch computes with `weight` here too.
    """

    has_kernel: bool
    _activation_format: str = WIDE

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = torch.bfloat16,
        format: str = "fp8",  # noqa: A002 - what the thing is called
        activation_format: str = WIDE,
    ) -> None:
        """Make one of zeros, to load a state dict into.

        Args:
            in_features: as nn.Linear has it.
            out_features: the same.
            bias: the same.
            device: the same.
            dtype: of the bias, and of inputs and results: bfloat16 or float16.
            format: as `quantize` has it.
            activation_format: the same.

        Raises:
            UnsupportedError: there is no such format.
        """
        narrow = format_beside(format, activation_format)
        nn.Module.__init__(self)
        zeros = torch.zeros(out_features, in_features, dtype=dtype, device=device)
        bias_values = nn.Parameter(zeros.new_zeros(out_features)) if bias else None
        vars(self).update(in_features=in_features, out_features=out_features, _parameters={"bias": bias_values})
        vars(self).update(quantized_state(self, narrow.name, zeros, *narrow.narrow(zeros)))
        self.activation_format = activation_format

    def forward(self, input: Any) -> Any:  # noqa: A002 - nn.Linear's name of it
        """Compute input @ weight^T + bias for an input (..., in_features), rounded by rows where the format says so."""
        return traced_call(self, input) if isinstance(input, Proxy) else self.multiply(input, self.bias)

    def multiply(self, input: Any, bias: Any) -> Any:  # noqa: A002 - the same
        """Compute input @ weight^T + bias with another bias than the module's, or none."""
        if not isinstance(input, torch.Tensor) or input.is_nested:
            return nn.functional.linear(input, self.dequantize(), bias)
        needs = torch.is_grad_enabled() and (input.requires_grad or (bias is not None and bias.requires_grad))
        fits = input.shape[-1:] == (self.in_features,) and (bias is None or bias.shape == (self.out_features,))
        if fits and is_served(input, self.weight_dtype, bias):
            if _is_compiling():
                if not needs:
                    return self._product(input, self.qweight, bias)
            else:
                try:
                    if needs:
                        return _Recorded.apply(input, bias, self.qweight, self.scale, self)
                    return self._product(input, promised(self.qweight), bias)
                except REFUSALS:  # torch takes it, or has an error of its own for it
                    pass
        # Where torch records it, the weight is kept for the backward pass by its elements, and not in 16 bits.
        is_kept = needs and not (_is_compiling() or is_transformed())
        return nn.functional.linear(input, self.weight if is_kept else self.dequantize(), bias)

    def _product(self, x: Any, qweight: Any, bias: Any) -> Any:
        options: dict[str, Any] = {"by_kernel": self.has_kernel}
        if self._activation_format != WIDE:
            options["activation_format"] = self._activation_format
        return format_of(self.format).product(x, qweight, self.scale, bias, self.out_features, **options)

    @property
    def activation_format(self) -> str:
        """Return what inputs are multiplied as, such as "16-bit" or "auto", as `linear` of a packed weight has it.

        It may be set, of a layer whose format is "nvfp4rows" or "mxfp4rows".
        """
        return self._activation_format

    @activation_format.setter
    def activation_format(self, asked: str) -> None:
        if isinstance(format_of(self.format), PackedFormat) or asked != WIDE:
            check_format(asked, self.format)
        vars(self).pop("_activation_format", None)
        if asked != WIDE:
            vars(self)["_activation_format"] = asked

    @property
    def shape(self) -> tuple[int, int]:
        """Return (out_features, in_features)."""
        return self.out_features, self.in_features

    @property
    def weight(self) -> Any:
        """Return what elements and factors stand for, as a tensor that computes it where it is used."""
        return _Widened(self)

    @weight.setter
    def weight(self, value: Any) -> None:  # noqa: ARG002 - whatever it is
        _refuse(self)

    def dequantize(self) -> Any:
        """Return a new tensor (out_features, in_features) of `weight_dtype`: what elements and factors stand for."""
        return format_of(self.format).widen(self.qweight, self.scale, self.weight_dtype, self.held)

    @torch.no_grad()
    def requantize(self, weight: Any) -> None:
        """Hold another weight, rounded anew: `layer.requantize(layer.dequantize() + delta)` merges an adapter.

        The buffers are written in place, so that what was compiled or captured has the new values.

        Args:
            weight: (out_features, in_features), of any floating-point type.

        Raises:
            OperandError: it is no tensor, is sparse, or on the meta device.
            ShapeError: it has another shape.
        """
        check_tensor("requantize", "weight", weight, has_memory=True)
        shape, dtype = self.held
        if tuple(weight.shape) != shape:
            raise errors.ShapeError(f"requantize: got a weight {tuple(weight.shape)}; expected {shape}, as it is held")
        qweight, scale = format_of(self.format).narrow(weight.detach().to(dtype))
        self.qweight.copy_(qweight)
        self.scale.copy_(scale)

    def register_parameter(self, name: str, param: Any) -> None:
        """Register a parameter, as nn.Module does; `weight` can be none.

        Raises:
            ReadOnlyError: it is the weight.
        """
        if name == "weight":
            _refuse(self)
        super().register_parameter(name, param)

    def extra_repr(self) -> str:
        """Return what nn.Linear says of itself, and the format."""
        activations = "" if self._activation_format == WIDE else f", activation_format={self._activation_format!r}"
        return f"{super().extra_repr()}, format={self.format!r}{activations}"

    def ask(self) -> None:
        """Ask the wheel that is installed here for a kernel that rounds inputs."""
        self.has_kernel = format_of(self.format).has_kernel(self.in_features, self.weight_dtype)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: Any, missing: Any, unexpected: Any, failed: Any
    ) -> None:
        """Take a wide weight, or elements of this format."""
        wide, given = (state_dict.get(f"{prefix}{end}") for end in ("weight", "qweight"))
        if isinstance(wide, torch.Tensor) and given is None:
            qweight, scale = format_of(self.format).narrow(wide.detach().to(self.held.dtype))
            state_dict |= {f"{prefix}qweight": qweight, f"{prefix}scale": scale}
            del state_dict[f"{prefix}weight"]
            local_metadata = {**local_metadata, STATED: self.stated}
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, failed)


def quantized_state(linear: Any, name: str, weight: Any, qweight: Any, scale: Any) -> dict[str, Any]:
    """Return the attributes by which a QuantizedLinear differs from the Linear in whose place it is.

    Args:
        linear: the Linear, which is not changed.
        name: of the format.
        weight: its weight, whose element type results keep.
        qweight: the elements of the weight in the format.
        scale: their factors.
    """
    return {
        "_parameters": {key: x for key, x in linear._parameters.items() if key != "weight"},  # noqa: SLF001
        "_buffers": {**linear._buffers, "qweight": qweight, "scale": scale},  # noqa: SLF001
        "format": name,
        "weight_dtype": weight.dtype,
        "has_kernel": format_of(name).has_kernel(weight.shape[1], weight.dtype),
    }


def _refuse(layer: QuantizedLinear) -> None:
    raise errors.ReadOnlyError(
        f"the weight of a QuantizedLinear of {layer.format} is held in that alone, and is not written; merge adapters "
        "before quantize, or call requantize(layer.dequantize() + delta) of the layer"
    )


class _Recorded(torch.autograd.Function):
    """The product, with gradients of input and bias: those of torch's product with what the weight stands for."""

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any, qweight: Any, scale: Any, layer: QuantizedLinear) -> Any:
        """Compute the product of an input (..., in_features)."""
        ctx.save_for_backward(qweight, scale)
        ctx.format, ctx.held = layer.format, layer.held
        return layer._product(x, qweight, bias)  # noqa: SLF001

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradients of the input and the bias."""
        qweight, scale = ctx.saved_tensors
        of_x = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = torch.matmul(gradient, format_of(ctx.format).widen(qweight, scale, gradient.dtype, ctx.held))
        if ctx.needs_input_grad[1]:
            of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0)
        return of_x, of_bias, None, None, None


class _Widened(torch.Tensor):
    """The weight of a QuantizedLinear as other code sees it, or a view of it: of 16 bits, computed where it is used."""

    layer: QuantizedLinear
    read: Callable[[], Any]

    @staticmethod
    def __new__(cls: Any, layer: QuantizedLinear, read: Any = None, like: Any = None) -> Any:
        """Make one of a layer, or of what `read` gives, whose sizes and strides `like` has."""
        like = torch.empty(layer.out_features, layer.in_features, device="meta") if like is None else like
        made = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - what torch has for tensors of others
            cls, like.shape, strides=like.stride(), dtype=layer.weight_dtype, device=layer.qweight.device
        )
        made.layer, made.read = layer, layer.dequantize if read is None else read
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        """Return what the tensor stands for."""
        return repr(self.read())

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse other memory, as `weight.data = ...` gives; results are no tensors of this class."""
        if func == torch.Tensor.data.__set__ and isinstance(args[0], _Widened):  # type: ignore[attr-defined]
            _refuse(args[0].layer)
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch's own subclasses do it
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse what would write the weight; compute all else of what it stands for, views where they are used."""
        kwargs = kwargs or {}
        for number, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - nothing public tells a write
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                tree_map_only(_Widened, lambda x: _refuse(x.layer), value)
        if func.is_view and isinstance(args[0], _Widened):
            return _view(func, args[0], args[1:], kwargs)
        args, kwargs = tree_map_only(_Widened, lambda x: x.read(), (args, kwargs))
        return func(*args, **kwargs)


def _view(func: Any, base: _Widened, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a view of what a layer's weight stands for, which is not written either, or a list of such."""
    place = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device="meta")
    found = func(place, *rest, **kwargs)
    if isinstance(found, torch.Tensor):
        return _Widened(base.layer, lambda: func(base.read(), *rest, **kwargs), found)

    def part(number: int) -> Any:
        return func(base.read(), *rest, **kwargs)[number]

    return [_Widened(base.layer, partial(part, number), like) for number, like in enumerate(found)]
