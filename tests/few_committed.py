"""A part of the committed selections of an H200, made once for all tests: the whole takes seconds to read."""

from __future__ import annotations

from dataclasses import replace

from aot.select import pipeline
from aot.select.join import restricted
from aot.select.selection import read_selection, write_selection
from tests import native

TAGS = ("bf16_kk", "bf16_mk", "bf16_mn", "bf16_kk_gelu", "bf16_kk_residual")
NAMES = ("h200.json.gz", "h200.operands.json.gz")
"""Of the files, those that have these operations."""


def few_committed():
    """Return a folder of what the committed selections have of these operations, under their names."""

    def write(folder):
        folder.mkdir()
        for name in NAMES:
            whole = read_selection(pipeline.COMMITTED / name)
            few = restricted(whole, [x for x in whole.operations if x.tag in TAGS])
            write_selection(folder / name, replace(few, coverage=whole.coverage))

    sources = [*(native.ROOT / "aot" / "core").glob("*.py"), *(native.ROOT / "aot" / "select").rglob("*.py")]
    files = [*sources, *(pipeline.COMMITTED / name for name in NAMES)]
    return native.once(".few", [native.digest(native.ROOT, files), *TAGS], write)
