import pytest

from aot.core.problem import Dtype, Layout, Operation
from tests.unit.twins import ALL_LAYOUTS, problem_of


def test_work_and_traffic():
    problem = problem_of(2, 3, 5)
    assert problem.flops == 2 * 2 * 3 * 5
    assert problem.num_bytes == 2 * (2 * 5 + 3 * 5 + 2 * 3)
    assert problem.name == "bf16_kk m2 n3 k5"


def test_codes_are_those_of_the_c_api():
    assert [(x.value, x.tag, x.code, x.num_bytes) for x in Dtype] == [
        ("bfloat16", "bf16", 0, 2),
        ("float16", "fp16", 1, 2),
    ]
    assert [(x.value, x.code, x.a_k_major, x.b_k_major) for x in Layout] == [
        ("kk", 0, True, True),
        ("kn", 1, True, False),
        ("mk", 2, False, True),
        ("mn", 3, False, False),
    ]


@pytest.mark.parametrize("operation", ALL_LAYOUTS)
def test_operation_names_its_parts(operation):
    assert Operation.of(operation.dtype, operation.layout) == operation
    assert operation.tag == f"{operation.dtype.tag}_{operation.layout.value}"


@pytest.mark.parametrize(("dtype", "layout"), [("float99", "kk"), ("bfloat16", "kx")])
def test_unknown_names_are_refused_at_once(dtype, layout):
    with pytest.raises(ValueError, match="is not a valid"):
        Operation(dtype, layout)
