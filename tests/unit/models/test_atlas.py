"""The atlas: what an architecture's numbers make of Linears, and that the shipped shape sets are those of the file."""

from importlib import resources

import pytest

from aot.core.errors import ShapeFileError
from aot.core.shape_set import load_shape_set, parse_shape_set
from aot.models.atlas import load_architectures, main, parse_architectures, shape_sets

FILE = """
version = 1
[rows.a]
m = [1, 2, 4, 8, 16]
every = 2
logits = [1, 2]
expert = [3, 5]
[rows.b]
m = [1, 4, 6]
every = 1
"""
GROUPED = """
[[model]]
name = "grouped"
source = "a paper"
[[model.stack]]
rows = "a"
hidden = 64
attention = { heads = 4, kv_heads = 2, head_dim = 32 }
feed_forward = { width = 320, is_gated = true }
vocabulary = 1000
"""
LATENT = """
[[model]]
name = "latent"
source = "a paper"
[[model.stack]]
rows = "a"
hidden = 640
latent_attention = { heads = 8, q_rank = 48, kv_rank = 32, nope_dim = 16, rope_dim = 8, value_dim = 24 }
experts = { count = 12, width = 80, shared_width = 160 }
"""
HELD_OUT = """
[[model]]
name = "kept"
held_out = true
source = "a paper"
[[model.stack]]
name = "tower"
rows = "b"
linears = [{ name = "known", n = 128, k = 64 }, { name = "new", n = 72, k = 64 }, { name = "odd", n = 9, k = 8 }]
"""


def sets(*models):
    """Return the shape sets that models make, tuned and held out, as texts."""
    return shape_sets(parse_architectures(FILE + "".join(models), "x.toml")).values()


def found(text):
    """Return the m of each weight of a shape set, by its name, n and k."""
    models = parse_shape_set(text, "x.toml").models
    return {(weight.name, weight.n, weight.k): model.m for model in models for weight in model.weights}


def test_attention_and_feed_forward_stand_apart_and_fused_and_take_turns_over_m():
    tuned, _ = sets(GROUPED, HELD_OUT)
    odd, even = (1, 4, 16), (2, 8)
    assert found(tuned) == {
        ("q", 128, 64): odd,
        ("k, v", 64, 64): even,
        ("qkv", 256, 64): odd,
        ("o", 64, 128): even,
        ("gate, up", 320, 64): odd,
        ("gate_up", 640, 64): even,
        ("down", 64, 320): odd,
        ("lm_head", 1000, 64): (2,),
    }


def test_latent_attention_and_experts():
    odd, even = (1, 4, 16), (2, 8)
    tuned, _ = sets(LATENT, HELD_OUT)
    assert found(tuned) == {
        ("q_a", 48, 640): odd,
        ("q_a and kv_a", 88, 640): even,
        ("q_b", 192, 48): odd,
        ("kv_a", 40, 640): even,
        ("kv_b", 320, 32): odd,
        ("o", 640, 192): even,
        # The router has 12 outputs, no multiple of 8.
        ("expert gate, expert up", 80, 640): (3,),
        ("expert gate_up", 160, 640): (5,),
        ("expert down", 640, 80): (3,),
        ("shared expert gate, shared expert up", 160, 640): even,
        ("shared expert gate_up", 320, 640): odd,
        ("shared expert down", 640, 160): even,
    }
    assert "no\n# multiple of 8: latent router 12 x 640.\n" in tuned


def test_queries_without_a_rank_are_projected_at_once():
    tuned, _ = sets(LATENT.replace("q_rank = 48, ", ""), HELD_OUT)
    assert [key for key in found(tuned) if key[0].startswith("q")] == [("q", 192, 640)]


def test_slices_divide_outputs_of_the_first_products_and_inputs_of_the_last():
    tuned, _ = sets(GROUPED + "ways = [4]", HELD_OUT)
    assert set(found(tuned)) == {
        ("1/4 q, 1/4 k, 1/4 v", 32, 64),
        ("1/4 qkv", 96, 64),
        ("1/4 o", 64, 32),
        ("1/4 gate, 1/4 up", 80, 64),
        ("1/4 gate_up", 160, 64),
        ("1/4 down", 64, 80),
        # 1000 / 4 is no multiple of 8.
    }


def test_what_is_held_out_is_less_the_problems_that_are_tuned():
    tuned, held_out = sets(GROUPED, HELD_OUT)
    assert found(tuned)["q", 128, 64] == (1, 4, 16)
    assert found(held_out) == {("known", 128, 64): (6,), ("new", 72, 64): (1, 4, 6)}
    _, held_out = sets(GROUPED, HELD_OUT.replace('"b"', '"a"'))
    assert found(held_out) == {("new", 72, 64): (2, 8)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden = 64\n", "", "model[0].stack[0]: the stack has layers, which need the key hidden, their width"),
        (
            'rows = "a"',
            'rows = "c"',
            "model[0].stack[0].rows: the weights need `logits` of [rows.c], which is not there",
        ),
        (
            'rows = "a"',
            'rows = "b"',
            "model[0].stack[0].rows: the weights need `logits` of [rows.b], which is not there",
        ),
        ("every = 2", "every = 3", "rows.a: a list has 2 numbers; expected 3 or more, since `every` is that"),
        (
            "vocabulary = 1000",
            "ways = [2]\nexperts = { count = 8, width = 8 }",
            "model[0].stack[0]: ways are for attention, feed_forward and vocabulary; put all else in another stack",
        ),
        ("version = 1", "version = 2", "version: expected 1, got 2"),
    ],
)
def test_a_file_that_says_too_little_is_refused(old, new, message):
    with pytest.raises(ShapeFileError) as caught:
        parse_architectures((FILE + GROUPED).replace(old, new, 1), "x.toml")
    assert str(caught.value) == f"x.toml: {message}"


def test_the_shipped_shape_sets_are_made_from_the_shipped_architectures(tmp_path):
    main(tmp_path)
    shipped = resources.files("aot").joinpath("shapes")
    for name in ("atlas", "atlas_heldout"):
        assert (tmp_path / f"{name}.toml").read_text() == shipped.joinpath(f"{name}.toml").read_text()


@pytest.mark.slow
def test_known_weights_are_in_the_shipped_sets():
    def weights(name, model):
        return {(weight.n, weight.k) for x in load_shape_set(name).models if x.name == model for weight in x.weights}

    llama = {(4096, 4096), (1024, 4096), (6144, 4096), (14336, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}
    assert weights("atlas", "llama-3.1-8b") == llama
    deepseek = {(1536, 7168), (576, 7168), (2112, 7168), (24576, 1536), (32768, 512), (7168, 16384)}
    deepseek |= {(18432, 7168), (36864, 7168), (7168, 18432), (256, 7168), (129280, 7168)}
    assert weights("atlas_heldout", "deepseek-v3") == deepseek | {(2048, 7168), (4096, 7168), (7168, 2048)}
    assert weights("atlas", "whisper-large-v3 encoder") == {(1280, 1280), (3840, 1280), (5120, 1280), (1280, 5120)}
    assert weights("atlas", "gr00t-n1.5 cross-attention") == {(1536, 2048), (3072, 2048)}


def test_the_atlas_is_wide_and_what_is_held_out_is_mostly_of_other_weights():
    tuned, held_out = (set(load_shape_set(name).sizes) for name in ("atlas", "atlas_heldout"))
    assert 1500 <= len(tuned) <= 2500
    assert 600 <= len(held_out) <= 800
    assert not tuned & held_out
    known = {(n, k) for n, k, _ in tuned}
    assert sum((n, k) in known for n, k, _ in held_out) < 0.15 * len(held_out)
    assert {m for _, _, m in tuned} >= {1, 16, 256, 333, 577, 729, 900, 1369, 1500, 2500, 12000, 16384}
    assert len({m for _, _, m in held_out} - {m for _, _, m in tuned}) > 30
    assert max(m for _, _, m in tuned | held_out) == 16384
    assert not [size for size in tuned | held_out if size[0] % 8 or size[1] % 8]


def test_the_names_of_architectures_are_told_apart():
    names = [model.name for model in load_architectures().model]
    assert len(names) == len(set(names))
