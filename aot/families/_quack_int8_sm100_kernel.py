"""quack's Blackwell GEMM on int8 operands, with exact int32 sums. Imports CUTLASS and quack.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import Float32, Int32
from quack.gemm_default_epi import GemmDefaultSm100

from aot.families._arguments import seen_as


class Int8Sm100:
    """What turns the int32 sums in tensor memory into float32 for the epilogue of one of quack's Blackwell GEMMs."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch as quack does."""
        self.acc_dtype = Int32
        super().__call__(*args, **kwargs)

    def epilog_tmem_copy_and_partition(self, *args: Any, **kwargs: Any) -> Any:
        """Partition as quack does. What is traced from here on is the epilogue, of float32."""
        made = super().epilog_tmem_copy_and_partition(*args, **kwargs)
        self.acc_dtype = Float32
        return made

    def epi_load_acc_subtile(
        self, copy_t2r: Any, copy_r2s: Any, source: Any, loaded: Any, target: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Load a piece of the sums as quack does, and convert it."""
        sums = seen_as(target, Int32)
        super().epi_load_acc_subtile(copy_t2r, copy_r2s, source, loaded, sums, *args, **kwargs)
        target.store(sums.load().to(Float32))
