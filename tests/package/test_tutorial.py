"""The commands of docs/tutorial.md are ones that there are, with these options; `make walk` runs them as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click import Context, Group

from aot.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
NOT_RUN = ("**GPU**", "<!-- not run by the test")
"""How a paragraph begins whose block is not run here."""


def blocks(text):
    """List the console blocks, each with the paragraph in front of it."""
    for found in re.finditer(r"(?P<before>[^\n]*(?:\n[^\n]+)*)\n\n```console\n(?P<code>.*?)```", text, re.DOTALL):
        paragraph = found["before"].rpartition("\n\n")[2]
        yield paragraph.strip(), found["code"]


def commands(code):
    """List the commands of a block: lines with a prompt, and those that continue them."""
    for line in code.splitlines():
        assert line.startswith(("$ ", "> ")) or line == ">", line
    return [x.replace("\n> ", "\n").replace("\n>", "\n") for x in code.removeprefix("$ ").rstrip("\n").split("\n$ ")]


def test_blocks_are_told_apart():
    found = [(before.startswith(NOT_RUN), len(commands(code))) for before, code in blocks(PAGE.read_text())]
    assert found == [(True, 2), (False, 2), (True, 1), (False, 3), (False, 4), (True, 3)]


def invocations():
    """List the calls of `aot` on the page, as words, those that the walk does not run too."""
    lines = [command for _, code in blocks(PAGE.read_text()) for command in commands(code)]
    return [shlex.split(x)[1:] for x in lines if x.startswith("aot ")]


@pytest.mark.parametrize("words", invocations(), ids=lambda words: words[0])
def test_every_command_is_one_that_there_is(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "shapes.toml", "my_policy_gemm-0.whl"):
        Path(name).touch()
    command, context = main, Context(main, info_name="aot", **main.context_settings)
    while isinstance(command, Group) and not words[0].startswith("-"):
        _, command, words = command.resolve_command(context, words)
        context = Context(command, context, info_name=command.name)
    command.parse_args(context, [word.replace("dist/my_policy_gemm-*", "my_policy_gemm-0") for word in words])
