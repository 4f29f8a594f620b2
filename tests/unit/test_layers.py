"""The order of the design's layers, and what may not be imported where."""

from __future__ import annotations

import ast
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import aot

ROOT = Path(aot.__file__).parent
ENTRIES = {
    "_arguments",
    "_bounded_kernel",
    "_fallback_kernel",
    "_nvidia",
    "_overlap_kernel",
    "_quack",
    "_quack_sm90_kernel",
}
"""Modules of families that import CUTLASS; only a family's `entry` imports them."""
FAMILIES = {path.stem for path in (ROOT / "families").glob("*.py")} - ENTRIES - {"__init__"}

LAYERS = (
    (
        "command",
        {"__main__", "cli", "cli_build", "cli_census", "cli_options", "cli_prior", "cli_report", "cli_search"}
        | {"cli_select", "cli_selection", "cli_smem", "cli_space", "cli_tune", "interrupt"},
    ),
    ("verbs", {"live", "pipeline", "replay", "shipping", "wheel_check"}),
    (
        "tuning",
        {"background", "bundle", "bundle_runner", "remote", "supervisor", "search_store", "worker", "worker_process"},
    ),
    (
        "edges",
        {"compile", "conditions", "device", "drift", "kernel_library", "measure", "object_file", "package"}
        | {"preflight", "process", "process_pool", "record", "rounds", "scratch", "store", "store_sql", "verify"},
    ),
    (
        "pure",
        {
            "artifact",
            "buckets",
            "calibrate",
            "calibration",
            "census",
            "cost",
            "coverage",
            "curve",
            "diff",
            "distribution",
            "exact",
            "explain",
            "foreign",
            "gpu",
            "heldout",
            "inputs",
            "learned",
            "legality",
            "limit",
            "manifest",
            "numerics",
            "operands",
            "portfolio",
            "render",
            "reports",
            "residuals",
            "search",
            "search_model",
            "search_optuna",
            "select",
            "strategies",
        }
        | {"selection", "shape_set", "shortlist", "space", "table", "tiles", "times"}
        | {"report", "report_charts", "report_facts", "report_maps", "report_parts", "report_svg", "report_tables"}
        | {"escape", "hand_rule", "prior", "smem", "tuning_set", "wheel_archive", "wheel_file", "whole_file"},
    ),
    ("families", {"families", *(f"families.{name}" for name in FAMILIES | ENTRIES)}),
    (
        "types",
        {
            "__init__",
            "candidate",
            "constraints",
            "dispatch",
            "errors",
            "measurement",
            "problem",
            "strict_json",
            "strict_toml",
        }
        | {"target", "toml_lines"},
    ),
)
"""From the top down; a module imports from its own layer and from those below."""

PURE = {name for layer, names in LAYERS[4:] for name in names if name.rpartition(".")[2] not in ENTRIES}
EXITING = {"__main__", "cli", "cli_tune", "bundle_runner", "interrupt"}
HEAVY = ("cuda", "cutlass", "optuna", "quack", "torch", "triton", "tvm_ffi", "nvidia")


def sources():
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name.removesuffix(".__init__"), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree):
    """List what a module imports anywhere, for types only or within a function too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(tree):
    for name in imports(tree):
        parts = name.split(".")
        if parts[0] == "aot":
            in_family = parts[1] == "families" and len(parts) > 2 and parts[2] in FAMILIES | ENTRIES
            yield ".".join(parts[1:3] if in_family else parts[1:2])


def test_every_module_has_its_layer():
    names = list(chain.from_iterable(names for _, names in LAYERS))
    assert sorted(names) == [name for name, _ in sorted(sources())]


def test_imports_point_down():
    depth = {name: i for i, (_, names) in enumerate(LAYERS) for name in names}
    upward = [
        f"{name} imports {other}"
        for name, tree in sources()
        for other in own_imports(tree)
        if depth[other] < depth[name]
    ]
    assert upward == []


@pytest.mark.parametrize(
    ("library", "importers"),
    [
        ("cuda", {f"families.{name}" for name in FAMILIES | ENTRIES}),
        ("cutlass", {"compile", *(f"families.{name}" for name in FAMILIES | ENTRIES)}),
        ("quack", {f"families.{name}" for name in FAMILIES | ENTRIES}),
        ("torch", set()),
        ("subprocess", {"background", "conditions", "object_file", "process", "remote", "supervisor"}),
        ("sqlite3", {"store", "store_sql"}),
        ("click", {name for name in LAYERS[0][1] if name.startswith("cli")}),
        ("optuna", {"search_optuna"}),
    ],
)
def test_each_outside_thing_has_its_modules(library, importers):
    found = {name for name, tree in sources() if library in {x.split(".")[0] for x in imports(tree)}}
    assert found <= importers
    assert bool(found) == bool(importers)


def test_only_compile_compiles_and_only_the_cli_exits():
    def users(*names):
        for name, tree in sources():
            used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}
            if any(x == wanted or x.endswith(f".{wanted}") for x in used for wanted in names):
                yield name

    assert list(users("cute.compile", "export_to_c")) == ["compile"]
    assert set(users("sys.exit", "SystemExit", "os._exit")) <= EXITING


def test_pure_modules_load_nothing_heavy():
    modules = sorted(f"aot.{name}".removesuffix(".__init__") for name in PURE)
    code = f"""
import importlib, sys
for name in {modules}:
    importlib.import_module(name)
    heavy = [x for x in {[*HEAVY]} if x in sys.modules]
    assert not heavy, (name, heavy)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_loads_no_compiler_and_no_driver():
    code = f"""
import sys
from aot.cli import COMMANDS, main
for name in COMMANDS:
    main.get_command(None, name)
heavy = [x for x in {[*HEAVY]} if x in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
