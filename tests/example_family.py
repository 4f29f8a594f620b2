"""The examples of families, operations and targets, installed by their path where tests find them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from aot.compile import sources
from aot.core import target
from aot.families import family_named
from aot.families._entry_points import registrations
from aot.kinds.registry import all_operations
from aot.kinds.rows import catalogue
from tests import native
from tests.compiling import end_compilers

EXAMPLES = Path(__file__).parents[1] / "examples"


def forget_families():
    """Look for entry points anew."""
    of_families = (registrations, family_named, sources.family_sources, sources.family_imports, sources._files_outside)
    of_rows = (catalogue.outside_entries, catalogue.row_operations, all_operations, sources.code_sources)
    for found in (*of_families, *of_rows, target.load_target, target._outside):
        found.cache_clear()


@cache
def installed(example):
    """Install an example into a folder of its own, with no network; return the folder."""
    place = EXAMPLES / example

    def install(folder):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        how = ["--no-build-isolation", "--no-deps", "--no-index", "--target", str(folder)]
        done = subprocess.run([*pip, *how, str(place)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    files = [x for x in place.rglob("*") if x.is_file() and "__pycache__" not in x.parts]
    return native.once(".example", [native.digest(place, files)], install)


@contextmanager
def example_family(example="family", package="row_dot"):
    """Have an example installed for a while, here and in what is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed(example)))
        patch.setenv("PYTHONPATH", f"{installed(example)}:{Path(__file__).parents[1]}")
        forget_families()
        try:
            yield
        finally:
            sys.modules.pop(package, None)
            end_compilers(str(installed(example)))
    forget_families()
