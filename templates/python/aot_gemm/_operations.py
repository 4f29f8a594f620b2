"""The products: `linear` and `matmul` over tensors of any framework that speaks DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _library, _products


def linear(x: Any, weight: Any, out: Any = None) -> Any:
    """Compute x @ weight^T, as torch.nn.functional.linear without a bias.

    The sum is taken in float32 and rounded once. Work goes to the current stream of the tensors' framework, where
    a CUDA graph may capture it; with JAX it is waited for. Gradients are not recorded: operands that require them are
    taken as data.

    The weight is taken for constant: on GPUs with programmatic dependent launch it may be read while the kernel in
    front on the stream still runs, unless it is the result of this thread's last product. Where another kernel in
    front writes the weight, use `matmul(x, weight.T)`, which waits for it, or switch this off: `early_weights(False)`,
    or AOT_GEMM_EARLY_WEIGHTS=0 in the environment. x and out are never touched before the kernel in front has ended.

    Args:
        x: (..., k), bfloat16 or float16, in GPU memory; leading dimensions must join into rows of one stride.
        weight: (n, k), of the same type and GPU.
        out: (..., n), of the same type and GPU, written to; allocated where it is not given.

    Returns:
        `out`, or the new tensor, of the type of tensor that x is.

    Raises:
        DtypeError: an operand is no tensor, or of another element type.
        ShapeError: the shapes do not make a product.
        StrideError: a tensor is not one matrix in memory, or out overlaps itself.
        DeviceError: an operand is not in GPU memory, or not on the same GPU.
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that this wheel is for.
        CudaError: CUDA failed.
    """
    return _products.linear(x, weight, out)


def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Compute a @ b, as torch.matmul for a `b` of one or two dimensions.

    Args:
        a: (..., m, k) or (k,), bfloat16 or float16, in GPU memory; leading dimensions must join into rows.
        b: (k, n) or (k,), of the same type and GPU. A batched b is not supported.
        out: (..., m, n), less the modes that a vector lacks; written to; allocated where it is not given.

    Returns:
        `out`, or the new tensor, of the type of tensor that a is.

    Raises:
        AotGemmError: one of the classes that `linear` lists.
    """
    return _products.matmul(a, b, out)


def early_weights(enabled: bool) -> bool:
    """Say whether `linear` may read weights before the kernel in front has ended, in every thread from now on.

    A CUDA graph keeps what held when it was captured.

    Returns:
        What held before: at first True, unless the environment has AOT_GEMM_EARLY_WEIGHTS=0.
    """
    return bool(_products.exchange_early_weights(enabled))


def preload(device: int = -1) -> None:
    """Load every kernel onto a GPU now (-1: the current one), instead of each at its first use.

    Raises:
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that this wheel is for.
        CudaError: CUDA failed.
    """
    _library.check(_library.library().aot_gemm_preload(ctypes.c_int32(device)))
