"""quack's GEMMs with the epilogues of `_epilogue.py`: scales, bias, activation, residual, gate. Imports CUTLASS, quack.

quack makes such classes by functions too (`gemm_epilogue`), but registers them by the function's name alone, so that
the same epilogue of another GEMM gets the first one's class, and it loads vectors in whole words: what lies beyond a
bias's last element is read, and what is not read is whatever was in shared memory. Here a class is written out for each
GEMM, and elements that a vector does not have are zero, so that a bias may have none at all.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, const_expr, cute
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.mixin import ComposableEpiMixin
from quack.epilogue.ops import ColVecLoad, EpiContext, EpiOp, EpiSmemBytes, RowVecLoad, TileStore
from quack.rounding import RoundingMode

from aot.families._epilogue import Terms, finish, finish_gate, finish_sum
from aot.families._epilogue_registers import Registers, halves
from aot.families._quack_internals import MixedSm100
from aot.families._quack_sm90_kernel import GemmSplitSm90

STAGE_ALIGNMENT = 1024
"""Bytes to which the stages behind an epilogue's vectors are aligned. Source: quack's `buffer_align_bytes`."""


FETCHED = "fetched "
"""What stands before a vector's name where its tensors in registers are passed with those in shared memory."""


class _Vector:
    """A vector that is loaded to shared memory, a tile's part at a time, with zeros where it has no elements.

    `fetch` reads it to registers and `begin` writes those to shared memory, so that the reads of several vectors are
    under way at once. Any stride goes, and any alignment.
    """

    dim: int
    name: str

    def to_params(self, gemm: Any, args: Any) -> dict[str, Any]:
        """Pass the tensor on; quack would have strides of 16-bit elements be even."""
        del gemm
        return {self.name: getattr(args, self.name)}

    @cute.jit
    def fetch(self, vector: cute.Tensor, context: EpiContext) -> Any:
        """Read a thread's share of a tile's part."""
        tile = (context.tile_M, context.tile_N)[self.dim]
        start = context.tile_coord_mnkl[self.dim] * tile + context.tidx
        threads = context.num_epi_threads
        values = cute.make_rmem_tensor(cute.make_layout(-(-tile // threads)), vector.element_type)
        values.fill(0)
        for i in cutlass.range_constexpr(-(-tile // threads)):
            if start + i * threads < cute.size(vector):
                values[i] = vector[start + i * threads]
        return values

    @cute.jit
    def write(self, values: cute.Tensor, shared: cute.Tensor, context: EpiContext) -> None:
        """Write what `fetch` read to shared memory."""
        tile, threads = cute.size(shared), context.num_epi_threads
        for i in cutlass.range_constexpr(-(-tile // threads)):
            position = context.tidx + i * threads
            if position < tile:
                shared[position] = values[i]

    def view(self, gemm: Any, shared: Any, context: Any) -> tuple[list[Any], Any]:
        """View the part of a tile as an element for each of the tile's; return also the registers for those of a piece.

        The pieces of a ragged tile have a view each.
        """
        is_ragged = getattr(gemm, "ragged", False)
        columns = gemm.piece_columns if is_ragged else context.tile_N
        layout = cute.make_layout((context.tile_M, columns), stride=(0, 1) if self.dim == 1 else (1, 0))
        views = []
        for start in gemm.starts if is_ragged else (0,):
            first = shared.iterator + (start if self.dim == 1 else 0)
            parts = context.partition_for_epilogue_fn(cute.make_tensor(first, layout))
            views.append(parts if context.tiled_copy_t2r is None else context.tiled_copy_r2s.retile(parts))
        piece = cute.group_modes(views[0], 3, cute.rank(views[0]))[None, None, None, 0]
        return views, cute.make_rmem_tensor(piece.layout, gemm.acc_dtype)

    def begin_loop(self, gemm: Any, state: Any, epi_coord: Any) -> Any:
        """Load what a piece needs."""
        views, values = state
        if len(views) == 1:
            return super().begin_loop(gemm, [views[0], values], epi_coord)
        return super().begin_loop(gemm, [views[epi_coord[1]], values], (epi_coord[0], 0))


class RowVector(_Vector, RowVecLoad):
    """A vector with an element for each column of a tile."""


class ColumnVector(_Vector, ColVecLoad):
    """A vector with an element for each row of a tile."""


class Factor(EpiOp):
    """One float32 in global memory."""

    def param_fields(self) -> list[Any]:
        """List the kernel's parameter."""
        return [(self.name, object, None)]

    def to_params(self, gemm: Any, args: Any) -> dict[str, Any]:
        """Pass the tensor on."""
        del gemm
        return {self.name: getattr(args, self.name)}

    @cute.jit
    def begin(self, gemm: Any, param: Any, smem_tensor: Any, ctx: Any) -> Any:  # noqa: ARG002 - quack's parameters
        """Read it."""
        return param[0]


class EpilogueMixin(ComposableEpiMixin):
    """The epilogue of an operation, for any of quack's GEMMs.

    What belongs to the kernel's rows and columns is named by them: with exchanged operands A's scales are the columns'.
    """

    _epi_ops = (
        ColumnVector("row_scale"),
        RowVector("column_scale"),
        ColumnVector("row_bias"),
        RowVector("column_bias"),
        Factor("scale_d"),
        TileStore("product", gated=True),
    )
    _extra_param_fields = (
        ("split_k_semaphore", Any, None),
        ("split_k_workspace", Any, None),
        ("linear_first", Any, None),
    )

    @mlir_namedtuple
    class EpilogueArguments(NamedTuple):
        """The tensors that an epilogue takes, None where it has none of them.

        `product` is D of a gate, which has half as many columns as the kernel; it then has no D. `linear_first` is what
        `halves` takes of a gate without groups.
        """

        row_scale: cute.Tensor | None = None
        column_scale: cute.Tensor | None = None
        row_bias: cute.Tensor | None = None
        column_bias: cute.Tensor | None = None
        scale_d: cute.Tensor | None = None
        product: cute.Tensor | None = None
        split_k_semaphore: cute.Tensor | None = None
        split_k_workspace: cute.Tensor | None = None
        linear_first: Int32 | None = None

    def __init__(self, *args: Any, operation: Any, swap_ab: bool, **kwargs: Any) -> None:
        """Configure as quack does.

        Args:
            args: as in quack's GEMM, and `kwargs`.
            operation: whose epilogue it is.
            swap_ab: whether the kernel computes the transpose of D.
        """
        super().__init__(*args, **kwargs)
        self.operation = operation
        self.swap_ab = swap_ab

    def epi_to_underlying_arguments(self, args: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """Return the kernel's parameters."""
        del loc, ip
        self.rounding_mode = RoundingMode.RN
        parameters = self._epi_ops_to_params_dict(args)
        parameters |= {name: getattr(args, name) for name, _, _ in self._extra_param_fields}
        return self.EpilogueParams(**parameters)

    @cute.jit
    def epi_begin(
        self,
        params: Any,
        epi_smem_tensors: Any,
        epi_tile: Any,
        tiled_copy_t2r: Any,
        tiled_copy_r2s: Any,
        tile_coord_mnkl: Any,
        varlen_manager: Any,
        epilogue_barrier: Any,
        tidx: Any,
        layout: Any = None,
    ) -> Any:
        """Load a tile's part of the vectors."""
        context = EpiContext(
            self,
            epi_tile,
            tiled_copy_t2r,
            tiled_copy_r2s,
            tile_coord_mnkl,
            varlen_manager,
            epilogue_barrier,
            tidx,
            layout,
        )
        vectors = self._vectors()
        loaded = {
            op.name: op.begin(self, getattr(params, op.name), epi_smem_tensors.get(op.name), context)
            for op in self._epi_ops
            if not isinstance(op, _Vector)
        }
        fetched = [
            epi_smem_tensors[FETCHED + op.name]
            if FETCHED + op.name in epi_smem_tensors
            else op.fetch(getattr(params, op.name), context)
            for op in vectors
        ]
        for i in cutlass.range_constexpr(len(vectors)):
            vectors[i].write(fetched[i], epi_smem_tensors[vectors[i].name], context)
        if const_expr(len(vectors) > 0):
            epilogue_barrier.arrive_and_wait()
        return loaded | {op.name: op.view(self, epi_smem_tensors[op.name], context) for op in vectors}

    def _vectors(self) -> list[_Vector]:
        return [op for op in self._epi_ops if isinstance(op, _Vector)]

    def fetch_vectors(self, parameters: Any, lengths: Any, tile: Any, thread: Any) -> dict[str, Any]:
        """Read a thread's share of a tile's vectors to registers, from where `epi_begin` takes them.

        Call it before the tile is multiplied, so that nothing waits for the reads, and once its first stage is there:
        until then the kernel in front may still write what is read.
        """
        context = EpiContext(self, None, None, None, tile, lengths, None, thread)
        return {FETCHED + op.name: op.fetch(getattr(parameters, op.name), context) for op in self._vectors()}

    @cute.jit
    def epi_visit_subtile(self, params: Any, loaded: Any, sums: Any, residual: Any = None) -> Any:
        """Finish a piece of a tile in place; of a gate return its half as many elements."""
        if const_expr(self.operation.gate is not None):
            is_in_order = self.operation.grouping.groups_rows
            return self._visit_gate(loaded, sums, None if const_expr(is_in_order) else params.linear_first)
        pieces, scale_d = self._terms(loaded), self._scale_of_result(loaded)
        for i in cutlass.range_constexpr(cute.size(sums)):
            total = finish_sum(sums[i], self._terms_at(pieces, i))
            added = residual[i].to(Float32) if const_expr(residual is not None) else None
            sums[i] = finish(self.operation, total, Registers(), added, scale_d)
        return ()

    def _visit_gate(self, loaded: Any, sums: Any, linear_first: Any) -> Any:
        """Return the elements of a gate's D: even columns of the kernel are the half in front, odd ones the other."""
        pieces = self._terms(loaded)
        product = cute.make_rmem_tensor(cute.recast_layout(2, 1, sums.layout).shape, self.acc_dtype)
        for i in range(cute.size(product)):
            pair = tuple(finish_sum(sums[x], self._terms_at(pieces, x)) for x in (2 * i, 2 * i + 1))
            gate, linear = halves(pair, linear_first)
            product[i] = finish_gate(self.operation.gate, gate, linear, Registers())
        return (product,)

    def _terms(self, loaded: Any) -> Terms:
        """Return the factors and the bias of a piece, each None where there is none."""
        scales = loaded.get("row_scale"), loaded.get("column_scale")
        bias = loaded.get("row_bias") if self.swap_ab else loaded.get("column_bias")
        whole = loaded.get("scale_d") if self.operation.types.scales_sum else None
        return Terms(*(scales[::-1] if self.swap_ab else scales), bias, whole)

    def _scale_of_result(self, loaded: Any) -> Any:
        """Return the factor that D is multiplied by before it is rounded, None where there is none."""
        return None if self.operation.types.scales_sum else loaded.get("scale_d")

    def _terms_at(self, pieces: Terms, i: int) -> Terms:
        """Return the terms of one element of a piece."""
        scale_a, scale_b, bias = (None if x is None else x[i] for x in (pieces.scale_a, pieces.scale_b, pieces.bias))
        return Terms(scale_a, scale_b, bias, pieces.whole)


class GemmEpilogueSm90(EpilogueMixin, GemmSplitSm90):
    """quack's Hopper GEMM with an operation's epilogue."""

    def view_b(self, b: Any) -> Any:
        """Return the kernel's B as quack takes it."""
        return b


class GemmEpilogueSm100(EpilogueMixin, MixedSm100):
    """quack's Blackwell GEMM with an operation's epilogue, and with operands of two types of 8 bits."""

    @classmethod
    def epi_smem_bytes(cls, *args: Any, **kwargs: Any) -> Any:
        """Count the vectors with what aligns the stages behind them, which quack leaves out."""
        counted = super().epi_smem_bytes(*args, **kwargs)
        vectors = -(-counted.unstaged // STAGE_ALIGNMENT) * STAGE_ALIGNMENT
        return EpiSmemBytes(vectors, counted.d_stage, counted.c_stage)
