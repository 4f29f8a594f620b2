"""Files that a build recorded in `_build.json`, compared with what lies here: the package's own, and a pack's.

Every import runs this, so that it imports little itself.
"""

from __future__ import annotations

import json
import os
import stat
from functools import cache

from . import errors
from ._version import ABI_VERSION, HAS_KERNELS

MODULE = __name__.split(".", maxsplit=1)[0]
DIRECTORY = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would take half of the import
MANIFEST = "manifest.json"
RECORD = "_build.json"

_MAX_RECORD_BYTES = 1 << 20
"""The record has a line of about 100 bytes for each file."""
_PIECE_BYTES = 1 << 18
"""Of a file that is hashed, as much as is in memory at once."""
_ADVICE = "reinstall the package"


class File:
    """One file, as the build left it."""

    __slots__ = ("name", "num_bytes", "sha256")

    def __init__(self, name: str, num_bytes: int, sha256: str) -> None:
        self.name = name
        self.num_bytes = num_bytes
        self.sha256 = sha256


def _decode_entry(name: object, value: object) -> File:
    """Read one entry of the record.

    Raises:
        ValueError: it is not as the build writes it.
    """
    if not isinstance(name, str) or not (name.isascii() and name.isprintable()) or ".." in name.split("/"):
        raise ValueError(f"{name!a:.80} is not the path of a file of the package")
    if not isinstance(value, dict) or value.keys() != {"num_bytes", "sha256"}:
        raise ValueError(f"the entry of {name} is {value!a:.80}; expected num_bytes and sha256")
    num_bytes, sha256 = value["num_bytes"], value["sha256"]
    if type(num_bytes) is not int or num_bytes < 0:
        raise ValueError(f"num_bytes of {name} is {num_bytes!a:.80}; expected a number of bytes")
    if not isinstance(sha256, str) or len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise ValueError(f"sha256 of {name} is {sha256!a:.80}; expected 64 hexadecimal digits")
    return File(name, num_bytes, sha256)


def _decode_record(content: bytes, required: tuple[str, ...]) -> dict[str, File]:
    """Read the record from its JSON.

    Raises:
        ValueError: it is not as the build writes it.
    """
    if len(content) > _MAX_RECORD_BYTES:
        raise ValueError(f"it has more than {_MAX_RECORD_BYTES} bytes")
    entries = json.loads(content.decode())
    if not isinstance(entries, dict):
        raise ValueError(f"expected an object, got {entries!a:.80}")  # noqa: TRY004 - its value is wrong, not its type
    files = {name: _decode_entry(name, value) for name, value in entries.items()}
    missing = [name for name in required if name not in files]
    if missing:
        raise ValueError(f"it does not list {', '.join(missing)}")
    return files


class Folder:
    """A folder that a build filled: the package, or a pack of kernels.

    Args:
        directory: where it lies; its name is the import name.
        has_kernels: whether it holds a library and its manifest.
    """

    def __init__(self, directory: str, *, has_kernels: bool = True) -> None:
        self.directory = directory
        self.has_kernels = has_kernels
        self.library = f"lib{os.path.basename(directory)}.so.{ABI_VERSION}"  # noqa: PTH119
        self._recorded: dict[str, File] | None = None

    def path_of(self, name: str) -> str:
        """Return where a file lies."""
        return f"{self.directory}/{name}"

    def forget(self) -> None:
        """Have the record be read anew."""
        self._recorded = None

    def recorded(self) -> dict[str, File]:
        """Return what the build recorded of each file, by its path inside the folder.

        Raises:
            CorruptLibraryError: the record is missing, damaged, or lacks a file that is needed.
        """
        if self._recorded is None:
            content = self._read(RECORD, _MAX_RECORD_BYTES + 1)
            required = (self.library, MANIFEST) if self.has_kernels else ()
            try:
                self._recorded = _decode_record(content, required)
            except (ValueError, RecursionError) as error:
                raise errors.CorruptLibraryError(f"{self.path_of(RECORD)} is damaged: {error}; {_ADVICE}") from error
        return self._recorded

    def _read(self, name: str, limit: int) -> bytes:
        """Read up to `limit` bytes of a file, which must not be a pipe or a device that never ends."""
        path = self.path_of(name)
        try:
            found = os.stat(path)  # noqa: PTH116
            if not stat.S_ISREG(found.st_mode):
                raise errors.CorruptLibraryError(f"{path} is not a file; {_ADVICE}")
            with open(path, "rb") as file:  # noqa: PTH123
                return file.read(min(limit, found.st_size + 1))  # a read allocates all that it is asked for
        except OSError as error:
            raise errors.CorruptLibraryError(f"{path} cannot be read ({error.strerror}); {_ADVICE}") from error

    def check_size(self, file: File) -> None:
        """Compare a file's size with the recorded one, without opening the file.

        Raises:
            CorruptLibraryError: it is missing, not a file, or of another size.
        """
        path, expected = self.path_of(file.name), f"expected {file.num_bytes} bytes; {_ADVICE}"
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
            raise errors.CorruptLibraryError(f"{path} {what} ({error.strerror}); {expected}") from error
        if not stat.S_ISREG(found.st_mode):
            raise errors.CorruptLibraryError(f"{path} is not a file; {expected}")
        if found.st_size != file.num_bytes:
            raise errors.CorruptLibraryError(f"{path} has {found.st_size} bytes; {expected}")

    def check_sizes(self) -> None:
        """Compare the size of every file with the recorded one: what a copy cut short shows at once.

        Raises:
            CorruptLibraryError: a file is missing, not a file, or of another size.
        """
        for file in self.recorded().values():
            self.check_size(file)

    def read_verified(self, name: str) -> bytes:
        """Read a file whose size and SHA-256 are those recorded.

        Raises:
            CorruptLibraryError: they are not, it is not recorded, or it cannot be read.
        """
        import hashlib  # here, since an import of the package does not need it

        file = self._entry(name)
        self.check_size(file)
        content = self._read(name, file.num_bytes + 1)
        self._compare(file, hashlib.sha256(content).hexdigest())
        return content

    def verify(self, name: str) -> None:
        """Compare a file's size and SHA-256 with those recorded, a piece of it in memory at a time.

        Raises:
            CorruptLibraryError: they differ, it is not recorded, or it cannot be read.
        """
        import hashlib  # here, since an import of the package does not need it

        file, path = self._entry(name), self.path_of(name)
        self.check_size(file)
        digest = hashlib.sha256()
        try:
            with open(path, "rb") as opened:  # noqa: PTH123
                while piece := opened.read(_PIECE_BYTES):
                    digest.update(piece)
        except OSError as error:
            raise errors.CorruptLibraryError(f"{path} cannot be read ({error.strerror}); {_ADVICE}") from error
        self._compare(file, digest.hexdigest())

    def _entry(self, name: str) -> File:
        """Return what was recorded of a file.

        Raises:
            CorruptLibraryError: nothing was.
        """
        file = self.recorded().get(name)
        if file is None:
            raise errors.CorruptLibraryError(f"{self.path_of(RECORD)} does not list {name}; {_ADVICE}")
        return file

    def _compare(self, file: File, sha256: str) -> None:
        """Refuse a hash that is not the recorded one (CorruptLibraryError)."""
        if sha256 != file.sha256:
            raise errors.CorruptLibraryError(
                f"{self.path_of(file.name)} is damaged: sha256 {sha256}; expected {file.sha256}; {_ADVICE}"
            )

    def read_header(self, num_bytes: int) -> bytes:
        """Read the first bytes of the library, whose size must be the recorded one.

        Raises:
            CorruptLibraryError: it has another size, or cannot be read.
        """
        self.check_size(self.recorded()[self.library])
        return self._read(self.library, num_bytes)


OWN = Folder(DIRECTORY, has_kernels=HAS_KERNELS)
"""The package's own folder."""


@cache
def answering() -> tuple[tuple[Folder, bool], ...]:
    """Return the folders whose libraries answer here, in the order in which they are asked: the package's, or packs'.

    Returns:
        Beside each whether it answers for tuned sizes alone.

    Raises:
        PackError: there is no pack, or one that does not go with this package.
        ArchitectureError: no pack is for the GPU.
        CorruptLibraryError: a pack is damaged.
    """
    if OWN.has_kernels:
        return ((OWN, False),)
    from ._packs import answering as packs

    return tuple((pack.folder, only_tuned) for pack, only_tuned in packs())


def are_of_several_architectures() -> bool:
    """Say whether the libraries that answer here are for several architectures, since the GPUs are."""
    if OWN.has_kernels:
        return False
    from ._packs import answering as packs

    return len({pack.arch for pack, _ in packs()}) > 1


def kernels() -> Folder:
    """Return the folder whose library is asked first on the current GPU; errors are those of `answering`."""
    if are_of_several_architectures():
        from ._library import here

        return here()[0].folder
    return answering()[0][0]
