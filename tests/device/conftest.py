"""These tests need a GPU, torch, and the wheel for it installed; nothing of the toolchain. Elsewhere they skip."""

import importlib.util

import pytest


def _reason():
    for name in ("torch", "aot_gemm"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    import torch

    return None if torch.cuda.is_available() else "no NVIDIA GPU"


@pytest.fixture(autouse=True, scope="session")
def gpu():
    reason = _reason()
    if reason:
        pytest.skip(reason)


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/device" in item.path.as_posix():
            item.add_marker(pytest.mark.device)
