"""Walking a model's modules: with transformers itself where it is installed, and with a stand-in for it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from aot.core.errors import ShapeFileError
from aot.models import walk
from aot.models.configuration import Configuration
from tests.unit.models.cases import CASES, configuration, listed


@pytest.mark.skipif(not walk.is_installed(), reason="transformers is not installed")
@pytest.mark.parametrize("name", CASES)
def test_transformers_still_builds_what_was_noted(name):
    parts = walk.parts_of(configuration(name))
    assert listed(parts) == CASES[name]["linears"]
    assert listed(parts, 2) == CASES[name]["halves"]


class Mapping(dict):
    """AutoModel of the stand-in."""

    @property
    def _model_mapping(self):
        return self

    def from_config(self, config, *, trust_remote_code):
        assert trust_remote_code is False
        return self[type(config)](config)


class Found:
    """A configuration of the stand-in."""

    model_type = "fake"

    def __init__(self, values):
        vars(self).update(values)

    from_dict = classmethod(lambda cls, values: cls(values))


@pytest.fixture
def transformers(monkeypatch):
    """Stand in for transformers with one family, of the manners in which models hold their weights."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Conv1D(nn.Module):
        def __init__(self, n, k):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.empty(k, n)), nn.Parameter(torch.empty(n))

    class TopKRouter(nn.Module):
        def __init__(self, n, k):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(n, k))

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.empty(4, 64, 48))
            self.down_proj = nn.Parameter(torch.empty(4, 24, 64))

    class PreTrainedModel(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config

        def post_init(self):
            pass

    def module(**children):
        found = nn.Module()
        for name, child in children.items():
            setattr(found, name, child)
        return found

    class FakeForCausalLM(PreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            if config.hidden != 64:
                raise ZeroDivisionError(f"hidden {config.hidden}\nis not 64")
            attention = module(c_attn=Conv1D(192, 64), c_proj=Conv1D(64, 64))
            attention.head_dim = 16
            mlp = module(router=TopKRouter(4, 64), experts=Experts())
            plain = module(c_fc=Conv1D(256, 64), c_proj=Conv1D(64, 256))
            crossing = module(
                crossattention=module(**{x: nn.Linear(64, 64, bias=False) for x in ("query", "key", "value", "o")})
            )
            self.layers = nn.ModuleList([module(attn=attention, mlp=mlp), module(mlp=plain), crossing])
            self.pooling = nn.MultiheadAttention(64, 4)
            self.odd = nn.Linear(64, 7)
            self.lm_head = nn.Linear(64, 1000, bias=False)
            self.same_head = self.lm_head
            assert next(self.parameters()).device.type == "meta"

    fake = ModuleType("transformers")
    fake.__version__, fake.PreTrainedModel, fake.CONFIG_MAPPING = "0.0", PreTrainedModel, {"fake": Found}
    fake.FakeForCausalLM, fake.pipeline = FakeForCausalLM, lambda *_: pytest.fail("no class of a model")
    for name in walk._AUTO:
        setattr(fake, f"AutoModel{name}", Mapping({Found: FakeForCausalLM} if name == "ForCausalLM" else {}))
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
    [["k", "o", "q", "v"], 64, 64, False, False, 0, True, 8],
    [["lm_head"], 1000, 64, True, False, 0, False, 1],
    [["odd"], 7, 64, False, False, 0, True, 1],
    [["qkv"], 192, 64, False, False, 0, True, 2],
    [["router"], 4, 64, False, False, 0, False, 1],
    [["up"], 256, 64, False, False, 0, True, 1],
]


@pytest.mark.parametrize("architectures", [["FakeForCausalLM"], ["pipeline"], ["CodeOfTheModel"], []])
def test_every_manner_of_holding_weights_is_walked(transformers, architectures):
    assert listed(walk.parts_of(of(architectures=architectures))) == WALKED


def test_what_transformers_refuses_is_said_in_one_line(transformers):
    with pytest.raises(ShapeFileError) as caught:
        walk.parts_of(of(hidden=3))
    assert str(caught.value) == (
        "c.json: transformers 0.0 cannot build the model: ZeroDivisionError: hidden 3 is not 64; mend the "
        "configuration, or install the version of transformers that its key transformers_version names"
    )
    with pytest.raises(ShapeFileError, match=r"c.json: num_layers: expected at most 10000, got 10000000"):
        walk.parts_of(of(num_layers=10**7))
    with pytest.raises(
        ShapeFileError, match=r"transformers 0.0 does not know the family 'other'; a newer one may; code"
    ):
        walk.parts_of(of(model_type="other"))


def test_transformers_is_told_to_stay_off_the_network(transformers, monkeypatch):
    walk.parts_of(of())
    import os

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
