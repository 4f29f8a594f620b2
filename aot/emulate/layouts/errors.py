"""How a layout is refused that the interpreter does not know; one that the hardware forbids is a `Fault`."""

from __future__ import annotations

from aot.core.errors import AotError


class UnsupportedLayoutError(AotError):
    """A descriptor or a layout that the interpreter does not know: nothing is said about the kernel."""
