"""A wheel is built with the network refused, of what a wheelhouse holds; `make offline` does so from a fresh clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot.package.build import ZIG_CACHE
from aot.package.toolchain import TOOLCHAIN_CACHE
from aot.release.wheelhouse import installed
from tests.objects import small_manifest

pytestmark = pytest.mark.package

ROOT = Path(__file__).parents[2]
REFUSED = ["unshare", "--map-root-user", "--net"]

BUILD = """
import socket, sys
from pathlib import Path
from aot.core.target import load_target
from aot.package.build import build_wheel
from tests.objects import small_manifest

try:
    socket.create_connection(("192.0.2.1", 9), timeout=5)
    sys.exit("there is a network")
except OSError as error:
    print("network:", error.strerror)
manifest, objects = small_manifest("h200")
print(build_wheel(manifest, objects, Path(sys.argv[1], "dist"), load_target("h200"), cache=Path(sys.argv[1], "cache")))
"""


def is_refusing():
    try:
        return subprocess.run([*REFUSED, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def build(folder, wheelhouse):
    environment = os.environ | {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheelhouse),
        "ZIG_GLOBAL_CACHE_DIR": str(ROOT / TOOLCHAIN_CACHE / ZIG_CACHE),  # what it holds, zig builds without a network
        "PYTHONPATH": str(ROOT),
    }
    command = [*REFUSED, sys.executable, "-c", BUILD, folder]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not is_refusing(), reason="NOT TESTED OFFLINE: unshare cannot refuse the network here")
def test_without_a_wheelhouse_the_message_names_it(tmp_path):
    small_manifest("h200")
    done = build(tmp_path, tmp_path / "nothing")
    assert done.returncode != 0
    assert "or PIP_FIND_LINKS, the folder of `make wheelhouse`" in done.stderr


def test_a_wheelhouse_holds_what_is_pinned_and_not_this_toolchain():
    found = dict(x.split("==") for x in installed())
    assert "aot-kernels" not in found
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {x.split("==")[0].lower().replace("_", "-"): x.split("==")[1] for x in lines if not x.startswith("#")}
    shared = found.keys() & pinned.keys()
    assert {"click", "torch", "ziglang", "scikit-build-core", "nvidia-cutlass-dsl"} <= shared
    assert {name: found[name].split("+")[0] for name in shared} == {name: pinned[name] for name in shared}
