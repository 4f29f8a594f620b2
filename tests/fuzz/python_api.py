"""Calls the Python package with garbage tensors, in a process of its own that c_api.py starts under AddressSanitizer.

A framework's exchange API, and capsules, hand over whatever was drawn: shapes, strides, numbers of dimensions, element
types, null pointers. Nothing of it is read as memory, so that any address will do. Each call must return or raise an
error of the package.
"""

from __future__ import annotations

import collections
import ctypes
import json
import random
import sys
from importlib import import_module
from pathlib import Path

from aot.core.element import ElementType
from aot.core.factor_atoms import num_atoms_of_groups
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from tests.fuzz.python_rows import row_call, row_operations_launched
from tests.fuzz.python_weights import many_call, packed_grouped_call, packed_linear_call
from tests.runtime.exchange import Framework, ManagedTensor, capsule_of
from tests.runtime.structs import FakeLaunch
from tests.runtime.tensors import DLManagedTensor, DLTensor

EXTENTS = (0, 1, 2, 3, 8, 16, 64, 72, 100, 4096)
ODD_EXTENTS = (-1, -(2**63), 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
ODD_STRIDES = (0, -1, 2, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
BFLOAT16, FLOAT16, FLOAT32, E4M3, E5M2, INT8, INT32 = (4, 16), (2, 16), (2, 32), (10, 8), (12, 8), (0, 8), (0, 32)
UINT8, E8M0 = (1, 8), (14, 8)
DTYPES = (BFLOAT16, FLOAT16)
ODD_DTYPES = ((2, 64), (0, 16), (1, 8), (6, 1), (5, 32), (17, 4), (255, 255), (4, 0), (8, 8), (13, 8))
TYPES = (
    (BFLOAT16, BFLOAT16, BFLOAT16, "none"),
    (FLOAT16, FLOAT16, FLOAT16, "none"),
    (FLOAT32, FLOAT32, FLOAT32, "none"),
    (INT8, INT8, INT32, "none"),
    *((INT8, INT8, d, "vector") for d in (BFLOAT16, FLOAT16)),
    *((E4M3, E4M3, d, "vector") for d in (BFLOAT16, FLOAT16, FLOAT32, E4M3)),
    (E4M3, E5M2, BFLOAT16, "vector"),
    (E5M2, E4M3, BFLOAT16, "vector"),
    (E4M3, E4M3, BFLOAT16, "block"),
)
"""Of x, of the weight and of the result, and the factors."""
NAMES = {
    BFLOAT16: "bfloat16",
    FLOAT16: "float16",
    FLOAT32: "float32",
    E4M3: "float8_e4m3fn",
    E5M2: "float8_e5m2",
    INT8: "int8",
    INT32: "int32",
}
DTYPE_OF = {name: dtype for dtype, name in NAMES.items()}
GROUPED = tuple(x for x in Operation if x.grouping.has_offsets and x.types.weight is None)
IN_ATOMS = tuple(x for x in Operation if x.types.factors is FactorLayout.ATOMS and x not in GROUPED)
ODD_OBJECTS = (1, 0.5, "text", [1], {}, object(), b"", True, -1)
ODD_DEVICES = ((13, 0), (2, 1), (1, 0), (2, -1), (0, 0), (2, 99))
ODD_DIMS = (-(2**31), -1, 65, 2**31 - 1)
MAX_DIMS = 65
BASE = 1 << 56


class Garbage:
    """A drawn tensor: its DLTensor, and what Python reads of it; kept alive with the object."""

    def __init__(self, rng, shape, dtype, oddness=1.0):
        self.rng, self.oddness, self.managed = rng, oddness, []
        shape, strides = list(shape), None
        if self._is_odd(0.08):
            shape = [rng.choice(EXTENTS) for _ in range(rng.choice((0, 1, 2, 3, 5, 64, MAX_DIMS)))]
        if shape and self._is_odd(0.05):
            shape[rng.randrange(len(shape))] = rng.choice(ODD_EXTENTS)
        if rng.random() < 0.5:
            strides = self._draw_strides(shape)
        dims = rng.choice(ODD_DIMS) if self._is_odd(0.01) else len(shape)
        code, bits = rng.choice(ODD_DTYPES) if self._is_odd(0.03) else dtype
        self.extents = (ctypes.c_int64 * MAX_DIMS)(*shape)
        self.steps = (ctypes.c_int64 * MAX_DIMS)(*(strides or ()))
        step = 2 if bits < 32 or self._is_odd(0.1) else 4
        # Factors in atoms, of which a call may have two, have to be aligned to 16 bytes or more.
        address = BASE * rng.randint(1, 6) + step * rng.choice((0, 0, 0, 1, 2, 3, 4))
        address = rng.choice((0, 1, 2**64 - 2)) if self._is_odd(0.05) else address
        self.view = DLTensor(
            address,
            rng.choice(ODD_DEVICES) if self._is_odd(0.04) else (2, 0),
            dims,
            code,
            bits,
            rng.choice((0, 2, 65535)) if self._is_odd(0.01) else 1,
            None if self._is_odd(0.01) else self.extents,
            None if strides is None else self.steps,
            rng.choice((2, 2**40, 2**64 - 2)) if self._is_odd(0.05) else 0,
        )
        self.shape, self.strides, self.dtype = tuple(shape), strides and tuple(strides), dtype

    def _is_odd(self, probability):
        return self.rng.random() < probability * self.oddness

    def _draw_strides(self, shape):
        strides, step = [], 1
        order = list(range(len(shape)))
        if self.rng.random() < 0.3:
            self.rng.shuffle(order)
        strides = [0] * len(shape)
        for i in reversed(order):
            strides[i] = self.rng.choice(ODD_STRIDES) if self._is_odd(0.06) else max(-(2**63), min(step, 2**63 - 1))
            step *= max(shape[i], 1) + (8 if self.rng.random() < 0.1 else 0)
        return strides

    def __dlpack_device__(self):
        return tuple(self.view.device)

    def __dlpack__(self, stream=None):
        draw = self.rng.random()
        if draw < 0.01:
            return self.rng.choice((None, 7, capsule_of(1, b"another")))
        if draw < 0.5:
            managed = DLManagedTensor(self.view, None, None)
            self.managed.append(managed)  # an operand may be given twice
            return capsule_of(ctypes.addressof(managed), b"dltensor")
        managed = ManagedTensor(
            (ctypes.c_uint32 * 2)(1, 0), None, type(ManagedTensor().deleter)(), draw < 0.55, self.view
        )
        self.managed.append(managed)
        return capsule_of(ctypes.addressof(managed), b"dltensor_versioned")


class Own:
    """A tensor's own factor, whose product with another's is a tensor of its framework."""

    def __init__(self, product):
        self.product = product

    def __mul__(self, _other):
        return self.product


class GarbageFramework(Framework):
    """A framework that hands garbage over, and whose allocator gives what was asked for, or nothing."""

    def __init__(self, rng, **options):
        super().__init__(**options)
        self.rng = rng
        self.Tensor = type("Tensor", (Garbage,), {"__dlpack_c_exchange_api__": self.Tensor.__dlpack_c_exchange_api__})

    def _view(self, tensor, out):
        ctypes.memmove(out, ctypes.byref(tensor.view), ctypes.sizeof(DLTensor))
        return -1 if self.rng.random() < 0.005 else 0

    def _export(self, tensor, out):
        managed = ManagedTensor((ctypes.c_uint32 * 2)(1, 0), None, self._deleter, self.rng.random() < 0.05, tensor.view)
        out[0] = ctypes.addressof(managed)
        self._alive[out[0]] = (managed, None, None, tensor)
        return 0

    def _allocate(self, prototype, out, context, set_error):
        if self.rng.random() < 0.02:
            set_error(context, b"MemoryError", b"none left")
            return -1
        asked = prototype.contents
        tensor = self.Tensor(random.Random(0), [asked.shape[i] for i in range(asked.ndim)], (asked.code, asked.bits))
        tensor.view.data = BASE * 7
        return self._export(tensor, out)


def draw_shapes(rng, product):
    m, n, k = (rng.choice(EXTENTS) for _ in range(3))
    leading = [rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 0, 1, 3)))]
    right = (n, k) if product == "linear" else (*(leading if rng.random() < 0.4 else ()), k, n)
    return (*leading, m, k), right, (*leading, m, n)


def draw_bias(rng, kind, shape, dtype, out):
    """Draw a bias: none, one, or what is none."""
    if rng.random() < 0.02:
        return rng.choice((*ODD_OBJECTS, out))
    return kind(rng, shape, dtype) if rng.random() < 0.4 else None


def plain_call(package, rng, kinds):
    """Draw a call of `linear` or `matmul` with no more than a bias and out."""
    product = rng.choice(("linear", "matmul"))
    dtype = rng.choice(DTYPES)
    kind = rng.choice(kinds)
    left, right, out = (
        (kind if rng.random() < 0.8 else rng.choice(kinds))(rng, shape, dtype) for shape in draw_shapes(rng, product)
    )
    bias = draw_bias(rng, kind, out.shape[-1:], dtype, out) if product == "linear" else None
    operands = (left, right) if bias is None else (left, right, bias)
    return getattr(package, product), operands, {"out": None if rng.random() < 0.3 else out}


def draw_scale(rng, kind, shapes):
    """Draw factors of one of some shapes; seldom what is none."""
    if rng.random() < 0.03:
        return rng.choice((*ODD_OBJECTS, None))
    return kind(rng, rng.choice(shapes), FLOAT32 if rng.random() < 0.95 else rng.choice((*DTYPES, E4M3)))


def draw_scales(rng, kind, scale, m, rows, k):
    """Draw scale_x and scale_w of vectors or blocks."""
    if scale == "none":
        return {}
    blocks = -(-k // 128)
    shapes_x, shapes_w = ((), (1,), (m,), (m, 1)), ((), (1, 1), (rows,), (rows, 1), (1, rows))
    if scale == "block":
        shapes_x, shapes_w = ((m, blocks),), ((-(-rows // 128), blocks),)
    return {"scale_x": draw_scale(rng, kind, shapes_x), "scale_w": draw_scale(rng, kind, shapes_w)}


def full_call(package, rng, kinds):
    """Draw a call of `linear` or `gated_linear` with whatever else they take, most of which goes together."""
    a, b, d, scale = rng.choice(TYPES)
    is_gated = rng.random() < 0.25
    first, oddness = rng.choice(kinds), rng.choice((0.1, 1.0))

    def kind(*arguments):
        return (first if rng.random() < 0.9 else rng.choice(kinds))(*arguments, oddness)

    m, n, k = (rng.choice(EXTENTS) for _ in range(3))
    rows = 2 * n if is_gated and rng.random() < 0.97 else n
    left, right, out = kind(rng, (m, k), a), kind(rng, (rows, k), b), kind(rng, (m, n), d)
    named = draw_scales(rng, kind, scale if rng.random() < 0.95 else rng.choice(("vector", "block")), m, rows, k)
    bias = draw_bias(rng, kind, (rows,), d if d != E4M3 else BFLOAT16, out)
    if rng.random() < 0.7:
        named["out"] = out
    if rng.random() < 0.3 or "out" not in named:
        named["out_dtype"] = NAMES[d] if rng.random() < 0.95 else rng.choice((*ODD_OBJECTS, *NAMES.values()))
    if is_gated:
        named |= {"activation": rng.choice(("silu", "gelu_tanh")), "interleaved": rng.random() < 0.5}
    elif rng.random() < 0.4:
        named["activation"] = rng.choice((None, "relu", "gelu", "gelu_tanh", "silu"))
    elif rng.random() < 0.4:
        named["residual"] = kind(rng, (m, n), d) if rng.random() < 0.95 else rng.choice((*ODD_OBJECTS, out))
    if rng.random() < 0.02:
        named["activation"] = rng.choice((*ODD_OBJECTS, "tanh", "swiglu"))
    if not is_gated:
        named |= {"allow_tf32": rng.random() < 0.5, "use_fast_accum": rng.random() < 0.5}
        if d == E4M3 or rng.random() < 0.02:
            named["scale_out"] = draw_scale(rng, kind, ((), (1,), (1, 1)))
    return package.gated_linear if is_gated else package.linear, (left, right, bias), named


def draw_factors(rng, kind, scale, held, rows, k):
    """Draw the factors of an operand's blocks, mostly in atoms and of the type `held`; seldom what is none."""
    if rng.random() < 0.03:
        return rng.choice((*ODD_OBJECTS, None))
    shape = (scale.size_of(rows, k),) if rng.random() < 0.9 else scale.num_factors(rows, k)
    return kind(rng, shape, held if rng.random() < 0.97 else rng.choice((E8M0, E4M3, FLOAT32)))


def draw_out(rng, kind, operation, m, n, groups=1):
    """Draw what a result is written to: of one in blocks its bytes, and the factors' atoms."""
    form, per_byte = operation.factors_of_d, operation.d.num_sharing
    if form is None:
        return kind(rng, (m, n), DTYPE_OF[operation.d.value])
    atoms = (num_atoms_of_groups(m, groups) * form.size_of(1, n),)
    factors = kind(rng, atoms, rng.choice((UINT8, E4M3 if form.element is ElementType.E4M3 else E8M0)))
    return kind(rng, (m, n // per_byte), UINT8 if per_byte > 1 else E4M3), factors


def packed_call(package, rng, kinds):
    """Draw a call with elements of 4 bits, two in a byte, or of 8, whose factors are mostly in atoms."""
    operation, oddness = rng.choice(IN_ATOMS), rng.choice((0.02, 0.1, 1.0))
    first, scale = rng.choice(kinds), operation.a.scale

    def kind(*arguments):
        return (first if rng.random() < 0.95 else rng.choice(kinds))(*arguments, oddness)

    (m, n), k = (rng.choice(EXTENTS) for _ in range(2)), rng.choice((0, 16, 32, 96, 160, 4096))
    types = {ElementType.E4M3: (E4M3, 1), ElementType.E2M1: (UINT8, 2)}
    (of_x, x_per_byte), (of_w, w_per_byte) = types[operation.a.element], types[operation.b.element]
    held = rng.choice((UINT8, E4M3 if scale.element is ElementType.E4M3 else E8M0))

    def factors(rows):
        return draw_factors(rng, kind, scale, held, rows, k)

    rows = operation.num_rows_of_b(n)
    operands = kind(rng, (m, k // x_per_byte), of_x), kind(rng, (rows, k // w_per_byte), of_w)
    named = {"scale_x": factors(m), "scale_w": factors(rows), "out_dtype": operation.d.value}
    if operation.types.scales_d or rng.random() < 0.02:
        named["scale_out"] = draw_scale(rng, kind, ((), (1,)))
    if operation.factors_of_d is not None:
        own = ("scale_x", "scale_w") if operation.types.scales_sum else ()
        named |= {"out_dtype": operation.a.tag} | {x: (named[x], Own(draw_scale(rng, kind, ((), (1,))))) for x in own}
    if rng.random() < 0.7:
        named["out"] = draw_out(rng, kind, operation, m, n)
    if operation.has_bias or rng.random() < 0.02:
        named["bias"] = kind(rng, (rows,), DTYPE_OF[operation.bias.value])
    if operation.gate is not None:
        activation = "silu" if "swiglu" in operation.tag else "gelu_tanh"
        named |= {"activation": activation, "interleaved": rng.random() < 0.9}
        return package.gated_linear, operands, named
    if operation.has_residual or rng.random() < 0.02:
        named["residual"] = kind(rng, (m, n), DTYPE_OF[operation.bias.value])
    if operation.activation is not None:
        named["activation"] = operation.activation.value
    return package.linear, operands, named


def draw_weights(rng, kind, groups, shape, dtype):
    """Draw the weights of groups: one stack, or a list that mostly differs in addresses alone."""
    if rng.random() < 0.4:
        return kind(rng, (groups, *shape), dtype)
    first, *others = (kind(rng, shape, dtype) for _ in range(groups))
    for other in others if rng.random() < 0.9 else ():
        other.like = first  # whose extents and strides it points to
        for name in ("ndim", "code", "bits", "lanes", "shape", "strides"):
            setattr(other.view, name, getattr(first.view, name))
    weights = [first, *others]
    if rng.random() < 0.05:
        weights[rng.randrange(groups)] = rng.choice((*ODD_OBJECTS, None, kind(rng, (*shape, 1), dtype)))
    return weights if rng.random() < 0.98 else []


def draw_group_scales(rng, kind, operation, height, groups, rows, k):
    """Draw scale_x and scale_w of groups."""
    if operation.types.factors is None:
        return {}
    if operation.types.factors is FactorLayout.ATOMS:
        return draw_narrow_scales(rng, kind, operation, height, groups, rows, k)
    blocks = -(-k // 128)
    shapes_x, shapes_w = ((), (height,), (height, 1)), ((), (groups,), (groups, rows), (groups, 1, rows))
    if operation.types.factors is FactorLayout.BLOCK:
        shapes_x, shapes_w = ((height, blocks),), ((groups, -(-rows // 128), blocks),)
    return {"scale_x": draw_scale(rng, kind, shapes_x), "scale_w": draw_scale(rng, kind, shapes_w)}


def draw_narrow_scales(rng, kind, operation, height, groups, rows, k):
    """Draw those of NVFP4 and MXFP8, mostly in atoms, and the factors of groups' own."""
    scale = operation.a.scale
    held = (E4M3 if scale.element is ElementType.E4M3 else E8M0) if rng.random() < 0.8 else UINT8
    of_x = (num_atoms_of_groups(height, groups) * scale.size_of(1, k),)
    size = scale.size_of(rows, k)  # atoms as one run, as a row of each group, or rows of blocks
    of_w = rng.choices(((groups * size,), (groups, size), (groups, *scale.num_factors(rows, k))), (6, 2, 2))[0]
    found = {"scale_x": kind(rng, of_x, held), "scale_w": kind(rng, of_w, held)}
    if len(of_w) == 1 and rng.random() < 0.4:  # of each weight
        count = groups if rng.random() < 0.9 else rng.randrange(3)
        found["scale_w"] = [kind(rng, (scale.size_of(rows, k),), held) for _ in range(count)]
    if operation.types.scales_d or rng.random() < 0.02:
        found["scale_out"] = draw_scale(rng, kind, ((groups,), (groups,), (1,)))
    return found


def grouped_call(package, rng, kinds):
    """Draw a call of `grouped_linear`, most of whose operands go together."""
    operation, first, oddness = rng.choice(GROUPED), rng.choice(kinds), rng.choice((0.1, 1.0))

    def kind(*arguments):
        return (first if rng.random() < 0.95 else rng.choice(kinds))(*arguments, oddness)

    (m, n, k), groups = (rng.choice(EXTENTS) for _ in range(3)), rng.choice((1, 2, 3, 5, 130))
    a, b, d = (DTYPE_OF.get(x.value, UINT8) for x in (operation.types.a, operation.types.b, operation.d))
    per_byte = operation.types.a.num_sharing
    k = k // 32 * 32 if per_byte > 1 else k
    if operation.grouping is Grouping.K_GROUPED:
        operands = [kind(rng, (m, k), a), kind(rng, (n, k), b), kind(rng, (groups,), INT32)]
        return package.grouped_linear, operands, {"out": kind(rng, (groups, m, n), d)}
    is_gathered, rows = operation.grouping is Grouping.GATHERED, operation.num_rows_of_b(n)
    height = rng.choice(EXTENTS) if is_gathered else m
    weights = draw_weights(rng, kind, groups, (rows, k // per_byte), b)
    operands = [kind(rng, (height, k // per_byte), a), weights, kind(rng, (groups + (rng.random() < 0.3),), INT32)]
    named = draw_group_scales(rng, kind, operation, height, groups, rows, k)
    is_in_blocks = operation.factors_of_d is not None
    if is_in_blocks:
        named["out_dtype"] = operation.a.tag
    if is_in_blocks and (operation.types.scales_sum or rng.random() < 0.02):  # with the product of the operands' own
        named["scale_out"] = named.get("scale_out"), draw_scale(rng, kind, ((), (1,)))
    if rng.random() < 0.7:
        named["out"] = draw_out(rng, kind, operation, m, n, groups)
    elif not is_in_blocks:
        named["out_dtype"] = NAMES[d]
    if is_gathered:
        named["index"] = kind(rng, (m,), INT32) if rng.random() < 0.97 else rng.choice(ODD_OBJECTS)
    if operation.gate is not None:
        in_turns = 0.9 if operation.types.factors is FactorLayout.ATOMS else 0.5  # else factors do not fit
        gate = "silu" if "swiglu" in operation.tag else "gelu_tanh"
        named |= {"gate": gate, "interleaved": rng.random() < in_turns}
    if operation.has_bias and rng.random() < 0.5:
        operands.append(kind(rng, (groups, rows), d))
    return package.grouped_linear, operands, named


def plan_call(package, rng, kinds):
    """Draw a call of `plan` or `explain`."""
    named = {
        "dtype": rng.choice((*NAMES.values(), "nvfp4", "mxfp8")),
        "weight_dtype": rng.choice((*(None,) * 20, *NAMES.values())),
        "out_dtype": rng.choice((*(None,) * 20, *NAMES.values())),
        "activation": rng.choice((None, "relu", "gelu", "gelu_tanh", "silu")),
        "scales": rng.choice((None, None, "vector", "block")),
        "target": None,
        **{name: rng.random() < 0.4 for name in ("bias", "residual", "gated", "allow_tf32", "use_fast_accum")},
    }
    if rng.random() < 0.3:
        named |= {"groups": rng.choice((1, 3, 2**31 - 1, 0)), "grouping": rng.choice((None, "gathered", "kgrouped"))}
    if rng.random() < 0.1:
        named[rng.choice(tuple(named))] = rng.choice((*ODD_OBJECTS, kinds[0](rng, (2,), BFLOAT16)))
    shape = (rng.choice((*EXTENTS, *ODD_EXTENTS) if rng.random() < 0.1 else EXTENTS) for _ in range(3))
    return package.plan if rng.random() < 0.7 else package.explain, tuple(shape), named


def call(package, rng, kinds):
    """Make one call; gives the name of what it raised, or `ok`."""
    draws = (plain_call, full_call, packed_call, grouped_call, packed_linear_call, many_call, plan_call, row_call)
    draw = rng.choices((*draws, packed_grouped_call), (9, 9, 9, 6, 5, 3, 2, 6, 3))[0]
    function, operands, named = draw(package, rng, kinds)
    if rng.random() < 0.02 and len(operands) > 1:
        operands = (operands[0], rng.choice((None, *ODD_OBJECTS)), *operands[2:])
    try:
        if draw in (plain_call, full_call, packed_call, packed_linear_call) and rng.random() < 0.1:
            operands = (operands[0], package.constant(operands[1]), *operands[2:])
        function(*operands, **named)
    except (package.AotGemmError, MemoryError) as error:
        return type(error).__name__
    return f"ok {draw.__name__}"


def operations_launched(library, operations):
    """Return the operations, of those by kernel, whose kernels the recorder has launches of."""
    record, found = FakeLaunch(), set()
    for index in range(library.recorder_num_fake()):
        library.recorder_fake(index, ctypes.byref(record))
        found.add(operations[record.kernel])
    return found


def main():
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sys.path.insert(0, str(folder.parent))
    package = import_module(folder.name)
    library = ctypes.CDLL(str(package._library.LIBRARY))
    manifest = json.loads((folder / "manifest.json").read_text())
    operations = [Operation(x["operation"]).call for x in manifest["kernels"] if "limits" not in x]
    row_operations = [x["operation"] for x in manifest["kernels"] if "limits" in x]
    rng = random.Random(seed)
    frameworks = [GarbageFramework(rng), GarbageFramework(rng, views=False, stream=0x6660)]
    kinds = [*(x.Tensor for x in frameworks), Garbage]
    outcomes, launches, launched = collections.Counter(), 0, set()
    for i in range(count):
        if i % 500 == 0:
            launches += library.recorder_num_fake() + library.recorder_num_rows()
            launched |= operations_launched(library, operations)
            launched |= row_operations_launched(library, row_operations)
            library.recorder_reset()
            library.recorder_reset_rows()
            for framework in frameworks:
                for kept in (framework._alive, framework.deleted, framework.allocated):
                    kept.clear()
        outcomes[call(package, rng, kinds)] += 1
    launched |= operations_launched(library, operations) | row_operations_launched(library, row_operations)
    launches += library.recorder_num_fake() + library.recorder_num_rows()
    totals = {"launches": launches, "idle": sorted({*operations, *row_operations} - launched)}
    print(json.dumps({**outcomes, **totals}, sort_keys=True))


if __name__ == "__main__":
    main()
