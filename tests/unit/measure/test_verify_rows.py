"""Kernels of operations on rows are verified by the loop that verifies products."""

import numpy as np
import pytest

from aot.core.errors import VerificationError
from aot.kinds.rows.call import HEADS, row_cases
from aot.kinds.rows.candidate import RowLimits
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.measure.verify import Verifier
from tests.compiling import some
from tests.unit.row_twins import NORM, QUANTIZE, VECTORS, row_kernel_of
from tests.unit.twins import TwinGpu, TwinKernels


def verify(kernel, fault="", seed=1):
    gpu = TwinGpu()
    kernels = TwinKernels(gpu, [kernel], faults={kernel.name: (fault, 0)})
    verifier = Verifier(gpu, kernels, np.random.default_rng(seed))
    try:
        return verifier.verify(kernel, 0), kernels
    finally:
        verifier.close()
        assert gpu.num_allocations == 0


FOR_SCALARS = {(x.function, x.factors is not None, x.reduces_rows): x for x in reversed(row_operations())}
"""An operation of each function, with factors and without: a kernel of single elements differs in its cases alone."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "limits"),
    [*((x, VECTORS) for x in some(row_operations())), *((x, RowLimits()) for x in some(FOR_SCALARS.values(), 4))],
)
def test_a_right_kernel_is_found_right(operation, limits):
    error, kernels = verify(row_kernel_of(operation, limits=limits))
    cases = list(row_cases(operation, limits))
    assert (error, len(kernels.launches)) == (0.0, 2 * len(cases))
    assert len(cases) >= 4


def test_cases_are_those_that_the_kernel_takes():
    cases = list(row_cases(NORM, VECTORS))
    assert all(VECTORS.takes(case.cols) for case in cases)
    assert {case.rows for case in cases} == {1, 37}
    assert max(case.cols for case in cases) == 1024
    assert max(case.cols for case in row_cases(NORM, RowLimits())) == 20000
    rotary = list(row_cases(row_operation("bf16_rotary"), VECTORS))
    assert all(x.cols % 32 == 0 for x in rotary)
    assert {x.problem.rows for x in rotary} == {HEADS, 37 * HEADS, 12 * HEADS}
    assert {x.rows for x in rotary if x.cache is not None} == {1, 12}
    assert HEADS > 1


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("wrong", "wrong result on RowCase.*: y: 1 of"),
        ("unwritten", "wrong result on RowCase"),
        ("guards", "wrote 1 elements outside y on bf16_rms_norm rows 1 cols 8"),
        ("padding", "wrote 1 elements outside y on bf16_rms_norm rows 37 cols 8"),
        ("reads x", "wrote x, which it is to read, on bf16_rms_norm"),
        ("residual", "residual_out: 1 of"),
        ("unstable", "two runs differ in 1 of 8 elements of y on RowCase"),
    ],
)
def test_a_wrong_kernel_is_found_out(fault, text):
    with pytest.raises(VerificationError, match=text):
        verify(row_kernel_of(), fault, seed=4)


@pytest.mark.parametrize("operation", [x for x in row_operations() if x.factors is not None])
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("wrong", "wrong result on RowCase.*: y: [12] of"),
        ("unwritten", "wrong result on RowCase.*: y: "),
        ("scales", "wrong result on RowCase.*: scales: 1 of"),
        ("filled", "1 of 3 bytes behind the factors of rows are not 0"),
        ("fills rows", "wrote 1 elements outside scale"),
        ("unstable", "two runs differ in 1|wrong result on RowCase.*: y: 1 of"),
    ],
)
def test_a_wrong_code_or_factor_is_found_out(operation, fault, text):
    with pytest.raises(VerificationError, match=text):
        verify(row_kernel_of(operation), fault)


def test_a_wrong_scale_is_found_out():
    with pytest.raises(VerificationError, match="scales: 1 of"):
        verify(row_kernel_of(QUANTIZE), "scales")
