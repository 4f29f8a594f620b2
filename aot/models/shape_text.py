"""Write the shape set of a model: its Linears, the m that they meet, and how often each stands in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.constraints import MAX_EXTENT, one_line
from aot.core.epilogue import Epilogue
from aot.core.errors import ShapeFileError
from aot.core.operation import Operation
from aot.core.shape_set import Weight
from aot.core.strict_toml import toml_string
from aot.models.blocks import ALIGNMENT, is_aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.element import ElementType
    from aot.models.linears import Linear, Rows

MAX_LABEL = 200
MAX_IMAGES = 8
"""Most inputs of a tower that are computed at once, where a batch of sequences may be larger."""


@dataclass(frozen=True)
class Ladder:
    """The m that serving gives."""

    batches: tuple[int, ...]
    """Sequences that are decoded together."""
    sequences: tuple[int, ...]
    """Tokens that are prefilled together."""
    experts: tuple[int, ...]
    """Tokens that meet one expert."""
    m: tuple[int, ...] = ()
    """What every Linear meets instead, where it is given."""

    def of(self, rows: Rows) -> tuple[int, ...]:
        """List the m that rows of a kind have, ascending.

        Raises:
            ShapeFileError: a batch of a tower's inputs has more than 2147483647 rows.
        """
        if self.m:
            found = set(self.m)
        elif rows.is_expert:
            found = set(self.experts)
        elif rows.num_tokens:
            batches = [x for x in self.batches if x <= MAX_IMAGES] or [min(self.batches)]
            found = {rows.num_tokens * x for x in batches}
        else:
            found = set(self.batches if rows.is_batch else (*self.batches, *self.sequences))
        if max(found) > MAX_EXTENT:
            raise ShapeFileError(
                f"{rows.num_tokens} rows an input make {max(found)} in all; expected at most {MAX_EXTENT}"
            )
        return tuple(sorted(found))


def unaligned(found: Sequence[Linear]) -> list[str]:
    """List the weights that make operands which are not aligned."""
    return [f"{x.name} {x.n} x {x.k}" for x in found if not is_aligned(Weight(x.name, x.n, x.k))]


def shape_text(name: str, source: str, found: Sequence[Linear], ladder: Ladder, element: ElementType) -> str:
    """Return the TOML: a model for each Linear, since each has its own count and perhaps a bias.

    Args:
        name: the family of the model.
        source: what it was made of, for the head of the file.
        found: the Linears.
        ladder: the m.
        element: the type of the weights.
    """
    head = [f"# Every Linear of a model, made by aot shapes from-config of {one_line(source)}."]
    head.append("# `counts` says how often a weight stands in the model: what one pass launches at that m.")
    odd = unaligned(found)
    if odd:
        head.append(f"# n or k is no multiple of {ALIGNMENT}, so that kernels for what is not aligned serve it:")
        head += [f"#   {one_line(x)}" for x in odd]
    return "\n".join(["\n".join(head) + "\nversion = 1\n", *(_model(name, x, ladder, element) for x in found)])


def _model(name: str, x: Linear, ladder: Ladder, element: ElementType) -> str:
    m, label = ladder.of(x.rows), one_line(x.name, MAX_LABEL)
    operation = Operation.of(element, epilogue=Epilogue.BIAS if x.has_bias else Epilogue.NONE)
    return (
        f"[[model]]\nname = {toml_string(one_line(name, MAX_LABEL))}\n"
        f'operations = ["{operation.tag}"]\n'
        f"weights = [{{ name = {toml_string(label)}, n = {x.n}, k = {x.k} }}]\n"
        f"m = {list(m)}\ncounts = {[x.count] * len(m)}\n"
    )
