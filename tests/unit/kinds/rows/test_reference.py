import numpy as np
import pytest
import torch
from torch.nn import functional

from aot.core.element import ElementType
from aot.core.numerics import decode, encode, round_to
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.kinds.rows.function import GPT_OSS_MUL, RMS_NORM
from aot.kinds.rows.operation import RowScale
from aot.kinds.rows.reference import RowParameters, expected_scales, row_reference, scaled
from aot.kinds.rows.signature import RowArgument
from tests.compiling import some

ROWS, COLS, HALF = 5, 200, 20
X, RESIDUAL, WEIGHT, BIAS, COS, SIN = (
    RowArgument.X,
    RowArgument.RESIDUAL,
    RowArgument.WEIGHT,
    RowArgument.BIAS,
    RowArgument.COS,
    RowArgument.SIN,
)
TORCH = {ElementType.BFLOAT16: torch.bfloat16, ElementType.FLOAT16: torch.float16}
EPS = 1e-5


def rows_of(operation, seed=1):
    rng = np.random.default_rng(seed)
    shapes = {X: (ROWS, operation.num_columns_of_x(COLS))}
    if operation.is_norm:
        shapes |= {RESIDUAL: (ROWS, COLS), WEIGHT: (1, COLS)} | ({BIAS: (1, COLS)} if operation.has_bias else {})
    if operation.is_rotary:
        shapes |= {COS: (ROWS, HALF), SIN: (ROWS, HALF)}
    spread = 5 if operation.function == GPT_OSS_MUL else 1  # past where it clamps
    drawn = {argument: spread * rng.standard_normal(shape, np.float32) for argument, shape in shapes.items()}
    return {argument: decode(operation.x, encode(operation.x, values)) for argument, values in drawn.items()}


def gpt_oss(gate, linear):
    gate = gate.clamp(max=7.0)
    return gate * torch.sigmoid(gate * 1.702) * (linear.clamp(-7.0, 7.0) + 1)


PAIRS = {
    "silu_mul": lambda gate, linear: functional.silu(gate) * linear,
    "gelu_tanh_mul": lambda gate, linear: functional.gelu(gate, approximate="tanh") * linear,
    "gpt_oss_mul": gpt_oss,
}


def by_torch(operation, rows, parameters):
    """What torch computes in float32, before Y's scales."""
    given = {argument: torch.tensor(values, dtype=torch.float32) for argument, values in rows.items()}
    x = given[X]
    if operation.is_norm:
        z = (x.to(TORCH[operation.x]) + given[RESIDUAL].to(TORCH[operation.x])).float()
        if operation.function == RMS_NORM:
            return functional.rms_norm(z, (COLS,), given[WEIGHT][0] + parameters.weight_offset, EPS)
        return functional.layer_norm(z, (COLS,), given[WEIGHT][0], given[BIAS][0], EPS)
    if operation.is_pair:
        halves = (x[:, ::2], x[:, 1::2]) if parameters.is_interleaved else x.chunk(2, 1)
        return PAIRS[operation.function.name](*halves)
    if operation.is_rotary:
        turned = x[:, : 2 * HALF]
        pairs = turned.reshape(ROWS, HALF, 2) if parameters.is_interleaved else turned.reshape(ROWS, 2, HALF).mT
        found = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.complex(given[COS], given[SIN]))
        found = found if parameters.is_interleaved else found.mT
        return torch.cat((found.reshape(ROWS, 2 * HALF), x[:, 2 * HALF :]), 1)
    return x


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("operation", some(row_operations(), 16))
def test_torch_lies_within_the_radius_and_the_radius_is_small(operation, is_interleaved):
    rows, parameters = rows_of(operation), RowParameters(EPS, 1.0, is_interleaved)
    if operation.has_bias:
        parameters = RowParameters(EPS, 0.0, is_interleaved)
    found = row_reference(operation, rows, parameters).values
    got = by_torch(operation, rows, parameters).double().numpy()
    assert (np.abs(got - found.values) <= found.radius).all()
    smallest = 2.0**-8 if operation.is_pair else 2.0**-14  # of tanh.approx a pair is allowed 2^-12 of its product
    smallest *= 16 if operation.function == GPT_OSS_MUL else 1  # whose factors are larger
    assert (found.radius <= smallest * (np.abs(found.values) + 1)).all()


@pytest.mark.parametrize("operation", row_operations())
def test_a_wrong_column_lies_outside(operation):
    rows, parameters = rows_of(operation), RowParameters(EPS)
    found = row_reference(operation, rows, parameters).values
    moved = row_reference(operation, {**rows, X: np.roll(rows[X], 1, axis=1)}, parameters).values
    assert (np.abs(moved.values - found.values) > found.radius).mean() > 0.9


@pytest.mark.parametrize("argument", [RESIDUAL, WEIGHT, BIAS])
def test_what_is_not_there_is_left_away(argument):
    operation, parameters = row_operation("bf16_layer_norm"), RowParameters(EPS)
    rows = rows_of(operation)
    neutral = np.full_like(rows[argument], 1.0 if argument is WEIGHT else 0.0)
    without = {x: values for x, values in rows.items() if x is not argument}
    one, other = (row_reference(operation, x, parameters) for x in (without, {**rows, argument: neutral}))
    assert np.array_equal(one.values.values, other.values.values)
    assert (one.residual_out is None) == (argument is RESIDUAL)


@pytest.mark.parametrize("operation", [row_operation("bf16_rms_norm"), row_operation("fp16_rms_norm")])
def test_the_sum_with_the_residual_is_rounded_as_torch_rounds_it(operation):
    rows = rows_of(operation)
    x, residual = (torch.tensor(rows[argument]).to(TORCH[operation.x]) for argument in (X, RESIDUAL))
    got = row_reference(operation, rows, RowParameters()).residual_out
    assert np.array_equal(got, (x + residual).double().numpy())


@pytest.mark.parametrize("operation", [row_operation("bf16_rms_norm"), row_operation("fp16_rms_norm")])
def test_a_norm_that_is_rounded_before_the_weight_is_that_of_llama(operation):
    rows, dtype = rows_of(operation), TORCH[operation.x]
    x, residual, weight = (torch.tensor(rows[argument]).to(dtype) for argument in (X, RESIDUAL, WEIGHT))
    z = (x + residual).float()
    llama = weight * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + EPS)).to(dtype)
    found, once = (row_reference(operation, rows, RowParameters(EPS, 0.0, False, x)).values for x in (True, False))
    ends = (found.values - found.radius, found.values + found.radius)
    low, high = (decode(operation.x, encode(operation.x, end.astype(np.float32))) for end in ends)
    assert ((low <= llama.double().numpy()) & (llama.double().numpy() <= high)).all()
    assert (low == high).mean() > 0.95
    rounded_once = decode(operation.x, encode(operation.x, once.values.astype(np.float32)))
    assert 0.1 < (llama.double().numpy() != rounded_once).mean() < 0.6


def special(operation, value):
    rows = rows_of(operation)
    rows[X][1, 3] = value
    rows[X][2] = 0.0
    rows.pop(RESIDUAL, None)
    return rows


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tag", ["bf16_rms_norm", "bf16_layer_norm"])
def test_what_is_not_finite_is_as_torch_has_it(tag, value):
    operation = row_operation(tag)
    rows = special(operation, value)
    found = row_reference(operation, rows, RowParameters(EPS)).values
    got = by_torch(operation, {**rows, RESIDUAL: np.zeros((ROWS, COLS))}, RowParameters(EPS)).double().numpy()
    assert np.array_equal(np.isnan(got), np.isnan(found.values))
    assert np.isfinite(found.radius).all()
    assert np.isnan(found.values[1]).any()
    assert np.isfinite(found.values[2]).all()


def test_a_sum_of_squares_beyond_float32_makes_the_row_zero():
    rows = {X: np.full((1, COLS), 2.0**70)}
    found = row_reference(row_operation("bf16_rms_norm"), rows, RowParameters(EPS)).values
    assert np.array_equal(found.values, np.zeros((1, COLS)))


def test_a_row_without_variance_may_be_anything_that_rounding_makes_of_it():
    rows = {X: np.full((1, COLS), 3.0)}
    found = row_reference(row_operation("fp16_layer_norm"), rows, RowParameters(EPS)).values
    assert np.array_equal(found.values, np.zeros((1, COLS)))
    assert (found.radius < 0.1).all()


MOST = {ElementType.E4M3: 448, ElementType.E5M2: 57344, ElementType.INT8: 127}


@pytest.mark.parametrize(
    "tag", ["bf16_e4m3_quantize", "bf16_e5m2_quantize", "bf16_int8_quantize", "bf16_e4m3_block_quantize"]
)
def test_scales_are_the_largest_magnitude_over_the_largest_number(tag):
    operation = row_operation(tag)
    rows = special(operation, 300.0)
    found = row_reference(operation, rows, RowParameters()).values
    scales = expected_scales(operation, found)
    most = np.float32(MOST[operation.y])
    assert scales.values[1, 0] == np.float32(300) / most
    assert scales.values[2, 0] == 1.0
    assert scales.values.shape == (ROWS, 2 if operation.scale is RowScale.BLOCK else 1)
    assert not scales.radius.any()
    rounded = round_to(operation.y, scaled(operation, found, scales.values).values)
    assert rounded[1, 3] == most


def test_each_block_has_its_own_scale():
    operation = row_operation("bf16_e4m3_block_quantize")
    x = np.ones((1, COLS))
    x[0, 128:] = 8.0
    found = row_reference(operation, {X: x}, RowParameters()).values
    scales = expected_scales(operation, found)
    assert np.array_equal(scales.values, np.float32([[1, 8]]) / np.float32(448))
    assert np.array_equal(
        round_to(operation.y, scaled(operation, found, scales.values).values), np.full((1, COLS), 448)
    )


def test_a_nan_makes_the_scale_one_and_a_tiny_row_has_the_least():
    operation = row_operation("bf16_e4m3_quantize")
    x = np.zeros((2, COLS))
    x[0, 7], x[1, 7] = np.nan, 2.0**-130
    scales = expected_scales(operation, row_reference(operation, {X: x}, RowParameters()).values)
    assert np.isnan(scales.values[0, 0])
    assert scales.values[1, 0] == 2.0**-126


TENSORS = [x for x in row_operations() if x.scale is RowScale.TENSOR]


def quantized_by_torch(x, operation):
    """Quantise by one factor as torch computes it on a CPU: the bits of Y, and the factor."""
    dtype, most = getattr(torch, operation.y.value), float(MOST[operation.y])
    wide = torch.tensor(x, dtype=torch.float32)
    largest = wide.abs().amax()
    scale = torch.where(largest == 0, 1.0, (largest / most).clamp_min(2.0**-126))
    quotient = (wide / scale).clamp(-most, most)
    rounded = quotient if dtype.is_floating_point else quotient.nan_to_num(nan=0.0).round()
    return rounded.to(dtype).view(torch.uint8).numpy(), scale.item()


@pytest.mark.parametrize("operation", TENSORS)
@pytest.mark.parametrize("case", ["random", "zeros", "nan", "infinity", "tiny", "large"])
def test_a_tensor_is_quantised_as_torch_would(operation, case):
    x = np.random.default_rng(3).standard_normal((ROWS, COLS), np.float32)
    x = decode(operation.x, encode(operation.x, x * np.float32({"tiny": 2.0**-24, "large": 2.0**14}.get(case, 1.0))))
    x[1, 2] = {"nan": np.nan, "infinity": -np.inf}.get(case, x[1, 2])
    x = np.zeros_like(x) if case == "zeros" else x
    found = row_reference(operation, {X: x}, RowParameters()).values
    scales = expected_scales(operation, found)
    bits, scale = quantized_by_torch(x, operation)
    assert scales.values.shape == (1, 1)
    assert not scales.radius.any()
    np.testing.assert_array_equal(scales.values, [[scale]])
    values = scaled(operation, found, scales.values).values.astype(np.float32)
    if operation.y is ElementType.INT8:
        values = np.nan_to_num(values, nan=0.0)
    got, wanted = encode(operation.y, values), bits
    is_nan = np.isnan(decode(operation.y, wanted))
    np.testing.assert_array_equal(np.isnan(decode(operation.y, got)), is_nan)
    np.testing.assert_array_equal(got[~is_nan], wanted[~is_nan])
