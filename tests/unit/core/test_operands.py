from dataclasses import replace

import pytest

from aot.core.alignment import as_launched, is_aligned, misalignment
from aot.core.element import ElementType
from aot.core.grouping import Grouping
from aot.core.operands import Arrangement, Matrix, element_of, matrices, operands
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from tests.unit.twins import problem_of


@pytest.mark.parametrize(
    ("layout", "a", "b"),
    [
        (Layout.KK, Matrix(5, 7, 7, 1), Matrix(6, 7, 7, 1)),
        (Layout.KN, Matrix(5, 7, 7, 1), Matrix(6, 7, 1, 6)),
        (Layout.MK, Matrix(5, 7, 1, 5), Matrix(6, 7, 7, 1)),
        (Layout.MN, Matrix(5, 7, 1, 5), Matrix(6, 7, 1, 6)),
    ],
)
def test_layouts(layout, a, b):
    problem = problem_of(5, 6, 7, Operation.of(ElementType.FLOAT16, layout))
    assert matrices(problem) == (a, b, Matrix(5, 6, 6, 1))


def test_padding_lengthens_the_leading_stride_alone():
    a, b, d = matrices(problem_of(5, 6, 7, Operation.of(ElementType.FLOAT16, Layout.MK)), 3)
    assert (a, b, d) == (Matrix(5, 7, 1, 8), Matrix(6, 7, 10, 1), Matrix(5, 6, 9, 1))
    assert a.num_elements == 6 * 8 + 5
    assert d.num_elements == 4 * 9 + 6


def test_alignment_is_of_leading_strides():
    assert is_aligned(problem_of(3, 16, 8))
    assert not is_aligned(problem_of(3, 16, 12))
    assert not is_aligned(problem_of(3, 12, 8))
    m_major = Operation.BF16_MK
    assert not is_aligned(problem_of(3, 16, 8, m_major))
    assert is_aligned(problem_of(24, 16, 8, m_major))


ALL = tuple(Operation)


@pytest.mark.parametrize(
    ("asked", "operations", "launched"),
    [
        ((16, 16, 8, "kk"), ALL, (16, 16, 8, "kk")),
        ((16, 16, 8, "mn"), ALL, (16, 16, 8, "mn")),
        ((16, 16, 8, "mn"), (Operation.BF16_KK,), None),
        ((16, 7, 8, "kk"), ALL, None),
        ((1, 7, 8, "kk"), ALL, None),  # a store ends on 16 bytes
        ((1, 16, 8, "mk"), ALL, (1, 16, 8, "kk")),
        ((1, 16, 8, "mk"), (Operation.BF16_MK,), None),
        ((16, 1, 8, "kk"), ALL, (1, 16, 8, "kk")),
        ((16, 1, 8, "kn"), ALL, (1, 16, 8, "kk")),
        ((16, 16, 9, "kk"), ALL, None),
        ((7, 1, 8, "kk"), ALL, None),
        ((1, 1, 9, "kk"), ALL, None),
        ((1, 8, 9, "kk"), ALL, None),
    ],
)
def test_packed_operands_are_read_as_the_runtime_reads_them(asked, operations, launched):
    def problem(m, n, k, layout):
        return problem_of(m, n, k, Operation.of(ElementType.BFLOAT16, Layout(layout)))

    assert as_launched(problem(*asked), operations) == (problem(*launched) if launched else None)


@pytest.mark.parametrize("operation", [x for x in Operation if x.grouping is not Grouping.DENSE], ids=lambda x: x.tag)
def test_batches_and_groups_are_launched_as_they_are(operation):
    problem = Problem(operation, 24, 128, 256, 5)
    assert as_launched(problem, [operation]) == problem
    assert misalignment(problem) == ""
    if not operation.can_exchange:
        assert as_launched(replace(problem, n=132), [operation]) is None


def test_a_gate_with_blocks_of_factors_takes_whole_blocks_of_columns():
    gated, plain = (getattr(Operation, f"E4M3_BF16_BLOCK_KK_GATHERED{x}") for x in ("_SWIGLU", ""))
    assert as_launched(Problem(plain, 24, 136, 256, 5), [plain]) == Problem(plain, 24, 136, 256, 5)
    assert as_launched(Problem(gated, 24, 136, 256, 5), [gated]) is None
    assert misalignment(Problem(gated, 24, 136, 256, 5)) == "n 136 is not a multiple of 128"


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("kk", "n 18 and k 12 are not a multiple of 8"),
        ("kn", "n 18 and k 12 are not a multiple of 8"),
        ("mk", "m 10 and n 18 and k 12 are not a multiple of 8"),
        ("mn", "m 10 and n 18 are not a multiple of 8"),
    ],
)
def test_the_extents_that_are_not_aligned_are_named(layout, text):
    assert misalignment(problem_of(10, 18, 12, Operation.of(ElementType.BFLOAT16, Layout(layout)))) == text
    assert misalignment(problem_of(16, 16, 16, Operation.of(ElementType.BFLOAT16, Layout(layout)))) == ""
    m_major = Operation.of(ElementType.BFLOAT16, Layout.MK)
    assert misalignment(problem_of(3, 64, 64, m_major)) == "m 3 is not a multiple of 8"
    assert misalignment(problem_of(3, 1, 65)) == "n 1 and k 65 are not a multiple of 8"


@pytest.mark.parametrize(
    ("operation", "sizes", "text"),
    [
        (Operation.E4M3_BF16_KK, (5, 24, 48), ""),
        (Operation.E4M3_BF16_KK, (5, 12, 24), "n 12 is not a multiple of 8, and k 24 is not a multiple of 16"),
        (Operation.E4M3_E4M3_KK, (5, 24, 48), "n 24 is not a multiple of 16"),
        (Operation.E4M3_FP32_KK, (5, 12, 48), ""),
        (Operation.INT8_INT32_KK, (5, 10, 24), "n 10 is not a multiple of 4, and k 24 is not a multiple of 16"),
        (Operation.TF32_KK, (5, 6, 10), "n 6 and k 10 are not a multiple of 4"),
        (Operation.MXFP8_MXFP4_BF16_KK, (5, 24, 256), ""),
        (
            Operation.MXFP8_MXFP4_BF16_KK,
            (5, 12, 192),
            "n 12 is not a multiple of 8, and k 192 is not a multiple of 128",
        ),
        (Operation.BF16_KK_SWIGLU, (5, 12, 16), "n 12 is not a multiple of 8"),
    ],
)
def test_each_extent_has_the_step_of_its_type(operation, sizes, text):
    assert misalignment(problem_of(*sizes, operation)) == text
    assert is_aligned(problem_of(*sizes, operation)) == (text == "")


def test_a_gate_doubles_the_rows_of_b_and_nothing_of_d():
    problem = problem_of(5, 16, 32, Operation.E4M3_BF16_KK_SWIGLU)
    found = operands(problem, 16)
    assert found == {
        Argument.A: Matrix(5, 32, 48, 1),
        Argument.B: Matrix(32, 32, 48, 1),
        Argument.D: Matrix(5, 16, 32, 1),
        Argument.SCALE_A: Matrix(5, 1, 1, 1),
        Argument.SCALE_B: Matrix(32, 1, 1, 1),
        Argument.BIAS: Matrix(1, 32, 0, 1),
    }
    assert as_launched(problem, [problem.operation]) == problem
    assert found[Argument.BIAS].num_elements == 32


def test_factors_are_of_blocks_of_128():
    problem = problem_of(5, 130, 300, Operation.E4M3_BF16_BLOCK_KK)
    found = operands(problem, 4)
    assert (found[Argument.SCALE_A], found[Argument.SCALE_B]) == (Matrix(5, 3, 7, 1), Matrix(2, 3, 7, 1))
    found = operands(problem, 4, Arrangement(has_row_major_blocks=False))
    assert (found[Argument.SCALE_A], found[Argument.SCALE_B]) == (Matrix(5, 3, 1, 9), Matrix(2, 3, 1, 6))


def test_what_a_caller_leaves_away_is_not_there():
    bare = Arrangement(has_bias=False, has_scales_of_a=False)
    found = operands(problem_of(5, 16, 32, Operation.E4M3_E4M3_KK), 0, bare)
    assert Argument.BIAS not in found
    assert found[Argument.SCALE_A] == Matrix(5, 1, 0, 1)
    assert found[Argument.SCALE_A].num_elements == 1
    assert found[Argument.SCALE_D].num_elements == 1
    # An operation whose epilogue is the bias has one in any case.
    assert Argument.BIAS in operands(problem_of(5, 16, 32, Operation.BF16_KK_BIAS), 0, bare)


def test_the_type_of_each_operand():
    operation = Operation.E4M3_E4M3_KK
    found = {x: element_of(operation, x).tag for x in operands(problem_of(5, 16, 32, operation))}
    assert list(found.values()) == ["e4m3", "e4m3", "e4m3", "fp32", "fp32", "bf16", "fp32"]
    assert element_of(Operation.FP16_KK_RESIDUAL, Argument.RESIDUAL) is ElementType.FLOAT16
