"""What formats cost: the page's table is what the study gives."""

import pytest

from aot.core.packed_folder import FORMAT_NAMES
from research.studies import formats
from tests import native

PAGE = (native.ROOT / "docs" / "weights.md").read_text("utf-8")


@pytest.mark.walk
@pytest.mark.slow
def test_the_page_s_table_is_the_study_s():
    assert formats.markdown(formats.costs()) in PAGE


def test_bytes_count_factors_and_errors_are_ordered():
    found = {x.format: x for x in formats.costs((64, 256))}
    assert list(found) == list(FORMAT_NAMES)
    assert found["int4g128"].bits == 4.125
    assert found["nvfp4"].bits == 4.5 + 32 / (64 * 256)
    assert found["int4g32"].rms < found["int4g64"].rms < found["int4g128"].rms
    assert all(0 < x.mean < x.rms < x.worst < 1.1 for x in found.values())
