"""The processes that run shards of a wheel's kernels under a sanitizer: starts, follows and replaces them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from tests.device.sanitize_reports import Stream
from tests.device.sanitize_worker import MARK

if TYPE_CHECKING:
    from pathlib import Path

    from tests.device.sanitize_cases import ShippedKernel

WORKER = ("-m", "tests.device.sanitize_worker")
STUCK_S = 75.0
"""A process that prints nothing for so long is taken to hang; launches of 15 s were seen under racecheck."""

LATE_S = 4.0
"""How long after the deadline a process may still be in the case that it began in time."""

MAX_BARREN_STARTS = 2
"""How often a shard's process is started that begins no case."""


@dataclass
class Shard:
    """The kernels of one process."""

    path: Path
    """Of the plan that it reads."""
    kernels: list[ShippedKernel]
    plan: dict[str, Any]
    num_barren_starts: int = 0
    """Of processes that have begun no case."""
    process: subprocess.Popen[str] | None = None
    stream: Stream = field(default_factory=Stream)
    case: dict[str, Any] | None = None
    """What it began last."""
    heard: float = 0.0
    has_ended: bool = False


class Pool:
    """Runs shards and keeps a record of each case.

    Args:
        start: how the sanitizer is started, up to the program that it watches.
        records: of earlier runs.
        file: where new ones are written, a line each.
        tool: of the sanitizer.
    """

    def __init__(self, start: list[str], records: list[dict[str, Any]], file: TextIO, tool: str) -> None:
        self._start, self._file, self._tool = start, file, tool
        self.records = records
        self.troubles: list[str] = []
        """What is no result of a kernel: processes that ended too soon, lines that are not understood."""
        self._lines: queue.Queue[tuple[Shard, int, str | None]] = queue.Queue()

    @property
    def _done(self) -> set[tuple[str, str]]:
        return {(x["digest"], x["case"]) for x in self.records}

    def left(self, kernels: list[ShippedKernel]) -> list[ShippedKernel]:
        """Return the kernels of which a case was not watched yet."""
        done = self._done
        return [x for x in kernels if any((x.digest, case.name) not in done for case in x.cases())]

    def _open(self, arguments: list[str]) -> subprocess.Popen[str]:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return subprocess.Popen(
            [*self._start, sys.executable, *WORKER, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=os.environ | threads,
            start_new_session=True,
        )

    def begin_control(self, folder: Path) -> subprocess.Popen[str]:
        """Start what has the fault that the tool is to report; the same choice of kernels is watched."""
        return self._open([str(folder), "--control", self._tool])

    def end_control(self, process: subprocess.Popen[str]) -> bool:
        """Say whether the tool reported that fault."""
        stream = Stream()
        try:
            text, _ = process.communicate(timeout=STUCK_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            self.troubles.append(f"the control did not end in {STUCK_S:.0f} s after the rest")
            return False
        for line in text.splitlines():
            stream.take(line)
        reports = [x for x in stream.drain() if "control" in x]
        if not reports:
            self.troubles.append("the control was not reported: " + " | ".join(text.splitlines()[-8:]))
        return bool(reports)

    def _begin(self, shard: Shard) -> None:
        """Start a shard's process, behind what was done."""
        plan = shard.plan | {"kernels": [asdict(x) for x in shard.kernels], "done": sorted(self._done)}
        shard.path.write_text(json.dumps(plan), encoding="utf-8")
        shard.num_barren_starts, shard.case, shard.heard = shard.num_barren_starts + 1, None, time.time()
        shard.process = self._open([str(shard.path)])
        threading.Thread(target=self._read, args=(shard, shard.process), daemon=True).start()

    def _read(self, shard: Shard, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                self._lines.put((shard, process.pid, line.rstrip("\n")))
        self._lines.put((shard, process.pid, None))

    def _keep(self, shard: Shard, reports: list[str], **facts: Any) -> None:
        """Write the record of the case in hand."""
        if shard.case is not None:
            record = shard.case | facts | ({"reports": reports} if reports else {})
            self.records.append(record)
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
            shard.case = None
        elif reports:
            self.troubles += [f"outside every case: {x}" for x in reports]

    def _take(self, shard: Shard, line: str) -> None:
        shard.heard = time.time()
        if not line.startswith(MARK):
            shard.stream.take(line)
            return
        said = json.loads(line[len(MARK) :])
        if "begin" in said:
            self._settle(shard)
            shard.num_barren_starts = 0
            digest = next(x.digest for x in shard.kernels if x.name == said["begin"])
            shard.case = {"kernel": said["begin"], "digest": digest, "case": said["case"]}
        elif "end" in said and shard.case is not None:
            shard.case |= {x: said[x] for x in ("seconds", "fault") if said[x] != ""}
        elif "ended" in said:
            self._settle(shard)
            shard.has_ended = True

    def _settle(self, shard: Shard) -> None:
        """Keep the case that ended: a report of it may be printed up to the beginning of the next one."""
        self._keep(shard, shard.stream.drain())

    def _finish(self, shard: Shard, status: int) -> None:
        """Look at a process that ended; start another one for what it left."""
        reports = shard.stream.drain()
        if shard.case is not None and "seconds" not in shard.case:
            self._keep(shard, reports, fault=f"the process ended with {status} in this case", seconds=0.0)
        else:
            self._keep(shard, reports)
        shard.process = None
        if shard.stream.num_told and not shard.stream.num_reports:
            self.troubles.append(f"a process told of {shard.stream.num_told} errors and reported none")
        if not shard.has_ended:
            self.troubles.append(f"a process ended with {status}: {' | '.join(shard.stream.other[-2:])}")
            if shard.num_barren_starts < MAX_BARREN_STARTS and time.time() < shard.plan["deadline"]:
                self._begin(shard)

    def run(self, shards: list[Shard]) -> None:
        """Run all shards to their ends, or to the deadline."""
        for shard in shards:
            self._begin(shard)
        while any(x.process for x in shards):
            try:
                shard, pid, line = self._lines.get(timeout=0.5)
            except queue.Empty:
                self._stop_stuck(shards)
                continue
            if shard.process is None or shard.process.pid != pid:
                continue
            if line is None:
                self._finish(shard, shard.process.wait())
            else:
                self._take(shard, line)
            self._stop_stuck(shards)

    def _stop_stuck(self, shards: list[Shard]) -> None:
        now = time.time()
        for shard in shards:
            if shard.process is None:
                continue
            is_late = now > shard.plan["deadline"] + LATE_S
            if not is_late and now - shard.heard < STUCK_S:
                continue
            _kill(shard.process)
            if is_late:
                if shard.case is not None and "seconds" not in shard.case:
                    shard.case = None  # begun in time and not done: not reached
                shard.has_ended = True
            elif shard.case is not None:
                self._keep(shard, shard.stream.drain(), fault=f"printed nothing for {STUCK_S:.0f} s", seconds=STUCK_S)
            self._finish(shard, shard.process.wait())


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process of ours and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
