"""A stand-in for diffusers with one model, which holds its weights as diffusers' attention and feed-forward do."""

from __future__ import annotations

from types import ModuleType

from torch import nn

from tests.unit.models.stand_in import of_children


def attention(width, *, is_cross):
    """Return an attention of 4 heads to itself and a prompt's tokens, or to another tower of some width."""
    found = of_children(to_q=nn.Linear(64, 64, bias=False), to_out=nn.ModuleList([nn.Linear(64, 64)]))
    found.to_k, found.to_v = (nn.Linear(width, 64, bias=False) for _ in range(2))
    found.heads, found.is_cross_attention = 4, is_cross
    return found


class ModelMixin(nn.Module):
    """What models of diffusers are made from."""

    @classmethod
    def from_config(cls, values):
        found = cls()
        found.config = {key: values[key] for key in ("sample_size", "patch_size")}
        assert next(found.parameters()).device.type == "meta"
        return found


class FakeTransformer2DModel(ModelMixin):
    """One layer: an attention, another to a prompt, and a feed-forward with a gate in one weight."""

    def __init__(self):
        super().__init__()
        self.time_embedder = of_children(linear_1=nn.Linear(32, 64))
        self.context_embedder = nn.Linear(48, 64)
        block = of_children(attn1=attention(64, is_cross=False), attn2=attention(48, is_cross=True))
        block.attn1.add_k_proj = nn.Linear(64, 64)
        block.norm1 = of_children(linear=nn.Linear(64, 128))
        up = of_children(proj=nn.Linear(64, 512))
        block.ff = of_children(net=nn.ModuleList([up, nn.Identity(), nn.Linear(256, 64)]))
        self.transformer_blocks = nn.ModuleList([block])
        self.proj_out = nn.Linear(64, 16)


class FakePipeline:
    """No model."""


def module():
    fake = ModuleType("diffusers")
    fake.__version__, fake.ModelMixin = "0.1", ModelMixin
    fake.FakeTransformer2DModel, fake.FakePipeline = FakeTransformer2DModel, FakePipeline
    return fake
