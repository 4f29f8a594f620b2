"""Where the library of an installed wheel lies, which benches call by its C API."""

from __future__ import annotations

import importlib
from pathlib import Path

from aot.core.errors import DeviceError


def library_of(package: str) -> Path:
    """Return the library of an installed wheel, by the package's name.

    Raises:
        DeviceError: there is no such package, or it has no library.
    """
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise DeviceError(f"cannot import {package}: {error}; install the wheel, or give its --package") from error
    found = sorted(Path(str(module.__file__)).parent.glob("lib*.so.*"))  # lib*.so beside it is for the linker alone
    if not found:
        raise DeviceError(f"{module.__file__} has no library beside it; build the wheel again")
    return found[0]
