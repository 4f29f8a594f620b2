"""The products as torch knows them: operators for compilers, gradients, and models whose nn.Linear's compute by them.

Importing this imports torch, and registers the operators `linear`, `gated_linear`, `grouped_linear` and `matmul`, each
with an overload `out`, and those of rows, as `rms_norm`, in a namespace of torch.ops that is the package's import name.
The functions of this module call them where a compiler or a dispatch mode traces or a gradient is recorded, and the
package's own functions elsewhere, so that an eager call costs hardly more than without this module.

    import aot_gemm.torch

    y = aot_gemm.torch.linear(x, weight, bias)  # in a function that torch.compile compiles, too
    print(aot_gemm.torch.patch(model))  # every nn.Linear that the wheel has tuned kernels for
    print(aot_gemm.torch.quantize(model, "fp8"))  # their weights in 8 bits, in half the memory
    compiled = torch.compile(model, backend="aot_gemm")  # products and norms joined; needs no compiler

torch.compile and torch.export take the operators without a graph break. A graph that was exported, or that AOTInductor
compiled, needs this module imported in the process that runs it: the kernels are called through Python.
"""

from __future__ import annotations

from typing import Any

import torch

from . import (
    _torch_blocks,
    _torch_flops,  # noqa: F401 - which has FlopCounterMode count the products
    _torch_packed,
    _torch_packed_gates,  # noqa: F401 - which registers the gate of packed weights
    _torch_packed_groups,  # noqa: F401 - which registers groups of packed weights
    _torch_packed_linear,  # noqa: F401 - which registers the product of packed weights
    _torch_rows,
    errors,
)
from ._torch_checkpoints import load_packed
from ._torch_experts import PackedExperts, stack
from ._torch_export import fuse
from ._torch_grouped import grouped_linear
from ._torch_load import load_quantized
from ._torch_many import linear_many
from ._torch_modules import Linear
from ._torch_packed import PackedWeight, pack, unpack
from ._torch_packed_join import join
from ._torch_patch import patch, patched, quantize_model, unpatch
from ._torch_prepare import PreparedWeight, prepare
from ._torch_products import gated_linear, linear, matmul
from ._torch_quantized import QuantizedLinear
from ._torch_quantized_experts import QuantizedExperts
from ._torch_report import PatchReport, QuantizeReport
from ._torch_rows import gelu_tanh_mul, layer_norm, rms_norm, rotary, rows, silu_mul

__all__ = [
    "Linear",
    "PackedExperts",
    "PackedWeight",
    "PatchReport",
    "PreparedWeight",
    "QuantizeReport",
    "QuantizedExperts",
    "QuantizedLinear",
    "dequantize",
    "fuse",
    "gated_linear",
    "gelu_tanh_mul",
    "grouped_linear",
    "inductor_options",
    "join",
    "layer_norm",
    "linear",
    "linear_many",
    "load_packed",
    "load_quantized",
    "matmul",
    "pack",
    "patch",
    "patched",
    "prepare",
    "quantize",
    "rms_norm",
    "rotary",
    "rows",
    "silu_mul",
    "stack",
    "unpack",
    "unpatch",
]


def dequantize(values: Any, scale: Any = None, dtype: Any = None) -> Any:
    """Return what narrow elements stand for: those of a packed weight, or those that `quantize` of a tensor returned.

        wide = aot_gemm.torch.dequantize(packed)
        wide = aot_gemm.torch.dequantize(*aot_gemm.torch.quantize(x, "nvfp4"))

    Args:
        values: a PackedWeight or PackedExperts, which have their factors; or (..., k / 2) of uint8 or float4_e2m1fn_x2,
            or (..., k) of float8_e4m3fn, on any device.
        scale: of elements: factors of blocks, of float8_e4m3fn or float8_e8m0fnu, in atoms or in rows of blocks; with
            a pair the second is the tensor's own float32 factor.
        dtype: of the result, to which products in float32 are rounded once: bfloat16, float16 or float32; by default
            that of a packed weight's factors, or bfloat16.

    Returns:
        (n, k) of a packed weight, (experts, n, k) of experts, else (..., k), on the device of `values`.

    Raises:
        DtypeError: of elements or factors of another type.
        OperandError: a packed weight is given factors, or elements none.
        ShapeError: the factors are not those of so many elements.
    """
    if not isinstance(values, (PackedWeight, PackedExperts)):
        return _torch_blocks.dequantize(values, scale, dtype or torch.bfloat16)
    if scale is not None:
        raise errors.OperandError(
            "dequantize of a packed weight: got scale, expected none, for the weight has its factors; leave it away, "
            "or give the result's type as dtype="
        )
    return _torch_packed.dequantize(values, dtype)


def quantize(x: Any, *arguments: Any, **options: Any) -> Any:
    """Hold a model's weights in a narrow format, or round a tensor: torch's word for both.

        report = aot_gemm.torch.quantize(model, "fp8")
        values, scale = aot_gemm.torch.quantize(x, torch.float8_e4m3fn)
        values, scale = aot_gemm.torch.quantize(x, "nvfp4")

    `quantize(model, format, *, where=None, constant=False, activation_format="16-bit")` makes a QuantizedLinear of
    every nn.Linear of bfloat16 or float16 that this wheel has tuned products of the format for, and of those under
    `patch`; and QuantizedExperts of a mixture's experts as transformers 5 has them, where it has groups of the format.
    The module stays the same object, with its hooks and its bias. Its parameter `weight` becomes the buffers `qweight`
    and `scale`, and the weight of 16 bits is freed; while this runs, both are held. `state_dict` has the buffers; they
    are loaded into a model that was quantized as well, whose weights may be of the meta device, on the CPU or other
    ones. Inputs of "fp8" and "int8" are rounded by rows with each call, by the wheel's kernel, or by torch where it has
    none. A weight that another module has too, as an embedding has the head's, stays. Where this raises, the model is
    as it was.

    `quantize(x, dtype=torch.float8_e4m3fn, granularity="row", *, scale=None, out=None, scale_out=None)` is the
    package's `quantize`, as `rms_norm` is here.

    `quantize(x, dtype, *, scale=None, offsets=None, index=None, groups=None)` of "nvfp4", "mxfp4" or "mxfp8" rounds
    a tensor (..., k) of bfloat16, float16 or float32, on any device: by the wheel's kernel where it has one, as of
    bfloat16 to "nvfp4" in GPU memory with `bf16_nvfp4_quantize`, else by torch's own functions in float32, to the
    same bits. It returns what `linear` takes as x and scale_x, or as weight and scale_w: the elements, (..., k / 2)
    bytes of uint8 that hold two e2m1 each, or of "mxfp8" float8_e4m3fn; and the factors in atoms, of "nvfp4" in a
    pair with the tensor's own. Of "nvfp4" the own factor is the largest magnitude over 6 * 448, or `scale`, a
    float32 tensor of one element, where it is given; and each 16 elements along k have the nearest e4m3 to their
    largest magnitude over 6 and over the own factor, between 2^-9 and 448. Of the others each 32 have the least
    power of two by which none is more than the elements' largest number. What is not finite makes its block NaN,
    and of "nvfp4" all. No gradient is recorded. `dequantize` gives back what they stand for. With offsets, which
    end groups of rows (rows, k), the factors are in the atoms that `grouped_linear` takes, as `pack_factors` puts
    them there; with an index the elements are those of the rows that it names. Rows of no group may hold anything then.

    Args:
        x: an nn.Module, or a tensor (..., cols).
        arguments: of a model `format`: "fp8" (float8_e4m3fn) or "int8", with a factor for each row, of inputs too, or
            "fp8_block", with one for each 128 by 128 elements and each 128 columns of inputs. Or of the weight alone,
            packed as `pack` does: "int4g128" (also g32 and g64, with z for zero points), "nvfp4", "mxfp4",
            "int8_weight_only" or "fp8_weight_only". Weights are rounded to nearest, and nothing is calibrated.
        options: of a model `where`, as `patch` has it, `constant`, the promise that `patch` has, of the buffers, and of
            "nvfp4" and "mxfp4" `activation_format`: "16-bit", by which inputs stay as they are; "nvfp4", or of "mxfp4"
            "mxfp8", by which they are rounded too; or "auto", by which they are where that is faster by the wheel's
            tables. The weight is then packed as "nvfp4rows" or "mxfp4rows", which both products read.

    Returns:
        Of a model, which modules are quantized and left, and why, and the bytes of its tensors before and after.

    Raises:
        UnsupportedError: there is no such format, or this wheel has no such kernels for a tensor.
        AotGemmError: of a tensor, one of the classes that the package's `quantize` lists.
    """
    if isinstance(x, torch.nn.Module):
        return quantize_model(x, *arguments, **options)
    name = arguments[0] if arguments else options.get("dtype")
    if isinstance(name, str) and name in _torch_blocks.FORMATS:
        return _torch_blocks.quantize(x, *arguments, **options)
    return _torch_rows.quantize(x, *arguments, **options)


def inductor_options() -> dict[str, Any]:
    """Return options of torch.compile by which it takes this package's kernels: torch.compile(f, options=...).

    Products of bfloat16 or float16 with the transpose of a weight, as nn.Linear makes it, are then this package's,
    where its table has tuned kernels, with what stands behind them: bias, activation, gate or residual. So are norms,
    with the sum in front and the quantisation behind. Which kernel runs is decided with each call, by the table.
    Products of more than 512 rows stay torch's, but for gates. The code itself needs no change.
    """
    from ._torch_inductor import ProductsPass  # here, since Inductor takes long to import

    return {"post_grad_custom_pre_pass": ProductsPass()}


for _public in (
    *(Linear, PackedExperts, PackedWeight, QuantizedExperts, QuantizedLinear),
    *(PatchReport, QuantizeReport, PreparedWeight),
):
    _public.__module__ = __name__  # where pickles look for it
