import gzip
import json
from dataclasses import replace

import pytest
from twins import CONDITIONS, kernel_of, problem_of

from aot.errors import StoreError
from aot.measurement import Measurement, Record
from aot.record import from_store, merge, parse_record, read_record, record_text, write_record
from aot.store import open_store

A, B = kernel_of(64), kernel_of(128)
P, Q = problem_of(1, 64, 64), problem_of(2, 64, 64)


def measured(kernel, problem, median, rounds=7):
    return Measurement(kernel.key, problem, median, median - 0.5, median + 0.5, rounds, 1.5e-3)


FAILED = Measurement(B.key, Q, 0.0, 0.0, 0.0, 0, 0.0, "failed: wrong result")
RECORD = Record("h200", (CONDITIONS,), (measured(A, P, 10.0), measured(B, P, 11.25), measured(A, Q, 12.0, 1), FAILED))


def test_records_are_read_back_and_are_the_same_bytes_in_any_order(tmp_path):
    first, second = tmp_path / "records" / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    write_record(first, RECORD)
    write_record(second, replace(RECORD, measurements=RECORD.measurements[::-1]))
    assert read_record(first) == RECORD
    assert first.read_bytes() == second.read_bytes()
    assert gzip.decompress(first.read_bytes()).decode().splitlines()[1] == "[0,1,64,64,10.0,9.5,10.5,7,0.0015]"


def test_a_mig_slice_is_named_and_a_whole_gpu_is_as_before():
    mig = replace(RECORD, conditions=(replace(CONDITIONS, device="Twin MIG 1g.8gb", mig="1g.8gb"),))
    assert '"mig"' not in record_text(RECORD)
    text = record_text(mig)
    assert parse_record(text, "r").conditions == mig.conditions
    # Records from before there was the field have the profile in the device's name only.
    assert parse_record(text.replace('"mig": "1g.8gb", ', ""), "r").conditions == mig.conditions


def test_times_keep_six_digits():
    text = record_text(Record("h200", (CONDITIONS,), (measured(A, P, 1234.56789),)))
    assert json.loads(text.splitlines()[1])[4] == 1234.57


@pytest.mark.parametrize(
    ("line", "row", "message"),
    [
        (1, '{"version": 9}', "line 1: version 9, expected 1; use the aot that wrote the record"),
        (1, "", "line 1: Expecting value"),
        (3, "[0,1,64", "line 3: Expecting"),
        (3, "[0,1,64,64,1,1,1,7]", "line 3: expected a list of 9 or 10 values"),
        (3, "[5,1,64,64,1,1,1,7,0]", "line 3: kernel, m, n, k and rounds are (5, 1, 64, 64, 7); expected counts"),
        (2, "[0,true,64,64,1,1,1,7,0]", "line 2: kernel, m, n, k and rounds are (0, True, 64, 64, 7)"),
        (2, '[0,1,64,64,"x",1,1,7,0]', "line 2: times and error are ('x', 1, 1, 0)"),
        (2, "[0,1,64,64,NaN,1,1,7,0]", "line 2: times and error are (nan, 1, 1, 0)"),
        (2, "[0,1,64,64,1,2,1,7,0]", "line 2: the times 2, 1, 1 do not ascend"),
        (2, "[0,1,64,64,0,0,0,7,0,5]", "line 2: the status is 5; expected text"),
    ],
)
def test_damaged_lines_are_named(line, row, message):
    lines = record_text(RECORD).splitlines()
    lines[line - 1] = row
    with pytest.raises(StoreError) as caught:
        parse_record("\n".join(lines), "r")
    assert f"r, {message}" in str(caught.value)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "r.jsonl.gz"
    write_record(path, RECORD)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match="cannot read the record"):
        read_record(path)
    with pytest.raises(StoreError, match="cannot read the record"):
        read_record(tmp_path / "absent")


def test_store_gives_latest_of_finished_problems_without_the_quarantined(tmp_path):
    path = tmp_path / "s.sqlite"
    with open_store(path) as store:
        run = store.add_run("h200", 1, CONDITIONS)
        a, b = store.kernel_id(A), store.kernel_id(B)
        for number, item in [(a, measured(A, P, 10.0, 1)), (b, measured(B, P, 11.0)), (a, measured(A, P, 9.0))]:
            store.add_measurement(run, number, item)
        store.finish(run, P)
        store.add_measurement(run, a, measured(A, Q, 12.0, 1))
        store.quarantine(run, b, "two runs differ")
    failed = Measurement(B.key, P, 0.0, 0.0, 0.0, 0, 1.5e-3, "quarantined: two runs differ")
    assert from_store(path) == Record("h200", (CONDITIONS,), (measured(A, P, 9.0), failed))


def test_store_with_nothing_finished_is_refused(tmp_path):
    with open_store(tmp_path / "s.sqlite"):
        pass
    with pytest.raises(StoreError, match="finished 0 problems"):
        from_store(tmp_path / "s.sqlite")


def test_merge_takes_the_later_measurement():
    later = Record("h200", (replace(CONDITIONS, date="2026-12-01"),), (measured(A, P, 8.0),))
    merged = merge([RECORD, later])
    assert merged.conditions == (CONDITIONS, later.conditions[0])
    assert merged.measurements == (measured(A, P, 8.0), *RECORD.measurements[1:])
    with pytest.raises(StoreError, match="need one target"):
        merge([RECORD, replace(RECORD, conditions=(replace(CONDITIONS, device="Other"),))])
    with pytest.raises(StoreError, match="need one target"):
        merge([])


@pytest.mark.parametrize(
    "change", [{"num_sms": 6}, {"power_mode": "15 W"}, {"protocol": "p2"}, {"device": "A MIG 1g"}, {"mig": "1g"}]
)
def test_a_slice_another_mode_or_protocol_is_another_record(change):
    other = replace(RECORD, conditions=(replace(CONDITIONS, **change),))
    with pytest.raises(
        StoreError, match=r"one target, device, arch, SMs, MIG profile, power mode, protocol; got .* --record"
    ):
        merge([RECORD, other])
    assert merge([other, other]).conditions == other.conditions


def test_what_was_voided_is_not_in_the_record(tmp_path):
    with open_store(tmp_path / "r") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        number = store.kernel_id(A)
        store.add_measurement(run, number, measured(A, P, 15.0))
        store.void(run, P, "throttled")
        store.add_measurement(run, number, measured(A, P, 10.0))
        store.finish(run, P)
    assert from_store(tmp_path / "r").measurements == (measured(A, P, 10.0),)
