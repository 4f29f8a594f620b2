"""The wheel's own reader of packed tables, without a wheel."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PATH = Path(__file__).parents[1] / "templates" / "python" / "aot_gemm" / "_packed.py"


def wheels_reader():
    """Import the module; it needs no other of the package."""
    spec = spec_from_file_location("packed_of_the_wheel", PATH)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
