"""Weights as checkpoints hold them, taken apart into codes, factors and zero points.

Each function takes the tensors of one Linear by the names that they have in a checkpoint, as numpy arrays: int32 words
are read as unsigned, and floats of 16 and 8 bits as their bits. What a format cannot say is refused, not approximated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.errors import FormatError
from aot.core.weight_format import BLOCK_K, INT4_OFFSET, MXFP4, NVFP4, WeightFormat, WeightParts, format_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[Any]

PER_WORD = 8
"""Codes of 4 bits in a word of 32."""

INPUT_SCALES = (
    *("input_scale", "input_global_scale", "input_zero_point", "input_scale_ub", "output_scale", "output_zero_point"),
    *("activation_scale", "k_scale", "v_scale", "kv_scale", "q_scale", "k_proj_scale", "v_proj_scale", "prob_scale"),
)
"""Factors of activations and of their caches, which most products do not take: inputs stay in 16 bits, or are rounded
by their own rows. Those of inputs in NVFP4 `aot.checkpoint.stored` keeps for the products that do."""

GPTQ_LAST_ZERO = 15
"""A zero point of GPTQ's first version, as it lies, that has no one meaning. Source: vLLM, q_gemm.cu (zeros + 1);
AutoGPTQ, qlinear_cuda_old.py ((zeros + 1) & 15); GPTQModel, convert_gptq_v1_to_v2_format (words + 0x11111111)."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns each place in a word has, from the lowest bits on. Source: vLLM, quant_utils.awq_pack;
AutoAWQ, the GEMM version."""


@dataclass(frozen=True)
class ReadWeight:
    """A weight (n, k) that was read."""

    form: WeightFormat
    parts: WeightParts
    factor: np.float32 | None = None
    """Of the whole weight, where the format has one."""


def from_gptq(qweight: Bits, qzeros: Bits, scales: Bits, g_idx: Bits | None = None, zero_offset: int = 1) -> ReadWeight:
    """Read a weight of GPTQ.

    Args:
        qweight: int32 (k / 8, n), eight codes along k in a word, the first in the lowest bits.
        qzeros: int32 (groups, n / 8), eight zero points, less `zero_offset`, along n in a word.
        scales: the factors' bits, uint16 (groups, n).
        g_idx: the group of each element along k, int32 (k), if they are not in order.
        zero_offset: 1 of the format's first version, 0 of its second, `gptq_v2`.

    Raises:
        FormatError: sizes do not fit each other, groups are not in order along k, or zero points of the first version
            are 15 as they lie, which libraries read differently.
    """
    codes = _nibbles(qweight.T).reshape(qweight.shape[1], -1)
    zeros = _nibbles(qzeros).reshape(len(qzeros), -1).T
    if zero_offset and (zeros == GPTQ_LAST_ZERO).any():
        raise FormatError(
            f"a zero point of GPTQ's first version is {GPTQ_LAST_ZERO} in qzeros; expected 0 to {GPTQ_LAST_ZERO - 1}: "
            "ExLlama and vLLM take it for 16, AutoGPTQ for 0, GPTQModel for a carry; save the checkpoint as gptq_v2"
        )
    check_order(g_idx, codes.shape[1], len(scales), "g_idx")
    return _int4(codes, scales.T, zeros + np.uint8(zero_offset))


def check_order(order: Bits | None, k: int, groups: int, name: str) -> None:
    """Refuse groups that are not as many elements each, one behind the other, along k (FormatError).

    Args:
        order: the group of each element along k, int32 (k); None, of no elements, or all -1 (compressed-tensors, of a
            weight that was not reordered), where nothing says.
        k: elements along k.
        groups: how many factors a row has.
        name: what the tensor is called.
    """
    if order is None or not order.size or (order.view(f"i{order.itemsize}") == -1).all():
        return
    if order.shape != (k,) or not groups or k % groups or not np.array_equal(order, np.arange(k) // (k // groups)):
        raise FormatError(
            f"{name} does not count {groups} groups of the same size along k, as of a weight that was quantised in "
            "another order (desc_act) or whose k is no multiple of the group; expected 0 to the last group in order; "
            "take a checkpoint with desc_act false"
        )


def from_awq(qweight: Bits, qzeros: Bits, scales: Bits) -> ReadWeight:
    """Read a weight of AWQ, the GEMM version.

    Args:
        qweight: int32 (k, n / 8), eight codes along n in a word, in `AWQ_ORDER`.
        qzeros: int32 (groups, n / 8), zero points likewise.
        scales: the factors' bits, uint16 (groups, n).

    Raises:
        FormatError: sizes do not fit each other.
    """
    return _int4(_awq(qweight), scales.T, _awq(qzeros))


def from_compressed_int4(
    weight_packed: Bits,
    weight_scale: Bits,
    weight_zero_point: Bits | None = None,
    weight_shape: tuple[int, ...] | None = None,
    weight_g_idx: Bits | None = None,
) -> ReadWeight:
    """Read a weight of compressed-tensors' pack-quantized with 4 bits.

    Args:
        weight_packed: int32 (n, k / 8), eight codes along k in a word, each larger by 8 than the number.
        weight_scale: the factors' bits, uint16 (n, groups).
        weight_zero_point: int32 (n / 8, groups), eight zero points along n in a word, larger by 8 too; None where all
            are 0.
        weight_shape: (n, k), if it is stated: words of codes of other than 4 bits are told by it.
        weight_g_idx: the group of each element along k, int32 (k), if they are not in order.

    Raises:
        FormatError: sizes do not fit each other, or groups are not in order along k.
    """
    codes = _nibbles(weight_packed).reshape(len(weight_packed), -1)
    if weight_shape is not None and tuple(weight_shape) != codes.shape:
        raise FormatError(
            f"weight_packed has {codes.shape} codes of 4 bits, and weight_shape says {tuple(weight_shape)}; expected "
            "the same, as of a weight of 4 bits; quantise it to 4 bits, or read the checkpoint's tensors again"
        )
    check_order(weight_g_idx, codes.shape[1], weight_scale.shape[-1], "weight_g_idx")
    zeros = None
    if weight_zero_point is not None:
        unpacked = _nibbles(weight_zero_point).transpose(0, 2, 1)
        zeros = unpacked.reshape(-1, weight_zero_point.shape[1])[: len(codes)]
    return _int4(codes, weight_scale, zeros)


def from_nvfp4(weight: Bits, weight_scale: Bits, factor: float) -> ReadWeight:
    """Read a weight of NVFP4, as ModelOpt and compressed-tensors have it.

    Args:
        weight: uint8 (n, k / 2), two codes along k in a byte, the first in the lower bits.
        weight_scale: e4m3 factors' bits, uint8 (n, k / 16), row by row.
        factor: what the weight is multiplied by: ModelOpt's weight_scale_2, or 1 / weight_global_scale of
            compressed-tensors, which divides.

    Raises:
        FormatError: sizes do not fit each other.
    """
    codes = _halves(weight)
    _check_groups("weight_scale", weight_scale, (len(codes), codes.shape[1] // NVFP4.group))
    return ReadWeight(NVFP4, WeightParts(codes, weight_scale), np.float32(factor))


def from_mxfp4(blocks: Bits, scales: Bits) -> ReadWeight:
    """Read a weight of MXFP4, as GPT-OSS has each of its experts'.

    Args:
        blocks: uint8 (n, k / 32, 16), two codes along k in a byte, the first in the lower bits.
        scales: ue8m0 factors, uint8 (n, k / 32).

    Raises:
        FormatError: sizes do not fit each other.
    """
    codes = _halves(blocks.reshape(len(blocks), -1))
    _check_groups("scales", scales, (len(codes), codes.shape[1] // MXFP4.group))
    return ReadWeight(MXFP4, WeightParts(codes, scales))


def _words(words: Bits) -> NDArray[np.uint32]:
    if words.dtype not in (np.int32, np.uint32) or words.ndim != 2:
        raise FormatError(f"packed codes are {words.dtype} of {words.shape}; expected words, int32, of two dimensions")
    return np.ascontiguousarray(words, "<u4")


def _nibbles(words: Bits) -> NDArray[np.uint8]:
    """Return the eight codes of each word, the lowest bits first, along a last axis."""
    return _halves(_words(words).view(np.uint8)).reshape(*words.shape, PER_WORD)


def _awq(words: Bits) -> NDArray[np.uint8]:
    """Return the codes (n, rows) of words (rows, n / 8), eight along n in each, in `AWQ_ORDER`."""
    across = _words(words.T)
    codes = np.empty((len(across), PER_WORD, across.shape[1]), np.uint8)
    for place, column in enumerate(AWQ_ORDER):
        codes[:, column] = across >> np.uint32(4 * place) & np.uint32(15)
    return codes.reshape(-1, across.shape[1])


def _halves(held: Bits) -> NDArray[np.uint8]:
    """Return the two codes of each byte of rows, the lower bits first."""
    if held.dtype != np.uint8:
        raise FormatError(f"packed codes are {held.dtype} of {held.shape}; expected bytes, uint8")
    codes = np.empty((*held.shape, 2), np.uint8)
    codes[..., 0], codes[..., 1] = held & 15, held >> 4
    return codes.reshape(len(held), -1)


def _check_groups(name: str, found: Bits, expected: tuple[int, int]) -> None:
    if found.shape != expected:
        raise FormatError(f"{name} is of {found.shape}; expected {expected}, a factor for each group of a row")


def _int4(codes: Bits, factors: Bits, zeros: Bits | None) -> ReadWeight:
    """Choose the format by the groups that factors have, without zero points where all of them are 8.

    Groups that are several times the widest format's have its groups, whose factors are the same.
    """
    (n, k), groups = codes.shape, factors.shape[1]
    group = k // groups if groups and k % groups == 0 else 0
    if len(factors) != n or (group not in {32, 64} and (not group or group % BLOCK_K)):
        raise FormatError(
            f"factors are of {factors.shape} for codes of {codes.shape}; expected {n} rows, and groups of 32, 64 or a "
            "multiple of 128 along k"
        )
    if zeros is not None:
        _check_groups("zero points", zeros, (n, groups))
    if group > BLOCK_K:
        factors = np.repeat(factors, group // BLOCK_K, 1)
        zeros = None if zeros is None else np.repeat(zeros, group // BLOCK_K, 1)
        group = BLOCK_K
    held = np.ascontiguousarray(factors)
    if zeros is None or bool((zeros == INT4_OFFSET).all()):
        return ReadWeight(format_named(f"int4g{group}"), WeightParts(np.ascontiguousarray(codes), held))
    parts = WeightParts(np.ascontiguousarray(codes), held, np.ascontiguousarray(zeros))
    return ReadWeight(format_named(f"int4g{group}z"), parts)
