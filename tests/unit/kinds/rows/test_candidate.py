import json

import pytest

from aot.core.candidate import Candidate
from aot.core.knobs import PlainKnobs
from aot.core.strict_json import DecodeError, decode
from aot.kinds.rows.candidate import RowCandidate, RowKernelKey, RowLimits, row_candidate
from aot.kinds.rows.catalogue import row_operation

CANDIDATE = row_candidate("row_registers", 128, 2, 8, 4)


def test_a_name_says_every_field():
    assert CANDIDATE.name == "row_registers_128x2_v8x4"
    key = RowKernelKey(row_operation("bf16_e4m3_rms_norm"), CANDIDATE)
    assert key.name == "bf16_e4m3_rms_norm_row_registers_128x2_v8x4"


def test_a_candidate_counts_its_threads_and_columns():
    assert (CANDIDATE.knobs.num_threads, CANDIDATE.knobs.columns) == (256, 4096)


def test_json_round_trip():
    values = json.loads(json.dumps(CANDIDATE.as_json()))
    assert values["threads_per_row"] == 128
    assert decode(RowCandidate, values) == CANDIDATE
    with pytest.raises(DecodeError, match="threads_per_row: expected a whole number from 1 to 1024, got 2048"):
        decode(RowCandidate, {**values, "threads_per_row": 2048})


def test_limits_say_what_a_kernel_takes():
    limits = RowLimits(alignment_bytes=16, cols_multiple=8, max_cols=4096)
    assert [limits.takes(cols) for cols in (8, 4096, 4097, 4104, 12)] == [True, True, False, False, False]
    assert not limits.has_last_stride


def test_a_kernel_without_limits_takes_all():
    assert (RowLimits().takes(2**30), RowLimits().takes(2**30 + 1)) == (True, False)
    assert RowLimits().has_last_stride


def test_knobs_of_a_familys_own_are_read_by_their_names():
    own = Candidate("row_mine", PlainKnobs((("warps", 4),)))
    assert decode(RowCandidate, own.as_json()) == own == Candidate.read_json(own.as_json())
    with pytest.raises(DecodeError, match="family"):
        decode(RowCandidate, {"knobs": {"warps": 4}})
