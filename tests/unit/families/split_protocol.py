"""All states of the loads of `sm90_cluster_split_k` where CTAs of a cluster share an operand.

Each CTA has two loading warps and one that multiplies. A loading warp takes a block of k where its own `empty` barrier
of the stage says so; one of the two announces the bytes of both operands. Of the shared operand each CTA loads a part,
for all of them. What is on its way, bytes or an arrival at another CTA's barrier, comes at any time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

CHANGES = 0.02
"""How often another CTA is the one that is late, a step of a walk."""


@dataclass(frozen=True)
class Protocol:
    """How many stages and blocks of k there are, and what differs from the kernel."""

    num_stages: int
    num_blocks: int
    announces_shared: bool
    """Whether the warp that announces loads the shared operand."""
    num_ctas: int = 2
    """CTAs that share the operand."""
    more_arrivals: int = 0
    """Arrivals that free a stage, beside one of each CTA that reads what is loaded."""
    lag: int = 1
    """Blocks that are begun before a block's stage is freed: the next one, or none where sums are promoted, which waits
    for each block's instructions."""
    read_lag: int | None = None
    """The same of the last read of a block; None where the stage is freed behind it."""

    @property
    def arrivals(self) -> int:
        """Return how many arrivals free a stage."""
        return self.num_ctas + self.more_arrivals

    @property
    def units(self) -> int:
        """Return the bytes of a stage: one unit for each part of the shared operand, and one for the other operand."""
        return self.num_ctas + 1


@dataclass(frozen=True)
class State:
    """Where all warps are; barriers by CTA and stage."""

    blocks: tuple[int, ...]
    """Next block of k, of a CTA's announcing warp, its other loading warp, and the one that multiplies."""
    full: tuple[tuple[int, bool, int], ...] = ()
    """Phase, whether the announcement is there, and units that are still to come."""
    empty: tuple[tuple[int, int], ...] = ()
    """Phase, and arrivals that are still to come."""
    flights: tuple[tuple[int, int, int, int], ...] = ()
    """Receiving CTA, stage, block and units; an arrival at `empty` has 0 units."""
    loaded: tuple[tuple[tuple[int, int], ...], ...] = ()
    """(Block, units) that lie in a stage."""


class FaultError(Exception):
    """What must not happen."""


def _set(items: tuple, index: int, value: object) -> tuple:
    return (*items[:index], value, *items[index + 1 :])


def _completed(full: tuple[int, bool, int]) -> tuple[int, bool, int]:
    phase, is_announced, units = full
    return (phase + 1, False, 0) if is_announced and units == 0 else full


def _loads(state: State, protocol: Protocol) -> Iterator[State]:
    for cta in range(protocol.num_ctas):
        for warp in (0, 1):
            block = state.blocks[3 * cta + warp]
            turn, stage = divmod(block, protocol.num_stages)
            place = cta * protocol.num_stages + stage
            if block == protocol.num_blocks or state.empty[place][0] % 2 == 1 - turn % 2:
                continue
            full = state.full
            if warp == 0:
                phase, _, units = full[place]
                full = _set(full, place, _completed((phase, True, units + protocol.units)))
            is_shared = protocol.announces_shared == (warp == 0)
            flights = [(x, stage, block, 1) for x in (range(protocol.num_ctas) if is_shared else (cta,))]
            blocks = _set(state.blocks, 3 * cta + warp, block + 1)
            yield replace(state, blocks=blocks, full=full, flights=tuple(sorted([*state.flights, *flights])))


def _multiplies(state: State, protocol: Protocol) -> Iterator[State]:
    for cta in range(protocol.num_ctas):
        block = state.blocks[3 * cta + 2]
        turn, stage = divmod(block, protocol.num_stages)
        place = cta * protocol.num_stages + stage
        if block == protocol.num_blocks or state.full[place][0] % 2 == turn % 2:
            continue
        if sum(units for x, units in state.loaded[place] if x == block) != protocol.units:
            raise FaultError("a stage is read before it is loaded")
        flights = state.flights
        if block >= protocol.lag and block + protocol.num_stages - protocol.lag < protocol.num_blocks:
            freed = (block - protocol.lag) % protocol.num_stages
            flights = tuple(sorted([*flights, *((x, freed, -1, 0) for x in range(protocol.num_ctas))]))
        yield replace(state, blocks=_set(state.blocks, 3 * cta + 2, block + 1), flights=flights)


def _arrivals(state: State, protocol: Protocol) -> Iterator[State]:
    for flight in dict.fromkeys(state.flights):
        cta, stage, block, units = flight
        index = state.flights.index(flight)
        left = replace(state, flights=(*state.flights[:index], *state.flights[index + 1 :]))
        place = cta * protocol.num_stages + stage
        if not units:
            phase, count = state.empty[place]
            freed = (phase + 1, protocol.arrivals) if count == 1 else (phase, count - 1)
            yield replace(left, empty=_set(state.empty, place, freed))
            continue
        read_lag = protocol.lag if protocol.read_lag is None else protocol.read_lag
        if block >= protocol.num_stages and state.blocks[3 * cta + 2] < block - protocol.num_stages + 1 + read_lag:
            raise FaultError("a stage is overwritten while it is read")
        phase, is_announced, pending = state.full[place]
        full = _set(state.full, place, _completed((phase, is_announced, pending - units)))
        kept = [x for x in state.loaded[place] if x[0] == block]
        yield replace(left, full=full, loaded=_set(state.loaded, place, tuple(sorted([*kept, (block, units)]))))


def _first(protocol: Protocol) -> State:
    places, warps = protocol.num_ctas * protocol.num_stages, 3 * protocol.num_ctas
    return State((0,) * warps, ((0, False, 0),) * places, ((0, protocol.arrivals),) * places, loaded=((),) * places)


def _following(state: State, protocol: Protocol) -> list[State]:
    """List what may come next; nothing where all is done.

    Raises:
        FaultError: nothing may, and something is left to do.
    """
    following = [x for step in (_loads, _multiplies, _arrivals) for x in step(state, protocol)]
    if not following and set(state.blocks) != {protocol.num_blocks}:
        raise FaultError("all warps wait for ever")
    return following


def explore(protocol: Protocol) -> int:
    """Go through all states and return their number: of two CTAs some thousands, of three more than a million.

    Raises:
        FaultError: a stage is read before it is loaded or overwritten while it is read, or all warps wait for ever.
    """
    seen = {_first(protocol)}
    todo = list(seen)
    while todo:
        new = {x for x in _following(todo.pop(), protocol) if x not in seen}
        seen |= new
        todo += new
    return len(seen)


def walk(protocol: Protocol, rng: Random) -> int:
    """Go one way to the end, drawn at random, and return its steps; what is under way to one CTA comes late.

    Raises:
        FaultError: as in `explore`.
    """
    state, steps, late = _first(protocol), 0, 0
    while following := _following(state, protocol):
        late = rng.randrange(protocol.num_ctas) if rng.random() < CHANGES else late
        flights = sum(x[0] == late for x in state.flights)
        early = [x for x in following if sum(y[0] == late for y in x.flights) >= flights]
        state = rng.choice(early or following)
        steps += 1
    return steps
