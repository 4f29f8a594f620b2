"""What a launch of several weights is told of each, and whose a tile is. Imports CUTLASS and quack.

Each weight has a descriptor, a D and perhaps a bias of its own. No tile has rows of two weights: the tiles of a weight
follow those of the one before it, and a cluster finds whose its tile is by where each one's begin. From there on it is
the tile of one product, so that each element is summed as in that.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple, Optional

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Int32, Int64, const_expr, cute, select_
from quack.copy_utils import get_tma_desc_addr

from aot.core.epilogue import MAX_PARTS
from aot.core.operation import Operation
from aot.core.signature import PART_WORDS, Signature
from aot.families import Entry
from aot.families._arguments import epilogue_arguments

TMA_BYTES = 16
"""Of which addresses and strides of a weight are multiples. Source: CUDA driver API, cuTensorMapEncodeTiled."""


class Part(NamedTuple):
    """What a launch is told of one weight."""

    n: Any
    """Its rows, Int32; 0 of a part that there is not."""
    b: Any
    """The weight (n, k), or where there is none one row of the first."""
    d: Any
    """Address of D, Int64."""
    d_row: Any
    """Step from row to row of D, Int64."""
    bias: Any
    """Address of the bias, Int64; 0 for none."""


class PartVectors(NamedTuple):
    """What the tiles of all parts read besides A, by part."""

    atoms: Any
    """Loads, each with a descriptor."""
    first_tiles: Any
    """Where their tiles begin, Int32; of parts that there are not, behind the last."""
    num_tiles: Any
    """Of all parts, Int32."""
    parts: Any
    """(n, D, its step, bias) of each."""


class Chosen(NamedTuple):
    """The part of a tile."""

    tile: Any
    """The tile's number among those of its weight, Int32."""
    d: Any
    """D (m, n) of that weight."""
    bias: Any
    """Its bias's address, Int64; 0 for none."""
    descriptor: Any
    """The address of the descriptor that loads that weight, Int64."""


def read_parts(words: cute.Tensor, b: cute.Tensor) -> list[Part]:
    """Read the parts in host memory; to be called while tracing, on the host."""
    parts = []
    for i in range(MAX_PARTS):
        word = {name: words[i * len(PART_WORDS) + j] for j, name in enumerate(PART_WORDS)}
        n = Int32(word["n"])
        pointer = cute.make_ptr(b.element_type, word["b"], cute.AddressSpace.gmem, assumed_align=TMA_BYTES)
        step = cute.assume(word["b_row"], divby=TMA_BYTES * 8 // int(b.element_type.width))
        layout = cute.make_layout((cutlass.max(n, Int32(1)), b.shape[1]), stride=(step, 1))
        parts.append(Part(n, cute.make_tensor(pointer, layout), word["d"], word["d_row"], word["bias"]))
    return parts


def vectors_of(parts: list[Part], atoms: list[Any], rows: int) -> PartVectors:
    """Place the tiles of all parts, of so many rows of a weight, one weight's behind the other's; on the host."""
    first_tiles, num_tiles = [], Int32(0)
    for part in parts:
        first_tiles.append(num_tiles)
        num_tiles = num_tiles + cute.ceil_div(part.n, rows)
    return PartVectors(atoms, first_tiles, num_tiles, [(x.n, x.d, x.d_row, x.bias) for x in parts])


def choose_part(tile: Any, d: Any, vectors: PartVectors, stores: int) -> Chosen:
    """Return the part of a tile, by the tile's number among those of all, and begin to fetch its descriptor.

    Args:
        tile: the number, Int32.
        d: D (m, n) with the columns of all parts.
        vectors: the parts.
        stores: bytes of which rows of each D begin at multiples, at least an element's.
    """
    first = vectors.first_tiles[0]
    address = get_tma_desc_addr(vectors.atoms[0]).toint()
    chosen = list(vectors.parts[0])
    for i in range(1, MAX_PARTS):
        is_behind = tile >= vectors.first_tiles[i]
        first = select_(is_behind, vectors.first_tiles[i], first)
        address = select_(is_behind, get_tma_desc_addr(vectors.atoms[i]).toint(), address)
        chosen = [select_(is_behind, x, y) for x, y in zip(vectors.parts[i], chosen, strict=True)]
    cute.arch.inline_ptx("prefetch.tensormap [{$r0}];", read_only_args=[address])
    n, of_d, d_row, bias = chosen
    target = cute.make_ptr(d.element_type, of_d, cute.AddressSpace.gmem, assumed_align=stores)
    step = cute.assume(Int64(d_row), divby=stores * 8 // int(d.element_type.width))
    view = cute.make_tensor(target, cute.make_layout((d.shape[0], n), stride=(step, 1)))
    return Chosen(tile - first, view, bias, address)


def parts_entry(gemm: Any, signature: Signature, operation: Operation, stores: int) -> Entry:
    """Make the entry of a configured kernel.

    Args:
        gemm: what launches it while tracing: called with A, B, D, the parts, whether B is constant, the stream, and
            the order of the tiles where the kernel takes one.
        signature: the entry's arguments.
        operation: element types and layout.
        stores: bytes of which rows of each D begin at multiples; 1 for any element.
    """

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        _scale_a: None,
        _scale_b: None,
        _bias: cute.Tensor,
        _residual: None,
        _scale_d: None,
        parts: cute.Tensor,
        _workspace: None,
        prefetch_b: Int32,
        tile_order: Optional[Int32],  # noqa: UP045 - the compiler reads this form alone
        stream: cuda.CUstream,
    ) -> None:
        orders = () if const_expr(tile_order is None) else (tile_order,)
        gemm(a, b, d, parts, prefetch_b, stream, *orders)

    return Entry(entry, epilogue_arguments(signature, operation, stores))
