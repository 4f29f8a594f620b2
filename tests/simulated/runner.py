"""The runner of the bundles here. Imports no pytest: it is made under emulation too."""

from __future__ import annotations

from aot.tune import bundle

LARGE_CASES = ("    (300, 520, 520, 8),\n", "    (650, 1032, 328, 0),\n")
"""What the runner verifies kernels on that takes an emulated CPU a second and more, as lines of its module."""


_make_runner = bundle.make_runner


def make_runner(directory):
    """Stand in for `aot.tune.bundle.make_runner`: the same runner without the large cases to verify kernels on.

    They are there for kernels with wrong tiles. A simulated kernel multiplies right whatever its extents are, or wrong
    where a test says so, and each process of a run would compute their references again.
    """
    _make_runner(directory)
    module = directory / "aot" / "kinds" / "gemm" / "edge_shapes.py"
    text = module.read_text()
    for line in LARGE_CASES:
        assert text.count(line) == 1, line
        text = text.replace(line, "")
    module.write_text(text)
