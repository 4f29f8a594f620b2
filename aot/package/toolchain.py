"""What is linked against and not installed with this toolchain: fetched once for each machine, then kept."""

from __future__ import annotations

import importlib.util
import os
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.core.errors import PackageError
from aot.core.process import run
from aot.core.progress import waiting
from aot.core.scratch import scratch_folder
from aot.core.target import Target

CUDA_RUNTIME = "nvidia-cuda-runtime==13.0.96"
"""Headers and libcudart_static.a. Source: JetPack 7 and driver 580 are CUDA 13.0, and a newer runtime asks for more."""
CUDA_HEADERS = "nvidia-cuda-crt==13.0.88"
"""The crt/ headers that those of the runtime include."""
TOOLCHAIN_CACHE = Path("build/toolchain")
"""Where the fetched files stay, below the working directory."""

LINKERS = ("apache-tvm-ffi", "build", "cmake", "deflate", "jinja2", "ninja", "scikit-build-core", "ziglang")
"""The installed packages that render, compile and link a wheel's library, have headers for it, or pack the wheel."""


@dataclass(frozen=True)
class Toolchain:
    """What the libraries are built from beside their own sources."""

    cuda_dir: Path
    """Holds include/ and lib/ of the target's machine."""
    dlpack_dir: Path
    """Holds dlpack/dlpack.h, which is the same on every machine."""


def _platform_options(target: Target) -> list[str]:
    newest = int(target.glibc.split(".")[1])
    tags = [f"manylinux_2_{minor}_{target.machine}" for minor in range(newest, 16, -1)]
    return [word for tag in [*tags, f"manylinux2014_{target.machine}"] for word in ("--platform", tag)]


def download(
    requirements: tuple[str, ...],
    target: Target,
    directory: Path,
    *,
    env: Mapping[str, str] | None = None,
    verbose: bool = False,
) -> None:
    """Fetch wheels of the target's machine into a folder, as pip is configured.

    Raises:
        PackageError: a download failed.
    """
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(directory)]
    command = [sys.executable, "-m", "pip", "download", *options, *_platform_options(target), *requirements]
    what = " and ".join(requirements)
    with waiting(f"fetch {what} for {target.machine}"):
        run(command, f"fetching {what}", env=env, verbose=verbose)


def _place(requirements: tuple[str, ...], machine: str, cache: Path) -> Path:
    return cache / f"{'+'.join(x.replace('==', '-') for x in requirements)}-{machine}"


def cached_toolchain(machine: str, cache: Path = TOOLCHAIN_CACHE) -> Path:
    """Return the folder that `fetch_toolchain` fills for a machine; where it is there, no network is needed."""
    return _place((CUDA_RUNTIME, CUDA_HEADERS), machine, cache)


def _fetch(requirements: tuple[str, ...], target: Target, cache: Path, *, verbose: bool) -> Path:
    """Unpack wheels of the target's machine into one folder of the cache, once."""
    unpacked = _place(requirements, target.machine, cache).resolve()
    if unpacked.is_dir():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    with scratch_folder(".fetch-", cache) as scratch:
        wheels, content = scratch / "wheels", scratch / "content"
        try:
            download(requirements, target, wheels, env=os.environ | {"TMPDIR": str(scratch)}, verbose=verbose)
        except PackageError as error:
            advice = (
                f"check pip's index and the network, or PIP_FIND_LINKS, the folder of `make wheelhouse`; {unpacked}"
            )
            raise PackageError(f"{error}\n  next: {advice} keeps what is fetched once") from error
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
