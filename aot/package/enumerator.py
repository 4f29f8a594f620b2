"""How the generated C++ names what Python names in snake case."""

from __future__ import annotations


def enumerator(name: str) -> str:
    """Return the name in C++ of an enumerator that Python names in snake case: `kPrefetchB` of `prefetch_b`."""
    return "k" + "".join(word.capitalize() for word in name.split("_"))
