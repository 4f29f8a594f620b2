"""The products: `linear` and `matmul` over tensors of any framework that speaks DLPack.

Work goes to the current stream of the tensors' framework, where a CUDA graph may capture it; with JAX it is waited for.
Nothing is read or written before the work in front of it on the stream has ended, unless `constant` has promised it of
the weight. Products of int8 are summed up exactly where their sums are numbers of int32, as all are up to a k of
131,071; what others become is left open.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from . import _products, errors
from ._constant import ConstantWeight
from ._enumerations import ALLOW_TF32, INTERLEAVED, USE_FAST_ACCUM
from ._extras import (
    ACTIVATIONS,
    activation_number,
    join_result,
    mode_flags,
    refuse_activation,
    split_factors,
    split_listed,
    split_result,
    weights_of,
)
from ._operations_packed import packed_gated_linear, packed_grouped_linear, packed_linear
from ._row_options import element_and_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import ParamSpec

    _Parameters = ParamSpec("_Parameters")

__all__ = (
    "constant",
    "gated_linear",
    "grouped_linear",
    "linear",
    "linear_many",
    "matmul",
    "packed_gated_linear",
    "packed_grouped_linear",
    "packed_linear",
)


def _cheap_where_plain(full: Callable[_Parameters, Any]) -> Callable[_Parameters, Any]:
    """Have calls that name nothing but `out` go to the binding at once.

    A parameter by keyword that a call leaves away costs it 10 ns; a dictionary of those that are given costs 11 ns in
    all (CPython 3.11).
    """

    @wraps(full)
    def linear(x: Any, weight: Any, bias: Any = None, *, out: Any = None, **options: Any) -> Any:
        if options:
            return full(x, weight, bias, out=out, **options)
        return _products.linear(x, weight, bias, out)

    return linear  # type: ignore[return-value]


@_cheap_where_plain
def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    scale_x: Any = None,
    scale_w: Any = None,
    residual: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    scale_out: Any = None,
    allow_tf32: bool = False,
    use_fast_accum: bool = False,
    deterministic: bool = False,
    batch_invariant: bool = False,
) -> Any:
    """Compute activation(x @ weight^T + bias) + residual, as torch.nn.functional.linear and what follows it.

    It is cast((activation(x @ weight^T * scale_x * scale_w + bias) + residual) * scale_out): in float32, rounded once.
    For which operations a wheel has kernels `plan` says by dtypes.

    Args:
        x: (..., k) in GPU memory: bfloat16, float16, float32, float8_e4m3fn, float8_e5m2 or int8; or (..., k / 2) bytes
            that hold two e2m1 each. What is not rows of one stride is copied first, as torch does.
        weight: (n, k), or (n, k / 2) bytes, of x's type and GPU (of float8, either), or what `constant` gave for one.
        bias: (n,), its elements adjacent, of the type of the result; None for none.
        activation: None, "relu", "gelu", "gelu_tanh" (torch's approximate="tanh") or "silu".
        scale_x: float32 factors of float8 or int8 elements of x: one; one for each row, (m,), (m, 1) or of x's leading
            dimensions; or one for each 128 elements of a row, (m, ceil(k / 128)). Of MXFP4 and MXFP8 float8_e8m0fnu
            factors of 32 elements each, of NVFP4 a pair: float8_e4m3fn factors of 16 each, and the tensor's own float32
            factor: rows of blocks, (m, ceil(k / 16)), or atoms, of one dimension, as `pack_factors` makes them.
        scale_w: those of the weight: one; one for each row, (n,), (n, 1) or (1, n); or, where scale_x has blocks, one
            for each 128 by 128 elements, (ceil(n / 128), ceil(k / 128)); or narrow ones, as of x.
        residual: (..., n), of the type of the result, a matrix in memory; added behind the activation.
        out: (..., n), of the type of the result, written to; allocated where it is not given. Of a result in a format
            of blocks a pair, of elements and factors.
        out_dtype: type of the result; by default that of `out`, else bfloat16 beside factors, int32 of int8, or x's.
            Of operands in NVFP4, MXFP8 or MXFP4 also their format by name, such as "nvfp4": rounded as `quantize` of
            `torch` rounds float32.
        scale_out: float32, one element: the factor of a float8 result; or the product of NVFP4's two that are no pairs;
            or the own factor of a result in "nvfp4", which is known before. It goes beside operands whose factors are
            pairs, or is itself in a pair, behind the product of the two.
        allow_tf32: whether products of float32 may be of TF32, where the wheel has those; else they are exact.
        use_fast_accum: whether sums of float8 products may stay in the tensor cores' accumulators, of some 14 bits on
            Hopper, where the wheel has such kernels; else they are added up in float32 every 128 of k.
        deterministic: whether equal operands give equal bits on one device, as torch.use_deterministic_algorithms asks.
        batch_invariant: whether a row of the result has the same bits whatever the other rows are, and each time. It
            costs time at some sizes, and the wheel must have been built for it.

    Returns:
        `out`, or the new tensor, of the kind of tensor that x is. Of a format of blocks elements, of 4 bits (...,
        n / 2) bytes, and their factors in atoms, of "nvfp4" a pair of these and the own one: x and scale_x of the
        next product.

    Raises:
        AotGemmError: one of its classes, each of which says when it is raised.
    """
    try:
        epilogue = ACTIVATIONS[activation]
    except (KeyError, TypeError):
        refuse_activation("linear", activation)
    element, flags = element_and_flags("linear", out_dtype)
    flags |= (ALLOW_TF32 if allow_tf32 else 0) | (USE_FAST_ACCUM if use_fast_accum else 0)
    flags |= mode_flags(deterministic=deterministic, batch_invariant=batch_invariant)
    out, scale_d, own, factors = split_result("linear", out_dtype, out, scale_out)
    scale_x, scale_w, scale_d = split_factors("linear", scale_x, scale_w, scale_d)
    found = _products.linear(
        x, weight, bias, out, scale_x, scale_w, residual, scale_d, own, factors, epilogue, element, flags
    )
    return join_result(found, own)


def gated_linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str = "silu",
    interleaved: bool = False,
    scale_x: Any = None,
    scale_w: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    scale_out: Any = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
) -> Any:
    """Compute activation(gate) * linear, where both are x @ rows^T + bias of the halves of one weight: SwiGLU, GeGLU.

    All is done in float32, and the result is rounded once. Which operations there are kernels for depends on what the
    wheel was built for.

    Args:
        x: (..., k), bfloat16, float16 or float8_e4m3fn, in GPU memory, or bytes that hold two e2m1 each.
        weight: (2 n, k): the n rows of the gate and then the n linear ones, or in turns where `interleaved`. Or a list
            or tuple of two (n, k), the gate's and the linear one, of one size and of the same strides, or what
            `constant` gave for both: nothing is copied. They lie apart by a multiple of 16 bytes below 2^40, either in
            front, or it takes the slow fallback.
        bias: (2 n,), in the order of the weight's rows; None for none.
        activation: of the gate: "silu" (SwiGLU) or "gelu_tanh" (GeGLU).
        interleaved: whether row 2 j of the weight is of the gate and row 2 j + 1 the linear one of column j. Where
            factors are of NVFP4, MXFP4 or MXFP8, one weight and True: they lie in atoms of 128 rows.
        scale_x: as `linear` has it, without blocks of 128.
        scale_w: as `linear` has it, without blocks of 128: one element, or 2 n, or narrow ones of the 2 n rows.
        out: (..., n), written to; allocated where it is not given.
        out_dtype: as `linear` has it.
        scale_out: as `linear` has it, of NVFP4, and of a result in "nvfp4".
        deterministic: as `linear` has it.
        batch_invariant: as `linear` has it.

    Returns:
        `out`, or the new tensor, of the kind of tensor that x is.

    Raises:
        AotGemmError: one of its classes, as of `linear`.
    """
    epilogue = activation_number("gated_linear", activation)
    element, flags = element_and_flags("gated_linear", out_dtype)
    flags |= INTERLEAVED if interleaved else 0
    flags |= mode_flags(deterministic=deterministic, batch_invariant=batch_invariant)
    weights = None
    if isinstance(weight, (list, tuple)):
        are_kept = all(isinstance(x, ConstantWeight) and x.is_kept for x in weight)
        weights = weights_of(weight, "gated_linear", "two (n, k), the gate's and the linear one")
        weight = weight[0] if are_kept else weights[0]
    out, scale_d, own, factors = split_result("gated_linear", out_dtype, out, scale_out)
    scale_x, scale_w, scale_d = split_factors("gated_linear", scale_x, scale_w, scale_d)
    found = _products.gated_linear(
        x, weight, bias, out, scale_x, scale_w, scale_d, own, factors, weights, epilogue, element, flags
    )
    return join_result(found, own)


def grouped_linear(
    x: Any,
    weight: Any,
    offsets: Any,
    bias: Any = None,
    *,
    index: Any = None,
    gate: str | None = None,
    interleaved: bool = False,
    scale_x: Any = None,
    scale_w: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    scale_out: Any = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
) -> Any:
    """Compute x[rows of g] @ weight[g]^T for each group g of rows, as torch.nn.functional.grouped_mm with offs.

    The rows of an expert of a mixture are a group, and `index` is the permutation of the tokens. Of one matrix (n, k)
    the groups are runs of k, each with a result: the weights' gradient is grouped_linear(gradient.t(), x.t(), offsets).

    Args:
        x: (rows, k) in GPU memory: bfloat16, float16 or float8_e4m3fn, or bytes that hold two e2m1 each. With an index
            (tokens, k).
        weight: (groups, n, k), or with a gate (groups, 2 n, k): the n rows of the gate and then the n linear ones; (n,
            k), with neither index nor gate nor bias; or a list or tuple of one for each group, of one size and of the
            same strides: nothing is copied, and a CUDA graph holds the addresses that it captured.
        offsets: int32 in GPU memory, ascending: (groups,), where each group ends in rows, or run in k, as torch has
            `offs`; or of rows (groups + 1,), the first start in front. A group that ends before it starts is empty.
        bias: (groups, n), or with a gate (groups, 2 n), where factors are given.
        index: int32 in GPU memory, (rows,), in any order: row i of the groups is x[index[i]], or zeros of no row of x.
        gate: None, "silu" (SwiGLU) or "gelu_tanh" (GeGLU): activation(gate) * linear of the halves of the weight.
        interleaved: whether row 2 j of a weight is of the gate and row 2 j + 1 the linear one of column j. Where
            factors are of NVFP4, MXFP4 or MXFP8, True.
        scale_x: of float8 rows of x: one float32 factor, (rows,), (rows, 1), or of blocks (rows, ceil(k / 128)). Of
            formats of blocks as `linear` has them, in atoms that begin anew with each group, as `pack_factors` makes
            them of factors and offsets.
        scale_w: those of the weights: one element, (groups,), or (groups, n); or of blocks (groups, ceil(n / 128),
            ceil(k / 128)), where rows of a gate are not interleaved. Of blocks of 16 or 32 (groups, n, ceil(k / 16)),
            or the groups' atoms as one run of bytes, or a row of bytes for each group, where rows may lie apart, or
            beside a list of weights a list of each one's atoms, of which nothing is copied either; and of NVFP4 the
            weights' own factors, (groups,).
        out: (rows, n), or (groups, rows, n) of runs of k; allocated where it is not given. Rows of no group are not
            written: a new tensor holds anything there. Of a result in a format of blocks a pair, as `linear` has it.
        out_dtype: as `linear` has it.
        scale_out: of NVFP4, where `scale_x` and `scale_w` are no pairs, (groups,): x's own factor times each weight's.
            Of a result in "nvfp4" as `linear` has it: one own factor of all rows.
        deterministic: as `linear` has it.
        batch_invariant: whether a row's bits must not depend on any group. It is refused where kernels have several
            orders of sums and the wheel has no table of one.

    Returns:
        As `linear`. Factors of a result in a format of blocks lie where the next product of the same groups reads those
        of its x.

    Raises:
        AotGemmError: one of its classes, as of `linear`.
    """
    epilogue = activation_number("grouped_linear", gate)
    element, flags = element_and_flags("grouped_linear", out_dtype)
    flags |= INTERLEAVED if interleaved else 0
    flags |= mode_flags(deterministic=deterministic, batch_invariant=batch_invariant)
    are_many = isinstance(weight, (list, tuple))
    weights = weights_of(weight, "grouped_linear", "one (n, k) for each group, one or more") if are_many else None
    first = weight if weights is None else weights[0]
    out, scale_d, *of_d = split_result("grouped_linear", out_dtype, out, scale_out)
    *scales, factors = split_listed("grouped_linear", scale_x, scale_w, scale_d, weights)
    found = _products.grouped_linear(
        x, first, bias, out, *scales, *of_d, offsets, index, weights, factors, epilogue, element, flags, 0, 0
    )
    return join_result(found, of_d[0])


def linear_many(x: Any, weights: Sequence[Any], biases: Sequence[Any], *, out: Sequence[Any]) -> None:
    """Compute x @ weight^T + bias of each of several weights into tensors of their own, in one launch.

    Args:
        x: (..., k), bfloat16 or float16, in GPU memory.
        weights: one to four of (n, k), of x's type, or what `constant` returned for one.
        biases: as many, each (n,) of x's type, or None.
        out: as many, each (..., n) of x's type, written to.

    Raises:
        AotGemmError: one of its classes, as of `linear`.
    """
    try:
        lists = tuple(weights), tuple(biases), tuple(out)
    except TypeError:
        kinds = ", ".join(type(each).__name__ for each in (weights, biases, out))
        raise errors.OperandError(
            f"linear_many: weights, biases and out are {kinds}; expected a list or tuple each; put one tensor into one"
        ) from None
    _products.linear_many(x, *lists)


def matmul(a: Any, b: Any, *, out: Any = None, deterministic: bool = False, batch_invariant: bool = False) -> Any:
    """Compute a @ b, as torch.matmul: the leading dimensions of both are a batch, and broadcast.

    A batch is one launch where the wheel has kernels for batches and its leading dimensions lie as one in a, b and out,
    at any stride, 0 included; where b is one matrix for rows that join, it is one product. Leading dimensions that do
    not join, as of heads that stand between rows, take a launch for each step of the shorter ones. A wheel without
    kernels for batches leaves them to torch.matmul where all tensors are torch's and of floating point, and no flag is
    given; else each product is a launch of its own: `plan` says how many there are. Nothing is copied.

    Args:
        a: (..., m, k) or (k,), of a type that `linear` takes without factors, in GPU memory; where b is one matrix and
            leading dimensions do not join into rows, it is copied first.
        b: (..., k, n) or (k,), of the same type and GPU, or what `constant` returned for one.
        out: (..., m, n), less the modes that a vector lacks; written to; allocated where it is not given.
        deterministic: as `linear` has it.
        batch_invariant: as `linear` has it; each product of a batch is then one by itself.

    Returns:
        `out`, or the new tensor, of the type of tensor that a is.

    Raises:
        AotGemmError: one of its classes, as of `linear`.
    """
    if not (deterministic or batch_invariant):
        return _products.matmul(a, b, out)
    return _products.matmul(a, b, out, mode_flags(deterministic=deterministic, batch_invariant=batch_invariant))


def constant(weight: Any) -> ConstantWeight:
    """Promise that nothing writes a weight while it is in use, so that products may begin to read it early.

    On GPUs with programmatic dependent launch, `linear(x, constant(weight))` may read the weight while the kernel in
    front on the stream still runs, which small products gain from. Waits until the work that the weight's framework has
    on its current stream is done, so that the weight is complete; so it is called where a model is loaded, and not
    while a CUDA graph is captured. The promise holds for this tensor, in every thread and on every stream, and covers
    graphs that captured the product. Writes that torch counts in a tensor's `_version`, as of copy_, add_ and
    load_state_dict, and other memory given to the tensor end it: the weight is then read late until `constant` is
    called again. Fused optimisers and `.data` write without being counted, as do kernels of your own, and a captured
    graph keeps what held at its capture: after such a write, and a wait for it, nothing more is needed; during one,
    products may be of old values.

    AOT_GEMM_WEIGHT_PREFETCH=0 in the environment makes all products read late.

    Args:
        weight: a tensor in GPU memory, of a type that `linear` takes.

    Returns:
        What `linear` and `matmul` take in the weight's place; `.tensor` is the weight.

    Raises:
        AotGemmError: the weight is none that `linear` takes, or its stream is being captured.
    """
    tensor = weight.tensor if isinstance(weight, ConstantWeight) else weight
    return ConstantWeight(tensor, _products.settle(tensor))
