"""The commands of docs/your-kernel.md, run as they are written, but for those of a GPU; the package is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.example_family import installed
from tests.package.test_tutorial import NOT_RUN, blocks, commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "your-kernel.md"


def test_every_command_runs_as_it_is_written(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": f"{installed('triton_kernel')}{os.pathsep}{ROOT}"}
    done = []
    for before, code in blocks(PAGE.read_text(encoding="utf-8")):
        for command in () if before.startswith(NOT_RUN) else commands(code):
            run = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, f"{command}\n{run.stdout}\n{run.stderr}"
            done.append(run.stdout)
    space, compiled, executed = done
    assert "few_rows" in space
    assert "few_rows_columns32_depth64_stages3" in compiled
    assert "1 of 1 kernels are right" in executed
