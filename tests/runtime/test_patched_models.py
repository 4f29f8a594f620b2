"""What may be done with a patched and with a quantised model, on the CPU: torch computes what the kernels would."""

from __future__ import annotations

import pytest

SHARED = ("patched_call_cases", "patched_cases", "quantized_cases", "small_models")
pytest.register_assert_rewrite(*(f"tests.device.{x}" for x in SHARED))

from tests.compiling import EVERY  # noqa: E402
from tests.device.patched_call_cases import *  # noqa: E402, F403
from tests.device.patched_cases import *  # noqa: E402, F403
from tests.device.quantized_cases import *  # noqa: E402, F403


@pytest.fixture
def wheel(module):
    return module


@pytest.fixture
def device():
    return "cpu"


if not EVERY:

    @pytest.fixture
    def narrow():
        """Give one format: what a model may do does not depend on which, and a GPU's tests take both."""
        return "fp8"
