"""A wheel is built with the network refused, of what a wheelhouse holds; `make offline` does so from a fresh clone."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.core.target import load_target
from aot.package.toolchain import CUDA_HEADERS, CUDA_RUNTIME
from aot.release.wheelhouse import fetch_linked
from tests.objects import small_manifest
from tests.package.test_offline import build, is_refusing


@pytest.mark.skipif(not is_refusing(), reason="NOT TESTED OFFLINE: unshare cannot refuse the network here")
def test_a_wheel_is_built_without_a_network(tmp_path):
    small_manifest("h200")  # its kernels are compiled now, and only read below
    fetch_linked(tmp_path / "wheelhouse", [load_target("h200"), load_target("h100")])
    names = {x.name.split("-")[0] for x in (tmp_path / "wheelhouse").iterdir()}
    assert names == {x.split("==")[0].replace("-", "_") for x in (CUDA_RUNTIME, CUDA_HEADERS)}
    done = build(tmp_path, tmp_path / "wheelhouse")
    assert done.returncode == 0, done.stderr
    network, wheel = done.stdout.splitlines()
    assert network == "network: Network is unreachable"
    assert Path(wheel).stat().st_size > 100_000
