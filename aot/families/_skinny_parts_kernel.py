"""The GEMM of `cluster_split_k` for several weights in one launch, and its entry. Imports CUTLASS and quack.

Each weight has a descriptor, a D and perhaps a bias of its own. No tile has rows of two weights: the tiles of a weight
follow those of the one before it, and a cluster finds whose its tile is by where each one's begin. From there on it is
the tile of one product, so that each element is summed as in that.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, cute, select_
from quack.copy_utils import get_tma_desc_addr

from aot.core.epilogue import MAX_PARTS
from aot.core.operation import Operation
from aot.core.signature import PART_WORDS, Signature
from aot.families import Entry
from aot.families._arguments import epilogue_arguments
from aot.families._next_start import num_bytes
from aot.families._skinny_kernel import SplitGemm
from aot.families._skinny_loads import make_load

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


class Vectors(NamedTuple):
    """What the tiles of all parts read besides A, by part."""

    atoms: Any
    """Loads, each with a descriptor."""
    first_tiles: Any
    """Where their tiles begin, Int32; of parts that there are not, behind the last."""
    parts: Any
    """(n, D, its step, bias) of each."""


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


@dataclass(frozen=True)
class PartsSplitGemm(SplitGemm):
    """The kernel of one candidate, of operands of 16 bits and up to MAX_PARTS weights."""

    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        words: cute.Tensor,
        prefetch_b: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Make the descriptors and launch a cluster for each tile of each D; to be called while tracing.

        Args:
            a: A (m, k).
            b: B (n, k), the first weight with the rows of all.
            d: D (m, n) likewise.
            words: the parts, in host memory.
            prefetch_b: whether the weights may be read before the kernel in front has ended.
            stream: where the kernel is launched.
        """
        tile, parts, layouts = self.tile, read_parts(words, b), self._layouts()
        loads = [make_load(part.b, layouts[1], (tile.rows, self.block_k)) for part in parts]
        load_a = make_load(a, layouts[0], (tile.columns, self.block_k))
        first_tiles, tiles_n = [], Int32(0)
        for part in parts:
            first_tiles.append(tiles_n)
            tiles_n = tiles_n + cute.ceil_div(part.n, tile.rows)
        tiles = cute.ceil_div(d.shape[0], tile.columns), tiles_n
        of_tiles = [(part.n, part.d, part.d_row, part.bias) for part in parts]
        vectors = Vectors([x for x, _ in loads], first_tiles, of_tiles)
        self._launch((load_a, loads[0]), layouts, d, vectors, tiles, num_bytes(a, b), prefetch_b, stream)

    def _part_of(self, tile_n: Any, d: Any, vectors: Any) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        """Return a tile's number among those of its weight, D and bias of that, and the address of its descriptor."""
        first = vectors.first_tiles[0]
        address = get_tma_desc_addr(vectors.atoms[0]).toint()
        chosen = list(vectors.parts[0])
        for i in range(1, MAX_PARTS):
            is_behind = tile_n >= vectors.first_tiles[i]
            first = select_(is_behind, vectors.first_tiles[i], first)
            address = select_(is_behind, get_tma_desc_addr(vectors.atoms[i]).toint(), address)
            chosen = [select_(is_behind, x, y) for x, y in zip(vectors.parts[i], chosen, strict=True)]
        cute.arch.inline_ptx("prefetch.tensormap [{$r0}];", read_only_args=[address])
        n, of_d, d_row, bias = chosen
        element_bytes = int(self.element.width) // 8
        target = cute.make_ptr(self.element, of_d, cute.AddressSpace.gmem, assumed_align=element_bytes)
        layout = cute.make_layout((d.shape[0], n), stride=(d_row, 1))
        return tile_n - first, cute.make_tensor(target, layout), bias, (address,)

    @cute.jit
    def _finish(self, sums: Any, e: int, kept: Any, storage: Any, place: Any, n: Int32, vectors: Any) -> Float32:
        """Return an element of D before it is rounded; `vectors` is the address of a bias, or 0."""
        del e, kept, storage, place
        value = Float32(sums[0])
        if vectors != 0:
            pointer = cute.make_ptr(
                self.element, vectors, cute.AddressSpace.gmem, assumed_align=int(self.element.width) // 8
            )
            value = value + cute.make_tensor(pointer, cute.make_layout(1 << 30))[n].to(Float32)
        return value


def parts_entry(gemm: PartsSplitGemm, signature: Signature, operation: Operation) -> Entry:
    """Make the entry of a configured kernel, which takes any D.

    Args:
        gemm: what launches it while tracing.
        signature: the entry's arguments.
        operation: element types and layout.
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
        _tile_order: Optional[Int32],  # noqa: UP045 - the compiler reads this form alone
        stream: cuda.CUstream,
    ) -> None:
        gemm(a, b, d, parts, prefetch_b, stream)

    return Entry(entry, epilogue_arguments(signature, operation, 1))
