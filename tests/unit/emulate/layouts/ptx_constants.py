"""Evaluates the few integer instructions that lead to the operands of a product, knowing nothing of the interpreter."""

from __future__ import annotations

import re

OPERATIONS = {
    "add": lambda a, b: a + b,
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "shr": lambda a, b: a >> b,
}


def operands_of_products(ptx, shared):
    """List the operands of each tcgen05.mma or wgmma, as numbers where they are known.

    Args:
        ptx: of a kernel without loops.
        shared: the address of its shared memory.
    """
    values, found = {}, []

    def value(text):
        return values.get(text) if text.startswith("%") else int(text) if re.fullmatch(r"-?\d+", text) else None

    for line in ptx.splitlines():
        match = re.match(r"\s*(?:@!?\S+ )?([a-z][\w.:]*)\s+(.*);", line)
        if match is None:
            continue
        name, arguments = match[1], [x.strip() for x in re.sub(r"\{[^}]*\}", "{}", match[2]).split(",")]
        operation = name.split(".")[0]
        if "__dynamic_shmem" in arguments[-1]:
            values[arguments[0]] = shared
        elif operation in {"mov", "cvt", "shfl"}:
            values[arguments[0]] = value(arguments[1])
        elif operation in OPERATIONS:
            a, b = value(arguments[1]), value(arguments[2])
            values[arguments[0]] = None if None in (a, b) else OPERATIONS[operation](a, b) & 2**64 - 1
        elif name.startswith(("tcgen05.mma", "wgmma.mma_async")):
            found.append((name, [value(x.strip("[]")) for x in arguments]))
    return found
