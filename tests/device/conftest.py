"""These tests need a GPU, torch, and the wheel for it installed; nothing of the toolchain. Elsewhere they skip."""

import importlib.util
import os

import pytest

STALE_ROWS = pytest.StashKey[list]()


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


@pytest.fixture
def stale_rows(request):
    """Return the rows of the table of adversaries, which is printed at the end."""
    return request.config.stash.setdefault(STALE_ROWS, [])


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(STALE_ROWS, [])
    if not rows:
        return
    from tests.device.adversaries import table, write_json

    terminalreporter.section("stale products")
    terminalreporter.write_line(table(rows))
    path = os.environ.get("AOT_GEMM_STALE_JSON")
    if path:
        write_json(path, rows)
        terminalreporter.write_line(f"written to {path}")


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/device" in item.path.as_posix():
            item.add_marker(pytest.mark.device)
