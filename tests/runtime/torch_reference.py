"""What the package's functions compute, by torch on any device: in float32, rounded once; and a package that does."""

from __future__ import annotations

import itertools
import math
from importlib import import_module

import torch
from torch.nn import functional

ACTIVATIONS = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


def wide(tensor):
    """Return a tensor in float32, or float64 where it is of it."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def random_tensor(*shape, dtype=torch.bfloat16, grad=False):
    return torch.randn(shape).to(dtype).requires_grad_(grad)


def give(values, dtype, out):
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if out is None:
        return values.to(dtype).contiguous()
    return out.copy_(values)


def linear(
    x, weight, bias=None, *, activation=None, scale_x=None, scale_w=None, residual=None, out=None, out_dtype=None, **_
):
    if scale_x is not None and scale_x.shape[-1] > 1:
        (x, weight), scale_x = times_blocks(x, weight, scale_x, scale_w), None
        out_dtype = out_dtype or torch.bfloat16
    sums = wide(x).detach() @ wide(weight).detach().t()
    if scale_x is not None:
        sums = sums * scale_x.reshape(*sums.shape[:-1], 1) * scale_w.reshape(1, -1)
    sums = sums if bias is None else sums + bias.detach()
    values = ACTIVATIONS[activation](sums)
    values = values if residual is None else values + residual.detach()
    return give(values, out_dtype or (torch.bfloat16 if scale_x is not None else x.dtype), out)


def times_blocks(x, weight, scale_x, scale_w):
    """Multiply x by factors of 128 columns, and a weight, or a stack, by those of 128 x 128 elements."""
    x = x.float() * scale_x.repeat_interleave(128, -1)[..., : x.shape[-1]]
    spread = scale_w.repeat_interleave(128, -2).repeat_interleave(128, -1)
    return x, weight.float() * spread[..., : weight.shape[-2], : weight.shape[-1]]


def linear_many(x, weights, biases, *, out):
    for weight, bias, result in zip(weights, biases, out, strict=True):
        linear(x, weight, bias, out=result)


def gated_linear(
    x,
    weight,
    bias=None,
    *,
    activation="silu",
    interleaved=False,
    out=None,
    out_dtype=None,
    scale_x=None,
    scale_w=None,
    **_,
):
    weight = torch.cat(weight) if isinstance(weight, (list, tuple)) else weight
    sums = x.float() @ weight.float().t()
    if scale_x is not None:
        sums = sums * scale_x.reshape(*sums.shape[:-1], 1) * scale_w.reshape(1, -1)
    sums = sums if bias is None else sums + bias
    gate, line = (sums[..., ::2], sums[..., 1::2]) if interleaved else sums.chunk(2, -1)
    return give(ACTIVATIONS[activation](gate) * line, out_dtype or x.dtype, out)


def packed_sums(x, weight, bias, scale, weight_format, columns):
    """Multiply by the numbers that packed bytes stand for: by the package's own `dequantize`, which is tested apart."""
    held = PACKING["PackedWeight"](weight, scale, weight_format, (columns, x.shape[-1]), x.dtype)
    sums = wide(x).detach() @ PACKING["dequantize"](held, torch.float32).t()
    return sums if bias is None else sums + bias.detach()


def packed_linear(x, weight, bias=None, *, weight_format, columns, scale_w=None, out=None, out_dtype=None, **_):
    return give(packed_sums(x, weight, bias, scale_w, weight_format, columns), out_dtype or x.dtype, out)


def packed_gated_linear(
    x,
    gate,
    up,
    bias=None,
    *,
    weight_format,
    columns,
    activation="silu",
    scale_gate=None,
    scale_up=None,
    out=None,
    out_dtype=None,
    **_,
):
    biases = (None, None) if bias is None else bias.chunk(2)
    both = zip((gate, up), biases, (scale_gate, scale_up), strict=True)
    value, line = (packed_sums(x, *each, weight_format, columns) for each in both)
    return give(ACTIVATIONS[activation](value) * line, out_dtype or x.dtype, out)


def packed_grouped_linear(
    x, weight, offsets, bias=None, *, weight_format, columns, index=None, scale_w=None, out=None, out_dtype=None, **_
):
    """Compute groups; rows that are in none are NaN, as nothing writes them."""
    rows = x if index is None else x[index.long()]
    ends = [0, *offsets.tolist()][-len(weight) - 1 :]
    values = rows.new_full((len(rows), columns), math.nan) if out is None else out
    for group, (start, end) in enumerate(itertools.pairwise(ends)):
        scale = None if scale_w is None else scale_w[group].reshape(-1)
        of_bias = None if bias is None else bias[group]
        sums = packed_sums(rows[start:end], weight[group], of_bias, scale, weight_format, columns)
        values[start:end] = sums.to(values.dtype)
    return values if out is not None else values.to(out_dtype or x.dtype)


PACKING = {}
"""What the package has for packed weights that `stand_in` stands in for."""


def matmul(a, b, *, out=None, **_):
    return give(torch.matmul(wide(a).detach(), wide(b).detach()), a.dtype, out)


def rows_of(y, dtype, out_dtype, z=None):
    """Return a result in a type, with the sum in front of it, and behind it the factors of rows of 8 bits."""
    added = [] if z is None else [z]
    if out_dtype is None:
        return (y.to(dtype), *added) if added else y.to(dtype)
    out_dtype = getattr(torch, out_dtype) if isinstance(out_dtype, str) else out_dtype
    largest = 127.0 if out_dtype == torch.int8 else 448.0
    scale = y.abs().amax(-1, keepdim=True) / largest
    scale = torch.where(scale == 0, 1.0, scale)
    values = (y / scale).clamp(-largest, largest)
    return (values.round() if out_dtype == torch.int8 else values).to(out_dtype), *added, scale


def rms_norm(
    x, weight=None, *, eps=1e-6, residual=None, weight_offset=0.0, round_norm=False, out_dtype=None, scale=None
):
    z = sum_of(x, residual)
    normed = functional.rms_norm(z.float(), (x.shape[-1],), None, eps)
    normed = normed.to(x.dtype).float() if round_norm else normed
    y = normed if weight is None else normed * (weight.float() + weight_offset)
    return rows_of(y, x.dtype, out_dtype, None if residual is None else z)


def sum_of(x, residual):
    """Add a residual, which the package takes where it is one matrix in memory."""
    if residual is None:
        return x
    residual.detach().view(-1, residual.shape[-1])  # raises RuntimeError where its leading dimensions do not join
    assert residual.stride(-1) == 1, residual.stride()
    return (x.float() + residual.float()).to(x.dtype)


def layer_norm(x, weight=None, bias=None, *, eps=1e-5, residual=None, out_dtype=None, scale=None):
    z = sum_of(x, residual)
    wide_weight, wide_bias = (None if y is None else y.float() for y in (weight, bias))
    y = functional.layer_norm(z.float(), (x.shape[-1],), wide_weight, wide_bias, eps)
    return rows_of(y, x.dtype, out_dtype, None if residual is None else z)


def silu_mul(x, *, interleaved=False, out_dtype=None, scale=None):
    gate, line = (x[..., ::2], x[..., 1::2]) if interleaved else x.float().chunk(2, -1)
    return rows_of(functional.silu(gate.float()) * line.float(), x.dtype, out_dtype)


def gelu_tanh_mul(x, *, interleaved=False, out_dtype=None, scale=None):
    gate, line = x.float().chunk(2, -1)
    return rows_of(functional.gelu(gate, approximate="tanh") * line, x.dtype, out_dtype)


def rotary(x, cos, sin, *, keys=None, interleaved=False, rotary_dim=None, **of_cache):
    """Turn (batch, tokens, heads, dim) by angles (batch or 1, tokens, dim), both halves of which are the same.

    Keys, turned likewise, and values go to caches (batch, heads, length, dim).
    """
    if keys is not None:
        for heads in (keys, of_cache["values"]):  # the package copies an x that is not in one piece, and no other
            assert heads.flatten(0, -3).data_ptr() == heads.data_ptr(), "tokens of several strides"
        position = of_cache["cache_position"]
        turned = rotary(keys, cos, sin, rotary_dim=rotary_dim)
        of_cache["key_cache"].index_copy_(2, position, turned.transpose(1, 2))
        of_cache["value_cache"].index_copy_(2, position, of_cache["values"].transpose(1, 2))
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    assert cos.shape[-1] == dim
    first, second = x[..., :dim].float().chunk(2, -1)
    cos, sin = (y.float()[..., None, : dim // 2] for y in (cos, sin))
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
    return torch.cat([turned, x[..., dim:]], -1)


def quantize(x, dtype="float8_e4m3fn", granularity="row", *, scale=None):
    if granularity == "block":
        values, found = rows_of(x.float().unflatten(-1, (-1, 128)), x.dtype, dtype)
        return values.flatten(-2), found.squeeze(-1)
    return rows_of(x.float(), x.dtype, dtype)


def runs_of_k(x, weight, offsets):
    ends = [0, *offsets.tolist()]
    return torch.stack([wide(x)[:, a:b] @ wide(weight)[:, a:b].t() for a, b in itertools.pairwise(ends)])


def grouped_linear(
    x,
    weight,
    offsets,
    bias=None,
    *,
    index=None,
    gate=None,
    scale_x=None,
    scale_w=None,
    interleaved=False,
    out=None,
    out_dtype=None,
    **_,
):
    """Compute groups; rows that are in none are NaN, as nothing writes them."""
    weight = torch.stack([x.detach() for x in weight]) if isinstance(weight, (list, tuple)) else weight
    if weight.ndim == 2:
        return give(runs_of_k(x.detach(), weight.detach(), offsets), x.dtype, out)
    if scale_x is not None and scale_w.ndim == 3:
        x, weight = times_blocks(x, weight, scale_x, scale_w)
    elif scale_x is not None:
        x, weight = x.float() * scale_x, weight.float() * scale_w[..., None]
    rows = wide(x).detach() if index is None else wide(x).detach()[index.long()]
    ends = offsets.tolist()
    starts = [0, *ends] if len(ends) == len(weight) else ends
    halves = weight.shape[1] // (1 if gate is None else 2)
    values = torch.full((len(rows), halves), math.nan, dtype=rows.dtype) if out is None else out
    for group, (start, end) in enumerate(itertools.pairwise(starts)):
        sums = rows[start:end] @ wide(weight).detach()[group].t() + (0 if bias is None else bias.detach()[group])
        if gate is not None:
            first, second = (sums[:, ::2], sums[:, 1::2]) if interleaved else sums.chunk(2, -1)
            sums = ACTIVATIONS[gate](first) * second
        values[start:end] = sums.to(values.dtype)
    return values if out is not None else values.to(out_dtype or x.dtype)


PROMISED = []
"""Of each call of a package that `stand_in` stands in for, whether its weight was promised to be constant."""

MODES = []
"""Of each such call, what was asked of its results beside their values."""


def stand_in(package, monkeypatch):
    """Have torch compute on the CPU what a package's functions would on a GPU; give the names of what is called."""
    names = []
    import_module(f"{package.__name__}.torch")

    constant = import_module(f"{package.__name__}._constant").ConstantWeight

    def bare(operand):
        return operand.tensor if isinstance(operand, constant) else operand

    def standing_in(name):
        def function(*operands, **options):
            names.append(name)
            weights = operands[1] if isinstance(operands[1], (list, tuple)) else [operands[1]]
            PROMISED.append(all(isinstance(x, constant) and x.is_kept for x in weights))
            MODES.append(tuple(mode for mode in ("deterministic", "batch_invariant") if options.get(mode)))
            plain = [[bare(y) for y in x] if isinstance(x, (list, tuple)) else bare(x) for x in operands]
            return globals()[name](*plain, **options)

        return function

    PROMISED.clear()
    MODES.clear()
    monkeypatch.setattr(package._operations, "constant", lambda weight: constant(weight, weight.data_ptr()))

    def norm(name):
        def function(*operands, **options):
            names.append(name)
            return globals()[name](*operands, **options)

        return function

    PACKING.update(vars(import_module(f"{package.__name__}._torch_packed")))
    for name in (
        "linear",
        "linear_many",
        "gated_linear",
        "matmul",
        "grouped_linear",
        "packed_linear",
        "packed_gated_linear",
        "packed_grouped_linear",
    ):
        monkeypatch.setattr(package._operations, name, standing_in(name))
    for name in ("rms_norm", "layer_norm", "silu_mul", "gelu_tanh_mul", "rotary", "quantize"):
        monkeypatch.setattr(package._rows, name, norm(name))
    monkeypatch.setattr(package._torch_result, "DEVICES", ("cpu", "cuda", "meta"))
    monkeypatch.setattr(package._torch_modules, "DEVICES", ["cpu"])
    monkeypatch.setattr(package._torch_modules, "_why_not_here", lambda device: None)
    torch._dynamo.reset()
    return names
