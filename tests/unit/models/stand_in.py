"""A stand-in for transformers with one family, which holds its weights in all the manners that are met."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import nn

from aot.models.empty import _AUTO


class Found:
    model_type = "fake"

    def __init__(self, values):
        vars(self).update(values)

    from_dict = classmethod(lambda cls, values: cls(values))


class Auto(dict):
    """AutoModel: classes by the class of their configuration."""

    @property
    def _model_mapping(self):
        return self

    def from_config(self, config, *, trust_remote_code):
        assert trust_remote_code is False
        return self[type(config)](config)


class Conv1D(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(k, n)), nn.Parameter(torch.empty(n))


class TopKRouter(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, k))


class Experts(nn.Module):
    """Four experts, held (k, n)."""

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


def of_children(**children):
    found = nn.Module()
    for name, child in children.items():
        setattr(found, name, child)
    return found


class FakeForCausalLM(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        if config.hidden == 5:
            raise ImportError("it needs timm")
        if config.hidden != 64:
            raise ZeroDivisionError(f"hidden {config.hidden}\nis not 64")
        attention = of_children(c_attn=Conv1D(192, 64), c_proj=Conv1D(64, 64))
        attention.head_dim = 16
        mlp = of_children(router=TopKRouter(4, 64), experts=Experts())
        plain = of_children(c_fc=Conv1D(256, 64), c_proj=Conv1D(64, 256))
        crossing = of_children(**{x: nn.Linear(64, 64, bias=False) for x in ("query", "key", "value", "o")})
        apart = of_children(**{x: nn.Linear(64, 64) for x in ("query", "key", "value")})
        apart.attention_head_size = 16
        older = of_children(attention=apart, output=of_children(dense=nn.Linear(64, 64)))
        layers = (of_children(attn=attention, mlp=mlp), of_children(mlp=plain), of_children(crossattention=crossing))
        self.layers = nn.ModuleList((*layers, of_children(attention=older)))
        self.pooling = nn.MultiheadAttention(64, 4)
        self.odd = nn.Linear(64, 7)
        self.lm_head = nn.Linear(64, 1000, bias=False)
        self.same_head = self.lm_head
        assert next(self.parameters()).device.type == "meta"


def pipeline(*_):
    raise AssertionError("a function was called for a class of a model")


def module():
    fake = ModuleType("transformers")
    fake.__version__, fake.CONFIG_MAPPING = "0.0", {"fake": Found}
    fake.PreTrainedModel, fake.FakeForCausalLM, fake.pipeline = PreTrainedModel, FakeForCausalLM, pipeline
    for name in _AUTO:
        setattr(fake, f"AutoModel{name}", Auto({Found: FakeForCausalLM} if name == "ForCausalLM" else {}))
    return fake
