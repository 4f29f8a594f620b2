"""What the templates write of a library's operations: those of products whatever their layout, then those on rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.signature import signature_of
from aot.kinds.rows.catalogue import OWN_ROW_OPERATIONS
from aot.kinds.rows.function import OWN_FUNCTIONS
from aot.kinds.rows.operation import RowOperation
from aot.package.enumerations import argument_bits

if TYPE_CHECKING:
    from aot.kinds.rows.function import RowFunction
    from aot.package.manifest import Library


def _in_memory(element: ElementType) -> ElementType:
    """Return the element type that lies in memory: TF32 is float32 there."""
    return ElementType.FLOAT32 if element is ElementType.TFLOAT32 else element


@dataclass(frozen=True)
class Call:
    """An operation of products whatever its layout, as table.cc.j2 writes it: by the first that there is."""

    own: Operation
    layouts: int
    """A bit for each layout that some table has a section of."""
    batched: int
    """Number of the operation that computes a batch of these products; -1 where the library has none."""

    @property
    def tag(self) -> str:
        """Return what the C API's `aot_gemm_operation` takes."""
        return self.own.call

    @property
    def elements(self) -> list[ElementType]:
        """Return the types of A, B, D and a bias in memory."""
        types = self.own.types
        return [_in_memory(x) for x in (types.a, types.b, types.d, self.own.bias)]

    @property
    def presence(self) -> str:
        """Say whether a call has a bias: only the epilogue that is named by it needs one."""
        if not self.own.has_bias:
            return "none"
        return "required" if self.own.epilogue is Epilogue.BIAS else "optional"

    @property
    def factor(self) -> ElementType:
        """Return the type of the scale factors in memory; float32 where there are none."""
        scale = self.own.types.scale_b
        return ElementType.FLOAT32 if scale is None else scale.element

    @property
    def factor_block(self) -> int:
        """Return the elements along k that one factor of A or B serves; 0 where it serves all."""
        scale = self.own.types.scale_b
        return 0 if scale is None else scale.block_k

    @property
    def factor_of_d(self) -> ElementType:
        """Return the type of the factors that are written with D; float32 where there are none."""
        form = self.own.factors_of_d
        return ElementType.FLOAT32 if form is None else form.element

    @property
    def block_of_d(self) -> int:
        """Return the elements along n that one of those serves; 0 where there are none."""
        form = self.own.factors_of_d
        return 0 if form is None else form.block_k

    @property
    def weight(self) -> str:
        """Return the format of a packed weight; `none` where B is a matrix of elements."""
        return "none" if self.own.types.weight is None else self.own.types.weight.name

    @property
    def arguments(self) -> int:
        """Return the bits of what each of its kernels takes."""
        return argument_bits(signature_of(self.own, has_workspace=False, prefetches_b=False))

    @property
    def is_tf32(self) -> bool:
        """Say whether it is not exact of float32."""
        return self.own.types.a is ElementType.TFLOAT32


@dataclass(frozen=True)
class RowCall:
    """An operation on rows, as table.cc.j2 writes it."""

    own: RowOperation

    @property
    def arguments(self) -> int:
        """Return the bits of what its kernels take."""
        return argument_bits(self.own.signature)

    @property
    def factor(self) -> ElementType:
        """Return the element type of the scales."""
        return self.own.scale_element

    @property
    def factor_block(self) -> int:
        """Return the columns that one factor in atoms serves; 0 where scales are no such factors."""
        return 0 if self.own.factors is None else self.own.factors.block_k


@dataclass(frozen=True)
class Operations:
    """What a library's kernels compute, in the order of the catalogues."""

    calls: tuple[Call, ...]
    row_calls: tuple[RowCall, ...]

    @property
    def count(self) -> int:
        """Count those of both kinds."""
        return len(self.calls) + len(self.row_calls)

    def number_of(self, operation: Operation | RowOperation) -> int:
        """Return the number of an operation: those on rows come behind those of products."""
        if isinstance(operation, Operation):
            return next(number for number, call in enumerate(self.calls) if call.tag == operation.call)
        return len(self.calls) + self.row_calls.index(RowCall(operation))

    @property
    def functions(self) -> tuple[RowFunction, ...]:
        """Return the functions of rows by their numbers: ours, then those of other packages that are computed."""
        return tuple(dict.fromkeys((*OWN_FUNCTIONS, *(x.own.function for x in self.row_calls))))

    @property
    def row_catalogue(self) -> tuple[RowOperation, ...]:
        """Return the operations on rows that a wheel's Python knows: ours, and what is computed of other packages'."""
        return tuple(dict.fromkeys((*OWN_ROW_OPERATIONS, *(x.own for x in self.row_calls))))


def operations_of(library: Library) -> Operations:
    """List what a library's kernels and tables compute."""
    tabled = {section.operation for table in library.tables for section in table.table.sections}
    found = tabled | {kernel.operation for kernel in library.kernels}
    firsts = {x.call: x for x in sorted(found, key=lambda x: -x.position)}
    layouts = {tag: sum(1 << x.layout.code for x in tabled if x.call == tag) for tag in firsts}
    ordered = sorted(firsts.values(), key=lambda x: x.position)
    batches = {x.dense: number for number, x in enumerate(ordered) if x.grouping is Grouping.BATCHED}
    calls = [Call(x, layouts[x.call], next((batches[y] for y in x.layouts if y in batches), -1)) for x in ordered]
    on_rows = {section.operation for table in library.tables for section in table.row_table.sections}
    on_rows |= {kernel.operation for kernel in library.row_kernels}
    return Operations(tuple(calls), tuple(map(RowCall, sorted(on_rows, key=lambda x: x.position))))
