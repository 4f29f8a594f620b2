"""Interrupt real commands at chosen moments, as a terminal does: the signal reaches the whole process group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 10.0
"""Two seconds are what a command promises, of which it takes at most 1.5 to end in good order (aot/cli/interrupt.py);
the rest is for a machine that runs other tests meanwhile. What does not end at all takes 30 s and more."""
GONE_S = 10.0
"""How long what was killed may take to be gone, on such a machine."""


@dataclass(frozen=True)
class Ending:
    """How a command ended, that long after its first signal."""

    code: int
    seconds: float
    output: str
    left: tuple[str, ...]
    """What it left: scratch folders, and processes of its group."""

    @property
    def fault(self) -> str:
        """Say what is wrong about it; empty if nothing is."""
        if self.seconds > LIMIT_S:
            return f"it took {self.seconds:.2f} s"
        if "Traceback" in self.output:
            return "it printed a traceback"
        return f"it left {', '.join(self.left)}" if self.left else ""


def _left(group: int, folder: Path) -> tuple[str, ...]:
    scratch = [*(folder / "tmp").iterdir(), *folder.rglob(".compiling-*"), *folder.rglob(".fetch-*")]
    scratch += folder.rglob(".*.partial")
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        # Children that lead a group of their own have the folder for temporary files in their command or environment.
        environment = b""
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_bytes()
        is_ours = words[2] == str(group) or f"TMPDIR={folder}/tmp".encode() in environment
        if is_ours and words[0] != "Z" and entry.name != str(os.getpid()):
            processes.append(f"process {entry.name}: {command[:200]}")
    return (*map(str, scratch), *processes)


def interrupt(
    words: list[str], folder: Path, after_s: float, *, number: int = signal.SIGINT, again_after_s: float | None = None
) -> Ending:
    """Run `aot` in a folder, signal its group after a while, and once more, and see how it ends."""
    (folder / "tmp").mkdir(exist_ok=True)
    environment = os.environ | {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "aot", *words],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        time.sleep(after_s)
        start = time.monotonic()
        for pause in (0.0, *(() if again_after_s is None else (again_after_s,))):
            time.sleep(pause)
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
        try:
            code = process.wait(3 * LIMIT_S)
        except subprocess.TimeoutExpired:
            code = 1
        seconds = time.monotonic() - start
        left = _left(process.pid, folder)
        end = time.monotonic() + GONE_S
        while left and time.monotonic() < end:  # the kernel ends what was killed
            time.sleep(0.05)
            left = _left(process.pid, folder)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        return Ending(code, seconds, log.read().decode(errors="replace"), left)
