"""How a lane reads its part of a stage: x, and of a block of the weight factors and zero points. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

from aot.core.weight_format import BLOCK_K
from aot.core.weight_packing import CODE_BYTES
from aot.families._weight_only_decode import Decoder, words_at
from aot.families._weight_only_rows import RowReader
from aot.families._weight_only_tile import MMA_N, X_BYTES, X_PIECE, X_TURN, Tile

K_OF_LOAD = 32
"""Elements along k that the four lanes of a row read of x at once, 16 bytes each."""


@dataclass(frozen=True)
class StageReader:
    """Reads the stages of one candidate; to be called while tracing."""

    tile: Tile
    decoder: Decoder

    @property
    def of_rows(self) -> RowReader:
        """Return what reads a weight that lies in rows."""
        return RowReader(self.tile, self.decoder)

    def block(self, i: int, index: int) -> int:
        """Return where a block of a tile of rows begins in a stage, in bytes."""
        return i * self.tile.copy_bytes + index * self.tile.block_bytes

    def x_of_block(self, stage: Any, index: int, rows: Int32) -> list[list[Any]]:
        """Read x of a block of k: of each step and eight rows two words. Rows too many are the last one again."""
        tile = self.tile
        lane = cute.arch.lane_idx()
        found: list[list[Any]] = [[] for _ in range(BLOCK_K // 16)]
        for j in range(self.tile.column_tiles):
            row = cutlass.min(lane // 4 + j * MMA_N, rows - 1)
            start = stage + (tile.weight_bytes + index * BLOCK_K * X_BYTES + row * tile.x_row_bytes)
            if tile.form.in_rows:
                for step, words in enumerate(self.of_rows.x_of_rows(start, row)):
                    found[step].append(words)
                continue
            turn = (row & 1) * (X_TURN * X_PIECE * X_BYTES)
            starts = start + (turn + lane % 4 * CODE_BYTES), start + (lane % 4 * CODE_BYTES - turn)
            for piece in range(BLOCK_K // K_OF_LOAD):
                words = words_at(starts[piece % 2] + piece * K_OF_LOAD * X_BYTES)
                for half in range(2):
                    found[2 * piece + half].append([words[2 * half], words[2 * half + 1]])
        return found

    def registers(self, stage: Any, block: int, step: int, known: tuple[dict[Any, Any], Any]) -> list[Any]:
        """Return the operands of a step of a tile's block, whose codes are read where a step is the first to use them.

        Args:
            stage: where it begins.
            block: what `block` returned.
            step: of 16 elements along k.
            known: what was read of this block before, by the step that read it; and what `Decoder.masks` returned.
        """
        decoder, (held, masks) = self.decoder, known
        if self.tile.form.in_rows:
            if "codes" not in held:
                held["codes"] = self.of_rows.codes(stage + block)
            load, inside = divmod(step, 2)
            if load not in held:
                held[load] = [decoder.apart(of_row[load]) for of_row in held["codes"]]
            return [x[2 * inside + pair] for pair in range(2) for x in held[load]]
        load, inside = divmod(step, decoder.steps_per_load)
        if load not in held:
            place = block + load * 32 * CODE_BYTES
            held[load] = words_at(stage + (place + cute.arch.lane_idx() * CODE_BYTES))
        return decoder.operands(held[load], inside, masks)

    def factors(self, block: Any) -> Any:
        """Read the factors of a lane's two rows in a block: of each group, or of nvfp4 of each 32 elements or 16."""
        tile, lane = self.tile, cute.arch.lane_idx()
        if not tile.form.group:
            return None
        if tile.form.in_rows:
            return self.of_rows.factors(block)
        start = block + tile.layout.code_bytes
        if tile.form.is_nvfp4:
            words = words_at(start + (lane // 4 * 2 + lane % 4 // 2) * 8, 2)
            return self.decoder.block_factors([words[i] for i in range(2)])
        count = tile.layout.factor_bytes // 8 // 4
        words = words_at(start + lane // 4 * (4 * count), count)
        return self.decoder.group_factors([words[i] for i in range(count)])

    def zero_points(self, block: Any) -> Any:
        """Read the zero points of a lane's two rows in each group of a block, as `Decoder.zero_points` has them."""
        tile, row = self.tile, cute.arch.lane_idx() // 4
        if not tile.form.has_zeros:
            return None
        start, count = block + (tile.layout.code_bytes + tile.layout.factor_bytes), tile.layout.zero_bytes // 8
        if count == 2:  # of two rows one word
            word = words_at(start + row // 2 * 4, 1)[0]
            return self.decoder.zero_points(Uint32(word) >> row % 2 * 16)[:1]
        words = words_at(start + row * count, count // 4)
        return [x for i in range(count // 4) for x in self.decoder.zero_points(words[i])]
