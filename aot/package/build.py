"""Build what is shipped: fetch the link-time files, write the rendered project, run the build, inspect the result."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tqdm import tqdm

from aot.core.errors import DependencyError, OutputError, PackageError
from aot.core.process import run
from aot.core.scratch import scratch_folder
from aot.core.target import Target
from aot.package import compile_once
from aot.package.contents import components, own_component
from aot.package.file_set import FileSet
from aot.package.link_order import link_order
from aot.package.pack import PackFor, render_api, render_pack
from aot.package.render import library_name, render, render_library
from aot.package.shared_modules import shared_modules
from aot.package.toolchain import TOOLCHAIN_CACHE, Toolchain, fetch_toolchain
from aot.package.wheel_archive import deflate_harder
from aot.package.wheel_file import inspect_library, inspect_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aot.core.kernel import Kernel
    from aot.kinds.rows.kernel import RowKernel
    from aot.package.manifest import Library, Manifest

ZIG_CACHE = "zig"
"""Folder of the cache where zig keeps what it builds of the target's C library, unless ZIG_GLOBAL_CACHE_DIR is set."""
KEPT_OBJECTS = "objects"
"""Folder of the cache, with the compiler's version behind it, of the runtime's objects: aot/package/compile_once.py."""
NO_CXX_LIBRARY = "-nostdlib++"
"""Link without zig's C++ library: the runtime needs none, and zig would build it, for a minute of each target."""
FILE_MODE = 0o644
SOURCE_DATE_EPOCH = "1577836800"
"""2020-01-01: the time stamp of every file in a wheel, so that equal manifests give equal bytes."""
_STEP = re.compile(r"\[(\d+)/(\d+)\]")
"""How ninja counts the steps of a build."""


def read_templates() -> dict[str, bytes]:
    """Read the templates: beside the package where it is installed, else from the checkout; and what wheels share.

    Raises:
        PackageError: there are none.
    """
    here = Path(__file__).resolve().parents[1]
    root = next((x for x in (here / "templates", here.parent / "templates") if x.is_dir()), None)
    if root is None:
        raise PackageError(f"no templates beside {here}; expected templates/; install aot again")
    files = [x for x in root.rglob("*") if x.is_file() and "__pycache__" not in x.parts]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files} | shared_modules()


def write(files: FileSet, directory: Path) -> None:
    """Write a rendered project."""
    for path, content in files.items():
        _write(directory / path, content)


def _write(path: Path, content: bytes) -> None:
    """Write a file of a project; its mode, which goes into the wheel, is the same whatever the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(FILE_MODE)


def _installed(package: str) -> Path:
    """Find the folder of a build tool that is a Python package.

    Raises:
        DependencyError: it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise DependencyError(
            f"{package} is not installed, which links the libraries; `make setup` installs what is missing"
        )
    return Path(spec.origin).parent


def _ninja() -> Path:
    """Find ninja.

    Raises:
        DependencyError: it is not installed.
    """
    try:
        import ninja
    except ImportError as error:
        raise DependencyError(f"{error}: it links the libraries; `make setup` installs what is missing") from error
    return Path(ninja.BIN_DIR) / "ninja"


def _toolchain_file(target: Target) -> str:
    """Return the CMake toolchain file: zig as a cross compiler, which brings the target's libc at the glibc wanted."""
    zig = _installed("ziglang") / "zig"
    cpu = target.host_cpu.replace("-", "_")
    # Stripped from CMake's first trial on, as the library is, so that zig builds its compiler's runtime once.
    compiler = " ".join(f'"{x}"' for x in [str(zig), "c++", f"-mcpu={cpu}", "-Wl,-s"])
    return (
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        f"set(CMAKE_SYSTEM_PROCESSOR {target.machine})\n"
        f"set(CMAKE_CXX_COMPILER {compiler})\n"
        # Where a target is stated so, CMake identifies the compiler without linking.
        f"set(CMAKE_CXX_COMPILER_TARGET {target.machine}-linux-gnu.{target.glibc})\n"
        f"set(CMAKE_EXE_LINKER_FLAGS_INIT {NO_CXX_LIBRARY})\n"
        f"set(CMAKE_SHARED_LINKER_FLAGS_INIT {NO_CXX_LIBRARY})\n"
    )


def _check_target(manifest: Manifest, target: Target) -> None:
    """Refuse to build a manifest for another target than its own (PackageError)."""
    if manifest.platform_tag != target.platform_tag or manifest.arch != target.arch:
        raise PackageError(
            f"the manifest is for {manifest.arch} on {manifest.platform_tag}, target {target.name} is {target.arch} on "
            f"{target.platform_tag}; build with the manifest's own target, {manifest.tables[0].target}"
        )


def _write_project(
    files: FileSet,
    kernels: Sequence[Kernel | RowKernel],
    objects: Mapping[str, Path],
    target: Target,
    directory: Path,
    ordered: Callable[[Mapping[str, bytes]], Iterable[str]],
) -> None:
    """Write a rendered project, its toolchain file and the objects of some kernels, which must be the kernels' own.

    `ordered` gives the order of the linker, of objects by their kernels' names.
    """
    write(files, directory)
    _write(directory / "toolchain.cmake", _toolchain_file(target).encode())
    contents: dict[str, bytes] = {}
    for kernel in kernels:
        if kernel.name not in objects:
            raise PackageError(f"no object for kernel {kernel.name}; expected one for each kernel; compile it again")
        content = objects[kernel.name].read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 != kernel.object_sha256:
            raise PackageError(
                f"object {objects[kernel.name]} has sha256 {sha256}; the manifest says {kernel.object_sha256}; "
                "compile it again, or build the manifest again from this object"
            )
        _write(directory / "objects" / f"{kernel.name}.o", content)
        contents[kernel.name] = content
    _write(directory / "objects" / "order.txt", "".join(f"{x}.o\n" for x in ordered(contents)).encode())


def _write_licences(directory: Path, manifest: Manifest, toolchain: Toolchain) -> None:
    """Put the licences of all that a wheel has inside beside the project; their terms ask for that."""
    for component in components(manifest.families, toolchain.cuda_dir, manifest.functions):
        _write(directory / "licenses" / component.file, component.text)


def _definitions(directory: Path, toolchain: Toolchain, cache: Path) -> dict[str, str]:
    kept = cache.resolve() / f"{KEPT_OBJECTS}-{version('ziglang')}"
    launcher = [sys.executable, "-I", "-S", str(Path(compile_once.__file__)), str(kept), str(directory.parent)]
    return {
        "CMAKE_CXX_COMPILER_LAUNCHER": ";".join(launcher),
        "CMAKE_TOOLCHAIN_FILE": str(directory / "toolchain.cmake"),
        "AOT_CUDA_DIR": str(toolchain.cuda_dir),
        "AOT_DLPACK_DIR": str(toolchain.dlpack_dir),
    }


def _environment(platform: str, cache: Path, scratch: Path) -> dict[str, str]:
    """Return the environment of a build: the caller's, less what would reach the compiler, plus what fixes the result.

    Zig keeps what it builds once, of the target's C library, in a folder of the cache, not in the home folder, which
    there may not be; where ZIG_GLOBAL_CACHE_DIR is set it stays.
    """
    dropped = {"CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "CC", "CXX", "CMAKE_ARGS", "CMAKE_GENERATOR"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped and not key.startswith("SKBUILD_")}
    zig = {
        "ZIG_GLOBAL_CACHE_DIR": str((cache / ZIG_CACHE).resolve()),
        "ZIG_LOCAL_CACHE_DIR": str(scratch / "zig"),
    }
    (scratch / "tmp").mkdir(parents=True, exist_ok=True)
    return (
        kept
        | {key: value for key, value in zig.items() if not kept.get(key)}
        | {
            "TMPDIR": str(scratch / "tmp"),  # what is left there by a killed tool goes with the folder
            "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH,
            "_PYTHON_HOST_PLATFORM": platform,
            "PYTHONHASHSEED": "0",
        }
    )


def _move_into(path: Path, directory: Path) -> Path:
    """Put a file into a folder so that it is there whole or not at all, whatever file system it comes from."""
    partial = directory / f".{path.name}.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(path, partial)
            return partial.replace(directory / path.name)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {directory / path.name}: {error.strerror}; give another folder") from error


@contextmanager
def _ticking(bar: tqdm[NoReturn]) -> Iterator[None]:
    """Let a terminal see the time pass while a step lasts."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1.0):
            bar.refresh()

    ticker = threading.Thread(target=tick, daemon=True)
    if sys.stderr.isatty() and not bar.disable:
        ticker.start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def _progress(what: str, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show how far a build is; gives what is to be called with each line that it prints."""
    interval = 0.1 if sys.stderr.isatty() else 15.0  # a log gets a line now and then
    with tqdm(desc=what, unit="step", mininterval=interval, disable=not shown) as bar, _ticking(bar):

        def see(line: str) -> None:
            found = _STEP.search(line)
            if found:
                bar.total = int(found[2])
                bar.update(int(found[1]) - bar.n)

        yield see
        bar.update((bar.total or 1) - bar.n)


def build_library(
    library: Library,
    objects: Mapping[str, Path],
    out_dir: Path,
    target: Target,
    *,
    verbose: bool = False,
    progress: bool = False,
) -> Path:
    """Build the C library alone, as a tuning bundle carries it.

    Args:
        library: kernels and table; the table of a bundle needs no more than a fallback.
        objects: each kernel's object file, by the kernel's name.
        out_dir: where lib<module>.so is put.
        target: the machine to build for.
        verbose: echo the commands to standard error.
        progress: show how far the build is on standard error.

    Raises:
        OutputError: the result cannot be put where it belongs.
        PackageError: the build failed, or the library is not what it must be.
    """
    cache = TOOLCHAIN_CACHE
    toolchain = fetch_toolchain(target, cache, verbose=verbose)
    what = f"link {len(library.all_kernels)} kernels"
    with scratch_folder("aot-library-") as scratch, _progress(what, shown=progress) as see:
        project, build = scratch / "project", scratch / "build"
        files = render_library(library, read_templates())
        _write_project(files, library.with_objects, objects, target, project, sorted)
        definitions = _definitions(project, toolchain, cache) | {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": str(_ninja()),
            "AOT_BUILD_BINDING": "OFF",
        }
        options = [f"-D{key}={value}" for key, value in definitions.items()]
        cmake, env = [sys.executable, "-m", "cmake"], _environment(target.platform_tag, cache, scratch)
        run(
            [*cmake, "-S", str(project), "-B", str(build), "-G", "Ninja", *options],
            "configuring the library",
            env=env,
            verbose=verbose,
        )
        run([*cmake, "--build", str(build)], "building the library", env=env, verbose=verbose, each_line=see)
        built = build / library_name(library)
        inspect_library(built.name, built.read_bytes(), target)
        return _move_into(built, out_dir)


def _packaged(project: Path, scratch: Path, definitions: Mapping[str, str], env: Mapping[str, str], **how: Any) -> Path:
    """Build the wheel of a project that lies there; return it.

    Raises:
        OutputError: the disk is full.
        PackageError: the build failed, or made something else.
    """
    out = scratch / "dist"
    words = [f"-Ccmake.define.{key}={value}" for key, value in definitions.items()]
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), *words]
    run([*command, str(project)], "building the wheel", env=env, **how)
    wheels = list(out.iterdir())
    if len(wheels) != 1:
        raise PackageError(f"the build made {[x.name for x in wheels]}; expected one wheel")
    deflate_harder(wheels[0])
    return wheels[0]


def build_api(package: str, version: str, dist_dir: Path, *, verbose: bool = False) -> Path:
    """Build the wheel of the functions alone, for whose kernels there are packs; it is for every machine.

    Args:
        package: name of the distribution.
        version: its version.
        dist_dir: where the wheel is put.
        verbose: echo the commands to standard error.

    Raises:
        OutputError: the result cannot be put where it belongs.
        PackageError: the build failed.
    """
    with scratch_folder("aot-api-") as scratch:
        project = scratch / "project"
        write(render_api(package, version, read_templates()), project)
        own = own_component()
        _write(project / "licenses" / own.file, own.text)
        wheel = _packaged(project, scratch, {}, _environment("any", TOOLCHAIN_CACHE, scratch), verbose=verbose)
        return _move_into(wheel, dist_dir)


def build_wheel(
    manifest: Manifest,
    objects: Mapping[str, Path],
    dist_dir: Path,
    target: Target,
    *,
    pack: PackFor | None = None,
    cache: Path = TOOLCHAIN_CACHE,
    verbose: bool = False,
    progress: bool = False,
) -> Path:
    """Build the wheel and inspect it; it is in `dist_dir` whole, or not at all.

    Args:
        manifest: what the wheel is made from.
        objects: each kernel's object file, by the kernel's name.
        dist_dir: where the wheel is put.
        target: the machine to build for.
        pack: of which distribution with functions this is to be a pack; None for a wheel with its own.
        cache: where the files that are linked against are kept.
        verbose: echo the commands to standard error.
        progress: show how far the build is on standard error.

    Raises:
        OutputError: the result cannot be put where it belongs.
        PackageError: the build failed, or the wheel is not what it must be.
    """
    _check_target(manifest, target)
    toolchain = fetch_toolchain(target, cache, verbose=verbose)
    what = f"link {len(manifest.all_kernels)} kernels and package them"
    with scratch_folder("aot-wheel-") as scratch, _progress(what, shown=progress) as see:
        project, templates = scratch / "project", read_templates()
        files = render(manifest, templates) if pack is None else render_pack(manifest, pack, templates)
        _write_project(files, manifest.with_objects, objects, target, project, link_order)
        _write_licences(project, manifest, toolchain)
        env = _environment(target.platform_tag, cache, scratch)
        wheel = _packaged(
            project, scratch, _definitions(project, toolchain, cache), env, verbose=verbose, each_line=see
        )
        inspect_wheel(wheel, manifest, target)
        return _move_into(wheel, dist_dir)
