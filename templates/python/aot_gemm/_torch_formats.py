"""The narrow formats of weights, by name: how a weight is rounded, and how it, or a mixture's experts, multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from . import _row_table, _torch_activations, errors
from ._enumerations import SCALE_BLOCK
from ._packed_folder import PACKED_FORMATS
from ._torch_experts import PackedExperts
from ._torch_grouped import grouped_linear
from ._torch_modules import ROWS, why_not_planned
from ._torch_packed import DTYPES, PackedWeight, dequantize, pack, unpack
from ._torch_packed_groups import multiply_groups
from ._torch_packed_join import joined_bytes, quantum_of
from ._torch_packed_linear import direct
from ._torch_prepare import quantize_by_blocks, quantize_by_rows, quantize_square_blocks, quantize_weight
from ._torch_products import dispatch, linear
from ._torch_rounding import rounded
from ._torch_rows import quantize
from ._weight_format import PackedLayout, WeightFormat


class Held(NamedTuple):
    """What a narrow weight is, where its bytes do not tell."""

    shape: tuple[int, ...]
    """(n, k); of a stack of packed weights (experts, n, k)."""
    dtype: torch.dtype
    """Of int4's factors, and so of the weight that it stands for, unless that is wider."""


class Stack(Protocol):
    """The weights of a mixture's experts, as `ExpertWeights` of `_torch_quantized_experts.py` holds them."""

    qweight: Any
    scale: Any
    shape: tuple[int, ...]
    has_kernel: bool
    """Whether the package has a kernel that rounds their inputs."""


@dataclass(frozen=True)
class RowFormat:
    """Elements of 8 bits, with one factor for each row of the weight and one for each row of the input.

    A format of another kind, as of the weight alone, has these methods too; nothing else knows of formats.
    """

    name: str
    dtype: torch.dtype

    def why_not(self, n: int, k: int, dtype: torch.dtype, *, bias: bool, **groups: Any) -> str | None:
        """Say why this wheel has no tuned products of a weight (n, k) with results of `dtype`; None where it has.

        Args:
            n: rows of the weight, with a gate of one half.
            k: columns of it.
            dtype: of inputs and results.
            bias: whether one is added.
            groups: of experts what `plan` has of groups and gates beside these.
        """
        return why_not_planned(n, k, self.dtype, scales="vector", out_dtype=dtype, bias=bias, **groups)

    def narrow(self, weight: Any) -> tuple[Any, Any]:
        """Round a weight (n, k): return its elements (n, k), and their factors (n, 1) in float32."""
        return quantize_weight(weight, self.dtype)

    def widen(self, qweight: Any, scale: Any, dtype: torch.dtype, held: Held | None = None) -> Any:
        """Return what elements and factors stand for, in `dtype`; of a stack too."""
        del held
        return (qweight.float() * scale.reshape(*qweight.shape[:-1], 1)).to(dtype)

    def retyped(self, qweight: Any, scale: Any, held: Held, dtype: torch.dtype) -> Any:
        """Return the elements of a weight that is of another type from now on."""
        del scale, held, dtype
        return qweight

    def has_kernel(self, cols: int, dtype: torch.dtype) -> bool:
        """Say whether the package has a kernel, other than the fallback, that rounds inputs (..., cols) of `dtype`."""
        return self._rounds(cols, dtype, "row")

    def _rounds(self, cols: int, dtype: torch.dtype, granularity: str) -> bool:
        options = {"out_dtype": self.dtype, "granularity": granularity}
        try:
            tiers = [_row_table.plan_rows("quantize", m, cols, dtype, **options).tier for m in ROWS]
        except errors.AotGemmError:
            return False
        return "fallback" not in tiers

    def product(self, x: Any, qweight: Any, scale: Any, bias: Any, n: int, *, by_kernel: bool) -> Any:
        """Compute x @ weight^T + bias of an input (..., k), whose rows the package's kernel rounds, or torch."""
        del n
        rows, scale_x = self._inputs(x, by_kernel=by_kernel)
        return linear(rows, qweight, bias, scale_x=scale_x, scale_w=scale, out_dtype=x.dtype)

    def _inputs(self, x: Any, *, by_kernel: bool) -> tuple[Any, Any]:
        """Round an input (..., k): return its elements, and their factors."""
        return quantize(x, self.dtype) if by_kernel else quantize_by_rows(x, self.dtype)

    # Experts: a stack (experts, n, k) of weights.

    @property
    def quantum(self) -> int:
        """Return of how many rows a weight in front of another is a multiple, where both are joined."""
        return 1

    def joined(self, weights: list[tuple[Any, int]]) -> Any:
        """Return the elements of weights, rows behind rows, of those of each, and its rows."""
        return torch.cat([elements for elements, _ in weights])

    def factors_in_stack(self, scale: Any, rows: int) -> Any:
        """Return the factors of a weight as a stack has them of each: one a row."""
        return scale.reshape(rows)

    def product_of_groups(
        self, x: Any, experts: Stack, offsets: Any, bias: Any, index: Any = None, gate: str | None = None
    ) -> Any:
        """Compute x @ weight^T + bias of rows in the order of the experts, or of those that an index names.

        Args:
            x: (rows, k), or with an index (tokens, k).
            experts: the weights.
            offsets: where the rows of each end.
            bias: (experts, n), or None.
            index: as `grouped_linear` has it.
            gate: the same.
        """
        rows, scale_x = self._inputs(x, by_kernel=experts.has_kernel)
        scales = {"scale_x": scale_x, "scale_w": experts.scale}
        return grouped_linear(rows, experts.qweight, offsets, bias, index=index, gate=gate, out_dtype=x.dtype, **scales)


@dataclass(frozen=True)
class BlockFormat(RowFormat):
    """e4m3 with a factor for each 128 by 128 elements of the weight and each 128 columns of a row of the input.

    Checkpoints have it that are quantised as DeepSeek's. Its methods are those of RowFormat.
    """

    def why_not(self, n: int, k: int, dtype: torch.dtype, *, bias: bool, **groups: Any) -> str | None:
        """Say why this wheel has no tuned products of a weight (n, k); a Linear's bias is added by torch."""
        return why_not_planned(n, k, self.dtype, scales="block", out_dtype=dtype, bias=bias and bool(groups), **groups)

    def narrow(self, weight: Any) -> tuple[Any, Any]:
        """Round a weight (n, k): return its elements (n, k), and factors (ceil(n / 128), ceil(k / 128)) in float32."""
        return quantize_square_blocks(weight)

    def widen(self, qweight: Any, scale: Any, dtype: torch.dtype, held: Held | None = None) -> Any:
        """Return what elements and factors stand for, in `dtype`; of a stack too."""
        del held
        n, k = qweight.shape[-2:]
        of_rows = scale.repeat_interleave(SCALE_BLOCK, -2)[..., :n, :]
        return (qweight.float() * of_rows.repeat_interleave(SCALE_BLOCK, -1)[..., :k]).to(dtype)

    def has_kernel(self, cols: int, dtype: torch.dtype) -> bool:
        """Say whether the package has a kernel, other than the fallback, that rounds inputs (..., cols) of `dtype`."""
        return self._rounds(cols, dtype, "block")

    def product(self, x: Any, qweight: Any, scale: Any, bias: Any, n: int, *, by_kernel: bool) -> Any:
        """Compute x @ weight^T + bias of an input (..., k)."""
        found = super().product(x, qweight, scale, None, n, by_kernel=by_kernel)
        return found if bias is None else found + bias

    def _inputs(self, x: Any, *, by_kernel: bool) -> tuple[Any, Any]:
        """Round an input (..., k): return its elements, and a factor for each 128 columns of a row."""
        return quantize(x, self.dtype, "block") if by_kernel else quantize_by_blocks(x, self.dtype)

    @property
    def quantum(self) -> int:
        """Return of how many rows a weight in front of another is a multiple: of a block's."""
        return SCALE_BLOCK

    def factors_in_stack(self, scale: Any, rows: int) -> Any:
        """Return the factors of a weight as a stack has them of each: as they are."""
        del rows
        return scale


@dataclass(frozen=True)
class PackedFormat:
    """A weight that is packed for `packed_linear`, beside inputs as they are; its methods are those of RowFormat."""

    name: str
    form: WeightFormat
    dtype: torch.dtype = torch.uint8
    """Of the bytes."""

    def why_not(self, n: int, k: int, dtype: torch.dtype, *, bias: bool, **groups: Any) -> str | None:
        """Say why this wheel has no tuned products of a weight (n, k); None where it has."""
        try:
            self.form.check(n, k)
        except errors.FormatError as error:
            return str(error)
        return why_not_planned(n, k, dtype, weight_dtype=self.form.name, bias=bias, **groups)

    def narrow(self, weight: Any) -> tuple[Any, Any]:
        """Round and pack a weight (n, k): return its bytes, and float32 factors, none where the format has none."""
        n, k = weight.shape
        device = weight.device
        if device.type == "meta":
            count = 0 if not self.form.has_row_factors else 1 if self.form.group else n
            data = torch.empty(PackedLayout(self.form).shape(n, k), dtype=self.dtype, device=device)
            return data, torch.empty(count, device=device)
        dtype = weight.dtype if weight.dtype in DTYPES else torch.bfloat16
        codes, factors, zeros, scale = rounded(self.form, weight, dtype)
        packed = pack(codes, factors, zeros, format=self.form.name, scale=scale)
        return packed.data, torch.empty(0, device=device) if packed.scale is None else packed.scale

    def widen(self, qweight: Any, scale: Any, dtype: torch.dtype, held: Held | None = None) -> Any:
        """Return what the bytes stand for, in `dtype`."""
        return dequantize(self._packed(qweight, scale, held), dtype)

    def retyped(self, qweight: Any, scale: Any, held: Held, dtype: torch.dtype) -> Any:
        """Return the bytes of a weight that is of another type from now on: of int4 with factors of that."""
        if self.form.factor_bits != 16 or dtype == held.dtype or qweight.device.type == "meta":
            return qweight
        parts = unpack(self._packed(qweight, scale, held))
        return pack(parts.codes, parts.factors.to(dtype), parts.zeros, format=self.form.name).data

    def has_kernel(self, cols: int, dtype: torch.dtype) -> bool:
        """Say that inputs need no rounding."""
        del cols, dtype
        return True

    def product(
        self,
        x: Any,
        qweight: Any,
        scale: Any,
        bias: Any,
        n: int,
        *,
        by_kernel: bool,
        activation_format: str = _torch_activations.WIDE,
    ) -> Any:
        """Compute x @ weight^T + bias of an input (..., k), which is rounded where that is asked for."""
        del by_kernel
        factors = scale if self.form.has_row_factors else None
        options: dict[str, Any] = {"weight_format": self.form.name, "columns": n}
        if activation_format != _torch_activations.WIDE:
            options["activation_format"] = activation_format
        return dispatch("packed_linear", direct, (x, qweight, bias, factors), None, options)

    @property
    def quantum(self) -> int:
        """Return of how many rows a weight in front of another is a multiple: of those that are packed together."""
        return quantum_of(self.form)

    def joined(self, weights: list[tuple[Any, int]]) -> Any:
        """Return the bytes of weights, rows behind rows."""
        return joined_bytes(self.form, weights)

    def factors_in_stack(self, scale: Any, rows: int) -> Any:
        """Return the factors of a weight as a stack has them of each: one a row, or none."""
        return scale.expand(rows) if self.form.has_row_factors else scale

    def product_of_groups(
        self, x: Any, experts: Stack, offsets: Any, bias: Any, index: Any = None, gate: str | None = None
    ) -> Any:
        """Compute x @ weight^T + bias of rows in the order of the experts; gates there are none."""
        del gate
        factors = experts.scale if self.form.has_row_factors else None
        of_groups = x, experts.qweight, offsets, bias, index, factors
        return multiply_groups(*of_groups, self.form.name, experts.shape[1])

    def _packed(self, qweight: Any, scale: Any, held: Held | None) -> PackedWeight | PackedExperts:
        if held is None:
            raise errors.OperandError(f"the bytes of a {self.name} weight do not tell its shape; pass it")
        kind: Any = PackedWeight if len(held.shape) == 2 else PackedExperts
        packed: PackedWeight | PackedExperts = kind(
            qweight, scale if self.form.has_row_factors else None, self.form.name, held.shape, held.dtype
        )
        return packed


FORMATS: dict[str, RowFormat | PackedFormat] = {
    "fp8": RowFormat("fp8", torch.float8_e4m3fn),
    "int8": RowFormat("int8", torch.int8),
    "fp8_block": BlockFormat("fp8_block", torch.float8_e4m3fn),
    **{name: PackedFormat(name, form) for name, form in PACKED_FORMATS.items()},
}
"""By the name that `quantize` takes."""


def format_beside(name: Any, activation_format: Any) -> RowFormat | PackedFormat:
    """Return the format by its name, of NVFP4 and MXFP4 in the layout that the activations' format asks for.

    Raises:
        UnsupportedError: there is none of that name, or activations beside it stay as they are.
    """
    found = format_of(name)
    if activation_format == _torch_activations.WIDE:
        return found
    rows = found.form.rows if isinstance(found, PackedFormat) else None
    if rows is None:
        raise errors.UnsupportedError(
            f"quantize: activation_format is {errors.show(activation_format)}, which weights of {found.name} have not; "
            'expected "16-bit", or the format "nvfp4" or "mxfp4"'
        )
    return FORMATS[rows.name]


def format_of(name: Any) -> RowFormat | PackedFormat:
    """Return a format by its name.

    Raises:
        UnsupportedError: there is none of that name.
    """
    found = FORMATS.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(map(repr, FORMATS))
        raise errors.UnsupportedError(f"quantize: the format is {errors.show(name)}; expected one of {known}")
    return found
