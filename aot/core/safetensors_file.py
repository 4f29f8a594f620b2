"""Files of tensors in the format `safetensors`: what a header says, each tensor's bytes from disk, and new headers.

A file is 8 bytes that count the header's, a header in JSON, and the tensors' bytes behind it, which follow each other
without holes. Nothing in it is executed. Tensors are given as unsigned integers of their bits, from a mapping of the
file, so that only what is used is read.

A wheel has this module too. Source of the format: github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Bits = NDArray[Any]

ELEMENT_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""By the name of an element type. Source: safetensors, README."""
MAX_HEADER_BYTES = 100_000_000
"""Source: safetensors, tensor.rs, MAX_HEADER_SIZE."""
MAX_DIMENSIONS, MAX_NAME = 16, 1000
ALIGNMENT = 8
"""What a header's length is padded to, by spaces, so that tensors begin at multiples of it."""
METADATA = "__metadata__"
SUFFIX = ".safetensors"
_MEND = "fetch the file again, for it may be cut or damaged"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file."""

    file: str
    """The file's path."""
    name: str
    dtype: str
    """As `ELEMENT_BYTES` has it."""
    shape: tuple[int, ...]
    start: int
    """Of its bytes in the file."""

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its elements."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]

    @property
    def text(self) -> str:
        """Return what messages say of it."""
        return f"{short(self.name)} is {self.dtype} of {self.shape}"

    @property
    def place(self) -> tuple[str, int]:
        """Return the file, and where in it the tensor begins."""
        return self.file, self.start

    def matrix(self, number: int) -> StoredTensor:
        """Return one of the items along the first dimension, the last dimensions of which are joined to columns."""
        _, rows, *columns = self.shape
        shape = (rows, prod(columns))
        start = self.start + number * prod(shape) * ELEMENT_BYTES[self.dtype]
        return StoredTensor(self.file, self.name, self.dtype, shape, start)

    def bits(self) -> Bits:
        """Return its elements' bits, in its shape, as a mapping of the file: what is not looked at is not read."""
        import numpy as np  # a wheel does without, but for weights that are packed

        kind = np.dtype(f"<u{ELEMENT_BYTES[self.dtype]}")
        if not self.num_bytes:
            return np.empty(self.shape, kind)
        held = np.memmap(self.file, np.uint8, "r", self.start, (self.num_bytes,))
        return np.asarray(held).view(kind).reshape(self.shape)


def short(value: object) -> str:
    """Write a value of a file for a message: in one line of ASCII, not too long."""
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of over 30 digits"
    return text if len(text) <= 120 else f"{text[:117]}..."


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read which tensors a file has, by name.

    Raises:
        CheckpointError: the file is none of this format, is cut, or says what cannot be so.
    """
    if path.exists() and not path.is_file():  # a pipe would never end
        raise CheckpointError(f"{path}: it is no regular file; expected a file of safetensors")
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            count = int.from_bytes(file.read(8), "little")
            if size < 8 or count > min(MAX_HEADER_BYTES, size - 8):
                raise CheckpointError(
                    f"{path}: {size} bytes, of which the first 8 count a header of {short(count)}; expected at most "
                    f"{min(MAX_HEADER_BYTES, max(size - 8, 0))}; {_MEND}"
                )
            content = file.read(count)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}; expected a file of safetensors") from error
    return _tensors(path, _parsed(path, content), 8 + count, size)


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content.decode(), object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        why = ascii(str(error))[1:-1][:200]
        raise CheckpointError(f"{path}: the header is no JSON: {why}; {_MEND}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: the header is {short(found)}; expected an object; {_MEND}")
    found.pop(METADATA, None)
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _tensors(path: Path, header: dict[str, Any], first: int, size: int) -> dict[str, StoredTensor]:
    found, places = {}, []
    for name, value in header.items():
        dtype, shape, offsets = _fields(path, name, value)
        tensor = StoredTensor(str(path), name, dtype, shape, first + offsets[0])
        if tensor.num_bytes != offsets[1] - offsets[0]:
            raise CheckpointError(
                f"{path}: {tensor.text}, {short(tensor.num_bytes)} bytes, and lies in {short(offsets[1] - offsets[0])};"
                f" expected as many; {_MEND}"
            )
        found[name] = tensor
        places.append((*offsets, name))
    end = 0
    for start, stop, name in sorted(places):
        if start != end:
            raise CheckpointError(
                f"{path}: {short(name)} begins at byte {short(start)}; expected {short(end)}, where what is in front "
                f"of it ends; {_MEND}"
            )
        end = stop
    if first + end != size:
        raise CheckpointError(f"{path}: {size} bytes; expected {short(first + end)}, by its header; {_MEND}")
    return found


def _fields(path: Path, name: str, value: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """Return type, shape and place of a tensor, each checked by itself."""
    value = value if isinstance(value, dict) else {}
    dtype, shape, offsets = (value.get(x) for x in ("dtype", "shape", "data_offsets"))

    def refuse(what: str, got: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{path}: {what} of {short(name)} is {short(got)}; expected {expected}; {_MEND}")

    if not 0 < len(name) <= MAX_NAME:
        raise refuse("the name", name, f"1 to {MAX_NAME} characters")
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise refuse("the type", dtype, f"one of {', '.join(ELEMENT_BYTES)}")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise refuse("the shape", shape, f"at most {MAX_DIMENSIONS} whole numbers")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refuse("the place", offsets, "two whole numbers in order")
    return dtype, tuple(shape), (offsets[0], offsets[1])


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 2**63 for x in value)


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Return the beginning of a file whose tensors, of these names, types and shapes, follow in this order."""
    document: dict[str, Any] = {METADATA: {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + prod(shape) * ELEMENT_BYTES[dtype]
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
