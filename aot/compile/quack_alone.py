"""Import of quack what kernels are made of, without its own operations: in half of the seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PACKAGES = {"quack": "quack.dsl", "quack.blockscaled": ""}
"""Packages that import operations of their own, such as norms and torch's quantisation, and with these torch._dynamo:
5 of 10 s of CPU in each process that compiles. With each what to import in the place of that. Importing `quack.dsl`
changes what tensors of CuTe DSL can do. Source: `quack/__init__.py` and `quack/blockscaled/__init__.py` of 0.6.5."""
PTXAS_PATH = "CUTE_DSL_PTXAS_PATH"
"""By it quack takes another assembler as it is imported; then it is imported as it is."""


class _Alone(MetaPathFinder, Loader):
    """Finds these packages, and loads of them what kernels need; their modules are found as always."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        if needed := PACKAGES[module.__name__]:
            import_module(needed)


def import_quack_alone() -> None:
    """Have this process, which compiles kernels, import no more of quack than they need."""
    if PTXAS_PATH not in os.environ and not any(isinstance(x, _Alone) for x in sys.meta_path):
        sys.meta_path.insert(0, _Alone())
