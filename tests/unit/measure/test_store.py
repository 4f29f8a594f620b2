import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.errors import StoreError
from aot.core.measurement import OK, LibraryTime, Measurement, Outcome, Status
from aot.core.operation import Operation
from aot.kinds.gemm.tuned import TunedKernel
from aot.kinds.rows.problem import RowProblem
from aot.measure.store import copy_store, open_store, read_store
from aot.measure.store_sql import InFlight
from tests.unit.row_twins import NORM, row_kernel_of
from tests.unit.twins import CONDITIONS, kernel_of, problem_of

KERNEL, PROBLEM = kernel_of(64), problem_of(1, 64, 64)


def measured(median=10.0, rounds=1, *, kernel=KERNEL, problem=PROBLEM, status=OK):
    return Measurement(kernel.key, problem, median, median - 1, median + 1, rounds, 1e-3, status)


def test_measurements_outlive_the_connection(tmp_path):
    path = tmp_path / "r.sqlite"
    with open_store(path) as store:
        run = store.add_run("h200", 1, CONDITIONS)
        number = store.kernel_id(KERNEL)
        store.add_measurement(run, number, measured(10.0))
        store.add_measurement(run, number, measured(9.0, 7))
        store.finish(run, PROBLEM)
    with open_store(path) as store:
        assert store.latest(PROBLEM) == {number: measured(9.0, 7)}
        assert store.measurements() == [(number, measured(10.0)), (number, measured(9.0, 7))]
        assert store.is_finished(PROBLEM)
        assert not store.is_finished(problem_of(2, 64, 64))
        assert (store.targets(), store.conditions()) == (["h200"], (CONDITIONS,))
    assert not (tmp_path / "r.sqlite-wal").exists()


def test_uncommitted_work_of_another_connection_is_not_needed(tmp_path):
    path = tmp_path / "r.sqlite"
    with open_store(path) as writer:
        run = writer.add_run("h200", 1, CONDITIONS)
        writer.set_in_flight(run, writer.kernel_id(KERNEL), "verifying")
        with open_store(path) as reader:
            assert reader.in_flight() == InFlight(run, 1, "verifying")
        writer.clear_in_flight()
        assert writer.in_flight() is None


def test_processes_may_make_the_store_at_once(tmp_path):
    def open_one(_):
        with open_store(tmp_path / "r.sqlite") as store:
            return store.targets()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(open_one, range(16))) == [[]] * 16


def test_kernel_compiled_anew_is_another_kernel(tmp_path):
    with open_store(tmp_path / "r.sqlite") as store:
        first, second = store.kernel_id(KERNEL), store.kernel_id(kernel_of(64, sha="cd"))
        assert first != second == store.kernel_id(kernel_of(64, sha="cd"))
        run = store.add_run("h200", 1, CONDITIONS)
        store.quarantine(run, first, "wrong")
        store.quarantine(run, first, "again")
        store.add_verified(run, second, 2e-3)
        assert store.quarantined() == {first: "wrong"}
        assert store.verified() == {second: 2e-3}


def test_clocks_under_load_replace_the_first_reading(tmp_path):
    with open_store(tmp_path / "r.sqlite") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        assert store.conditions() == ()
        store.add_measurement(run, store.kernel_id(KERNEL), measured())
        store.add_clocks(run, 1500, None)
        store.add_clocks(run, 1600, None)
        assert store.conditions() == (replace(CONDITIONS, sm_clock_mhz=1600),)


@pytest.mark.parametrize(
    "change",
    [
        {"device": "Other"},
        {"num_sms": 6},
        {"mig": "1g.18gb"},
        {"power_mode": "50 W"},
        {"protocol": "p2"},
        {"arch": "sm_110a"},
    ],
)
def test_other_conditions_are_refused(tmp_path, change):
    with open_store(tmp_path / "r.sqlite") as store:
        store.add_run("h200", 1, CONDITIONS)
        store.add_run("h200", 2, replace(CONDITIONS, date="2026-11-21", driver="2", sm_clock_mhz=5))
        with pytest.raises(StoreError, match="give another --out"):
            store.add_run("h200", 3, replace(CONDITIONS, **change))


def test_damaged_foreign_and_newer_files_are_refused(tmp_path):
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"SQLite format 3\0" + b"rubbish" * 500)
    with pytest.raises(StoreError, match="move it away and measure again"), open_store(damaged):
        pass
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(StoreError, match="of another program; give another path"), open_store(foreign):
        pass
    newer = tmp_path / "newer.sqlite"
    with open_store(newer):
        pass
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(StoreError, match="schema version 9, this aot reads 8"), open_store(newer):
        pass


def as_version_7(path):
    """Make a file of today one of version 7, whose rows have the operation and the sizes of products themselves."""
    with sqlite3.connect(path) as connection:
        connection.execute("DROP INDEX by_problem")
        for table in ("measurements", "finished", "reference_times", "searches", "library_times"):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN operation TEXT NOT NULL DEFAULT ''")
            of_row = f"FROM problems WHERE problems.id = {table}.problem"
            connection.execute(f"UPDATE {table} SET operation = (SELECT operation {of_row})")
            for axis in ("m", "n", "k", "num_groups"):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {axis} INTEGER NOT NULL DEFAULT 1")
                connection.execute(f"UPDATE {table} SET {axis} = (SELECT json_extract(sizes, '$.{axis}') {of_row})")
            connection.execute(f"ALTER TABLE {table} DROP COLUMN problem")
        connection.execute("CREATE INDEX by_problem ON measurements (operation, m, n, k, kernel)")
        connection.execute("DROP TABLE problems")
        connection.execute("PRAGMA user_version = 7")
    connection.close()


def as_version_5(path):
    """Make a file of today one of version 5, which does not say how many products or groups there are."""
    as_version_7(path)
    with sqlite3.connect(path) as connection:
        for table in ("measurements", "finished", "reference_times", "searches", "library_times"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN num_groups")
        connection.execute("ALTER TABLE kernels DROP COLUMN tile_order")
        connection.execute("PRAGMA user_version = 5")
    connection.close()


def as_version_4(path):
    """Make a file of today one of version 4, which has no times of separators and libraries."""
    as_version_5(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE separator_times")
        connection.execute("DROP TABLE library_times")
        connection.execute("PRAGMA user_version = 4")
    connection.close()


def as_version_3(path):
    """Make a file of today one of version 3: two columns for an operation, and names of families until then."""
    as_version_4(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP INDEX by_problem")
        for table in ("kernels", "measurements", "finished", "reference_times", "searches"):
            for column in ("dtype", "layout"):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
            connection.execute(
                f"UPDATE {table} SET dtype = iif(operation LIKE 'bf16%', 'bfloat16', 'float16'), "
                "layout = substr(operation, 6)"
            )
            connection.execute(f"ALTER TABLE {table} DROP COLUMN operation")
        connection.execute("CREATE INDEX by_problem ON measurements (dtype, layout, m, n, k, kernel)")
        connection.execute("ALTER TABLE reference_times RENAME TO anchors")
        old, new = "sm90_overlap", "sm90_prefetch_b"
        renamed = "UPDATE kernels SET name = replace(name, ?, ?), candidate = replace(candidate, ?, ?)"
        connection.execute(renamed, (new, old) * 2)
        connection.execute("PRAGMA user_version = 3")
    connection.close()


def everything(path):
    """Return all that a store says of its problems."""
    with open_store(path) as store:
        kernels = {number: kernel for number, (kernel, _) in store._kernels().items()}
        times = {(i, p): store.reference_times(i, p) for i in kernels for p in store.finished()}
        ends = {p: store.searches(p) for p in store.finished()}
        return store.measurements(), store.finished(), times, ends, store.library_times(), store.voided(), kernels


def test_a_store_of_version_7_keeps_all_that_it_has_of_products_and_takes_other_kinds(tmp_path):
    """Until version 8 a problem was m, n, k and a number of groups, in each row."""
    path, batch = tmp_path / "r", replace(problem_of(16, 64, 64, Operation.BF16_KK_BATCHED), num_groups=12)
    batched = kernel_of(64, operation=Operation.BF16_KK_BATCHED)
    with open_store(path) as store:
        run = store.add_run("h200", 1, CONDITIONS)
        for kernel, problem, us in (
            (KERNEL, PROBLEM, 10.0),
            (KERNEL, problem_of(2, 64, 64), 11.0),
            (batched, batch, 12.0),
        ):
            number = store.kernel_id(kernel)
            store.add_measurement(run, number, measured(us, kernel=kernel, problem=problem))
            store.add_reference_time(run, number, problem, us)
            store.add_library_time(run, LibraryTime("torch 2", problem, us, us, us, 7))
            store.add_search(run, problem, "model", 3, 4, "no other can win", us)
            store.finish(run, problem)
        store.void(run, PROBLEM, "throttled")
        store.add_measurement(run, store.kernel_id(KERNEL), measured(9.0, 7))
    before = everything(path)
    assert len(before[0]) == 3
    as_version_7(path)
    with read_store(path) as store:
        assert store.measurements() == before[0]
    assert everything(path) == before
    rows, norm = row_kernel_of(), RowProblem(NORM, 16, 4096)
    with open_store(path) as store:
        number = store.kernel_id(rows)
        store.add_measurement(run, number, measured(3.0, 7, kernel=rows, problem=norm))
        store.finish(run, norm)
        assert store.latest(norm) == {number: measured(3.0, 7, kernel=rows, problem=norm)}
        assert store.is_finished(norm)
    with sqlite3.connect(path) as connection:
        sizes = [x for (x,) in connection.execute("SELECT sizes FROM problems ORDER BY id")]
    connection.close()
    assert sizes[0] == '{"k":64,"m":1,"n":64,"num_groups":1}'
    assert '{"cols":4096,"rows":16}' in sizes


def test_a_problem_that_is_none_is_refused_with_its_place(tmp_path):
    path = tmp_path / "r"
    fill(path, 1, 10.0)
    for sizes, message in (
        ("{", r"problem\[1\]\.sizes: not JSON"),
        ('{"m":1}', r"problem\[1\]\.sizes: Problem needs the key k"),
    ):
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE problems SET sizes = ?", (sizes,))
        connection.close()
        with pytest.raises(StoreError, match=message), open_store(path) as store:
            store.measurements()


def test_a_store_of_version_4_takes_times_of_separators_and_libraries(tmp_path):
    path, problem = tmp_path / "r", problem_of(16, 64, 64)
    with open_store(path) as store:
        run = store.add_run("h200", 1, CONDITIONS)
        store.finish(run, problem)
    as_version_4(path)
    with open_store(path) as store:
        assert store.is_finished(problem)
        assert store.library_times() == {}
        store.add_separator_time(run, 1.5)
        store.add_library_time(run, LibraryTime("torch 2", problem, 9.0, 8.0, 10.0, 7))
        store.add_library_time(run, LibraryTime("torch 2", problem, 9.5, 8.5, 10.5, 7))
    with read_store(path) as store:
        assert store.library_times() == {problem: LibraryTime("torch 2", problem, 9.5, 8.5, 10.5, 7)}


def test_store_of_version_3_is_read_on(tmp_path):
    path = tmp_path / "r"
    kernel = TunedKernel(KernelKey(Operation.FP16_MN, gemm_candidate("sm90_prefetch_b", 64, 16)), "0" * 64)
    problem = problem_of(16, 64, 64, Operation.FP16_MN)
    with open_store(path) as store:
        run = store.add_run("h200", 1, CONDITIONS)
        number = store.kernel_id(kernel)
        store.add_measurement(run, number, Measurement(kernel.key, problem, 10.0, 9.0, 11.0, 3, 0.001))
        store.add_reference_time(run, number, problem, 7.0)
        store.finish(run, problem)
    as_version_3(path)
    with open_store(path) as store:
        assert [(item.kernel, item.problem, item.median_us) for _, item in store.measurements()] == [
            (kernel.key, problem, 10.0)
        ]
        assert store.reference_times(number, problem) == [7.0]
        assert store.is_finished(problem)
        assert store.kernel_id(kernel) == number
        store.add_reference_time(run, number, problem, 8.0)
        store.finish(run, problem_of(17, 64, 64, Operation.FP16_MN))
        assert store.reference_times(number, problem) == [7.0, 8.0]


def test_what_is_voided_counts_no_more_and_stays(tmp_path):
    with open_store(tmp_path / "r") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        number = store.kernel_id(kernel_of(64))
        store.add_measurement(run, number, measured(10.0))
        store.add_measurement(run, number, measured(11.0))
        store.void(run, PROBLEM, "the reference kernel takes 3 us, before it took 2 us")
        assert store.latest(PROBLEM) == {}
        store.add_measurement(run, number, measured(12.0))
        assert [item.median_us for item in store.latest(PROBLEM).values()] == [12.0]
        assert [item.median_us for _, item in store.measurements()] == [12.0]
        store.void(run, PROBLEM, "again")
        reasons = [
            (1, "the reference kernel takes 3 us, before it took 2 us"),
            (2, "the reference kernel takes 3 us, before it took 2 us"),
        ]
        assert store.voided() == [*reasons, (3, "again")]


def test_reference_times_are_kept_in_order(tmp_path):
    with open_store(tmp_path / "r") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        number = store.kernel_id(kernel_of(64))
        for us in (10.0, 12.0, 11.0):
            store.add_reference_time(run, number, PROBLEM, us)
        assert store.reference_times(number, PROBLEM) == [10.0, 12.0, 11.0]
        assert store.reference_times(number + 1, PROBLEM) == []


def test_a_copy_is_whole_while_the_store_is_open(tmp_path):
    fill(tmp_path / "r", 1, 10.0)
    with open_store(tmp_path / "r") as store:
        store.set_in_flight(1, 1, "x")
        copy_store(tmp_path / "r", tmp_path / "copy")
    with open_store(tmp_path / "copy") as store:
        assert len(store.measurements()) == 1
    with pytest.raises(StoreError, match="No such file or directory; run `aot tune`"):
        copy_store(tmp_path / "absent", tmp_path / "x")


def fill(path, seed, median):
    kernel = kernel_of(64)
    with open_store(path) as store:
        run = store.add_run("h200", seed, CONDITIONS)
        number = store.kernel_id(kernel)
        store.add_measurement(run, number, measured(median))
        store.add_verified(run, number, 1e-3)
        store.add_clocks(run, 1700, 2000)
        store.finish(run, PROBLEM)


def listing(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected the results of `aot tune`"),
        (b"SQLite", "is no file of SQLite; expected the results of"),
        (b"SQLite format 3\0" + bytes(200), "if the file is damaged, move it away and measure again"),
    ],
)
def test_a_file_that_is_read_is_not_written(tmp_path, content, message):
    (tmp_path / "r").write_bytes(content)
    for attempt in (
        lambda: read_store(tmp_path / "r"),
        lambda: nullcontext(copy_store(tmp_path / "r", tmp_path / "c")),
    ):
        with pytest.raises(StoreError, match=message), attempt():
            pass
    (tmp_path / "c").unlink(missing_ok=True)
    assert listing(tmp_path) == {"r": content}


@pytest.mark.parametrize("marks", ["PRAGMA application_id = 7", "CREATE TABLE t (x)", "PRAGMA user_version = 3"])
@pytest.mark.parametrize("opened", [open_store, read_store])
def test_another_programs_file_is_not_written(tmp_path, marks, opened):
    with sqlite3.connect(tmp_path / "r") as connection:
        connection.execute(marks)
    connection.close()
    before = listing(tmp_path)
    with pytest.raises(StoreError, match="of another program; give another path"), opened(tmp_path / "r"):
        pass
    assert listing(tmp_path) == before


@pytest.mark.parametrize("name", ["r?mode=rwc", "a b#c%20.sqlite"])
def test_reading_an_older_store_leaves_it_as_it_is(tmp_path, name):
    path = tmp_path / name
    fill(path, 1, 10.0)
    as_version_3(path)
    before = listing(tmp_path)
    with read_store(path) as store:
        assert [item.median_us for _, item in store.measurements()] == [10.0]
    assert listing(tmp_path) == before


def test_what_a_killed_process_wrote_is_read(tmp_path):
    fill(tmp_path / "r", 1, 10.0)
    with open_store(tmp_path / "r") as store:
        store.void(1, PROBLEM, "throttled")
        with read_store(tmp_path / "r") as reader:
            assert reader.measurements() == []
        for name in ("r", "r-wal"):
            (tmp_path / f"killed_{name}").write_bytes((tmp_path / name).read_bytes())
    with read_store(tmp_path / "killed_r") as reader:
        assert reader.voided() == [(1, "throttled")]


def test_texts_are_stored_as_one_line(tmp_path):
    with open_store(tmp_path / "r") as store:
        run, number = store.add_run("h200", 1, CONDITIONS), store.kernel_id(KERNEL)
        store.quarantine(run, number, "a\nb\x1b[31m")
        store.set_in_flight(run, number, "x\n" * 5000)
        store.add_measurement(run, number, measured(5.0, status=Status(Outcome.FAILED, "\n  why")))
    with read_store(tmp_path / "r") as store:
        assert store.quarantined() == {number: "a b?[31m"}
        assert len(store.in_flight().what) == 4000
        assert [item.status for _, item in store.measurements()] == [Status(Outcome.FAILED, "why")]


def test_an_error_that_is_kept_does_not_keep_the_file_locked(tmp_path):
    path = tmp_path / "r"
    with open_store(path) as store:
        for tile in (16, 32, 64):
            store.kernel_id(kernel_of(tile))
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode = DELETE; UPDATE kernels SET candidate = ''")
    connection.close()
    with pytest.raises(StoreError, match=r"kernel\[1\]\.candidate: not JSON: ") as kept, open_store(path) as store:
        store.measurements()
    connection = sqlite3.connect(path, timeout=0)
    connection.execute("BEGIN EXCLUSIVE")
    connection.close()
    assert kept.value.__traceback__ is not None
