"""A program whose products are recorded, and the shape set that they make."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from aot.core.errors import OutputError, ShapeFileError
from aot.core.operation import Operation
from aot.core.shape_set import load_shape_set, parse_shape_set
from aot.models import recorder
from aot.models.recorded import Product, read_counts, read_uncounted, recorded_text, run_recorded
from tests.unit.invoked import aot

PROGRAM = """
import threading, torch
from torch import nn
bf16, f16 = torch.bfloat16, torch.float16
model = nn.Sequential(nn.Linear(64, 128, dtype=bf16), nn.Linear(128, 64, bias=False, dtype=bf16))
with torch.inference_mode():
    for _ in range(5):
        model(torch.randn(3, 64, dtype=bf16))
with torch.no_grad():
    model(torch.randn(2, 3, 64, dtype=bf16))
def work():
    torch.randn(7, 64, dtype=f16) @ torch.randn(64, 16, dtype=f16)
thread = threading.Thread(target=work)
thread.start()
thread.join()
with torch.no_grad():
    torch.compile(model, backend="aot_eager")(torch.randn(9, 64, dtype=bf16))
torch.bmm(torch.randn(2, 3, 4), torch.randn(2, 4, 5))
for count in (4, 6):
    torch.bmm(torch.randn(count, 3, 8, dtype=bf16), torch.randn(count, 8, 16, dtype=bf16))
print(model(torch.randn(1, 64, dtype=bf16)).shape)
"""
FP8 = Product("cuda", "float8_e4m3fn", "float8_e4m3fn", "bfloat16", "kk", True, "dense", 1, 16, 64, 64)
BF16 = Product("cuda", "bfloat16", "bfloat16", "bfloat16", "kk", False, "dense", 1, 16, 64, 64)
EXPERTS = Product("cuda", "bfloat16", "bfloat16", "bfloat16", "kk", False, "grouped", 8, 16, 64, 64)


def launches(text):
    found = parse_shape_set(text, "test").launches
    groups = {x: () if x.num_groups == 1 else (x.num_groups,) for x in found}
    return {(x.operation.tag, x.m, x.n, x.k, *groups[x]): count for x, count in found.items()}


@pytest.mark.slow
def test_every_product_of_a_program_is_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("serve.py").write_text(PROGRAM)
    result = aot("shapes", "record", "-o", "x.toml", "--", sys.executable, "serve.py")
    assert result.exit_code == 0, result.output
    assert launches(Path("x.toml").read_text()) == {
        **{("bf16_kk_bias", m, 128, 64): count for m, count in ((3, 5), (6, 1), (9, 1), (1, 1))},
        **{("bf16_kk", m, 64, 128): count for m, count in ((3, 5), (6, 1), (9, 1), (1, 1))},
        ("fp16_kn", 7, 16, 64): 1,
        ("bf16_kn_batched", 3, 16, 8, 4): 1,
        ("bf16_kn_batched", 3, 16, 8, 6): 1,
    }
    float32 = "float32 x float32 to float32"
    assert result.stderr.splitlines() == [
        "no product was on a GPU; those on the CPU are taken instead",
        f"left out, since no operation computes it: {float32}, layout kn: batched, 2 x m 3 n 5 k 4, 1 times",
    ]
    assert result.stdout == (
        "x.toml: 4 problems of bf16_kk, 1 problems of fp16_kn, 4 problems of bf16_kk_bias, 2 problems of "
        "bf16_kn_batched, computed 19 times\n"
    )
    plain = (Operation.BF16_KK, Operation.FP16_KN, Operation.BF16_KK_BIAS)
    found = load_shape_set("x.toml")
    assert found.operations == (*plain, Operation.BF16_KN_BATCHED)
    assert [x.num_groups for x in found.problems(Operation.BF16_KN_BATCHED)] == [4, 6]


FAILS = """
import torch
import sitecustomize as recorder
torch.randn(8, 8).half() @ torch.randn(8, 8).half()
def broken(name, arguments, result):
    if name == "mm":
        raise ValueError("unreadable")
recorder._see = broken
torch.ones(2, 3) @ torch.ones(3, 4)
torch.ones(2, 3) @ torch.ones(3, 4)
raise SystemExit(3)
"""
"""A program on whose last two products the recorder breaks: it goes on, and its end says so."""


@pytest.mark.walk
@pytest.mark.slow
def test_a_program_that_fails_keeps_what_it_computed_and_says_what_could_not_be_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fails.py").write_text(FAILS)
    result = aot("shapes", "record", "-o", "x.toml", "--", sys.executable, "fails.py")
    assert (result.exit_code, launches(Path("x.toml").read_text())) == (0, {("fp16_kn", 8, 8, 8): 1})
    assert "not counted, since they could not be read: 2 times mm\n" in result.stderr
    assert f"{sys.executable} ended with exit code 3; what it computed until then is kept\n" in result.stderr


def test_a_program_without_products_makes_no_shape_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = aot("shapes", "record", "-o", "x.toml", "--", sys.executable, "-c", "pass")
    assert (result.exit_code, Path("x.toml").exists()) == (3, False)
    assert "no product of torch was seen; expected some" in result.stderr
    assert aot("shapes", "record", "-o", "x.toml", "--", "/no/such/program").stderr == (
        "aot: error: cannot run /no/such/program: No such file or directory; give a program and its arguments\n"
    )


def test_the_programs_own_sitecustomize_still_runs(tmp_path, monkeypatch):
    own, out, folder = tmp_path / "own", tmp_path / "out", tmp_path / "folder"
    own.mkdir()
    folder.mkdir()
    (own / "sitecustomize.py").write_text(f"open({str(out)!r}, 'w').write('ran')\n")
    monkeypatch.setenv("PYTHONPATH", str(own))
    assert run_recorded([sys.executable, "-c", "pass"], folder) == 0
    assert (out.read_text(), read_counts(folder)) == ("ran", Counter())
    with pytest.raises(OutputError, match="cannot run"):
        run_recorded(["/no/such/program"], folder)


def test_products_on_a_gpu_alone_count_where_there_are_any():
    cpu = Product("cpu", "bfloat16", "bfloat16", "bfloat16", "kk", False, "dense", 1, 1, 8, 8)
    text, notes = recorded_text({BF16: 3, FP8: 2, EXPERTS: 5, cpu: 9}, "serve")
    expected = {("bf16_kk", 16, 64, 64): 3, ("e4m3_bf16_kk", 16, 64, 64): 2, ("bf16_kk_grouped", 16, 64, 64, 8): 5}
    assert (launches(text), notes) == (expected, [])


def test_grouped_products_of_torch_are_counted_by_what_a_group_expects(monkeypatch):
    counts = {}
    monkeypatch.setattr(recorder, "_counts", counts)
    monkeypatch.setattr(recorder, "_written", [math.inf])
    x, weights = torch.empty(100, 64, dtype=torch.bfloat16), torch.empty(8, 32, 64, dtype=torch.bfloat16)
    recorder._see("_grouped_mm", (x, weights.mT, torch.arange(8)), torch.empty(100, 32, dtype=torch.bfloat16))
    recorder._see("_grouped_mm", (x, x), torch.empty(8, 100, 100))  # runs of k: no operation of a forward pass
    (key,) = counts
    assert Product(*key) == Product("cpu", *["bfloat16"] * 3, "kk", False, "grouped", 8, 13, 32, 64)


def of_bf16(*shape):
    return torch.empty(shape, dtype=torch.bfloat16)


def of_e4m3(*shape):
    return torch.empty(shape, dtype=torch.float8_e4m3fn)


ROWS, ENDS, VECTOR = of_bf16(100, 256), torch.zeros(8, dtype=torch.int32), torch.empty(100, 1)
EIGHT, INDEX = {"x": ROWS, "weight": of_bf16(8, 64, 256), "offsets": ENDS}, torch.zeros(80, dtype=torch.int32)
BLOCKS = {"scale_x": torch.empty(100, 2), "scale_w": torch.empty(8, 1, 2)}
MX_FACTORS = {x: torch.empty(1024, dtype=torch.float8_e8m0fnu) for x in ("scale_x", "scale_w")}


def of_4_bits(factor):
    """Give x and a weight of elements of 4 bits, with factors in atoms."""
    x, weight = torch.empty(100, 128, dtype=torch.uint8), torch.empty(64, 128, dtype=torch.uint8)
    return {"x": x, "weight": weight} | {x: torch.empty(2048, dtype=factor) for x in ("scale_x", "scale_w")}


OWN = {
    "bf16_kk": [("linear", {"x": of_bf16(4, 25, 256), "weight": of_bf16(64, 256)}, (100, 64, 256))],
    "bf16_kk_silu": [("linear", {"x": ROWS, "weight": of_bf16(64, 256), "activation": "silu"}, (100, 64, 256))],
    "bf16_kk_residual": [
        ("linear", {"x": ROWS, "weight": of_bf16(64, 256), "residual": of_bf16(100, 64)}, (100, 64, 256))
    ],
    "bf16_kk_swiglu": [("gated_linear", {"x": ROWS, "weight": of_bf16(128, 256)}, (100, 64, 256))],
    "bf16_kk_geglu": [
        ("gated_linear", {"x": ROWS, "weight": of_bf16(128, 256), "activation": "gelu_tanh"}, (100, 64, 256))
    ],
    "bf16_kn": [
        ("matmul", {"a": of_bf16(4, 25, 256), "b": of_bf16(256, 64)}, (100, 64, 256)),
        ("matmul", {"a": of_bf16(256), "b": of_bf16(1, 256, 64)}, (1, 64, 256)),
    ],
    "bf16_kn_batched": [
        ("matmul", {"a": of_bf16(2, 1, 25, 256), "b": of_bf16(4, 256, 64)}, (25, 64, 256, 8)),
        ("matmul", {"a": of_bf16(25, 256), "b": of_bf16(4, 256, 64)}, (25, 64, 256, 4)),
    ],
    "bf16_kk_grouped": [
        ("grouped_linear", EIGHT, (13, 64, 256, 8)),
        ("grouped_linear_weights", EIGHT | {"weight": [of_bf16(64, 256)] * 8}, (13, 64, 256, 8)),
    ],
    "bf16_kk_gathered": [("grouped_linear", EIGHT | {"index": INDEX}, (10, 64, 256, 8))],
    "bf16_kk_gathered_swiglu": [("grouped_linear", EIGHT | {"index": INDEX, "gate": "silu"}, (10, 32, 256, 8))],
    "bf16_mn_kgrouped": [
        ("grouped_linear", {"x": ROWS.t(), "weight": of_bf16(100, 64).t(), "offsets": ENDS}, (256, 64, 13, 8))
    ],
    "e4m3_bf16_kk_grouped": [
        (
            "grouped_linear",
            {
                "x": of_e4m3(100, 256),
                "weight": of_e4m3(8, 64, 256),
                "offsets": ENDS,
                "scale_x": VECTOR,
                "scale_w": torch.empty(8, 64),
            },
            (13, 64, 256, 8),
        )
    ],
    "e4m3_bf16_block_kk_grouped": [
        (
            "grouped_linear",
            {"x": of_e4m3(100, 256), "weight": of_e4m3(8, 64, 256), "offsets": ENDS, **BLOCKS},
            (13, 64, 256, 8),
        )
    ],
    "nvfp4_bf16_kk": [
        ("linear", {**of_4_bits(torch.float8_e4m3fn), "scale_out": torch.ones(1)}, (100, 64, 256)),
        ("linear", {**of_4_bits(torch.uint8), "scale_out": torch.ones(1)}, (100, 64, 256)),
    ],
    "nvfp4_bf16_kk_swiglu": [
        ("gated_linear", {**of_4_bits(torch.float8_e4m3fn), "scale_out": torch.ones(1)}, (100, 32, 256))
    ],
    "mxfp4_bf16_kk": [
        ("linear", of_4_bits(torch.float8_e8m0fnu), (100, 64, 256)),
        ("linear", of_4_bits(torch.uint8), (100, 64, 256)),
    ],
    "mxfp8_bf16_kk_bias": [
        (
            "linear",
            {"x": of_e4m3(100, 256), "weight": of_e4m3(64, 256), "bias": of_bf16(64), **MX_FACTORS},
            (100, 64, 256),
        )
    ],
    "mxfp8mxfp4_bf16_kk": [
        (
            "linear",
            {"x": of_e4m3(100, 256), "weight": torch.zeros(64, 128, dtype=torch.uint8), **MX_FACTORS},
            (100, 64, 256),
        )
    ],
    "nvfp4_bf16_kk_grouped": [
        (
            "grouped_linear",
            {
                **of_4_bits(torch.float8_e4m3fn),
                "weight": torch.empty(8, 64, 128, dtype=torch.uint8),
                "offsets": ENDS,
                "scale_out": torch.ones(8),
            },
            (13, 64, 256, 8),
        )
    ],
}
"""By the operation that computes it, what a wheel's operator was given, and m, n, k and groups if there are some."""


@pytest.mark.parametrize("tag", OWN)
@pytest.mark.parametrize("writes_out", [False, True])
def test_products_of_a_wheel_are_counted_as_its_operations(monkeypatch, tag, writes_out):
    for name, given, sizes in OWN[tag]:
        counts = {}
        monkeypatch.setattr(recorder, "_counts", counts)
        monkeypatch.setattr(recorder, "_written", [math.inf])
        recorder._see_own(name, given | {"out": of_bf16(1)}, None if writes_out else of_bf16(1))
        text, notes = recorded_text({Product(*key): count for key, count in counts.items()}, "serve")
        assert launches(text) == {(tag, *sizes): 1}
        assert notes == ["no product was on a GPU; those on the CPU are taken instead"]


def test_torchs_own_products_of_narrow_factors_are_those_of_a_format(monkeypatch):
    counts = {}
    monkeypatch.setattr(recorder, "_counts", counts)
    monkeypatch.setattr(recorder, "_written", [math.inf])
    given = [of_e4m3(100, 256), of_e4m3(64, 256).t(), *MX_FACTORS.values()]
    recorder._see("_scaled_mm", tuple(given), of_bf16(100, 64))
    text, _ = recorded_text({Product(*key): count for key, count in counts.items()}, "serve")
    assert launches(text) == {("mxfp8_bf16_kk", 100, 64, 256): 1}


def test_what_no_operation_computes_is_told_with_its_epilogue():
    gated = Product("cuda", *["float32"] * 3, "kk", False, "dense", 1, 16, 64, 64, "swiglu", has_blocks=True)
    expected = (
        "left out, since no operation computes it: float32 x float32 to float32 with swiglu and factors of blocks, "
        "layout kk: m 16 n 64 k 64, 2 times"
    )
    assert recorded_text({gated: 2, BF16: 1}, "serve")[1] == [expected]


def test_what_the_program_is_called_cannot_leave_its_comment():
    text, _ = recorded_text({BF16: 1}, "a\nversion = 2")
    assert launches(text) == {("bf16_kk", 16, 64, 64): 1}


def test_damaged_numbers_of_what_was_not_counted_are_refused(tmp_path):
    (tmp_path / "1.uncounted").write_text("[1]")
    with pytest.raises(ShapeFileError, match="expected the recorder's counts; record again"):
        read_uncounted(tmp_path)


def test_a_damaged_count_is_refused(tmp_path):
    (tmp_path / "1.json").write_text("[[1, 2]]")
    with pytest.raises(ShapeFileError, match=r"1\.json: .*expected the recorder's counts; record again"):
        read_counts(tmp_path)
