"""A layer of experts in NVFP4 as `QuantizedExperts` calls it, executed: both products read packed stacks as they lie.

An expert's elements and the atoms of its factors are one run of bytes, so that the atoms of all are at one step that is
not their size. What fills rows, stacks and atoms up is not zero: -6 among elements, NaN among factors.
"""

import ctypes
from itertools import pairwise

import numpy as np
import pytest

from aot.core.block_quantization import Quantized, quantize
from aot.core.candidate import KernelKey
from aot.core.element import ElementType
from aot.core.factor_atoms import num_atoms_of_groups
from aot.core.formats import BLOCK_FORMATS
from aot.core.numerics import decode, unpack
from aot.core.operands import AtomMatrix, GemmCall, Matrix, Tensor
from aot.core.operation import Operation as Op
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.core.weight_format import ATOM_ROWS, NVFP4_ROWS, PackedLayout, WeightParts
from aot.core.weight_packing import pack
from aot.emulate.code import DeviceCode
from aot.emulate.gpu import EmulatedGpu
from aot.emulate.host import EmulatedKernels
from tests.compiling import EVERY
from tests.emulated import emulated_set
from tests.equivalence.test_quantized_groups import ENDS, in_atoms, rows_of_groups
from tests.equivalence.test_quantized_groups import M as ROWS
from tests.equivalence.test_quantized_results import Device
from tests.unit.accepted import named

pytestmark = pytest.mark.slow
HIDDEN, WIDTH, LAST = 160, 96, 40
"""Columns of x, between the products, and of the result: blocks and rows that fill no atom, and rows no 16."""
OF_X, OF_MIDDLE = np.float32(2.0**-9), np.float32(2.0**-8)
GATE, DOWN = Op.NVFP4_NVFP4_KK_GROUPED_SWIGLU, Op.NVFP4_BF16_KK_GROUPED
FORM = "nvfp4"
NAMES = [("128x64_c1x1_static", "128x64_c1x1_static")]
MORE = [("128x128_c1x1_clc", "128x128_c1x1_clc"), ("256x128_c2x1_static_2cta", "256x64_c2x1_static_2cta")]


class Stacks(EmulatedKernels):
    """Kernels that are called with the address of each group's factors, as the binding makes them of a stack."""

    def bind(self, call, *, b_is_constant=False):
        bound = super().bind(call, b_is_constant=b_is_constant)
        count, step = call.tensors[Argument.B].matrix.num_groups, self.steps[call.problem.operation]
        self.first = bound.scale_b.data
        bound.scale_b_of_groups = (ctypes.c_void_p * count)(*(self.first + i * step for i in range(count)))
        bound.scale_b.data, bound.group_strides.scale_b = None, 0
        return bound

    def _declare(self, bound, workspace):
        bound.scale_b.data = self.first
        super()._declare(bound, workspace)
        bound.scale_b.data = None


class Layer(Device):
    """The emulated device with both kernels and the packed weights of all experts."""

    def __init__(self, names, folder, rng):
        keys = [KernelKey(x, named(f"sm100_grouped_block_scale_{y}")) for x, y in zip((GATE, DOWN), names, strict=True)]
        made = emulated_set(keys, "thor", folder)
        self.gpu = EmulatedGpu(made.target.l2_bytes)
        self.kernels = Stacks(made.library, [DeviceCode.of(x) for x in made.products], self.gpu, made.target)
        shapes = {GATE: (2 * WIDTH, HIDDEN), DOWN: (LAST, WIDTH)}
        self.weights = {x: [self.drawn(rng, *y) for _ in ENDS] for x, y in shapes.items()}
        stacks = {x: np.stack([packed(w) for w in y]) for x, y in self.weights.items()}
        self.held = {x: (self.put(y), y.shape[1:]) for x, y in stacks.items()}
        self.kernels.steps = {x: y[0].nbytes for x, y in stacks.items()}

    @staticmethod
    def drawn(rng, rows, k):
        wide = rng.standard_normal((rows, k)) / k**0.5 * rng.uniform(0.3, 3.0, (rows, k // 16)).repeat(16, 1)
        return quantize(wide.astype(np.float32), FORM)

    def multiply(self, index, operation, x, own, beside):
        """Multiply rows in groups by the packed stack of an operation."""
        weights, (address, (_, row_bytes)) = self.weights[operation], self.held[operation]
        (rows, k), count = weights[0].codes.shape, len(weights)
        step = 2 * self.kernels.steps[operation]
        behind = PackedLayout(NVFP4_ROWS).first_atom_row(rows) * row_bytes
        both = np.array([own * w.tensor_factor for w in weights], np.float32)
        operands = dict(zip((Argument.A, Argument.SCALE_A), x, strict=True)) | {
            Argument.B: Tensor(address, Matrix(rows, k, 2 * row_bytes, 1, count, step)),
            Argument.SCALE_B: Tensor(address + behind, AtomMatrix(rows, k // 16, 0, 0).stacked(count)),
            Argument.SCALE_D: Tensor(self.put(both), Matrix(count, 1, 1, 1)),
            Argument.OFFSETS: Tensor(self.put(np.array(ENDS, np.int32)), Matrix(count, 1, 1, 1)),
        }
        n = rows // operation.num_rows_of_b(1)
        problem = Problem(operation, ROWS // count, n, k, count)
        self.run(index, GemmCall(problem, operands | beside, is_interleaved=operation is GATE))


def packed(weight):
    """Pack a weight as `aot pack` does, and fill what is nobody's with what no result may show."""
    rows, k = weight.codes.shape
    found = pack(NVFP4_ROWS, WeightParts(weight.codes, weight.factors))
    first = PackedLayout(NVFP4_ROWS).first_atom_row(rows)
    found[:first, k // 2 :] = found[rows:first] = 0xFF
    whole = AtomMatrix(-(-rows // ATOM_ROWS) * ATOM_ROWS, -(-k // 64) * 4, 0, 0)
    atoms = found[first:].reshape(-1)
    atoms[whole.all_positions[0][rows:]] = 0xFF
    return found


def silu_mul(sums):
    gate, line = sums[:, ::2], sums[:, 1::2]
    return gate / (1 + np.exp(-gate)) * line


@pytest.mark.parametrize("names", NAMES + MORE if EVERY else NAMES, ids="-".join)
def test_a_layer_is_that_of_float64_with_inputs_rounded_alike(names, tmp_path):
    rng = np.random.default_rng(4)
    layer = Layer(names, tmp_path, rng)
    x = quantize(rng.standard_normal((ROWS, HIDDEN)).astype(np.float32), FORM, OF_X)
    codes, atoms = in_atoms(x.factors)
    given = Tensor(layer.put(x.packed), Matrix(ROWS, HIDDEN, HIDDEN, 1)), Tensor(layer.put(codes), atoms)
    d = Tensor(layer.put(np.full((ROWS, WIDTH // 2), 0xFF, np.uint8)), Matrix(ROWS, WIDTH, WIDTH, 1))
    of_d = AtomMatrix(num_atoms_of_groups(ROWS, len(ENDS)) * ATOM_ROWS, WIDTH // 16, 0, 0)
    factors = Tensor(layer.put(np.full(of_d.num_elements, 0xFF, np.uint8)), of_d)
    own = Tensor(layer.put(np.array([OF_MIDDLE])), Matrix(1, 1, 1, 1))
    written = {Argument.D: d, Argument.FACTORS_D: factors, Argument.OWN_D: own}
    layer.multiply(0, GATE, given, x.tensor_factor, written)
    out = Tensor(layer.put(np.full((ROWS, LAST), 0xFFFF, np.uint16)), Matrix(ROWS, LAST, LAST, 1))
    layer.multiply(1, DOWN, (d, factors), OF_MIDDLE, {Argument.D: out})

    elements = unpack(layer.get(d.address, ROWS * WIDTH // 2).reshape(ROWS, -1))
    held = layer.get(factors.address, of_d.num_elements)[of_d.all_positions[0]]
    found = decode(ElementType.BFLOAT16, layer.get(out.address, ROWS * LAST, np.uint16).reshape(ROWS, LAST))
    for group, (start, end) in enumerate(pairwise((0, *ENDS))):
        if start == end:
            continue
        of_atoms = next(z for g, _, z in rows_of_groups() if g == group)
        gated = silu_mul(x.values[start:end] @ layer.weights[GATE][group].values.T)
        wanted = quantize(gated.astype(np.float32), FORM, OF_MIDDLE)
        # A sum between two numbers may be rounded to either: few are off, none by more than a block's largest step.
        middle = Quantized(elements[start:end], held[of_atoms], OF_MIDDLE, BLOCK_FORMATS[FORM])
        off = np.abs(middle.values - wanted.values)
        assert (off > 0).mean() < 0.01
        assert off.max() <= np.abs(wanted.values).max() / 3
        assert end - start < ATOM_ROWS or gated.max() > 2 * wanted.values.max()  # some are past what there is room for
        exact = middle.values @ layer.weights[DOWN][group].values.T
        size = np.abs(middle.values) @ np.abs(layer.weights[DOWN][group].values).T
        assert (np.abs(found[start:end] - exact) <= 2.0**-8 * np.abs(exact) + 2.0**-15 * size).all()
    assert np.isnan(found[ENDS[-1] :]).all()  # which no group has
