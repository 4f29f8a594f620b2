"""The ways in which a framework hands its tensors over, of which `make test` tries one where they do not matter."""

import pytest

from tests.compiling import EVERY

IN_EXCHANGE = pytest.mark.parametrize("tensor", ["exchange", *(["capsules"] if EVERY else [])], indirect=True)
"""By the exchange API; in `make walk` as a CuPy does it too, which the package asks in Python."""
