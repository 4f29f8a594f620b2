"""The address of a scheduler, checked before anything is started that would wait for it."""

from __future__ import annotations

import re

from aot.core.errors import FleetError

MAX_PORT = 65535
_ADDRESS = re.compile(r"(?:(?:tcp|tls)://)?(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def check_address(address: str) -> str:
    """Check how the address of a scheduler is written; return it.

    Raises:
        FleetError: it is none.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) <= MAX_PORT:
        raise FleetError(
            f"{address[:200]!r} is no address of a scheduler; expected tcp://host:port or tls://host:port, such as "
            f"tcp://desk:8786, with a port from 1 to {MAX_PORT}; `dask scheduler` prints its own"
        )
    return address
