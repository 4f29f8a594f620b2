"""A mixture's experts in packed weights: modules of transformers quantized and loaded; torch computes what kernels would."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from tests.runtime import torch_reference

BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def gemm(packed_package):
    return import_module(f"{packed_package.__name__}.torch")


@pytest.fixture
def calls(packed_package, monkeypatch):
    return torch_reference.stand_in(packed_package, monkeypatch)


@pytest.mark.parametrize(
    ("model", "layout"),
    [("gpt_oss", "gpt_oss"), ("qwen3_moe", "awq"), ("qwen3_moe", "modelopt_nvfp4"), ("mixtral", "gptq")],
)
@pytest.mark.filterwarnings("ignore:torch computes")
def test_models_of_transformers_are_as_close_as_torch(packed_package, gemm, calls, tmp_path, model, layout):
    pytest.importorskip("transformers", reason="transformers is not installed")
    from research.bench import packed_model

    packed_model.make(tmp_path / "wide", BF16, 256, model)
    found = packed_model.compare(layout, tmp_path, packed_package.__name__, BF16, "cpu")
    assert "QuantizedExperts" in found["kinds"]
    assert 0 < found["ours"] < 2 * found["torch"]
    assert ("packed_grouped_linear" in calls) == (layout == "gpt_oss")  # of which the package has both products
