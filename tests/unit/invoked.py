"""The command run in this process, as users run it."""

from __future__ import annotations

from click.testing import CliRunner

from aot.cli import main as cli

SHAPES = """version = 1
dtypes = ["bfloat16"]
layouts = ["kk"]
m = [1, 4096]
[[model]]
name = "tiny"
weights = [{ name = "w", n = 4096, k = 4096 }]
"""


def aot(*arguments):
    return CliRunner().invoke(cli.main, [str(x) for x in arguments])


def succeed(*arguments):
    result = aot(*arguments)
    assert (result.exit_code, result.exception) == (0, None), result.output
    return result.stdout
