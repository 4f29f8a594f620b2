"""How the kernels of each kind are tried, by the kind's name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from aot.core.operation import KIND as GEMM
from aot.kinds.gemm.trial import GemmTrial
from aot.kinds.rows.operation import KIND as ROWS
from aot.kinds.rows.trial import RowsTrial

if TYPE_CHECKING:
    from aot.core.work import AnyOperation
    from aot.kinds.trial import Trial

TRIALS: Mapping[str, Trial] = MappingProxyType({GEMM: GemmTrial(), ROWS: RowsTrial()})


def trial_of(operation: AnyOperation) -> Trial:
    """Return how the kernels of an operation are tried."""
    return TRIALS[operation.kind]
