"""What a built wheel and its libraries must be: machine, needed libraries, glibc, exported symbols, size."""

from __future__ import annotations

import zipfile
from io import BytesIO
from typing import TYPE_CHECKING

from aot.core.errors import PackageError
from aot.package.render import library_name

if TYPE_CHECKING:
    from pathlib import Path

    from elftools.elf.gnuversions import GNUVerNeedSection
    from elftools.elf.sections import SymbolTableSection

    from aot.core.target import Target
    from aot.package.manifest import Manifest

MAX_WHEEL_BYTES = 100 * 1000**2
"""Source: PyPI's limit for one file."""

_LIBC_FAMILY = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
_ELF_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_EXPORT_PREFIXES = ("aot_gemm_", "aot_rows_")


def _why_named(name: str, expected: str, platform_tag: str) -> str:
    """Say what a wheel's other name means to pip, which goes by the name alone."""
    what = f"the wheel is named {name}; expected {expected}"
    if name.endswith(".whl") and name.rpartition("-")[0] == expected.rpartition("-")[0]:
        return (
            f"{what}: its content is for {platform_tag}, so that under this name pip installs it where it cannot load; "
            "rename it back, and build a wheel for the other platform"
        )
    return (
        f"{what}: the file is whole and was renamed, so that pip takes it for no wheel, or for another version; rename "
        "it back"
    )


def inspect_wheel(wheel: Path, manifest: Manifest, target: Target) -> None:
    """Check tag, size and libraries of a wheel.

    Raises:
        PackageError: something is not what the manifest and the target ask for.
    """
    expected = f"{manifest.package.replace('-', '_')}-{manifest.version}-py3-none-{target.platform_tag}.whl"
    if wheel.name != expected:
        raise PackageError(_why_named(wheel.name, expected, target.platform_tag))
    size = wheel.stat().st_size
    if size > MAX_WHEEL_BYTES:
        raise PackageError(
            f"{wheel.name} has {size:,} bytes; at most {MAX_WHEEL_BYTES:,} can be published; ship fewer kernels"
        )
    name = library_name(manifest)
    with zipfile.ZipFile(wheel) as archive:
        try:
            content = archive.read(f"{manifest.module}/{name}")
        except KeyError as error:
            raise PackageError(f"{wheel.name} has no {name}; expected it in {manifest.module}/") from error
        inspect_library(name, content, target)


def inspect_library(name: str, content: bytes, target: Target) -> None:
    """Check the machine, SONAME, needed libraries, glibc versions and exported symbols of a kernel library.

    Args:
        name: its file name, which its SONAME must equal.
        content: the file.
        target: whose machine and glibc it must run on.

    Raises:
        PackageError: one of them is not as expected.
    """
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(BytesIO(content))
    machine = elf["e_machine"]
    if machine != _ELF_MACHINES[target.machine]:
        raise PackageError(f"{name} is for {machine}; expected {_ELF_MACHINES[target.machine]}")
    found: set[str] = set()
    sonames: list[str] = []
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            found = {str(vars(tag)["needed"]) for tag in section.iter_tags("DT_NEEDED")}
            sonames = [str(vars(tag)["soname"]) for tag in section.iter_tags("DT_SONAME")]
        elif isinstance(section, GNUVerNeedSection):
            _inspect_versions(name, section, target)
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            _inspect_exports(name, section)
    if sonames != [name]:
        raise PackageError(
            f"{name} has the SONAME {sonames}; expected [{name!r}], by which no other library is taken for it"
        )
    extra = found - _LIBC_FAMILY - {_LOADERS[target.machine]}
    if extra:
        raise PackageError(
            f"{name} needs {sorted(found)}; expected at most {sorted(_LIBC_FAMILY)}; remove {', '.join(sorted(extra))}"
        )


def _inspect_versions(name: str, section: GNUVerNeedSection, target: Target) -> None:
    newest = tuple(int(part) for part in target.glibc.split("."))
    for _, versions in section.iter_versions():
        for version in versions:
            family, _, number = version.name.partition("_")
            if family != "GLIBC" or tuple(int(part) for part in number.split(".")) > newest:
                raise PackageError(f"{name} needs {version.name}; expected GLIBC_{target.glibc} or older")


def _inspect_exports(name: str, section: SymbolTableSection) -> None:
    exported = [
        x.name for x in section.iter_symbols() if x["st_shndx"] != "SHN_UNDEF" and x["st_info"]["bind"] != "STB_LOCAL"
    ]
    wrong = [x for x in exported if not x.startswith(_EXPORT_PREFIXES)]
    if wrong or not exported:
        raise PackageError(
            f"{name} exports {len(exported)} symbols, {wrong[:3]} among them; expected "
            + " and ".join(f"{x}*" for x in _EXPORT_PREFIXES)
        )
