"""Errors that the toolchain raises, one exit code each.

Leaves raise; only `aot.cli.main` turns an error into an exit code. Every message says what failed, the value got, what
was expected and the next step.
"""

from __future__ import annotations

import errno
import os


class AotError(Exception):
    """Base of every error that a user can cause or act on."""

    exit_code = 1


class ShapeFileError(AotError):
    """A shape-set file that cannot be read as one: key, value and what was expected."""

    exit_code = 3


class TargetError(AotError):
    """An unknown target, or a target file with a missing, unknown or impossible entry."""

    exit_code = 4


class CandidateError(AotError):
    """A candidate name or pattern that matches nothing, or parameters that no family can build."""

    exit_code = 5


class OperationError(AotError):
    """A name of an operation, or operations that do not go together, of which the catalogue has none."""

    exit_code = 18


class FormatError(AotError):
    """A weight that a narrow format cannot hold, or packed bytes that are not of the format that was named."""

    exit_code = 22


class CheckpointError(AotError):
    """A checkpoint, or a folder of packed weights, that is damaged, incomplete, or quantised in an unknown way."""

    exit_code = 23


class FamilyError(AotError):
    """A kernel family that cannot be loaded, is none, or has the name of another one."""

    exit_code = 19


class CompileError(AotError):
    """A kernel that did not compile, or an object that the second gate refused."""

    exit_code = 6


class DeviceError(AotError):
    """No usable GPU, a driver call that failed, or a GPU of another architecture than the target's."""

    exit_code = 7


class StoreError(AotError):
    """A measurement store or record that is damaged, or of another version or device."""

    exit_code = 8


class SelectionError(AotError):
    """Measurements from which no table can be made."""

    exit_code = 9


class ManifestError(AotError):
    """A manifest with a missing, unknown or inconsistent entry, or of an unknown version."""

    exit_code = 10


class PackageError(AotError):
    """A build that failed, or a wheel that is not what its manifest says."""

    exit_code = 11


class RemoteError(AotError):
    """A device that cannot be reached, has no Python, or is busy with another tuning."""

    exit_code = 13


class VerificationError(AotError):
    """A kernel whose result is wrong, or not reproducible, on the device."""

    exit_code = 12


class DependencyError(AotError):
    """A package that is not installed."""

    exit_code = 14


class FleetError(AotError):
    """A cluster that cannot be reached, or has no worker that fits."""

    exit_code = 20


class ReceiptError(AotError):
    """A receipt of a bench that is damaged, tampered with, of another version, or not signed as it has to be."""

    exit_code = 21


REPAIR = "`make setup` installs what is missing; if that does not help: rm -rf .venv && make setup"
"""What to do where a package is missing."""


class OutputError(AotError):
    """A file or folder that cannot be written."""

    exit_code = 15


class ResourceError(AotError):
    """A machine that ran out of disk or memory, or on which a tool was killed."""

    exit_code = 16


class CoverageError(AotError):
    """A selection that was not measured on all that it is made for."""

    exit_code = 17


_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS)
_MACHINES_WORDS = (*(os.strerror(code).lower() for code in _OF_THE_MACHINE), "out of memory", "bad_alloc", "bad alloc")


def is_of_the_machine(text: str) -> bool:
    """Say whether the text of a failure names a cause in the machine: its disk, memory or open files."""
    lowered = text.lower()
    return any(words in lowered for words in _MACHINES_WORDS)
