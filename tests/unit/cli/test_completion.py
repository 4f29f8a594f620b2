"""What a shell is told to complete, and where its script is put."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aot.cli.completion import script
from aot.cli.main import COMMANDS
from aot.core.shape_set import shape_set_names
from aot.core.target import target_names
from tests.unit.invoked import aot, succeed

AOT = Path(sys.executable).with_name("aot")


def completions(words, incomplete):
    """Ask the installed command as bash does; give the values, and the kinds of what the shell completes itself."""
    line = " ".join(["aot", *words, incomplete])
    env = os.environ | {"_AOT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) + 1)}
    done = subprocess.run([AOT], env=env, capture_output=True, text=True, check=True)
    return [tuple(x.split(",", 1)) for x in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        ([], "sp", ["space"]),
        ([], "", sorted(COMMANDS)),
        (["shapes"], "from-", ["from-config", "from-misses"]),
        (["build"], "--max-h", ["--max-heldout-regret"]),
        (["build", "--target"], "", list(target_names())),
        (["build", "--target"], "h100,h", ["h100,h100", "h100,h200"]),
        (["select", "--shapes"], "atlas", [x for x in shape_set_names() if x.startswith("atlas")]),
        (["completion"], "f", ["fish"]),
    ],
)
def test_commands_options_and_names_are_completed(words, incomplete, expected):
    assert completions(words, incomplete) == [("plain", x) for x in expected]


@pytest.mark.slow
def test_files_are_left_to_the_shell():
    assert completions(["select", "--shapes"], "./my") == [("file", "./my")]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_takes_the_script(tmp_path):
    (tmp_path / "script").write_text(script("bash"))
    lines = ["source ./script", "COMP_WORDS=(aot targ)", "COMP_CWORD=1", "_aot_completion aot", "echo ${COMPREPLY[@]}"]
    env = os.environ | {"PATH": f"{AOT.parent}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "targets\n"


@pytest.mark.parametrize(
    ("shell", "path"),
    [
        ("bash", "data/bash-completion/completions/aot"),
        ("zsh", "home/.zfunc/_aot"),
        ("fish", "home/.config/fish/completions/aot.fish"),
    ],
)
def test_the_script_is_put_where_the_shell_looks(tmp_path, monkeypatch, shell, path):
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    text = succeed("completion", "--install")
    assert text.startswith(f"wrote {tmp_path / path}; it counts from the next {shell} on")
    assert (tmp_path / path).read_text() == succeed("completion", shell) == script(shell)
    assert "_AOT_COMPLETE" in script(shell)


@pytest.mark.parametrize(("value", "text"), [("/bin/tcsh", "$SHELL is tcsh"), ("", "$SHELL is not set")])
def test_a_shell_that_is_not_known_is_refused(monkeypatch, value, text):
    monkeypatch.setenv("SHELL", value)
    result = aot("completion")
    assert (result.exit_code, f"{text}; give one of bash, zsh, fish" in result.stderr) == (2, True)
