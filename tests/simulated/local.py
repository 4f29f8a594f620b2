"""`aot` as it runs on the device itself: `python -m tests.simulated.local LIBRARY tune ...`.

The kernels' library is one that was built before, over the simulated driver; the rest is the command's own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from aot.cli.main import main
from aot.tune import bundle
from aot.tune import tuning as tunings
from tests.simulated.runner import make_runner


def run(library):
    """Run the command with a library in place of what it would link."""

    def build_library(wanted, objects, out_dir, target, **options):
        del objects, target, options
        return Path(shutil.copyfile(library, out_dir / f"lib{wanted.module}.so"))

    tunings.build_library = build_library
    bundle.make_runner = make_runner
    return main()


if __name__ == "__main__":
    sys.exit(run(sys.argv.pop(1)))
