"""What a checkpoint is made of: its Linears, how their weights lie, and what else there is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from aot.core.errors import CheckpointError
from aot.core.safetensors_file import short
from aot.core.weight_checkpoints import INPUT_SCALES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.packed_folder import PackedLayer
    from aot.core.safetensors_file import StoredTensor

EXPERT_ENDS = ("_blocks", "_scales")
"""How the names of GPT-OSS's experts end: codes, and factors. Source: openai/gpt-oss-20b,
model.safetensors.index.json."""
TELLS = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv", *EXPERT_ENDS)
"""How the name of a tensor of a checkpoint ends that is quantised, whatever its configuration says."""
WIDE = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""Types of a weight that is not quantised."""
BESIDE = ("bias",)
"""What a quantised weight may have beside it that is copied."""
CALIBRATED = {"input_scale": False, "input_global_scale": True}
"""What has the own factor of a Linear's inputs in NVFP4, and whether it is what these are divided by. Source: NVIDIA
ModelOpt, NVFP4QTensor.get_activation_scaling_factor; compressed-tensors, generate_gparam."""
NO_ZEROS = ("weight_zero_point",)
"""What is dropped where all of it is 0, and changes what the weight stands for where it is not."""


class Stored(Enum):
    """How a weight lies in a checkpoint."""

    GPTQ = "gptq"
    AWQ = "awq"
    INT4 = "compressed-tensors int4"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    EXPERTS = "mxfp4 of experts"
    """All experts' in one tensor, as GPT-OSS has them."""
    BYTES = "elements of 8 bits"
    """FP8 or int8, with factors of all, of rows or of blocks."""
    WIDE = "16 bits"


@dataclass(frozen=True)
class StoredLayer:
    """A Linear of a checkpoint, or a stack of experts' weights, and what it is packed as."""

    name: str
    stored: Stored
    packed: PackedLayer
    tensors: dict[str, StoredTensor]
    """Those that are read, by the ends of their names."""
    zero_offset: int = 0
    """What is added to zero points as they lie."""
    linears: tuple[StoredLayer, ...] = ()
    """Of a stack the weights of its experts, where the checkpoint has them as Linears."""
    halves: tuple[StoredLayer, ...] = ()
    """Of an expert's weight, gate and linear half, whose rows it has in turns, where the checkpoint has them apart."""
    is_in_stack: bool = False
    """Whether float32 factors are those of a stack's weight, one for each row."""

    @property
    def is_quantised(self) -> bool:
        """Say whether the checkpoint has it quantised; else it is rounded."""
        return self.stored is not Stored.WIDE

    @property
    def numel(self) -> int:
        """Return the elements of the weight."""
        return self.packed.numel

    @property
    def matrices(self) -> tuple[StoredLayer, ...]:
        """Return the weights of a stack, each as a Linear's; of a Linear itself."""
        if not self.packed.experts:
            return (self,)
        if self.linears:
            return self.linears
        packed = replace(self.packed, shape=self.packed.matrix)
        return tuple(
            StoredLayer(self.name, Stored.MXFP4, packed, {end: x.matrix(i) for end, x in self.tensors.items()})
            for i in range(*self.packed.experts)
        )


@dataclass(frozen=True)
class StackedTensor:
    """A tensor (experts, n) of vectors of each expert: of one, or of two whose elements are in turns."""

    name: str
    vectors: tuple[tuple[StoredTensor, ...], ...]

    @property
    def dtype(self) -> str:
        """Return the type, which all of them have."""
        return self.vectors[0][0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the experts, and the elements of each."""
        return len(self.vectors), sum(x.shape[0] for x in self.vectors[0])

    @property
    def place(self) -> tuple[str, int]:
        """Return where the first of them begins."""
        return min(x.place for those in self.vectors for x in those)

    def content(self) -> bytes:
        """Return its bytes."""
        return b"".join(np.stack([x.bits() for x in those], 1).tobytes() for those in self.vectors)


@dataclass(frozen=True)
class Found:
    """What a checkpoint is made of."""

    layers: tuple[StoredLayer, ...]
    plain: tuple[StoredTensor | StackedTensor, ...]
    """Tensors that are copied as they are."""
    left: dict[str, str]
    """Those among them that are quantised, or were asked to be, and why they are left; and what is dropped."""


CONSUMED: dict[Stored, tuple[str, ...]] = {
    Stored.GPTQ: ("qweight", "qzeros", "scales", "g_idx"),
    Stored.AWQ: ("qweight", "qzeros", "scales"),
    Stored.INT4: ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    Stored.NVFP4: ("weight_packed", "weight", "weight_scale", "weight_scale_2", "weight_global_scale", "weight_shape"),
    Stored.MXFP4: ("weight_packed", "weight", "weight_scale", "weight_shape"),
    Stored.EXPERTS: ("blocks", "scales"),
    Stored.BYTES: ("weight", "weight_scale", "weight_scale_inv"),
    Stored.WIDE: ("weight",),
}
"""Tensors that a packed layer takes the place of."""


def input_scale_of(tensors: Mapping[str, StoredTensor]) -> float | None:
    """Return the own factor by which a calibration rounds a Linear's inputs to NVFP4; None where there is none.

    Args:
        tensors: the Linear's, by the ends of their names.
    """
    for end, is_divisor in CALIBRATED.items():
        stored = tensors.get(end)
        if stored is None or stored.dtype != "F32" or stored.shape not in ((), (1,)):
            continue
        with np.errstate(divide="ignore", over="ignore"):
            value = stored.bits().reshape(()).view(np.float32).astype(np.float64)
            found = float(np.float32(1 / value if is_divisor else value))
        return found if isfinite(found) and found > 0 else None
    return None


def rest_of(
    tensors: Mapping[str, StoredTensor], layer: StoredLayer | None, left: dict[str, str], is_quantised: bool
) -> list[StoredTensor]:
    """Return what is copied of a module: what is not packed, nor a factor of activations.

    Args:
        tensors: the module's, by the ends of their names.
        layer: what is packed of them, if anything is.
        left: gets what is left or dropped, and why.
        is_quantised: whether the checkpoint is: of one that is not, all is the model's own.

    Raises:
        CheckpointError: a quantised weight has something beside it that is not known, by which its product is another.
    """
    taken = CONSUMED[layer.stored] if layer is not None else ()
    if layer is not None and layer.packed.input_scale is not None:
        taken = (*taken, *CALIBRATED)
    found = {end: x for end, x in tensors.items() if end not in taken}
    for end in [x for x in found if x in INPUT_SCALES and is_quantised]:
        left[found.pop(end).name] = "dropped: a factor of activations, which these products round by themselves"
    if layer is not None and layer.is_quantised:
        for end in [x for x in found if x in NO_ZEROS and not found[x].bits().any()]:
            left[found.pop(end).name] = "dropped: zero points that are all 0"
        _refuse_unknown(layer, [x for end, x in found.items() if end not in BESIDE])
    return list(found.values())


def _refuse_unknown(layer: StoredLayer, tensors: list[StoredTensor]) -> None:
    if tensors:
        raise CheckpointError(
            f"{tensors[0].file}: {'; '.join(x.text for x in tensors)}, beside a weight of {layer.stored.value}; "
            f"expected nothing but {', '.join(BESIDE)}, for the product by the weight alone may be another; fold it "
            f"into the weight, or leave that by --skip {short(layer.name)}"
        )
