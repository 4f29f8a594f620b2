"""quack's block-scaled GEMM over groups of rows whose D is narrow elements with factors. Imports CUTLASS and quack.

The factors of each group's rows begin with an atom of their own, as those of A's rows do: the next product over the
same groups reads them there.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from aot.families._grouped_kernel import GemmGroupedSm100, GroupedMixin
from aot.families._quantized_kernel import FactorStore, with_fields_of_d


class GemmQuantizedGroupedSm100(GemmGroupedSm100):
    """`GemmGroupedSm100` that writes the factors of D, or of a gate's product, beside it."""

    _epi_ops = (
        *GroupedMixin._epi_ops,  # noqa: SLF001 - quack's name of what an epilogue is made of
        FactorStore("factors_d"),
        FactorStore("factors_product", output="product"),
    )

    EpilogueArguments = with_fields_of_d(GroupedMixin.EpilogueArguments)

    def arguments(self, *, own_d: Any, factors_d: Any, d: Any, product: Any, **operands: Any) -> Any:  # type: ignore[override]
        """Name an operation's operands as the kernel's epilogue does; each None where there is none."""
        made = super().arguments(product=product, **operands)
        own = None if own_d is None else own_d.iterator
        written = {"factors_d" if product is None else "factors_product": factors_d}
        return made._replace(sfd_norm_const=own, rows=d.shape[0], columns=d.shape[1], **written)
