"""A launch as the recorder saw it, with what means nothing left out, so that two of them can be compared."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.equivalence import descriptor

DESCRIPTOR_BYTES = 128
DIVISOR_BYTES, DIVISOR_USED = 12, 10
"""CuTe DSL's fast divisor ends in two bytes of padding."""
ATTRIBUTE_WORDS = {2: 1, 4: 3, 6: 1}
"""Words that a launch attribute has: cooperative, cluster dimensions, programmatic stream serialization."""


@dataclass(frozen=True)
class Launch:
    """What the CUDA entry `_cudaLaunchKernelEx` was given."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    stream: int
    attributes: dict[int, tuple[int, ...]]
    parameters: tuple[bytes, ...]
    """The meaningful bytes of each."""


@dataclass(frozen=True)
class Answer:
    """What one call of the C API led to."""

    status: int
    settings: tuple[tuple[int, int], ...]
    """Function attributes set while loading, and their values."""
    launches: tuple[Launch, ...]


def _meaningful(parameter, has_divisors):
    if len(parameter) == DESCRIPTOR_BYTES:
        return parameter[: descriptor.NUM_BYTES]
    return parameter[:DIVISOR_USED] if has_divisors and len(parameter) == DIVISOR_BYTES else parameter


class Reader:
    """Reads what replay.cc writes."""

    def __init__(self, content, *, has_divisors=True):
        """Read content; `has_divisors` says that 12 bytes are CuTe DSL's fast divisor, and not three extents."""
        self._content = memoryview(content)
        self._offset = 0
        self._has_divisors = has_divisors

    @property
    def at_end(self):
        return self._offset == len(self._content)

    def _take(self, layout):
        values = struct.unpack_from(f"<{layout}", self._content, self._offset)
        self._offset += struct.calcsize(f"<{layout}")
        return values

    def _launch(self, sizes):
        grid, block = self._take("3I"), self._take("3I")
        smem_bytes, stream, count = self._take("QQi")
        ids, values = self._take("4i"), self._take("12i")
        if count > len(ids):
            raise ValueError(f"{count} launch attributes; the recorder keeps {len(ids)}: widen it")
        attributes = {ids[i]: values[3 * i : 3 * i + ATTRIBUTE_WORDS[ids[i]]] for i in range(count)}
        parameters = tuple(_meaningful(self._take(f"{size}s")[0], self._has_divisors) for size in sizes)
        return Launch(grid, block, smem_bytes, stream, attributes, parameters)

    def answer(self, sizes):
        """Read one answer of a kernel whose parameters have these sizes."""
        (status,) = self._take("i")
        settings = tuple(self._take("2i") for _ in range(self._take("i")[0]))
        launches = tuple(self._launch(sizes) for _ in range(self._take("i")[0]))
        return Answer(status, settings, launches)
