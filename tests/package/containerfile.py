"""Execute the layers of a Containerfile in unpacked root file systems, by proot: no container runs.

What the project's own files use of the language is known here; anything else is an error.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.package import userland

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Stage:
    """A root file system, and what its image says of how it is run."""

    root: Path
    environment: dict = field(default_factory=lambda: {"PATH": PATH})
    folder: str = "/"
    user: str = "0:0"
    command: list = field(default_factory=list)


def _proot():
    """Give the words of proot, the system's or Debian's unpacked, and its environment."""
    found = shutil.which("proot")
    if found is not None:
        return [found]
    folder = userland.fetch_once("amd64", ["proot", "libtalloc2"], "proot")
    loader = "/lib64/ld-linux-x86-64.so.2"
    return [loader, "--library-path", str(folder / "usr/lib/x86_64-linux-gnu"), str(folder / "usr/bin/proot")]


def run(stage, command, emulator):
    """Run a command as in the image of a stage; `emulator` is the words that run a program of its machine."""
    words = [*_proot(), *(["-q", emulator[0]] if emulator else []), "-i", stage.user]
    words += ["-r", stage.root, "-b", "/proc", "-b", "/dev", "-w", stage.folder]
    return subprocess.run([*words, *command], env=stage.environment, capture_output=True, text=True, check=False)


def _copy(source, stage, target):
    """Copy a file, or what is in a folder, as COPY does."""
    place = stage.root / target.lstrip("/")
    if source.is_dir():
        shutil.copytree(source, place, dirs_exist_ok=True, symlinks=True)
        return
    place = place / source.name if target.endswith("/") else place
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)


def instructions(path):
    """Give the instructions of a Containerfile as (name, rest)."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def _copy_all(words, context, stages, stage):
    """Copy what a COPY names, from the context or from another stage."""
    root = context
    if words[0].startswith("--from="):
        root = stages[words.pop(0).removeprefix("--from=")].root
    for source in words[:-1]:
        _copy(root / source.lstrip("/"), stage, words[-1])


def _set(stage, name, rest):
    """Set what an image says of how it is run."""
    if name == "ENV":
        stage.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
    elif name == "WORKDIR":
        stage.folder = rest
        (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif name == "USER":
        stage.user = rest
    elif name == "CMD":
        stage.command = json.loads(rest)
    elif name != "ARG":  # that of the base, which is given
        raise NotImplementedError(name)


def execute(path, base, emulator, scratch):
    """Execute a Containerfile, whose folder is the context, over an unpacked base.

    Returns:
        The last stage, and what its commands printed.
    """
    stages, stage, printed = {}, None, ""
    for name, rest in instructions(path):
        if name == "FROM":
            stage = stages[rest.split()[-1]] = Stage(scratch / f"stage{len(stages)}")
            shutil.copytree(base, stage.root, symlinks=True)
        elif name == "COPY":
            _copy_all(rest.split(), path.parent, stages, stage)
        elif name == "RUN":
            done = run(stage, json.loads(rest), emulator)
            if done.returncode != 0:
                raise RuntimeError(f"{rest} ended with {done.returncode}: {done.stderr}")
            printed += done.stdout
        else:
            _set(stage, name, rest)
    return stage, printed
