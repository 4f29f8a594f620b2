"""Strategies by their names. That each of them ends, and how, is in test_search.py."""

import pytest

from aot.core.errors import CandidateError
from aot.search.strategies import strategy_of
from aot.search.strategy import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_found_by_its_name(name):
    assert strategy_of(name).name == name
    assert strategy_of(name) is not strategy_of(name)


@pytest.mark.parametrize("name", ["fast", "", "MODEL"])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(CandidateError) as caught:
        strategy_of(name)
    assert str(caught.value) == f"no search strategy {name!r}; there are: {', '.join(NAMES)}"
