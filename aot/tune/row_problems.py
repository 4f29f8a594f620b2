"""The sizes that operations on rows are tuned on, and the kernels that each is measured with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.errors import CompileError
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable
from aot.kinds.rows.operation import RowFunction, RowOperation, RowProblem
from aot.kinds.rows.tuned import takes_packed
from aot.row_families import row_family_of
from aot.space.row_cost import row_time_us
from aot.space.row_legality import legal_rows, row_fallback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.compile.artifact import RowArtifact
    from aot.core.target import Target
    from aot.space.enumeration import Patterns

ROWS = (1, 16, 64, 512, 2048, 8192)
COLS = (1024, 2048, 4096, 8192, 16384)
"""Sizes of an operation. Source: hidden and intermediate sizes of public models; tokens of decoding and of prefill."""
HEAD_ROWS = (32, 512, 2048, 16384, 65536)
HEAD_COLS = (64, 128, 256)
"""Those of a rotary embedding: heads of all tokens, and elements of a head."""


def row_sizes(operation: RowOperation) -> list[RowProblem]:
    """List the sizes that an operation is measured on."""
    is_rotary = operation.function is RowFunction.ROTARY
    rows, cols = (HEAD_ROWS, HEAD_COLS) if is_rotary else (ROWS, COLS)
    return [RowProblem(operation, m, n) for n in cols for m in rows]


def _near(keys: Sequence[RowKernelKey], problem: RowProblem, target: Target, ratio: float) -> dict[RowKernelKey, float]:
    """Return the kernels that take a size and that the model does not think far from its best, with its times."""
    able = (x for x in keys if takes_packed(row_family_of(x.candidate).limits(x.candidate, x.operation), problem))
    times = {key: row_time_us(key, problem, target) for key in able}
    best = min(times.values(), default=0.0)
    return {key: us for key, us in times.items() if us <= ratio * best}


def row_tuning_keys(
    operations: Sequence[RowOperation], patterns: Patterns, ratio: float, target: Target
) -> dict[RowProblem, dict[RowKernelKey, float]]:
    """Choose the kernels that each size is measured with, each with its predicted time in microseconds.

    Args:
        operations: what is tuned.
        patterns: which candidates there are.
        ratio: leaves a kernel out of a size where the model says that it takes so many times its best.
        target: the device.

    Raises:
        CompileError: the patterns leave none.
    """
    found: dict[RowProblem, dict[RowKernelKey, float]] = {}
    for operation in operations:
        keys = [RowKernelKey(operation, x) for x in legal_rows(operation, target) if patterns.keep(x.name)]
        found |= {problem: _near(keys, problem, target, ratio) for problem in row_sizes(operation)}
    if operations and not any(found.values()):
        names = ", ".join(x.tag for x in operations)
        raise CompileError(f"the patterns of --kernels leave no kernel of {names}; exclude less")
    return {problem: keys for problem, keys in found.items() if keys}


def row_fallbacks(operations: Sequence[RowOperation], target: Target) -> list[RowKernelKey]:
    """List the kernels without which a library's tables are not total.

    Raises:
        CandidateError: no fallback family compiles for the target.
    """
    return [RowKernelKey(operation, row_fallback(operation, target)) for operation in operations]


def fallback_table(artifacts: Sequence[RowArtifact], target: Target) -> RowTable:
    """Return the table of a tuning library: a section for each operation, with no more than its fallback."""
    keys = [artifact.kernel.key for artifact in artifacts]
    sections = []
    for operation in dict.fromkeys(key.operation for key in keys):
        index = keys.index(RowKernelKey(operation, row_fallback(operation, target)))
        column = RowColumn(1, (RowStep(1, index, 0.0, PROVENANCE_PREDICTED),))
        sections.append(RowSection(operation, (column,), index))
    return RowTable(tuple(sections))
