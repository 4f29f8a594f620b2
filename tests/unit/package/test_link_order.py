"""The order of the linker: what is alike side by side, whatever it is called."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise

import pytest

from aot.package.link_order import link_order

FAMILIES, MEMBERS, NUM_BYTES, CHANGED = 6, 5, 24_576, 40


def _objects(seed: int) -> dict[str, bytes]:
    """Return objects of several families: those of one differ in a few words, those of two in all."""
    draw = random.Random(seed)
    found: list[tuple[int, bytes]] = []
    for family in range(FAMILIES):
        common = draw.randbytes(NUM_BYTES)
        for _ in range(MEMBERS):
            own = bytearray(common)
            for _ in range(CHANGED):
                place = draw.randrange(0, NUM_BYTES, 16)
                own[place : place + 16] = draw.randbytes(16)
            found.append((family, bytes(own)))
    draw.shuffle(found)
    return {f"{i:02}_of_{family}": x for i, (family, x) in enumerate(found)}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_alike_follows_each_other(seed: int) -> None:
    objects = _objects(seed)
    order = link_order(objects)
    assert sorted(order) == sorted(objects)
    families = [x[-1] for x in order]
    assert sum(x != y for x, y in pairwise(families)) == FAMILIES - 1
    by_name, so = (len(zlib.compress(b"".join(objects[x] for x in names), 9)) for names in (sorted(objects), order))
    assert so < 0.5 * by_name


def test_the_order_depends_on_names_and_bytes_alone() -> None:
    objects = _objects(7)
    assert link_order(dict(reversed(objects.items()))) == link_order(objects)


@pytest.mark.parametrize("contents", [[], [b""], [b"", b"short"], [b"", bytes(64), bytes(64)]])
def test_few_and_small_ones_are_ordered_too(contents: list[bytes]) -> None:
    objects = {str(i): x for i, x in enumerate(contents)}
    assert sorted(link_order(objects)) == sorted(objects)
