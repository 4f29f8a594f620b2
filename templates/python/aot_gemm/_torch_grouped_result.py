"""What `grouped_linear` gives, by shapes and types alone: the twin of group_operands.cc for tensors without memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import errors
from ._enumerations import EPILOGUES
from ._extras import GATES, refuse_activation, weights_of
from ._request import Request, find
from ._torch_result import (
    SCALE_BLOCK,
    check_dtype,
    check_scales,
    check_shape,
    check_tensor,
    dtype_text,
    element_of_d,
    is_one,
    shape_text,
    tag_of,
)

_WEIGHT_DIMS = 3


class Groups(NamedTuple):
    """The operands and options of a `grouped_linear`; tensors as a `Product` has them."""

    x: Any
    weight: Any
    offsets: Any
    bias: Any = None
    index: Any = None
    scale_x: Any = None
    scale_w: Any = None
    gate: Any = None
    out_dtype: Any = None
    out: Any = None

    @property
    def name(self) -> str:
        """Return what messages call the product."""
        return "grouped_linear"

    @property
    def names(self) -> tuple[str, str]:
        """Return what messages call the left and the right operand."""
        return "x", "weight"

    @property
    def groups_k(self) -> bool:
        """Say whether the groups are runs of k, and each has a result of its own: the weight is one matrix then."""
        return bool(self.weight.ndim < _WEIGHT_DIMS)


def stack_of(weights: list[Any]) -> Any:
    """Return the stack that the weights of groups are, without memory for all: the twin of weights.cc.

    Raises:
        AotGemmError: one of the classes that `linear` lists, as the call would.
    """
    first = weights_of(weights, "grouped_linear", "one (n, k) for each group, one or more")[0]
    if first.ndim != _WEIGHT_DIMS - 1:
        raise errors.ShapeError(
            f"grouped_linear: weight 0 of {len(weights)} has {first.ndim} dimensions; expected matrices (n, k), or "
            "with a gate (2 n, k), one for each group"
        )
    for number, weight in enumerate(weights):
        if weight.dtype != first.dtype:
            raise errors.DtypeError(
                f"grouped_linear: weight {number} is of another element type than weight 0; expected one element type; "
                "convert it"
            )
        if tuple(weight.shape) != tuple(first.shape):
            raise errors.ShapeError(
                f"grouped_linear: weight {number} has shape {shape_text(weight)}; expected that of weight 0, "
                f"{shape_text(first)}"
            )
    return first.expand(len(weights), *first.shape)


def result_of_groups(groups: Groups) -> tuple[tuple[Any, ...], str]:
    """Return shape and element type, by torch's name, of what a call gives.

    Raises:
        AotGemmError: one of the classes that `linear` lists, as the call would.
    """
    check_tensor(groups, "x", groups.x)
    check_tensor(groups, "weight", groups.weight)
    _check_extents(groups)
    _check_offsets(groups)
    d = element_of_d(groups)
    _find(groups, d)
    shape = _shape_of(groups)
    if groups.bias is not None:
        check_dtype(groups, "bias", groups.bias, d)
        check_shape(
            groups,
            "bias",
            groups.bias,
            tuple(groups.weight.shape[:2]),
            ", an element for each row of each group's weight",
        )
    if groups.out is not None:
        check_shape(groups, "out", groups.out, shape, "")
    return shape, d


def _check_extents(groups: Groups) -> None:
    x, weight = groups.x, groups.weight
    if x.ndim != 2 or weight.ndim not in (2, _WEIGHT_DIMS) or (not groups.groups_k and weight.shape[0] == 0):
        raise errors.ShapeError(
            f"grouped_linear: got x {shape_text(x)} and weight {shape_text(weight)}; expected x (rows, k) and weight "
            "(groups, n, k), of one group or more, or (n, k) where the groups are runs of k"
        )
    if x.shape[1] != weight.shape[-1]:
        raise errors.ShapeError(
            f"grouped_linear: x {shape_text(x)} has k {x.shape[1]}, weight {shape_text(weight)} has k "
            f"{weight.shape[-1]}; expected one k"
        )
    if not groups.groups_k and groups.gate is not None and weight.shape[1] % 2 != 0:
        raise errors.ShapeError(
            f"grouped_linear: weight has shape {shape_text(weight)}; expected an even number of rows in each group, "
            "those of the gate and as many linear ones"
        )


def _check_integers(groups: Groups, name: str, tensor: Any) -> None:
    check_dtype(groups, name, tensor, "int32")
    if tensor.ndim != 1:
        raise errors.ShapeError(f"grouped_linear: {name} has shape {shape_text(tensor)}; expected a vector")


def _check_offsets(groups: Groups) -> None:
    offsets, weight = groups.offsets, groups.weight
    _check_integers(groups, "offsets", offsets)
    if groups.groups_k:
        if groups.index is not None:
            raise errors.OperandError(
                f"grouped_linear: got an index beside a weight {shape_text(weight)}, whose groups are runs of k; an "
                "index is of rows; leave it away"
            )
        if offsets.shape[0] == 0:
            raise errors.ShapeError(
                "grouped_linear: offsets has shape (0,); expected where each run of k ends, one or more"
            )
        return
    if groups.index is not None:
        _check_integers(groups, "index", groups.index)
    count = weight.shape[0]
    if offsets.shape[0] not in (count, count + 1):
        raise errors.ShapeError(
            f"grouped_linear: offsets has shape {shape_text(offsets)}, weight {shape_text(weight)}; expected "
            f"({count},), where each group ends, or ({count + 1},), the first group's start in front"
        )


def _shape_of(groups: Groups) -> tuple[Any, ...]:
    rows = groups.x.shape[0] if groups.index is None else groups.index.shape[0]
    n = groups.weight.shape[-2]
    count = (groups.offsets.shape[0],) if groups.groups_k else ()
    return *count, rows, n if groups.gate is None else n // 2


def _find(groups: Groups, d: str) -> str:
    """Return the operation's tag; of factors that may be of either kind, either's."""
    if groups.gate is not None and groups.gate not in GATES:
        refuse_activation(groups.name, groups.gate)
    a, b = dtype_text(groups.x.dtype), dtype_text(groups.weight.dtype)
    check_scales(groups, a, b, d)
    epilogue = "none" if groups.gate is None else EPILOGUES[GATES[groups.gate]]
    grouping = "kgrouped" if groups.groups_k else "grouped" if groups.index is None else "gathered"
    is_there = groups.bias is not None
    request = Request(groups.name, a, b, d, "none", epilogue, grouping, is_there, False, False, False)
    if groups.scale_x is None:
        return find(request)
    request = request._replace(scale="vector")
    if groups.groups_k:
        return find(request)
    check_dtype(groups, "scale_x", groups.scale_x, "float32")
    check_dtype(groups, "scale_w", groups.scale_w, "float32")
    vectors, blocks = _scale_kinds(groups)
    by_blocks = request._replace(scale="block")
    if not vectors and not blocks:
        _refuse_scales(groups)
    if not vectors:
        return find(by_blocks)
    try:
        return find(request)
    except errors.UnsupportedError:
        if blocks and (tag := tag_of(by_blocks)) is not None:
            return tag
        raise


def _scale_kinds(groups: Groups) -> tuple[bool, bool]:
    """Say whether the factors are vectors, and whether they are of blocks: the twin of read_group_scale_shapes."""
    scale_x, scale_w = tuple(groups.scale_x.shape), tuple(groups.scale_w.shape)
    (m, k), (count, rows) = groups.x.shape, groups.weight.shape[:2]
    of_all = ((count,), (count, 1), (count, 1, 1))
    of_w = (*of_all, (count, rows), (count, rows, 1), (count, 1, rows))
    are_vectors = (is_one(scale_x) or scale_x in ((m,), (m, 1))) and (is_one(scale_w) or scale_w in of_w)
    k_blocks = -(-k // SCALE_BLOCK)
    are_blocks = scale_x == (m, k_blocks) and scale_w == (count, -(-rows // SCALE_BLOCK), k_blocks)
    return are_vectors, are_blocks


def _refuse_scales(groups: Groups) -> None:
    raise errors.ShapeError(
        f"grouped_linear: scale_x has shape {shape_text(groups.scale_x)} and scale_w {shape_text(groups.scale_w)}, "
        f"beside x {shape_text(groups.x)} and weight {shape_text(groups.weight)}; expected one element or (rows,) or "
        "(rows, 1), and one element, (groups,) or (groups, n); or one for each block: (rows, ceil(k / 128)) and "
        "(groups, ceil(n / 128), ceil(k / 128))"
    )
