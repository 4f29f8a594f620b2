"""quack's GEMMs over groups: of rows, with A's rows gathered if asked for, or along k. Imports CUTLASS and quack.

A group of rows is multiplied by a B of its own, and has bias and factors of B of its own; a group along k gives a D of
its own. What is gathered is read by index while it is loaded to shared memory: a row whose index is not one of A's is
read as zeros.

quack's private method that is overridden here is named in REPLACED. `tests/unit/families/test_grouped.py` fails
where a release of quack changes it.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Int32, const_expr, cute
from cutlass.cute.tensor import _Tensor as TensorValue
from cutlass.experimental import primitives as prims
from quack import copy_utils
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.ops import EpiContext, TileStore

from aot.families._epilogue_kernel import (
    ColumnVector,
    EpilogueMixin,
    Factor,
    GemmEpilogueSm90,
    GemmEpilogueSm100,
    RowVector,
    _Vector,
)
from aot.families._group_rows import DepthScheduler, RowScheduler
from aot.families._places import place_of

PARAMETERS = (
    *("tiled_mma", "tma_atom_a", "mA_mkl", "tma_atom_b", "mB_nkl"),
    *("tma_atom_sfa", "mSFA_mkl", "tma_atom_sfb", "mSFB_chunks"),
)
"""The first parameters of quack's kernels; Hopper's has the first five."""

PIECE_BYTES = 16
"""What one asynchronous copy writes to shared memory. Source: PTX ISA, cp.async: `.cg` takes 16 alone."""

REPLACED = {
    "_make_gather_A_copy": ["self", "mA_mkl", "sA", "varlen_manager", "tile_coord_mnkl", "batch_idx"],
}
"""The private methods of `GemmSm90` that are overridden here, with their parameters."""


@cute.jit
def gather_rows(copy: Any, a: cute.Tensor, shared: cute.Tensor, index: cute.Tensor, num_rows: Int32) -> Any:
    """Return the function that copies a tile along k of the rows of an index to shared memory.

    Args:
        copy: a thread's part of the tiled copy, of asynchronous copies of 16 bytes of a row.
        a: (rows, k), k contiguous.
        shared: (tile_m, tile_k, stages).
        index: the rows of the tile, of which `num_rows` are there.
        num_rows: Int32.
    """
    tile_m, tile_k = cute.size(shared, mode=[0]), cute.size(shared, mode=[1])
    staged = copy_utils.partition_D_position_independent(copy, shared)
    staged = cute.group_modes(cute.slice_(staged, (None, None, 0, None)), 0, 2)
    elements = const_expr(cute.size(staged.shape[0][0]))
    place = copy.partition_S(cute.make_identity_tensor((tile_m, tile_k)))
    size = const_expr(cute.size(place, mode=[1]))
    rows, are_there = cute.make_rmem_tensor(size, Int32), cute.make_rmem_tensor(size, Boolean)
    for i in cutlass.range_constexpr(size):
        row = Int32(-1)
        if place[0, i, 0][0] < num_rows:
            row = index[place[0, i, 0][0]]
        are_there[i] = (row >= 0) & (row < a.shape[0])
        rows[i] = cutlass.select_(are_there[i], row, 0)
    column = place[0, 0, 0][1]

    def copy_tile(k_tile: Any, stage: Any, pred: bool = False) -> None:
        del pred
        first = k_tile * tile_k + column
        # k may end inside a piece, and what lies behind it is not A's: NaN there would meet zeros of B, and behind the
        # last row memory may end. So each copy reads the bytes of k that are left, and the instruction writes zeros
        # behind them (PTX ISA, cp.async, src-size).
        left = cutlass.max(cutlass.min(a.shape[1] - first, Int32(elements)), Int32(0))
        for i in cutlass.range_constexpr(size):
            num_bytes = cutlass.select_(are_there[i], left * (a.element_type.width // 8), Int32(0))
            row: Any = a[rows[i], None]
            pieces = cute.tiled_divide(cute.append_ones(row, up_to_rank=2), (elements, 1))[None, None, 0]
            source, target = pieces[None, first // elements].iterator, staged[(None, i), stage].iterator
            prims.cp_async_shared_global(
                target.to_llvm_ptr(), source.to_llvm_ptr(), PIECE_BYTES, prims.LoadCacheModifier.CG, cp_size=num_bytes
            )

    return copy_tile


def behind_proxy_fence(multiply: Any) -> Any:
    """Return the function that multiplies a stage, which first makes gathered rows visible to `wgmma`.

    `cp.async` writes shared memory through the generic proxy, and `wgmma` reads it through the async proxy: a
    `fence.proxy.async` has to stand between them (PTX ISA, Memory Consistency Model, Proxies; wgmma.mma_async). The
    warp that gathers cannot execute it: its copies complete after it has gone on, and arrive at the barrier by
    themselves (`cp.async.mbarrier.arrive.noinc`). So the warps that multiply do, after they have waited for the stage.
    """

    def multiply_fenced(**stage: Any) -> Any:
        cute.arch.fence_proxy("async.shared", space="cta")
        return multiply(**stage)

    return multiply_fenced


class Placed(TensorValue):
    """B of groups, (n, k, places), or its factors, of which a kernel takes those of a group by their place."""

    def __init__(self, tensor: Any, places: Any) -> None:
        """Keep the tensor and the table of places."""
        super().__init__(tensor.value, dtype=tensor.element_type)
        self.tensor, self.places = tensor, places

    def __getitem__(self, position: Any, **_: Any) -> Any:
        """Return what is a group's."""
        *inside, group = position
        return self.tensor[(*inside, place_of(self.places, group))]

    def __extract_mlir_values__(self) -> list[Any]:
        """Return the values of which it is made, as CuTe DSL asks for."""
        return [*cutlass.extract_mlir_values(self.tensor), *cutlass.extract_mlir_values(self.places)]

    def __new_from_mlir_values__(self, values: list[Any]) -> "Placed":
        """Make it of other values of the same kinds, as CuTe DSL asks for."""
        size = len(cutlass.extract_mlir_values(self.tensor))
        made = cutlass.new_from_mlir_values(self.tensor, values[:size])
        return Placed(made, cutlass.new_from_mlir_values(self.places, values[size:]))


class GroupVector(_Vector):
    """A vector of a group: of columns (groups, n), of which a group has one of its own; of rows, those that it has."""

    def fetch(self, vector: Any, context: EpiContext) -> Any:
        """Read a thread's share of a tile's part."""
        if self.dim == 1:
            return _Vector.fetch(self, vector[context.batch_idx, None], context)
        return self.fetch_rows(vector, context)

    @cute.jit
    def fetch_rows(self, vector: cute.Tensor, context: EpiContext) -> Any:
        """Read the elements of the group's rows, by index where A's rows are gathered, and zeros for rows not there."""
        groups, threads = context.varlen_manager, context.num_epi_threads
        group, first = context.batch_idx, context.tile_coord_mnkl[0] * context.tile_M + context.tidx
        values = cute.make_rmem_tensor(cute.make_layout(-(-context.tile_M // threads)), vector.element_type)
        values.fill(0)
        for i in cutlass.range_constexpr(-(-context.tile_M // threads)):
            if first + i * threads < groups.len_m(group):
                row = groups.params.cu_seqlens_m[group] + first + i * threads
                if const_expr(groups.gather_A):
                    row = groups.params.mAIdx[row]
                if (row >= 0) & (row < cute.size(vector)):
                    values[i] = vector[row]
        return values


class GroupColumns(GroupVector, RowVector):
    """A vector with an element for each column of a tile, a group's own."""


class GroupRows(GroupVector, ColumnVector):
    """A vector with an element for each row of a tile."""


class GroupFactor(Factor):
    """A float32 of a group's own in global memory, of a vector (groups)."""

    @cute.jit
    def begin(self, gemm: Any, param: Any, smem_tensor: Any, ctx: Any) -> Any:  # noqa: ARG002 - quack's parameters
        """Read it."""
        return param[ctx.batch_idx]


class GroupedMixin(EpilogueMixin):
    """The epilogue of an operation over groups, for any of quack's GEMMs."""

    _epi_ops: tuple[Any, ...] = (
        GroupRows("row_scale"),
        GroupColumns("column_scale"),
        GroupColumns("column_bias"),
        GroupFactor("scale_d"),
        TileStore("product", gated=True),
    )
    _extra_param_fields = (("split_k_semaphore", Any, None), ("split_k_workspace", Any, None))

    @mlir_namedtuple
    class EpilogueArguments(NamedTuple):
        """`EpilogueMixin`'s without a bias of rows, and the places of B and of its atoms; None where there is none."""

        row_scale: Any = None
        column_scale: Any = None
        column_bias: Any = None
        scale_d: Any = None
        product: Any = None
        split_k_semaphore: Any = None
        split_k_workspace: Any = None
        places: Any = None
        scale_b_places: Any = None

    def arguments(
        self,
        *,
        scale_a: Any,
        scale_b: Any,
        bias: Any,
        scale_d: Any,
        product: Any,
        places: Any,
        scale_b_places: Any,
        **_: Any,
    ) -> Any:
        """Name an operation's operands as the kernel's epilogue does; each None where there is none."""
        return self.EpilogueArguments(
            row_scale=scale_a,
            column_scale=scale_b,
            column_bias=bias,
            scale_d=scale_d,
            product=product,
            places=places,
            scale_b_places=scale_b_places,
        )

    def kernel(self, *args: Any) -> Any:
        """Return the launch of quack's kernel, which finds a group's B, and its factors, by their place."""
        given = list(args)
        for name, places in (("mB_nkl", self.places), ("mSFB_chunks", self.scale_b_places)):
            if places is not None:
                at = PARAMETERS.index(name)
                given[at] = Placed(given[at], places)
        return super().kernel(*given)

    def epi_to_underlying_arguments(self, args: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """Return the kernel's parameters, and keep the places, which are not the epilogue's."""
        self.places, self.scale_b_places = args.places, args.scale_b_places
        return super().epi_to_underlying_arguments(args, loc=loc, ip=ip)

    def get_scheduler_class(self, varlen_m: bool = False) -> Any:
        """Return the order of the tiles."""
        return RowScheduler if varlen_m else DepthScheduler


class GemmGroupedSm90(GroupedMixin, GemmEpilogueSm90):
    """quack's Hopper GEMM over groups."""

    @cute.jit
    def _make_gather_A_copy(  # noqa: N802 - quack's name
        self, a: cute.Tensor, shared: cute.Tensor, groups: Any, tile: Any, group: Int32
    ) -> Any:
        """Return the function that copies A's rows, and none that fetches ahead."""
        index = cute.domain_offset((groups.params.cu_seqlens_m[group],), groups.params.mAIdx)
        first = tile[0] * self.cta_tile_shape_mnk[0]
        threads = self.num_ab_load_warps * cute.arch.WARP_SIZE
        thread = cute.arch.thread_idx()[0] - cute.arch.WARP_SIZE * self.ab_load_warp_id
        copy = self._make_gmem_tiled_copy_A(a.element_type, self.a_layout, threads).get_slice(thread)
        rows = cute.domain_offset((first,), index)
        return gather_rows(copy, a, shared, rows, groups.len_m(group) - first), None

    def mma(self, ab_pipeline: Any, ab_read_state: Any, mma_fn: Any, *args: Any) -> Any:
        """Multiply the stages of a tile as quack does, gathered ones behind a fence."""
        multiply = behind_proxy_fence(mma_fn) if self.gather_A else mma_fn
        return super().mma(ab_pipeline, ab_read_state, multiply, *args)


class GemmGroupedSm100(GroupedMixin, GemmEpilogueSm100):
    """quack's Blackwell GEMM over groups."""
