"""The commands of releases: release, reproduce, wheelhouse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.cli.deb import stated_maintainer
from aot.cli.options import JOBS, OUTPUT_FOLDER, RECORDS, VERBOSE, options
from aot.cli.output import JSON, show, tell
from aot.cli.request import Request, select
from aot.compile.compiler import Processes
from aot.compile.workplace import Workplace
from aot.core.errors import VerificationError
from aot.core.progress import waiting
from aot.core.scratch import scratch_folder
from aot.core.shape_set import load_shape_set
from aot.core.target import Target, load_target, target_names
from aot.core.whole_file import check_folder
from aot.package.build import SOURCE_DATE_EPOCH
from aot.package.debian import check_maintainer
from aot.package.distribution import check_version, selection_hash
from aot.package.wheel import DEFAULT_PACKAGE, TableSource, check_one_host, make_wheel, toolchain_version
from aot.release.compare import compare_all, read_folder
from aot.release.provenance import BUILDER, Parameters
from aot.release.release import KernelWheel, assemble, build_debs, build_toolchain_wheel, check_place, put
from aot.release.reproduce import build_again, other_surroundings
from aot.release.source import read_source
from aot.release.wheelhouse import fill
from aot.select import pipeline
from aot.select.score import gate
from aot.select.selection import read_selection

if TYPE_CHECKING:
    from collections.abc import Sequence

RELEASE = Path("build/release")
WHEELHOUSE = Path("build/wheelhouse")
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
MAX_SHOWN = 100
"""Differences that are listed."""


def _said(text: str) -> None:
    click.echo(f"... {text}", err=True)


def _table(device: Target) -> tuple[TableSource, dict[str, Path]]:
    """Return what a released table is made from, and the files of the commit that it is: never what was made here."""
    committed = pipeline.committed_selection(device)
    shapes = pipeline.COMMITTED_SHAPES
    if committed is None:
        return TableSource(select(Request(device, shapes, is_default_shapes=True)), device), {}
    chosen = read_selection(committed)
    record = pipeline.default_record(device, RECORDS)
    inputs = {f"aot/{path.parent.name}/{path.name}": path for path in (committed, record) if path}
    coverage = gate.covered(chosen, load_shape_set(shapes))
    return TableSource(chosen, device, pipeline.times_behind(chosen, None, RECORDS), coverage), inputs


def _wheel(names: str, folder: Path, workplace: Workplace, number: str) -> KernelWheel:
    """Build the wheel of one target, or of several with commas between."""
    devices = [load_target(name) for name in sorted(names.split(","))]
    check_one_host(devices)
    tables = [_table(device) for device in devices]
    sources = [source for source, _ in tables]
    built = make_wheel(sources, folder, workplace, package=DEFAULT_PACKAGE, wheel_version=number)
    tell(f"{built.path.name}: {built.path.stat().st_size / 2**20:.2f} MiB, {len(built.manifest.all_kernels)} kernels")
    inputs = {name: path for _, found in tables for name, path in found.items()}
    return KernelWheel(built, devices[0], inputs, {x.target.name: selection_hash(x.selection) for x in sources})


@click.command()
@click.argument("targets", nargs=-1, required=True)
@options(JOBS, VERBOSE)
@click.option(
    "--add",
    "extras",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="A file, or a folder of files, that belongs to the release too, such as Debian packages. May be given again.",
)
@click.option(
    "--maintainer",
    default=None,
    help="Who answers for the Debian packages, 'Ann Lee <ann@company.com>'; by default DEBFULLNAME <DEBEMAIL> of the "
    "environment, and without these there are no packages.",
)
@click.option("--builder", default=BUILDER, show_default=True, help="URI of who builds, for the provenance.")
@click.option("-o", "--output", type=OUTPUT_FOLDER, default=RELEASE, show_default=True, help="Folder to put it into.")
@JSON
def release(
    targets: tuple[str, ...],
    jobs: int | None,
    verbose: bool,
    extras: tuple[Path, ...],
    maintainer: str | None,
    builder: str,
    output: Path,
    as_json: bool,
) -> None:
    """Build a wheel for each of TARGETS and what goes with them, from the commit that is checked out.

    A target is what `aot build --target` takes; its committed selection is built, or where there is none, what the cost
    model selects. With the wheels go this toolchain's own, a bill of materials for each (CycloneDX), the licences of
    all that is inside, the provenance (SLSA, in an in-toto statement) and SHA256SUMS. See docs/releases.md.
    """
    del as_json
    source, number = read_source(), check_version(toolchain_version())
    check_place(output)
    answering = check_maintainer(maintainer or stated_maintainer()) if maintainer or "DEBEMAIL" in os.environ else ""
    workplace = Workplace(compilers=Processes(jobs), verbose=verbose)
    with scratch_folder("aot-release-") as scratch:
        folder = scratch / "release"
        folder.mkdir()
        wheels = [_wheel(names, folder, workplace, number) for names in dict.fromkeys(targets)]
        with waiting("build the toolchain's own wheel"):
            toolchain_wheel = build_toolchain_wheel(folder, verbose=verbose)
        selections = {name: digest for wheel in wheels for name, digest in wheel.selections.items()}
        names = tuple(dict.fromkeys(targets))
        parameters = Parameters(names, DEFAULT_PACKAGE, number, SOURCE_DATE_EPOCH, selections, answering)
        _said("write bills of materials, licences, provenance and checksums")
        debs = [x for wheel in wheels for x in build_debs(wheel.built.path, answering, scratch)] if answering else []
        if not answering:
            _said("no Debian packages: give --maintainer, or DEBFULLNAME and DEBEMAIL in the environment")
        assemble(folder, wheels, toolchain_wheel, [*debs, *_files(extras)], parameters, source, builder)
        put(folder, output)
    sizes = {name: len(content) for name, content in sorted(read_folder(output).items())}
    lines = [f"{output / name}: {size:,} bytes" for name, size in sizes.items()]
    lines.append(f"built from commit {source.commit}; next: aot reproduce {output}")
    show(
        lambda: {"folder": output, "commit": source.commit, "version": number, "num_bytes": sizes},
        lambda: "\n".join(lines),
    )


def _files(paths: Sequence[Path]) -> list[Path]:
    """List files, and those of folders."""
    found = [[path] if path.is_file() else sorted(x for x in path.iterdir() if x.is_file()) for path in paths]
    return [x for files in found for x in files]


@click.command()
@click.argument(
    "folder",
    metavar="[RELEASE]",
    default=RELEASE,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@JSON
def reproduce(folder: Path, as_json: bool) -> None:
    """Build RELEASE again from its commit and compare the bytes; by default build/release.

    The second build is in another folder, umask, locale and time zone, with tools installed anew and no compiled kernel
    kept. Says which files differ, and where in them, and then exits with 12.
    """
    del as_json
    surroundings = other_surroundings()
    _said(f"build again from nothing, in {surroundings}")
    with scratch_folder("aot-reproduce-") as scratch:
        again = build_again(folder, scratch, surroundings, lambda line: click.echo(line, nl=False, err=True))
        one, other = read_folder(folder), read_folder(again)
        differences = list(compare_all(one, other))
        num_bytes = sum(map(len, one.values()))
        text = f"{len(one)} files, {num_bytes:,} bytes: the second build, in {surroundings}, gives the same bytes"
        show(
            lambda: {
                "num_files": len(one),
                "num_bytes": num_bytes,
                "surroundings": str(surroundings),
                "differences": [str(x) for x in differences],
            },
            lambda: "\n".join(f"differs: {x}" for x in differences[:MAX_SHOWN]) or text,
        )
        if differences:
            raise VerificationError(
                f"{len(differences)} differences between two builds of one commit, the second in {surroundings}; "
                "what reaches the files of these must be taken out of the build"
            )


@click.command()
@click.argument("folder", default=WHEELHOUSE, type=OUTPUT_FOLDER)
@options(VERBOSE)
@JSON
def wheelhouse(folder: Path, verbose: bool, as_json: bool) -> None:
    """Fetch into FOLDER all wheels that installing this toolchain and building with it need; default build/wheelhouse.

    For machines without an index: there, PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER in the environment.
    """
    del as_json
    fill(check_folder(folder), map(load_target, target_names()), _said, verbose=verbose)
    wheels = sorted(folder.glob("*.whl"))
    num_bytes = sum(x.stat().st_size for x in wheels)
    following = f"PIP_NO_INDEX=1 PIP_FIND_LINKS={folder.resolve()} make setup wheel"
    show(
        lambda: {"folder": folder, "wheels": [x.name for x in wheels], "num_bytes": num_bytes, "next": following},
        lambda: f"{folder}: {len(wheels)} wheels, {num_bytes / 2**20:,.0f} MiB\nnext, without a network: {following}",
    )
