"""The kernels of norms, pairs and quantisation, in CuTe DSL. Imports CUTLASS.

The threads of a row have its vectors in turn, in float32 registers. Where a row is wider than these (`is_looped`), it
is read again for each step: for the mean, the variance, the largest magnitude and the result. Each thread reads and
writes the same columns in every step, so that nothing is kept from it by what it wrote itself, in place or not.

Where no element depends on the others of its row, a CTA takes a piece of the row that its registers hold.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Boolean, Constexpr, Float32, Int32, const_expr, cute, range_constexpr
from cutlass.memory import SmemAllocator

from aot.core.candidate import Candidate
from aot.core.element import ElementType
from aot.core.numerics import max_finite
from aot.families._epilogue_registers import Registers
from aot.families._grid import along_x
from aot.families.rows import _space
from aot.families.rows._memory import Place, has, load, load_weights, maximum, plus, reduce, registers, store
from aot.families.rows._operands import Affine, Operands
from aot.families.rows._quotient import divide
from aot.kinds.rows.candidate import RowKnobs
from aot.kinds.rows.function import LAYER_NORM, RMS_NORM
from aot.kinds.rows.operation import RowOperation
from aot.kinds.rows.quantization import LEAST_SCALE
from aot.kinds.rows.signature import RowFlag

MEAN, SQUARES, MAGNITUDE = range(3)
"""The places of the reductions of a row in shared memory."""
NUM_REDUCTIONS = 3


@dataclass(frozen=True, repr=False)
class RowKernel:
    """The kernel of one candidate."""

    operation: RowOperation
    candidate: Candidate
    registers: int
    """What a thread cannot do without."""
    is_looped: bool

    def __repr__(self) -> str:
        """Return what the compiler names the kernel by."""
        return _space.kernel_text(self)

    @property
    def knobs(self) -> RowKnobs:
        """Return what the candidate sets."""
        return RowKnobs.of(self.candidate)

    def launch(self, operands: Any, stream: cuda.CUstream) -> None:
        """Launch a CTA for each few rows, or pieces of them; to be called while tracing."""
        rows, cols = operands.y.shape
        groups = cutlass.max(cute.ceil_div(rows, self.knobs.rows_per_cta), 1)
        self._traced(operands).launch(
            grid=along_x(groups, self._num_pieces(cols)),
            block=(self.knobs.num_threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=_space.blocks_per_sm(self.registers, self.knobs.num_threads),
            preferred_smem_carveout=_space.SMEM_CARVEOUT,
            use_pdl=True,
        )

    def _traced(self, operands: Any) -> Any:
        """Call the kernel with what it takes."""
        return self.kernel(*operands.without_groups)

    def _num_pieces(self, cols: Any) -> Any:
        """Count the pieces that a row is cut into."""
        return 1 if self.operation.reduces_rows else cute.ceil_div(cols, self.knobs.columns)

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        residual: cute.Tensor | None,
        weight: cute.Tensor | None,
        bias: cute.Tensor | None,
        y: cute.Tensor,
        residual_out: cute.Tensor | None,
        scale: cute.Tensor | None,
        tensor_scale: cute.Tensor | None,
        eps: Float32 | None,
        weight_offset: Float32 | None,
        flags: Int32,
    ) -> None:
        """Compute the rows of a CTA, or pieces of them: see the module."""
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        more = None, None, eps, weight_offset, flags
        self._compute(Operands(x, residual, weight, bias, y, residual_out, scale, tensor_scale, *more))

    def _compute(self, operands: Any) -> None:
        """Compute the rows of a CTA, or a piece of them."""
        knobs = self.knobs
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        rows, cols = operands.y.shape
        group, piece = block, Int32(0)
        if const_expr(not self.operation.reduces_rows):
            pieces = self._num_pieces(cols)
            group, piece = block // pieces, block % pieces
        row = group * knobs.rows_per_cta + thread // knobs.threads_per_row
        lane = thread % knobs.threads_per_row
        first = piece * knobs.columns + lane * knobs.vector_elements
        place = Place(knobs, row, first, cutlass.select_((row >= 0) & (row < rows), cols, 0))  # row may wrap
        place = self._placed(operands, place)
        num_warps = -(-knobs.num_threads // cute.arch.WARP_SIZE)
        shared = SmemAllocator().allocate_tensor(Float32, cute.make_layout((num_warps, NUM_REDUCTIONS)), 16)
        if const_expr(self.is_looped):
            self._loop(operands, place, shared)
        else:
            self._once(operands, place, shared, piece)

    def _placed(self, operands: Any, place: Any) -> Any:
        """Return the place of a thread, whose row may be one of a group."""
        del operands
        return place

    @cute.jit
    def _once(self, operands: Any, place: Any, shared: Any, piece: Any) -> None:
        """Compute a row, or a piece of one, that registers hold."""
        values, affine = self._read(operands, place, is_first=True)
        if const_expr(self.operation.is_norm):
            cols = operands.y.shape[1]
            mean = Float32(0.0)
            if const_expr(self.operation.function == LAYER_NORM):
                mean = self._reduce(self._sum(values), plus, shared, MEAN) * _inverse(cols)
            squares = self._reduce(self._squares(values, mean, place), plus, shared, SQUARES)
            self._normalise(values, mean, self._deviation(squares, cols, operands), affine, operands)
        if const_expr(self.operation.is_quantized):
            self._quantize(values, operands, place, shared, piece)
        self._write(values, operands, place)

    def _quantize(self, values: Any, operands: Any, place: Any, shared: Any, piece: Any) -> None:
        """Divide values by their scale, in place, and write it."""
        magnitude = self._reduce(self._magnitude(values, place), maximum, shared, MAGNITUDE)
        divide(values, self._scale(magnitude, operands, place, piece), magnitude)

    @cute.jit
    def _loop(self, operands: Any, place: Any, shared: Any) -> None:
        """Compute a row of any width, a part at a time."""
        cols = operands.y.shape[1]
        parts = cute.ceil_div(cols, self.knobs.columns)
        mean, deviation, scale, magnitude = Float32(0.0), Float32(1.0), Float32(1.0), Float32(0.0)
        if const_expr(self.operation.is_norm):
            mean, deviation = self._statistics(operands, place, shared, parts)
        if const_expr(self.operation.is_quantized):
            for part in cutlass.range(parts, unroll=1):
                there = self._part(place, part)
                values = self._finished(operands, there, mean, deviation)
                magnitude = maximum(magnitude, self._magnitude(values, there))
            magnitude = self._reduce(magnitude, maximum, shared, MAGNITUDE)
            scale = self._scale(magnitude, operands, place, Int32(0))
        for part in cutlass.range(parts, unroll=1):
            there = self._part(place, part)
            values = self._finished(operands, there, mean, deviation)
            if const_expr(self.operation.is_quantized):
                divide(values, scale, magnitude)
            self._write(values, operands, there)

    @cute.jit
    def _statistics(self, operands: Any, place: Any, shared: Any, parts: Int32) -> Any:
        """Return a row's mean, of an RMS norm 0, and 1 over its deviation; write X + RESIDUAL on the way."""
        cols = operands.y.shape[1]
        is_layer_norm = const_expr(self.operation.function == LAYER_NORM)
        total, mean = Float32(0.0), Float32(0.0)
        for part in cutlass.range(parts, unroll=1):
            there = self._part(place, part)
            values, _ = self._read(operands, there, is_first=True)
            if const_expr(is_layer_norm):
                total += self._sum(values)
            else:
                total += self._squares(values, mean, there)
        if const_expr(is_layer_norm):
            mean = self._reduce(total, plus, shared, MEAN) * _inverse(cols)
            total = Float32(0.0)
            for part in cutlass.range(parts, unroll=1):
                there = self._part(place, part)
                values, _ = self._read(operands, there, is_first=False)
                total += self._squares(values, mean, there)
        total = self._reduce(total, plus, shared, SQUARES)
        return mean, self._deviation(total, cols, operands)

    def _part(self, place: Any, part: Any) -> Any:
        """Return the place of a thread in a part of its row."""
        return place._replace(first=place.first + part * self.knobs.columns)

    @cute.jit
    def _finished(self, operands: Any, place: Any, mean: Float32, deviation: Float32) -> Any:
        """Return a part's values before they are quantised."""
        values, affine = self._read(operands, place, is_first=False)
        if const_expr(self.operation.is_norm):
            self._normalise(values, mean, deviation, affine, operands)
        return values

    def _reduce(self, value: Any, combine: Any, shared: Any, which: int) -> Any:
        """Combine a value of each thread of a row."""
        return reduce(value, combine, self.knobs.threads_per_row, shared[None, which])

    @cute.jit
    def _read(self, operands: Any, place: Any, is_first: Constexpr[bool]) -> Any:
        """Return a thread's float32 values, those of columns that are not there 0, and of a norm its weights."""
        values = registers(self.knobs, Float32)
        loaded = registers(self.knobs, operands.x.element_type)
        if const_expr(self.operation.is_pair):
            second = registers(self.knobs, operands.x.element_type)
            self._read_pairs(operands, place.of_x, loaded, second, values)
            return values, None
        if const_expr(self.operation.is_norm):
            return self._read_sum(operands, place, loaded, values, is_first)
        load(operands.x, place.of_x, loaded, Boolean(True))
        values.store(loaded.load().to(Float32))
        if const_expr(self.operation.function.arithmetic != ""):
            self._compute_each(values)
        return values, None

    @cute.jit
    def _read_sum(self, operands: Any, place: Any, loaded: Any, values: Any, is_first: Constexpr[bool]) -> Any:
        """Return X + RESIDUAL, rounded to X's type, and the weights; write the sum, where this is the first time."""
        flags, element = operands.flags, operands.x.element_type
        affine = self._read_affine(operands, place)  # first: behind the others it would wait for what they load
        added = registers(self.knobs, element)
        has_residual, is_written = has(flags, RowFlag.HAS_RESIDUAL), has(flags, RowFlag.HAS_RESIDUAL_OUT)
        # Once the sum is written it is read there: RESIDUAL, and X, may be the same memory.
        is_sum = Boolean(False) if const_expr(is_first) else has_residual & is_written
        if is_sum:
            load(operands.residual_out, place, loaded, Boolean(True))
        else:
            load(operands.x, place, loaded, Boolean(True))
            load(operands.residual, place, added, has_residual)
        values.store(loaded.load().to(Float32))
        if has_residual:
            total = (values.load() + added.load().to(Float32)).to(element)
            values.store(total.to(Float32))
            if const_expr(is_first):
                loaded.store(total)
                self._write_sum(operands, place, loaded)
        return values, affine

    @cute.jit
    def _write_sum(self, operands: Any, place: Any, total: Any) -> None:
        """Store X + RESIDUAL, where it is asked for."""
        if has(operands.flags, RowFlag.HAS_RESIDUAL_OUT):
            store(operands.residual_out, place, total)

    @cute.jit
    def _read_affine(self, operands: Any, place: Any) -> Any:
        """Read a thread's weights and biases: 1 and 0 where there are none."""
        flags, element = operands.flags, operands.x.element_type
        weight, bias = registers(self.knobs, element), None
        load_weights(operands.weight, place, weight, has(flags, RowFlag.HAS_WEIGHT))
        if const_expr(self.operation.has_bias):
            bias = registers(self.knobs, element)
            load_weights(operands.bias, place, bias, has(flags, RowFlag.HAS_BIAS))
        offset = Float32(0.0) if const_expr(operands.weight_offset is None) else operands.weight_offset
        return Affine(weight, bias, cutlass.select_(has(flags, RowFlag.HAS_WEIGHT), offset, Float32(1.0)))

    @cute.jit
    def _read_pairs(self, operands: Any, place: Any, first: Any, second: Any, values: Any) -> None:
        """Compute the elements of Y of a thread's pairs.

        Of pairs that lie side by side two vectors hold a vector's elements of Y, in turn the gate's and the linear one.
        """
        arithmetic, elements = self.operation.function.load_arithmetic(), const_expr(self.knobs.vector_elements)
        is_interleaved = has(operands.flags, RowFlag.IS_INTERLEAVED)
        if is_interleaved:
            load(operands.x, place, first, Boolean(True), 2)
            load(operands.x, place, second, Boolean(True), 2, elements)
        else:
            load(operands.x, place, first, Boolean(True))
            load(operands.x, place, second, Boolean(True), 1, operands.y.shape[1])
        for i in range_constexpr(self.knobs.vectors_per_thread):
            for e in range_constexpr(elements):
                pair = [self._of_two(first, second, i, 2 * e), self._of_two(first, second, i, 2 * e + 1)]
                gate = cutlass.select_(is_interleaved, pair[0].to(Float32), first[e, i].to(Float32))
                linear = cutlass.select_(is_interleaved, pair[1].to(Float32), second[e, i].to(Float32))
                values[e, i] = arithmetic(gate, linear)

    def _compute_each(self, values: Any) -> None:
        """Compute the elements of Y of a thread's elements, in place."""
        arithmetic = self.operation.function.load_arithmetic()
        for i in range(self.knobs.vectors_per_thread):
            for e in range(self.knobs.vector_elements):
                values[e, i] = arithmetic(values[e, i])

    def _of_two(self, first: Any, second: Any, i: int, e: int) -> Any:
        """Return element e of a vector and the one behind it."""
        elements = self.knobs.vector_elements
        return first[e, i] if e < elements else second[e - elements, i]

    def _sum(self, values: Any) -> Any:
        """Return the sum of a thread's values."""
        return values.load().reduce(cute.ReductionOp.ADD, init_val=Float32(0.0), reduction_profile=0)

    @cute.jit
    def _squares(self, values: Any, mean: Float32, place: Any) -> Float32:
        """Return the sum of the squares of a thread's differences from the mean."""
        total = Float32(0.0)
        for i in range_constexpr(self.knobs.vectors_per_thread):
            squares = Float32(0.0)
            for e in range_constexpr(self.knobs.vector_elements):
                difference = values[e, i] - mean
                squares += difference * difference
            total += cutlass.select_(place.column(i) < place.limit, squares, Float32(0.0))
        return total

    def _deviation(self, squares: Any, cols: Any, operands: Any) -> Any:
        """Return 1 / sqrt(mean of the squares + eps), by `rsqrt.approx.ftz`."""
        return cute.math.rsqrt(squares * _inverse(cols) + operands.eps, fastmath=True)

    @cute.jit
    def _normalise(self, values: Any, mean: Float32, deviation: Float32, affine: Any, operands: Any) -> None:
        """Make values the norm's, in place."""
        is_rounded = has(operands.flags, RowFlag.ROUNDS_NORM)
        for i in range_constexpr(self.knobs.vectors_per_thread):
            for e in range_constexpr(self.knobs.vector_elements):
                value = (values[e, i] - mean) * deviation
                if const_expr(self.operation.function == RMS_NORM):
                    rounded = value.to(operands.x.element_type).to(Float32)
                    value = cutlass.select_(is_rounded, rounded, value)
                value *= affine.weight[e, i].to(Float32) + affine.offset
                if const_expr(affine.bias is not None):
                    value += affine.bias[e, i].to(Float32)
                values[e, i] = value

    @cute.jit
    def _magnitude(self, values: Any, place: Any) -> Float32:
        """Return the largest magnitude of a thread's values, or NaN where there is one."""
        largest = Float32(0.0)
        for i in range_constexpr(self.knobs.vectors_per_thread):
            found = Float32(0.0)
            for e in range_constexpr(self.knobs.vector_elements):
                found = maximum(found, cute.math.absf(values[e, i]))
            largest = maximum(largest, cutlass.select_(place.column(i) < place.limit, found, Float32(0.0)))
        return largest

    @cute.jit
    def _scale(self, magnitude: Float32, operands: Any, place: Any, piece: Int32) -> Float32:
        """Return the scale of a row, or of a piece of it; the row's first thread writes it, where it is not given."""
        scale = Float32(1.0)
        is_given = has(operands.flags, RowFlag.SCALE_IS_GIVEN)
        if is_given:
            if place.limit > 0:
                scale = operands.scale[place.row, 0]
        else:
            found = maximum(magnitude / Float32(max_finite(self.operation.y)), Float32(LEAST_SCALE))
            scale = cutlass.select_(magnitude == 0.0, Float32(1.0), found)
            is_first = cute.arch.thread_idx()[0] % self.knobs.threads_per_row == 0
            if is_first & (place.limit > 0):
                operands.scale[place.row, piece] = scale
        return scale

    @cute.jit
    def _write(self, values: Any, operands: Any, place: Any) -> None:
        """Round values to Y's type and store them."""
        rounded = registers(self.knobs, operands.y.element_type)
        if const_expr(self.operation.y is ElementType.INT8):
            for i in range_constexpr(cute.size(rounded)):
                rounded[i] = _to_int8(values[i])
        else:
            rounded.store(values.load().to(operands.y.element_type))
        store(operands.y, place, rounded)


def _inverse(x: Any) -> Any:
    """Return 1 / x, by `rcp.approx.ftz`."""
    return Registers().reciprocal(Float32(x))


def _to_int8(value: Any) -> Any:
    """Round to the nearest integer, ties to even; what is outside of int8 becomes its nearest end, and NaN 0."""
    whole = cute.arch.inline_ptx(
        "cvt.rni.s32.f32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[Float32(value)]
    )
    return cutlass.max(cutlass.min(whole, 127), -128).to(cutlass.Int8)
