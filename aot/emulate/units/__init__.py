"""The units of the simulated processor: each module registers the instruction forms that it executes."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every unit, which registers its forms."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
