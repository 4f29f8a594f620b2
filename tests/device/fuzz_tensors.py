"""The tensors of the fuzz: operands are views of arenas that nobody writes, `out` lies among poisoned elements."""

from __future__ import annotations

import warnings
from contextlib import suppress

import aot_gemm
import torch

from tests.device.fuzz_cases import ARENA_SIZE, Case, Operand, View
from tests.device.reference import error_bound

OUT_SIZE = 1 << 25
"""Elements that `out`s of one batch lie in."""
POISON = 0x7FC1
"""A NaN of both element types that no product gives."""
GAP = 64
"""Poisoned elements between two outs, at least."""


class Subclass(torch.Tensor):
    """A tensor of a class of its own that is plain memory."""


class Hostile:
    """An object whose DLPack methods raise."""

    def __dlpack_device__(self):
        raise ValueError("no device")

    def __dlpack__(self, **_):
        raise ValueError("no capsule")


class Liar:
    """An object that says it is on the GPU, and gives something that is no capsule."""

    shape = (8, 8)
    dtype = "bfloat16"

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        return 5


class Grumbler(Liar):
    """An object that says it is on the GPU, and raises when it is asked for its memory."""

    def __dlpack__(self, **_):
        raise KeyError("no capsule")


class Kit:
    """What the calls of one process share."""

    def __init__(self, seed: int) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        generator = torch.Generator("cuda").manual_seed(seed)
        values = torch.randn(ARENA_SIZE, device="cuda", generator=generator)
        self.arenas = {name: values.to(getattr(torch, name)) for name in ("bfloat16", "float16")}
        self.pristine = {name: arena.clone() for name, arena in self.arenas.items()}
        self.floats = {name: arena.float() for name, arena in self.arenas.items()}
        self.outs = torch.full((OUT_SIZE,), POISON, dtype=torch.int16, device="cuda")
        self.num_outs = 0
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.cupy = None
        with suppress(ImportError):
            import cupy

            self.cupy = cupy
        torch.cuda.synchronize()

    def view(self, operand: Operand) -> torch.Tensor:
        """Return an operand's part of its arena."""
        return _strided(self.arenas[operand.dtype], operand.view)

    def reference(self, operand: Operand) -> torch.Tensor:
        """Return the same in float32."""
        return _strided(self.floats[operand.dtype], operand.view)

    def reserve(self, view: View) -> View:
        """Place an `out` among what is poisoned."""
        placed = View(view.shape, view.strides, self.num_outs + GAP // 8 * 8 + view.offset)
        self.num_outs = -(-(placed.offset + view.extent + GAP) // 64) * 64
        return placed

    def restore(self) -> bool:
        """Say whether an operand was written; put it right."""
        written = False
        for name, arena in self.arenas.items():
            if not torch.equal(arena.view(torch.int16), self.pristine[name].view(torch.int16)):
                written = True
                arena.copy_(self.pristine[name])
        return written

    def poison(self) -> bool:
        """Say whether anything but `out`s was written; poison all again for the next batch."""
        used = self.outs[: self.num_outs]
        written = bool((used != POISON).any())
        used.fill_(POISON)
        self.num_outs = 0
        return written


def _strided(base: torch.Tensor, view: View) -> torch.Tensor:
    return base.as_strided(view.shape, view.strides, view.offset)


def _fake(kit, operand):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(kit.view(operand))


def _wrapper(kit, operand):
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(kit.view(operand).contiguous(), kit.view(operand).contiguous())


def _sparse_coo(_, operand):
    shape, dtype = operand.view.shape, getattr(torch, operand.dtype)
    places = torch.empty((len(shape), 0), dtype=torch.int64, device="cuda")
    return torch.sparse_coo_tensor(places, torch.empty(0, dtype=dtype, device="cuda"), shape)


def _sparse_csr(_, operand):
    shape = operand.view.shape[-2:]
    rows = torch.zeros(shape[0] + 1, dtype=torch.int64, device="cuda")
    empty = torch.empty(0, dtype=torch.int64, device="cuda")
    return torch.sparse_csr_tensor(rows, empty, empty.to(getattr(torch, operand.dtype)), shape)


def _freed(kit, operand):
    tensor = kit.view(operand).contiguous().clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def _negative(_, operand):
    return torch.zeros(operand.view.shape, dtype=torch.complex32, device="cuda").conj().imag


def _inference(kit, operand):
    with torch.inference_mode():
        return kit.view(operand).clone()


def _computed(kit, operand):
    with torch.enable_grad():
        return kit.view(operand).clone().requires_grad_() * 1


def _proxy(*_):
    return torch.fx.Proxy(torch.fx.Graph().placeholder("x"))


def _typed(dtype):
    def build(_, operand):
        return torch.zeros(operand.view.shape, dtype=dtype, device="cuda")

    return build


def _other_dtype(kit, operand):
    return kit.view(operand).to(torch.float16 if operand.dtype == "bfloat16" else torch.bfloat16)


BUILDERS = {
    "view": Kit.view,
    "arena": Kit.view,
    "clone": lambda kit, operand: kit.view(operand).clone(memory_format=torch.contiguous_format),
    "parameter": lambda kit, operand: torch.nn.Parameter(kit.view(operand), requires_grad=False),
    "gradient": lambda kit, operand: torch.nn.Parameter(kit.view(operand).clone()),
    "computed": _computed,
    "inference": _inference,
    "subclass": lambda kit, operand: kit.view(operand).as_subclass(Subclass),
    "cupy": lambda kit, operand: kit.cupy.from_dlpack(kit.view(operand)),
    "handle": lambda kit, operand: aot_gemm.constant(kit.view(operand)),
    "none": lambda *_: None,
    "list": lambda *_: [[1.0, 2.0], [3.0, 4.0]],
    "string": lambda *_: "weight",
    "integer": lambda *_: 1 << 70,
    "class": lambda *_: torch.Tensor,
    "numpy": lambda _, operand: torch.zeros(operand.view.shape, dtype=torch.float16, device="cpu").numpy(),
    "capsule": lambda kit, operand: torch.utils.dlpack.to_dlpack(kit.view(operand)),
    "hostile": lambda *_: Hostile(),
    "liar": lambda *_: Liar(),
    "grumbler": lambda *_: Grumbler(),
    "proxy": _proxy,
    "cpu": lambda _, operand: torch.zeros(operand.view.shape, dtype=getattr(torch, operand.dtype), device="cpu"),
    "pinned": lambda _, operand: torch.zeros(operand.view.shape, dtype=getattr(torch, operand.dtype), pin_memory=True),
    "meta": lambda _, operand: torch.empty(operand.view.shape, dtype=getattr(torch, operand.dtype), device="meta"),
    "sparse_coo": _sparse_coo,
    "sparse_csr": _sparse_csr,
    "quantized": lambda _, operand: torch._empty_affine_quantized(
        operand.view.shape, scale=1.0, zero_point=0, dtype=torch.qint8, device="cuda"
    ),
    "nested": lambda kit, operand: torch.nested.nested_tensor([kit.view(operand).clone()] * 2),
    "freed": _freed,
    "negative": _negative,
    "fake": _fake,
    "functional": lambda kit, operand: torch._to_functional_tensor(kit.view(operand)),
    "wrapper": _wrapper,
    "float32": _typed(torch.float32),
    "float64": _typed(torch.float64),
    "float8": _typed(torch.float8_e4m3fn),
    "int8": _typed(torch.int8),
    "int16": _typed(torch.int16),
    "bool": _typed(torch.bool),
    "complex32": _typed(torch.complex32),
    "other_dtype": _other_dtype,
    "other_gpu": lambda kit, operand: kit.view(operand).to("cuda:1"),
}


def build(kit: Kit, operand: Operand) -> object:
    """Make an operand; `constant_` before its kind makes a handle of it."""
    kind = operand.kind
    if kind.startswith("constant_"):
        inner = build(kit, Operand(kind.removeprefix("constant_"), operand.dtype, operand.view))
        return aot_gemm.constant(inner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's prototypes say that they are
        return BUILDERS[kind](kit, operand)


def build_out(kit: Kit, case: Case, left: object, right: object) -> tuple[object, object, torch.Tensor | None]:
    """Make `out`.

    Returns:
        The left operand, which shares memory with an interleaved `out`; `out`; and the poisoned elements that `out` may
        write, as 16-bit integers.
    """
    kind, view = case.out.kind, case.out.view
    if kind in {"same_left", "same_right"}:
        return left, left if kind == "same_left" else right, None
    if kind == "interleaved":
        rows, k = case.left.view.shape
        both = torch.full((rows, k + view.shape[1]), POISON, dtype=torch.int16, device="cuda")
        values = both.view(getattr(torch, case.out.dtype))
        values[:, :k] = left
        return values[:, :k], values[:, k:], None
    if not kind.startswith("fresh"):
        return left, build(kit, case.out), None
    placed = kit.reserve(view)
    bits = _strided(kit.outs, placed)
    out = _strided(kit.outs.view(getattr(torch, case.out.dtype)), placed)
    if kind == "fresh_cupy":
        return left, kit.cupy.from_dlpack(out), bits
    return left, out.detach().requires_grad_() if kind == "fresh_gradient" else out, bits


def expected_bound(case: Case, kit: Kit) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product in float32, and how far a result of the element type may be from it."""
    left, right = kit.reference(case.left), kit.reference(case.right)
    expected = torch.matmul(left, right.t() if case.product == "linear" else right)
    return expected, error_bound(expected, case.left.view.shape[-1], getattr(torch, case.left.dtype))
