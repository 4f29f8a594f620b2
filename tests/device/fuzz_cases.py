"""The calls of the fuzz: shapes, strides, kinds of operand and of `out`, and what each must give. Needs no GPU."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, replace

import numpy as np

RIGHT, ERROR, EITHER, ARITY = "right", "error", "either", "arity"
"""What a call must give: the product; a typed error; one of the two; a typed error or Python's own TypeError."""

ARENA_SIZE = 1 << 24
"""Elements that operands are views of."""
MAX_ROWS, MAX_EXTENT = 64, 2048

DTYPES = ("bfloat16", "float16")
LEGAL = {"view": 24, "clone": 3, "parameter": 1, "gradient": 1, "computed": 1, "inference": 1, "subclass": 1}
"""Kinds of operand by how often they are drawn. `gradient` and `computed` require a gradient."""
PYTHON = ("none", "list", "string", "integer", "class", "numpy", "capsule", "hostile", "liar", "grumbler", "proxy")
UNLIKE = (
    *("cpu", "pinned", "meta", "sparse_coo", "sparse_csr", "quantized", "nested", "freed", "negative", "fake"),
    *("functional", "wrapper", "float32", "float64", "float8", "int8", "int16", "bool", "complex32", "other_dtype"),
)
ILLEGAL = (*PYTHON, *UNLIKE, "other_gpu", "handle")
"""Kinds of operand that must be refused wherever they stand; a handle is refused but in the weight's place."""
OUTS = {
    "none": 45,
    "fresh": 35,
    "wrong_shape": 3,
    "expanded": 3,
    "overlap_left": 3,
    "overlap_right": 3,
    "same_left": 1,
    "same_right": 1,
    "interleaved": 1,
    "gradient": 2,
    "illegal": 4,
}
ARITIES = ("one", "none", "four", "positional_out", "unknown_keyword")


@dataclass(frozen=True)
class View:
    """A strided view of an arena, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def extent(self) -> int:
        """Elements from the first to the last, with both."""
        if 0 in self.shape:
            return 0
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    def joins(self, num_dims: int) -> bool:
        """Say whether the first dimensions are rows of one stride."""
        # The stride of a dimension of one element is never used.
        dims = [x for x in zip(self.shape[:num_dims], self.strides[:num_dims], strict=True) if x[0] != 1]
        return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(dims))


@dataclass(frozen=True)
class Operand:
    """One argument: what kind of object, of which type, and which part of an arena."""

    kind: str
    dtype: str
    view: View


def _broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a batch that two broadcast to; empty where they do not."""
    try:
        return tuple(np.broadcast_shapes(first, second))
    except ValueError:
        return ()


@dataclass(frozen=True)
class Case:
    product: str
    left: Operand
    right: Operand
    out: Operand | None = None
    bias: str = ""
    """`keyword` or `positional`, where one is given."""
    arity: str = ""
    grad: str = "on"
    """`on`, `off` (torch.no_grad), or `inference`."""
    stream: int = 0
    route: str = ""
    """`graph`, `vmap` or `func_grad`."""
    expected: str = RIGHT

    @property
    def is_batched(self) -> bool:
        """Whether it is a matmul by a batch that the left operand's leading dimensions fit."""
        right = self.right.view.shape
        return self.product == "matmul" and len(right) > 2 and bool(_broadcast(self.left.view.shape[:-2], right[:-2]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape."""
        left, right = self.left.view.shape, self.right.view.shape
        if self.is_batched:
            return (*_broadcast(left[:-2], right[:-2]), *left[-2:-1], right[-1])
        return self.left.view.shape[:-1] + (right[:1] if self.product == "linear" else right[1:])


def worse(*outcomes: str) -> str:
    """Return what must come of a call of several properties."""
    return next(x for x in (ARITY, ERROR, EITHER, RIGHT) if x in outcomes)


def _choose(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices([*weights], [*weights.values()])[0]


def _extent(rng: random.Random, top: int) -> int:
    kind = rng.random()
    if kind < 0.02:
        return 0
    if kind < 0.08:
        return 1
    extent = min(top, round(top ** rng.random()))
    return min(top, -(-extent // 8) * 8) if kind < 0.7 else extent


def place(rng: random.Random, extent: int) -> int:
    """Draw where a view of that extent begins, often aligned."""
    offset = rng.randrange(max(ARENA_SIZE - extent, 1))
    return offset if rng.random() < 0.3 else offset // 8 * 8


def draw_view(rng: random.Random, shape: tuple[int, ...], *, is_out: bool = False) -> View:
    """Draw strides: packed, padded, permuted, stepped; of an operand also expanded or overlapping windows."""
    order = list(reversed(range(len(shape))))
    if len(shape) > 1 and rng.random() < 0.3:
        order[:2] = order[1::-1]
    if rng.random() < 0.05:
        rng.shuffle(order)
    strides = [0] * len(shape)
    stride = rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3))
    for dim in order:
        strides[dim] = stride
        stride = stride * max(shape[dim], 1) + rng.choice((0, 0, 0, 0, 0, 8, 16, 1, 3))
        if shape[dim] == 1 and rng.random() < 0.3:
            strides[dim] = rng.randrange(1000)
    if not is_out and shape and rng.random() < 0.06:
        strides[rng.randrange(len(shape))] = 0
    if not is_out and rng.random() < 0.02:
        strides = [1] * len(shape)
    view = View(shape, tuple(strides))
    if is_out:
        return replace(view, offset=rng.choice((0, 0, 8, 1, 5)))
    if view.extent > ARENA_SIZE:
        view = _packed(shape)
    return replace(view, offset=place(rng, view.extent))


def _packed(shape: tuple[int, ...], offset: int = 0) -> View:
    return View(shape, tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))), offset)


def _leading(rng: random.Random) -> tuple[int, ...]:
    num_dims = rng.choices((0, 1, 2, 3), (4, 72, 14, 10))[0]
    if num_dims < 2:
        return tuple(_extent(rng, MAX_ROWS) for _ in range(num_dims))
    return tuple(_extent(rng, 8) for _ in range(num_dims))


def _draw_plain(rng: random.Random) -> Case:
    """Draw a call that must give the product."""
    product, dtype = rng.choice(("linear", "linear", "matmul")), rng.choice(DTYPES)
    top = MAX_EXTENT if rng.random() < 0.25 else 512
    n, k = _extent(rng, top), _extent(rng, top)
    right = (n, k) if product == "linear" else (k, n)
    if product == "matmul" and rng.random() < 0.06:
        right = (k,)
    left = Operand("view", dtype, draw_view(rng, (*_leading(rng), k)))
    case = Case(product, left, Operand("view", dtype, draw_view(rng, right)), stream=rng.choice((0, 0, 1, 2)))
    return replace(case, grad=rng.choice(("on", "on", "off", "inference")))


def _draw_kinds(rng: random.Random, case: Case, has_cupy: bool) -> Case:
    """Draw kinds of operand that torch multiplies; the weight may be a handle, or all may be CuPy's."""
    if has_cupy and rng.random() < 0.01:
        left, right = (replace(x, kind="cupy", dtype="float16") for x in (case.left, case.right))
        return replace(case, left=left, right=right, stream=0)
    left, right = (replace(x, kind=_choose(rng, LEGAL)) for x in (case.left, case.right))
    expected = RIGHT
    for operand in (left, right):
        if operand.kind in {"gradient", "computed"} and case.grad == "on":
            expected = worse(expected, ERROR)
        if operand.kind == "subclass":
            expected = worse(expected, EITHER)
    if rng.random() < 0.05:
        doubtful = right.kind in {"inference", "subclass"} or case.grad == "inference"
        expected = worse(expected, EITHER if doubtful else RIGHT)
        right = replace(right, kind=f"constant_{right.kind}")
    return replace(case, left=left, right=right, expected=worse(case.expected, expected))


def _is_nothing(operand: Operand) -> bool:
    """Say whether an operand would be illegal, had it any elements."""
    return operand.kind in {"freed", "negative", "functional"} and 0 in operand.view.shape


def _draw_illegal(rng: random.Random, case: Case, num_gpus: int) -> Case:
    """Put something that is no operand in the place of one, or a shape that does not fit."""
    kind = rng.choice((*ILLEGAL, "wrong_k", "wrong_dims", "batched", "wrong_k"))
    side = rng.choice(("left", "right"))
    operand = getattr(case, side)
    if kind == "wrong_k":
        shape = tuple(extent + 1 for extent in operand.view.shape)
        operand = replace(operand, view=draw_view(rng, shape))
    elif kind == "wrong_dims":
        operand = replace(operand, view=View((), (), place(rng, 1)))
    elif kind == "batched":
        side, operand = "right", replace(case.right, view=draw_view(rng, (2, *case.right.view.shape[-2:])))
        if len(operand.view.shape) < 3:
            return replace(case, expected=worse(case.expected, EITHER))
        batched = replace(case, right=operand)
        if batched.is_batched:
            return replace(batched, expected=worse(case.expected, EITHER))
    elif kind == "other_gpu" and num_gpus < 2:
        operand = replace(operand, kind="cpu")
    elif kind == "handle" and side == "right":
        operand = replace(operand, kind="constant_constant_view")
        return replace(case, right=operand, expected=EITHER)  # what made the case illegal may be replaced
    elif kind == "negative":
        operand = replace(operand, kind=kind, dtype="float16")
    else:
        operand = replace(operand, kind=kind)
    # What made the case illegal before may be what is replaced.
    expected = EITHER if _is_nothing(operand) else ERROR
    return replace(case, **{side: operand}, expected=expected)


def _shared_element(rng: random.Random, view: View) -> int:
    return view.offset + sum(
        rng.randrange(extent) * stride for extent, stride in zip(view.shape, view.strides, strict=True)
    )


def _draw_overlap(rng: random.Random, case: Case, operand: Operand) -> Operand | None:
    """Draw a packed `out` that has an element in common with an operand, in the operands' arena."""
    size = math.prod(case.shape)
    if operand.kind != "view" or operand.dtype != case.left.dtype or not size or 0 in operand.view.shape:
        return None
    first = max(0, _shared_element(rng, operand.view) - rng.randrange(size))
    first = min(first, ARENA_SIZE - size)
    return Operand("arena", operand.dtype, _packed(case.shape, first))


def _draw_out(rng: random.Random, case: Case, num_gpus: int) -> Case:
    kind, dtype, shape = _choose(rng, OUTS), case.left.dtype, case.shape
    is_cupy = case.left.kind == "cupy"
    if kind == "none" or case.left.kind in ILLEGAL or (is_cupy and kind != "fresh"):
        return case
    fresh = Operand("fresh_cupy" if is_cupy else "fresh", dtype, draw_view(rng, shape, is_out=True))
    out, expected = fresh, ERROR
    if kind == "fresh":
        expected = RIGHT if fresh.view.joins(len(case.left.view.shape) - 1) else EITHER
    elif kind == "wrong_shape":
        wrong = rng.choice([(*shape, 1), shape[:-1], (*shape[:-1], shape[-1] + 1) if shape else (2,)])
        out = replace(fresh, view=draw_view(rng, wrong if wrong != shape else (*shape, 2), is_out=True))
    elif kind == "expanded":
        strides = list(fresh.view.strides)
        wide = [i for i, extent in enumerate(shape) if extent > 1]
        if not wide or 0 in shape:
            return case
        strides[rng.choice(wide)] = 0
        out = replace(fresh, view=replace(fresh.view, strides=tuple(strides)))
    elif kind in {"overlap_left", "overlap_right"}:
        out = _draw_overlap(rng, case, getattr(case, kind.removeprefix("overlap_")))
    elif kind in {"same_left", "same_right"}:
        operand = getattr(case, kind.removeprefix("same_"))
        is_fit = operand.view.shape == shape and 0 not in shape and operand.kind == "view"
        out = Operand(kind, dtype, operand.view) if is_fit else None
    elif kind == "interleaved":
        is_fit = len(case.left.view.shape) == 2 == len(shape) and case.left.kind == "view" and 0 not in shape
        out, expected = (Operand(kind, dtype, _packed(shape)) if is_fit else None), EITHER
    elif kind == "gradient":
        out, expected = replace(fresh, kind="fresh_gradient"), ERROR if case.grad == "on" else EITHER
    else:
        kinds = [x for x in (*ILLEGAL, "constant_view") if x != "none" and (x != "other_gpu" or num_gpus > 1)]
        out = replace(fresh, kind=rng.choice(kinds))
        expected = EITHER if _is_nothing(out) else ERROR
    return case if out is None else replace(case, out=out, expected=worse(case.expected, expected))


def _draw_route(rng: random.Random, case: Case) -> Case:
    """Draw how the call is made: under capture, under a transform, with a bias, with too few arguments."""
    kind = rng.random()
    if kind < 0.004 and case.left.kind != "cupy":
        made = case.right.kind.startswith("constant")  # made before the capture
        return replace(case, route="graph", stream=0, expected=worse(case.expected, EITHER if made else RIGHT))
    if kind < 0.006 and case.left.kind == "view" and case.left.view.shape[:1] not in {(), (0,)}:
        route = rng.choice(("vmap", "func_grad"))
        return replace(case, route=route, out=None, grad="on", expected=ERROR)
    if kind < 0.03 and case.product == "linear":
        bias = rng.choice(("keyword", "positional"))
        return replace(case, bias=bias, expected=worse(case.expected, EITHER))  # zeros, of bfloat16
    if kind < 0.04:
        return replace(case, arity=rng.choice(ARITIES), expected=ARITY)
    return case


def draw(seed: int, index: int, *, has_cupy: bool, num_gpus: int) -> Case:
    """Draw call number `index` of a seed: the same whichever process draws it."""
    rng = random.Random(f"{seed}/{index}")
    case = _draw_kinds(rng, _draw_plain(rng), has_cupy)
    if rng.random() < 0.12:
        case = _draw_illegal(rng, case, num_gpus)
    return _draw_route(rng, _draw_out(rng, case, num_gpus))
