"""Which of a graph's products are computed by this package, and which are left to torch.

The table says of each product whether the wheel has a kernel for it, and of the weights that were tuned how long that
takes and how long torch takes: where both were measured, the faster is chosen. Of others the choice is by what was
measured beside torch, over 720 products of models: up to 512 rows products were 1.05 to 1.27 times as fast as torch's,
from 900 to 12,000 rows 1.01 to 1.05 times, with some at 0.63 to 0.88 among them. Source: H100, 2026-11-26, torch 2.11,
CUDA graphs. Gates were nowhere slower than torch's two products. Source: h200, aot/selections of 2026-11-22, which
`aot build` prints: 486 gated products, 1.01 times as fast at worst. A graph whose rows are left open is taken to have
few.
"""

from __future__ import annotations

from typing import Any

from . import _torch_modules, errors
from ._gain import measured_gain
from ._graph_match import value_of
from ._graph_nodes import GraphProduct
from ._row_table import plan_rows
from ._torch_gates import MOST_ROWS

MOST_ROWS_OF_HALVES = 128
"""Of a gate whose two weights are one, torch computes one product, which is faster than two. Under Inductor, Phi-3 mini
with the wheel is 1.09 times as fast at 32 rows, and 0.94 times at 300; at 600 its gate takes 98 us in the wheel's
kernel, and 78 and 7 in torch's two. 128 lies where reading the weight still takes longer than multiplying: the bound
between is not measured. Source: H200, 2026-11-27, torch 2.11, CUDA graphs."""

MOST_ROWS_OF_LAYER_NORMS = 512
"""Where Inductor takes the graph from here, which computes a layer norm with the bias and the sum in front of it:
SigLIP's tower with the wheel's is 1.11 times as fast as without it at 512 rows, 0.96 times at 2,048 and at 8,192.
Source: as above."""
MOST_TOKENS_OF_CACHES = 2048
"""Where Inductor takes the graph from here, which has two to four kernels for what turns queries and keys and writes a
cache: one launch of ours is 1.7 to 2.0 times as fast for one token of 1 to 32 sequences, 1.24 to 1.49 times for 64 to
512 tokens, 1.02 times for 2,048 and 16,384, and 0.98 times for 8,192. Heads of 128, 32 and 8 of them. Source: H200,
2026-11-30, torch 2.11, CUDA graphs."""
LEAST_GAIN = 1.02
"""A product of many rows is chosen where it was measured to be at least so many times as fast as torch's: 95% of the
times of four GPUs lay within 2.1% of one GPU's. Source: H200s, 2026-11-27 (docs/fleet.md)."""


def is_chosen(
    product: GraphProduct, *, columns: int | None = None, gated: bool = False, num_weights: int = 1, **options: Any
) -> bool:
    """Say whether a product is this package's, with what is joined to it.

    Args:
        product: the product, or of a gate one of two.
        columns: of the result; by default those of the weight.
        gated: whether it is that of a gate.
        num_weights: how many products torch would compute in its place.
        options: others that `plan` has.
    """
    n, k = value_of(product.weight).shape
    rows, dtype, columns = product.rows, value_of(product.x).dtype, columns or n
    options |= {"gated": gated, "bias": product.bias is not None}
    if _torch_modules.why_not_planned(columns, k, dtype, rows, **options) is not None:
        return False
    if rows is None:
        return True
    most = MOST_ROWS_OF_HALVES if gated else MOST_ROWS
    is_few = num_weights > 1 or rows <= most
    gain = None if gated and num_weights == 1 else measured_gain(rows, columns, k, dtype, **options)
    return is_few if gain is None else gain >= (1 if is_few else LEAST_GAIN)


def is_planned(product: GraphProduct) -> bool:
    """Say whether the wheel has kernels for a product, whoever is the faster."""
    n, k = value_of(product.weight).shape
    dtype, has_bias = value_of(product.x).dtype, product.bias is not None
    return _torch_modules.why_not_planned(n, k, dtype, product.rows, bias=has_bias) is None


def has_rows(function: str, x: Any, out_dtype: Any = None) -> bool:
    """Say whether the wheel has an operation on the rows of a tensor, and no fallback alone."""
    cols = x.shape[-1]
    if x.device.type not in _torch_modules.DEVICES or x.dtype not in _torch_modules.DTYPES or not isinstance(cols, int):
        return False
    try:
        return plan_rows(function, 1, cols, x.dtype, out_dtype=out_dtype).tier != "fallback"
    except (errors.UnsupportedError, errors.DtypeError):
        return False
