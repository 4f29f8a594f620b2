"""Which rows of a timed problem are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.core.factor_atoms import ATOM_BYTES, factor_positions, num_atoms
from aot.core.weight_format import ATOM_ROWS
from aot.kinds.inputs import pick
from aot.kinds.rows.call import RowReference, timed_heads, timed_operands
from aot.kinds.rows.operation import RowScale
from aot.kinds.rows.reference import RowParameters
from aot.kinds.rows.signature import RowArgument
from aot.kinds.trial import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from aot.core.comparison import Comparison
    from aot.core.numerics import Bits
    from aot.kinds.inputs import Tiling
    from aot.kinds.rows.problem import RowProblem
    from aot.kinds.trial import SampleLimits

TIMED = RowParameters(float(np.float32(1e-5)))
"""The numbers of a call that is timed."""


class RowSample:
    """Some rows with a float64 reference; satisfies `aot.kinds.kind.Sample`.

    A scale of all of Y depends on every row: it is taken as the kernel wrote it.
    """

    def __init__(
        self, problem: RowProblem, tilings: Mapping[RowArgument, Tiling], limits: SampleLimits, rng: np.random.Generator
    ) -> None:
        """Take a sample of the first set, whose operands are tiled so."""
        self._operation = problem.operation
        count = max(1, min(limits.rows, limits.elements // problem.operation.num_columns_of_x(problem.cols)))
        rows = pick(rng, problem.rows, count)
        lines = {RowArgument.COS: rows // timed_heads(problem), RowArgument.SIN: rows // timed_heads(problem)}
        one = np.zeros(1, np.int64)
        lines |= {RowArgument.WEIGHT: one, RowArgument.BIAS: one}
        values: dict[RowArgument, NDArray[np.float64]] = {}
        for argument, placed in timed_operands(problem).items():
            if not placed.is_written and argument is not RowArgument.TENSOR_SCALE:
                width = placed.matrix.num_columns
                positions = lines.get(argument, rows)[:, None] * width + np.arange(width, dtype=np.int64)
                values[argument] = tilings[argument].values(positions)
        own = tilings.get(RowArgument.TENSOR_SCALE)
        given = None if own is None else np.float32(own.values(one).item())
        self._reference = RowReference(problem.operation, values, TIMED, given)
        self._num_rows = len(rows)
        self.spans = [Span(RowArgument.Y, row * problem.cols, problem.cols) for row in rows.tolist()]
        self._rows, self._blocks = rows, problem.operation.shape_of_scales(problem.rows, problem.cols)[1]
        if problem.operation.factors is not None:
            # Of a row the atoms of all 128: its factors lie apart in each.
            count = num_atoms(1, self._blocks)[1] * ATOM_BYTES
            self.spans += [Span(RowArgument.SCALE, row // ATOM_ROWS * count, count) for row in rows.tolist()]
        elif problem.operation.is_quantized:
            width = problem.operation.shape_of_scales(problem.rows, problem.cols)[1]
            places = [0] if problem.operation.scale is RowScale.TENSOR else rows.tolist()
            self.spans += [Span(RowArgument.SCALE, place * width, width) for place in places]

    @property
    def near(self) -> float:
        """Return 0: a baseline's result is held against the same bounds as a kernel's."""
        return 0.0

    def compare(self, bits: Sequence[Bits]) -> Comparison:
        """Hold whole rows against the reference."""
        y, scales = np.stack(bits[: self._num_rows]), bits[self._num_rows :]
        written: dict[RowArgument, Bits] = {RowArgument.Y: y}
        given = None
        if self._operation.factors is not None:
            places = factor_positions(self._rows % ATOM_ROWS, np.arange(self._blocks, dtype=np.int64), self._blocks)
            written[RowArgument.SCALE] = np.stack([x[at] for x, at in zip(scales, places, strict=True)])
        elif self._operation.scale is RowScale.TENSOR:
            given = np.stack(scales)
        elif scales:
            written[RowArgument.SCALE] = np.stack(scales)
        return self._reference.compare(written, given)
