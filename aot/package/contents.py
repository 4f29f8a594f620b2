"""What is inside a wheel beside this project's own work, under which licences, and the texts of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from aot.compile.sources import family_imports
from aot.core.errors import REPAIR, DependencyError, PackageError
from aot.families._entry_points import OWN, registrations
from aot.kinds.rows.catalogue import outside_entries


@dataclass(frozen=True)
class Part:
    """What a wheel may have inside."""

    name: str
    distribution: str
    """The Python package that it comes from."""
    licence: str
    """Its SPDX expression."""
    text: str
    """Path of the licence's text, below the folder that its package is installed in or below its metadata."""
    what: str
    """What of it is inside, and how it comes there."""
    module: str = ""
    """What a family imports whose kernels are made of it; where there is none, it is in every wheel."""


_PARTS = (
    Part("aot", "aot-kernels", "Apache-2.0", "licenses/LICENSE", "the runtime in C++ and Python, and kernels"),
    Part(
        "NVIDIA-CUTLASS-DSL",
        "nvidia-cutlass-dsl",
        "LicenseRef-NVIDIA-CUTLASS-DSL",
        "licenses/LICENSE",
        "compiles the kernels, and its device functions are compiled into them",
        "cutlass",
    ),
    Part(
        "NVIDIA-CUTLASS",
        "nvidia-cutlass-operators",
        "BSD-3-Clause",
        "licenses/LICENSE.txt",
        "CUTLASS's GEMM classes, compiled into kernels",
        "cutlass.operators",
    ),
    Part(
        "quack",
        "quack-kernels",
        "Apache-2.0",
        "licenses/LICENSE",
        "quack's GEMM classes, compiled into kernels",
        "quack",
    ),
    Part("DLPack", "apache-tvm-ffi", "Apache-2.0", "licenses/LICENSE", "declarations of dlpack.h, compiled in"),
    Part("zig", "ziglang", "MIT", "ziglang/LICENSE", "the compiler's runtime, libcompiler_rt.a, linked in"),
    Part(
        "glibc",
        "ziglang",
        "LGPL-2.1-or-later",
        "ziglang/lib/libc/glibc/LICENSES",
        "libc_nonshared.a, linked in, whose files permit that without conditions; the C library itself is not inside",
    ),
)
"""Source of the last two: what `zig c++ -shared` prints of its link with ZIG_VERBOSE_LINK=1, 2026-11-22, zig 0.17.0."""

CUDA_RUNTIME_PART = Part(
    "NVIDIA-CUDA-Runtime",
    "nvidia-cuda-runtime",
    "LicenseRef-NVIDIA-Proprietary",
    "licenses/License.txt",
    "libcudart_static.a, linked in",
)
"""It is not installed, but fetched for the target's machine: aot.package.build."""


@dataclass(frozen=True)
class Component:
    """A thing inside a wheel."""

    name: str
    distribution: str
    version: str
    """That of the distribution."""
    licence: str
    """SPDX expression."""
    what: str
    """What of it is inside, and how it comes there."""
    text: bytes
    """Its licence."""

    @property
    def file(self) -> str:
        """Return the name of its licence's file, below `licenses/` of the wheel's metadata."""
        return f"{self.name}.txt"


def _component(part: Part, found: Distribution) -> Component:
    """Read a component's version and licence.

    Raises:
        PackageError: the package has no such text.
    """
    paths = [x for x in found.files or () if str(x) == part.text or str(x).endswith(f".dist-info/{part.text}")]
    if not paths:
        raise PackageError(
            f"{part.distribution} {found.version} has no {part.text}, the licence of what a wheel has of it; "
            "install it again, or say where the text lies in aot/package/contents.py"
        )
    text = Path(str(found.locate_file(paths[0]))).read_bytes()
    return Component(part.name, part.distribution, found.version, part.licence, part.what, text)


def _installed(part: Part) -> Component:
    try:
        return _component(part, distribution(part.distribution))
    except PackageNotFoundError as error:
        raise DependencyError(f"{part.distribution} is not installed, which wheels are made of; {REPAIR}") from error


def _is_inside(part: Part, families: Iterable[str]) -> bool:
    names = (part.module, f"{part.module}.")
    return not part.module or any(
        imported == names[0] or imported.startswith(names[1])
        for family in families
        for imported in family_imports(family)
    )


def _parts_outside(families: Iterable[str], functions: Iterable[str]) -> Iterator[Part]:
    """List the distributions of others whose families or functions kernels are of: a part for each licence's text.

    Raises:
        PackageError: one does not say under which licence it is, or has no text of it; both go into the wheel.
    """
    known, of_functions = registrations(), outside_entries()
    outside: dict[str, list[str]] = {}
    for name in families:
        if name in known and known[name].distribution != OWN:
            outside.setdefault(known[name].distribution, []).append(name)
    for name in functions:
        found = of_functions[name].dist if name in of_functions else None
        if found is not None:
            outside.setdefault(found.metadata["Name"], []).append(name)
    for name, own in outside.items():
        metadata = distribution(name).metadata
        licences, texts = metadata.get_all("License-Expression"), metadata.get_all("License-File") or []
        if not licences or not texts:
            raise PackageError(
                f"{name}, whose kernels of {', '.join(own)} go into the wheel, states "
                f"{'no text of its licence' if licences else 'no licence'}; expected License-Expression and "
                "License-File in its metadata: `license` and `license-files` in its pyproject.toml"
            )
        for text in texts:
            part = name if len(texts) == 1 else f"{name}-{Path(text).stem}"
            yield Part(part, name, licences[0], f"licenses/{text}", f"kernels of {', '.join(own)}, compiled")


def parts_of(families: Iterable[str], functions: Iterable[str] = ()) -> tuple[Part, ...]:
    """List what is inside a wheel whose kernels are of these families, and compute these functions of rows.

    Raises:
        PackageError: a distribution of one states no licence.
    """
    names = sorted(set(families))
    outside = _parts_outside(names, sorted(set(functions)))
    return (*(part for part in _PARTS if _is_inside(part, names)), *outside, CUDA_RUNTIME_PART)


def licence_of(families: Iterable[str], functions: Iterable[str] = ()) -> str:
    """Return the SPDX expression of a wheel: the licences of all that is inside, each once."""
    return " AND ".join(sorted({part.licence for part in parts_of(families, functions)}))


def own_component() -> Component:
    """Read the licence of what is this project's own.

    Raises:
        PackageError: it has no text.
    """
    return _installed(_PARTS[0])


def components(families: Iterable[str], cuda_dir: Path, functions: Iterable[str] = ()) -> tuple[Component, ...]:
    """Read what is inside a wheel.

    Args:
        families: those of its kernels.
        functions: those of rows that its kernels compute.
        cuda_dir: `Toolchain.cuda_dir`, of which the CUDA runtime was linked in.

    Raises:
        DependencyError: a package is not installed.
        PackageError: a package has no licence where it was; it must go along.
    """
    root = cuda_dir.parents[1]
    metadata = sorted(root.glob("nvidia_cuda_runtime-*.dist-info"))
    if not metadata:
        raise PackageError(f"no metadata of {CUDA_RUNTIME_PART.distribution} in {root}; remove it to fetch it again")
    runtime = _component(CUDA_RUNTIME_PART, Distribution.at(metadata[0]))
    return (*(_installed(x) for x in parts_of(families, functions) if x is not CUDA_RUNTIME_PART), runtime)
