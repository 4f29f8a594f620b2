"""Install wheels into a folder of an image, with Python alone: python3 install.py WHEELS FOLDER.

A wheel that has no scripts and needs no other is installed by unpacking it. What is there is compiled, since a
read-only image cannot keep what Python compiles later, and checked against the hashes that it was built with.
"""

from __future__ import annotations

import compileall
import importlib
import os
import py_compile
import sys
import zipfile
from pathlib import Path


def fail(text: str) -> None:
    """End with an error."""
    sys.exit(f"install.py: {text}")


def wheels_for(folder: Path, machine: str) -> list[Path]:
    """List the wheels in a folder, which must all be for a machine or for any."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        fail(f"there is no wheel in {folder}; copy one from dist/ to images/wheels/")
    others = [x.name for x in wheels if not x.stem.endswith((f"_{machine}", "-any"))]
    if others:
        fail(f"{others[0]} is not for {machine}; copy the wheel for this machine to images/wheels/")
    return wheels


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack a wheel; one with scripts or other data is refused."""
    with zipfile.ZipFile(wheel) as archive:
        others = [name for name in archive.namelist() if ".data/" in name]
        if others:
            fail(f"{wheel.name} has {others[0]}, which goes elsewhere; install it with pip")
        taken = [name for name in archive.namelist() if (folder / name).exists()]
        if taken:
            fail(f"{wheel.name} has {taken[0]}, which another wheel has too; copy one of the two to images/wheels/")
        archive.extractall(folder)


def check(folder: Path) -> None:
    """Import every package of kernels, and have it compare its files with what was built."""
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    for manifest in sorted(folder.glob("*/manifest.json")):
        print(importlib.import_module(manifest.parent.name).check())


def main() -> None:
    """Install, compile and check."""
    if len(sys.argv) != 3:
        fail("expected two arguments: the folder with wheels, and the folder to install into")
    wheels, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in wheels_for(wheels, os.uname().machine):
        unpack(wheel, folder)
        print(f"installed {wheel.name}")
    # By content, not by time, so that equal wheels give equal files.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(folder, quiet=1, invalidation_mode=mode)
    check(folder)
    num_bytes = sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())
    print(f"{num_bytes / 2**20:.2f} MiB in {folder}")


if __name__ == "__main__":
    main()
