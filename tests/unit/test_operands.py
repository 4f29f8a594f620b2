import pytest
from twins import BF16, problem_of

from aot.operands import Matrix, is_aligned, matrices
from aot.problem import Dtype, Layout, Operation


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
    problem = problem_of(5, 6, 7, Operation.of(Dtype.FLOAT16, layout))
    assert matrices(problem) == (a, b, Matrix(5, 6, 6, 1))


def test_padding_lengthens_the_leading_stride_alone():
    a, b, d = matrices(problem_of(5, 6, 7, Operation.of(Dtype.FLOAT16, Layout.MK)), 3)
    assert (a, b, d) == (Matrix(5, 7, 1, 8), Matrix(6, 7, 10, 1), Matrix(5, 6, 9, 1))
    assert a.num_elements == 6 * 8 + 5
    assert d.num_elements == 4 * 9 + 6


def test_alignment_is_of_leading_strides():
    assert is_aligned(problem_of(3, 16, 8))
    assert not is_aligned(problem_of(3, 16, 12))
    assert not is_aligned(problem_of(3, 12, 8))
    m_major = Operation(BF16.dtype_name, Layout.MK.value)
    assert not is_aligned(problem_of(3, 16, 8, m_major))
    assert is_aligned(problem_of(24, 16, 8, m_major))
