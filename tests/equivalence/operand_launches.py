"""What the parameters of a launch must be, of any operation: derived from the problem that the C API was given, alone.

A kernel's parameters are, in this order: on Blackwell the tiled MMA, which is types only; of each operand a descriptor
and the extents that are known at run time; the vectors of the epilogue; what the groups are found by; and how the tiles
are numbered. Tensors without a descriptor are an address, int32 extents and int64 strides, as CuTe DSL exports them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import ceil, prod

from aot.core.element import ElementType
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.target import load_target
from aot.measure.call_structs import B_CONSTANT, GATE_INTERLEAVED, GATE_PARTS, OFFSETS_START
from tests.equivalence.descriptor import TensorMap
from tests.equivalence.expected import LARGE_BYTES
from tests.equivalence.families.sm100_quack import divisor, num_in_group, schedule, walk
from tests.equivalence.next_start import AT_ONCE, when

ALIGNMENT, BLOCK = 16, 128
ATOM_ROWS, ATOM_BLOCKS, ATOM_BYTES = 128, 4, 512
ROW_BYTES = 128
"""Of k, in a row of shared memory."""
SMEM_OF_SM, SMEM_OF_SYSTEM = 228 * 1024, 1024
"""Bytes of an SM, and those of them that each CTA leaves to the system. Source: CUDA C++ Programming Guide."""
FAR, NO_END = 2**30, 2**31 - 1
"""Extents of a descriptor whose rows are a group's: the group's end is moved to the last of so many rows, and what is
added to the address for that is taken off by a further mode. Source: quack copy_utils.py,
`create_ragged_tensor_for_tma`."""
PLACES = 1 << 46
"""Where the places of groups are to be written; replay.cc has it too."""
LARGEST_STEP = 1 << 30
"""Between places, in bytes."""
ADDRESS_BITS, SPAN_BITS = 57, 64
"""Of a descriptor's address, which is computed modulo 2^64; of the sum of strides that is to wrap around."""
PADDED = "padded"
"""Elements of 4 bits beside an operand of 8: each takes a byte of shared memory, and rows begin at 32 bytes."""
DTYPES = {
    "bf16": {"bfloat16"},
    "fp16": {"float16"},
    "e4m3": {"uint8"},
    "e5m2": {"uint8"},
    "int8": {"uint8"},
    "int32": {"uint32", "float32"},
    "fp32": {"float32"},
    "tf32": {"float32"},
    "e2m1": {"two e2m1 a byte"},
    PADDED: {"two e2m1 a byte, padded in shared memory"},
}
"""What a descriptor may say of an element type: its width counts, and that tf32 is rounded on the way, by bit 16."""


def step_of_places(addresses):
    """Give the largest power of two, up to a limit, of which all addresses are multiples behind the least."""
    bits = LARGEST_STEP
    for address in addresses:
        bits |= address - min(addresses)
    return bits & -bits


@dataclass(frozen=True)
class Map:
    """A descriptor's content but for its box: modes fastest first, strides in bytes."""

    dtypes: frozenset[str]
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    element_bits: int
    is_tf32: bool = False
    box: tuple[int, ...] | None = None
    """Where it is known: of what is loaded."""

    def differences(self, found):
        """Say how a decoded descriptor is another; empty where it is not."""
        inner = found.box[0] * (8 if self.dtypes == DTYPES[PADDED] else self.element_bits) // 8
        wanted = TensorMap(
            dtype=found.dtype if found.dtype in self.dtypes else str(set(self.dtypes)),
            address=self.address % 2**ADDRESS_BITS,
            extents=self.extents,
            strides=self.strides,
            box=self.box or found.box,
            element_strides=(1,) * len(self.extents),
            interleave=0,
            swizzle={32: 1, 64: 2, 128: 3}.get(inner, 0),
            l2_promotion=2,
            nan_fill=False,
            bit_1=True,
            bit_21=self.span >= LARGE_BYTES,
            tf32=self.is_tf32,
            atomicity=found.atomicity if self.is_stored_by_words else 0,
        )
        return [(x, vars(found)[x], vars(wanted)[x]) for x in vars(wanted) if vars(found)[x] != vars(wanted)[x]]

    @property
    def is_stored_by_words(self):
        """Say whether it is a D of 32 bits, of whole numbers or not, swizzled by 16 bytes or by 32."""
        return self.box is None and self.element_bits == 32

    @property
    def span(self):
        """Give the bytes from the first element to past the last, in 64 bits, around which a group's rows wrap."""
        steps = (self.element_bits, *(8 * x for x in self.strides))
        reach = sum((x - 1) * y for x, y in zip(self.extents, steps, strict=True))
        return (reach + self.element_bits) // 8 % 2**SPAN_BITS


@dataclass(frozen=True)
class Plain:
    """A parameter's bytes; those of a tensor with an odd number of extents have four among them that mean nothing."""

    content: bytes
    num_extents: int = 0

    def differences(self, found):
        """Say how a parameter is another; empty where it is not."""
        if self.num_extents % 2:
            end = 8 + 4 * self.num_extents
            found = found[:end] + bytes(4) + found[end + 4 :]
        return [] if found == self.content else [(found.hex(" ", 4), self.content.hex(" ", 4))]


def tensor(address, extents, strides):
    """Give a tensor without a descriptor."""
    content = struct.pack(f"<Q{len(extents)}i", address or 0, *extents)
    content += bytes(-len(content) % 8) + struct.pack(f"<{len(strides)}q", *strides)
    return Plain(content, len(extents))


def integer(value):
    return Plain(struct.pack("<I", value & 0xFFFFFFFF))


def has_halves(operation):
    """Say whether fast kernels see B as the rows of a gate and the linear ones, and not as they alternate."""
    return operation.gate is not None and not operation.is_interleaved


class Operands:
    """The operands of a problem as kernels see them."""

    def __init__(self, kernel, problem):
        self.kernel, self.operation, self.problem = kernel, kernel.operation, problem
        self.is_interleaved = bool(problem.flags & GATE_INTERLEAVED)
        self.has_parts = bool(problem.flags & GATE_PARTS)
        is_fast, self.step = kernel.num_strides == 1, problem.group_strides.b if self.has_parts else 0
        self.is_linear_first = is_fast and self.step < 0
        self.grouping, self.steps = kernel.operation.grouping, problem.group_strides
        self.groups = problem.num_groups
        self.offsets_count = self.groups + bool(problem.flags & OFFSETS_START)

    @property
    def separate(self):
        """Give the addresses of separate B; none where they are one stack."""
        return self.problem.b_of_groups[: self.groups] if self.problem.b_of_groups else []

    @property
    def separate_factors(self):
        """Give the addresses of separate atoms of B's factors; none where they are one run, or one of one group."""
        given = self.problem.scale_b_of_groups
        return given[: self.groups] if given and self.groups > 1 else []

    @property
    def stack_of_b(self):
        """Give address, count and step in elements of the stack that the groups' B are seen as."""
        if not self.separate:
            return self.problem.b.data, self.groups, self.steps.b
        return min(self.separate), NO_END, self.operation.types.b.num_in(step_of_places(self.separate))

    def places(self):
        """Give the table of the places of groups, of groups of rows."""
        if not self.grouping.groups_rows:
            return []
        return [tensor(PLACES if self.separate else 0, [len(self.separate)], [])]

    def places_of_factors(self):
        """Give the table of the places of the groups' atoms, behind that of B."""
        if not self.grouping.groups_rows or self.operation.types.factors is not FactorLayout.ATOMS:
            return []
        count, behind = len(self.separate_factors), ceil(4 * len(self.separate) / ALIGNMENT) * ALIGNMENT
        return [tensor(PLACES + behind if count else 0, [count], [])]

    @property
    def first_factors(self):
        """Give the address of B's factors, or the least of them."""
        given = self.problem.scale_b_of_groups
        return min(given[: self.groups]) if given else self.problem.scale_b.data

    def _leading(self, name, rows, columns, element, *, row_major):
        """Give the stride that counts: where there is a single run, its length in pieces of 16 bytes, or 32."""
        outer, inner = (rows, columns) if row_major else (columns, rows)
        step = element.num_in(2 * ALIGNMENT if self.is_padded(name) else ALIGNMENT)
        return getattr(self.problem, name).strides[not row_major] if outer > 1 else ceil(inner / step) * step

    def is_padded(self, name):
        """Say whether an operand's elements of 4 bits lie beside those of 8."""
        bits = {"a": self.operation.types.a.bits, "b": self.operation.types.b.bits}
        return bits.get(name) == 4 and set(bits.values()) == {4, 8}

    @property
    def height(self):
        return self.problem.rows_of_a if self.grouping is Grouping.GATHERED else self.problem.m

    @property
    def leading_of_a(self):
        """Give the stride from row to row of a row-major A."""
        return self._leading("a", self.height, self.problem.k, self.operation.types.a, row_major=True)

    def _matrix(self, name):
        """Give rows, columns, element type, whether rows are contiguous, and whether there is one for each group."""
        p, operation, is_k = self.problem, self.operation, self.grouping is Grouping.K_GROUPED
        is_batched = self.grouping is Grouping.BATCHED
        return {
            "a": (self.height, p.k, operation.types.a, operation.layout.a_k_major, is_batched),
            "b": (p.n, p.k, operation.types.b, operation.layout.b_k_major, is_batched or self.grouping.groups_rows),
            "d": (p.m, p.n, operation.types.d, True, is_batched or is_k),
            "residual": (p.m, p.n, operation.types.d, True, False),
        }[name]

    def _gate(self, leading):
        """Give the strides from gate to linear half and from row to row of one of the halves."""
        return (leading, 2 * leading) if self.is_interleaved else (self.problem.n * leading, leading)

    def _halves_of_b(self, leading):
        """Give the same of B, as it was stated."""
        return (self.step, leading) if self.has_parts else self._gate(leading)

    def linear_first(self):
        """Give what tells a fast kernel of a gate which half of B is in front."""
        return [integer(self.is_linear_first)] if has_halves(self.operation) and not self.groups else []

    def descriptor(self, name, box=None):
        """Give an operand's descriptor, and the extents beside it."""
        rows, columns, element, row_major, is_stack = self._matrix(name)
        if name == "b" and self.operation.is_interleaved:
            rows = self.operation.num_rows_of_b(rows)
        leading = self._leading(name, rows, columns, element, row_major=row_major)
        inner, outer = (columns, rows) if row_major else (rows, columns)
        extents, strides = [inner, outer], [leading]
        if name == "b" and has_halves(self.operation):
            leading = self.problem.b.strides[0]
            extents, (part, row) = [inner, 2, outer], self._halves_of_b(leading)
            strides = [abs(part), row]
        address, count, step = getattr(self.problem, name).data, self.groups, getattr(self.steps, name, 0)
        if name == "b":
            address, count, step = self.stack_of_b
            address += element.bytes_of(min(self.step, 0))
        if is_stack:
            extents.append(count)
            strides.append(step)
        shape = [rows, columns, *([count] if is_stack else [])]
        if (name == "d" and self.grouping.groups_rows) or (name in "ab" and self.grouping is Grouping.K_GROUPED):
            shape = [columns] if name == "d" else [rows]
            extents, strides = [inner, FAR, NO_END], [leading, leading]
            if name == "d":
                address -= element.bytes_of(FAR * leading)
            else:
                extents, strides = [*extents, NO_END], [leading, 2**SPAN_BITS // FAR - leading, leading]
        steps = tuple(map(element.bytes_of, strides))
        kind = PADDED if self.is_padded(name) else element.tag
        map_ = Map(
            frozenset(DTYPES[kind]), address % 2**SPAN_BITS, tuple(extents), steps,
            element.bits, element.tag == "tf32" and name in "ab", box,
        )  # fmt: skip
        return [map_, tuple(shape)]

    def plain(self, name):
        """Give an operand without a descriptor, for the fallback, which takes all strides."""
        rows, columns, _, _, is_stack = self._matrix(name)
        given, extents = getattr(self.problem, name), [rows, columns]
        strides = list(given.strides)
        if name == "b" and self.operation.gate is not None:
            extents, strides = [2, *extents], [*self._halves_of_b(strides[0]), strides[1]]
        address, count, step = given.data, self.groups, getattr(self.steps, name, 0)
        if name == "b":
            address, count, step = self.stack_of_b
        if is_stack:
            extents, strides = [count, *extents], [step, *strides]
        return tensor(address, extents, strides)

    def factors(self, name):
        """Give the factors of A's or of B's rows."""
        given, p = getattr(self.problem, name), self.problem
        rows = self.height if name == "scale_a" else self.operation.num_rows_of_b(p.n)
        if self.operation.types.factors is FactorLayout.ATOMS:
            down, along, count, _ = self._atoms_of(name)
            if name == "scale_b" and self.separate_factors:
                return tensor(self.first_factors, [step_of_places(self.separate_factors)], [])
            address = self.first_factors if name == "scale_b" else given.data
            return tensor(address, [count * down * along * ATOM_BYTES], [])
        extents, strides = [rows], [given.strides[0] if rows > 1 else 0]
        if self.operation.types.factors is FactorLayout.BLOCK:
            rows = rows if name == "scale_a" else ceil(rows / BLOCK)
            extents, strides = [rows, ceil(p.k / BLOCK)], list(given.strides)
        elif name == "scale_b" and self.operation.gate is not None:
            extents, strides = self._halves(p.n, given.strides[0])
        address = self._start(given.data, strides, ElementType.FLOAT32) if name == "scale_b" else given.data
        if name == "scale_b" and self.grouping.groups_rows:
            extents, strides = [self.groups, *extents], [self.steps.scale_b, *strides]
        return tensor(address, extents, strides)

    def _atoms_of(self, name):
        """Give how many atoms there are along the rows and along k, of how many matrices, and of what operand.

        Of groups each begins with an atom, of A as if each of those in front left one that is not full.
        """
        operand = self.operation.a if name == "scale_a" else self.operation.b
        rows = self.problem.m if name == "scale_a" else self.operation.num_rows_of_b(self.problem.n)
        down, along = ceil(rows / ATOM_ROWS), ceil(self.problem.k / operand.scale.block_k / ATOM_BLOCKS)
        if not self.grouping.groups_rows:
            return down, along, 1, operand
        return (down + self.groups - 1, along, 1, operand) if name == "scale_a" else (down, along, self.groups, operand)

    def atoms(self, name, box_rows, num_parts, *, is_of_x):
        """Give the descriptor of atoms of factors, 512 bytes each as 256 numbers, and how many there are each way.

        Those of a stage that CTAs of a cluster share are loaded by them in equal parts, one behind the other.
        """
        down, along, count, operand = self._atoms_of(name)
        in_a_stage = min(x.num_in(ROW_BYTES) for x in (self.operation.types.a, self.operation.types.b))
        of_a_stage = in_a_stage // operand.scale.block_k // ATOM_BLOCKS
        modes = [(along, ATOM_BYTES, of_a_stage), (down, along * ATOM_BYTES, ceil(box_rows / ATOM_ROWS))]
        down_first = of_a_stage == 1 and (is_of_x or box_rows > ATOM_ROWS)
        modes = [(ATOM_BYTES // 2, 2, ATOM_BYTES // 2), *(modes[::-1] if down_first else modes)]
        left, box = prod(x for _, _, x in modes) // num_parts, []
        for _, _, extent in modes:
            box.append(min(left, extent))
            left //= box[-1]
        extents, (_, *strides), _ = zip(*modes, strict=True)
        if name == "scale_b" and self.grouping.groups_rows:
            step = down * along * ATOM_BYTES
            if self.separate_factors:
                count, step = NO_END, step_of_places(self.separate_factors)
            extents, strides, box = (*extents, count), [*strides, step], [*box, 1]
        address = self.first_factors if name == "scale_b" else self.problem.scale_a.data
        return Map(frozenset({"uint16"}), address, extents, tuple(strides), 16, box=tuple(box)), (down, along, count)

    def _halves(self, n, stride):
        """Give extents and strides of a vector with a gate: a fast kernel has two halves of its columns' modes."""
        extents = [2, n] if self.kernel.num_strides == 2 else [n]
        part, row = self._gate(stride) if n else self._gate_of_none()
        return extents, [-part if self.is_linear_first else part, row]

    def _start(self, address, strides, element):
        """Give where a vector begins: at its linear half, where that of B is in front."""
        return (address or 0) - (strides[0] * element.num_bytes if self.is_linear_first else 0)

    def _gate_of_none(self):
        return [1, 2] if self.is_interleaved else [self.problem.n, 1]

    def bias(self):
        """Give the bias; one that is left away has no elements."""
        given, n = self.problem.bias, self.problem.n if self.problem.bias.data else 0
        extents, strides = [n], []
        if self.operation.gate is not None:
            extents, strides = self._halves(n, 1)
        address = self._start(given.data, strides, self.operation.bias)
        if self.grouping.groups_rows:
            steps = self.steps.bias if given.data else 0
            strides = strides or [1]
            extents, strides = [self.groups, *extents], [steps, *strides]
        return tensor(address, extents, strides)

    def starts(self):
        """Give what the groups are found by: the offsets, how many groups there are, and what is grouped."""
        p = self.problem
        extent = p.k if self.grouping is Grouping.K_GROUPED else p.m
        return [tensor(p.offsets.data, [self.offsets_count], []), integer(self.groups), integer(extent)]

    def index(self):
        """Give the index, where rows are gathered."""
        p = self.problem
        return [tensor(p.index.data, [p.m], [])] if self.grouping is Grouping.GATHERED else []

    def scale_d(self):
        count = self.groups if self.grouping.groups_rows else 1
        return [tensor(self.problem.scale_d.data, [count], [])] if self.operation.types.scales_d else []


def _row(count):
    """Give the widest swizzled row of 16-bit elements that an extent is made of."""
    return next(x for x in (64, 32, 16) if count % x == 0)


def _boxes(o):
    """Give the boxes by which a CTA loads its shares of X and Y, which a row or column of a cluster has together.

    What has no equal shares of 8 CTAs of `sm90_one_tile` load whole, in turns.
    """
    candidate, operation = o.kernel.candidate, o.operation
    pair = 2 if candidate.gemm.use_2cta else 1
    row = operation.types.a.num_in(ROW_BYTES)
    layout = operation.layout.a_k_major, operation.layout.b_k_major
    parts = (
        (candidate.gemm.tile_m // pair, candidate.gemm.cluster_n),
        (candidate.gemm.tile_n // pair, candidate.gemm.cluster_m // pair),
    )
    for (rows, shared), row_major in zip(parts, layout[::-1] if candidate.gemm.swap_ab else layout, strict=True):
        num_parts = 1 if candidate.family == ONE_TILE and rows % (8 * shared) else shared
        yield (row, rows // num_parts) if row_major else (_row(rows), row // num_parts)


def _loads(o):
    """Give the parameters of X and Y."""
    names = "ba" if o.kernel.candidate.gemm.swap_ab else "ab"
    for name, (inner, outer) in zip(names, _boxes(o), strict=True):
        box = inner, outer
        if name == "a" and o.grouping is Grouping.GATHERED:
            if o.kernel.candidate.family.startswith("sm90"):
                yield tensor(o.problem.a.data, [o.height, o.problem.k], [o.leading_of_a])
                continue
            box = inner, 1
        if name == "b" and has_halves(o.operation):
            box = inner, 2, outer // 2
        found, shape = o.descriptor(name)
        yield replace(found, box=(*box, *(1,) * (len(found.extents) - len(box))))
        yield Plain(struct.pack(f"<{len(shape)}i", *shape))
        if name == "b":
            yield from o.places()


def _atoms(o):
    """Give the parameters of the factors of X and Y: CTAs load atoms of their own rows, and of all columns of a tile.

    Of X the atoms down come first among the extents, of Y those along k.
    """
    if o.operation.types.factors is not FactorLayout.ATOMS:
        return
    knobs = o.kernel.candidate.gemm
    names = ("scale_b", "scale_a") if knobs.swap_ab else ("scale_a", "scale_b")
    sides = (knobs.tile_m // (1 + knobs.use_2cta), knobs.cluster_n), (knobs.tile_n, knobs.cluster_m)
    for number, (name, side) in enumerate(zip(names, sides, strict=True)):
        found, shape = o.atoms(name, *side, is_of_x=number == 0)
        yield found
        *shape, count = shape
        shape = (*(shape if number == 0 else shape[::-1]), *((count,) if number and o.grouping.groups_rows else ()))
        yield Plain(struct.pack(f"<{len(shape)}i", *shape))
    yield from o.places_of_factors()


def _stored(o, name):
    """Give the parameters of D or of a residual, which an exchanged kernel sees as their transpose."""
    found, shape = o.descriptor(name)
    shape = (*shape[1::-1], *shape[2:]) if o.kernel.candidate.gemm.swap_ab else shape
    return [found, Plain(struct.pack(f"<{len(shape)}i", *shape))]


def _vectors(o):
    """Give the vectors that an epilogue loads: of the kernel's rows, of its columns, the bias and D's factor."""
    found = [o.bias()] if o.operation.has_bias else []
    if o.operation.types.factors is FactorLayout.VECTOR:
        scales = [o.factors("scale_a"), o.factors("scale_b")]
        found = [*(scales[::-1] if o.kernel.candidate.gemm.swap_ab else scales), *found]
    return [*found, *o.scale_d()]


def _clusters(o):
    """Count the clusters along M and N: of a group's rows as many as groups of any sizes may have."""
    candidate, p = o.kernel.candidate, o.problem
    rows = candidate.gemm.tile_m // (2 if candidate.gemm.use_2cta else 1) * candidate.gemm.cluster_m
    extents = p.m, o.operation.num_rows_of_b(p.n)
    height, width = extents[::-1] if candidate.gemm.swap_ab else extents
    if o.grouping.groups_rows:
        height = (height + o.groups * (rows - 1)) // rows * rows
    return ceil(height / rows), ceil(width / (candidate.gemm.tile_n * candidate.gemm.cluster_n))


def _group_schedule(o):
    """Give the parameters by which quack numbers the tiles of groups of rows, whose columns come first."""
    _, columns = _clusters(o)
    group = num_in_group(columns)
    divisors = *divisor(group), *divisor(columns % group or 1)
    return [integer(columns), *o.starts()[1:], *o.starts(), integer(group), *map(Plain, divisors)]


def _ragged(o):
    """Give what loads the last rows of a matrix by smaller boxes: their descriptors, the extents, and the promise."""
    family, names = o.kernel.candidate.family, "ba" if o.kernel.candidate.gemm.swap_ab else "ab"
    if family not in ("sm90_prefetch_b", "sm90_block_scale"):
        return []
    tile = {"sm90_prefetch_b": (4, 1), "sm90_block_scale": (8, 8)}[family]
    maps = [o.descriptor(name)[0] for name, count in zip(names, tile, strict=True) for _ in range(count)]
    extents = (o.problem.n, o.problem.m) if names == "ba" else (o.problem.m, o.problem.n)
    promise = _starts(o, prod(_clusters(o))) if family == "sm90_prefetch_b" else []
    return [*maps, *map(integer, extents), *promise]


def _starts(o, num_clusters, blocks_per_sm=1, *, knows_loads=True):
    """Give whether B is constant, and when the next kernel may start, which on Thor is at once."""
    kernel, p, is_constant = o.kernel, o.problem, o.problem.flags & B_CONSTANT
    target = next(x for x in map(load_target, ("h200", "thor")) if x.num_sms == kernel.num_sms)
    if target.arch != "sm_90a":
        return [integer(is_constant), integer(AT_ONCE)]
    in_cluster = prod(cluster(kernel))
    splits = kernel.candidate.gemm.split_k if kernel.candidate.family == "sm90_prefetch_b" else 1
    products = max(o.groups, 1) if o.grouping is Grouping.BATCHED else 1
    num_bytes = p.m * p.k * o.operation.types.a.num_bytes
    num_bytes += o.operation.num_rows_of_b(p.n) * p.k * o.operation.types.b.num_bytes
    found = when(
        num_clusters * in_cluster * splits * products,
        target.num_clusters(in_cluster) * in_cluster * blocks_per_sm,
        num_bytes * products,
        round(target.bandwidth_bytes_per_s / 1e6),
        is_constant=is_constant,
        is_large_cluster=in_cluster >= 4,
        knows_loads=knows_loads,
    )
    return [integer(is_constant), integer(found)]


def _mma_bytes(o):
    """Give the bytes of the tiled MMA: of block-scaled instructions there is one whatever the CTAs."""
    is_scaled = o.operation.types.factors is FactorLayout.ATOMS
    return 12 if is_scaled else 32 * (2 if o.kernel.candidate.gemm.use_2cta else 1)


def _quack(o):
    """Give the parameters of quack's kernels, and of ours that are made of them."""
    is_block = o.operation.types.factors is FactorLayout.BLOCK
    has_gate = o.operation.gate is not None
    mma = bytes(_mma_bytes(o)) if "sm100" in o.kernel.candidate.family else bytes(1)
    found = [Plain(mma), *_loads(o), *_atoms(o)]
    found += [] if has_gate else _stored(o, "d")
    found += _stored(o, "residual") if o.operation.has_residual else []
    found += _vectors(o)
    found += [*_stored(o, "d"), *o.linear_first()] if has_gate else []
    if is_block:
        found += [o.factors("scale_a"), o.factors("scale_b")]
        found += [*o.starts(), *o.index()] if o.grouping.has_offsets else []
    found += [*o.starts(), *o.index()] if o.grouping.has_offsets else []
    found += _ragged(o)
    if o.grouping.groups_rows:
        return [*found, *_group_schedule(o)]
    return [*found, *map(Plain, schedule(_clusters(o), max(o.groups, 1)))]


def _d(o, name="d"):
    """Give D as our own kernels store it, or a residual as they read it, without a descriptor."""
    p, given, step = o.problem, getattr(o.problem, name), ALIGNMENT // o.operation.types.d.num_bytes
    extents, strides = [p.m, p.n], [given.strides[0] if p.m > 1 else ceil(p.n / step) * step]
    if o.grouping is Grouping.BATCHED:
        extents, strides = [o.groups, *extents], [o.steps.d, *strides]
    return tensor(given.data, extents, strides)


def _factors(o):
    """Give the factors of A and of B, where the operation has some."""
    return [o.factors(x) for x in ("scale_a", "scale_b")] if o.operation.types.is_scaled else []


def _skinny(o):
    """Give the parameters of our own kernel for few rows."""
    candidate, found = o.kernel.candidate, []
    for name, rows in (("a", candidate.gemm.tile_n), ("b", candidate.gemm.tile_m * candidate.gemm.cluster_m)):
        inner, is_pair = ROW_BYTES // o.operation.types.a.num_bytes, name == "b" and has_halves(o.operation)
        map_, shape = o.descriptor(name, (inner, 2, rows // 2) if is_pair else (inner, rows))
        found += [map_, Plain(struct.pack("<2i", *shape))]
    rows = candidate.gemm.tile_m * candidate.gemm.cluster_m // o.operation.num_rows_of_b(1)
    num_clusters = ceil(o.problem.m / candidate.gemm.tile_n) * ceil(o.problem.n / rows)
    blocks_per_sm = 2 if 2 * (o.kernel.smem_bytes + SMEM_OF_SYSTEM) <= SMEM_OF_SM else 1
    read = [*_factors(o), o.bias(), *o.linear_first()]
    return [*found, _d(o), *read, *_starts(o, num_clusters, blocks_per_sm, knows_loads=False)]


def _shared_k(o):
    """Give the parameters of our own kernel whose clusters share the k of a tile."""
    bias = [o.bias()] if o.operation.has_bias else []
    residual = [_d(o, "residual")] if o.operation.has_residual else []
    read = [*_factors(o), *bias, *residual, *o.scale_d(), *o.linear_first()]
    return [Plain(bytes(1)), *_loads(o), _d(o), *read, *_starts(o, prod(_clusters(o)))]


def _one_tile(o):
    """Give the parameters of our own kernel whose CTAs compute a tile each: also which groups of clusters there are.

    That is along which side they lie, how wide the last is, and of a batch how wide the others are.
    """
    along_columns, width, fast, _ = _groups(o)
    widths = fast % width or width, *((width,) if o.grouping is Grouping.BATCHED else ())
    return [*_shared_k(o), integer(along_columns), *(Plain(x) for each in widths for x in divisor(each))]


def _groups(o):
    """Give along which side groups of clusters lie in order 0, their width, and the clusters of that side and other."""
    rows, columns = _clusters(o)
    along_columns, width = walk(0, (rows, columns))
    fast, slow = (columns, rows) if along_columns else (rows, columns)
    return along_columns, min(width, fast), fast, slow


def _plain(o):
    """Give the parameters of our own kernel for any alignment: A, B and D with their leading strides, and the bias."""
    found = []
    for name in "abd":
        rows, columns, element, row_major, is_stack = o._matrix(name)
        extents, strides = [rows, columns], [o._leading(name, rows, columns, element, row_major=row_major)]
        if is_stack:
            extents, strides = [o.groups, *extents], [getattr(o.steps, name), *strides]
        found.append(tensor(getattr(o.problem, name).data, extents, strides))
    return [*found, o.bias()] if o.operation.has_bias else found


def _fallback(o):
    """Give the parameters of the fallback: the operands as they were stated."""
    operation, found, scales = o.operation, [o.plain(x) for x in "abd"], _factors(o)
    bias = [o.bias()] if operation.has_bias else []
    if o.grouping.has_offsets:
        return [*found, *scales, *bias, *o.scale_d(), o.starts()[0], *o.index(), *o.places(), *o.places_of_factors()]
    residual = [o.plain("residual")] if operation.has_residual else []
    return [*found, *bias, *scales, *residual, *o.scale_d()]


SHARED_K, ONE_TILE, ANY_ALIGNMENT = "sm90_cluster_split_k", "sm90_one_tile", "mma_sync"
PARAMETERS = {
    "simt": _fallback,
    "cluster_split_k": _skinny,
    SHARED_K: _shared_k,
    ONE_TILE: _one_tile,
    ANY_ALIGNMENT: _plain,
}


def parameters(kernel, problem):
    """List what each parameter of a launch must be."""
    return PARAMETERS.get(kernel.candidate.family, _quack)(Operands(kernel, problem))


def cluster(kernel):
    """Give the CTAs of a cluster along x, y and z."""
    along_m, along_n, splits = (getattr(kernel.candidate.gemm, x) for x in ("cluster_m", "cluster_n", "split_k"))
    is_along_x = kernel.candidate.family in (SHARED_K, ONE_TILE, ANY_ALIGNMENT)
    return (along_m * along_n * splits, 1, 1) if is_along_x else (along_m, along_n, 1)


def grid(kernel, problem):
    """Give the CTAs of a launch along x, y and z, of quack's kernels and of those whose clusters share k."""
    o, candidate, (x, y, _) = Operands(kernel, problem), kernel.candidate, cluster(kernel)
    count, products = prod(_clusters(o)), 1 if o.grouping.groups_rows else max(o.groups, 1)
    if candidate.family == ONE_TILE:
        _, width, fast, slow = _groups(o)
        return x * width * products, slow, ceil(fast / width)
    if candidate.family in (SHARED_K, ANY_ALIGNMENT):
        return x * count * products, 1, 1
    if candidate.gemm.schedule == "clc":
        return count * x, y, products
    return x, y, min(count * products, kernel.num_sms // (x * y))
