import pytest

from aot.core.element import ElementType
from aot.core.formats import BLOCKS_OF_ROWS, MX, NVFP4, SQUARE_BLOCKS, FactorLayout, Operand, ScaleFormat
from aot.core.operation import Operation
from tests.compiling import some


def test_an_operand_counts_its_elements_and_what_its_factors_take():
    nvfp4 = Operand(ElementType.E2M1, is_k_major=True, scale=NVFP4)
    assert nvfp4.tag == "nvfp4"
    assert nvfp4.size_of(256, 64) == 256 * 64 // 2 + 256 * 4
    assert nvfp4.size_of(1, 16) == 8 + 512  # factors take whole atoms
    assert Operand(ElementType.BFLOAT16, is_k_major=True).size_of(3, 5) == 30


def test_blocks_of_rows_and_of_k_are_rounded_up():
    assert BLOCKS_OF_ROWS.num_factors(3, 129) == (3, 2)
    assert SQUARE_BLOCKS.num_factors(129, 257) == (2, 3)
    assert SQUARE_BLOCKS.size_of(129, 257) == 4 * 6


@pytest.mark.parametrize(
    ("element", "scale", "tag"),
    [
        (ElementType.E2M1, MX, "mxfp4"),
        (ElementType.E4M3, MX, "mxfp8"),
        (ElementType.E4M3, SQUARE_BLOCKS, "e4m3"),
        (ElementType.E2M1, ScaleFormat(ElementType.FLOAT16, 1, 128, FactorLayout.BLOCK), "e2m1"),
    ],
)
def test_elements_and_factors_have_one_name(element, scale, tag):
    assert Operand(element, is_k_major=True, scale=scale).tag == tag


@pytest.mark.parametrize("operation", some(Operation, 24), ids=lambda x: x.tag)
def test_narrow_elements_beside_wider_ones_are_padded(operation):
    both, mixed = (operation.a, operation.b), "mxfp8mxfp4" in operation.tag
    assert [x.is_padded for x in both] == [False, mixed]
    assert [x.alignment for x in both] == [16, 32 if mixed else 16]
    wholes = {4: 32, 8: 1, 16: 1, 32: 1}
    own = [wholes[x.element.bits] if x.weight is None else x.weight.quantum for x in both]
    assert operation.k_step == (128 if mixed else max(own))
    assert operation.k_step & (operation.k_step - 1) == 0  # as the library tells it by a mask


def test_strides_of_four_bits_end_with_a_byte():
    assert ElementType.E2M1.bytes_of(32) == 16
    with pytest.raises(ValueError, match="33 elements of float4_e2m1fn end inside a byte; give a multiple of 2"):
        ElementType.E2M1.bytes_of(33)
