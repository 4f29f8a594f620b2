"""A mixture's experts whose inputs are rounded to NVFP4, by the factors of a checkpoint's calibration."""

from __future__ import annotations

import copy
import pickle
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional

from aot.checkpoint.packing import Request, pack_checkpoint
from aot.core.factor_atoms import row_in_atoms
from tests.runtime import test_torch_experts
from tests.runtime.test_torch_experts import BF16, HIDDEN, WIDTH, Experts, drawn, error, exact, model_of

OF_X, OF_MIDDLE = 2.0**-9, 2.0**-8
gemm = test_torch_experts.gemm
pytestmark = pytest.mark.filterwarnings("ignore:torch computes")


def factors_of_inputs(tensors, *, changes=()):
    """Give the checkpoint's Linears factors of inputs, of which one expert has the largest; and some tensors others."""
    found = []
    for name, dtype, held in tensors:
        values = held
        if name.endswith("input_scale"):
            own = OF_MIDDLE if "down_proj" in name else OF_X
            values = np.full_like(held, own if ".1." in name else own / 4)
        values = next((change(values) for end, change in changes if name.endswith(end)), values)
        if values is not None:
            found.append((name, dtype, values))
    return found


def packed_folder(tmp_path, **options):
    """Write a checkpoint of ModelOpt's NVFP4, packed in rows; return what its weights stand for."""
    values = test_torch_experts.written(
        tmp_path, Experts, "modelopt_nvfp4", change=lambda x: factors_of_inputs(x, **options)
    )
    pack_checkpoint(Request(tmp_path / "c", tmp_path / "rows", "nvfp4rows"), 1)
    return values


def rows_from_atoms(atoms, ends, blocks):
    """Take the factors of rows in groups out of their atoms, by the formula of docs/formats.md."""
    codes, found = atoms.view(torch.uint8), torch.zeros(ends[-1], blocks, dtype=torch.uint8)
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        for row in range(start, end):
            i = row_in_atoms(row, start, group)
            for j in range(blocks):
                at = (i // 128 * -(-blocks // 4) + j // 4) * 512 + i % 32 * 16 + i % 128 // 32 * 4 + j % 4
                found[row, j] = codes[at]
    return found.view(torch.float8_e4m3fn)


@pytest.fixture
def calls(gemm, packed_package, monkeypatch):
    """Have torch compute on the CPU, groups in NVFP4 too; atoms are NaN where no row is."""
    names = test_torch_experts.torch_reference.stand_in(packed_package, monkeypatch)

    def grouped_linear(
        x, weight, offsets, bias=None, *, index=None, gate=None, interleaved=False, scale_x, scale_w, scale_out, **named
    ):
        assert (bias, index) == (None, None)
        names.append((gate, named.get("out_dtype")))
        both, own = scale_out if isinstance(scale_out, tuple) else (scale_out, None)
        ends, one = offsets.tolist(), torch.ones(1)
        factors = rows_from_atoms(scale_x, ends, -(-x.shape[1] * 2 // 16))
        wide = gemm.dequantize(x, (factors, one), torch.float32)
        sums = torch.full((len(x), weight.shape[1]), torch.nan)
        for g, (start, end) in enumerate(pairwise([0, *ends])):
            of_group = gemm.dequantize(weight[g], (scale_w[g].contiguous(), both[g : g + 1]), torch.float32)
            sums[start:end] = wide[start:end] @ of_group.t()
        if gate is None:
            return sums.to(named["out_dtype"])
        assert interleaved
        d = functional.silu(sums[:, ::2]) * sums[:, 1::2]
        values, (atoms, _) = gemm.quantize(d, "nvfp4", scale=own, offsets=offsets)
        return values, (atoms, own)

    monkeypatch.setattr(packed_package._operations, "grouped_linear", grouped_linear)
    return names


def rounding(gemm, owns):
    """Return what rounds an input as the products do: those of the first one are of `HIDDEN` columns."""

    def rounded(x):
        own = torch.tensor([owns[0] if len(x) == HIDDEN else owns[1]])
        values, scale = gemm.quantize(x.float()[None], "nvfp4", scale=own)
        return gemm.dequantize(values, scale, torch.float32)[0]

    return rounded


def test_a_layer_is_two_products_between_which_nothing_leaves_4_bits(gemm, calls, tmp_path):
    values = packed_folder(tmp_path)
    module = gemm.load_quantized(lambda: model_of(Experts), tmp_path / "rows")["experts"]
    in_turns = values[0].unflatten(1, (2, WIDTH)).transpose(1, 2).flatten(1, 2)
    assert torch.equal(module.gate_up_proj.dequantize(), in_turns)
    assert torch.equal(module.down_proj.dequantize(), values[1])
    assert [x.input_scale.item() for x in (module.gate_up_proj, module.down_proj)] == [OF_X, OF_MIDDLE]
    given = drawn()  # of which one expert gets no token
    with torch.no_grad():
        as_it_is = exact(Experts(), *given, *values)
        assert error(module(*given), as_it_is) < 0.01
        assert error(module.by_torch(*given, (None, None)), as_it_is) < 0.01
        assert calls == ["packed_grouped_linear"] * 2  # by default inputs stay as they are
        module.activation_format = "nvfp4"
        expected = exact(Experts(), *given, *values, rounding(gemm, (OF_X, OF_MIDDLE)))
        assert 0.05 < error(as_it_is, expected) < 0.3
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        del calls[:]
        for function in (module, compiled):
            assert error(function(*given), expected) < 0.02
        assert calls == [("silu", "nvfp4"), (None, BF16)] * 2
        assert module(*(x[:0] for x in given)).shape == (0, HIDDEN)
    assert error(module(*given), expected) < 0.02  # recorded
    assert str(module).startswith("QuantizedExperts(\n  activation_format='nvfp4'")

    again = pickle.loads(pickle.dumps(module))
    for x in again.buffers():
        x.zero_()
    again.load_state_dict(module.state_dict())
    assert error(again(*given), expected) < 0.02
    other = copy.deepcopy(module).half()  # of which there are no groups in NVFP4, nor in packed weights here
    assert [x.dtype for x in other.buffers()] == [x.dtype for x in module.buffers()]
    assert (other._rounded_from, other.activation_format) == (None, "nvfp4")
    assert other.bfloat16()._rounded_from == 0


def test_tables_say_from_how_many_rows_on_inputs_are_rounded(gemm, calls, packed_package, tmp_path, monkeypatch):
    """Of a power of two, from which on they have it faster at each one."""
    packed_folder(tmp_path)
    module = gemm.load_quantized(lambda: model_of(Experts), tmp_path / "rows")["experts"]
    package = import_module(f"{packed_package.__name__}._torch_rounded_experts")
    rows = drawn()[1].numel()
    for faster, expected in ((lambda m: m > 10, 16), (lambda m: m > 17, 32), (lambda m: m == 16, None)):
        package._least_of_tables.cache_clear()
        monkeypatch.setattr(package, "_is_faster", lambda m, _, faster=faster: faster(m))
        module.activation_format = "auto"
        assert module._rounded_from == expected
        del calls[:]
        with torch.no_grad():
            module(*drawn())
        assert (calls[0] == ("silu", "nvfp4")) == (expected is not None and rows >= expected)
    package._least_of_tables.cache_clear()
    monkeypatch.undo()
    package._least_of_tables.cache_clear()
    asked = package.Asked(module.kind, BF16, "grouped")
    assert package._least_of_tables(asked) is None  # this package has no kernel that rounds x
    assert package.least_rows(asked._replace(wide=None), "auto") == (0, "")
    assert package.least_rows(asked._replace(dtype=torch.float16), "nvfp4")[1].startswith("plan: no wheel has")


def without(name):
    return (name, lambda _: None)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without("2.down_proj.input_scale"), "expected an input_scale of each expert's second weight"),
        (("2.up_proj.weight_scale_2", lambda x: x * 2), "have own factors that differ"),
        ((".2.gate_proj.input_scale", lambda x: x * 0), ""),
    ],
)
def test_experts_without_such_factors_stay_as_they_are(gemm, calls, tmp_path, change, text):
    values = packed_folder(tmp_path, changes=[change])
    module = gemm.load_quantized(lambda: model_of(Experts), tmp_path / "rows")["experts"]
    if not text:  # x's own factor is found of x
        module.activation_format = "nvfp4"
        assert module.gate_up_proj.input_scale is None
        own = drawn()[0].abs().max().item() / 2688
        expected = exact(Experts(), *drawn(), *values, rounding(gemm, (own, OF_MIDDLE)))
        with torch.no_grad():
            assert error(module(*drawn()), expected) < 0.02
        return
    assert torch.equal(module.gate_up_proj.dequantize()[:2], values[0][:2])
    for asked in ("nvfp4", "auto"):
        with pytest.raises(gemm.errors.UnsupportedError, match=text):
            module.activation_format = asked
    with pytest.raises(gemm.errors.UnsupportedError, match="expected one of '16-bit', 'nvfp4', 'mxfp8', 'auto'"):
        module.activation_format = "fp8"
    assert module.activation_format == "16-bit"


def test_state_dicts_and_folders_of_other_orders_are_told_apart(gemm, calls, tmp_path):
    """Rows in turns have the factor of inputs beside them, by which files without metadata tell it."""
    packed_folder(tmp_path)
    module = gemm.load_quantized(lambda: model_of(Experts), tmp_path / "rows")
    plain = model_of(Experts)
    gemm.quantize(plain, "nvfp4rows")
    for model, state in ((plain, module.state_dict()), (module, plain.state_dict())):
        with pytest.raises(RuntimeError, match=r"has rows in (turns|order); expected rows"):
            model.load_state_dict(state, strict=False)
        with pytest.raises(RuntimeError, match="input_scale"):
            model.load_state_dict(dict(state))
    wide = gemm.load_quantized(module, tmp_path / "o")["experts"]  # the folder without factors of inputs
    assert (wide.gate_up_proj.format, wide.gate_up_proj.is_interleaved) == ("nvfp4", False)
    with pytest.raises(gemm.errors.FormatError, match="the weight is packed as nvfp4, which"):
        wide.activation_format = "nvfp4"
    left = gemm.quantize(model_of(Experts), "nvfp4", activation_format="nvfp4").left["experts"]
    assert "or load_quantized of a checkpoint that has an input_scale of each expert" in left
