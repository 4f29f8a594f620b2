"""The C library of a wheel as Debian packages: one with the library, one with what programs are built with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING

from aot.core.errors import PackageError
from aot.package.build import read_templates
from aot.package.deb_file import DebFile, gzipped
from aot.package.render import ABI_VERSION, library_name, render_consumer_files
from aot.package.wheel_archive import read_wheel
from aot.package.wheel_check import check_wheel, read_wheel_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from aot.package.manifest import Manifest

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of the machines."""
_PLATFORM = re.compile(r"manylinux_([0-9]+)_([0-9]+)_(x86_64|aarch64)")
_MAINTAINER = re.compile(r"[^<>,()\n]+ <[^<>@\s]+@[^<>@\s]+>")
_DEVELOPMENT = re.compile(r"\.dev(?=[0-9])")
_PRE_RELEASE = re.compile(r"(?<=[0-9])(a|b|rc)(?=[0-9])")
_APACHE = re.compile(
    rb"^ *Apache License\n *Version 2\.0, January 2004\n.*?limitations under the License\.\n?", re.MULTILINE | re.DOTALL
)
_APACHE_PLACE = b"The text of the Apache License, version 2.0, is in /usr/share/common-licenses/Apache-2.0.\n"
"""Debian's policy, 12.5: packages do not carry the licences that every system has."""
_GNU = re.compile(rb"Lesser +General +Public|\bLGPL\b")
_GNU_PLACE = b"\nThe GNU Lesser General Public License, version 2.1, is in /usr/share/common-licenses/LGPL-2.1.\n"
_SECTION = "non-free/libs"
"""The CUDA runtime, which is linked in, is NVIDIA's."""


@dataclass(frozen=True)
class _Names:
    """What the packages and their folders are called."""

    source: str
    module: str
    version: str
    architecture: str
    triplet: str
    glibc: str

    @property
    def library(self) -> str:
        """Return the library package's name: that of the SONAME. Source: Debian's policy, 8.1."""
        stem = f"lib{self.source}"
        return f"{stem}-{ABI_VERSION}" if stem[-1].isdigit() else f"{stem}{ABI_VERSION}"

    @property
    def development(self) -> str:
        """Return the name of the package that programs are built with."""
        return f"lib{self.source}-dev"

    @property
    def folder(self) -> str:
        """Return where libraries of the machine lie."""
        return f"usr/lib/{self.triplet}"


def debian_version(version: str) -> str:
    """Return a wheel's version as Debian's: what comes before a release sorts before it there too."""
    public, plus, local = version.partition("+")
    return _PRE_RELEASE.sub(r"~\1", _DEVELOPMENT.sub("~~dev", public)) + plus + local


def check_maintainer(maintainer: str) -> str:
    """Check the name and address of who answers for a package; return it.

    Raises:
        PackageError: it is not one as Debian's control files have it.
    """
    if len(maintainer) > 200 or not maintainer.isprintable() or _MAINTAINER.fullmatch(maintainer) is None:
        raise PackageError(
            f"the maintainer is {maintainer[:200]!r}; expected a name and an address, such as "
            "'Ann Lee <ann@company.com>'; give --maintainer, or DEBFULLNAME and DEBEMAIL in the environment"
        )
    return maintainer


def _names(wheel: Path, manifest: Manifest) -> _Names:
    match = _PLATFORM.fullmatch(manifest.platform_tag)
    if match is None:
        raise PackageError(
            f"{wheel.name} is for {manifest.platform_tag}; expected manylinux of {' or '.join(_ARCHITECTURES)}; "
            "build it again"
        )
    major, minor, machine = match.groups()
    version = debian_version(manifest.version)
    return _Names(
        manifest.package, manifest.module, version, _ARCHITECTURES[machine], f"{machine}-linux-gnu", f"{major}.{minor}"
    )


def _copyright(wheel: Path, files: Mapping[str, bytes]) -> bytes:
    """Put the licences of all that is inside together, as the wheel has them.

    Raises:
        PackageError: the wheel has none.
    """
    licences = {name.rpartition("/")[2]: text for name, text in sorted(files.items()) if ".dist-info/licenses/" in name}
    if not licences:
        raise PackageError(f"{wheel.name} has no licences in its metadata, which must go along; build it again")
    head = (
        f"This package is the C library of the wheel {wheel.name}, made by `aot deb`.\n\n"
        f"It has the following inside, under these licences: {', '.join(x.removesuffix('.txt') for x in licences)}.\n"
    )
    parts = [
        f"\n{'=' * 79}\n{name.removesuffix('.txt')}\n{'=' * 79}\n\n".encode() + _APACHE.sub(_APACHE_PLACE, text)
        for name, text in licences.items()
    ]
    text = head.encode() + b"".join(parts)
    return text + _GNU_PLACE if _GNU.search(text) else text


def _changelog(names: _Names, maintainer: str, epoch: int) -> bytes:
    date = format_datetime(datetime.fromtimestamp(epoch, UTC))
    entry = f"{names.source} ({names.version}) unstable; urgency=medium\n\n  * Made of the wheel of this version.\n"
    return gzipped(f"{entry}\n -- {maintainer}  {date}\n".encode())


def _documents(package: str, documents: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"usr/share/doc/{package}/{name}": content for name, content in documents.items()}


def _fields(
    names: _Names, package: str, section: str, depends: str, maintainer: str, text: list[str]
) -> dict[str, str]:
    return {
        "Package": package,
        "Source": names.source,
        "Version": names.version,
        "Architecture": names.architecture,
        "Maintainer": maintainer,
        "Section": section,
        "Priority": "optional",
        "Multi-Arch": "same",
        "Depends": depends,
        "Description": "\n ".join(text),
    }


def _library(
    names: _Names, manifest: Manifest, library: bytes, documents: Mapping[str, bytes], maintainer: str
) -> DebFile:
    targets = ", ".join(table.target for table in manifest.tables)
    text = [
        f"prebuilt GEMM kernels for {manifest.arch} GPUs (library)",
        f"Matrix products for NVIDIA GPUs of the architecture {manifest.arch}: {len(manifest.kernels)} kernels",
        f"and the dispatch table that picks one by shape, tuned for {targets}.",
        "Nothing is compiled where it is installed.",
        ".",
        "It needs NVIDIA's driver for CUDA 13.0 or newer.",
    ]
    name = library_name(manifest)
    shlibs = f"lib{names.module} {ABI_VERSION} {names.library} (>= {names.version})\n"
    return DebFile(
        fields=_fields(names, names.library, _SECTION, f"libc6 (>= {names.glibc})", maintainer, text),
        content={f"{names.folder}/{name}": library, **_documents(names.library, documents)},
        links={},
        controls={"shlibs": shlibs.encode(), "triggers": b"activate-noawait ldconfig\n"},
    )


def _development(
    names: _Names, manifest: Manifest, files: Mapping[str, bytes], documents: Mapping[str, bytes], maintainer: str
) -> DebFile:
    text = [
        f"prebuilt GEMM kernels for {manifest.arch} GPUs (development files)",
        "The headers in C and C++, a CMake package, a pkg-config file and an example",
        f"of the library in {names.library}.",
    ]
    module, cmake = names.module, f"{names.folder}/cmake/{names.module}"
    own = {name.removeprefix(f"{module}/"): content for name, content in files.items() if name.startswith(f"{module}/")}
    consumers = render_consumer_files(manifest, own["manifest.json"].decode(), read_templates(), names.triplet)
    # Those in Python are modules of the wheel, which these packages have not.
    examples = {x: content for x, content in own.items() if x.startswith("examples/") and not x.endswith(".py")}
    content = {
        **{f"usr/{name}": text for name, text in own.items() if name.startswith("include/")},
        f"{cmake}/{module}-config.cmake": consumers["config.cmake"],
        f"{cmake}/{module}-config-version.cmake": own[f"cmake/{module}-config-version.cmake"],
        f"{names.folder}/pkgconfig/{module}.pc": consumers["package.pc"],
        **_documents(names.development, {**documents, **examples}),
    }
    return DebFile(
        fields=_fields(
            names,
            names.development,
            "non-free/libdevel",
            f"{names.library} (= {names.version})",
            maintainer,
            text,
        ),
        content=content,
        links={f"{names.folder}/lib{module}.so": library_name(manifest)},
        controls={},
    )


def packages_of(wheel: Path, maintainer: str, epoch: int) -> tuple[DebFile, DebFile]:
    """Make the Debian packages of a wheel's library: the library itself, byte for byte, and what is built with it.

    Args:
        wheel: a wheel that `aot build` made; it is checked as `aot verify` does.
        maintainer: name and address of who answers for the packages.
        epoch: their time, in seconds since 1970.

    Raises:
        PackageError: the wheel is damaged or not whole, or the maintainer is none.
        ManifestError: its manifest is damaged.
    """
    check_maintainer(maintainer)
    for _ in check_wheel(wheel):
        pass
    files, manifest = read_wheel(wheel), read_wheel_manifest(wheel)
    names = _names(wheel, manifest)
    documents = {
        "changelog.gz": _changelog(names, maintainer, epoch),
        "copyright": _copyright(wheel, files),
    }
    library = files[f"{manifest.module}/{library_name(manifest)}"]
    return (
        _library(names, manifest, library, documents, maintainer),
        _development(names, manifest, files, documents, maintainer),
    )
