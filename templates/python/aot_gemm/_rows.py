"""What stands between products, over tensors that speak DLPack: norms, gates, embeddings, quantisation."""

from __future__ import annotations

import operator
from typing import Any

from . import _products, errors
from ._dtypes import dtype_number
from ._enumerations import INTERLEAVED, ROUNDS_NORM
from ._row_options import check_granularity, element_and_flags, function_number, paired, real, scale_flags, start_flag


def rms_norm(
    x: Any,
    weight: Any = None,
    *,
    eps: float = 1e-6,
    residual: Any = None,
    weight_offset: float = 0.0,
    round_norm: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    residual_out: Any = None,
    scale_out: Any = None,
) -> Any:
    """Compute z / sqrt(mean(z^2) + eps) * (weight + weight_offset) of each row z, as torch.nn.functional.rms_norm.

    All is done in float32, and each result is rounded once, or as `round_norm` says. With a residual z is x + residual,
    rounded to x's type; without, it is x. Work goes to the current stream of x's framework, where a CUDA graph may
    capture it. Which types there are kernels for depends on what the wheel was built for; `plan_rows` says so.

    Args:
        x: (..., cols) in GPU memory, bfloat16 or float16. Where leading dimensions do not join into rows of one stride,
            it is copied first.
        weight: (cols,), its elements adjacent, of x's type; None for ones.
        eps: added to the mean of the squares.
        residual: (..., cols), of x's type, one matrix in memory.
        weight_offset: added to each weight, as Gemma has it: 1.0.
        round_norm: whether a normalised row is rounded to x's type before it is multiplied with the weight, as Llama of
            transformers has it, and most of its models.
        out: (..., cols), written to; allocated where it is not given. It may be x itself where it is of x's type.
        out_dtype: type of the result, as torch, NumPy or JAX have it or by name; by default that of `out`, or x's.
            float8_e4m3fn is divided by scales before it is rounded. "nvfp4" and "mxfp8" are as `quantize` has them.
        scale: the scales of a float8 result, where they are given: float32, one element, or one for each row, (rows,)
            or (..., 1). Of "nvfp4" the tensor's own factor, one element, which has to be given.
        residual_out: (..., cols), what x + residual is written to, as the residual or x itself; allocated by default.
        scale_out: (..., 1) float32, what the scales of a float8 result are written to where they are computed: the
            largest magnitude of each row over 448, or 1 of a row of zeros; allocated where it is not given.

    Returns:
        The result, of the kind of tensor that x is. With a residual or of float8 it is a tuple: the result, then x +
        residual where there is a residual, then the scales of a float8 result, (..., 1) where they are computed.

    Raises:
        DtypeError: an operand is no tensor, or there is no such operation of the element types.
        ShapeError: a shape does not go with that of x.
        StrideError: a residual or what is written is not one matrix in memory; what is written overlaps itself or an
            operand; a weight has gaps.
        DeviceError: an operand is not in GPU memory, or not on the same GPU.
        OperandError: an operand is no plain memory, what is written is read-only, or an operand goes with others.
        GradientError: torch would record a gradient: use torch.no_grad().
        UnsupportedError: this wheel has no kernels for it.
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that this wheel is for.
        CudaError: CUDA failed.
    """
    eps, offset = real("rms_norm", "eps", eps), real("rms_norm", "weight_offset", weight_offset)
    element, flags = element_and_flags("rms_norm", out_dtype)
    flags |= ROUNDS_NORM if round_norm else 0
    found = _products.rms_norm(x, weight, residual, scale, out, residual_out, scale_out, element, flags, eps, offset)
    return paired(found, out_dtype, scale)


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    residual: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    residual_out: Any = None,
    scale_out: Any = None,
) -> Any:
    """Compute (z - mean(z)) / sqrt(var(z) + eps) * weight + bias of each row z, as torch.nn.functional.layer_norm.

    Args:
        x: as `rms_norm` has it.
        weight: as `rms_norm` has it.
        bias: (cols,), its elements adjacent, of x's type; None for zeros.
        eps: added to the variance.
        residual: as `rms_norm` has it.
        out: as `rms_norm` has it.
        out_dtype: as `rms_norm` has it.
        scale: as `rms_norm` has it.
        residual_out: as `rms_norm` has it.
        scale_out: as `rms_norm` has it.

    Returns:
        As `rms_norm`.

    Raises:
        AotGemmError: one of the classes that `rms_norm` lists.
    """
    (element, flags), eps = element_and_flags("layer_norm", out_dtype), real("layer_norm", "eps", eps)
    found = _products.layer_norm(x, weight, bias, residual, scale, out, residual_out, scale_out, element, flags, eps)
    return paired(found, out_dtype, scale)


def silu_mul(
    x: Any,
    *,
    interleaved: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    scale_out: Any = None,
    offsets: Any = None,
    index: Any = None,
    groups: int | None = None,
) -> Any:
    """Compute silu(gate) * linear of the two halves of each row: what follows the one product of SwiGLU's two weights.

    Args:
        x: (..., 2 cols), as `rms_norm` has it: the elements of the gate and then the linear ones, or in turns.
        interleaved: whether element 2 j of a row is of the gate and 2 j + 1 the linear one.
        out: (..., cols), written to; allocated where it is not given. It is not x.
        out_dtype: as `rms_norm` has it.
        scale: as `rms_norm` has it.
        scale_out: as `rms_norm` has it.
        offsets: of "nvfp4" and "mxfp8", as `quantize` has it; so are `index` and `groups`.
        index: as `quantize` has it.
        groups: as `quantize` has it.

    Returns:
        The result, (..., cols); of float8 a tuple of it and its scales.

    Raises:
        AotGemmError: one of the classes that `rms_norm` lists.
    """
    element, flags = element_and_flags("silu_mul", out_dtype)
    flags |= (INTERLEAVED if interleaved else 0) | start_flag("silu_mul", offsets, groups)
    found = _products.silu_mul(x, offsets, index, scale, out, scale_out, element, flags)
    return paired(found, out_dtype, scale)


def gelu_tanh_mul(
    x: Any,
    *,
    interleaved: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    scale_out: Any = None,
    offsets: Any = None,
    index: Any = None,
    groups: int | None = None,
) -> Any:
    """Compute gelu(gate) * linear of the two halves of each row, where gelu is torch's with approximate="tanh": GeGLU.

    Args:
        x: as `silu_mul` has it.
        interleaved: as `silu_mul` has it.
        out: as `silu_mul` has it.
        out_dtype: as `rms_norm` has it.
        scale: as `rms_norm` has it.
        scale_out: as `rms_norm` has it.
        offsets: as `silu_mul` has it; so are `index` and `groups`.
        index: as `quantize` has it.
        groups: as `quantize` has it.

    Returns:
        As `silu_mul`.

    Raises:
        AotGemmError: one of the classes that `rms_norm` lists.
    """
    element, flags = element_and_flags("gelu_tanh_mul", out_dtype)
    flags |= (INTERLEAVED if interleaved else 0) | start_flag("gelu_tanh_mul", offsets, groups)
    found = _products.gelu_tanh_mul(x, offsets, index, scale, out, scale_out, element, flags)
    return paired(found, out_dtype, scale)


def rotary(
    x: Any,
    cos: Any,
    sin: Any,
    *,
    keys: Any = None,
    values: Any = None,
    key_cache: Any = None,
    value_cache: Any = None,
    cache_position: Any = None,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    out: Any = None,
) -> Any:
    """Turn pairs of elements of each head by the angles of its token's position: a rotary position embedding.

    With a and b the two elements of a pair, a becomes a * cos - b * sin, and b becomes b * cos + a * sin, in float32,
    each rounded once. Queries and keys that lie side by side in memory, (tokens, q heads + kv heads, dim), take one
    call. So does what stands in front of attention with a cache: queries are turned to `out`, keys on their way to
    their cache, and values go to theirs as they are.

    Args:
        x: (..., heads, dim) in GPU memory, bfloat16 or float16; the dimensions in front are of tokens, as (batch, seq).
            Where those do not join into one stride, it is copied first. What attention of torch takes as (batch, heads,
            seq, dim) is given as x.transpose(1, 2).
        cos: (positions, rotary_dim / 2), of x's type, with any leading dimensions. Positions are as many as tokens, or
            tokens a multiple: then token i takes the position i modulo positions. A cos of rotary_dim columns, as
            transformers has it, holds each angle twice, in two halves or, `interleaved`, side by side, and one of each
            is read.
        sin: as cos.
        keys: (..., kv heads, dim), with the dimensions in front that x has. With it go the next four.
        values: of the shape of keys.
        key_cache: (batch, kv heads, length, dim), as transformers' caches are, written to: the keys of token i of a
            sequence at the position that cache_position has for i. What no token has stays as it is. Elements of a head
            are adjacent; heads of a sequence follow those of the one before at the same step, or those of a position
            one another: a slice of another cache's heads is refused.
        value_cache: of that shape, likewise.
        cache_position: (tokens of a sequence,) int64 in GPU memory, the same for each of the batch's sequences. One
            below 0 counts from the cache's end, as where torch indexes; index_copy_ would refuse it. One outside of the
            cache ends the kernel with an error of the device, as torch's kernels do.
        interleaved: whether the elements 2 j and 2 j + 1 are a pair (GPT-J), and not j and j + rotary_dim / 2
            (GPT-NeoX, Llama).
        rotary_dim: how many elements of a head are turned; those behind are copied. By default dim where cos has dim
            columns, else twice the columns of cos.
        out: of x's shape and type, written to; x itself for in place; allocated where it is not given.

    Returns:
        `out`, or the new tensor, of the kind of tensor that x is.

    Raises:
        AotGemmError: one of the classes that `rms_norm` lists.
    """
    asked = -1
    if rotary_dim is not None:
        try:
            asked = operator.index(rotary_dim)
        except TypeError:
            asked = -1
        if not 0 <= asked < 2**31:
            raise errors.ShapeError(
                f"rotary: rotary_dim is {errors.show(rotary_dim)}; expected an even number up to dim"
            )
    flags = INTERLEAVED if interleaved else 0
    of_cache = keys, values, cache_position, key_cache, value_cache
    return _products.rotary(x, cos, sin, *of_cache, out, flags, asked)


def quantize(
    x: Any,
    dtype: Any = "float8_e4m3fn",
    granularity: str = "row",
    *,
    scale: Any = None,
    out: Any = None,
    scale_out: Any = None,
    offsets: Any = None,
    index: Any = None,
    groups: int | None = None,
) -> tuple[Any, Any]:
    """Compute x / scale, clamped to the range of a type of 8 or 4 bits and rounded to it, as a product takes it.

    float8_e4m3fn saturates at 448 and float8_e5m2 at 57344, infinities too, and NaN stays NaN; int8 is rounded half to
    even. "nvfp4", "mxfp4" and "mxfp8" have a factor for each 16 or 32 columns, in atoms, by the rule of
    `torch.quantize`.

    Args:
        x: (..., cols), as `rms_norm` has it.
        dtype: float8_e4m3fn, float8_e5m2 or int8, as torch, NumPy or JAX have it or by name; or "nvfp4", "mxfp4" or
            "mxfp8".
        granularity: "row" for a scale of each row, "block" for one of each 128 columns of a row, "tensor" for one of
            all; a format of blocks has its own, whatever this is.
        scale: the scales where they are given, float32: of rows as `rms_norm` has it; not of blocks. Of "nvfp4" one
            element, the tensor's own factor, which has to be given.
        out: (..., cols), of e2m1 (..., cols / 2) bytes of uint8 or float4_e2m1fn_x2, written to; allocated where it
            is not given.
        scale_out: (..., 1), of blocks (..., ceil(cols / 128)), or of the tensor one element, float32: what the scales
            are written to where they are computed; allocated where it is not given. Each is the largest magnitude over
            448, of float8_e5m2 over 57344, of int8 over 127, but at least 2^-126, and 1 where all are zero. A NaN
            among the values makes it one. Of the formats of blocks the bytes of the atoms, of one dimension, of
            float8_e4m3fn or float8_e8m0fnu.
        offsets: of the formats of blocks (groups,) int32 in GPU memory: where each group of rows ends, as
            `grouped_linear` has them. x is (rows, cols) then, atoms begin anew with each group, of which there are
            (ceil(rows / 128) + groups - 1) times 128 rows, and rows of no group are not written.
        index: beside offsets (rows,) int32: the row of x that each row of the result is made of; what is no row of x,
            such as -1, counts as one of zeros.
        groups: how many groups there are, where offsets are (groups + 1,), the first start in front.

    Returns:
        The result and the scales: those that were given, or (..., 1), of blocks (..., ceil(cols / 128)), or of
        the tensor one element, of as many dimensions as x; of "mxfp4" and "mxfp8" the atoms, and of "nvfp4" a
        pair of them and `scale`. As scale_x, `linear` takes them as they are.

    Raises:
        AotGemmError: one of the classes that `rms_norm` lists.
    """
    check_granularity(granularity)
    element, flags = element_and_flags("quantize", dtype)
    if not flags:
        element = dtype_number("quantize: dtype", dtype)
        flags = scale_flags(granularity, scale)
    flags |= start_flag("quantize", offsets, groups)
    found = _products.quantize(x, offsets, index, scale, out, scale_out, element, flags)
    result: tuple[Any, Any] = paired(found, dtype, scale)
    return result


def rows(
    function: str,
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    residual: Any = None,
    interleaved: bool = False,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    round_norm: bool = False,
    granularity: str = "row",
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    residual_out: Any = None,
    scale_out: Any = None,
    offsets: Any = None,
    index: Any = None,
    groups: int | None = None,
) -> Any:
    """Compute an operation on rows by the name of its function, such as one of another package that has none here.

    Args:
        function: its name; those of this module are known too, but for "rotary", which has operands of its own.
        x: (..., cols), of a function of pairs (..., 2 cols), as `rms_norm` has it.
        weight: as `rms_norm` has it, where the function takes one; so are `bias`, `residual`, `eps`, `weight_offset`,
            `round_norm` and `residual_out`.
        bias: as `layer_norm` has it.
        residual: as `rms_norm` has it.
        interleaved: of a function of pairs, as `silu_mul` has it.
        eps: as `rms_norm` has it.
        weight_offset: as `rms_norm` has it.
        round_norm: as `rms_norm` has it.
        granularity: of a result of 8 bits whose scales are computed, as `quantize` has it.
        out: (..., cols), written to; allocated where it is not given.
        out_dtype: as `rms_norm` has it.
        scale: as `rms_norm` has it.
        residual_out: as `rms_norm` has it.
        scale_out: as `quantize` has it; so are `offsets`, `index` and `groups`.
        offsets: as `quantize` has it.
        index: as `quantize` has it.
        groups: as `quantize` has it.

    Returns:
        As `rms_norm`.

    Raises:
        AotGemmError: one of the classes that `rms_norm` lists; UnsupportedError too where there is no such function.
    """
    number = function_number(function)
    check_granularity(granularity)
    eps, offset = real("rows", "eps", eps), real("rows", "weight_offset", weight_offset)
    element, flags = element_and_flags("rows", out_dtype)
    if not flags:
        flags = scale_flags(granularity, scale)
    flags |= (INTERLEAVED if interleaved else 0) | (ROUNDS_NORM if round_norm else 0)
    flags |= start_flag("rows", offsets, groups)
    written = out, residual_out, scale_out
    read = x, weight, bias, offsets, index, residual, scale
    found = _products.rows(*read, *written, element, flags, eps, offset, number)
    return paired(found, out_dtype, scale)
