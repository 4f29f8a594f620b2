"""Calibrations: the cost model's constants for one device, in a TOML file that `aot calibrate` writes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from aot.core.constraints import MAX_LABEL, TargetName, Text, Version, one_line
from aot.core.errors import TargetError
from aot.core.strict_json import DecodeError, read_content, text_of
from aot.core.strict_toml import TomlError, parse_toml, toml_string
from aot.core.whole_file import write_whole
from aot.space.cost import NAME, Constants

if TYPE_CHECKING:
    from pathlib import Path

CALIBRATION_VERSION = 1
"""Raised whenever an entry changes its meaning."""


CALIBRATED = f"{NAME}, constants:"
"""How the name of such a model begins."""

MAX_MODEL = MAX_LABEL - 15
"""Characters of such a name: a selection's record is it, at times with ", imputed" behind it."""


@dataclass(frozen=True)
class Calibration:
    """Constants, the target that they are for, and what they were fitted to."""

    target: TargetName
    source: Text
    constants: Constants

    @property
    def model(self) -> str:
        """Return what times predicted by it are called: the model's version, and what its constants were fitted to."""
        return one_line(f"{CALIBRATED} {self.source or 'of a calibration that does not say'}", MAX_MODEL)


@dataclass(frozen=True)
class _Calibration:
    version: Version
    target: TargetName
    source: Text
    constants: Constants


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration; equal ones are equal bytes.

    Raises:
        TargetError: it is none that could be read again.
    """
    lines = [f"version = {CALIBRATION_VERSION}", f"target = {toml_string(calibration.target)}"]
    lines += [f"source = {toml_string(calibration.source)}", "", "[constants]"]
    lines += [f"{name} = {value!r}" for name, value in asdict(calibration.constants).items()]
    text = "\n".join(lines) + "\n"
    parse_calibration(text, f"the calibration for {path}", calibration.target)
    write_whole(path, text)


def parse_calibration(text: str, where: str, target: str) -> Calibration:
    """Read a calibration's TOML; see `read_calibration`."""
    try:
        entry = parse_toml(text, where, _Calibration, CALIBRATION_VERSION)
    except TomlError as error:
        raise TargetError(f"{error}; mend the entry, or run `aot calibrate` again") from error
    if entry.target != target:
        raise TargetError(f"{where} is for {entry.target}, not for {target}; give another --calibration")
    return Calibration(entry.target, entry.source, entry.constants)


def read_calibration(path: Path, target: str) -> Calibration:
    """Read a calibration.

    Args:
        path: the file.
        target: the target that it must be for.

    Raises:
        TargetError: the file is missing or damaged, or for another target.
    """
    try:
        text = text_of(read_content(path))
    except DecodeError as error:
        raise TargetError(f"cannot read the calibration {path}: {error}; run `aot calibrate`") from error
    return parse_calibration(text, str(path), target)


def calibration_of(path: Path | None, target: str) -> Calibration | None:
    """Read a calibration; None where no file was given, of the constants that every target starts with.

    Raises:
        TargetError: as `read_calibration`.
    """
    return None if path is None else read_calibration(path, target)
