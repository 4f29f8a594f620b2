"""Render the project that a wheel is built from: manifest and templates in, files in memory out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePosixPath

from jinja2 import DictLoader, Environment, StrictUndefined, TemplateError

from aot.dispatch import Grid, Ladder, Section
from aot.errors import ManifestError, PackageError
from aot.manifest import Manifest, to_json
from aot.problem import Dtype, Operation

TEMPLATE_SUFFIX = ".j2"
TEMPLATE_MODULE = "aot_gemm"
"""Directory under templates/python/ that the wheel's import name takes the place of."""

ABI_VERSION = 1
"""`AOT_GEMM_ABI_VERSION` of templates/include/aot_gemm.h; the rendered kernels.cc compares the two."""

_PACKAGE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*[a-z0-9.]*(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
_ARCH = re.compile(r"sm_([0-9]+)([0-9])[a-z]?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class FileSet(Mapping[str, bytes]):
    """Files by relative POSIX path, in memory.

    Iterates in the order of the paths, so that what is made from it does not depend on the order of adding.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def add(self, path: str, content: bytes) -> None:
        """Add a file.

        Raises:
            PackageError: the path is absolute, leaves the tree, is not in normal form, or is there already.
        """
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == ".":
            raise PackageError(
                f"cannot render to {path!r}: expected a relative path inside the tree; rename the template"
            )
        if path in self._files:
            raise PackageError(f"two templates render to {path!r}; expected one; rename or remove the other")
        self._files[path] = content

    def __getitem__(self, path: str) -> bytes:
        """Give a file's content."""
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths in order."""
        return iter(sorted(self._files))

    def __len__(self) -> int:
        """Count the files."""
        return len(self._files)


@dataclass(frozen=True)
class _SectionRows:
    """A section as table.cc.j2 writes it: with its index, and the number of ladder rows before each ladder."""

    index: int
    operation: Operation
    ladders: tuple[Ladder, ...]
    first_rows: tuple[int, ...]
    grid: Grid
    fallback: int

    @staticmethod
    def of(index: int, section: Section) -> _SectionRows:
        first_rows = tuple(accumulate((len(ladder.rows) for ladder in section.ladders), initial=0))[:-1]
        return _SectionRows(index, section.operation, section.ladders, first_rows, section.grid, section.fallback)


def manifest_digest(manifest: Manifest) -> str:
    """Give the first 12 hexadecimal digits of the SHA-256 of the manifest's JSON."""
    return hashlib.sha256(to_json(manifest).encode()).hexdigest()[:12]


def capability(arch: str) -> tuple[int, int]:
    """Give the compute capability that kernels of an architecture run on, such as (9, 0) of `sm_90a`.

    Raises:
        ManifestError: the name is not one that ptxas knows.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise ManifestError(f"architecture is {arch!r}; expected a name such as sm_90a")
    return int(match[1]), int(match[2])


def _check_names(manifest: Manifest) -> None:
    """Refuse names that would not survive as file names, C identifiers or string literals."""
    checks = [(_PACKAGE, "package", manifest.package), (_VERSION, "version", manifest.version)]
    for kernel in manifest.kernels:
        checks += [(_IDENTIFIER, "kernel name", kernel.name)]
        checks += [(_IDENTIFIER, "symbol", x) for x in (kernel.entry_symbol, kernel.init_symbol, kernel.load_symbol)]
    for pattern, what, value in checks:
        if pattern.fullmatch(value) is None:
            raise ManifestError(f"{what} is {value!r}; expected {pattern.pattern}; mend the manifest")
    if not manifest.kernels or not manifest.table.sections:
        raise ManifestError(
            f"{len(manifest.kernels)} kernels in {len(manifest.table.sections)} sections; expected at least one of each"
        )


def library_name(manifest: Manifest) -> str:
    """Return the file name of a wheel's library, which is also the name by which the loader knows it (SONAME)."""
    return f"lib{manifest.module}.so.{ABI_VERSION}"


def _layouts(manifest: Manifest, dtype: Dtype) -> int:
    """Give a bit for each layout that an element type has a section of."""
    operations = [section.operation for section in manifest.table.sections]
    return sum(1 << x.layout.code for x in operations if x.dtype is dtype)


def _variables(manifest: Manifest) -> dict[str, object]:
    sections = [_SectionRows.of(i, section) for i, section in enumerate(manifest.table.sections)]
    module = manifest.module
    return {
        "header": f"generated by aot build from manifest {manifest_digest(manifest)}",
        "package": manifest.package,
        "module": module,
        "version": manifest.version,
        "target": manifest.target,
        "arch": manifest.arch,
        "capability": capability(manifest.arch),
        "provenance": manifest.provenance,
        "record": manifest.record,
        "conditions": manifest.conditions,
        "toolchain": sorted(manifest.toolchain.items()),
        "platform_tag": manifest.platform_tag,
        "kernels": manifest.kernels,
        "sections": sections,
        "layouts": [_layouts(manifest, dtype) for dtype in Dtype],
        "abi_version": ABI_VERSION,
    }


def _destination(path: str, module: str) -> str:
    prefix = f"python/{TEMPLATE_MODULE}/"
    path = f"python/{module}/{path.removeprefix(prefix)}" if path.startswith(prefix) else path
    return path.removesuffix(TEMPLATE_SUFFIX)


def render(manifest: Manifest, templates: Mapping[str, bytes]) -> FileSet:
    """Render the project of a wheel.

    Args:
        manifest: what the wheel is made from.
        templates: content by relative path. Those that end in `.j2` are rendered, the others copied byte for byte;
            python/aot_gemm/ becomes python/<import name>/, where the manifest itself is put too.

    Returns:
        All files of the project but the kernels' objects.

    Raises:
        ManifestError: a name in the manifest cannot stand in a file name, a C identifier or a literal.
        PackageError: a template fails, or two files have one path.
    """
    _check_names(manifest)
    texts = {path: text.decode() for path, text in templates.items() if path.endswith(TEMPLATE_SUFFIX)}
    environment = Environment(  # noqa: S701 - what is rendered is C++, CMake and TOML, never HTML
        loader=DictLoader(texts),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    variables = _variables(manifest)
    files = FileSet()
    for path, content in sorted(templates.items()):
        rendered = content
        if path in texts:
            try:
                rendered = environment.get_template(path).render(variables).encode()
            except TemplateError as error:
                raise PackageError(f"template {path} does not render: {error}; mend the template") from error
        files.add(_destination(path, manifest.module), rendered)
    files.add(f"python/{manifest.module}/manifest.json", to_json(manifest).encode())
    return files
