"""A checkpoint as it lies on the disk: which file has which tensor, and what its configuration says.

Only JSON and safetensors are read. Nothing of a checkpoint is executed, and no file outside of its folder is opened
that its index names.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.core.errors import CheckpointError
from aot.core.safetensors_file import SUFFIX, StoredTensor, read_header, short
from aot.core.strict_json import parse_json, read_content
from aot.models.quantization import stated_quantization

CONFIG, INDEX, WHOLE = "config.json", "model.safetensors.index.json", "model.safetensors"
MAX_FILE_NAME = 240
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint."""

    path: Path
    """The folder, or the file."""
    tensors: dict[str, StoredTensor]
    """By name, in the order in which they lie in the files."""
    config: dict[str, Any]
    """config.json; empty where there is none."""
    quantization: dict[str, Any]
    """Its `quantization_config`, or ModelOpt's; empty of weights of 16 bits, or where nothing says."""

    @property
    def files(self) -> list[Path]:
        """Return the files of tensors."""
        return sorted({Path(x.file) for x in self.tensors.values()})


def open_checkpoint(path: Path) -> Checkpoint:
    """Read what a checkpoint has, without its tensors.

    Args:
        path: a folder with config.json and files of safetensors, with an index or not; or one such file, of which
            config.json beside it says how it is quantised.

    Raises:
        CheckpointError: it has none, or files that are damaged, or an index that does not go with them.
    """
    if path.is_file():
        if path.suffix != SUFFIX:
            raise CheckpointError(
                f"{path}: it is no file {SUFFIX}; expected a folder with config.json and such files, or one of them; "
                "give the checkpoint's folder"
            )
        config = _json(path.with_name(CONFIG)) if path.with_name(CONFIG).is_file() else {}
        return Checkpoint(path, _in_order(read_header(path)), {}, _quantization(path.parent, config))
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: there is no such folder or file; expected a checkpoint; no model's name is loaded"
        )
    tensors = _indexed(path) if (path / INDEX).is_file() else _unindexed(path)
    config = _json(path / CONFIG) if (path / CONFIG).is_file() else {}
    return Checkpoint(path, _in_order(tensors), config, _quantization(path, config))


def _in_order(tensors: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    return {x.name: x for x in sorted(tensors.values(), key=lambda x: (x.file, x.start, x.name))}


def _json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_content(path).removeprefix(BOM_UTF8), is_finite=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; mend the file, or fetch it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: {short(found)}; expected an object; mend the file, or fetch it again")
    return found


def _indexed(folder: Path) -> dict[str, StoredTensor]:
    path = folder / INDEX
    places = _json(path).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{path}: weight_map is {short(places)}; expected files by tensors; fetch it again")
    headers: dict[str, dict[str, StoredTensor]] = {}
    for name, file in places.items():
        if not _is_plain(file):
            raise CheckpointError(
                f"{path}: {short(name)} is said to be in {short(file)}; expected the plain name of a file {SUFFIX} "
                "beside the index; other places are not read"
            )
        if file not in headers:
            headers[file] = read_header(folder / file)
        if name not in headers[file]:
            raise CheckpointError(
                f"{folder / file}: there is no tensor {short(name)}, as {INDEX} says; fetch both again"
            )
    return {name: headers[file][name] for name, file in places.items()}


def _is_plain(file: object) -> bool:
    """Say whether an index names a file of its own folder, and no other place."""
    is_name = isinstance(file, str) and file.endswith(SUFFIX) and file.isprintable() and len(file) <= MAX_FILE_NAME
    return is_name and not set("/\\") & set(str(file)) and not str(file).startswith(".")


def _unindexed(folder: Path) -> dict[str, StoredTensor]:
    files = [folder / WHOLE] if (folder / WHOLE).is_file() else sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        pickles = sorted(x.name for kind in _PICKLES for x in folder.glob(kind))
        has = f"it has {short(', '.join(pickles))}, which can execute code and is not read" if pickles else "none"
        raise CheckpointError(
            f"{folder}: no files {SUFFIX} ({has}); expected some; fetch the checkpoint as safetensors, or save it so"
        )
    found: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_header(file).items():
            if name in found:
                raise CheckpointError(
                    f"{file}: {short(name)} is in {found[name].file} too; expected it once; remove one, or add {INDEX}"
                )
            found[name] = tensor
    return found


def _quantization(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    found = stated_quantization(config, lambda name: _json(folder / name) if (folder / name).is_file() else None)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{folder}: the quantization is {short(found)}; expected an object; fetch {CONFIG} again")
    return found
