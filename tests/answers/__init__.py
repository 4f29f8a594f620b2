"""What installed libraries say of their own kernels and layouts: kept, since asking takes seconds of imports.

What is kept is of the versions that are installed, or tests of it fail. `make walk` asks anew and compares. After a
change of a version `python -m tests.answers` writes what is kept.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.compiling import EVERY

HERE = Path(__file__).parent
UNIT = HERE.parent / "unit"
LIBRARIES = ("nvidia-cutlass-dsl", "nvidia-cutlass-operators", "quack-kernels")
STEP = 5
"""Of the cases of stages that are asked about, one in so many is kept; `make walk` looks at all."""


def _run(script, *words, **environment):
    command = [sys.executable, "-W", "ignore", str(script), *words]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", "{"))]


def stages(engine, step):
    """Ask for the stages of kernels: the lines of tests/unit/space/real_stages.py."""
    arch, number = {"tcgen05": ("sm_110a", "sm_100"), "warp": ("sm_120a", "sm_120")}[engine]
    script = UNIT / "space" / "real_stages.py"
    return _run(script, engine, str(step), CUTE_DSL_ARCH=arch, QUACK_ARCH=number)


def layouts(arch):
    """Ask for layouts and descriptors: what tests/unit/emulate/layouts/dsl_layouts.py prints."""
    with TemporaryDirectory() as folder:
        return _run(UNIT / "emulate" / "layouts" / "dsl_layouts.py", arch, folder)[-1]


ASKED = {
    "stages_tcgen05": partial(stages, "tcgen05", STEP),
    "stages_warp": partial(stages, "warp", STEP),
    "layouts_sm90": partial(layouts, "sm_90a"),
    "layouts_sm110": partial(layouts, "sm_110a"),
}


def installed():
    """Give the versions of the libraries that are asked."""
    return {name: version(name) for name in LIBRARIES}


@cache
def answers(name):
    """Give what is kept under a name; in `make walk` it is asked for once more and has to be the same."""
    kept = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))
    assert kept["versions"] == installed(), f"{name} is of other versions: run python -m tests.answers"
    if EVERY:
        assert ASKED[name]() == kept["answers"], f"{name} is not what the libraries say: run python -m tests.answers"
    return kept["answers"]
