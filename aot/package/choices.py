"""The hash of all that decides in a library which kernel a problem gets, whatever the device."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.package.manifest import Library

CHOICES_FILE = "src/library_sha256.h"
"""What the hash is rendered to; the library has it in what aot_gemm_choices answers with."""

_DECIDE = ("src/", "include/", "python/")
"""How the paths start of what decides: tables, kernels and the runtime that looks them up, in C++ and in Python."""


def choices_sha256(files: Mapping[str, bytes], library: Library, header: str) -> str:
    """Return the SHA-256 of what a library is compiled of, and of the Python beside it.

    Libraries of one hash choose alike on one device. The header, which names the manifest, is left out: where a table's
    times come from decides nothing.

    Args:
        files: the rendered files by path, without the manifest.
        library: whose kernels' objects are linked.
        header: the line of each rendered file.
    """
    found = hashlib.sha256()
    for path, content in sorted(files.items()):
        if path.startswith(_DECIDE):
            own = hashlib.sha256(content.replace(header.encode(), b"")).hexdigest()
            found.update(f"{path} {own}\n".encode())
    for kernel in library.with_objects:
        found.update(f"{kernel.name} {kernel.object_sha256}\n".encode())
    return found.hexdigest()


def choices_text(sha256: str, header: str) -> str:
    """Return the C++ header that holds a library's hash."""
    return (
        f"// {header}\n#ifndef AOT_GEMM_LIBRARY_SHA256_H_\n#define AOT_GEMM_LIBRARY_SHA256_H_\n\n"
        "namespace aot {\n\n"
        "// Of all that decides in this library which kernel a problem gets: aot/package/choices.py.\n"
        f'constexpr char kLibrarySha256[] = "{sha256}";\n\n'
        "}  // namespace aot\n\n#endif  // AOT_GEMM_LIBRARY_SHA256_H_\n"
    )
