"""Damage to documents and to bytes, by a random.Random: what a disk, an editor or a stranger may do to a file."""

from __future__ import annotations

from tests.hostile import HOSTILE

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    99,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53,
    2**63 - 1,
    2**63,
    10**40,
    0.0,
    -0.0,
    0.5,
    1.5,
    -1.5,
)
FLOATS = (1e-320, 1e12, 1e13, 1e308, float("inf"), float("-inf"), float("nan"))
WORDS = ("ok", "kk", "bfloat16", "measured", "none", "serial", "h200", "sm_90a", "x", "fallback", "1", "-1", "true")


def anything(random, depth=2):
    """Return any value of JSON."""
    kind = random.randrange(9 if depth else 7)
    if kind < 2:
        return random.choice((*NUMBERS, *FLOATS))
    if kind < 4:
        return random.choice(list(HOSTILE.values())[:-1])
    if kind == 4:
        return random.choice(WORDS)
    if kind < 7:
        return random.choice((None, True, False))
    if kind == 7:
        return [anything(random, depth - 1) for _ in range(random.randrange(4))]
    return {random.choice(WORDS): anything(random, depth - 1) for _ in range(random.randrange(3))}


def places(document, place=()):
    """List the place of each value within a document, itself first."""
    yield place
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield from places(value, (*place, key))


def value_at(document, place):
    for step in place:
        document = document[step]
    return document


def changed(random, value):
    """Return something near a value: what a typing error makes of it, or anything."""
    near = random.randrange(3)
    if near == 0:
        return anything(random)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return random.choice((-value, value + 1, value - 1, value * 1000, float(value), str(value), 0))
    if isinstance(value, str):
        at = random.randrange(len(value) + 1)
        return random.choice(
            (value[:at], value[at:], value[:at] + random.choice('x7 \n"\\-/') + value[at:], value.upper())
        )
    if isinstance(value, list):
        return random.choice((value[:-1], value[1:], value * 2, value[::-1], [value], value[:1] * 3))
    return anything(random)


def edited(random, document, place):
    """Return a document that differs at a place: changed, away, under another key, or beside something unknown."""
    if not place:
        return changed(random, document)
    if len(place) > 1:
        return put(document, place[:1], edited(random, document[place[0]], place[1:]))
    (step,) = place
    kind = random.randrange(6)
    if isinstance(document, list):
        middle = [] if kind == 0 else [document[step]] * 2 if kind == 1 else [changed(random, document[step])]
        return [*document[:step], *middle, *document[step + 1 :]]
    if kind < 2:
        names = {step: random.choice(WORDS)} if kind else {}
        return {names.get(key, key): value for key, value in document.items() if kind or key != step}
    added = {random.choice(WORDS): anything(random)} if kind == 2 else {step: changed(random, document[step])}
    return {**document, **added}


def exchanged(random, document):
    """Return a document of which one value stands in the place of another."""
    all_places = list(places(document))
    source, place = random.choice(all_places), random.choice(all_places)
    return put(document, place, value_at(document, source))


def put(document, place, value):
    if not place:
        return value
    inner = put(document[place[0]], place[1:], value)
    if isinstance(document, dict):
        return {**document, place[0]: inner}
    return [*document[: place[0]], inner, *document[place[0] + 1 :]]


def damaged_document(random, document):
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if random.randrange(8) == 0:
            document = exchanged(random, document)
        else:
            document = edited(random, document, random.choice(list(places(document))))
    return document


def damaged_bytes(random, content):
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        at = random.randrange(len(found) + 1)
        end = min(len(found), at + random.choice((1, 1, 2, 8, 64, 1000)))
        kind = random.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            found[at:end] = random.randbytes(end - at)
        elif kind == 2:
            del found[at:end]
        elif kind == 3:
            found[at:at] = found[at:end]
        elif kind == 4:
            del found[at:]
        elif kind == 5:
            found[at:at] = random.choice(list(HOSTILE.values())[:-1]).encode(errors="surrogatepass")
        else:
            found[at:end] = random.choice(
                (b"[", b"{", b"]", b"}", b'"', b",", b":", b"-", b"e9", b"9" * 30, b"\n", b"NaN", b"null")
            )
    return bytes(found)
