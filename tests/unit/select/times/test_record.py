import gzip
import json
import re
import sqlite3
from dataclasses import replace

import pytest

from aot.core.errors import StoreError
from aot.core.measurement import LibraryTime, Measurement, Outcome, Record, Status, reference_times
from aot.core.target import target_names
from aot.families import families
from aot.measure.store import open_store
from aot.select.times.record import from_store, merge, parse_record, read_record, record_text, write_record
from tests.unit.twins import CONDITIONS, kernel_of, problem_of

A, B = kernel_of(64, family="sm90_partial_tile"), kernel_of(128, family="sm90_partial_tile")
P, Q = problem_of(1, 64, 64), problem_of(2, 64, 64)


def measured(kernel, problem, median, rounds=7):
    return Measurement(kernel.key, problem, median, median - 0.5, median + 0.5, rounds, 1.5e-3)


FAILED = Measurement(B.key, Q, 0.0, 0.0, 0.0, 0, 0.0, Status(Outcome.FAILED, "wrong result"))
RECORD = Record("h200", (CONDITIONS,), (measured(A, P, 10.0), measured(B, P, 11.25), measured(A, Q, 12.0, 1), FAILED))


def test_records_are_read_back_and_are_the_same_bytes_in_any_order(tmp_path):
    first, second = tmp_path / "records" / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    write_record(first, RECORD)
    write_record(second, replace(RECORD, measurements=RECORD.measurements[::-1]))
    assert read_record(first) == RECORD
    assert first.read_bytes() == second.read_bytes()
    assert gzip.decompress(first.read_bytes()).decode().splitlines()[1] == "[0,1,64,64,10.0,9.5,10.5,7,0.0015]"


def test_a_kernel_in_an_order_of_tiles_is_an_entry_of_the_header_and_apart_from_its_own():
    ordered = replace(measured(A, P, 9.0), tile_order=5)
    record = replace(RECORD, measurements=(*RECORD.measurements, ordered))
    text = record_text(record)
    entries = json.loads(text.splitlines()[0])["kernels"]
    assert [x.get("tile_order") for x in entries] == [None, 5, None]
    assert text.splitlines()[2] == "[1,1,64,64,9.0,8.5,9.5,7,0.0015]"
    assert set(parse_record(text, "r").measurements) == set(record.measurements)
    assert "tile_order" not in record_text(RECORD)
    later = replace(RECORD, measurements=(replace(ordered, median_us=8.75), measured(A, P, 10.5)))
    merged = {x.timed: x.median_us for x in merge([record, later]).measurements}
    assert (merged[P, A.key, 5], merged[P, A.key, 0], merged[P, B.key, 0]) == (8.75, 10.5, 11.25)
    twice = text.replace('"tile_order": 5', '"tile_order": 0')
    with pytest.raises(StoreError, match="a kernel is there twice"):
        parse_record(twice, "r")
    with pytest.raises(StoreError, match="tile_order: expected a whole number from 0 to 8, got 9"):
        parse_record(text.replace('"tile_order": 5', '"tile_order": 9'), "r")


TORCH = tuple(LibraryTime("torch 2.11.0+cu130", x, 12.5 * x.m, 12.0 * x.m, 13.0 * x.m, 7) for x in (P, Q))


def test_a_librarys_times_are_read_back(tmp_path):
    record = replace(RECORD, library_times=TORCH)
    assert record_text(record).splitlines()[-1] == '["torch 2.11.0+cu130","bf16_kk",2,64,64,25.0,24.0,26.0,7]'
    assert record_text(replace(record, library_times=TORCH[::-1])) == record_text(record)
    write_record(tmp_path / "r.jsonl.gz", record)
    assert read_record(tmp_path / "r.jsonl.gz") == record
    assert reference_times(record) == {P: 12.5, Q: 25.0}
    assert reference_times(RECORD) == {}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('["torch","bf16_kk",2,64,64,25.0,24.0,26.0,7]', "line 8: a second time of a library on bf16_kk m2 n64 k64"),
        ('["torch","bf16_kk",3,64,64,23.0,24.0,26.0,7]', "line 8: the times 24.0, 23.0, 26.0 do not ascend from above"),
        ('["torch","bf99_kk",3,64,64,25.0,24.0,26.0,7]', "line 8: operation: expected the tag of an operation"),
        ('["torch","bf16_kk",3,64,64]', "line 8: expected a list of 9 values or more, got 5"),
    ],
)
def test_a_librarys_row_is_checked(row, message):
    text = record_text(replace(RECORD, library_times=TORCH))
    with pytest.raises(StoreError, match=re.escape(message)):
        parse_record(text + row + "\n", "r")


def test_a_record_of_version_2_is_read_on():
    text = record_text(RECORD)
    assert parse_record(text.replace('"version": 3', '"version": 2'), "r") == RECORD


def test_later_times_of_a_library_win_a_merge():
    newer = replace(TORCH[0], median_us=12.75)
    merged = merge([replace(RECORD, library_times=TORCH), replace(RECORD, library_times=(newer,))])
    assert merged.library_times == (newer, TORCH[1])


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


HEADER = json.loads(record_text(RECORD).splitlines()[0])


def header(*place, value):
    found = json.loads(json.dumps(HEADER))
    *parents, last = place
    inner = found
    for part in parents:
        inner = inner[part]
    inner[last] = value
    return json.dumps(found)


EXTENT = "expected a whole number from 1 to 2147483647"
CANDIDATE = ("kernels", 0, "candidate")


@pytest.mark.parametrize(
    ("line", "row", "message"),
    [
        (1, '{"version": 9}', "line 1: version: expected 3, got 9"),
        (1, header("version", value=True), "line 1: version: expected 3, got True"),
        (1, "", "line 1: not JSON: Expecting value"),
        (1, "[1]", "line 1: version: expected 3, got None"),
        (1, header("target", value="../../../evil"), "line 1: target: expected the name of a target, such as h200"),
        (1, header("target", value="xavier"), f"line 1: no target 'xavier'; there are: {', '.join(target_names())}"),
        (1, header("target", value="thor"), "line 1: measured on sm_90a, and the target thor is sm_110a"),
        (1, header("conditions", 0, "arch", value="sm_80"), "line 1: measured on sm_80, and the target h200 is sm_90a"),
        (
            1,
            header("conditions", 0, "device", value="a\x1b[2J"),
            "line 1: conditions[0].device: expected one line of 1 to",
        ),
        (
            1,
            header("conditions", 0, "speed", value=1),
            "line 1: conditions[0].speed: there is no such key in Conditions",
        ),
        (
            1,
            header("kernels", 0, "operation", value="float99"),
            "line 1: kernels[0].operation: expected the tag of an operation",
        ),
        (
            1,
            header(*CANDIDATE, value=[1, 2]),
            "line 1: kernels[0].candidate: expected an object of Candidate, got [1, 2]",
        ),
        (
            1,
            header(*CANDIDATE, "tile_m", value=-7),
            "line 1: kernels[0].candidate.tile_m: expected a whole number from 1 to",
        ),
        (
            1,
            header(*CANDIDATE, "tile_m", value="x"),
            "line 1: kernels[0].candidate.tile_m: expected a whole number from",
        ),
        (
            1,
            header(*CANDIDATE, "split_k_mode", value="x"),
            "line 1: kernels[0].candidate.split_k_mode: expected one of none",
        ),
        (
            1,
            header(*CANDIDATE, "family", value="sm80_old"),
            f"line 1: no kernel family 'sm80_old'; there are: {', '.join(sorted(families()))}; ",
        ),
        (
            1,
            header(*CANDIDATE, "family", value="sm100_tgv"),
            "line 1: has kernels of sm100_tgv, which needs tcgen05; h200 has it not",
        ),
        (1, header(*CANDIDATE, value=HEADER["kernels"][1]["candidate"]), "line 1: kernels: a kernel is there twice"),
        (3, "[0,1,64", "line 3: not JSON: Expecting"),
        (3, "7", "line 3: expected a list of values, got 7"),
        (3, "[0,1,64,64,1,1,1,7]", "line 3: Row needs the key relative_error, which is missing"),
        (3, '[0,1,64,64,1,1,1,7,0,"ok",1,1]', "line 3: expected a list of 9 to 11 values, got 12"),
        (3, "[5,1,64,64,1,1,1,7,0]", "line 3: kernel: expected the number of one of 2 kernels, got 5"),
        (3, "[-1,1,64,64,1,1,1,7,0]", "line 3: kernel: expected the number of one of 2 kernels, got -1"),
        (2, "[0,true,64,64,1,1,1,7,0]", f"line 2: m: {EXTENT}, got True"),
        (2, "[0,-3,64,64,1,1,1,7,0]", f"line 2: m: {EXTENT}, got -3"),
        (2, "[0,0,64,64,1,1,1,7,0]", f"line 2: m: {EXTENT}, got 0"),
        (2, '[0,1,64,64,"x",1,1,7,0]', "line 2: median_us: expected a number from 0 to 1e+12, got 'x'"),
        (2, "[0,1,64,64,NaN,1,1,7,0]", "line 2: not JSON: NaN is no number of JSON"),
        (2, "[0,1,64,64,1e999,1,1,7,0]", "line 2: median_us: expected a number from 0 to 1e+12, got inf"),
        (2, "[0,1,64,64,-9,-9,-9,7,0]", "line 2: median_us: expected a number from 0 to 1e+12, got -9"),
        (2, "[0,1,64,64,0,0,0,7,0]", "line 2: the times 0.0, 0.0, 0.0 do not ascend from above 0"),
        (2, "[0,1,64,64,1,2,1,7,0]", "line 2: the times 2.0, 1.0, 1.0 do not ascend from above 0"),
        (2, "[0,1,64,64,0,0,0,7,0,5]", "line 2: status: expected one line of printable text of at most 4000"),
        (
            2,
            '[0,1,64,64,0,0,0,7,0,"a\\u001b[31m"]',
            "line 2: status: expected one line of printable text of at most 4000",
        ),
    ],
)
def test_damaged_lines_are_named(line, row, message):
    lines = record_text(RECORD).splitlines()
    lines[line - 1] = row
    with pytest.raises(StoreError) as caught:
        parse_record("\n".join(lines), "r")
    assert f"r, {message}" in str(caught.value)


def test_a_record_that_could_not_be_read_is_not_written(tmp_path):
    strange = replace(RECORD, conditions=(replace(CONDITIONS, arch="sm_80"),))
    with pytest.raises(StoreError, match=r"r\.gz, line 1: measured on sm_80, and the target h200 is sm_90a"):
        write_record(tmp_path / "r.gz", strange)
    assert list(tmp_path.iterdir()) == []


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
        for time in TORCH:
            store.add_library_time(run, time)
    failed = Measurement(B.key, P, 0.0, 0.0, 0.0, 0, 1.5e-3, Status(Outcome.QUARANTINED, "two runs differ"))
    assert from_store(path) == Record("h200", (CONDITIONS,), (measured(A, P, 9.0), failed), TORCH[:1])


def test_store_with_nothing_finished_is_refused(tmp_path):
    with open_store(tmp_path / "s.sqlite"):
        pass
    with pytest.raises(StoreError, match="finished 0 problems"):
        from_store(tmp_path / "s.sqlite")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "UPDATE runs SET target = '../../../evil'",
            "target: expected the name of a target, such as h200, got '../../../e",
        ),
        (
            "UPDATE runs SET target = 'xavier'",
            "no target 'xavier'; there are: a100, b200, gb10, h100, h200, l4, orin, rtx_pro_6000, thor, thor_6sm, thor",
        ),
        ("UPDATE runs SET arch = 'sm_80'", "measured on sm_80, and the target h200 is sm_90a"),
        ("UPDATE runs SET arch = 'x'", "arch: expected an architecture, such as sm_90a, got 'x'"),
        ("UPDATE runs SET device = char(27) || '[2J'", "device: expected one line of 1 to 200 printable characters"),
        ("UPDATE kernels SET candidate = '[1, 2]'", "expected an object of Candidate, got [1, 2]"),
        ("UPDATE kernels SET candidate = replace(candidate, '64', '-7')", "tile_m: expected a whole number from 1"),
        ("UPDATE kernels SET candidate = replace(candidate, '64', '\"x\"')", "tile_m: expected a whole number from 1"),
        (
            "UPDATE kernels SET candidate = replace(candidate, 'none', 'x')",
            "split_k_mode: expected one of none, serial",
        ),
        (
            "UPDATE kernels SET candidate = replace(candidate, 'sm90_partial_tile', 'old')",
            "no kernel family 'old'; there are:",
        ),
        (
            "UPDATE kernels SET candidate = replace(candidate, 'sm90_partial_tile', 'sm100_tgv')",
            "has kernels of sm100_tgv, wh",
        ),
        (
            "UPDATE kernels SET operation = 'float99'",
            "operation: expected the tag of an operation, such as bf16_kk, got 'float99'",
        ),
        (
            "UPDATE kernels SET operation = 'fp16_kk'",
            "bf16_kk m1 n64 k64 was measured with kernel 1, none of its own",
        ),
        (
            'UPDATE problems SET sizes = \'{"m": 0, "n": 64, "k": 64}\'',
            "sizes.m: expected a whole number from 1 to 2147483647, got 0",
        ),
        ("UPDATE problems SET sizes = '[1]'", "problem[1].sizes: expected an object of sizes by axis, got [1]"),
        (
            "UPDATE measurements SET median_us = -1.5",
            "median_us: expected a number from 0 to 1e+12, got -1.5",
        ),
        ("UPDATE measurements SET median_us = 0", "the times 9.5, 0.0, 10.5 do not ascend from above 0"),
        (
            "UPDATE measurements SET median_us = 9e999",
            "median_us: expected a number from 0 to 1e+12, got inf",
        ),
        ("UPDATE measurements SET kernel = 7", "row 1 of measurements names a row of kernels that is not there"),
        ("DELETE FROM runs", "names a row of runs that is not there"),
        ("DROP TABLE voided", "no such table"),
    ],
)
def test_a_strange_store_is_refused_with_its_name_and_stays_as_it_is(tmp_path, sql, message):
    path = tmp_path / "s.sqlite"
    with open_store(path) as store:
        run = store.add_run("h200", 1, CONDITIONS)
        store.add_measurement(run, store.kernel_id(A), measured(A, P, 10.0))
        store.finish(run, P)
    connection = sqlite3.connect(path)
    connection.execute(sql)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        from_store(path)
    assert str(caught.value).startswith(f"{path}")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert path.read_bytes() == before
    assert [x.name for x in tmp_path.iterdir()] == ["s.sqlite"]


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
