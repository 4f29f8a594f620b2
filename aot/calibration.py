"""Calibrations: the cost model's constants for one device, in a TOML file that `aot calibrate` writes."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from aot.cost import DEFAULTS, Constants
from aot.errors import TargetError
from aot.whole_file import write_whole

if TYPE_CHECKING:
    from pathlib import Path

CALIBRATION_VERSION = 1
"""Raised whenever an entry changes its meaning."""

_KEYS = {"version", "target", "source", "constants"}


@dataclass(frozen=True)
class Calibration:
    """Constants, the target that they are for, and what they were fitted to."""

    target: str
    source: str
    constants: Constants


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration; equal ones are equal bytes.

    Raises:
        TargetError: the source has a quote or a line break, which this writer does not escape.
    """
    if any(x in calibration.source + calibration.target for x in '"\\\n'):
        raise TargetError(f"the source {calibration.source!r} has a quote, a backslash or a line break; leave it out")
    lines = [f"version = {CALIBRATION_VERSION}", f'target = "{calibration.target}"']
    lines += [f'source = "{calibration.source}"', "", "[constants]"]
    lines += [f"{name} = {value!r}" for name, value in asdict(calibration.constants).items()]
    write_whole(path, "\n".join(lines) + "\n")


def read_calibration(path: Path, target: str) -> Calibration:
    """Read a calibration.

    Args:
        path: the file.
        target: the target that it must be for.

    Raises:
        TargetError: the file is missing or damaged, or for another target.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TargetError(f"cannot read the calibration {path}: {error}; run `aot calibrate`") from error
    if set(values) != _KEYS or values["version"] != CALIBRATION_VERSION:
        raise TargetError(
            f"{path} has version {values.get('version')!r} and the keys {sorted(values)}; expected version "
            f"{CALIBRATION_VERSION} and {sorted(_KEYS)}; run `aot calibrate` again"
        )
    constants, names = values["constants"], {field.name for field in fields(Constants)}
    if not isinstance(constants, dict) or set(constants) != names:
        raise TargetError(
            f"{path}: [constants] must have {sorted(names)}, no more and no less; run `aot calibrate` again"
        )
    for name, value in constants.items():
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise TargetError(f"{path}: `{name}` is {value!r}; expected a number above 0; mend the entry")
    if values["target"] != target:
        raise TargetError(f"{path} is for {values['target']!r}, not for {target}; give another --calibration")
    return Calibration(target, str(values["source"]), Constants(**{x: float(y) for x, y in constants.items()}))


def constants_of(path: Path | None, target: str) -> Constants:
    """Give a calibration's constants, or those that every target starts with where there is none.

    Raises:
        TargetError: as `read_calibration`.
    """
    return DEFAULTS if path is None else read_calibration(path, target).constants
