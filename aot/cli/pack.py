"""The command `aot pack`: a checkpoint that people have, written once in the layout that kernels read."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from aot.checkpoint.packing import Packed, Request, pack_checkpoint
from aot.checkpoint.shards import PARTIAL
from aot.cli.options import OUTPUT_FOLDER
from aot.cli.output import JSON, show
from aot.core.packed_folder import FLOATS, FORMAT_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aot.checkpoint.shards import Task

LOG_S, TERMINAL_S = 15.0, 0.5
"""Seconds between two looks at how far it is: in a log, and on a terminal."""
MAX_REASONS = 5


def _size(path: Path) -> int:
    """Return how much of a file is written, under whichever of its names."""
    for name in (path, path.with_name(path.name + PARTIAL)):
        with suppress(OSError):
            return name.stat().st_size
    return 0


@contextmanager
def _watched(tasks: Sequence[Task]) -> Iterator[None]:
    """Show how many bytes of the files are written, which is asked of the disk."""
    interval = TERMINAL_S if sys.stderr.isatty() else LOG_S
    ended = threading.Event()
    total = sum(x.num_bytes for x in tasks)
    with tqdm(total=total, desc="pack", unit="B", unit_scale=True, mininterval=interval, delay=1.0) as bar:

        def look() -> None:
            bar.update(max(0, sum(_size(x.path) for x in tasks) - bar.n))

        def watch() -> None:
            while not ended.wait(interval):
                look()

        watcher = threading.Thread(target=watch, daemon=True, name="aot-pack-progress")
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            look()


def _facts(packed: Packed, seconds: float) -> dict[str, object]:
    return {
        "output": packed.output,
        "source": packed.folder.source,
        "formats": dict(Counter(x.format for x in packed.folder.layers.values())),
        "num_elements": packed.num_elements,
        "bytes_before": packed.bytes_before,
        "bytes_after": packed.bytes_after,
        "num_files": len(packed.folder.shards),
        "num_kept": packed.num_kept,
        "left": packed.folder.left,
        "seconds": seconds,
    }


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _text(packed: Packed, seconds: float) -> str:
    formats = Counter(x.format for x in packed.folder.layers.values())
    counts = ", ".join(f"{count} as {form}" for form, count in sorted(formats.items()))
    sizes = f"{_gib(packed.bytes_before)} before, {_gib(packed.bytes_after)} after"
    lines = [
        f"{packed.output}: {packed.folder.source}; packed {counts}",
        f"{packed.num_elements:,} weights in {seconds:.1f} s; {sizes}",
    ]
    if packed.num_kept:
        lines.append(f"{packed.num_kept} of {len(packed.folder.shards)} files were there from an earlier run")
    for reason, count in Counter(packed.folder.left.values()).most_common(MAX_REASONS):
        lines.append(f"{count} left: {reason}")
    lines.append(f'next: aot_gemm.torch.load_quantized(config, "{packed.output}") in Python')
    return "\n".join(lines)


@click.command(name="pack")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=OUTPUT_FOLDER, help="New folder; by default the checkpoint's name and -packed, here."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMAT_NAMES),
    metavar="FORMAT",
    help=f"Round weights of 16 bits to it, to nearest: {', '.join(FORMAT_NAMES)}. Quantised ones keep theirs.",
)
@click.option(
    "--dtype", type=click.Choice(list(FLOATS)), help="Type of int4's factors, and so of x; default their own."
)
@click.option(
    "--skip", multiple=True, metavar="PATTERN", help="Names of Linears to leave as they are, such as '*.lm_head'."
)
@click.option("--check", is_flag=True, help="Unpack and compare every row, not a sample, and read every file again.")
@click.option("--jobs", type=click.IntRange(1, 4096), help="Processes; by default one a core.")
@JSON
def pack_command(**values: Any) -> None:
    """Write CHECKPOINT once in the layout that kernels of packed weights read: docs/weights.md.

    CHECKPOINT is a folder with files of safetensors, or one such file: of compressed-tensors (int4, NVFP4, MXFP4, FP8),
    ModelOpt (NVFP4, FP8), AWQ, GPTQ, FP8 in blocks of 128 x 128 as DeepSeek has it, or GPT-OSS's experts; or of 16
    bits, with --format. What is quantised keeps its codes and factors bit for bit. Nothing of a checkpoint is executed,
    and nothing is fetched.

    Tensors are read a part at a time, so that memory may be smaller than the checkpoint. What an interrupted run has
    finished is used by the next. A wheel's load_quantized(config, folder) loads the result.
    """
    checkpoint: Path = values["checkpoint"]
    output = values["output"] or Path(f"{checkpoint.resolve().name.removesuffix('.safetensors')}-packed")
    request = Request(checkpoint, output, values["form"], values["dtype"], values["skip"], values["check"])
    start = time.monotonic()
    packed = pack_checkpoint(request, values["jobs"] or len(os.sched_getaffinity(0)), _watched)
    seconds = time.monotonic() - start
    show(lambda: _facts(packed, seconds), lambda: _text(packed, seconds))
