"""Build what is shipped: fetch the link-time files, write the rendered project, run the build, inspect the result."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import ninja
import ziglang
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from aot.errors import PackageError
from aot.manifest import Manifest
from aot.render import FileSet, library_name, render
from aot.target import Target

CUDA_RUNTIME = "nvidia-cuda-runtime==13.0.96"
"""Headers and libcudart_static.a. Source: JetPack 7 and driver 580 are CUDA 13.0, and a newer runtime asks for more."""
CUDA_HEADERS = "nvidia-cuda-crt==13.0.88"
"""The crt/ headers that those of the runtime include."""
TOOLCHAIN_CACHE = Path("build/toolchain")
"""Where the fetched files stay, below the working directory."""
SOURCE_DATE_EPOCH = "1577836800"
"""2020-01-01: the time stamp of every file in a wheel, so that equal manifests give equal bytes."""
MAX_WHEEL_BYTES = 100 * 1000**2
"""Source: PyPI's limit for one file."""

_LIBC_FAMILY = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
_ELF_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_EXPORT_PREFIX = "aot_gemm_"
_TAIL_LINES = 40


@dataclass(frozen=True)
class Toolchain:
    """What the libraries are built from beside their own sources."""

    cuda_dir: Path
    """Holds include/ and lib/ of the target's machine."""
    dlpack_dir: Path
    """Holds dlpack/dlpack.h, which is the same on every machine."""


def run(command: list[str], what: str, *, env: Mapping[str, str] | None = None, verbose: bool = False) -> str:
    """Run a command and give its output, both streams together.

    Raises:
        PackageError: it does not start, or fails: with the command, its exit code and the end of its output.
    """
    line = shlex.join(command)
    if verbose:
        print(f"+ {line}", file=sys.stderr, flush=True)  # noqa: T201 - what --verbose asks for
    try:
        done = subprocess.run(
            command, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise PackageError(f"{what} failed: cannot run {line}: {error.strerror}") from error
    if done.returncode != 0:
        tail = "\n".join(f"    {x}" for x in done.stdout.splitlines()[-_TAIL_LINES:])
        raise PackageError(f"{what} failed with exit code {done.returncode}\n  command: {line}\n  output:\n{tail}")
    return done.stdout


def _platform_options(target: Target) -> list[str]:
    newest = int(target.glibc.split(".")[1])
    tags = [f"manylinux_2_{minor}_{target.machine}" for minor in range(newest, 16, -1)]
    return [word for tag in [*tags, f"manylinux2014_{target.machine}"] for word in ("--platform", tag)]


def _fetch(requirements: tuple[str, ...], target: Target, cache: Path, *, verbose: bool) -> Path:
    """Unpack wheels of the target's machine into one folder of the cache, once."""
    name = "+".join(x.replace("==", "-") for x in requirements)
    unpacked = (cache / f"{name}-{target.machine}").resolve()
    if unpacked.is_dir():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as scratch:
        wheels, content = Path(scratch, "wheels"), Path(scratch, "content")
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(wheels)]
        download = [sys.executable, "-m", "pip", "download", *options, *_platform_options(target)]
        try:
            run([*download, *requirements], f"fetching {' and '.join(requirements)}", verbose=verbose)
        except PackageError as error:
            advice = f"check pip's index and the network; they are needed once, then kept in {unpacked}"
            raise PackageError(f"{error}\n  next: {advice}") from error
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(content)
        try:
            content.rename(unpacked)
        except OSError:
            if not unpacked.is_dir():  # else another build put the same there meanwhile
                raise
    return unpacked


def dlpack_dir() -> Path:
    """Find DLPack's header in the TVM-FFI that is installed here, which is not imported.

    Raises:
        PackageError: it is not there.
    """
    spec = importlib.util.find_spec("tvm_ffi")
    roots = [] if spec is None else [Path(x, "include") for x in spec.submodule_search_locations or ()]
    found = [root for root in roots if (root / "dlpack" / "dlpack.h").is_file()]
    if not found:
        raise PackageError(f"no dlpack/dlpack.h in {roots}; expected that of apache-tvm-ffi; install aot again")
    return found[0]


def fetch_toolchain(target: Target, cache: Path = TOOLCHAIN_CACHE, *, verbose: bool = False) -> Toolchain:
    """Fetch what is linked against, for the target's machine, with pip's own index; from the cache once it is there.

    Raises:
        PackageError: a download failed.
    """
    cuda = _fetch((CUDA_RUNTIME, CUDA_HEADERS), target, cache, verbose=verbose)
    return Toolchain(cuda / "nvidia" / "cu13", dlpack_dir())


def read_templates() -> dict[str, bytes]:
    """Read the templates: beside the package where it is installed, else from the checkout.

    Raises:
        PackageError: there are none.
    """
    here = Path(__file__).resolve().parent
    root = next((x for x in (here / "templates", here.parent / "templates") if x.is_dir()), None)
    if root is None:
        raise PackageError(f"no templates beside {here}; expected templates/; install aot again")
    files = [x for x in root.rglob("*") if x.is_file() and "__pycache__" not in x.parts]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def write(files: FileSet, directory: Path) -> None:
    """Write a rendered project."""
    for path, content in files.items():
        destination = directory / path
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.write_bytes(content)


def _toolchain_file(target: Target) -> str:
    """Give the CMake toolchain file: zig as a cross compiler, which brings the target's libc at the glibc wanted."""
    zig = Path(ziglang.__file__).parent / "zig"
    cpu = target.host_cpu.replace("-", "_")
    arguments = f"c++ -target {target.machine}-linux-gnu.{target.glibc} -mcpu={cpu}"
    compiler = " ".join(f'"{x}"' for x in [str(zig), *arguments.split()])
    return (
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        f"set(CMAKE_SYSTEM_PROCESSOR {target.machine})\n"
        f"set(CMAKE_CXX_COMPILER {compiler})\n"
    )


def _write_project(manifest: Manifest, objects: Mapping[str, Path], target: Target, directory: Path) -> None:
    """Write the rendered project, its toolchain file and the kernels' objects, checked against the manifest."""
    if manifest.platform_tag != target.platform_tag or manifest.arch != target.arch:
        raise PackageError(
            f"the manifest is for {manifest.arch} on {manifest.platform_tag}, target {target.name} is {target.arch} on "
            f"{target.platform_tag}; build with the manifest's own target, {manifest.target}"
        )
    write(render(manifest, read_templates()), directory)
    (directory / "toolchain.cmake").write_text(_toolchain_file(target), encoding="utf-8")
    (directory / "objects").mkdir()
    for kernel in manifest.kernels:
        if kernel.name not in objects:
            raise PackageError(f"no object for kernel {kernel.name}; expected one for each kernel; compile it again")
        content = objects[kernel.name].read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 != kernel.object_sha256:
            raise PackageError(
                f"object {objects[kernel.name]} has sha256 {sha256}; the manifest says {kernel.object_sha256}; "
                "compile it again, or build the manifest again from this object"
            )
        (directory / "objects" / f"{kernel.name}.o").write_bytes(content)


def _write_licences(directory: Path, toolchain: Toolchain) -> None:
    """Put the licence of the CUDA runtime, which is linked in, beside the project; its terms ask for that."""
    (directory / "licenses").mkdir()
    found = sorted(toolchain.cuda_dir.parents[1].glob("nvidia_cuda_runtime-*.dist-info/licenses/License.txt"))
    if not found:
        raise PackageError(f"no licence in {toolchain.cuda_dir.parents[1]}; remove that folder to fetch it again")
    shutil.copyfile(found[0], directory / "licenses" / "NVIDIA-CUDA-Runtime.txt")


def _definitions(directory: Path, toolchain: Toolchain) -> dict[str, str]:
    return {
        "CMAKE_TOOLCHAIN_FILE": str(directory / "toolchain.cmake"),
        "AOT_CUDA_DIR": str(toolchain.cuda_dir),
        "AOT_DLPACK_DIR": str(toolchain.dlpack_dir),
    }


def _environment(target: Target) -> dict[str, str]:
    """Give the environment of a build: the caller's, less what would reach the compiler, plus what fixes the result."""
    dropped = {"CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "CC", "CXX", "CMAKE_ARGS", "CMAKE_GENERATOR"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped and not key.startswith("SKBUILD_")}
    return kept | {
        "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH,
        "_PYTHON_HOST_PLATFORM": target.platform_tag,
        "PYTHONHASHSEED": "0",
    }


def _move_into(path: Path, directory: Path) -> Path:
    """Put a file into a folder so that it is there whole or not at all, whatever file system it comes from."""
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".{path.name}.{os.getpid()}"
    try:
        shutil.copyfile(path, partial)
        return partial.replace(directory / path.name)
    finally:
        partial.unlink(missing_ok=True)


def build_library(
    manifest: Manifest,
    objects: Mapping[str, Path],
    out_dir: Path,
    target: Target,
    *,
    cache: Path = TOOLCHAIN_CACHE,
    verbose: bool = False,
) -> Path:
    """Build the C library alone, as a tuning bundle carries it.

    Args:
        manifest: kernels and table; the table of a bundle needs no more than a fallback.
        objects: each kernel's object file, by the kernel's name.
        out_dir: where lib<module>.so is put.
        target: the machine to build for.
        cache: where the files that are linked against are kept.
        verbose: echo the commands to standard error.

    Raises:
        PackageError: the build failed, or the library is not what it must be.
    """
    toolchain = fetch_toolchain(target, cache, verbose=verbose)
    with tempfile.TemporaryDirectory(prefix="aot-library-") as scratch:
        project, build = Path(scratch, "project"), Path(scratch, "build")
        _write_project(manifest, objects, target, project)
        definitions = _definitions(project, toolchain) | {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": str(Path(ninja.BIN_DIR) / "ninja"),
            "AOT_BUILD_BINDING": "OFF",
        }
        options = [f"-D{key}={value}" for key, value in definitions.items()]
        cmake, env = [sys.executable, "-m", "cmake"], _environment(target)
        run(
            [*cmake, "-S", str(project), "-B", str(build), "-G", "Ninja", *options],
            "configuring the library",
            env=env,
            verbose=verbose,
        )
        run([*cmake, "--build", str(build)], "building the library", env=env, verbose=verbose)
        library = build / library_name(manifest)
        inspect_library(library.name, library.read_bytes(), target)
        return _move_into(library, out_dir)


def build_wheel(
    manifest: Manifest,
    objects: Mapping[str, Path],
    dist_dir: Path,
    target: Target,
    *,
    cache: Path = TOOLCHAIN_CACHE,
    verbose: bool = False,
) -> Path:
    """Build the wheel and inspect it; it is in `dist_dir` whole, or not at all.

    Args:
        manifest: what the wheel is made from.
        objects: each kernel's object file, by the kernel's name.
        dist_dir: where the wheel is put.
        target: the machine to build for.
        cache: where the files that are linked against are kept.
        verbose: echo the commands to standard error.

    Raises:
        PackageError: the build failed, or the wheel is not what it must be.
    """
    toolchain = fetch_toolchain(target, cache, verbose=verbose)
    with tempfile.TemporaryDirectory(prefix="aot-wheel-") as scratch:
        project, out = Path(scratch, "project"), Path(scratch, "dist")
        _write_project(manifest, objects, target, project)
        _write_licences(project, toolchain)
        definitions = [f"-Ccmake.define.{key}={value}" for key, value in _definitions(project, toolchain).items()]
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), *definitions]
        run([*command, str(project)], "building the wheel", env=_environment(target), verbose=verbose)
        wheels = list(out.iterdir())
        if len(wheels) != 1:
            raise PackageError(f"the build made {[x.name for x in wheels]}; expected one wheel")
        inspect_wheel(wheels[0], manifest, target)
        return _move_into(wheels[0], dist_dir)


def inspect_wheel(wheel: Path, manifest: Manifest, target: Target) -> None:
    """Check tag, size and libraries of a wheel.

    Raises:
        PackageError: something is not what the manifest and the target ask for.
    """
    expected = f"{manifest.package.replace('-', '_')}-{manifest.version}-py3-none-{target.platform_tag}.whl"
    if wheel.name != expected:
        raise PackageError(f"the wheel is named {wheel.name}; expected {expected}")
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
    wrong = [x for x in exported if not x.startswith(_EXPORT_PREFIX)]
    if wrong or not exported:
        raise PackageError(
            f"{name} exports {len(exported)} symbols, {wrong[:3]} among them; expected {_EXPORT_PREFIX}*"
        )
