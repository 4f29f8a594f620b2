import pytest

from aot.core.element import ElementType
from aot.core.epilogue import Epilogue, Step
from aot.core.grouping import Grouping
from aot.core.operation import ELEMENTS, Layout, Operation
from aot.core.problem import Problem
from tests.compiling import some
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
    with pytest.raises(ValueError, match="no operation of int8, kk and none; there are: bf16_kk, "):
        Operation.of(ElementType.INT8)


def test_the_catalogue_is_ordered_and_every_line_is_its_own():
    lines = [(x.types, x.layout, x.epilogue, x.grouping) for x in Operation]
    assert len(set(lines)) == len(lines)
    assert [x.position for x in Operation] == list(range(len(Operation)))


@pytest.mark.parametrize("operation", some(Operation, 24))
def test_a_tag_says_types_layout_grouping_and_epilogue(operation):
    suffix = [] if operation.grouping is Grouping.DENSE else [operation.grouping.value]
    suffix += [] if operation.epilogue is Epilogue.NONE else [operation.epilogue.value]
    assert operation.tag == "_".join([operation.types.tag, operation.layout.value, *suffix])
    assert operation.call == "_".join([operation.types.tag, *suffix])


@pytest.mark.parametrize(
    ("tag", "steps"),
    [
        ("bf16_kk", ()),
        ("bf16_kk_bias", (Step.BIAS,)),
        ("fp16_kk_gelu_tanh", (Step.BIAS, Step.GELU_TANH)),
        ("bf16_kk_residual", (Step.BIAS, Step.RESIDUAL)),
        ("e4m3_bf16_kk", (Step.SCALE, Step.BIAS)),
        ("e4m3_bf16_kk_swiglu", (Step.SCALE, Step.BIAS, Step.SWIGLU)),
        ("e4m3_bf16_block_kk", (Step.SCALE,)),
        ("int8_int32_kk", ()),
    ],
)
def test_steps_are_in_the_order_in_which_they_are_taken(tag, steps):
    assert Operation(tag).steps == steps


@pytest.mark.parametrize(
    ("tag", "num_bytes"),
    [
        # A and B of a byte, D of two, a factor for each row and column, a bias of two bytes.
        ("e4m3_bf16_kk", 2 * 256 + 3 * 256 + 2 * 2 * 3 + 4 * (2 + 3) + 2 * 3),
        # A factor for each row of A in each of two blocks of k, and two for B.
        ("e4m3_bf16_block_kk", 2 * 256 + 3 * 256 + 2 * 2 * 3 + 4 * (2 * 2 + 2)),
        ("e4m3_e4m3_kk", 2 * 256 + 3 * 256 + 2 * 3 + 4 * (2 + 3) + 2 * 3),
        ("int8_int32_kk", 2 * 256 + 3 * 256 + 4 * 2 * 3),
        ("tf32_kk", 4 * (2 * 256 + 3 * 256 + 2 * 3)),
        # The residual is read as D is written.
        ("bf16_kk_residual", 2 * (2 * 256 + 3 * 256 + 2 * 2 * 3 + 3)),
        # Twice the rows of B, and of the bias.
        ("bf16_kk_swiglu", 2 * (2 * 256 + 6 * 256 + 2 * 3 + 6)),
    ],
)
def test_bytes_are_those_of_every_operand(tag, num_bytes):
    assert Operation(tag).num_bytes(2, 3, 256) == num_bytes


@pytest.mark.parametrize(
    ("tag", "num_bytes"),
    [
        # Five products, none of which share an operand.
        ("bf16_kk_batched", 5 * 2 * (2 * 256 + 3 * 256 + 2 * 3)),
        # And where each of five groups ends.
        ("bf16_kk_grouped", 5 * 2 * (2 * 256 + 3 * 256 + 2 * 3) + 4 * 5),
        ("bf16_mn_kgrouped", 5 * 2 * (2 * 256 + 3 * 256 + 2 * 3) + 4 * 5),
        # And the number of A's row for each row of D.
        ("bf16_kk_gathered", 5 * 2 * (2 * 256 + 3 * 256 + 2 * 3) + 4 * 5 + 4 * 2 * 5),
        # Each group has a bias of its own.
        ("bf16_kk_grouped_swiglu", 5 * 2 * (2 * 256 + 6 * 256 + 2 * 3 + 6) + 4 * 5),
    ],
)
def test_bytes_are_those_of_every_group(tag, num_bytes):
    assert Problem(Operation(tag), 2, 3, 256, 5).num_bytes == num_bytes


def test_groups_are_operations_of_their_own():
    batched, grouped = Operation.BF16_KN_BATCHED, Operation.E4M3_BF16_KK_GROUPED_SWIGLU
    assert (batched.call, grouped.call) == ("bf16_batched", "e4m3_bf16_grouped_swiglu")
    assert [x.tag for x in batched.layouts] == [f"bf16_{x}_batched" for x in ("kk", "kn", "mk", "mn")]
    assert (batched.can_exchange, Operation.BF16_KN_GROUPED.can_exchange) == (True, False)
    assert (batched.twins, batched.equivalents) == ((Operation.FP16_KN_BATCHED,),) * 2
    assert (batched.dense, grouped.dense) == (Operation.BF16_KN, Operation.E4M3_BF16_KK_SWIGLU)
    assert grouped.plain is Operation.E4M3_BF16_KK_GROUPED
    assert [x.has_offsets for x in Grouping] == [False, False, True, True, True]
    problem = Problem(Operation.BF16_KK_BATCHED, 2, 3, 4, 5)
    assert (problem.flops, problem.name) == (5 * 2 * 2 * 3 * 4, "bf16_kk_batched g5 m2 n3 k4")
    assert Problem(Operation.BF16_KK_GROUPED_SWIGLU, 2, 3, 4, 5).flops == 2 * 5 * 2 * 2 * 3 * 4


def test_types_of_equal_sizes_and_rates_are_twins():
    assert Operation.E4M3_BF16_KK.twins == (
        Operation.E4M3_FP16_KK,
        Operation.E5M2E4M3_BF16_KK,
        Operation.E4M3E5M2_BF16_KK,
    )
    assert Operation.BF16_KK_SILU.twins == (Operation.FP16_KK_SILU,)
    assert Operation.BF16_KK_SILU.equivalents == (Operation.FP16_KK_SILU, Operation.BF16_KK, Operation.FP16_KK)
    assert [x.tag for x in Operation.FP16_KK_GEGLU.equivalents] == [
        *("bf16_kk_geglu", "fp16_kk_swiglu", "bf16_kk_swiglu"),
        *("fp16_kk", "bf16_kk"),
    ]
    assert Operation.E4M3_BF16_FAST_KK.twins == Operation.E4M3_BF16_BLOCK_KK.twins == Operation.TF32_KK.twins == ()


def test_a_bias_is_a_step_of_its_own():
    operation = Operation.BF16_KK_BIAS
    assert (operation.tag, operation.call) == ("bf16_kk_bias", "bf16_bias")
    assert (operation.has_bias, operation.can_exchange) == (True, False)
    assert operation.layouts == (operation,)
    assert operation.equivalents == (Operation.FP16_KK_BIAS, Operation.BF16_KK, Operation.FP16_KK)
    assert Operation.FP16_KK_GATHERED_SWIGLU.equivalents[0] is Operation.BF16_KK_GATHERED_SWIGLU
    assert [x.tag for x in Operation.E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU.equivalents] == [
        *("e4m3_bf16_block_kk_gathered", "e4m3_bf16_block_kk_grouped_swiglu", "e4m3_bf16_block_kk_grouped")
    ]
    assert Operation.E4M3_BF16_BLOCK_KK_GROUPED.equivalents == ()
    assert Operation.BF16_KK.equivalents == (Operation.FP16_KK,)
    assert operation.num_bytes(2, 3, 5) == 2 * (2 * 5 + 3 * 5 + 2 * 3 + 3)


def test_elements_that_share_a_byte_are_counted_together():
    assert [ElementType.E2M1.size_of(x) for x in (1, 2, 3)] == [1, 1, 2]
    with pytest.raises(ValueError, match="an element of float4_e2m1fn has 4 bits"):
        _ = ElementType.E2M1.num_bytes
