"""What the command lines of the benches have in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from research.bench.compact import read_result

Result = dict[str, Any]


def positive(text: str) -> int:
    """Read a whole number from 1 on; raise ValueError, which argparse reports, for anything else."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add --out, the file to write, and --table, files to print."""
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--table", type=Path, nargs="+", metavar="JSON", help="measure nothing; print these, joined")


def print_table(
    parser: argparse.ArgumentParser,
    paths: Sequence[Path],
    joined: Callable[[Sequence[Result]], Result],
    summary: Callable[[Result], str],
) -> None:
    """Print the results of --table, joined; end with an error where they are none, or do not join."""
    try:
        print(summary(joined([read_result(path) for path in paths])))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyError as error:
        parser.error(f"a file of --table has no {error}; give what --out wrote")


def write(path: Path | None, result: Result) -> None:
    """Write a result as JSON, if a file is asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
