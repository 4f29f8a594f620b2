"""The option --cluster, and the command that makes a host a worker: worker."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.cli.options import OUTPUT_FOLDER, options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aot.fleet.fleet import Fleet

TLS = click.option(
    "--cluster-tls",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with ca.pem, cert.pem and key.pem, for a scheduler at tls://; by default as Dask is configured.",
)
CLUSTER = options(
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Work on a Dask cluster: tcp://host:8786, or `local` for all of this host. Needs aot-kernels[fleet].",
    ),
    TLS,
)


def say(text: str) -> None:
    """Tell a person something, on standard error."""
    click.echo(text, err=True)


@contextmanager
def fleet_of(
    cluster: str | None, tls: Path | None, jobs: int | None, *, measures: bool, urls: Sequence[str] = ()
) -> Iterator[Fleet | None]:
    """Open the cluster that --cluster names; None where it names none.

    Args:
        cluster: the address, or `local`.
        tls: the folder of certificates.
        jobs: processes that compile on this host, with `local`; by default one a core.
        measures: whether devices are wanted, too.
        urls: devices that this host reaches by SSH, in the place of its own.

    Raises:
        click.UsageError: TLS is asked for, and no cluster.
    """
    if cluster is None:
        if tls is not None:
            raise click.UsageError("--cluster-tls means nothing without --cluster; leave it out, or use both")
        yield None
        return
    from aot.fleet.fleet import LOCAL, open_fleet
    from aot.fleet.worker import Offer, gpus_of_this_host

    gpus = gpus_of_this_host() if measures and cluster == LOCAL and not urls else ()
    offer = Offer(jobs=jobs or os.cpu_count() or 1, gpus=gpus, urls=tuple(urls))
    with open_fleet(cluster, tls, offer, say) as fleet:
        yield fleet


@click.command(name="worker")
@click.argument("scheduler")
@click.option("--jobs", type=click.IntRange(0, 4096), help="Kernels to compile at a time; by default one a core.")
@click.option("--gpu", "gpus", multiple=True, help="A GPU to offer, as nvidia-smi numbers them; by default all.")
@click.option("--no-gpu", is_flag=True, help="Offer none of this host's GPUs.")
@click.option("--on", "urls", multiple=True, help="A device to offer that this host reaches: ssh://[user@]host[:port].")
@click.option(
    "--folder",
    type=OUTPUT_FOLDER,
    default=None,
    show_default="build/worker",
    help="Where to keep what is compiled and measured.",
)
@TLS
def worker(
    scheduler: str,
    jobs: int | None,
    gpus: tuple[str, ...],
    *,
    no_gpu: bool,
    urls: tuple[str, ...],
    folder: Path | None,
    cluster_tls: Path | None,
) -> None:
    """Offer this host's GPUs and cores to a Dask scheduler, until that ends: tcp://host:8786, or tls://.

    One worker for each GPU measures, each device by SSH has one, and one compiles. They run what whoever reaches the
    scheduler asks for: see docs/fleet.md on who may. Needs aot-kernels[fleet].
    """
    from aot.fleet.worker import FOLDER, Offer, gpus_of_this_host, work

    if no_gpu and gpus:
        raise click.UsageError("--gpu means nothing with --no-gpu; leave one of the two out")
    own = () if no_gpu else gpus or gpus_of_this_host()
    count = os.cpu_count() or 1 if jobs is None else jobs
    work(Offer(folder or FOLDER, count, own, urls), scheduler, cluster_tls, say)
