"""The caches that a rotary embedding writes keys and values to, as cases and calls have them.

A cache is a stack of a matrix (cache length, elements of a head) for each head of each sequence, as transformers has
it: (batch, heads, cache length, dim).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.numerics import bits_type, poison
from aot.core.operands import Matrix
from aot.kinds.rows.signature import RowArgument
from aot.kinds.trial import Placed

if TYPE_CHECKING:
    from aot.core.numerics import Bits

KEY_HEADS = 2
"""Of a token, in cases."""
FREE_POSITIONS = 5
"""Of the cache of a case, which nothing is written to."""
WORDS = 2
"""int32 in a position, which is an int64."""


def heads_of(tokens: int, heads: int, cols: int, stride: int) -> Matrix:
    """Return heads of tokens: a matrix of heads for each token."""
    return Matrix(heads, cols, stride, 1, tokens, heads * stride)


@dataclass(frozen=True)
class RowCache:
    """The sizes of both caches, and of what is written to them."""

    batch: int
    length: int
    heads: int
    num_positions: int
    """Tokens of each sequence."""

    @staticmethod
    def of_tokens(tokens: int, sequences: int) -> RowCache:
        """Return that of a case."""
        each = tokens // sequences
        return RowCache(sequences, each + FREE_POSITIONS, KEY_HEADS, each)

    def matrices(self, cols: int, stride: int) -> dict[RowArgument, Matrix]:
        """Return keys, values and their caches, of heads that lie `stride` elements apart."""
        rows = heads_of(self.batch * self.num_positions, self.heads, cols, stride)
        cache = Matrix(self.length, cols, stride, 1, self.batch * self.heads, self.length * stride)
        of_tokens = dict.fromkeys((RowArgument.KEYS, RowArgument.VALUES), rows)
        return of_tokens | dict.fromkeys((RowArgument.KEY_CACHE, RowArgument.VALUE_CACHE), cache)

    @property
    def position(self) -> dict[RowArgument, Placed]:
        """Return where the positions lie."""
        return {RowArgument.CACHE_POSITION: Placed(ElementType.INT32, Matrix(self.num_positions, WORDS, WORDS, 1))}

    def draw_position(self, rng: np.random.Generator) -> Bits:
        """Draw a position for each token of a sequence, (1, positions, words), every second one from the end."""
        found = rng.permutation(self.length)[: self.num_positions].astype(np.int64)
        found[::2] -= self.length
        return found.view(bits_type(ElementType.INT32)).reshape(1, -1, WORDS)

    def take(self, cache: Bits, position: Bits, element: ElementType) -> tuple[Bits, str]:
        """Return the rows that were written, in the order of tokens and heads, and a fault where others were too."""
        places = np.ascontiguousarray(position).view(np.int32).view(np.int64).ravel() % self.length
        is_free = np.ones(self.length, np.bool_)
        is_free[places] = False
        wrong = int((cache[:, is_free] != poison(element)).any(-1).sum())
        rows = cache.reshape(self.batch, self.heads, self.length, -1)[:, :, places].swapaxes(1, 2)
        return rows.reshape(-1, rows.shape[-1]), f"{wrong} heads of other positions were written" if wrong else ""
