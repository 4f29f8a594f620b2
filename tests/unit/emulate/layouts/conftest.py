"""What CuTe DSL says of layouts and descriptors, of each architecture."""

import pytest

from tests.answers import answers


@pytest.fixture(scope="session")
def sm110():
    return answers("layouts_sm110")


@pytest.fixture(scope="session")
def sm90():
    return answers("layouts_sm90")
