import pytest

from aot.core.measurement import OK, Outcome, Status
from aot.core.strict_json import DecodeError


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("ok", OK),
        ("failed: wrong: 3 of 5", Status(Outcome.FAILED, "wrong: 3 of 5")),
        ("not tried: needs 9 bytes", Status(Outcome.NOT_TRIED, "needs 9 bytes")),
        ("no room for a cluster", Status(Outcome.CLUSTERS)),
    ],
)
def test_a_status_is_read_as_it_is_written(text, status):
    assert Status.of(text) == status
    assert str(status) == text


@pytest.mark.parametrize("text", ["", "hung", "ok: why", "ok:", "Failed: why", "failed why"])
def test_what_starts_with_no_outcome_is_refused(text):
    with pytest.raises(
        DecodeError, match=f"^expected one of .*, and but for ok a reason behind a colon, got '{text}'$"
    ):
        Status.of(text)
