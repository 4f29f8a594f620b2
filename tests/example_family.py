"""The example of a family in a package of its own, examples/family, installed by its path where tests find it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from aot.compile import kinds
from aot.families import family_named
from aot.families._entry_points import registrations
from tests import native

SOURCES = Path(__file__).parents[1] / "examples" / "family"


def forget_families():
    """Look for entry points anew."""
    for found in (registrations, family_named, kinds.family_sources, kinds.family_imports, kinds._files_outside):
        found.cache_clear()


@cache
def installed():
    """Install the example into a folder of its own, with no network; return the folder."""

    def install(folder):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        how = ["--no-build-isolation", "--no-deps", "--no-index", "--target", str(folder)]
        done = subprocess.run([*pip, *how, str(SOURCES)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    sources = [x for x in SOURCES.rglob("*") if x.is_file() and "__pycache__" not in x.parts]
    return native.once(".example", [native.digest(SOURCES, sources)], install)


@contextmanager
def example_family():
    """Have the example installed for a while, here and in what is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed()))
        patch.setenv("PYTHONPATH", f"{installed()}:{Path(__file__).parents[1]}")
        forget_families()
        try:
            yield
        finally:
            sys.modules.pop("row_dot", None)
    forget_families()
