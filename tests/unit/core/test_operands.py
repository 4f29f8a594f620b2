import pytest

from aot.core.element import ElementType
from aot.core.operands import Matrix, as_launched, is_aligned, matrices, misalignment
from aot.core.operation import Layout, Operation
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
