"""Models whose nn.Linear's are swapped: which, and why not; that nothing else changes; and when torch computes."""

from __future__ import annotations

import copy
import io
import pickle
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

from tests.runtime.torch_reference import random_tensor

BF16 = torch.bfloat16


class Block(nn.Module):
    """A model of layers that a package serves, and of such as it leaves."""

    def __init__(self, dtype=BF16):
        super().__init__()
        self.embed = nn.Embedding(64, 32, dtype=dtype)
        self.up = nn.Linear(32, 48, dtype=dtype)
        self.down = nn.Linear(48, 32, bias=False, dtype=dtype)
        self.head = nn.Linear(32, 64, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(x + self.down(torch.relu(self.up(x))))


class Own(nn.Linear):
    pass


def unaligned(linear):
    storage = torch.zeros(linear.weight.numel() + 1, dtype=BF16)
    linear.weight = nn.Parameter(storage[1:].view(linear.weight.shape))
    return linear


def transposed(linear):
    linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    return linear


def replaced(linear):
    linear.forward = lambda x: x
    return linear


def computed(linear):
    del linear._parameters["weight"]
    linear.weight = torch.zeros(16, 32, dtype=BF16)
    return linear


class Quantized(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise AssertionError("nothing is to be computed")


def quantized(linear):
    linear._parameters["weight"] = torch.Tensor._make_subclass(Quantized, torch.zeros(16, 32, dtype=BF16))
    return linear


def mixed(linear):
    linear.bias = nn.Parameter(torch.zeros(16, dtype=torch.float16))
    return linear


LEFT = {
    "own": (
        lambda: Own(32, 16, dtype=BF16),
        "it is a tests.runtime.test_torch_patch.Own, whose forward may be its own",
    ),
    "float32": (lambda: nn.Linear(32, 16), "its weight is torch.float32; expected torch.bfloat16 or torch.float16"),
    "meta": (lambda: nn.Linear(32, 16, dtype=BF16, device="meta"), "its weight is on meta; expected a GPU; move the"),
    "row": (
        lambda: nn.Linear(32, 12, dtype=BF16),
        "n 12 and k 32 get the fallback; expected rows of weight and result",
    ),
    "column": (lambda: nn.Linear(36, 16, dtype=BF16), "n 16 and k 36 get the fallback"),
    "address": (
        lambda: unaligned(nn.Linear(32, 16, dtype=BF16)),
        "its weight has an address that is not a multiple of 16",
    ),
    "strides": (
        lambda: transposed(nn.Linear(32, 16, dtype=BF16)),
        "its weight of shape (16, 32) has the strides (1, 16)",
    ),
    "replaced": (lambda: replaced(nn.Linear(32, 16, dtype=BF16)), "its forward was replaced on the module itself"),
    "computed": (lambda: computed(nn.Linear(32, 16, dtype=BF16)), "its weight is no parameter, but computed"),
    "quantized": (lambda: quantized(nn.Linear(32, 16, dtype=BF16)), "test_torch_patch.Quantized, no plain tensor"),
    "mixed": (lambda: mixed(nn.Linear(32, 16, dtype=BF16)), "its bias is torch.float16, its weight torch.bfloat16"),
    "weight_norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(32, 16, dtype=BF16)),
        "torch.nn.utils.parametrize.ParametrizedLinear, whose forward may be its own",
    ),
    "attention": (
        lambda: nn.MultiheadAttention(32, 4, dtype=BF16).out_proj,
        "NonDynamicallyQuantizableLinear, whose forward may be its own",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_a_layer_is_left_for_a_reason(module, calls, case):
    make, reason = LEFT[case]
    model = nn.ModuleDict({"layer": make()})
    kind = type(model["layer"])
    report = module.patch(model)
    assert (report.swapped, report.already, list(report.left)) == ((), (), ["layer"])
    assert reason in report.left["layer"]
    assert reason in str(report)
    assert type(model["layer"]) is kind


@pytest.mark.parametrize(
    ("k", "gain", "reason"),
    [
        (36, None, None),
        (33, 1.0, None),
        (34, 0.8, "and of such weights torch's kernels were measured to be 1.25 times as fast"),
        (33, None, "and the table has no times of torch's beside which it could be seen to be as fast"),
    ],
)
def test_rows_of_few_bytes_go_by_what_was_measured(package, monkeypatch, k, gain, reason):
    modules = import_module(f"{package.__name__}._torch_modules")
    monkeypatch.setattr(modules, "plan", lambda *_, **__: SimpleNamespace(tier="grid"))
    monkeypatch.setattr(modules, "mean_gain", lambda *_, **__: gain)
    found = modules.why_not_planned(16, k, BF16)
    assert found is None if reason is None else reason in found


def test_a_model_on_the_cpu_is_left(module):
    report = module.patch(Block())
    assert set(report.left.values()) == {"its weight is on cpu; expected a GPU; move the model there first"}


def test_a_wheel_without_an_operation_leaves_its_layers(package, monkeypatch):
    without_bias = import_module(f"{package.__name__}.torch")
    modules = package._torch_modules
    monkeypatch.setattr(modules, "DEVICES", ["cpu"])
    monkeypatch.setattr(modules, "_why_not_here", lambda device: None)
    model = nn.Sequential(nn.Linear(32, 16, dtype=torch.float16), nn.Linear(16, 32, False, dtype=torch.float16))
    report = without_bias.patch(model)
    assert report.swapped == ("1",)
    assert "this wheel has no kernels for fp16_bias" in report.left["0"]


def test_a_gpu_that_the_kernels_are_not_for_is_said(module, every_package, monkeypatch):
    def refuse(device):
        raise every_package.ArchitectureError(f"GPU {device} is of another architecture")

    monkeypatch.setattr(every_package._library, "device_table", refuse)
    assert every_package._torch_modules._why_not_here(7) == "GPU 7 is of another architecture"


def test_patching_and_unpatching_change_classes_alone(module, calls):
    model = Block()
    before = {key: id(value) for key, value in vars(model.up).items()}
    state, text = list(model.state_dict()), repr(model)
    report = module.patch(model)
    assert (report.swapped, report.already, report.left) == (("up", "down", "head"), (), {})
    assert {key: id(value) for key, value in vars(model.up).items()} == before
    assert [list(model.state_dict()), repr(model)] == [state, text]
    assert isinstance(model.up, nn.Linear)
    assert model.head.weight is model.embed.weight
    again = module.patch(model)
    assert (again.swapped, again.already) == ((), ("up", "down", "head"))
    model.load_state_dict(Block().state_dict())
    assert module.unpatch(model) == ("up", "down", "head")
    assert {type(model.up), type(model.down), type(model.head)} == {nn.Linear}
    assert module.unpatch(model) == ()


def test_a_block_of_code_leaves_what_was_patched_before(module, calls):
    model = Block()
    module.patch(model, where=lambda name, layer: name == "up")
    with module.patched(model) as report:
        assert (report.swapped, report.already) == (("down", "head"), ("up",))
        assert [type(x) for x in (model.up, model.down, model.head)] == [module.Linear] * 3
    assert [type(x) for x in (model.up, model.down, model.head)] == [module.Linear, nn.Linear, nn.Linear]


def test_what_is_no_model_is_refused(module, every_package):
    for function in (module.patch, module.unpatch):
        with pytest.raises(every_package.OperandError, match=r"got a list; expected a torch\.nn\.Module"):
            function([])


def test_copies_and_pickles_are_patched_too(module, calls):
    model = Block()
    module.patch(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)
    x = random_tensor(4, 32)
    for other in copies:
        assert [type(y) for y in (other.up, other.down, other.head)] == [module.Linear] * 3
        torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)


def test_the_forward_pass_is_the_packages_and_the_gradients_torchs(module, calls):
    model, x = Block(), random_tensor(5, 32, grad=True)
    seen = []
    model.up.register_forward_hook(lambda layer, given, result: seen.append(result.shape))
    results = []
    for is_patched in (False, True):
        if is_patched:
            module.patch(model)
        model.zero_grad()
        x.grad = None
        loss = model(x).float().square().mean()
        loss.backward()
        results.append([loss.detach(), x.grad, *(p.grad for p in model.parameters())])
    assert (calls, seen) == (["linear"] * 3, [(5, 48)] * 2)
    torch.testing.assert_close(results[1], results[0], rtol=0.05, atol=0.01)


@pytest.mark.parametrize("grad", [True, False])
def test_a_patched_model_compiles_without_a_graph_break(module, calls, grad):
    model, x = Block(), random_tensor(5, 32)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.set_grad_enabled(grad):
        compiled(x)
        assert calls == []
        module.patch(model)
        expected = model(x)
        calls.clear()
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)
        assert calls == ["linear"] * 3
        module.unpatch(model)
        calls.clear()
        compiled(x)
        assert calls == []


def autocast(layer, x):
    with torch.autocast("cpu", dtype=torch.float16):
        return layer(x)


def deterministic(layer, x):
    torch.use_deterministic_algorithms(True)
    try:
        return layer(x)
    finally:
        torch.use_deterministic_algorithms(False)


def with_tangent(layer, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x))).primal


def twice(layer, x):
    return layer(TwoTensor(x, x)).a


BY_TORCH = {
    "a wrapper": twice,
    "a wrapper, compiled": torch.compile(twice, backend="eager", fullgraph=True),
    "autocast to another type": autocast,
    "deterministic algorithms": deterministic,
    "vmap": lambda layer, x: torch.vmap(layer)(x),
    "grad": lambda layer, x: torch.func.grad(lambda x: layer(x).sum())(x),
    "tangent": with_tangent,
    "another type": lambda layer, x: copy.deepcopy(layer).float()(x.float()),
    "a nested tensor": lambda layer, x: layer(torch.nested.nested_tensor([x, x], layout=torch.jagged)).values(),
    "compiled autocast": torch.compile(autocast, backend="eager", fullgraph=True),
}


@pytest.mark.parametrize("case", BY_TORCH)
def test_what_the_package_does_not_serve_is_torchs(module, calls, case):
    layer, x = nn.Linear(32, 16, dtype=BF16).requires_grad_(False), random_tensor(4, 32)
    expected = BY_TORCH[case](layer, x)
    module.patch(layer)
    assert type(layer) is module.Linear
    torch.testing.assert_close(BY_TORCH[case](layer, x), expected, rtol=0, atol=0)
    assert calls == []
    with torch.autocast("cpu", dtype=BF16):
        layer(x)
    assert calls == ["linear"]


TRANSFORMED = {
    "vmap": torch.vmap,
    "vmap of columns": lambda layer: torch.vmap(layer, in_dims=1, out_dims=1),
    "weights in a batch": lambda layer: (
        lambda x: torch.vmap(lambda weight: torch.func.functional_call(layer, {"weight": weight}, x))(
            torch.stack([layer.weight, layer.weight + 1])
        )
    ),
    "grad": lambda layer: torch.func.grad(lambda x: layer(x).sum()),
}


@pytest.mark.parametrize("case", TRANSFORMED)
def test_a_transform_within_a_compiled_function_is_torchs(module, calls, case):
    layer = nn.Linear(32, 16, dtype=BF16).requires_grad_(False)
    x = random_tensor(32, 32)
    expected = TRANSFORMED[case](layer)(x)
    module.patch(layer)
    compiled = torch.compile(TRANSFORMED[case](layer), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    assert calls == []


@pytest.mark.parametrize("shape", [(1,), (), (1, 48), (3, 48)])
@pytest.mark.parametrize("compiles", [False, True])
def test_a_bias_that_torch_spreads_is_torchs(module, calls, shape, compiles):
    model, x = nn.Linear(32, 48, dtype=BF16), random_tensor(3, 32)
    module.patch(model)
    model.bias = nn.Parameter(random_tensor(*shape))
    call = torch.compile(model, backend="eager", fullgraph=True) if compiles else model
    with torch.no_grad():
        assert torch.equal(call(x), nn.functional.linear(x, model.weight, model.bias))


def test_what_is_no_tensor_gets_torchs_error(module, calls):
    model = nn.Linear(32, 48, dtype=BF16)
    module.patch(model)
    for value in (None, [1.0], "x"):
        with pytest.raises(TypeError, match=r"argument 'input' \(position 1\) must be Tensor"):
            model(value)


def test_a_patched_layer_that_is_moved_off_the_gpu_is_torchs(module):
    layer, x = nn.Linear(32, 16, dtype=BF16), random_tensor(4, 32)
    expected = layer(x)
    layer.__class__ = module.Linear
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)


def test_a_model_that_is_said_to_be_on_a_gpu_is_exported_with_operators(module):
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = nn.Linear(32, 16, device="meta", dtype=BF16)
        layer.weight = nn.Parameter(torch.empty(16, 32, device="cuda", dtype=BF16), requires_grad=False)
        layer.bias = nn.Parameter(torch.empty(16, device="cuda", dtype=BF16), requires_grad=False)
        model = nn.Sequential(layer)
        assert module.patch(model).swapped == ("0",)
        program = torch.export.export(model, (torch.empty(4, 32, device="cuda", dtype=BF16),), strict=False)
    targets = [str(x.target) for x in program.graph.nodes]
    assert [x for x in targets if "every_gemm" in x] == ["every_gemm.linear.default"]


def test_the_report_adds_up_the_tables_times(module, calls, every_package, monkeypatch):
    patching = every_package._torch_patch
    times = {(1, 48): 2.0, (16, 48): 3.0, (1, 32): 4.0, (16, 32): None, (1, 64): 6.0, (16, 64): 1.0}
    planned = lambda m, n, k, dtype, bias: type("Plan", (), {"time_us": times.get((m, n))})  # noqa: E731
    monkeypatch.setattr(patching, "plan", planned)
    report = module.patch(Block())
    assert report.times_us == {1: 12.0}
    assert "the products of those swapped take, by the table's times: 12.0 us at 1 rows" in str(report)
