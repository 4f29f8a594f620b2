import pytest

from aot.core.errors import FormatError
from aot.core.weight_format import FORMATS, INT4_G128, format_named


def test_formats_are_found_by_their_names():
    assert [format_named(x.name) for x in FORMATS] == list(FORMATS)
    with pytest.raises(FormatError, match="no weight format 'int3'; there are: int4g32, int4g64, int4g128, int4g32z, "):
        format_named("int3")


@pytest.mark.parametrize(("n", "k"), [(0, 128), (16, 0), (16, 64), (16, 200)])
def test_extents_that_a_format_has_not_are_refused(n, k):
    with pytest.raises(FormatError) as error:
        INT4_G128.check(n, k)
    assert str(error.value) == (
        f"a weight of {n} x {k} cannot be packed as int4g128: expected at least one row, and k a multiple of 128; pad "
        "the weight and x with zeros along k, or use a format of smaller groups"
    )
