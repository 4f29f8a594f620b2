"""The kernels that are launched on a GPU and in the interpreter, and what a GPU made of them: two files of JSON.

Like a tuning bundle these modules need aot.core, aot.measure and numpy alone, so that they run on a device as it is.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from aot.core.candidate import Candidate, KernelKey
from aot.core.constraints import Count, Date, Extent, Grammar, KernelName, Label, Positive, Sha256, Text, Version, Word
from aot.core.json_text import write_json
from aot.core.operation import Operation
from aot.core.strict_json import decode_version, parse_json, read_content
from aot.core.whole_file import write_whole
from aot.kinds.gemm.tuned import TunedKernel
from aot.kinds.rows.candidate import RowCandidate, RowKernelKey, RowLimits
from aot.kinds.rows.catalogue import CataloguedRow

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aot.core.numerics import Bits

FIXTURE_VERSION = 1
LIBRARY_FILE = "kernels.so"
KERNELS_FILE = "kernels.json"
Base64 = Annotated[str, Grammar(r"[A-Za-z0-9+/=]*", "bytes in base64", 1 << 20)]


class Content(Word):
    """What the operands of a case hold."""

    EXACT = "exact"
    """Small whole numbers, and powers of two as factors: every sum is exact, in any order."""
    RANDOM = "random"
    """What verifying draws."""


@dataclass(frozen=True)
class ListedProduct:
    """A kernel of a product; its place in the list is its index in the library."""

    operation: Operation
    candidate: Candidate
    ptx_sha256: Sha256
    m_multiple: Extent
    n_multiple: Extent
    is_fallback: bool
    orders_tiles: bool
    widest: Candidate | None = None
    """The candidate that its object was compiled for, where that computes several widths."""
    num_narrower: Positive | None = None
    """Groups of 8 columns by which its tile is narrower than that one's."""

    @property
    def key(self) -> KernelKey:
        """Return the kernel's operation and candidate."""
        return KernelKey(self.operation, self.candidate)

    @property
    def tuned(self) -> TunedKernel:
        """Return what the cases of a kernel depend on."""
        multiples = self.m_multiple, self.n_multiple
        return TunedKernel(self.key, "", *multiples, self.is_fallback, self.orders_tiles)


@dataclass(frozen=True)
class ListedRows:
    """A kernel of an operation on rows."""

    operation: CataloguedRow
    candidate: RowCandidate
    ptx_sha256: Sha256
    limits: RowLimits

    @property
    def key(self) -> RowKernelKey:
        """Return the kernel's operation and candidate."""
        return RowKernelKey(self.operation, self.candidate)


@dataclass(frozen=True)
class KernelList:
    version: Version
    products: tuple[ListedProduct, ...]
    rows: tuple[ListedRows, ...]


@dataclass(frozen=True)
class RecordedArray:
    """What a kernel wrote: its bits, the first bytes of all elements before the second ones, which packs better."""

    argument: Label
    content: Base64

    @staticmethod
    def of(argument: str, bits: Bits) -> RecordedArray:
        planes = np.ascontiguousarray(bits).reshape(-1, 1).view(np.uint8).T
        return RecordedArray(argument, b64encode(zlib.compress(planes.tobytes(), 9)).decode())

    def bits(self, like: Bits) -> Bits:
        """Unpack bits of a shape and type."""
        planes = np.frombuffer(zlib.decompress(b64decode(self.content)), np.uint8).reshape(like.itemsize, like.size)
        return np.ascontiguousarray(planes.T).view(like.dtype).reshape(like.shape)


@dataclass(frozen=True)
class RecordedCase:
    """What a GPU made of a case."""

    case: Text
    content: Content
    num_elements: Count
    sha256: Sha256
    """Of the bits of all that was written, in the order of the arguments."""
    fault: Text
    """What verifying finds wrong; empty where nothing is."""
    written: tuple[RecordedArray, ...] = ()
    """The bits, where they are not left to the checksum."""


@dataclass(frozen=True)
class RecordedKernel:
    """What a GPU made of a kernel's cases."""

    name: KernelName
    error: Text
    """Why there are not all cases; empty where there are."""
    cases: tuple[RecordedCase, ...]


@dataclass(frozen=True)
class Fixture:
    """A run on a GPU."""

    version: Version
    device: Label
    driver: Label
    date: Date
    listed: KernelList
    kernels: tuple[RecordedKernel, ...]
    """Of products, then of rows, in the order of the list."""


def checksum(written: Mapping[str, Bits]) -> str:
    """Return the checksum of what a kernel wrote."""
    digest = hashlib.sha256()
    for bits in written.values():
        digest.update(np.ascontiguousarray(bits).tobytes())
    return digest.hexdigest()


def write_document(path: Path, document: KernelList | Fixture) -> None:
    """Write a list or a fixture, compressed where the path ends with `.gz`."""
    content = write_json(document).encode()
    write_whole(path, gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


def read_kernels(path: Path) -> KernelList:
    """Read a list of kernels (DecodeError)."""
    return decode_version(KernelList, parse_json(read_content(path)), "version", FIXTURE_VERSION)


def read_fixture(path: Path) -> Fixture:
    """Read a fixture (DecodeError)."""
    return decode_version(Fixture, parse_json(read_content(path)), "version", FIXTURE_VERSION)
