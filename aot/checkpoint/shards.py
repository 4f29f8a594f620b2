"""The files of a packed folder: what is in each, and writing one, as one process does it."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.checkpoint.reading import LayerReader
from aot.checkpoint.stored import StackedTensor
from aot.core.errors import AotError, CheckpointError, OutputError, ResourceError
from aot.core.packed_folder import Shard, name_of
from aot.core.safetensors_file import StoredTensor, header_bytes, short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.checkpoint.stored import Found, StoredLayer

MAX_BYTES = 2**27
"""Of a file, unless one Linear or tensor has more: small, so that processes end together and little is done again."""
COPY_BYTES = 2**24
"""That are copied at once."""
PARTIAL = ".partial"
"""How the name of a file ends that is being written."""


@dataclass(frozen=True)
class Part:
    """A packed Linear or stack of experts, or a tensor that is copied."""

    layer: StoredLayer | None
    plain: StoredTensor | StackedTensor | None = None

    @property
    def tensors(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Return the names, types and shapes of what is written."""
        if self.layer is not None:
            return tuple((name_of(self.layer.name, end), *rest) for end, *rest in self.layer.packed.tensors)  # type: ignore[misc]
        assert self.plain is not None  # noqa: S101 - it is one of the two
        return ((self.plain.name, self.plain.dtype, self.plain.shape),)

    @property
    def place(self) -> tuple[str, int]:
        """Return where it begins in the checkpoint."""
        found = [self.plain] if self.plain is not None else list(self.layer.tensors.values())  # type: ignore[union-attr]
        return min(x.place for x in found)

    @property
    def num_bytes(self) -> int:
        """Return how many bytes are written, without the header's."""
        return sum(StoredTensor("", name, dtype, shape, 0).num_bytes for name, dtype, shape in self.tensors)


@dataclass(frozen=True)
class Task:
    """A file to write."""

    path: Path
    parts: tuple[Part, ...]
    check_all: bool = False

    @property
    def header(self) -> bytes:
        """Return how it begins."""
        return header_bytes(x for part in self.parts for x in part.tensors)

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return len(self.header) + sum(x.num_bytes for x in self.parts)


@dataclass(frozen=True)
class Failed:
    """Why a file was not written."""

    error: AotError


def tasks_of(found: Found, folder: Path, *, check_all: bool = False) -> list[Task]:
    """Divide a checkpoint's tensors among files, in the order in which they lie in it."""
    parts = [*(Part(x) for x in found.layers), *(Part(None, x) for x in found.plain)]
    shards: list[list[Part]] = [[]]
    size = 0
    for part in sorted(parts, key=lambda x: x.place):
        if shards[-1] and size + part.num_bytes > MAX_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(part)
        size += part.num_bytes
    count = len(shards)
    # Not the names that transformers looks for, which would take weights that it does not find at random.
    names = [f"packed-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    return [Task(folder / name, tuple(x), check_all) for name, x in zip(names, shards, strict=True)]


def write_shard(task: Task) -> Shard | Failed:
    """Write a file under another name, and give it its own once it is whole; what a process does."""
    partial = task.path.with_name(task.path.name + PARTIAL)
    try:
        digest, count = hashlib.sha256(), 0
        with partial.open("wb") as file:
            for content in _contents(task):
                file.write(content)
                digest.update(content)
                count += len(content)
            file.flush()
            os.fsync(file.fileno())
        if count != task.num_bytes:
            raise CheckpointError(f"{partial}: {count} bytes were written; expected {task.num_bytes}; report this")
        partial.replace(task.path)
        return Shard(digest.hexdigest(), count)
    except AotError as error:
        return Failed(error)
    except MemoryError:
        return Failed(ResourceError(f"{task.path}: memory ran out; give a smaller --jobs, and run again"))
    except OSError as error:
        text = f"{task.path}: {error.strerror or error}; what is whole is kept; free disk, and run again"
        return Failed(ResourceError(text) if error.errno in {28, 122} else OutputError(text))
    finally:
        with suppress(OSError):
            partial.unlink()


def _contents(task: Task) -> Iterator[memoryview]:
    yield memoryview(task.header)
    for part in task.parts:
        if part.layer is not None:
            try:
                yield from _packed([LayerReader(x, check_all=task.check_all) for x in part.layer.matrices])
            except CheckpointError as error:
                raise CheckpointError(f"{part.place[0]}: {error}") from error
        elif isinstance(part.plain, StackedTensor):
            yield memoryview(part.plain.content())
        elif part.plain is not None:
            yield from _copied(part.plain)


def _packed(readers: list[LayerReader]) -> Iterator[memoryview]:
    """Give the bytes of all matrices of a layer, then their float32 factors."""
    for reader in readers:
        for rows in reader.qweight():
            yield rows.reshape(-1).view("u1").data
    for reader in readers:
        yield reader.scale().reshape(-1).view("u1").data


def _copied(tensor: StoredTensor) -> Iterator[memoryview]:
    left = tensor.num_bytes
    with Path(tensor.file).open("rb") as file:
        file.seek(tensor.start)
        while left:
            content = file.read(min(left, COPY_BYTES))
            if not content:
                raise CheckpointError(f"{tensor.file}: it ended within {short(tensor.name)}; it was written meanwhile")
            left -= len(content)
            yield memoryview(content)
