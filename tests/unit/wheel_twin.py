"""A package in the place of a wheel's, over functions that a test gives, with the wheel's example of a layer in it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[2] / "templates/python/aot_gemm/examples"


class Refusal(Exception):  # noqa: N818 - the wheel's errors are named by what is wrong
    """Stand for a wheel's errors."""


def _no_quantize(*_operands, **_options):
    """Stand for a wheel without operations that quantise."""
    raise Refusal("no operation quantises")


def wheel_twin(name, **functions):
    """Make a package that can be imported by a name; `functions` are its own, and those of its module for torch."""
    twin, of_torch, examples = (ModuleType(x) for x in (name, f"{name}.torch", f"{name}.examples"))
    twin.AotGemmError = twin.OperandError = twin.UnsupportedError = Refusal
    twin.plan = lambda *_sizes, **_options: None
    of_torch.quantize = _no_quantize
    for module in (twin, of_torch):
        vars(module).update(functions)
    twin.__path__, examples.__path__ = [str(EXAMPLES.parent)], [str(EXAMPLES)]
    sys.modules |= {name: twin, f"{name}.torch": of_torch, f"{name}.examples": examples}
    sys.modules.pop(f"{name}.examples.moe", None)
    importlib.import_module(f"{name}.examples.moe")
    return twin
