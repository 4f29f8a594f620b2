"""The command run in this process, as users run it."""

from __future__ import annotations

from click.testing import CliRunner

from aot.cli import main as cli
from aot.select.portfolio.choose import Budget
from aot.select.portfolio.objective import SelectionLimits
from aot.select.table import sections as table
from research.studies.__main__ import main as studies

SHAPES = """version = 1
dtypes = ["bfloat16"]
layouts = ["kk"]
m = [1, 4096]
[[model]]
name = "tiny"
weights = [{ name = "w", n = 4096, k = 4096 }]
"""


COARSE = {"FINE_GRID_M": 4, "FINE_N": 16, "FINE_K": 6}
"""Of the steps of the grid's axes, the share that is left."""


def coarse_grid(patch):
    """Let selections have a grid of few cells, for tests of what is said of them: a whole one has 3,096 columns.

    What a whole grid holds is the business of tests/unit/select, and of the commands that interrupts and golden files
    run as they are.
    """
    for name, share in COARSE.items():
        edges = getattr(table, name)
        patch.setattr(table, name, (*edges[:-1:share], edges[-1]))
    patch.setattr(table, "BROAD_N", ())


def one_unaligned(patch):
    """Let selections have one kernel for each kind of what is not aligned, for tests that build what is selected."""
    patch.setattr(SelectionLimits, "of_unaligned", lambda *_, **__: Budget(1))


def aot(*arguments):
    return CliRunner().invoke(cli.main, [str(x) for x in arguments])


def study(*arguments):
    return CliRunner().invoke(studies, [str(x) for x in arguments])


def succeed(*arguments, run=aot):
    result = run(*arguments)
    assert (result.exit_code, result.exception) == (0, None), result.output
    return result.stdout
