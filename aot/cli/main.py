"""The command `aot`: its commands, and the only place that exits.

A command's module is imported when the command is called: none fails for want of what only another one needs, and
`aot --help` needs click alone.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.shell_completion import CompletionItem

from aot.cli.interrupt import exit_code, forget_command, interrupted_text, was_interrupted
from aot.core.errors import REPAIR, AotError, DependencyError, OutputError, ResourceError
from aot.core.garbage import collect_seldom

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = {
    "bench": ("aot.cli.bench:bench", "Time a wheel beside torch or cuBLAS, with a receipt."),
    "build": ("aot.cli.build:build", "Compile a selection's kernels and build the wheel."),
    "calibrate": ("aot.cli.calibrate:calibrate_command", "Fit the cost model to a few recorded times."),
    "compile": ("aot.cli.compile:compile_command", "Compile the candidates that the model ranks best."),
    "completion": ("aot.cli.completion:completion", "Print or install what a shell completes aot with."),
    "deb": ("aot.cli.deb:deb", "Make Debian packages of a wheel's C library."),
    "diff": ("aot.cli.select:diff", "Compare what two selections dispatch."),
    "doctor": ("aot.cli.doctor:doctor", "Say what this machine can do, and the next command."),
    "emulate": ("aot.cli.emulate:emulate", "Execute kernels without a GPU, and look for races."),
    "explain": ("aot.cli.explain:explain", "Say which kernel a problem gets, and why."),
    "import": ("aot.cli.importing:import_command", "Merge results of measuring into a record."),
    "pack": ("aot.cli.pack:pack_command", "Write a checkpoint in the layout of packed weights."),
    "release": ("aot.cli.release:release", "Build wheels with bills, licences, provenance, checksums."),
    "report": ("aot.cli.report:report", "Write one HTML page about a tuning."),
    "reproduce": ("aot.cli.release:reproduce", "Build a release again and compare the bytes."),
    "select": ("aot.cli.select:select_command", "Choose the kernels to ship and their dispatch table."),
    "shapes": ("aot.cli.shapes:shapes", "List a shape set."),
    "smem": ("aot.cli.smem:smem_command", "Count a kernel's shared memory, and say what fits."),
    "space": ("aot.cli.space:space", "Show the candidates, and why others are out."),
    "targets": ("aot.cli.space:targets", "List the targets: device, host and limits."),
    "tune": ("aot.cli.tune:tune", "Measure here, on a device by SSH, or make a bundle."),
    "verify": ("aot.cli.build:verify", "Check a wheel, or its kernels on this GPU."),
    "wheel": ("aot.cli.wheel:wheel", "From a model's configuration to a wheel, in one command."),
    "worker": ("aot.cli.fleet:worker", "Offer this host's GPUs and cores to a Dask cluster."),
    "wheelhouse": ("aot.cli.release:wheelhouse", "Fetch all wheels for building without an index."),
}
"""By the command's name: where it is, and its line in `aot --help`."""

EXIT_INTERNAL = 70
"""An error that is none of the user's. Source: EX_SOFTWARE of sysexits.h."""
EXIT_BROKEN_PIPE = 141
"""The reader of the output ended, as shells report it: 128 and SIGPIPE."""


def printable(text: str) -> str:
    """Return a text without what a terminal would obey: control characters but line ends are escaped."""
    return "".join(x if x == "\n" or x.isprintable() else x.encode("unicode_escape").decode() for x in text)


def _internal_error(error: Exception) -> str:
    """Write the traceback of an unexpected error to a file; return the line to print."""
    head = printable(f"{type(error).__name__}: {error}").splitlines() or [""]
    try:
        descriptor, name = tempfile.mkstemp(prefix="aot-error-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"aot {' '.join(sys.argv[1:])}\n")
            traceback.print_exception(error, file=file)
    except OSError:
        name = "what you did; its traceback could not be written"
    return f"internal error: {head[0][:300]}; please report it with {name}"


def _typed(error: Exception) -> AotError | None:
    """Make an error of ours of one that Python raised for a reason that a user can act on; None for any other."""
    if isinstance(error, ImportError):
        return DependencyError(f"cannot import a package: {error}; {REPAIR}")
    if isinstance(error, MemoryError):
        return ResourceError("memory ran out; free some, or give a smaller --jobs, and run again")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            return ResourceError(f"{text}; free disk or memory and run again")
        return OutputError(f"{text}; check the path and its permissions, and run again")
    return None


class Commands(click.Group):
    """Loads commands when they are called, prints every error in one place and exits with its code."""

    table: ClassVar[dict[str, tuple[str, str]]] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands' names."""
        return sorted({*self.table, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """List the commands without importing them, and the options of `aot` itself."""
        found = [
            CompletionItem(name, help=text) for name, (_, text) in self.table.items() if name.startswith(incomplete)
        ]
        return [*sorted(found, key=lambda x: str(x.value)), *super(click.Group, self).shell_complete(ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' lines without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(self.table.items())])

    def invoke(self, ctx: click.Context) -> Any:
        """Call a command; where the reader of its output has ended, end quietly."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            ctx.exit(EXIT_BROKEN_PIPE)

    def main(self, *arguments: Any, **extra: Any) -> Any:
        """Run a command and exit with its code."""
        collect_seldom()
        forget_command()
        extra["standalone_mode"] = False
        sys.exit(_run(lambda: super(Commands, self).main(*arguments, **extra)))


def _interrupted() -> int:
    """Say that the command was interrupted; return its exit code."""
    with suppress(OSError):
        click.echo(interrupted_text(), err=True, nl=False)
    return exit_code()


def _run(command: Callable[[], Any]) -> int:
    """Run a command; return its exit code, after printing its error."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # it may have been closed by the caller
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be UTF-8
    try:
        code = command()
        if sys.stdout is not None:  # else it was closed by the caller
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except BrokenPipeError:
        # What is buffered still cannot be written, and the interpreter will try once more.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last net: no input may give a traceback
        if was_interrupted():  # a package's native code that is being imported makes an ImportError of it
            return _interrupted()
        ours = error if isinstance(error, AotError) else _typed(error)
        text = f"error: {printable(str(ours))}" if ours else _internal_error(error)
        with suppress(OSError):
            click.echo(f"aot: {text}", err=True)
        return ours.exit_code if ours else EXIT_INTERNAL
    return code if isinstance(code, int) else 0


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="aot-kernels")
def main() -> None:
    """Tune GEMM kernels offline and package the winners, compiled, in a wheel."""
