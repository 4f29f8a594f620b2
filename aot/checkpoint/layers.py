"""The weights of a checkpoint that can be packed: which tensors are theirs, in which layout, to which format.

A layout is told by the ends of the tensors' names and by their types; the configuration says what these do not, and is
refused where it names a method that is not known.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.checkpoint.experts import STACKED, alike, is_wide_stack, owner_of, restacked, stack_of, stacked_biases
from aot.checkpoint.methods import Method, method_of
from aot.checkpoint.stored import TELLS, WIDE, Found, Stored, StoredLayer, input_scale_of, rest_of
from aot.core.errors import CheckpointError, FormatError
from aot.core.packed_folder import FLOATS, PACKED_FORMATS, SCALE_BLOCK, PackedLayer
from aot.core.safetensors_file import StoredTensor, short
from aot.core.weight_checkpoints import PER_WORD, check_order
from aot.core.weight_format import BLOCK_K, INT4_OFFSET, MXFP4, NVFP4, Code, WeightFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aot.checkpoint.source import Checkpoint

KEPT = ("lm_head", "*.lm_head", "*embed*", "wte", "wpe", "*.wte", "*.wpe", "*.gate", "*router*", "*norm*", "*.rotary*")
"""Matrices that are not rounded unless they are named: embeddings, heads and the routers of experts."""
FACTOR_ENDS = ("_weight_scale", "_scale_inv", "_scale", "_scales")
"""What is behind the name of a stack of experts in that of its factors. Source: transformers, integrations of
fine-grained FP8; NVIDIA ModelOpt, export of Llama 4."""


def _check_skipped(checkpoint: Checkpoint, skip: Sequence[str], names: Iterable[str]) -> None:
    """Refuse a pattern that no module has the name of: what it was meant to leave would be packed."""
    known = sorted(x for x in names if x)
    for pattern in skip:
        if not any(fnmatchcase(x, pattern) for x in known):
            raise CheckpointError(
                f"{checkpoint.path}: --skip {short(pattern)} is the name of none of its {len(known)} modules; expected "
                f"one, or a pattern of some, with * for any text; they are {short(', '.join(known) or 'none')}"
            )


def find_layers(
    checkpoint: Checkpoint, *, form: str | None = None, dtype: str | None = None, skip: Sequence[str] = ()
) -> Found:
    """Say what is packed of a checkpoint, and what copied.

    Args:
        checkpoint: the checkpoint.
        form: the format that matrices of 16 bits are rounded to; None where they are left. Of a checkpoint that is
            quantised, one of the same codes and factors in another layout, as `nvfp4rows` is.
        dtype: the type that factors of 16 bits get; by default their own.
        skip: patterns of names that are left.

    Raises:
        CheckpointError: it is quantised in a way that is not known, lacks tensors, or they do not go together; or
            it has nothing that a pattern of `skip` names.
    """
    try:
        method = method_of(checkpoint.quantization)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from error
    groups: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for tensor in checkpoint.tensors.values():
        prefix, end = owner_of(tensor.name, checkpoint.tensors)
        groups[prefix][end] = tensor
    if not any(x.endswith(TELLS) for x in checkpoint.tensors):
        method = Method("")  # whatever the configuration still says, the weights are wide again
    layout = PACKED_FORMATS.get(form or "") if method.name else None
    if form is not None and method.name and (layout is None or not layout.in_rows):
        raise CheckpointError(
            f"{checkpoint.path}: it is quantised already ({method.name}), and --format {form} rounds weights of 16 "
            "bits; leave --format away"
        )
    _check_skipped(checkpoint, skip, groups)
    layers: dict[str, StoredLayer] = {}
    left: dict[str, str] = {}
    for prefix, tensors in groups.items():
        chosen = not _is_skipped(prefix, skip)
        try:
            layer = _packed_as(prefix, tensors, method, form, dtype, left) if chosen else None
        except CheckpointError as error:
            raise CheckpointError(f"{next(iter(tensors.values())).file}: {error}") from error
        if layer is not None:
            layers[prefix] = layer
    if layout is not None and layers and not any(x.packed.form is layout for x in layers.values()):
        raise _of_other_elements(next(iter(layers.values())), layout)
    layers = alike(layers)
    stacks = restacked(layers, checkpoint.config.get("model_type"))
    layers |= stacks.members
    is_quantised = bool(method.name) or any(x.is_quantised for x in layers.values())
    plain = [x for name, held in groups.items() for x in rest_of(held, layers.get(name), left, is_quantised)]
    _refuse_unread([x for x in plain if not _is_skipped(owner_of(x.name, checkpoint.tensors)[0], skip)], checkpoint)
    left |= {x.name: STACKED for x in plain if form is not None and is_wide_stack(x)}
    apart = (x for name, x in layers.items() if name not in stacks.members)
    return Found((*apart, *stacks.stacks), stacked_biases(stacks, plain), left)


def _is_skipped(name: str, skip: Sequence[str]) -> bool:
    return any(fnmatchcase(name, x) for x in skip)


def _refuse_unread(plain: Iterable[StoredTensor], checkpoint: Checkpoint) -> None:
    """Refuse narrow weights that are in no known layout, which would be copied to where nothing reads them."""
    for tensor in plain:
        beside = [x for end in FACTOR_ENDS if (x := f"{tensor.name}{end}") in checkpoint.tensors]
        if len(tensor.shape) > 1 and (tensor.dtype.startswith("F8") or (tensor.dtype in ("U8", "I8") and beside)):
            has = f", beside {', '.join(map(short, beside))}" if beside else ""
            owner, _ = owner_of(tensor.name, checkpoint.tensors)
            raise CheckpointError(
                f"{tensor.file}: {tensor.text}{has}; expected weights of Linears, or GPT-OSS's blocks of experts: no "
                f"other narrow ones are read; quantise experts as Linears, or leave it by --skip {short(owner)}"
            )


def _packed_as(
    name: str,
    tensors: Mapping[str, StoredTensor],
    method: Method,
    form: str | None,
    dtype: str | None,
    left: dict[str, str],
) -> StoredLayer | None:
    """Return a layer that is quantised, or is to be; None where it is copied."""
    layer = stack_of(name, tensors) if "blocks" in tensors else _layer(name, tensors, method, dtype)
    if form is None:
        return layer
    if not method.name:
        return layer or _wide(name, tensors, form, dtype, left)
    return layer and _laid_out(layer, PACKED_FORMATS[form], tensors)


def _of_other_elements(layer: StoredLayer, layout: WeightFormat) -> CheckpointError:
    return CheckpointError(
        f"{layer.tensors[min(layer.tensors)].file}: {short(layer.name)} is {layer.packed.format}, and --format "
        f"{layout.name} is a layout of {layout.elements}, which no weight has; leave --format away"
    )


def _laid_out(layer: StoredLayer, layout: WeightFormat, tensors: Mapping[str, StoredTensor]) -> StoredLayer:
    """Return a quantised layer in another layout of its own codes and factors, which takes rounded inputs too.

    One of other elements stays as it is, for the modules of a checkpoint may have formats of their own.
    """
    own = layer.packed.form
    if own is None or own.elements != layout.elements:
        return layer
    packed = replace(layer.packed, format=layout.name)
    own_scale = input_scale_of(tensors) if packed.rounds_inputs else None
    return replace(layer, packed=replace(packed, input_scale=own_scale))


def _layer(name: str, tensors: Mapping[str, StoredTensor], method: Method, dtype: str | None) -> StoredLayer | None:
    """Return a layer that is quantised; None where it is not."""
    weight = tensors.get("weight")
    if "qweight" in tensors:
        return _words(name, tensors, method, dtype)
    if "weight_packed" in tensors:
        if tensors["weight_packed"].dtype == "I32":
            return _compressed_int4(name, tensors, method, dtype)
        return _of_halves(name, tensors, "weight_packed", "weight_global_scale")
    if weight is None or not {"weight_scale", "weight_scale_inv"} & set(tensors):
        if weight is not None and weight.dtype.startswith("F8"):
            raise _lacks(name, "weight_scale or weight_scale_inv", tensors)
        return None
    if weight.dtype == "U8":
        return _of_halves(name, tensors, "weight", "weight_scale_2")
    return _bytes(name, tensors, method)


def _lacks(name: str, end: str, tensors: Mapping[str, StoredTensor]) -> CheckpointError:
    has = ", ".join(sorted(tensors))
    return CheckpointError(f"{short(name)} has no {end}; it has {short(has)}; fetch the checkpoint's files again")


def _need(name: str, tensors: Mapping[str, StoredTensor], end: str, dims: int, dtypes: Sequence[str]) -> StoredTensor:
    found = tensors.get(end)
    if found is None:
        raise _lacks(name, end, tensors)
    if len(found.shape) != dims or found.dtype not in dtypes:
        raise CheckpointError(
            f"{found.text}; expected {' or '.join(dtypes)} of {dims} dimensions; no known layout has it"
        )
    return found


def _expect(tensor: StoredTensor, shapes: Sequence[tuple[int, ...]]) -> None:
    if tensor.shape not in shapes:
        expected = " or ".join(str(x) for x in dict.fromkeys(shapes))
        raise CheckpointError(f"{tensor.text}; expected {expected}, as its weight has it; fetch the checkpoint again")


def _layer_of(
    name: str, stored: Stored, form: str, shape: tuple[int, int], dtype: str | None, **rest: Any
) -> StoredLayer:
    packed = PackedLayer(form, shape, dtype)
    try:
        packed.check()
    except FormatError as error:
        raise CheckpointError(f"{short(name)}: {error}; or leave it by --skip {short(name)}") from error
    return StoredLayer(name, stored, packed, **rest)


def _factor_dtype(scales: StoredTensor, dtype: str | None) -> str:
    """Return the type of int4's factors: as asked for, or their own."""
    if dtype is None and scales.dtype not in FLOATS.values():
        raise CheckpointError(
            f"{scales.text}; expected factors of {' or '.join(FLOATS)}; say which they are rounded to by --dtype"
        )
    return dtype or next(x for x, name in FLOATS.items() if name == scales.dtype)


def _int4_form(name: str, k: int, groups: int, stated: int, has_zeros: bool) -> str:
    """Return the format of int4 by the number of groups; larger groups than a format's are several of its own."""
    if stated and k % stated and groups == -(-k // stated):
        raise CheckpointError(
            f"{short(name)}: {groups} groups along k {k}, of {stated} elements by the configuration, the last of "
            f"{k % stated}; expected k a multiple of the group; quantise it by such a group, or --skip {short(name)}"
        )
    group = k // groups if groups and k % groups == 0 else 0
    held = BLOCK_K if group and group % BLOCK_K == 0 else group
    form = f"int4g{held}{'z' if has_zeros else ''}"
    if form not in PACKED_FORMATS:
        raise CheckpointError(
            f"{short(name)}: {groups} groups along k {k}; expected groups of 32, 64 or a multiple of 128; quantise it "
            "so"
        )
    return form


def _words(name: str, tensors: Mapping[str, StoredTensor], method: Method, dtype: str | None) -> StoredLayer:
    """Read GPTQ's words (k / 8, n), or AWQ's (k, n / 8)."""
    method.check_words(name)
    words = _need(name, tensors, "qweight", 2, ("I32",))
    scales = _need(name, tensors, "scales", 2, (*FLOATS.values(), "F32"))
    zeros = _need(name, tensors, "qzeros", 2, ("I32",))
    groups, n = scales.shape
    is_gptq = words.shape[1] == n
    k = words.shape[0] * (PER_WORD if is_gptq else 1)
    if not is_gptq:
        _expect(words, [(k, n // PER_WORD)])
    _expect(zeros, [(groups, n // PER_WORD)])
    if n % PER_WORD or not groups:
        raise CheckpointError(f"{scales.text}; expected a multiple of {PER_WORD} columns, and groups of rows")
    if "g_idx" in tensors:
        _check_order(name, _need(name, tensors, "g_idx", 1, ("I32",)), k, groups)
    offset = _zero_offset(name, zeros, method) if is_gptq else 0
    has_zeros = bool((zeros.bits() != _words_of(INT4_OFFSET - offset)).any())
    form = _int4_form(name, k, groups, method.group, has_zeros)
    stored = Stored.GPTQ if is_gptq else Stored.AWQ
    held = {"qweight": words, "scales": scales, "qzeros": zeros}
    return _layer_of(name, stored, form, (n, k), _factor_dtype(scales, dtype), tensors=held, zero_offset=offset)


def _words_of(code: int) -> np.uint32:
    """Return a word of which each code is the same."""
    return np.uint32(sum(code << 4 * i for i in range(PER_WORD)))


def _zero_offset(name: str, zeros: StoredTensor, method: Method) -> int:
    """Return what GPTQ's zero points lack; where no configuration says, they are those of symmetric weights alone."""
    if method.zero_offset is not None:
        return method.zero_offset
    if (zeros.bits() == _words_of(INT4_OFFSET - 1)).all():
        return 1
    raise CheckpointError(
        f"{short(name)}: {short(zeros.name)} has zero points other than 7, and no configuration says of which version "
        "of GPTQ: the first holds them less by 1; expected quantization_config in config.json; fetch that file too"
    )


def _check_order(name: str, order: StoredTensor, k: int, groups: int) -> None:
    """Refuse groups in another order along k."""
    _expect(order, [(k,), (0,)])
    try:
        check_order(order.bits(), k, groups, short(order.name))
    except FormatError as error:
        raise CheckpointError(f"{short(name)}: {error}") from error


def _compressed_int4(name: str, tensors: Mapping[str, StoredTensor], method: Method, dtype: str | None) -> StoredLayer:
    if "weight_shape" not in tensors:
        method.check_words(name)
    words = _need(name, tensors, "weight_packed", 2, ("I32",))
    scales = _need(name, tensors, "weight_scale", 2, (*FLOATS.values(), "F32"))
    n, k, groups = words.shape[0], words.shape[1] * PER_WORD, scales.shape[1]
    if "weight_shape" in tensors or not method.name:
        stated = _need(name, tensors, "weight_shape", 1, ("I64", "I32")).bits().tolist()
        if stated != [n, k]:
            raise CheckpointError(
                f"{words.text}, and weight_shape says {short(stated)}; expected {[n, k]}, as of codes of 4 bits; "
                "quantise it to 4 bits, or fetch it again"
            )
    _expect(scales, [(n, groups)])
    if "weight_g_idx" in tensors:
        _check_order(name, _need(name, tensors, "weight_g_idx", 1, ("I32",)), k, max(groups, 1))
    held, has_zeros = {"weight_packed": words, "weight_scale": scales}, False
    if "weight_zero_point" in tensors:
        zeros = held["weight_zero_point"] = _need(name, tensors, "weight_zero_point", 2, ("I32",))
        _expect(zeros, [(-(-n // PER_WORD), groups)])
        has_zeros = bool((zeros.bits() != _words_of(INT4_OFFSET)).any())
    form = _int4_form(name, k, groups, method.group, has_zeros)
    return _layer_of(name, Stored.INT4, form, (n, k), _factor_dtype(scales, dtype), tensors=held)


def _of_halves(name: str, tensors: Mapping[str, StoredTensor], weight: str, whole: str) -> StoredLayer:
    """Read NVFP4, or MXFP4 where the factors are powers of two."""
    codes = _need(name, tensors, weight, 2, ("U8",))
    scales = _need(name, tensors, "weight_scale", 2, ("F8_E4M3", "U8", "F8_E8M0"))
    n, k = codes.shape[0], codes.shape[1] * 2
    stored, form = (Stored.NVFP4, NVFP4) if scales.dtype == "F8_E4M3" else (Stored.MXFP4, MXFP4)
    _expect(scales, [(n, k // form.group)])
    held = {weight: codes, "weight_scale": scales}
    if form is NVFP4:
        held[whole] = tensors.get(whole) or _need(name, tensors, whole, 1, ("F32",))
        _need(name, held, whole, len(held[whole].shape), ("F32",))
        _expect(held[whole], [(), (1,)])
    return _layer_of(name, stored, form.name, (n, k), None, tensors=held)


def _bytes(name: str, tensors: Mapping[str, StoredTensor], method: Method) -> StoredLayer:
    """Read FP8 or int8: factors of all, of rows, or of FP8 of blocks of 128 x 128."""
    weight = _need(name, tensors, "weight", 2, ("F8_E4M3", "I8"))
    end = "weight_scale" if "weight_scale" in tensors else "weight_scale_inv"
    scales, (n, k) = tensors[end], weight.shape
    _need(name, tensors, end, len(scales.shape), ("F32", *FLOATS.values()))
    blocks = (-(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK))
    of_rows: list[tuple[int, ...]] = [(), (1,), (1, 1), (n, 1), (n,)]
    of_blocks = [blocks, (blocks[0], 1, blocks[1], 1)]  # the second is ModelOpt's FP8_PB_WO
    is_fp8 = weight.dtype == "F8_E4M3"
    is_block = is_fp8 and scales.shape in of_blocks and scales.shape not in of_rows
    if not is_block:
        _expect(scales, [*of_rows, *of_blocks] if is_fp8 else of_rows)
    if is_block and method.block not in {(), (SCALE_BLOCK, SCALE_BLOCK)}:
        raise CheckpointError(
            f"{scales.text}, of blocks of {short(method.block)} by the configuration; expected {SCALE_BLOCK} x "
            f"{SCALE_BLOCK}; quantise it so, or leave it by --skip {short(name)}"
        )
    form = "fp8_block" if is_block else "fp8" if is_fp8 else "int8"
    if method.has_wide_inputs and not is_block:
        form += "_weight_only"
    return _layer_of(name, Stored.BYTES, form, (n, k), None, tensors={"weight": weight, "scale": scales})


def _wide(
    name: str, tensors: Mapping[str, StoredTensor], form: str, dtype: str | None, left: dict[str, str]
) -> StoredLayer | None:
    """Return a matrix of 16 bits that is rounded; None where it is left."""
    weight = tensors.get("weight")
    if weight is None or len(weight.shape) != 2 or weight.dtype not in WIDE:
        return None
    if any(fnmatchcase(name, x) for x in KEPT):
        left[name] = "an embedding, a head or a router by its name: copied as it is"
        return None
    packed, (n, k) = PACKED_FORMATS.get(form), weight.shape
    has_dtype = packed is not None and packed.code is Code.INT4
    own = WIDE[weight.dtype] if weight.dtype in FLOATS.values() else "bfloat16"
    held = PackedLayer(form, (n, k), (dtype or own) if has_dtype else None)
    taken = sorted({end for end, *_ in held.tensors} & set(tensors))
    if taken:
        left[name] = f"copied as it is: it has {', '.join(taken)} beside its weight, and so is no nn.Linear"
        return None
    try:
        held.check()
    except FormatError as error:
        left[name] = f"copied as it is: {error}"
        return None
    return StoredLayer(name, Stored.WIDE, held, {"weight": weight})
