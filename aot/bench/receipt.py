"""A receipt: what one run of the bench measured, of which wheel, on which machine, with a hash of it all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from aot.core.constraints import (
    Count,
    Date,
    Distribution,
    Grammar,
    KernelName,
    Label,
    Microseconds,
    Positive,
    Release,
    Sha256,
    TargetName,
    Text,
    Version,
)
from aot.core.errors import ReceiptError
from aot.core.json_text import json_line, write_json
from aot.core.measurement import Conditions
from aot.core.problem import Problem
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content

if TYPE_CHECKING:
    from pathlib import Path

RECEIPT_VERSION = 1
"""Raised whenever a field is added without a default, dropped, or changes its meaning."""

MIN_ROUNDS = 3
"""A range of fewer rounds says nothing of their noise."""

Hex32 = Annotated[str, Grammar(r"[0-9a-f]{64}", "32 bytes in hexadecimal digits")]
Hex64 = Annotated[str, Grammar(r"[0-9a-f]{128}", "64 bytes in hexadecimal digits", 128)]
Host = Annotated[str, Grammar(r"[a-z0-9_]+", "a machine, such as x86_64")]


@dataclass(frozen=True)
class Wheel:
    """The wheel that was measured: the file and the installed package have the same hashes."""

    package: Distribution
    version: Release
    sha256: Sha256
    """Of `_build.json`, which has the hash of every file of the package."""
    tables_sha256: Sha256
    """Of the manifest's dispatch tables."""
    table: TargetName
    """The target of the table that answered on the device."""
    table_reason: Text
    choices_sha256: Sha256
    """Of all that decided which kernel a product got: what `info()` of the package says on the device."""


@dataclass(frozen=True)
class Machine:
    """The machine that it was measured on."""

    conditions: Conditions
    """Clocks are those at the start of the run."""
    host: Host
    l2_bytes: Positive
    sm_clock_mhz_after: Count | None
    """Right after the last product; None where the device does not tell."""
    memory_clock_mhz_after: Count | None


@dataclass(frozen=True)
class Product:
    """What one product took, in microseconds, a number for each round; the rounds of both took turns."""

    problem: Problem
    kernel: KernelName
    """What the wheel's table picked."""
    wheel_us: tuple[Microseconds, ...]
    library: Label | None
    """Whose product was timed beside it, with its version; None where nothing was."""
    library_us: tuple[Microseconds, ...]

    def __post_init__(self) -> None:
        """Refuse rounds from which no noise can be told (ValueError)."""
        if len(self.wheel_us) < MIN_ROUNDS or min(self.wheel_us) <= 0:
            raise ValueError(f"wheel_us of {self.problem.name} needs {MIN_ROUNDS} rounds or more, all above 0")
        if (self.library is None) != (not self.library_us):
            raise ValueError(f"library and library_us of {self.problem.name}: one is there without the other")
        if self.library_us and (len(self.library_us) != len(self.wheel_us) or min(self.library_us) <= 0):
            raise ValueError(f"library_us of {self.problem.name} needs {len(self.wheel_us)} rounds, all above 0")


@dataclass(frozen=True)
class Signature:
    """An Ed25519 signature of the receipt's hash."""

    public_key: Hex32
    signature: Hex64


@dataclass(frozen=True)
class Receipt:
    """What one run of the bench measured."""

    receipt_version: Version
    made_by: Label
    date: Date
    wheel: Wheel
    machine: Machine
    products: tuple[Product, ...]
    sha256: Sha256 | None = None
    """Of all but this and the signature; see `content_sha256`."""
    signature: Signature | None = None


def content_sha256(receipt: Receipt) -> str:
    """Return the SHA-256 of what a receipt says: its JSON in one line, keys sorted, without hash and signature."""
    return hashlib.sha256(json_line(replace(receipt, sha256=None, signature=None)).encode()).hexdigest()


def sealed(receipt: Receipt) -> Receipt:
    """Return a receipt with its hash, and without a signature."""
    return replace(receipt, sha256=content_sha256(receipt), signature=None)


def receipt_text(receipt: Receipt) -> str:
    """Write a receipt as JSON: equal receipts are equal bytes."""
    return write_json(receipt)


def parse_receipt(content: bytes | str, where: str) -> Receipt:
    """Read a receipt from its JSON, and compare it with its hash; a signature is `signing.check_signature`'s.

    Raises:
        ReceiptError: it is no receipt, of another version, or not what its hash is of.
    """
    try:
        found = decode_version(Receipt, parse_json(content), "receipt_version", RECEIPT_VERSION)
    except DecodeError as error:
        raise ReceiptError(f"{where}: {error}; get the receipt again from who wrote it") from error
    if not found.products:
        raise ReceiptError(f"{where}: it has no products; measure again with `aot bench --receipt`")
    sha256 = content_sha256(found)
    if found.sha256 != sha256:
        raise ReceiptError(
            f"{where}: its content has sha256 {sha256}, it says {found.sha256 or 'none'}: it was changed after it was "
            "written; get the receipt again from who wrote it"
        )
    return found


def read_receipt(path: Path) -> Receipt:
    """Read a receipt's file.

    Raises:
        ReceiptError: it cannot be read, or is refused as `parse_receipt` does.
    """
    try:
        content = read_content(path)
    except DecodeError as error:
        raise ReceiptError(f"{path}: {error}; give the path of a receipt") from error
    return parse_receipt(content, str(path))
