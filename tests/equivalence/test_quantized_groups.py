"""Groups of rows whose D is NVFP4, MXFP8 or MXFP4 with factors, executed: held against the rules, and read by a second.

Of the plain product every sum is a number of float32, so that D is the rules' own rounding of it, code by code, and so
are its factors. All that no group's row is of, NaN among it, stays as it was and reaches no result. `make test` holds
the fallback against the rules, and chains two products in test_rounded_experts.py; `make walk` has all.
"""

from itertools import pairwise

import numpy as np
import pytest

from aot.core.block_quantization import Quantized, quantize
from aot.core.candidate import KernelKey
from aot.core.factor_atoms import num_atoms_of_groups, row_in_atoms
from aot.core.formats import BLOCK_FORMATS
from aot.core.numerics import unpack
from aot.core.operands import AtomMatrix, GemmCall, Matrix, Tensor
from aot.core.operation import Operation as Op
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.core.weight_format import ATOM_ROWS
from aot.kinds.gemm.edge_shapes import SIZES, shape_of
from aot.kinds.gemm.group_inputs import GroupSizes
from aot.kinds.gemm.tuned import TunedKernel
from aot.measure.verify import Verifier
from tests.compiling import EVERY
from tests.equivalence.test_quantized_results import (
    FALLBACK,
    OWN,
    Device,
    exact_operand,
    started,
    wrong_sums,
)
from tests.unit.accepted import named

pytestmark = pytest.mark.slow
ENDS = (0, 1, 131, 131, 137)
"""An empty group, one of one row, one whose rows begin inside of an atom and fill more than one, and another empty."""
M, N, K, LAST_N = ENDS[-1] + 3, 96, 64, 32
"""Three rows are of no group."""
NAME = "sm100_grouped_block_scale_128x64_c1x1_static"
SECONDS = {x: KernelKey(Op(f"{x}_bf16_kk_grouped"), named(NAME)) for x in ("nvfp4", "mxfp8", "mxfp4")}
"""What reads a D in a format."""
PLAIN, GATE = Op.NVFP4_NVFP4_KK_GROUPED, Op.NVFP4_NVFP4_KK_GROUPED_SWIGLU
CHAINED = [(PLAIN, NAME)]
MORE = [
    (PLAIN, FALLBACK),
    (PLAIN, "sm100_grouped_block_scale_128x192_c1x1_clc"),
    (PLAIN, "sm100_grouped_block_scale_256x64_c2x1_static_2cta"),
    (GATE, FALLBACK),
    (GATE, "sm100_grouped_block_scale_128x128_c1x1_static"),
    (GATE, "sm100_grouped_block_scale_256x128_c2x1_clc_2cta"),
    (Op.MXFP8_MXFP8_KK_GROUPED, NAME),
    (Op.MXFP8_MXFP8_KK_GROUPED, FALLBACK),
    (Op.MXFP8_MXFP8_KK_GROUPED_SWIGLU, "sm100_grouped_block_scale_256x64_c2x1_clc_2cta"),
    (Op.MXFP4_MXFP4_KK_GROUPED, "sm100_grouped_block_scale_256x128_c2x1_static_2cta"),
    (Op.MXFP4_MXFP4_KK_GROUPED_SWIGLU, NAME),
    (Op.MXFP4_MXFP4_KK_GROUPED_SWIGLU, FALLBACK),
]
TRIED = [(*CHAINED[0], ((9, 96, 64), (30, 224, 288)), SIZES)]
TRIED += [(*x, ((30, 224, 288), (160, 32, 96)), SIZES[2:3]) for x in MORE if x[1] != FALLBACK]
TRIED += [(x, FALLBACK, ((2, 34, 33), (20, 90, 35)), SIZES[:1]) for x, name in MORE if name == FALLBACK]
TRIED += [(x, NAME, ((9, 48, 80), (30, 208, 272)), SIZES) for x in (Op.MXFP8_MXFP8_KK_GROUPED,)]
SMALL = [(PLAIN, FALLBACK, ((2, 34, 33),), (GroupSizes.SHORT,))]


@pytest.mark.parametrize(
    ("operation", "name", "extents", "sizes"), TRIED if EVERY else SMALL, ids=lambda x: getattr(x, "tag", None)
)
def test_ragged_groups_are_right_and_nothing_else_is_written(operation, name, extents, sizes, tmp_path):
    gpu, kernels, record = started(KernelKey(operation, named(name)), tmp_path)
    tuned = TunedKernel.of(record, is_fallback=name == FALLBACK)
    verifier = Verifier(gpu, kernels, np.random.default_rng(3))
    for each in extents:
        for shared in sizes:
            assert verifier.run_each(shape_of(tuned, each, sizes=shared), 0, (False,)).share_of_bound <= 1


def rows_of_groups():
    """Give the number, the rows of D and the rows of atoms of each group that has some."""
    bounds = enumerate(pairwise((0, *ENDS)))
    return [(g, slice(x, y), slice(row_in_atoms(x, x, g), row_in_atoms(y, x, g))) for g, (x, y) in bounds if y > x]


def form_of(operation):
    """Give a format's name, its elements and its factors."""
    return operation.a.tag, *BLOCK_FORMATS[operation.a.tag]


def in_atoms(factors):
    """Put the factors of rows into the atoms of groups, among NaN."""
    held = AtomMatrix(num_atoms_of_groups(M, len(ENDS)) * ATOM_ROWS, factors.shape[1], 0, 0)
    codes = np.full(held.num_elements, 0xFF, np.uint8)
    for _, rows, of_atoms in rows_of_groups():
        codes[held.all_positions[0][of_atoms]] = factors[rows]
    codes[held.filled] = 0
    return codes, held


def run_groups(device, index, operation, x, weights, own, beside):
    """Run a grouped product of tensors on the device; the weights of all groups are one stack."""
    rows, k = weights[0].codes.shape
    stack = np.concatenate([w.packed for w in weights])
    atoms = [device.operand(w)[1] for w in weights]
    of_w = np.concatenate([device.get(t.address, t.matrix.num_elements) for t in atoms])
    count, n = len(weights), rows // operation.num_rows_of_b(1)
    operands = dict(zip((Argument.A, Argument.SCALE_A), x, strict=True)) | {
        Argument.B: Tensor(device.put(stack), Matrix(rows, k, k, 1, count, rows * k)),
        Argument.SCALE_B: Tensor(device.put(of_w), atoms[0].matrix.stacked(count)),
        Argument.OFFSETS: Tensor(device.put(np.array(ENDS, np.int32)), Matrix(count, 1, 1, 1)),
    }
    if own is not None:
        both = np.array([own * w.tensor_factor for w in weights], np.float32)
        operands[Argument.SCALE_D] = Tensor(device.put(both), Matrix(count, 1, 1, 1))
    problem = Problem(operation, M // count, n, k, count)
    device.run(index, GemmCall(problem, operands | beside, is_interleaved=operation.gate is not None))


@pytest.mark.walk
@pytest.mark.parametrize(("operation", "name"), CHAINED + MORE, ids=lambda x: getattr(x, "tag", None))
def test_a_second_product_of_groups_reads_what_rounding_would_give(operation, name, tmp_path):
    rng, (form, element, scale) = np.random.default_rng(11), form_of(operation)
    own, blocks, second = OWN if scale.has_tensor_factor else None, N // scale.block_k, SECONDS[form]
    device = Device(KernelKey(operation, named(name)), tmp_path, second)
    x, shapes = exact_operand(rng, M, K, form), ((operation.num_rows_of_b(N), K), (LAST_N, N))
    weights, last = ([exact_operand(rng, *y, form) for _ in ENDS] for y in shapes)
    codes, held = in_atoms(x.factors)
    given = Tensor(device.put(x.packed), Matrix(M, K, K, 1)), Tensor(device.put(codes), held)
    d = Tensor(device.put(np.full((M, element.size_of(N)), 0xFF, np.uint8)), Matrix(M, N, N, 1))
    atoms = AtomMatrix(num_atoms_of_groups(M, len(ENDS)) * ATOM_ROWS, blocks, 0, 0)
    factors = Tensor(device.put(np.full(atoms.num_elements, 0xFF, np.uint8)), atoms)
    beside = {Argument.D: d, Argument.FACTORS_D: factors} | (
        {} if own is None else {Argument.OWN_D: device.number(own)}
    )
    run_groups(device, 0, operation, given, weights, x.tensor_factor, beside)

    elements = device.get(d.address, M * element.size_of(N)).reshape(M, -1)
    elements = unpack(elements) if element.num_sharing > 1 else elements
    written = device.get(factors.address, atoms.num_elements)
    whole = np.full((M, blocks), 0xFF, np.uint8)
    for group, rows, of_atoms in rows_of_groups():
        whole[rows] = written[atoms.all_positions[0][of_atoms]]
        if operation.gate is None:
            first = x.values[rows] @ weights[group].values.T
            wanted = quantize(first.astype(np.float32), form, own)
            assert np.array_equal(first.astype(np.float32), first)
            assert np.array_equal(elements[rows], wanted.codes)
            assert np.array_equal(whole[rows], wanted.factors)
    assert (elements[ENDS[-1] :] == (0xF if element.num_sharing > 1 else 0xFF)).all()
    expected, _ = in_atoms(whole)  # NaN in the rows of no group, and zeros behind the blocks of those of groups
    of_groups = np.concatenate([np.arange(x.start, x.stop) for _, _, x in rows_of_groups()])
    fill = atoms.filled.reshape(-1, -blocks % 4)
    expected[np.delete(fill, of_groups, 0)] = 0xFF
    assert np.array_equal(written, expected)

    out = Tensor(device.put(np.full((M, LAST_N), 0xFFFF, np.uint16)), Matrix(M, LAST_N, LAST_N, 1))
    run_groups(device, 1, second.operation, (d, factors), last, own, {Argument.D: out})
    found = device.get(out.address, M * LAST_N, np.uint16).reshape(M, LAST_N)
    for group, rows, _ in rows_of_groups():
        middle = Quantized(elements[rows], whole[rows], own, BLOCK_FORMATS[form])
        assert wrong_sums(found[rows], middle.values, last[group].values) == 0
    assert (found[ENDS[-1] :] == 0xFFFF).all()
