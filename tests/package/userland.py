"""An AArch64 Python on any machine: Debian's packages unpacked into a folder, run by qemu. Nothing is installed."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import native

ROOT = Path(__file__).parents[2] / "build" / "userland"
PACKAGES = [
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "zlib1g",
    "libexpat1",
    "libffi8",
    "libstdc++6",
    "libgcc-s1",
    "libbz2-1.0",
    "liblzma5",
    "libcrypt1",
    "libuuid1",
    "libssl3",
    "libsqlite3-0",
]


def _apt(state, architecture, *command, cwd):
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures::": architecture,
        "APT::Sandbox::User": "root",
        "Dir::State::Lists": state / "lists",
        "Dir::Cache": state / "cache",
        "Dir::State::status": "/dev/null",
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    subprocess.run(["apt-get", "-q", *words, *command], check=True, cwd=cwd, capture_output=True, text=True)


def _fetch(architecture, packages, folder):
    """Download packages of an architecture and unpack them into a folder."""
    # Named after the folder, so that what a failed download leaves goes with it.
    state, debs = (folder.with_name(f"{folder.name}.{name}") for name in ("apt", "debs"))
    for path in (state / "lists" / "partial", state / "cache" / "archives" / "partial", debs):
        path.mkdir(parents=True)
    _apt(state, architecture, "update", cwd=debs)
    _apt(state, architecture, "download", *packages, cwd=debs)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
    shutil.rmtree(state)
    shutil.rmtree(debs)


def fetch_once(architecture, packages, name):
    """Give the folder of some packages, downloaded by the first test process that asks; others wait for it."""
    folder = ROOT / name
    with native.locked(ROOT / f"{name}.lock"):
        if not folder.is_dir():
            partial = ROOT / f"{name}.partial"
            for path in ROOT.glob(f"{name}.partial*"):
                shutil.rmtree(path)
            _fetch(architecture, packages, partial)
            partial.rename(folder)
    return folder


def aarch64_emulator():
    """Give the words before an AArch64 program that run it, with Debian's libraries; skips where they cannot be had."""
    if platform.machine() == "aarch64":
        return []
    try:
        # The folder of another list of packages is another folder.
        number = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:8]
        system = fetch_once("arm64", PACKAGES, f"aarch64-{number}")
        emulator = shutil.which("qemu-aarch64-static")
        if emulator is None:
            host = fetch_once("amd64", ["qemu-user-static"], "qemu")
            emulator = str(host / "usr" / "bin" / "qemu-aarch64-static")
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", "") or ""
        needs = "apt-get, dpkg-deb and Debian's mirror are needed, once"
        pytest.skip(f"NOT TESTED ON AARCH64: an AArch64 userland cannot be fetched: {needs}: {error} {output[-300:]}")
    return [emulator, "-L", str(system)]


def aarch64_python():
    """Give the command that runs an AArch64 Python 3.11; skips the test where it cannot be had."""
    words = aarch64_emulator()
    return [*words, f"{words[-1]}/usr/bin/python3.11"] if words else [shutil.which("python3")]
