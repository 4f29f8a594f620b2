"""Modules of the toolchain that a wheel has too: rendered from the same source, so that there is one."""

from __future__ import annotations

import re
from pathlib import Path

from aot.core.errors import PackageError

SHARED = ("weight_format", "factor_atoms", "weight_packing", "weight_checkpoints", "safetensors_file", "packed_folder")
"""Modules of `aot.core`, which import nothing of ours but each other and errors."""
_CORE = Path(__file__).parents[1] / "core"
_IMPORT = re.compile(r"^from aot\.core\.(\w+) import ", re.MULTILINE)
_HEADER = "# The toolchain's aot/core/{name}.py, with imports of this package.\n"


def _imported(name: str) -> str:
    """Return the module of a wheel that a module of `aot.core` is there.

    Raises:
        PackageError: a wheel has none.
    """
    if name == "errors":
        return ".errors"
    if name not in SHARED:
        raise PackageError(f"aot.core.{name} is in no wheel; a module that wheels share may import {', '.join(SHARED)}")
    return f"._{name}"


def shared_modules() -> dict[str, bytes]:
    """Return the modules by their paths among the templates.

    Raises:
        PackageError: one imports what a wheel does not have.
    """
    found = {}
    for name in SHARED:
        source = (_CORE / f"{name}.py").read_text(encoding="utf-8")
        text = _IMPORT.sub(lambda x: f"from {_imported(x[1])} import ", source)
        if "aot." in re.sub(r"`aot\.[\w.]+`", "", text):
            raise PackageError(f"aot.core.{name} names a module that a wheel does not have; import it from {SHARED}")
        found[f"python/aot_gemm/_{name}.py"] = (_HEADER.format(name=name) + text).encode()
    return found
