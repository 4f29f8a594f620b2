"""Libraries over the recorder, built once a session."""

from __future__ import annotations

import pytest

from tests.golden.manifest import golden_manifest
from tests.runtime import host


@pytest.fixture(scope="session")
def manifest():
    return host.random_manifest()


@pytest.fixture(scope="session")
def package(manifest, tmp_path_factory):
    return host.compile_package(manifest, tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="session")
def random_library(package):
    return host.Library(package._library.LIBRARY)


@pytest.fixture
def library(random_library):
    random_library.c.recorder_reset()
    return random_library


@pytest.fixture(scope="session")
def golden_path(tmp_path_factory):
    return host.compile_library(golden_manifest(), tmp_path_factory.mktemp("golden"))


@pytest.fixture
def fresh_library(golden_path, tmp_path):
    """Give a library of the golden manifest that nothing has loaded a kernel of yet."""
    path = tmp_path / golden_path.name
    path.write_bytes(golden_path.read_bytes())
    library = host.Library(path)
    library.c.recorder_reset()
    return library
