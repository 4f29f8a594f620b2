"""The commands of docs/your-kernel.md, run as they are written, but for those of a GPU; the package is installed."""

from __future__ import annotations

import os

from tests import native
from tests.example_family import installed
from tests.walks.page import run_commands

PAGE = native.ROOT / "docs" / "your-kernel.md"


def test_every_command_runs_as_it_is_written(tmp_path):
    path = f"{installed('triton_kernel')}{os.pathsep}{native.ROOT}"
    space, compiled, executed = (x.stdout for x in run_commands(PAGE, tmp_path, PYTHONPATH=path))
    assert "few_rows" in space
    assert "few_rows_columns32_depth64_stages3" in compiled
    assert "1 of 1 kernels are right" in executed
