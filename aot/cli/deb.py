"""The command about Debian packages."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aot.cli.options import OUTPUT_FOLDER
from aot.cli.output import JSON, show
from aot.core.errors import PackageError
from aot.core.progress import waiting
from aot.core.whole_file import check_folder, write_whole
from aot.package.build import SOURCE_DATE_EPOCH

MAX_EPOCH = 253402300799
"""The end of the year 9999, up to which there are dates."""


def stated_maintainer() -> str:
    """Return who makes packages here, as Debian's own tools find it."""
    return f"{os.environ.get('DEBFULLNAME', '')} <{os.environ.get('DEBEMAIL', '')}>"


def _epoch() -> int:
    """Return the time that packages get.

    Raises:
        PackageError: SOURCE_DATE_EPOCH is no time.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH") or SOURCE_DATE_EPOCH
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > MAX_EPOCH:
        raise PackageError(
            f"SOURCE_DATE_EPOCH is {text[:40]!r}; expected whole seconds since 1970, such as {SOURCE_DATE_EPOCH}"
        )
    return int(text)


@click.command()
@click.argument("wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--maintainer", default=None, help="Who answers for the packages: 'Ann Lee <ann@company.com>'.")
@click.option("--dist", type=OUTPUT_FOLDER, default=None, show_default="dist", help="Folder to put the packages into.")
@JSON
def deb(wheel: Path, maintainer: str | None, dist: Path | None, as_json: bool) -> None:
    """Make Debian packages of a wheel's C library: lib<name>1, and lib<name>-dev with headers, CMake and pkg-config.

    The library is that of the wheel, byte for byte; the machine is the wheel's own, amd64 or arm64. Equal wheels give
    equal packages, whose files have the time of SOURCE_DATE_EPOCH, or 2020-01-01. Without --maintainer it is
    DEBFULLNAME <DEBEMAIL> of the environment.
    """
    from aot.package.deb_file import to_bytes
    from aot.package.debian import packages_of

    del as_json
    folder = dist or check_folder(Path("dist"))
    epoch, sizes = _epoch(), dict[Path, int]()
    with waiting("make the packages"):
        for package in packages_of(wheel, maintainer or stated_maintainer(), epoch):
            content = to_bytes(package, epoch)
            path = folder / package.name
            write_whole(path, content)
            sizes[path] = len(content)
    show(
        lambda: {"num_bytes": sizes},
        lambda: "\n".join(f"{path}: {size / 2**20:.2f} MiB" for path, size in sizes.items()),
    )
