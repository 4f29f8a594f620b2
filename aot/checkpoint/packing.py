"""Pack a checkpoint: plan the files, write them in several processes, and put the folder in place when all are whole.

Files are written in a folder beside the one that is asked for, `.NAME.packing`. What an interrupted run has finished
there is kept, and used by the next run of the same checkpoint and options; anything else is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.checkpoint.layers import find_layers
from aot.checkpoint.methods import PACKED, method_of
from aot.checkpoint.shards import PARTIAL, Failed, Task, tasks_of, write_shard
from aot.checkpoint.source import CONFIG, INDEX, Checkpoint, open_checkpoint
from aot.compile.process_pool import Died, Pool
from aot.core.errors import CheckpointError, OutputError, ResourceError
from aot.core.packed_folder import FILE, OF_EXPERTS, VERSION, PackedFolder, Shard, check_shard, version_of
from aot.core.safetensors_file import short
from aot.core.whole_file import write_whole
from aot.models.quantization import MODELOPT, OLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot.checkpoint.stored import Found

COPIED = (".json", ".txt", ".model", ".jinja", ".md")
"""Ends of the names of small files that are copied: tokenizers, templates, licences. No code is."""
MAX_COPIED_BYTES = 2**27
_PLAN, _LOCK, _DONE = "plan.json", ".lock", ".done.json"
_BLOBS = "blobs"
"""Where the files of a cached repository lie, two folders above. Source: huggingface_hub, file_download.py."""
_SPARE_BYTES = 2**24
"""Of the disk, beside what is written."""


@dataclass(frozen=True)
class Request:
    """What is to be packed, and how."""

    checkpoint: Path
    output: Path
    form: str | None = None
    """Of matrices of 16 bits; None where they are left."""
    dtype: str | None = None
    skip: tuple[str, ...] = ()
    check_all: bool = False


@dataclass(frozen=True)
class Packed:
    """What was packed."""

    output: Path
    folder: PackedFolder
    num_elements: int
    """Of packed weights."""
    bytes_before: int
    """Of the checkpoint's tensors."""
    bytes_after: int
    num_kept: int
    """Files that an interrupted run had written."""


def pack_checkpoint(request: Request, jobs: int, watch: Callable[[Sequence[Task]], Any] | None = None) -> Packed:
    """Pack a checkpoint into a folder.

    Args:
        request: what, and how.
        jobs: processes.
        watch: gives a context in which the files are written, to show how far they are.

    Raises:
        CheckpointError: the checkpoint is damaged, or quantised in a way that is not known.
        OutputError: the folder is there already, or cannot be written.
        ResourceError: there is too little disk or memory.
    """
    output = request.output
    _check_free_name(output)
    checkpoint = open_checkpoint(request.checkpoint)
    found = find_layers(checkpoint, form=request.form, dtype=request.dtype, skip=request.skip)
    if not found.layers:
        raise CheckpointError(_nothing(request, found))
    with _staging(output) as staging:
        tasks = tasks_of(found, staging, check_all=request.check_all)
        kept = _resume(staging, _fingerprint(request, checkpoint, tasks), tasks)
        _check_space(staging, [x for x in tasks if x.path.name not in kept])
        with watch(tasks) if watch is not None else nullcontext():
            shards = kept | _written([x for x in tasks if x.path.name not in kept], jobs)
        folder = PackedFolder(
            version_of(x.packed for x in found.layers),
            _source(request, checkpoint, found),
            {x.name: x.packed for x in found.layers},
            found.left,
            {x.path.name: shards[x.path.name] for x in tasks},
        )
        if request.check_all:
            for name, shard in folder.shards.items():
                check_shard(staging / name, shard)
        _write_lists(staging, checkpoint, folder)
        _put_in_place(staging, output, tasks)
    return Packed(
        output,
        folder,
        sum(x.numel for x in found.layers),
        sum(x.num_bytes for x in checkpoint.tensors.values()),
        sum(x.num_bytes for x in folder.shards.values()),
        len(kept),
    )


def _source(request: Request, checkpoint: Checkpoint, found: Found) -> str:
    kinds = sorted({x.stored.value for x in found.layers if x.is_quantised})
    if not kinds:
        return f"16 bits, rounded to {request.form}"
    return method_of(checkpoint.quantization).name or ", ".join(kinds)


def _nothing(request: Request, found: Found) -> str:
    if request.skip:
        return (
            f"{request.checkpoint}: nothing is left to pack beside what --skip names "
            f"({', '.join(map(short, request.skip))}); expected a weight; leave a pattern away"
        )
    if request.form is None and not found.left:
        return (
            f"{request.checkpoint}: its weights are of 16 bits, and none is quantised; expected a quantised "
            "checkpoint, or the format to round to: give --format, such as int4g128 or nvfp4"
        )
    reasons = "; ".join(dict.fromkeys(found.left.values()))[:300] or "none is a matrix"
    return f"{request.checkpoint}: no weight of it can be packed ({reasons}); expected one; give another checkpoint"


def _check_free_name(output: Path) -> None:
    if os.path.lexists(output) and (output.is_symlink() or not output.is_dir() or any(output.iterdir())):
        raise OutputError(f"{output} is there already; expected a new folder; give another by -o, or remove that one")


@contextmanager
def _staging(output: Path) -> Iterator[Path]:
    """Make or take the folder that is written, for one process alone."""
    staging = output.with_name(f".{output.name}.packing")
    try:
        staging.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(staging / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise OutputError(
            f"{staging}: {error.strerror or error}; expected a folder that can be written, in which files lie until "
            "all are whole; remove what is there, or give another place by -o"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(f"{output}: another `aot pack` writes it; wait for that, or give another -o") from error
        yield staging
    finally:
        os.close(descriptor)
        with suppress(OSError):  # there is more than the lock: it is kept for the next run
            if {x.name for x in staging.iterdir()} <= {_LOCK, _PLAN}:
                shutil.rmtree(staging)


def _fingerprint(request: Request, checkpoint: Checkpoint, tasks: Sequence[Task]) -> str:
    """Return what tells one run's files from another's: the checkpoint, the options, and what is in each file."""
    files = [(str(x.resolve()), x.stat().st_size, x.stat().st_mtime_ns) for x in checkpoint.files]
    heads = hashlib.sha256(b"".join(x.header for x in tasks)).hexdigest()
    asked = [VERSION, request.form, request.dtype, request.skip]
    return json.dumps([asked, checkpoint.quantization, files, [x.path.name for x in tasks], heads], default=str)


def _resume(staging: Path, fingerprint: str, tasks: Sequence[Task]) -> dict[str, Shard]:
    """Return the files that an earlier run has finished; of another run nothing stays."""
    plan = staging / _PLAN
    if not plan.is_file() or plan.read_text(encoding="utf-8") != fingerprint:
        for path in staging.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()
        write_whole(plan, fingerprint)
        return {}
    found = {}
    for task in tasks:
        with suppress(OSError, ValueError, TypeError):
            shard = Shard(**json.loads(_done(task).read_text(encoding="utf-8")))
            if task.path.stat().st_size == shard.num_bytes == task.num_bytes:
                found[task.path.name] = shard
    for path in staging.glob(f"*{PARTIAL}"):
        path.unlink()
    return found


def _done(task: Task) -> Path:
    return task.path.with_name(task.path.name + _DONE)


def _check_space(staging: Path, tasks: Sequence[Task]) -> None:
    needed, free = sum(x.num_bytes for x in tasks) + _SPARE_BYTES, shutil.disk_usage(staging).free
    if needed > free:
        raise ResourceError(
            f"{staging.parent}: {free:,} bytes of disk are free; expected {needed:,}; free some, or give another "
            "place by -o"
        )


def _nothing_first() -> None:
    """Prepare a process: there is nothing to."""


def _written(tasks: Sequence[Task], jobs: int) -> dict[str, Shard]:
    """Write files; what is finished when one fails stays for the next run."""
    shards: dict[str, Shard] = {}
    jobs = min(jobs, len(tasks))
    results = _in_processes(tasks, jobs) if jobs > 1 else ((x, write_shard(x)) for x in tasks)
    for task, result in results:
        if isinstance(result, Failed):
            raise result.error
        if isinstance(result, Died):
            raise ResourceError(
                f"{task.path}: the process that wrote it ended with {result.exit_code}; as a rule memory ran out: give "
                "a smaller --jobs, and run again, which carries on"
            )
        shards[task.path.name] = result
        write_whole(_done(task), json.dumps(asdict(result)))
    return shards


def _in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Shard | Failed | Died]]:
    pool: Pool[Task, Shard | Failed] = Pool(jobs, _nothing_first, (), write_shard)
    # The largest first, so that the last of all is small.
    yield from pool.run(sorted(tasks, key=lambda x: -x.num_bytes))


def _write_lists(staging: Path, checkpoint: Checkpoint, folder: PackedFolder) -> None:
    """Write what goes beside the files of tensors."""
    if checkpoint.path.is_dir():
        for path in sorted(checkpoint.path.iterdir()):
            is_list = path.name in {CONFIG, INDEX, MODELOPT, FILE, *OLDER} or path.name.endswith(".index.json")
            if path.suffix in COPIED and not is_list and _is_own(path) and path.stat().st_size <= MAX_COPIED_BYTES:
                shutil.copyfile(path, staging / path.name)
    if checkpoint.config:
        (form, _), *_ = Counter(x.format for x in folder.layers.values()).most_common(1)
        said = {"quant_method": PACKED, "version": folder.version, "format": form}  # of most layers, for `aot doctor`
        if all(x.experts for x in folder.layers.values()):
            said["of"] = OF_EXPERTS
        marked = checkpoint.config | {"quantization_config": said}
        write_whole(staging / CONFIG, json.dumps(marked, indent=2) + "\n")
    write_whole(staging / FILE, folder.text())


def _is_own(path: Path) -> bool:
    """Say whether a file lies in the checkpoint's folder, or in the cache of Hugging Face that it links to."""
    folder = path.parent.resolve()
    places = (folder, folder.parent.parent / _BLOBS)
    return path.is_file() and any(x in path.resolve().parents for x in places)


def _put_in_place(staging: Path, output: Path, tasks: Sequence[Task]) -> None:
    """Give the folder its name, without what was for this run alone."""
    for path in (*map(_done, tasks), staging / _PLAN, staging / _LOCK):
        path.unlink(missing_ok=True)
    if output.exists():
        output.rmdir()
    staging.rename(output)
