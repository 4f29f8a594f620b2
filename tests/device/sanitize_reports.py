"""What compute-sanitizer prints: reports, each told once for each kernel that it is of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

PREFIX = "========="
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK|LEAK) SUMMARY: (\d+)")
_SYMBOL = re.compile(r"\b(\w{48})\w{12,}")
_COUNTS = re.compile(r"\[\d+ hazards?\]|\b0x[0-9a-f]{6,}\b|\(\d+,\d+,\d+\)")
MAX_LINES = 8
"""Lines of a report that are kept: what follows is the host's stack."""


@dataclass
class Stream:
    """Takes a sanitizer's lines and gathers them into reports.

    A report begins with a line whose text stands right behind the prefix; lines that belong to it are indented.
    """

    reports: list[str] = field(default_factory=list)
    """Of the case in hand, without what differs from launch to launch: counts, addresses and thread numbers."""
    num_reports: int = 0
    """Those that were seen, of all cases."""
    num_told: int = 0
    """What the sanitizer's closing lines sum up to."""
    other: list[str] = field(default_factory=list)
    """Lines that are no report: a traceback, or what the tool says of itself."""
    _open: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        if not line.startswith(PREFIX):
            self.other.append(line)
            return
        text = line[len(PREFIX) :].rstrip()
        summary = _SUMMARY.search(text)
        if summary:
            self.num_told += int(summary[1])
        if text.startswith("  "):
            if 0 < len(self._open) < MAX_LINES:
                self._open.append(_plain(text))
            return
        self._close()
        if text.strip() and not summary and "COMPUTE-SANITIZER" not in text:
            self._open = [_plain(text)]

    def _close(self) -> None:
        if self._open:
            self.num_reports += 1
            report = "\n".join(self._open)
            if report not in self.reports:
                self.reports.append(report)
        self._open = []

    def drain(self) -> list[str]:
        """Return the reports since the last time, those of one case."""
        self._close()
        found, self.reports = self.reports, []
        return found


def _plain(text: str) -> str:
    """Return a line without what differs from launch to launch; names of kernels are cut."""
    return _COUNTS.sub("*", _SYMBOL.sub(r"\1~", text.strip()))
