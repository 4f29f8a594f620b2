"""Workers of a fleet over simulated devices: `python -m tests.simulated.fleet_worker SCHEDULER FOLDER...`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aot.fleet.connection import security_of
from aot.fleet.worker import device_post, serve
from aot.tune.local_device import LocalDevice

POLL_S = 0.1


def post_of(folder):
    """Make the worker of a simulated device by its folder."""
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder / "home")}
    device = LocalDevice(folder / "run", environment, (str(folder / "bin" / "python3"),))
    return device_post(folder.name, device, folder / "worker", POLL_S)


def main():
    scheduler, *folders = sys.argv[1:]
    posts = [post_of(Path(folder)) for folder in folders]
    asyncio.run(serve(posts, scheduler, security_of(None), print))


if __name__ == "__main__":
    main()
