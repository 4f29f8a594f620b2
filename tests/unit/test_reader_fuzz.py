"""A few hundred damaged files of every format; `python -m tests.fuzz.readers` tries as many as you like."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiling import EVERY
from tests.fuzz.readers import READERS, Tally, try_case

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=200 if EVERY else 60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 2**64))
def test_a_damaged_file_is_read_or_refused_with_its_formats_error(name, number, tmp_path):
    tally = Tally()
    try_case(name, number, tmp_path, tally)
    assert tally.others == []
    assert tally.num_read + tally.num_refused == 1
