"""D in narrow elements with factors is held against the rules, whole and by a sample of blocks."""

from __future__ import annotations

import numpy as np
import pytest

from aot.core.block_quantization import quantize
from aot.core.factor_atoms import ATOM_BYTES, pack_factors, row_in_atoms
from aot.core.numerics import encode
from aot.core.operands import WRITTEN, operands
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.kinds.gemm.edge_shapes import edge_shapes
from aot.kinds.gemm.quantized import quantized_sample
from aot.kinds.gemm.timed import timed_arrangement
from aot.kinds.gemm.trial import GemmTrial
from aot.kinds.trial import SampleLimits
from tests.unit.twins import kernel_of

PLAIN, GATE = Operation.NVFP4_NVFP4_KK, Operation.NVFP4_NVFP4_KK_SWIGLU
GROUPED = Operation.NVFP4_NVFP4_KK_GROUPED
TRIAL = GemmTrial()


def tried(operation, is_fallback, number):
    """Give a case, its operands and what a right kernel writes: the rules' rounding of the reference."""
    case = edge_shapes(kernel_of(operation=operation, is_fallback=is_fallback))[number]
    bits = TRIAL.draw(case, np.random.default_rng(5))
    check = TRIAL.check(case, bits)
    found = quantize(check.expected.values.astype(np.float32), "nvfp4", check.own)
    return case, check, {Argument.D: found.codes[None], Argument.FACTORS_D: found.factors[None]}


@pytest.mark.parametrize("is_fallback", [False, True])
@pytest.mark.parametrize("operation", [PLAIN, GATE])
def test_what_the_rules_give_is_right_and_another_code_is_not(operation, is_fallback):
    case, check, written = tried(operation, is_fallback, 3)
    assert case.problem.n % (2 if is_fallback else 32) == 0
    assert check(written).fault == ""
    for argument, bit, name in ((Argument.D, 8, "d"), (Argument.FACTORS_D, 16, "factors_d")):
        changed = {x: y.copy() for x, y in written.items()}
        row, column = np.argwhere((written[argument][0] & 7) > 2)[0]
        changed[argument][0, row, column] ^= bit
        assert check(changed).fault.startswith(f"{name}: ")


def of_groups(number):
    """Give the check of a case of groups, and what a right kernel writes: in rows of no group, poison."""
    case = edge_shapes(kernel_of(operation=GROUPED, is_fallback=True))[number]
    matrices = case.matrices()
    check = TRIAL.check(case, TRIAL.draw(case, np.random.default_rng(5)))
    written = {x: np.full((1, y.num_rows, y.num_columns), 0xFF, np.uint8) for x, y in matrices.items() if x in WRITTEN}
    written[Argument.D] &= 0xF
    for group in check.groups:
        found = quantize(group.expected.values.astype(np.float32), "nvfp4", check.own)
        rows = row_in_atoms(np.arange(group.rows.start, group.rows.stop), group.rows.start, group.number)
        written[Argument.D][0, group.rows] = found.codes
        written[Argument.FACTORS_D][0, rows] = np.pad(found.factors, ((0, 0), (0, -found.factors.shape[1] % 4)))
    return check, written


def test_of_groups_each_fault_is_found_where_it_lies():
    check, written = of_groups(3)  # of 31 columns, rounded up to two: two blocks of an atom's four
    assert check(written).fault == ""
    first, last = check.groups[0], check.groups[-1]
    atom = row_in_atoms(last.rows.start, last.rows.start, last.number)
    places = {
        (Argument.FACTORS_D, atom, 0, 0x40): "factors_d: 1 of ",
        (Argument.FACTORS_D, atom, 2, 1): f"factors_d: behind the blocks of group {last.number} there are bytes that",
        (Argument.FACTORS_D, atom + 127, 1, 0): "factors_d: 1 rows of no group were written",
        (Argument.D, first.rows.start, 5, int(written[Argument.D][0, first.rows.start, 5]) ^ 8): "d: 1 of ",
        (Argument.D, last.rows.stop, 0, 3): "d: 1 rows of no group were written",
    }
    for (argument, row, column, code), text in places.items():
        changed = {x: y.copy() for x, y in written.items()}
        changed[argument][0, row, column] = code
        assert text in check(changed).fault


def test_d_and_its_factors_are_written_and_its_own_factor_is_read():
    case, check, _ = tried(GATE, is_fallback=False, number=0)
    placed = TRIAL.operands(case)
    assert {x for x, y in placed.items() if y.is_written} == set(WRITTEN)
    assert Argument.OWN_D in placed
    assert check.own == np.float32(0.0131)


class Zeros:
    """Operands of zeros."""

    def __init__(self, dtype):
        self.dtype = dtype

    def gather(self, positions):
        return np.zeros(positions.shape, self.dtype)


def test_a_sample_is_of_whole_blocks_and_of_the_atoms_of_each_row():
    problem = Problem(Operation.NVFP4_NVFP4_KK_BIAS, 300, 104, 64)
    arrangement = timed_arrangement(problem.operation)
    tilings = {x: Zeros(np.uint8) for x in operands(problem, 0, arrangement)}
    tilings |= {x: Zeros(np.uint32) for x in (Argument.SCALE_D, Argument.OWN_D)}
    tilings[Argument.BIAS] = Zeros(np.uint16)
    limits = SampleLimits(rows=3, columns=48, elements=1 << 20)
    found = quantized_sample(problem, tilings, arrangement, limits, np.random.default_rng(2))
    rows = [x.start // 104 for x in found.spans[:3]]
    assert [(x.argument, x.start, x.count) for x in found.spans] == [
        *((Argument.D, x * 104, 104) for x in rows),
        *((Argument.FACTORS_D, x // 128 * 2 * ATOM_BYTES, 2 * ATOM_BYTES) for x in rows),
    ]
    least = int(encode(problem.operation.factors_of_d.element, np.array([2.0**-9], np.float32))[0])
    atoms = pack_factors(np.full((384, 7), least, np.uint8)).reshape(3, -1)
    bits = [np.zeros(104, np.uint8) for _ in rows] + [atoms[x // 128] for x in rows]
    # An own factor of 0 makes every block NaN: 0 over 0.
    assert found.compare(bits).fault.startswith("factors_d: ")
