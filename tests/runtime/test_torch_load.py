"""`load_quantized`: folders that `aot pack` wrote, in models of torch; torch computes what kernels would."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from aot.checkpoint.packing import Request, pack_checkpoint
from aot.core.element import ElementType
from aot.core.numerics import encode
from aot.core.packed_folder import FILE
from tests import checkpoints
from tests.runtime import torch_reference

BF16 = torch.bfloat16
N, K = 48, 256


@pytest.fixture(scope="module")
def gemm(packed_package):
    return import_module(f"{packed_package.__name__}.torch")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Give the packed folder of a layout, and what its weight stands for; each is made once."""
    made = {}

    def give(layout):
        if layout not in made:
            made[layout] = make(layout, tmp_path_factory.mktemp(layout))
        return made[layout]

    return give


def make(layout, folder):
    rng = np.random.default_rng(3)
    wide = (rng.standard_normal((N, K)) / 16).astype(np.float32)
    held, values = checkpoints.quantised(layout, wide, ElementType.BFLOAT16)
    others = {"embed.weight": (7, K), "norm.weight": (K,), "body.proj.bias": (N,)}
    tensors = [(f"body.proj.{end}", *rest) for end, *rest in held]
    for name, shape in others.items():
        tensors.append((name, "BF16", encode(ElementType.BFLOAT16, rng.standard_normal(shape).astype(np.float32))))
    checkpoints.write_folder(folder / "from", layout, tensors)
    pack_checkpoint(Request(folder / "from", folder / "to"), 1)
    return folder / "to", torch.from_numpy(values).float()


class Model(nn.Module):
    """An embedding, a norm whose table of angles is not saved, and a Linear."""

    def __init__(self, n=N, bias=True, dtype=BF16):
        super().__init__()
        self.embed = nn.Embedding(7, K, dtype=dtype)
        self.norm = nn.RMSNorm(K, dtype=dtype)
        self.body = nn.ModuleDict({"proj": nn.Linear(K, n, bias, dtype=dtype)})
        self.register_buffer("angles", torch.arange(3.0), persistent=False)

    def forward(self, tokens):
        return self.body["proj"](self.norm(self.embed(tokens)))


def expected(model, values, tokens):
    """Compute by the values that the checkpoint stands for."""
    x = model.norm(model.embed(tokens))
    return (x.float() @ values.t() + model.body["proj"].bias.float()).to(BF16)


@pytest.mark.parametrize("layout", ["compressed", "awq", "nvfp4", "mxfp4", "modelopt_fp8", "deepseek"])
@pytest.mark.filterwarnings("ignore:torch computes")
def test_a_packed_checkpoint_is_the_model_that_its_values_are(gemm, packed_package, folders, layout, monkeypatch):
    torch_reference.stand_in(packed_package, monkeypatch)
    folder, values = folders(layout)
    model = gemm.load_quantized(Model, folder)
    layer = model.body["proj"]
    assert type(layer) is gemm.QuantizedLinear
    assert layer.format == checkpoints.FORMATS[layout]
    assert torch.equal(layer.dequantize(), values.to(BF16))
    assert set(layer.state_dict()) == {"qweight", "scale", "bias"}
    assert torch.equal(model.angles, torch.arange(3.0))
    assert not any(x.is_meta for x in (*model.parameters(), *model.buffers()))
    if "fp8" in layout or layout == "deepseek":  # whose inputs are rounded too
        return
    tokens = torch.tensor([1, 5, 0])
    assert torch.equal(model(tokens), expected(model, values, tokens))


def test_the_modules_are_those_that_quantize_makes(gemm, folders):
    folder, _ = folders("compressed")
    loaded, quantized = gemm.load_quantized(Model, folder), Model()
    report = gemm.quantize(quantized, "int4g128")
    assert report.quantized == ("body.proj",)
    ours, theirs = (vars(x.body["proj"]) for x in (loaded, quantized))
    assert set(ours) == set(theirs)
    for name in ("qweight", "scale"):
        a, b = ours["_buffers"][name], theirs["_buffers"][name]
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    quantized.load_state_dict(loaded.state_dict())
    assert torch.equal(quantized.body["proj"].dequantize(), loaded.body["proj"].dequantize())


def test_a_model_with_memory_keeps_its_parameters(gemm, folders):
    folder, values = folders("compressed")
    model = Model()
    norm, layer = model.norm.weight, model.body["proj"]
    assert gemm.load_quantized(model, folder) is model
    assert model.norm.weight is norm
    assert model.body["proj"] is layer
    assert torch.equal(layer.dequantize(), values.to(BF16))
    gemm.load_quantized(model, folder, device="cpu")  # again, into what is quantized already
    assert model.norm.weight is norm
    assert torch.equal(layer.dequantize(), values.to(BF16))


def test_weights_that_modules_share_are_loaded_once(gemm, folders):
    class Tied(Model):
        def __init__(self):
            super().__init__()
            self.other = nn.Embedding(7, K, dtype=BF16)
            self.other.weight = self.embed.weight

    model = gemm.load_quantized(Tied, folders("compressed")[0])
    assert model.other.weight is model.embed.weight
    assert not model.other.weight.is_meta


def test_a_configuration_makes_the_model_of_its_class(gemm, folders, monkeypatch):
    class Configured(Model):
        def __init__(self, config):
            assert not hasattr(config, "quantization_config")
            super().__init__(dtype=torch.get_default_dtype())

    monkeypatch.setitem(import_module("sys").modules, "transformers", SimpleNamespace(Configured=Configured))
    config = SimpleNamespace(architectures=["Configured"], quantization_config={}, torch_dtype="float32")
    model = gemm.load_quantized(config, folders("compressed")[0])
    assert (model.training, model.norm.weight.dtype, config.quantization_config) == (False, BF16, {})
    config.architectures = ["Other"]
    with pytest.raises(gemm.errors.UnsupportedError, match="transformers has no architecture 'Other'"):
        gemm.load_quantized(config, folders("compressed")[0])


def test_what_does_not_go_together_is_named_and_nothing_changes(gemm, folders):
    folder, _ = folders("compressed")
    model = Model(n=N + 1, bias=False)
    model.extra = nn.Linear(4, 4, dtype=BF16)
    before = model.state_dict()
    text = (
        r"1 packed Linears that the model has no place for: body.proj \(it is \(49, 256\), and the folder has "
        r"\(48, 256\)\); 1 unexpected: body.proj.bias; 3 missing: body.proj.weight, extra.weight, extra.bias; expected"
    )
    with pytest.raises(gemm.errors.CheckpointError, match=text):
        gemm.load_quantized(model, folder)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert type(model.body["proj"]) is nn.Linear


def test_what_a_model_of_transformers_need_not_have_is_left(gemm, folders):
    """As the layer of a DeepSeek-V3 that predicts further tokens; what a model has of it all the same is loaded."""
    folder, values = folders("compressed")
    model = nn.ModuleDict({"embed": nn.Embedding(7, K, dtype=BF16), "norm": nn.RMSNorm(K, dtype=BF16)})
    model._keys_to_ignore_on_load_unexpected = [r"^body\."]
    assert type(gemm.load_quantized(model, folder)["embed"]) is nn.Embedding
    whole = Model()
    whole._keys_to_ignore_on_load_unexpected = [r"^body\."]
    assert torch.equal(gemm.load_quantized(whole, folder).body["proj"].dequantize(), values.to(BF16))


class Renaming:
    """A stand-in for transformers' WeightRenaming, and with operations for its WeightConverter."""

    def __init__(self, old, new, *operations):
        self.old, self.new = old, new
        if operations:
            self.operations = operations

    def rename_source_key(self, name):
        return (name.replace(self.old, self.new, 1), self.old) if self.old in name else (name, None)


class Transpose:
    pass


class MergeModulelist:
    pass


@pytest.mark.parametrize("version", [4, 5])
def test_names_that_transformers_changes_are_changed_too(gemm, tmp_path, monkeypatch, version):
    """As of Gemma 3, Qwen2-VL and Nemotron-H, whose published names are not those of their modules."""
    held, values = checkpoints.quantised("compressed", np.ones((N, K), np.float32), ElementType.BFLOAT16)
    tensors = [(f"backbone.proj.{end}", *rest) for end, *rest in held] + [
        ("backbone.proj.bias", "BF16", np.zeros(N, "u2"))
    ]
    tensors += [("embed.weight", "BF16", np.zeros((7, K), "u2")), ("norm.gamma.weight", "BF16", np.zeros(K, "u2"))]
    checkpoints.write_folder(tmp_path / "from", "compressed", tensors)
    pack_checkpoint(Request(tmp_path / "from", tmp_path / "to"), 1)
    library = ModuleType("transformers")
    library.PreTrainedModel = Model
    monkeypatch.setitem(sys.modules, "transformers", library)
    changes = [
        Renaming("backbone.", "body."),
        Renaming("norm.gamma", "norm"),
        Renaming("embed", "e", MergeModulelist()),
    ]
    if version == 4:
        patterns = {"^backbone": "^body", "^norm.gamma": "norm"}
        monkeypatch.setattr(Model, "_checkpoint_conversion_mapping", patterns, raising=False)
        monkeypatch.setitem(sys.modules, "transformers.conversion_mapping", None)  # which has no such module
    else:
        mapping = ModuleType("transformers.conversion_mapping")
        mapping.get_model_conversion_mapping = lambda _: changes
        monkeypatch.setitem(sys.modules, "transformers.conversion_mapping", mapping)
    model = gemm.load_quantized(Model, tmp_path / "to")
    assert torch.equal(model.body["proj"].dequantize(), torch.from_numpy(values).to(BF16))
    assert not model.norm.weight.any()
    if version == 5:
        changes.append(Renaming("body.proj.weight", "body.proj.weight", Transpose()))
        with pytest.raises(
            gemm.errors.CheckpointError, match=r"transformers changes 'backbone\.proj\.weight' .*Transpose"
        ):
            gemm.load_quantized(Model, tmp_path / "to")


def test_a_type_that_factors_are_not_of_is_refused(gemm, folders):
    with pytest.raises(
        gemm.errors.CheckpointError, match=r"it is of torch.float16, and the folder is for torch.bfloat16"
    ):
        gemm.load_quantized(Model(dtype=torch.float16), folders("compressed")[0])


def test_buffers_that_nothing_loads_are_named(gemm, folders):
    with torch.device("meta"):
        model = Model()
    with pytest.raises(gemm.errors.CheckpointError, match=r"pass a function that makes the model instead\): angles"):
        gemm.load_quantized(model, folders("compressed")[0])


def test_a_damaged_file_is_refused_before_anything_changes(gemm, folders, tmp_path):
    folder = shutil.copytree(folders("compressed")[0], tmp_path / "copy")
    (file,) = folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    model = Model()
    with pytest.raises(gemm.errors.CheckpointError, match=r"of SHA-256 [0-9a-f]{64}; expected"):
        gemm.load_quantized(model, folder)
    assert type(model.body["proj"]) is nn.Linear
    gemm.load_quantized(model, folder, verify=False)
    document = json.loads((folder / FILE).read_text())
    document["layers"]["body.proj"]["shape"] = [N, 2 * K]
    (folder / FILE).write_text(json.dumps(document))
    with pytest.raises(
        gemm.errors.CheckpointError, match=r"'body\.proj\.qweight' is U8 of \(3, 2112\); expected U8 of \(3, 4224\)"
    ):
        gemm.load_quantized(model, folder)


def test_what_is_no_model_is_refused(gemm, folders, monkeypatch):
    folder, _ = folders("compressed")
    with pytest.raises(gemm.errors.OperandError, match=r"got a int; expected a torch\.nn\.Module, a function"):
        gemm.load_quantized(7, folder)
    with pytest.raises(gemm.errors.OperandError, match="the function made a int"):
        gemm.load_quantized(lambda: 7, folder)
    monkeypatch.setitem(import_module("sys").modules, "transformers", None)
    with pytest.raises(gemm.errors.UnsupportedError, match="needs transformers, which is not installed"):
        gemm.load_quantized(str(folder), folder)
    with pytest.raises(gemm.errors.CheckpointError, match="expected a folder that `aot pack` wrote"):
        gemm.load_quantized(Model(), folder.parent)


@pytest.mark.filterwarnings("ignore:torch computes")
def test_a_bias_of_zeros_is_none(gemm, tmp_path):
    wide = np.tile(np.float32([1, -1]), (N, K // 2))
    held, _ = checkpoints.quantised("gptq", wide, ElementType.BFLOAT16)
    for number, value in enumerate((0, 1)):
        tensors = [*((f"0.{end}", *rest) for end, *rest in held), ("0.bias", "BF16", np.full(N, value, np.uint16))]
        checkpoints.write_folder(tmp_path / f"c{number}", "gptq", tensors)
        pack_checkpoint(Request(tmp_path / f"c{number}", tmp_path / f"o{number}"), 1)
    model = nn.Sequential(nn.Linear(K, N, bias=False, dtype=BF16))
    with pytest.raises(gemm.errors.CheckpointError, match=r"1 unexpected: 0\.bias; expected"):
        gemm.load_quantized(model, tmp_path / "o1")
    assert gemm.load_quantized(model, tmp_path / "o0")[0].bias is None


def test_linears_without_kernels_are_loaded_with_a_warning(gemm, folders):
    with pytest.warns(UserWarning, match=r"torch computes 1 of 1 packed modules from unpacked weights, slowly: 1 of"):
        model = gemm.load_quantized(Model, folders("deepseek")[0])
    assert model(torch.tensor([2])).shape == (1, N)


@pytest.mark.filterwarnings("ignore:torch computes")
def test_a_model_may_be_one_linear(gemm, tmp_path):
    held, values = checkpoints.quantised("compressed", np.eye(N, K, dtype=np.float32), ElementType.BFLOAT16)
    checkpoints.write_folder(tmp_path / "c", "compressed", [*held, ("bias", "BF16", np.ones(N, np.uint16))])
    pack_checkpoint(Request(tmp_path / "c", tmp_path / "o"), 1)
    model = gemm.load_quantized(lambda: nn.Linear(K, N, dtype=BF16), tmp_path / "o")
    assert torch.equal(model.dequantize(), torch.from_numpy(values).to(BF16))
    assert set(model.state_dict()) == {"qweight", "scale", "bias"}


class Shared(nn.Module):
    """Three Linears: one under two names, and another that has its weight."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(K, K, bias=False, dtype=BF16)
        self.again = self.one
        self.tied = nn.Linear(K, K, dtype=BF16)
        self.tied.weight = self.one.weight


@pytest.mark.filterwarnings("ignore:torch computes")
@pytest.mark.parametrize("names", [("one",), ("one", "again", "tied"), ("again", "tied")])
@pytest.mark.parametrize("make", [lambda: Shared, Shared])
def test_linears_that_share_a_weight_share_the_packed_one(gemm, tmp_path, names, make):
    """A checkpoint has what is shared once, or under each name; load_state_dict takes both."""
    wide = np.random.default_rng(1).standard_normal((K, K)).astype(np.float32)
    held, values = checkpoints.quantised("compressed", wide, ElementType.BFLOAT16)
    tensors = [(f"{name}.{end}", *rest) for name in names for end, *rest in held]
    checkpoints.write_folder(tmp_path / "c", "compressed", [*tensors, ("tied.bias", "BF16", np.ones(K, np.uint16))])
    pack_checkpoint(Request(tmp_path / "c", tmp_path / "o"), 1)
    model = gemm.load_quantized(make(), tmp_path / "o")
    assert model.one is model.again
    assert type(model.tied) is type(model.one) is gemm.QuantizedLinear
    for layer in (model.one, model.tied):
        assert torch.equal(layer.dequantize(), torch.from_numpy(values).to(BF16))
    if "tied" not in names:
        assert model.tied.qweight is model.one.qweight
    assert not any(x.is_meta for x in (*model.parameters(), *model.buffers()))
