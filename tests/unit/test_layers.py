"""What may import what: pyproject.toml states it for our packages, the tests below for those of others."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import aot

ROOT = Path(aot.__file__).parent
HEAVY = ("cuda", "cutlass", "distributed", "optuna", "quack", "torch", "triton", "tvm_ffi", "nvidia")
SUBPROCESS = (
    "core.process",
    "compile.object_file",
    "measure.background",
    "measure.conditions",
    "measure.supervisor",
    "models.recorded",
    "tune.link",
    "package.compile_once",
    "tune.local_device",
)
EXITING = {
    "__main__",
    "package.compile_once",
    "cli.main",
    "cli.compile",
    "cli.tune",
    "cli.wheel",
    "cli.interrupt",
    "measure.runner",
}
"""Modules that end their process."""


@cache
def texts():
    """Read our modules; return them by name."""
    paths = sorted(ROOT.rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return {name: path.read_text(encoding="utf-8") for name, path in zip(names, paths, strict=True)}


@cache
def tree(name):
    """Parse a module. Only those that have the word in question are: all take seconds."""
    return ast.parse(texts()[name])


@cache
def imports(name):
    """Return the distributions that a module imports anywhere, for types only or within a function too."""
    return frozenset(_imports(tree(name)))


def _imports(module):
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def test_the_contracts_of_pyproject_are_kept(monkeypatch, capsys):
    monkeypatch.chdir(ROOT.parent)
    code = lint_imports(cache_dir=None)
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("library", "importers"),
    [
        ("cuda", ("families.",)),
        ("cutlass", ("compile.compiler", "families.")),
        ("quack", ("families.",)),
        ("torch", ()),
        ("research", ()),
        ("subprocess", SUBPROCESS),
        ("sqlite3", ("measure.store",)),
        ("click", ("cli.",)),
        ("jinja2", ("package.", "report.page")),
        ("regex", ("models.name_pattern",)),
        ("optuna", ("search.optuna_search",)),
        ("cryptography", ("bench.signing",)),
        ("dask", ("fleet.connection",)),
        ("distributed", ("fleet.connection",)),
    ],
)
def test_each_outside_thing_has_its_modules(library, importers):
    found = {name for name, text in texts().items() if library in text and library in imports(name)}
    assert [name for name in found if not name.startswith(importers)] == []
    assert [prefix for prefix in importers if not any(name.startswith(prefix) for name in found)] == []


def test_only_compile_compiles_and_only_the_cli_exits():
    def users(*names):
        for name in [x for x, text in texts().items() if any(wanted in text for wanted in names)]:
            used = {ast.unparse(node) for node in ast.walk(tree(name)) if isinstance(node, ast.Attribute | ast.Name)}
            if any(x == wanted or x.endswith(f".{wanted}") for x in used for wanted in names):
                yield name

    assert list(users("cute.compile", "export_to_c")) == ["compile.compiler"]
    assert set(users("sys.exit", "SystemExit", "os._exit")) <= EXITING


@pytest.mark.slow
def test_nothing_heavy_is_loaded_until_it_is_used():
    """Importing every module, the kernels of families apart, and every command loads no compiler and no driver."""
    modules = [f"aot.{name}".removesuffix(".__init__") for name in texts()]
    # The modules of families that build kernels are imported by a family's `entry` alone.
    modules = [
        x for x in modules if not x.startswith(("aot.families._", "aot.families.rows._")) and x not in LOADED_BY_OPTION
    ]
    code = f"""
import importlib, sys
for name in {modules}:
    importlib.import_module(name)
    heavy = [x for x in {[*HEAVY]} if x in sys.modules]
    assert not heavy, (name, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LOADED_BY_OPTION = ("aot.search.optuna_search", "aot.__main__")
