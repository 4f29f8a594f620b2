"""The mixture-of-experts layer of the bench against a loop over tokens, and what the bench says of its rows."""

from __future__ import annotations

import pytest
import torch

from bench.moe import is_right, summary
from bench.moe_layer import Fp8Experts, moe, moe_fp8, quantise_rows, route

TOKENS, EXPERTS, TOP, HIDDEN, INTERMEDIATE = 9, 6, 2, 16, 24


def grouped_linear(x, weight, offsets, *, index=None, gate=None, scale_x=None, scale_w=None, out_dtype=None):
    """Stand for the wheel's function, in float64."""
    values, weights = x.double(), weight.double()
    if scale_x is not None:
        values, weights = values * scale_x.double(), weights * scale_w.double()[..., None]
    values = values if index is None else values[index.long()]
    starts = [0, *offsets.tolist()]
    parts = [values[a:b] @ w.T for a, b, w in zip(starts, starts[1:], weights, strict=False)]
    result = torch.cat(parts)
    if gate:
        assert gate == "silu"
        half = result.shape[1] // 2
        result = torch.nn.functional.silu(result[:, :half]) * result[:, half:]
    return result.to(out_dtype or x.dtype)


@pytest.fixture
def layer():
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    return (
        draw(TOKENS, HIDDEN),
        draw(TOKENS, EXPERTS),
        draw(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / 4,
        draw(EXPERTS, HIDDEN, INTERMEDIATE) / 5,
    )


def by_tokens(x, logits, gate_up, down):
    """Compute the layer token by token."""
    result = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for token, (row, probabilities) in enumerate(zip(x.double(), torch.softmax(logits.double(), -1), strict=True)):
        chosen = probabilities.argsort(descending=True)[:TOP]
        for expert in chosen:
            gate, linear = (gate_up[expert].double() @ row).chunk(2)
            part = down[expert].double() @ (torch.nn.functional.silu(gate) * linear)
            result[token] += part * probabilities[expert] / probabilities[chosen].sum()
    return result


def test_the_layer_is_the_sum_over_a_tokens_experts(layer):
    x, logits, gate_up, down = layer
    result = moe(x, route(logits, TOP), gate_up, down, grouped_linear)
    torch.testing.assert_close(result.double(), by_tokens(*layer), rtol=1e-5, atol=1e-5)


def test_float8_is_near(layer):
    x, logits, gate_up, down = layer
    result = moe_fp8(x, route(logits, TOP), Fp8Experts.of(gate_up, down), grouped_linear)
    expected = by_tokens(*layer)
    assert ((result.double() - expected).norm() / expected.norm()).item() < 0.08


def test_routes_are_in_the_order_of_experts_and_lead_back(layer):
    routes = route(layer[1], TOP)
    chosen = layer[1].topk(TOP, -1).indices
    assert routes.offsets.tolist() == torch.bincount(chosen.flatten(), minlength=EXPERTS).cumsum(0).tolist()
    assert routes.offsets.dtype is routes.token_of.dtype is torch.int32
    for token in range(TOKENS):
        for choice in range(TOP):
            place = routes.places[token, choice]
            assert routes.token_of[place] == token
            ends = routes.offsets.tolist()
            assert next(e for e, end in enumerate(ends) if place < end) == chosen[token, choice]
    torch.testing.assert_close(routes.weights.sum(-1), torch.ones(TOKENS))


def test_a_row_of_zeros_is_quantised_to_zeros():
    values, scale = quantise_rows(torch.zeros(2, 8))
    assert (values.float() == 0).all()
    assert torch.isfinite(scale).all()


def row(wheel, errors):
    us = {"wheel": wheel, "torch": 20.0, "wheel gathered, SwiGLU": 10.0, "torch gathered, SwiGLU": 30.0}
    return {"model": "a model", "tokens": 16, "skew": True, "us": us, "errors": errors}


def test_a_nan_and_a_large_error_are_wrong():
    assert is_right({"products": [row(10.0, [0.001])], "layers": []})
    assert not is_right({"products": [row(10.0, [float("nan")])], "layers": []})
    assert not is_right({"products": [row(10.0, [0.001])], "layers": [{"errors": [], "errors_fp8": [0.2]}]})


def test_the_summary_has_the_geometric_mean_and_the_least():
    text = summary({"products": [row(10.0, []), row(5.0, [])], "layers": []})
    assert "a model, 16 tokens, skewed: 10.0 us, torch 20.0: 2.00x; gathered with SwiGLU 10.0, 3.00x" in text
    assert text.endswith("geometric mean over 2 products: 2.828x, least 2.000x")
