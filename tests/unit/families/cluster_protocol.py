"""Random runs of the loads of `sm90_one_tile` in a cluster of any shape.

Each CTA has two loading warps and one that multiplies. A loading warp takes a block of k where its own `empty` barrier
of the stage says so; the columns' announces the bytes of both operands. A CTA loads a part of its rows for all CTAs of
the same rows, and a part of its columns for all of the same columns; what has no equal parts it loads whole, in its
turn. Releases go to every CTA. What is on its way, a part or a release, comes at any time.
"""

from dataclasses import dataclass, field
from random import Random

from aot.families._sm90_split_tile import OneTile


class FaultError(Exception):
    """What must not happen."""


@dataclass
class Stage:
    """A stage of a CTA: its two barriers, and the parts that lie in it."""

    arrivals: int
    full_phase: int = 0
    is_announced: bool = False
    pending: int = 0
    empty_phase: int = 0
    left: int = 0
    parts: list[int] = field(default_factory=list)

    def complete(self):
        """End a phase of `full` once all that was announced has come."""
        if self.is_announced and self.pending == 0:
            self.full_phase, self.is_announced = self.full_phase + 1, False


class Run:
    """One run of a cluster, whose next step is drawn."""

    def __init__(self, cluster, num_stages, num_blocks, seed, arrivals=None, columns=128):
        self.tile = OneTile(128, columns, 1, 2, num_stages, *cluster)
        sides = zip(self.tile.takes_turns, self.tile.sharing, strict=True)
        self.num_parts = sum(1 if in_turns else sharing for in_turns, sharing in sides)
        self.ctas = range(self.tile.num_tiles)
        self.num_stages, self.num_blocks, self.random = num_stages, num_blocks, Random(seed)
        count = arrivals or self.tile.num_tiles
        self.stages = [[Stage(count, left=count) for _ in range(num_stages)] for _ in self.ctas]
        self.blocks = [[0, 0, 0] for _ in self.ctas]
        self.flights = []

    def can(self, cta, warp):
        """Say whether a warp may take its next block."""
        block = self.blocks[cta][warp]
        if block == self.num_blocks:
            return False
        turn, index = divmod(block, self.num_stages)
        stage = self.stages[cta][index]
        return stage.full_phase % 2 != turn % 2 if warp == 2 else stage.empty_phase % 2 == turn % 2

    def load(self, cta, operand):
        """Load a CTA's part of an operand for all that share it, or all of it in the CTA's turn."""
        block = self.blocks[cta][operand]
        index = block % self.num_stages
        if operand == 1:
            stage = self.stages[cta][index]
            stage.is_announced, stage.pending = True, stage.pending + self.num_parts
            stage.complete()
        count, first, part, step = self.tile.sharers(cta)[operand]
        if not self.tile.takes_turns[operand] or block % count == part:
            self.flights += [(first + step * i, index, block) for i in range(count)]
        self.blocks[cta][operand] += 1

    def multiply(self, cta):
        """Read a stage, and release the one before where it is loaded again."""
        block = self.blocks[cta][2]
        stage = self.stages[cta][block % self.num_stages]
        if stage.parts.count(block) != self.num_parts:
            raise FaultError("a stage is read before it is loaded")
        if block >= 1 and block + self.num_stages - 1 < self.num_blocks:
            self.flights += [(x, (block - 1) % self.num_stages, None) for x in self.ctas]
        self.blocks[cta][2] += 1

    def arrive(self, number):
        """Let something that is on its way come."""
        cta, index, block = self.flights.pop(number)
        stage = self.stages[cta][index]
        if block is None:
            stage.left -= 1
            if stage.left == 0:
                stage.empty_phase, stage.left = stage.empty_phase + 1, stage.arrivals
            return
        if block >= self.num_stages and self.blocks[cta][2] < block - self.num_stages + 2:
            raise FaultError("a stage is overwritten while it is read")
        stage.parts = [x for x in stage.parts if x == block] + [block]
        stage.pending -= 1
        stage.complete()

    def go(self):
        """Go on until all blocks are multiplied.

        Raises:
            FaultError: a stage is read before it is loaded or overwritten while it is read, or all warps wait for ever.
        """
        while any(x[2] < self.num_blocks for x in self.blocks):
            steps = [(c, w) for c in self.ctas for w in range(3) if self.can(c, w)]
            steps += [(None, i) for i in range(len(self.flights))]
            if not steps:
                raise FaultError("all warps wait for ever")
            cta, which = self.random.choice(steps)
            if cta is None:
                self.arrive(which)
            elif which == 2:
                self.multiply(cta)
            else:
                self.load(cta, which)
        if any(block is None for _, _, block in self.flights):
            late = [x for x in self.flights if x[2] is None]
            raise FaultError(f"{len(late)} releases come after all blocks are multiplied")
