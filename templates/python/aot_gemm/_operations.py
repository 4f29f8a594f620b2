"""The products: `linear` and `matmul` over tensors of any framework that speaks DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _library, _products
from ._constant import ConstantWeight


def linear(x: Any, weight: Any, bias: Any = None, *, out: Any = None) -> Any:
    """Compute x @ weight^T + bias, as torch.nn.functional.linear.

    The sum is taken in float32, the bias is added to it in float32, and the result is rounded once. Work goes to the
    current stream of the tensors' framework, where a CUDA graph may capture it; with JAX it is waited for. Nothing is
    read or written before the work in front of it on the stream has ended, unless `constant` has promised it of the
    weight.

    Args:
        x: (..., k), bfloat16 or float16, in GPU memory. Where leading dimensions do not join into rows of one stride,
            it is copied first, as torch does.
        weight: (n, k), of the same type and GPU, or what `constant` returned for one.
        bias: (n,), of the same type and GPU, its elements adjacent; None for none. Whether there are kernels for it
            depends on what the wheel was built for: `plan(..., bias=True)` says so.
        out: (..., n), of the same type and GPU, written to; allocated where it is not given.

    Returns:
        `out`, or the new tensor, of the type of tensor that x is.

    Raises:
        DtypeError: an operand is no tensor, or of another element type.
        ShapeError: the shapes do not make a product.
        StrideError: out is not one matrix in memory, or overlaps itself or an operand; the bias has gaps.
        DeviceError: an operand is not in GPU memory, or not on the same GPU.
        OperandError: an operand is no plain memory (a wrapper, sparse, quantised), or out is read-only.
        GradientError: torch would record a gradient: use torch.no_grad().
        UnsupportedError: a bias was given, and this wheel has no kernels for it.
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that this wheel is for.
        CudaError: CUDA failed.
    """
    return _products.linear(x, weight, bias, out)


def matmul(a: Any, b: Any, *, out: Any = None) -> Any:
    """Compute a @ b, as torch.matmul for a `b` of one or two dimensions.

    Args:
        a: (..., m, k) or (k,), bfloat16 or float16, in GPU memory; copied where leading dimensions do not join into
            rows.
        b: (k, n) or (k,), of the same type and GPU, or what `constant` returned for one. For a batched b, call this
            once for each matrix.
        out: (..., m, n), less the modes that a vector lacks; written to; allocated where it is not given.

    Returns:
        `out`, or the new tensor, of the type of tensor that a is.

    Raises:
        AotGemmError: one of the classes that `linear` lists.
    """
    return _products.matmul(a, b, None, out)


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
        weight: a tensor in GPU memory, bfloat16 or float16.

    Returns:
        What `linear` and `matmul` take in the weight's place; `.tensor` is the weight.

    Raises:
        AotGemmError: the weight is none that `linear` takes, or its stream is being captured.
    """
    tensor = weight.tensor if isinstance(weight, ConstantWeight) else weight
    return ConstantWeight(tensor, _products.settle(tensor))


def preload(device: int = -1) -> None:
    """Check the package's files and load every kernel onto a GPU now (-1: the current one), not at its first use.

    Raises:
        CorruptLibraryError: a file of the package is missing or damaged; see `check`.
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that this wheel is for.
        CudaError: CUDA failed.
    """
    from ._check import check  # here, since an import of the package does not need it

    check()
    _library.check(_library.library().aot_gemm_preload(ctypes.c_int32(device)))
