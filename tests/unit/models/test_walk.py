"""Walking a model's modules: with transformers itself where it is installed, and with a stand-in for it."""

import os
import sys
from types import SimpleNamespace

import pytest

from aot.core.errors import ShapeFileError
from aot.models import empty, walk
from aot.models.blocks import Attention
from aot.models.configuration import Configuration
from tests.unit.models import diffusion, stand_in
from tests.unit.models.cases import CASES, configuration, listed


@pytest.mark.skipif(not empty.is_installed(), reason="transformers is not installed")
@pytest.mark.parametrize("name", CASES)
def test_transformers_still_builds_what_was_noted(name):
    parts = walk.parts_of(configuration(name))
    assert listed(parts) == CASES[name]["linears"]
    assert listed(parts, 2) == CASES[name]["halves"]


@pytest.fixture
def transformers(monkeypatch):
    """Stand in for transformers with one family."""
    fake = stand_in.module()
    monkeypatch.setitem(sys.modules, "transformers", fake)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "x")
    return fake


def of(**values):
    return Configuration({"model_type": "fake", "hidden": 64, **values}, "c.json")


WALKED = [
    [["cross k", "cross o", "cross q", "cross v"], 64, 64, False, False, 0, False, 4],
    [["cross kv"], 128, 64, False, False, 0, False, 1],
    [["down"], 64, 256, False, False, 0, True, 1],
    [["expert down"], 64, 24, False, True, 0, False, 4],
    [["expert gate", "expert up"], 24, 64, False, True, 0, False, 8],
    [["expert gate_up"], 48, 64, False, True, 0, False, 4],
    [["k", "o", "q", "v"], 64, 64, False, False, 0, True, 12],
    [["lm_head"], 1000, 64, True, False, 0, False, 1],
    [["odd"], 7, 64, False, False, 0, True, 1],
    [["qkv"], 192, 64, False, False, 0, True, 3],
    [["router"], 4, 64, False, False, 0, False, 1],
    [["up"], 256, 64, False, False, 0, True, 1],
]


@pytest.mark.parametrize("architectures", [["FakeForCausalLM"], ["pipeline"], ["CodeOfTheModel"], []])
def test_every_manner_of_holding_weights_is_walked(transformers, architectures):
    parts = walk.parts_of(of(architectures=architectures))
    assert listed(parts) == WALKED
    assert {x.block.heads for x in parts if isinstance(x.block, Attention)} == {4}


def test_what_transformers_refuses_is_said_in_one_line(transformers):
    with pytest.raises(ShapeFileError) as caught:
        walk.parts_of(of(hidden=3))
    assert str(caught.value) == (
        "c.json: transformers 0.0 cannot build the model: ZeroDivisionError: hidden 3 is not 64; mend the "
        "configuration, or install the version that its key transformers_version names; `aot shapes record` takes the "
        "shapes of any program that runs"
    )
    with pytest.raises(ShapeFileError, match=r"ImportError: it needs timm; install what is missing beside aot; `aot"):
        walk.parts_of(of(hidden=5))
    with pytest.raises(ShapeFileError, match=r"c.json: num_layers: expected at most 10000, got 10000000"):
        walk.parts_of(of(num_layers=10**7))
    with pytest.raises(
        ShapeFileError, match=r"transformers 0.0 does not know the family 'other'; a newer one may; code"
    ):
        walk.parts_of(of(model_type="other"))


def test_types_that_torch_has_none_of_do_not_reach_transformers(transformers):
    assert walk.parts_of(of(torch_dtype="auto", vision_config={"dtype": "auto"}))


@pytest.fixture
def diffusers(monkeypatch):
    """Stand in for diffusers with two models."""
    fake = diffusion.module()
    monkeypatch.setitem(sys.modules, "diffusers", fake)
    return fake


def diffused(**values):
    return Configuration({"_class_name": "FakeTransformer2DModel", **values}, "c.json")


PATCHES = 256
DIFFUSED = [
    [["add_k_proj"], 64, 64, False, False, 0, True, 1],
    [["context_embedder"], 64, 48, False, False, 0, True, 1],
    [["cross k", "cross v"], 64, 48, False, False, 0, False, 2],
    [["cross kv"], 128, 48, False, False, 0, False, 1],
    [["cross o", "o"], 64, 64, False, False, PATCHES, True, 2],
    [["cross q", "k", "q", "v"], 64, 64, False, False, PATCHES, False, 4],
    [["down"], 64, 256, False, False, PATCHES, True, 1],
    [["gate", "up"], 256, 64, False, False, PATCHES, True, 2],
    [["gate_up"], 512, 64, False, False, PATCHES, True, 1],
    [["linear"], 128, 64, True, False, 0, True, 1],
    [["linear_1"], 64, 32, True, False, 0, True, 1],
    [["proj_out"], 16, 64, False, False, PATCHES, True, 1],
    [["qkv"], 192, 64, False, False, PATCHES, False, 1],
]
"""Queries of 4 heads meet 16 x 16 patches, Linears of steps and norms a row of each image, the others a prompt."""


def test_a_diffusion_model_meets_patches_prompts_and_steps(diffusers):
    assert listed(walk.parts_of(diffused(sample_size=32, patch_size=2))) == DIFFUSED
    found = {x[0][0]: x[5] for x in listed(walk.parts_of(diffused(sample_size=None, patch_size=2)))}
    assert set(found.values()) == {0}


def test_what_diffusers_has_no_model_of_is_refused(diffusers):
    with pytest.raises(ShapeFileError, match=r"^c.json: diffusers 0.1 has no model .FakePipeline.; a newer one may; "):
        walk.parts_of(diffused(_class_name="FakePipeline"))
    with pytest.raises(ShapeFileError, match=r"diffusers 0.1 cannot build the model: KeyError: .sample_size.; mend"):
        walk.parts_of(diffused())


@pytest.mark.skipif(not empty.is_installed("diffusers"), reason="diffusers is not installed")
def test_diffusers_still_builds_what_was_noted():
    config = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 3, "sample_size": 32, "patch_size": 2}
    found = listed(walk.parts_of(diffused(**config, _class_name="DiTTransformer2DModel", norm_type="ada_norm_zero")))
    assert [["q", "k", "v", "o"], 64, 64] in [[sorted(x[0], key="qkvo".index), *x[1:3]] for x in found if "q" in x[0]]
    assert {(x[1], x[2], x[5], x[7]) for x in found} >= {(192, 64, 256, 3), (256, 64, 256, 3), (64, 256, 256, 3)}


def test_transformers_is_told_to_stay_off_the_network(transformers, monkeypatch):
    walk.parts_of(of())
    assert (os.environ["HF_HUB_OFFLINE"], os.environ["TRANSFORMERS_OFFLINE"]) == ("1", "1")


def test_rows_of_towers():
    image, plain = SimpleNamespace(image_size=28, patch_size=14), SimpleNamespace(model_type="x")
    towers = {"": plain, "vision_tower": image}
    assert walk._place("vision_tower.layers.0", towers, plain, {id(image)})[0].num_tokens == 5
    assert walk._place("multi_modal_projector", towers, plain, set())[0].num_tokens == 4
    assert walk._place("layers.0", towers, plain, set()) == (walk.SEQUENCES, "")
    speech = SimpleNamespace(is_encoder_decoder=True, max_source_positions=1500)
    assert walk._place("model.encoder.layers.0", {"": speech}, speech, set())[0].num_tokens == 1500
    assert walk._place("model.decoder.layers.0", {"": speech}, speech, set()) == (walk.BATCHES, "decoder ")
