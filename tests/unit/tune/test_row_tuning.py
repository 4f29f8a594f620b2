"""What a tuning of operations on rows measures, its bundle, and the record that its results come to."""

from dataclasses import replace

import pytest

from aot.compile.artifact import CompileFailure
from aot.core.errors import CompileError, StoreError, TargetError
from aot.core.row_operation import RowFunction, RowOperation
from aot.core.target import load_target
from aot.measure.options import Options
from aot.measure.row_results import ROW_RESULTS_VERSION, RowRun, RowTimed, open_row_results
from aot.measure.row_tuning_set import read_row_tuning_set
from aot.measure.runner import is_of_rows
from aot.row_families import row_family_of
from aot.select.row_record import read_row_record
from aot.select.rows import select_rows
from aot.space.enumeration import Patterns
from aot.space.row_cost import row_time_us
from aot.space.row_legality import row_fallback
from aot.tune import row_tuning
from aot.tune.row_tuning import RowTuningRequest, import_row_results, make_row_bundle, row_sizes, row_tuning_keys
from tests.unit.twins import CONDITIONS

H200 = load_target("h200")
NORM, ROTARY = RowOperation.BF16_RMS_NORM, RowOperation.BF16_ROTARY
IDENTITY = f"a {'ab' * 32}"
BOTH = RowTuningRequest((NORM, ROTARY), Patterns())


def test_sizes_are_rows_and_columns_of_models_and_heads_of_a_rotary_embedding():
    assert {(x.rows, x.cols) for x in row_sizes(NORM)} >= {(1, 4096), (8192, 16384)}
    assert {x.cols for x in row_sizes(ROTARY)} == {64, 128, 256}
    assert ROTARY.function is RowFunction.ROTARY


def test_a_size_is_measured_with_the_kernels_that_take_it_and_that_the_model_thinks_near_its_best():
    wanted = row_tuning_keys(BOTH, H200)
    assert set(wanted) == {*row_sizes(NORM), *row_sizes(ROTARY)}
    for problem, keys in wanted.items():
        times = [row_time_us(key, problem, H200) for key in keys]
        assert max(times) <= 2 * min(times)
        assert all(row_family_of(x.candidate).limits(x.candidate, x.operation).takes(problem.cols) for x in keys)
    fewer = row_tuning_keys(replace(BOTH, ratio=1.01), H200)
    assert sum(map(len, fewer.values())) < sum(map(len, wanted.values()))
    looped = row_tuning_keys(replace(BOTH, patterns=Patterns.parse("row_looped_*")), H200)
    assert {key.candidate.family for keys in looped.values() for key in keys} == {"row_looped"}
    with pytest.raises(CompileError, match="the patterns of --kernels leave no kernel"):
        row_tuning_keys(replace(BOTH, patterns=Patterns.parse("none")), H200)


@pytest.fixture
def stand_ins(monkeypatch):
    """Compile and link nothing; return what would have been linked."""
    from types import SimpleNamespace

    from aot.core.row_kernel import RowKernel
    from aot.core.row_signature import row_signature_of
    from tests.golden.manifest import kernel

    linked = []

    def product(keys, *_):
        made = kernel(keys[0].operation, keys[0].candidate, num_strides=2)
        return [SimpleNamespace(kernel=made, path="product.o")], []

    def rows(keys, *_):
        made, failures = [], []
        for key in keys:
            limits = row_family_of(key.candidate).limits(key.candidate, key.operation)
            names = [f"{key.name}_{x}" for x in ("entry", "init", "load")]
            hashes = "ab" * 32, 10, "cd" * 32
            entry = (key.name, key.operation, key.candidate, *hashes, *names, row_signature_of(key.operation))
            if key.candidate.vectors_per_thread == 4 and key.candidate.family == "row_registers":
                failures.append(CompileFailure(key.name, "why", 0.0))
            else:
                made.append(SimpleNamespace(kernel=RowKernel(*entry, limits, 0, 128, 32, 0), path=f"{key.name}.o"))
        return made, failures

    def link(library, objects, folder, target, **_):
        linked.append((library, objects))
        (folder / "kernels.so").write_bytes(b"library")
        return folder / "kernels.so"

    monkeypatch.setattr(row_tuning, "compile_all", product)
    monkeypatch.setattr(row_tuning, "compile_all_rows", rows)
    monkeypatch.setattr(row_tuning, "build_library", link)
    return linked


def test_a_bundle_has_the_library_its_sizes_and_the_runner(stand_ins, tmp_path):
    from aot.compile.workplace import Workplace

    bundle, failures = make_row_bundle(BOTH, H200, tmp_path / "b", Workplace())
    tuning = read_row_tuning_set(bundle.directory)
    ((library, objects),) = stand_ins
    assert [x.name for x in tuning.kernels] == [x.name for x in library.row_kernels]
    assert set(objects) == {x.name for x in (*library.kernels, *library.row_kernels)}
    for section in library.tables[0].row_table.sections:
        assert library.row_kernels[section.fallback].candidate == row_fallback(section.operation, H200)
    failed = {x.name for x in failures}
    assert failed
    assert not failed & {x.name for x in tuning.kernels}
    assert {(x.operation, x.rows, x.cols) for x in tuning.sizes} <= {
        (x.operation, x.rows, x.cols) for operation in BOTH.operations for x in row_sizes(operation)
    }
    assert is_of_rows(Options(bundle.directory, tmp_path / "out"))
    with pytest.raises(StoreError, match="--shard means nothing for operations on rows"):
        is_of_rows(Options(bundle.directory, tmp_path / "out", shard=(1, 2)))
    (bundle.directory / "kernels.json").touch()
    with pytest.raises(StoreError, match="is a bundle of products"):
        make_row_bundle(BOTH, H200, tmp_path / "b", Workplace())


def results(path, us, *, conditions=CONDITIONS, rows=16, bad=False):
    candidate = row_tuning_keys(BOTH, H200)[row_sizes(NORM)[0]][0].candidate
    with open_row_results(path) as found:
        found.add(RowRun(ROW_RESULTS_VERSION, "h200", conditions))
        found.add(RowTimed(IDENTITY, NORM, candidate, rows, 4096, us))
        if bad:
            found.quarantine(0, IDENTITY, "wrong")
    return path


def test_results_become_a_record_that_a_table_is_selected_from(tmp_path):
    first, second = results(tmp_path / "a.jsonl", 5.0), results(tmp_path / "b.jsonl", 4.0)
    third = results(tmp_path / "c.jsonl", 9.0, rows=64)
    written = import_row_results([first, second, third], None, tmp_path)
    assert written.path == tmp_path / "h200.jsonl.gz"
    assert [(x.rows, x.cols, x.median_us) for x in written.record.times] == [(16, 4096, 4.0), (64, 4096, 9.0)]
    again = import_row_results([results(tmp_path / "d.jsonl", 3.0)], None, tmp_path)
    assert read_row_record(again.path) == again.record
    assert [x.median_us for x in again.record.times] == [3.0, 9.0]
    selection = select_rows((NORM,), H200, again.record.by_operation)
    steps = [step for column in selection.table.sections[0].columns for step in column.steps]
    assert {step.time_us for step in steps if step.provenance == "measured"} >= {3.0, 9.0}


def test_what_was_quarantined_later_is_in_no_record(tmp_path):
    good = results(tmp_path / "a.jsonl", 5.0, rows=64)
    written = import_row_results([good, results(tmp_path / "b.jsonl", 1.0, bad=True)], None, tmp_path)
    assert [x.median_us for x in written.record.times] == [5.0]


def test_devices_do_not_mix_and_an_empty_journal_is_none(tmp_path):
    first = results(tmp_path / "a.jsonl", 5.0)
    other = results(tmp_path / "b.jsonl", 5.0, conditions=replace(CONDITIONS, num_sms=7))
    with pytest.raises(StoreError, match=r"b\.jsonl is of h200, .* times of different devices do not mix"):
        import_row_results([first, other], None, tmp_path)
    assert not (tmp_path / "h200.jsonl.gz").exists()
    for_other = RowRun(ROW_RESULTS_VERSION, "xavier", CONDITIONS)
    with open_row_results(tmp_path / "d.jsonl") as found:
        found.add(for_other)
    with pytest.raises(TargetError, match="was measured for the target 'xavier'; there are: a100, b200, "):
        import_row_results([tmp_path / "d.jsonl"], None, tmp_path)
    (tmp_path / "c.jsonl").touch()
    with pytest.raises(StoreError, match=r"c\.jsonl holds no run"):
        import_row_results([tmp_path / "c.jsonl"], None, tmp_path)
