"""The products as torch knows them: operators for compilers, gradients, and models whose nn.Linear's are swapped.

Importing this imports torch, and registers the operators `linear`, `gated_linear`, `grouped_linear` and `matmul`, each
with an overload `out`, and those of rows, as `rms_norm`, in a namespace of torch.ops that is the package's import name.
The functions of this module call them where a compiler or a dispatch mode traces or a gradient is recorded, and the
package's own functions elsewhere, so that an eager call costs hardly more than without this module.

    import aot_gemm.torch

    y = aot_gemm.torch.linear(x, weight, bias)  # in a function that torch.compile compiles, too
    print(aot_gemm.torch.patch(model.eval()))  # every nn.Linear that the wheel has tuned kernels for, fused and frozen

torch.compile and torch.export take the operators without a graph break. A graph that was exported, or that AOTInductor
compiled, needs this module imported in the process that runs it: the kernels are called through Python.
"""

from __future__ import annotations

from typing import Any

from ._torch_grouped import grouped_linear
from ._torch_modules import Linear
from ._torch_patch import PatchReport, patch, patched, unpatch
from ._torch_prepare import PreparedWeight, prepare
from ._torch_products import gated_linear, linear, matmul
from ._torch_rows import gelu_tanh_mul, layer_norm, quantize, rms_norm, rotary, silu_mul

__all__ = [
    "Linear",
    "PatchReport",
    "PreparedWeight",
    "gated_linear",
    "gelu_tanh_mul",
    "grouped_linear",
    "inductor_options",
    "layer_norm",
    "linear",
    "matmul",
    "patch",
    "patched",
    "prepare",
    "quantize",
    "rms_norm",
    "rotary",
    "silu_mul",
    "unpatch",
]


def inductor_options() -> dict[str, Any]:
    """Return options of torch.compile by which it takes this package's kernels: torch.compile(f, options=...).

    Every product of bfloat16 or float16 with the transpose of a weight, as nn.Linear makes it, is then this package's,
    where its table has tuned kernels; which of them is decided with each call, by the table. The code itself needs no
    change, and gets no fusing, padding or promises, which `patch` gives.
    """
    from ._torch_inductor import ProductsPass  # here, since Inductor takes long to import

    return {"post_grad_custom_pre_pass": ProductsPass()}


Linear.__module__ = __name__  # where pickles look for it
PatchReport.__module__ = __name__
PreparedWeight.__module__ = __name__
