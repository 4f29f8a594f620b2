import pytest

from aot.core.element import ElementType
from aot.core.operation import ELEMENTS, Layout, Operation
from tests.unit.twins import ALL_LAYOUTS


def test_codes_are_those_of_the_c_api():
    assert [(x.value, x.tag, x.code, x.num_bytes) for x in ELEMENTS] == [
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
    assert Operation.of(operation.element, operation.layout) == operation
    assert operation.tag == f"{operation.element.tag}_{operation.layout.value}"


def test_an_unknown_tag_is_refused_at_once():
    with pytest.raises(ValueError, match="'bf16_kx' is not a valid Operation"):
        Operation("bf16_kx")
    with pytest.raises(ValueError, match="no operation of float32, kk and none; there are: bf16_kk, "):
        Operation.of(ElementType.FLOAT32)


def test_the_catalogue_is_ordered_and_every_line_is_its_own():
    lines = [(x.element, x.layout, x.epilogue) for x in Operation]
    assert len(set(lines)) == len(lines)
    assert [x.position for x in Operation] == list(range(len(Operation)))
    assert all(Operation.of(*line) is x for line, x in zip(lines, Operation, strict=True))


def test_a_bias_is_a_step_of_its_own():
    operation = Operation.BF16_KK_BIAS
    assert (operation.tag, operation.call) == ("bf16_kk_bias", "bf16_bias")
    assert (operation.has_bias, operation.can_exchange) == (True, False)
    assert operation.layouts == (operation,)
    assert operation.equivalents == (Operation.BF16_KK, Operation.FP16_KK)
    assert Operation.BF16_KK.equivalents == (Operation.FP16_KK,)
    assert operation.num_bytes(2, 3, 5) == 2 * (2 * 5 + 3 * 5 + 2 * 3 + 3)


def test_elements_that_share_a_byte_are_counted_together():
    assert [ElementType.E2M1.size_of(x) for x in (1, 2, 3)] == [1, 1, 2]
    with pytest.raises(ValueError, match="an element of float4_e2m1fn has 4 bits"):
        _ = ElementType.E2M1.num_bytes
