"""A folder of packed weights: what `aot pack` writes and `load_quantized` reads, and its list, `aot-packed.json`.

The folder has files of safetensors and a configuration, as other checkpoints have. A packed Linear's
tensors are those of a wheel's QuantizedLinear: `NAME.qweight`, `NAME.scale` and, where it has one, `NAME.bias`. Weights
of a mixture's experts that the checkpoint has as one stack are packed as one, with the experts in front: those of a
wheel's QuantizedExperts. The list says which these are, in which format, and the SHA-256 of each file. A wheel has this
module too.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.core.errors import CheckpointError, FormatError
from aot.core.safetensors_file import SUFFIX, short
from aot.core.weight_format import FORMATS, PackedLayout, WeightFormat

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = "aot-packed.json"
VERSION = 2
"""Of the list, and of the layout of packed bytes that it speaks of."""
WITHOUT_INPUTS = 1
"""The version of a list that has no `input_scale`, as which such a list is still written."""
OF_EXPERTS = "experts"
"""What the configuration beside the list says that the format is of, where stacks of experts alone are packed."""
SCALE_BLOCK = 128
"""Rows and columns that a factor of `fp8_block` is of. Source: DeepSeek-V3 technical report, section 3.3.2."""
MAX_BYTES = 2**28
HASH_BYTES = 2**22
"""That are hashed at once."""
FLOATS = {"bfloat16": "BF16", "float16": "F16"}
"""Types of factors of 16 bits, by torch's name: as safetensors names them."""
ROW_FORMATS = {"fp8": "F8_E4M3", "int8": "I8", "fp8_block": "F8_E4M3"}
"""Formats whose elements lie as torch has them: the type of `qweight`."""
OTHER_NAMES = {"int8": "int8_weight_only", "e4m3": "fp8_weight_only"}
"""Names of packed formats whose own ones stand for products with narrow inputs too."""
PACKED_FORMATS = {OTHER_NAMES.get(x.name, x.name): x for x in FORMATS}
FORMAT_NAMES = (*ROW_FORMATS, *PACKED_FORMATS)
_HASH = re.compile("[0-9a-f]{64}")
_SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors")
_PACK = "pack the checkpoint again by `aot pack`"


@dataclass(frozen=True)
class PackedLayer:
    """A Linear whose weight is packed, or a stack of the weights of a mixture's experts."""

    format: str
    """As `quantize` of a model names it."""
    shape: tuple[int, ...]
    """(n, k), or of a stack (experts, n, k)."""
    dtype: str | None = None
    """Of factors of 16 bits, and so of x, as torch names it; None where the format has none."""
    input_scale: float | None = None
    """The own factor, a float32 number, by which a calibration would have inputs rounded to the format, where products
    may do so; None where the checkpoint has none."""

    @property
    def rounds_inputs(self) -> bool:
        """Say whether products with inputs in NVFP4 take the weight too, so that it may have an input_scale."""
        return self.form is not None and self.form.in_rows and self.form.is_nvfp4

    @property
    def form(self) -> WeightFormat | None:
        """Return the packed format; None of those that lie as torch has them."""
        return PACKED_FORMATS.get(self.format)

    @property
    def matrix(self) -> tuple[int, int]:
        """Return (n, k), of a stack those of each weight."""
        n, k = self.shape[-2:]
        return n, k

    @property
    def experts(self) -> tuple[int, ...]:
        """Return how many weights a stack has, as a shape that stands in front of theirs; none of a Linear."""
        return self.shape[:-2]

    @property
    def numel(self) -> int:
        """Return the elements of the weight."""
        return prod(self.shape)

    def check(self) -> None:
        """Refuse extents that the format has not (FormatError)."""
        n, k = self.matrix
        if self.form is not None:
            self.form.check(n, k)
        elif n < 1 or k < 1:
            raise FormatError(f"a weight of {n} x {k} cannot be packed as {self.format}: expected a row and a column")

    @property
    def tensors(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Return the ends of the names, the types and the shapes of its tensors, but for a bias."""
        n, k = self.matrix
        if self.form is None:
            scale = (n,) if self.experts else (n, 1)
            if self.format == "fp8_block":
                scale = (-(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK))
            return ("qweight", ROW_FORMATS[self.format], self.shape), ("scale", "F32", (*self.experts, *scale))
        factors: tuple[int, ...] = (0,)
        if self.form.has_row_factors:
            factors = (*self.experts, n) if self.experts or not self.form.group else (1,)
        return ("qweight", "U8", (*self.experts, *PackedLayout(self.form).shape(n, k))), ("scale", "F32", factors)


def name_of(layer: str, end: str) -> str:
    """Return the name of a tensor of a module, of which that of a model that is one Linear is empty."""
    return f"{layer}.{end}" if layer else end


@dataclass(frozen=True)
class Shard:
    """A file of the folder."""

    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class PackedFolder:
    """What the list of a folder says."""

    version: int
    source: str
    """What the checkpoint was, such as `awq`."""
    layers: dict[str, PackedLayer]
    left: dict[str, str]
    """Linears, or tensors, that stay as the checkpoint has them though others of their kind do not, and why."""
    shards: dict[str, Shard]

    def text(self) -> str:
        """Return the list as it is written."""
        document = asdict(self)
        if self.version == WITHOUT_INPUTS:
            for layer in document["layers"].values():
                del layer["input_scale"]
        return json.dumps(document, indent=1) + "\n"


def version_of(layers: Iterable[PackedLayer]) -> int:
    """Return the least version of a list that can say all of its layers."""
    return VERSION if any(x.input_scale is not None for x in layers) else WITHOUT_INPUTS


def read_folder(folder: Path) -> PackedFolder:
    """Read a folder's list.

    Raises:
        CheckpointError: it is missing, damaged or of another version.
    """
    path = folder / FILE
    if path.exists() and not path.is_file():  # a pipe would never end
        raise CheckpointError(f"{path}: it is no regular file; expected the list that `aot pack` writes; {_PACK}")
    try:
        content = path.read_bytes() if path.stat().st_size <= MAX_BYTES else b""
        document = json.loads(content.decode())
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error.strerror or error}; expected a folder that `aot pack` wrote; pack the checkpoint first"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: no JSON: {ascii(str(error))[1:-1][:200]}; {_PACK}") from error
    return _Reader(path).folder(document)


class _Reader:
    """Checks a list, key by key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse(self, what: str, got: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what} is {short(got)}; expected {expected}; {_PACK}")

    def record(self, what: str, value: Any, keys: tuple[str, ...]) -> list[Any]:
        if not isinstance(value, dict) or set(value) != set(keys):
            raise self.refuse(what, value, f"an object of {', '.join(keys)}")
        return [value[key] for key in keys]

    def table(self, what: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(what, value, "an object")
        return value

    def folder(self, document: Any) -> PackedFolder:
        version = document.get("version") if isinstance(document, dict) else None
        if version not in (WITHOUT_INPUTS, VERSION) or type(version) is not int:
            raise self.refuse("version", version, f"{WITHOUT_INPUTS} or {VERSION}, which this version reads")
        keys = ("version", "source", "layers", "left", "shards")
        _, source, layers, left, shards = self.record("the list", document, keys)
        if not isinstance(source, str):
            raise self.refuse("source", source, "a text")
        reasons = self.table("left", left)
        if not all(isinstance(x, str) for x in reasons.values()):
            raise self.refuse("left", left, "reasons by names")
        return PackedFolder(
            version,
            source,
            {name: self.layer(name, x, version) for name, x in self.table("layers", layers).items()},
            reasons,
            {name: self.shard(name, x) for name, x in self.table("shards", shards).items()},
        )

    def layer(self, name: str, value: Any, version: int) -> PackedLayer:
        keys = ("format", "shape", "dtype") + ("input_scale",) * (version != WITHOUT_INPUTS)
        form, shape, dtype, *rest = self.record(f"layer {short(name)}", value, keys)
        if not isinstance(form, str) or form not in FORMAT_NAMES:
            raise self.refuse(f"the format of {short(name)}", form, f"one of {', '.join(FORMAT_NAMES)}")
        are_extents = isinstance(shape, list) and all(type(x) is int and 0 < x < 2**31 for x in shape)
        if not are_extents or len(shape) not in (2, 3):
            raise self.refuse(f"the shape of {short(name)}", shape, "[n, k], or [experts, n, k]")
        packed = PACKED_FORMATS.get(form)
        has_dtype = packed is not None and packed.factor_bits == 16
        if (dtype is not None) != has_dtype or (has_dtype and dtype not in tuple(FLOATS)):
            expected = " or ".join(FLOATS) if has_dtype else "null, for its factors are of no type of x's"
            raise self.refuse(f"the dtype of {short(name)}", dtype, expected)
        layer = PackedLayer(form, tuple(shape), dtype, *rest)
        self.check_input_scale(name, layer)
        try:
            layer.check()
        except FormatError as error:
            raise CheckpointError(f"{self.path}: {short(name)}: {error}") from error
        return layer

    def check_input_scale(self, name: str, layer: PackedLayer) -> None:
        scale = layer.input_scale
        if scale is not None and not (type(scale) is float and isfinite(scale) and scale > 0 and layer.rounds_inputs):
            is_taken = layer.rounds_inputs
            expected = "a positive number" if is_taken else f"null, for no inputs are rounded to {layer.format}"
            raise self.refuse(f"the input_scale of {short(name)}", scale, expected)

    def shard(self, name: str, value: Any) -> Shard:
        if not _SHARD.fullmatch(name):
            raise self.refuse("a file's name", name, f"a plain name that ends with {SUFFIX}")
        digest, count = self.record(f"file {short(name)}", value, ("sha256", "num_bytes"))
        if not isinstance(digest, str) or not _HASH.fullmatch(digest):
            raise self.refuse(f"the sha256 of {short(name)}", digest, "64 hexadecimal digits")
        if type(count) is not int or count < 0:
            raise self.refuse(f"num_bytes of {short(name)}", count, "a whole number")
        return Shard(digest, count)


def check_shard(path: Path, expected: Shard) -> None:
    """Refuse a file that is not the one that was written (CheckpointError)."""
    digest, count = hashlib.sha256(), 0
    try:
        with path.open("rb", buffering=0) as file:
            while part := file.read(HASH_BYTES):
                digest.update(part)
                count += len(part)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}; fetch the folder again, or pack anew") from error
    if (digest.hexdigest(), count) != (expected.sha256, expected.num_bytes):
        raise CheckpointError(
            f"{path}: {count} bytes of SHA-256 {digest.hexdigest()}; expected {expected.num_bytes} of "
            f"{expected.sha256}, as {FILE} says; fetch the file again, or pack anew"
        )
