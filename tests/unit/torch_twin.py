"""Every operation by torch on the CPU, in float32 step by step: a second statement of what aot.core.reference says."""

from __future__ import annotations

import numpy as np
import torch

from aot.core.element import ElementType
from aot.core.operands import element_of
from aot.core.signature import Argument
from aot.core.weight_format import TILE_ROWS
from aot.core.weight_packing import unpack
from aot.core.weight_values import weight_values

F = torch.nn.functional
ACTIVATIONS = {
    "relu": F.relu,
    "gelu": lambda x: x * torch.special.ndtr(x),  # torch's own gives NaN for infinity on a CPU, and infinity on a GPU
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": lambda x: F.gelu(x, approximate="tanh"),
}
E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""The values of codes without a sign. Source: Open Compute Project, Microscaling Formats (MX), table 5."""
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def dtype_of(element):
    return torch.float32 if element is ElementType.TFLOAT32 else getattr(torch, element.value)


def tensor_of(element, bits):
    """Return bits, an array of unsigned integers, as torch's tensor of the element type; e2m1 as its values."""
    if element is ElementType.E2M1:  # torch has it as two elements in one, with which nothing can be computed
        return torch.from_numpy(np.take(E2M1, bits & 7) * np.where(bits & 8, -1, 1))
    signed = np.ascontiguousarray(bits).view(f"i{bits.itemsize}")
    return torch.from_numpy(signed.copy()).view(dtype_of(element))


def bits_of(tensor):
    size = tensor.element_size()
    return tensor.contiguous().view(SIGNED[size]).numpy().view(f"u{size}")


def _cast(values, element):
    """Round float32 values as a kernel does: FP8 saturates, infinities too."""
    if element is ElementType.E4M3:
        values = values.clamp(-448, 448)
    return values.to(dtype_of(element))


def _narrow(x, factors, block):
    """Return an operand whose blocks along k are multiplied by their factors."""
    return x.float() * factors.float().repeat_interleave(block, 1)[:, : x.shape[1]]


def _blocks(a, b, scale_a, scale_b):
    total = torch.zeros(len(a), len(b))
    for i in range(scale_a.shape[1]):
        taken = slice(128 * i, 128 * i + 128)
        rows = scale_b[:, i].repeat_interleave(128)[: len(b)]
        total += (a[:, taken] @ b[:, taken].T) * scale_a[:, i, None] * rows
    return total


def _halves(x, is_interleaved):
    """Return the columns of the gate and the linear ones."""
    return (x[:, 0::2], x[:, 1::2]) if is_interleaved else x.chunk(2, dim=1)


def _unpacked(operation, bits):
    """Return a packed weight's values without its float32 factors, (rows, k), or those of a gate's two.

    Where nothing else tells how many rows there are, all of the last tile are among them.
    """
    form, k, count = operation.b.weight, bits[Argument.A].shape[1], operation.num_rows_of_b(1)
    known = [bits[x].size // count for x in (Argument.BIAS, Argument.SCALE_B) if x in bits]
    found = []
    for packed in np.split(np.ascontiguousarray(bits[Argument.B]), count):
        parts = unpack(form, packed, min(known) if form.in_rows else len(packed) * TILE_ROWS, k)
        found.append(weight_values(form, parts, operation.a.element)[: min(known, default=None)])
    return torch.from_numpy(np.concatenate(found)).float()


def compute(  # noqa: C901, PLR0912 - a case for each thing that an operation may have
    operation, bits, *, is_interleaved=False, activation=None
):
    """Return D's bits (m, n).

    Args:
        operation: what is computed.
        bits: of each operand as it lies in memory, (rows, columns).
        is_interleaved: whether a gate's rows alternate with the linear ones.
        activation: another one than the operation's, as of a kernel that is wrong.
    """
    tensors = {x: tensor_of(element_of(operation, x), y) for x, y in bits.items()}
    a, b = tensors[Argument.A], tensors[Argument.B]
    if operation.b.weight is not None:
        b = _unpacked(operation, bits)
    if operation.d is ElementType.INT32:
        return bits_of(a.int() @ b.int().T)  # not torch._int_mm, which is wrong for a k of 1 on some processors
    if operation.a.element is ElementType.INT8:
        total = (a.double() @ b.double().T).float()
    elif operation.types.scaling == "atoms":
        block = operation.a.scale.block_k
        total = _narrow(a, tensors[Argument.SCALE_A], block) @ _narrow(b, tensors[Argument.SCALE_B], block).T
    elif operation.types.scaling == "block":
        total = _blocks(a.float(), b.float(), tensors[Argument.SCALE_A], tensors[Argument.SCALE_B])
    else:
        total = a.float() @ b.float().T
    if operation.types.scaling == "vector":
        total = total * tensors.get(Argument.SCALE_A, 1.0) * tensors[Argument.SCALE_B].T
    if operation.types.scales_sum:
        total = total * tensors[Argument.SCALE_D]
    if Argument.BIAS in tensors:
        total = total + tensors[Argument.BIAS].float()
    own = operation.activation or operation.gate
    step = activation or (own.value if own else "")
    if operation.gate is not None:
        gate, linear = _halves(total, is_interleaved)
        total = ACTIVATIONS[step](gate) * linear
    elif step:
        total = ACTIVATIONS[step](total)
    if Argument.RESIDUAL in tensors:
        total = total + tensors[Argument.RESIDUAL].float()
    if Argument.SCALE_D in tensors and not operation.types.scales_sum:
        total = total * tensors[Argument.SCALE_D]
    return bits_of(_cast(total, operation.d))
