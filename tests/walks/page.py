"""The commands of a page, run as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.package.test_tutorial import NOT_RUN, blocks, commands


def run_commands(page, folder, **environment):
    """Run the commands of a page in a folder, but for those of a GPU; return what each printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = []
    for before, code in blocks(page.read_text(encoding="utf-8")):
        for command in () if before.startswith(NOT_RUN) else commands(code):
            run = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=folder,
                env=os.environ | {"PATH": path} | environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, f"{command}\n{run.stdout}\n{run.stderr}"
            done.append(run)
    return done
