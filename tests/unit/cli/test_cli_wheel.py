"""The whole road in one command: what it does in which order, what it does not do twice, and how it ends.

Selecting, compiling and measuring are replaced; `tests/package/` builds real wheels.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.cli import wheel
from aot.core.execution import KernelState
from aot.core.shape_set import load_shape_set
from aot.models import empty
from aot.package import wheel_check
from aot.package.wheel import BuiltWheel
from aot.select.coverage import Coverage
from tests.unit.cli.test_cli_shapes import QWEN
from tests.unit.invoked import SHAPES, aot
from tests.unit.selections import SELECTION


class Road:
    """Stands in for the steps; notes what is done."""

    def __init__(self):
        self.done, self.requests, self.selection, self.fails, self.code = [], [], SELECTION, False, 0

    def select(self, request):
        self.done.append("select")
        self.requests.append(request)
        return self.selection

    def selection_for_shapes(self, path, target):
        return self.select(SimpleNamespace(shapes=path, target=target)) if target.name == "h200" else None

    def make_wheel(self, sources, dist, workplace, **more):
        self.done.append("build")
        if self.fails:
            raise KeyboardInterrupt
        dist.mkdir(exist_ok=True)
        (dist / "x.whl").write_bytes(b"wheel")
        keys = sources[0].selection.kernels
        kernels = [SimpleNamespace(name=x.name, state=KernelState.COMPILED) for x in keys]
        return BuiltWheel(
            dist / "x.whl", SimpleNamespace(all_kernels=kernels, with_objects=kernels, executions=(), kernels=())
        )

    def remote(self, url, target, say, verbose):
        self.done.append(f"look at {url}")
        return self

    def inspect(self, scratch):
        self.done.append("inspect")

    def bundle(self, request, target, folder, workplace):
        self.done.append("bundle")
        return SimpleNamespace(directory=folder), []

    def measure(self, bundle, words, results, say):
        self.done.append(" ".join(["measure", *words]))
        return self.code

    def import_results(self, results, record, records):
        self.done.append("import")
        record.write_bytes(b"record")


@pytest.fixture
def road(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(empty, "is_installed", lambda *_: False)
    Path("config.json").write_text(json.dumps(QWEN))
    Path("shapes.toml").write_text(SHAPES)
    found = Road()
    for name, stand_in in (
        ("select", found.select),
        ("selection_for_shapes", found.selection_for_shapes),
        ("make_wheel", found.make_wheel),
        ("RemoteTuning", found.remote),
        ("make_tuning_bundle", found.bundle),
        ("import_results", found.import_results),
    ):
        monkeypatch.setattr(wheel, name, stand_in)
    monkeypatch.setattr(wheel_check, "check_wheel", lambda path: found.done.append("check") or ["as it should be"])
    monkeypatch.setattr(wheel.pipeline, "times_behind", lambda *_: {})
    return found


WORDS = ("wheel", "--config", "config.json", "--target", "h200")


def test_one_command_goes_from_a_configuration_to_the_line_that_installs(road):
    result = aot(*WORDS)
    assert result.exit_code == 0, result.output
    assert road.done == ["select", "build", "check"]
    assert result.stdout.splitlines()[-1] == "on the h200: pip install dist/x.whl"
    steps = [x for x in result.stderr.splitlines() if x.startswith("[")]
    assert steps == [
        "[1/4] list the shapes",
        "[2/4] select kernels from the committed selection",
        "[3/4] compile 2 kernels, link and package them",
        "[4/4] check the wheel",
    ]
    (folder,) = wheel.WALKS.iterdir()
    assert folder.name.startswith("h200-")
    (request,) = road.requests
    assert request.shapes == str(folder / "shapes.toml")
    assert {x.weights[0].name for x in load_shape_set(request.shapes).models} >= {"qkv", "down", "lm_head"}
    assert any(x.split()[:1] == ["all"] and x.endswith(" s") for x in result.stdout.splitlines())


def test_without_a_committed_selection_the_cost_model_selects(road):
    result = aot(*WORDS[:-1], "thor")
    assert result.exit_code == 0, result.output
    (request,) = road.requests
    assert (request.records, request.incumbent, request.heldout) == ((), None, "atlas_heldout")
    assert "[2/4] select kernels by the cost model\n" in result.stderr


def test_its_facts_are_json(road, monkeypatch):
    monkeypatch.setattr(wheel, "built_facts", lambda built, coverages: {"wheel": built.path, "of": list(coverages)})
    result = aot(*WORDS, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["wheel"], found["of"]) == ("dist/x.whl", ["h200"])
    assert found["selection"]["kernels"] == [x.name for x in SELECTION.kernels]
    assert list(found["seconds"]) == [x.split("] ")[1] for x in result.stderr.splitlines() if x.startswith("[")]


def test_what_is_done_is_not_done_again(road):
    aot(*WORDS)
    assert aot(*WORDS).exit_code == 0
    assert road.done == ["select", "build", "check", "build", "check"]
    (folder,) = wheel.WALKS.iterdir()
    (folder / "selection.json").write_text("{}")
    result = aot(*WORDS)
    assert (road.done[5:], "selection.json is damaged; selecting again" in result.stderr) == (
        ["select", "build", "check"],
        True,
    )
    aot(*WORDS, "--batch", "3")
    assert road.done[8:] == ["select", "build", "check"]


def test_an_interrupted_walk_carries_on(road):
    road.fails = True
    result = aot(*WORDS)
    assert result.exit_code == 130
    assert "aot: interrupted; what was done is kept, and the same command carries on\n" in result.stderr
    road.fails = False
    assert aot(*WORDS).exit_code == 0
    assert road.done == ["select", "build", "build", "check"]


def test_times_are_measured_first_where_that_is_asked_and_once(road):
    words = ("wheel", "--shapes", "shapes.toml", "--target", "h200", "--on", "ssh://x", "--budget-seconds", "60")
    road.code = 9
    result = aot(*words)
    assert (result.exit_code, road.requests) == (9, [])
    assert "the run there ended with exit code 9; the same command carries on\n" in result.stderr
    road.code = 0
    result = aot(*words)
    assert result.exit_code == 0, result.output
    tried = ["look at ssh://x", "inspect", "bundle", "measure --budget-seconds 60"]
    assert road.done == [*tried, *tried, "import", "select", "build", "check"]
    assert (road.requests[0].records[0].name, road.requests[0].heldout) == ("record.jsonl.gz", "")
    assert "[2/5] measure on ssh://x\n" in result.stderr
    again = aot(*words)
    assert road.done[-2:] == ["build", "check"]
    assert f"measured before: {road.requests[0].records[0]}; to measure again, remove it\n" in again.stderr


def test_the_slow_kernel_is_warned_of(road):
    road.selection = replace(SELECTION, coverage=Coverage(0, 1, "p", {"n 7 is not a multiple of 8": 2}, {}))
    assert "warning: h200: the slow general kernel answers 2 of 3 problems: n 7 is not a" in aot(*WORDS).stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["wheel"], 2, "give one of --config and --shapes"),
        ([*WORDS, "--shapes", "shapes.toml"], 2, "--shapes means nothing with --config; leave it out, or use it"),
        ([*WORDS, "--budget-seconds", "3"], 2, "--budget-seconds means nothing without --on"),
        (["wheel", "--config", "none.json"], 3, "none.json: No such file or directory"),
        (["wheel", "--shapes", "none.toml"], 3, "none.toml: No such file or directory"),
        ([*WORDS[:-1], "xavier"], 4, "no target 'xavier'"),
        ([*WORDS, "--package", "class"], 11, "--package 'class' is a keyword of Python"),
    ],
)
def test_what_cannot_be_walked_is_refused_first(road, words, code, message):
    result = aot(*words)
    assert (result.exit_code, message in result.stderr, road.done) == (code, True, []), result.stderr
