"""quack's Blackwell GEMM whose D is narrow elements with a factor for each block along n. Imports CUTLASS and quack.

quack has such a store, which finds the magnitudes of blocks in registers and writes the factors in atoms. It is the one
here, but for the arithmetic: quack multiplies by an approximate reciprocal, drops a NaN, and gives a block of zeros the
factor 0. What is written here has the bits of `aot.core.block_quantization`, of the float32 value in front of it: the
factor, the exact quotient, and an element rounded to nearest and ties to even.

Each thread has one row of D and whole blocks of it (`_setup_attributes` of quack widens the pieces that are stored).
Columns behind the last one have factors of 0, and rows behind the last one none.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from collections import namedtuple
from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint8, const_expr, cute
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.quantize_out import BlockScaleFactorStore

from aot.core.formats import ALIGNMENT_BYTES
from aot.core.operation import Operation
from aot.core.weight_format import ATOM_COLUMNS
from aot.families._arguments import cutlass_type
from aot.families._epilogue_kernel import EpilogueMixin, GemmEpilogueSm100
from aot.families.rows._factor_codes import mx_factor, nvfp4_factor
from aot.families.rows._memory import maximum
from aot.families.rows._quotient import divide, in_float32


class FactorStore(BlockScaleFactorStore):
    """The factors of an output's blocks, in atoms, as `aot.core.block_quantization` finds them."""

    def to_params(self, gemm: Any, args: Any) -> dict[str, Any]:
        """Pass on quack's view of the factors, where D's own factor lies, and D's extents."""
        view, own = super().to_params(gemm, args)[self.name]
        return {self.name: (view, own, args.rows, args.columns)}

    @cute.jit
    def begin(self, gemm: Any, param: Any, smem_tensor: Any, ctx: Any) -> Any:
        """Return quack's state of a tile, the tile's coordinates of a thread's elements, and D's columns.

        Of a thread whose row is none nothing is written: its limit is 0.
        """
        view, own, rows, columns = param
        state = super().begin(gemm, (view, own), smem_tensor, ctx)
        assert state.lane_span == 1 and state.warp_span == 1, "a thread has parts of blocks"  # noqa: S101, PT018
        places = ctx.partition_for_epilogue_fn(cute.make_identity_tensor((ctx.tile_M, ctx.tile_N)))
        row = ctx.tile_coord_mnkl[0] * ctx.tile_M + cute.filter_zeros(places)[0][0]
        if const_expr(ctx.varlen_manager.varlen_m):
            rows = ctx.varlen_manager.len_m(ctx.batch_idx)
        limit = Int32(cutlass.select_(row < rows, state.limit_m, Int32(0)))
        columns = columns * getattr(gemm, self._acc_mult_attr()) - ctx.tile_coord_mnkl[1] * ctx.tile_N
        return state._replace(limit_m=limit), places, columns

    def begin_loop(self, gemm: Any, state: Any, epi_coord: Any) -> Any:
        """Return quack's state of a piece, its coordinates, and the columns that D has of the tile."""
        of_tile, places, columns = state
        piece = cute.group_modes(places, 3, cute.rank(places))[None, None, None, epi_coord]
        return super().begin_loop(gemm, of_tile, epi_coord), piece, columns

    @cute.jit
    def quantize(self, gemm: Any, loop_state: Any, frag: Any) -> None:
        """Divide a thread's elements by the factors of their blocks, in place, and keep those."""
        state, places, columns = loop_state
        step, vector = const_expr(getattr(gemm, self._acc_mult_attr())), const_expr(getattr(gemm, self._vec_attr()))
        size = const_expr(vector // step)
        codes = cute.recast_tensor(cute.filter_zeros(state.tDrSFD_cur), Uint8)
        count = const_expr(cute.size(codes))
        # A row may end inside of a block. Behind it lie products of zeros by whatever fills the atoms of B up.
        may_end_inside = const_expr(gemm.operation.d.num_in(ALIGNMENT_BYTES) % size != 0)
        assert cute.size(frag) == count * size, "a thread has parts of blocks"  # noqa: S101
        for block in cutlass.range_constexpr(count):
            values = cute.make_tensor(frag.iterator + block * size, cute.make_layout(size))
            magnitude = Float32(0.0)
            for i in cutlass.range_constexpr(size):
                if const_expr(may_end_inside):
                    is_there = places[block * vector + i * step][1] < columns
                    values[i] = cutlass.select_(is_there, values[i], Float32(0.0))
                magnitude = maximum(magnitude, cute.math.absf(values[i]))
            code = self._scale(gemm, values, magnitude, state.norm_const)
            column = places[block * vector][1]
            codes[block] = Uint8(Int32(cutlass.select_(column < columns, code, Int32(0))))

    def _scale(self, gemm: Any, values: Any, magnitude: Any, own: Any) -> Any:
        """Divide the elements of a block by its factor, in place; return the factor's code."""
        form = gemm.operation.factors_of_d
        if form.has_tensor_factor:
            factor = nvfp4_factor(magnitude, own)
            divide(values, factor.by, magnitude)
        else:
            factor = mx_factor(magnitude, gemm.operation.d)
            for i in range(cute.size(values)):
                values[i] = in_float32("mul.rn.f32 {$w0}, {$r0}, {$r1};", values[i], factor.by)
        return factor.code

    @cute.jit
    def end(
        self,
        gemm: Any,
        param: Any,
        state: Any,
        epi_tile: Any,
        tiled_copy_t2r: Any,
        tiled_copy_r2s: Any,
        tile_coord_mnkl: Any,
        varlen_manager: Any,
        tidx: Any,
    ) -> None:
        """Write the factors of a tile, and zeros for what fills a row's last atom up behind the tile."""
        others = epi_tile, tiled_copy_t2r, tiled_copy_r2s, tile_coord_mnkl, varlen_manager, tidx
        super().end(gemm, param, state[0], *others)
        of_tile, places, left = state
        vector, tile_n = const_expr(getattr(gemm, self._vec_attr())), const_expr(gemm.cta_tile_shape_mnk[1])
        atom = const_expr(vector * ATOM_COLUMNS)
        if const_expr(tile_n % atom != 0):
            view, group = param[0], tile_coord_mnkl[3]
            codes = cute.make_tensor(cute.recast_ptr(view.iterator, dtype=Uint8), view.layout)
            if const_expr(varlen_manager.varlen_m):
                codes = varlen_manager.offset_batch_SFA(codes, group)
            else:
                codes = codes[None, None, group]
            first = tile_coord_mnkl[1] * tile_n
            row = tile_coord_mnkl[0] * gemm.cta_tile_shape_mnk[0] + cute.filter_zeros(places)[0][0]
            end = cute.round_up(first + left, atom)
            for block in cutlass.range_constexpr(tile_n, tile_n + atom - vector, vector):
                if (left > 0) & (left <= tile_n) & (first + block < end) & (of_tile.limit_m > 0):
                    codes[row, first + block] = Uint8(0)


FIELDS_OF_D = ("factors_d", "factors_product", "sfd_norm_const", "rows", "columns")
"""The factors of D or of the product: one of the two, as atoms (1, down, along, 32, 4, 4); then what points to D's own
factor, whose name is quack's, and D's extents."""


def with_fields_of_d(arguments: Any) -> Any:
    """Return the named tuple of an epilogue's arguments with `FIELDS_OF_D` behind them, all None by default."""
    names = (*arguments._fields, *FIELDS_OF_D)
    made = namedtuple("EpilogueArguments", names, defaults=(None,) * len(names))  # noqa: PYI024 - which has no defaults
    return mlir_namedtuple(made)


class GemmQuantizedSm100(GemmEpilogueSm100):
    """`GemmEpilogueSm100` that writes the factors of D, or of a gate's product, beside it."""

    _epi_ops = (
        *EpilogueMixin._epi_ops,  # noqa: SLF001 - quack's name of what an epilogue is made of
        FactorStore("factors_d"),
        FactorStore("factors_product", output="product"),
    )

    EpilogueArguments = with_fields_of_d(EpilogueMixin.EpilogueArguments)


def quantized_class(operation: Operation) -> Any:
    """Return the GEMM of an operation, to be called with quack's own arguments."""
    element_b = cutlass_type(operation.b.element)
    return partial(GemmQuantizedSm100, operation=operation, swap_ab=False, element_b=element_b)
