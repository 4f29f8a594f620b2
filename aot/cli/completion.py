"""The command `aot completion`: what a shell completes commands, options and names with."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from aot.core.shape_set import shape_set_names
from aot.core.target import target_names
from aot.core.whole_file import write_whole

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_AOT_COMPLETE"
"""What click asks for completions by: `_PROGRAM_COMPLETE`."""


def script(shell: str) -> str:
    """Return what a shell reads to complete `aot`."""
    from aot.cli.main import main

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"{shell} is not one of {', '.join(SHELLS)}")
    complete = found(main, {}, "aot", VARIABLE)
    return complete.source_template % complete.source_vars()  # its own method starts bash to ask for the version


def place(shell: str, home: Path, data: Path, config: Path) -> Path:
    """Return the file where a shell looks for completions of a user.

    Args:
        shell: one of `SHELLS`.
        home: the user's home folder.
        data: XDG_DATA_HOME.
        config: XDG_CONFIG_HOME.
    """
    return {
        "bash": data / "bash-completion" / "completions" / "aot",
        "zsh": home / ".zfunc" / "_aot",
        "fish": config / "fish" / "completions" / "aot.fish",
    }[shell]


def _folder(variable: str, default: Path) -> Path:
    """Return a folder of the XDG base directories; a relative one means nothing there."""
    found = os.environ.get(variable, "")
    return Path(found) if Path(found).is_absolute() else default


def complete_targets(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """List the targets that go on from what stands after the last comma."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in target_names() if name.startswith(last)]


def complete_shapes(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """List the shipped shape sets, and leave files to the shell."""
    found = [CompletionItem(name) for name in shape_set_names() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write it where the shell looks for it, rather than print it.")
def completion(shell: str | None, install: bool) -> None:
    """Print what SHELL needs to complete `aot`: commands, options, targets and shape sets. By default of $SHELL.

    For one session: `eval "$(aot completion bash)"`. For good: `aot completion --install`, or `make completion`.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"$SHELL is {name or 'not set'}; give one of {', '.join(SHELLS)}")
    if not install:
        click.echo(script(name), nl=False)
        return
    home = Path.home()
    data, config = _folder("XDG_DATA_HOME", home / ".local/share"), _folder("XDG_CONFIG_HOME", home / ".config")
    path = place(name, home, data, config)
    write_whole(path, script(name))
    more = "; in ~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit; compinit" if name == "zsh" else ""
    click.echo(f"wrote {path}; it counts from the next {name} on{more}")
