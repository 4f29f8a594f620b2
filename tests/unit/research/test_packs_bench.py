"""What the benches of packs and of vLLM's layers say of what they found, and the platform that vLLM finds."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from research.bench import packs, vllm_layers, vllm_platform
from research.bench.packs import Product


def test_a_product_is_right_where_its_error_is_about_torchs():
    assert Product("a", error=1.2e-3, torch_error=1e-3).is_right
    assert not Product("a", error=1.3e-3, torch_error=1e-3).is_right
    assert Product("a", refused="UnsupportedError: no kernels").is_right


def test_wheels_are_told_by_their_names():
    assert packs.distribution_of(Path("aot_gemm_sm90a-0.1.0+x-py3-none-any.whl")) == "aot-gemm-sm90a"
    here = Path(f"x-1-py3-none-manylinux_2_28_{platform.machine()}.whl")
    assert packs.is_for_this_host(here)
    assert packs.is_for_this_host(Path("aot_gemm-0.1.0-py3-none-any.whl"))
    assert not packs.is_for_this_host(Path("x-1-py3-none-manylinux_2_28_ppc64le.whl"))


def test_the_summary_marks_what_is_wrong_and_says_what_was_refused():
    wrong = {"name": "w", "pack": "mine", "kernel": "k", "error": 1.0, "torch_error": 1e-3, "refused": ""}
    refused = wrong | {"name": "r", "refused": "UnsupportedError: no kernels for fp16"}
    found = {
        "environments": [{"packages": ["aot-gemm", "mine"], "products": [wrong, refused]}],
        "refused_by_pip": {"jetson": "ERROR: x.whl is not a supported wheel on this platform.\n"},
    }
    first, second, third, last = packs.summary(found).splitlines()
    assert first == "aot-gemm + mine"
    assert second.startswith("  WRONG w ")
    assert third.endswith("UnsupportedError: no kernels for fp16")
    assert last == "pip refuses jetson: ERROR: x.whl is not a supported wheel on this platform."


def test_a_layer_is_right_where_the_wheel_computed_it_within_its_bound():
    row = vllm_layers.Row("o", "stored", 1, 8, 8, True, 2e-3, 2e-3, 2e-3, ("k",), 3e-3)
    assert row.is_right
    assert not replace(row, is_served=False).is_right
    assert not replace(row, error=4e-3).is_right


def test_the_platform_is_an_entry_point_of_this_process(monkeypatch):
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    vllm_platform.register_platform()
    (found,) = [x for x in entry_points(group="vllm.platform_plugins") if x.name == "aot_bench"]
    assert found.load()() == "research.bench.vllm_platform.GpuPlatform"
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        vllm_platform.Other  # noqa: B018 - the look-up is what is tried
