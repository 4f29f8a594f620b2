from dataclasses import replace
from pathlib import Path

import pytest

from aot.compile.artifact import Artifact
from aot.core.candidate import KernelKey, changed
from aot.core.epilogue import Epilogue
from aot.core.errors import CandidateError, SelectionError, StoreError
from aot.core.measurement import OK, Measurement, Outcome, Record, Status
from aot.core.operation import Operation
from aot.core.shape_set import parse_shape_set
from aot.core.target import load_target
from aot.core.types import BF16 as BF16_TYPES
from aot.core.types import FP32
from aot.families import families
from aot.select import pipeline
from aot.select.coverage import Coverage, only_fallback
from aot.select.pipeline import (
    committed_selection,
    committed_selections,
    compare_selections,
    compiled_bytes,
    default_record,
    records_for,
    select_measured,
    select_predicted,
    timed_operations,
    times_behind,
)
from aot.select.portfolio.objective import Objective, SelectionLimits
from aot.select.score.diff import Difference
from aot.select.score.gate import check_heldout
from aot.select.selection import write_selection
from aot.select.table import sections as table
from aot.select.times import model as time_model
from aot.select.times.record import recorded_kernels, write_record
from aot.space.calibration import Calibration
from aot.space.cost import DEFAULTS
from aot.space.enumeration import has_tuned_kernels
from tests.golden.manifest import kernel
from tests.unit.accepted import named
from tests.unit.twins import BF16, CONDITIONS, problem_of

H200, THOR = load_target("h200"), load_target("thor")
PLAIN = named("sm90_quack_128x128_c1x1_pingpong")
SMALL = named("sm90_quack_64x16_c1x1_pingpong_swap")
SHAPES = parse_shape_set(
    'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [1, 4096]\n'
    '[[model]]\nname = "x"\nweights = [{ name = "w", n = 4096, k = 4096 }]\n',
    "x",
)
HELDOUT = parse_shape_set(
    'version = 1\ndtypes = ["bfloat16"]\nlayouts = ["kk"]\nm = [64]\n'
    '[[model]]\nname = "x"\nweights = [{ name = "w", n = 4096, k = 4096 }]\n',
    "x",
)


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Look at few fine steps and learn little, so that a selection is quickly made."""
    for name, edges in (("FINE_M", (16, 256, 8192)), ("FINE_N", (512, 4096)), ("FINE_K", (512, 4096)), ("BROAD_N", ())):
        monkeypatch.setattr(table, name, edges)
    monkeypatch.setattr(time_model, "NUM_TREES", 5)


def measured(candidate, m, median_us, status=OK):
    problem = problem_of(m, 4096, 4096)
    low, high = 0.99 * median_us, 1.01 * median_us
    return Measurement(KernelKey(BF16, candidate), problem, median_us, low, high, 7, 1e-3, status)


RECORD = Record(
    "h200",
    (CONDITIONS,),
    (
        measured(PLAIN, 1, 20.0),
        measured(SMALL, 1, 10.0),
        measured(PLAIN, 64, 20.0),
        measured(SMALL, 64, 16.0),
        measured(PLAIN, 4096, 200.0),
        measured(SMALL, 4096, 0.0, Status(Outcome.FAILED, "wrong result")),
    ),
)


@pytest.fixture
def record_path(tmp_path):
    path = tmp_path / "records" / "mine.jsonl.gz"
    write_record(path, RECORD)
    return path


def select(path, objective=None, kernels="", heldout=HELDOUT, target=H200):
    return select_measured([path], target, objective or Objective(), kernels, heldout)


def rows_of(selection):
    """Give (m, kernel, time, provenance) of the ladder's rows at the m that were tuned."""
    (ladder,) = selection.table.sections[0].ladders
    found = zip(ladder.m_edges, ladder.rows, strict=True)
    return [(m, selection.kernels[x.kernel].candidate, x.time_us, x.provenance) for m, x in found if m in (1, 64, 4096)]


def test_selects_from_a_record(record_path):
    found = select(record_path)
    names = ["simt_64x64_c1x1_direct", PLAIN.name, SMALL.name]
    assert [key.candidate.name for key in found.kernels] == names
    assert (found.target, found.provenance, found.record, found.conditions) == (
        *("h200", "measured", "mine"),
        (CONDITIONS,),
    )
    (regret,) = found.regrets
    assert (regret.num_problems, regret.num_kernels, regret.mean, regret.worst) == (2, 2, 0, 0)
    assert rows_of(found) == [(1, SMALL, 10.0, "measured"), (4096, PLAIN, 200.0, "measured")]
    assert found == select(record_path)


@pytest.mark.slow
def test_records_that_are_named_together_are_read_as_one(record_path, tmp_path):
    halves = [tmp_path / "mine.jsonl.gz", tmp_path / "more.jsonl.gz"]
    for path, part in zip(halves, (RECORD.measurements[::2], RECORD.measurements[1::2]), strict=True):
        write_record(path, replace(RECORD, measurements=part))
    assert select_measured(halves, H200, Objective(), "", HELDOUT) == select(record_path)
    assert select(halves[0]) != select(record_path)
    with pytest.raises(StoreError, match="is a record of h200, not of thor"):
        select_measured(halves, load_target("thor"), Objective(), "", HELDOUT)


def test_what_is_held_out_is_scored_on_and_else_selected_by(record_path):
    (score,) = select(record_path).heldout
    assert (score.tier, score.num_problems, score.num_unmeasured) == (1, 1, 0)
    everything = select(record_path, heldout=None)
    assert (everything.heldout, everything.regrets[0].num_problems) == ((), 3)
    assert rows_of(everything)[1] == (64, SMALL, 16.0, "measured")


def test_what_the_space_refuses_is_not_selected_though_it_was_measured(record_path):
    refused = changed(PLAIN, cluster_m=2, cluster_n=2)
    fastest = tuple(measured(refused, m, 1.0) for m in (1, 4096))
    write_record(record_path, replace(RECORD, measurements=(*RECORD.measurements, *fastest)))
    assert {key.candidate for key in select(record_path).kernels[1:]} == {PLAIN, SMALL}


def test_patterns_and_limits_narrow_a_selection(record_path):
    assert [x.candidate for x in select(record_path, kernels="-*_swap").kernels[1:]] == [PLAIN]
    assert [x.candidate for x in select(record_path, Objective(SelectionLimits(1))).kernels[1:]] == [PLAIN]


def test_a_selection_from_nothing_is_an_error(record_path):
    with pytest.raises(SelectionError) as caught:
        select(record_path, kernels="sm100_*")
    assert str(caught.value) == "mine has no usable times; tune first"


def test_a_record_of_another_target_is_refused(record_path):
    with pytest.raises(StoreError) as caught:
        select(record_path, target=THOR)
    assert str(caught.value) == f"{record_path} is a record of h200, not of thor; give --target h200"


FEW = "*_128x128_c1x1_pingpong,*_64x16_c1x1_*"


@pytest.mark.slow
def test_a_predicted_selection_says_so():
    objective = Objective(SelectionLimits(2, 2), operations=Operation.BF16_KK.layouts)
    found = select_predicted(SHAPES, H200, objective, FEW)
    assert (found.provenance, found.record, found.conditions, found.heldout) == ("predicted", "cost-model-v1", (), ())
    assert [x.operation.tag for x in found.table.sections] == ["bf16_kk", "bf16_kn", "bf16_mk", "bf16_mn"]
    rows = [row for x in found.table.sections for ladder in x.ladders for row in ladder.rows]
    assert {row.provenance for row in rows} == {"predicted"}
    check_heldout(found, 0.0, 0.0)


@pytest.mark.slow
def test_groups_are_predicted_by_as_many_as_experts_are():
    """One group of a row is few tiles, for which narrow ones would be the fastest."""
    objective = Objective(SelectionLimits(1, 1), operations=(Operation.E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU,))
    found = select_predicted(SHAPES, H200, objective, "*_64x32_c1x1_pingpong,*_64x128_c1x1_pingpong")
    assert [x.num_groups for x in found.table.sections] == [8, 64]
    assert [x.candidate.gemm.tile_n for x in found.kernels[1:]] == [128]
    batches = replace(objective, operations=(Operation.BF16_KK_BATCHED,))
    assert [x.num_groups for x in select_predicted(SHAPES, H200, batches, FEW).table.sections] == [8, 64]


def of(text):
    head = 'version = 1\ndtypes = ["bfloat16"]\nm = [1, 16]\n'
    return parse_shape_set(f'{head}[[model]]\nname = "x"\n{text}\n', "x")


@pytest.mark.slow
@pytest.mark.parametrize(("layouts", "tags"), [(["kk"], ["bf16_kk"]), (["kn", "mn"], ["bf16_kn", "bf16_mn"])])
def test_only_the_layouts_that_are_asked_for_are_predicted(layouts, tags):
    shapes = of(f"layouts = {layouts}\nweights = [{{ name = 'w', n = 4096, k = 4096 }}]")
    found = select_predicted(shapes, H200, Objective(SelectionLimits(2, 4), shapes=shapes), FEW)
    assert [x.operation.tag for x in found.table.sections] == tags
    assert len(found.kernels) <= 1 + 4 * len(tags)
    assert {key.operation.tag for key in found.kernels[1:]} == set(tags)


@pytest.mark.slow
def test_an_operation_that_patterns_leave_no_kernels_of_is_an_error():
    shapes = of("layouts = ['kk', 'kn']\nweights = [{ name = 'w', n = 4096, k = 4096 }]")
    with pytest.raises(CandidateError, match="no candidate of bf16_kn on h200 is left"):
        select_predicted(shapes, H200, Objective(), "sm90_prefetch_b_64x*")


@pytest.mark.slow
def test_a_predicted_selection_counts_only_what_a_tuned_kernel_takes():
    shapes = of("layouts = ['kk']\nweights = [{ name = 'w', n = 4096, k = 4096 }, { name = 'h', n = 7, k = 4096 }]")
    found = select_predicted(shapes, H200, Objective(SelectionLimits(2, 4), shapes=shapes), FEW)
    ((regret,), (section,)) = found.regrets, found.table.sections
    assert regret.num_problems == 2
    assert [(x.n, x.k, x.m_edges[-1]) for x in section.ladders] == [(4096, 4096, 8192)]
    assert found.coverage == Coverage(0, 2, "bf16_kk m1 n4096 k4096", {"n 7 is not a multiple of 8": 2}, {})


def test_a_selection_for_nothing_that_a_tuned_kernel_takes_is_an_error():
    shapes = of("layouts = ['kk']\nweights = [{ name = 'h', n = 63, k = 65 }]")
    with pytest.raises(SelectionError) as caught:
        select_predicted(shapes, H200, Objective(), "")
    assert str(caught.value) == (
        "no tuned kernel takes any of the 2 problems of the shape set: n 63 and k 65 are not a multiple of 8; "
        "every wheel computes them with its general kernel, so that there is nothing to select; "
        "pad the extents, or add problems"
    )


def kernels_of_grids(selection):
    """List the names of the kernels of each column of each section."""
    grids = [section.grid for section in selection.table.sections]
    return [[selection.kernels[x].name for x in column.kernels] for grid in grids for column in grid.columns]


def calibration_of(constants):
    return Calibration("h200", "a test", constants)


@pytest.mark.walk
@pytest.mark.slow
def test_a_calibration_predicts_the_grid_as_well_as_the_ladders():
    objective, few = Objective(SelectionLimits(2, 2)), "*_128x128_c1x1_pingpong,*_64x16_c1x1_*"
    slower = replace(DEFAULTS, ramp_us=DEFAULTS.ramp_us + 50.0)
    found, other = (select_predicted(SHAPES, H200, objective, few, x) for x in (None, calibration_of(slower)))
    assert (found.record, other.record) == ("cost-model-v1", "cost-model-v1, constants: a test")
    for before, after in zip(found.table.sections, other.table.sections, strict=True):
        assert after.ladders[0].rows[0].time_us > before.ladders[0].rows[0].time_us + 40
    # A grid has no times: a launch costs all kernels alike, but what small tiles lose changes which are chosen.
    flat, few = replace(DEFAULTS, mma_half_edge=0.001), "*_128x128_c1x1_pingpong,*_64x64_c1x1_*"
    found, other = (select_predicted(SHAPES, H200, objective, few, x) for x in (None, calibration_of(flat)))
    assert found.kernels == other.kernels
    assert kernels_of_grids(found) != kernels_of_grids(other)


def test_a_target_has_a_committed_record_or_none(tmp_path):
    records = Path(pipeline.__file__).parents[1] / "records"
    assert default_record(H200, records) == records / "h200.jsonl.gz"
    assert default_record(H200, tmp_path) is None


def test_a_target_has_a_committed_selection_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "COMMITTED", tmp_path)
    assert committed_selection(H200) is None
    (tmp_path / "h200.json.gz").write_bytes(b"")
    assert (committed_selection(H200), committed_selection(THOR)) == (tmp_path / "h200.json.gz", None)
    for name in ("h200.operands.json.gz", "h200.groups.json.gz", "h200_6sm.json.gz", "h20.json.gz"):
        (tmp_path / name).write_bytes(b"")
    names = ["h200.json.gz", "h200.groups.json.gz", "h200.operands.json.gz"]
    assert [x.name for x in committed_selections(H200)] == names
    assert committed_selections(THOR) == []


@pytest.mark.slow
def test_selections_are_compared_by_records_or_the_committed_one(record_path, tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    before = select(record_path, heldout=None)
    write_selection(old, before)
    write_selection(new, select(record_path, Objective(SelectionLimits(1)), heldout=None))
    nothing = compare_selections(old, old, [], tmp_path)
    assert (nothing.changes, nothing.added, nothing.dropped) == ((), (), ())
    found = compare_selections(old, new, [record_path], tmp_path)
    assert (found.added, found.dropped) == ((), (f"bf16_kk_{SMALL.name}",))
    costs = {x.corner: (x.cost, x.is_measured) for x in found.changes}
    assert costs[problem_of(1, 4096, 4096)] == (pytest.approx(1.0), True)
    assert costs[problem_of(64, 4096, 4096)] == (pytest.approx(0.25), True)
    # Twice the same record is the same mean; none at hand is no cost.
    assert compare_selections(old, new, [record_path, record_path], tmp_path).changes == found.changes
    assert {x.cost for x in compare_selections(old, new, [], tmp_path).changes} == {None}
    write_record(tmp_path / "h200.jsonl.gz", RECORD)
    assert compare_selections(old, new, [], tmp_path) == found
    assert isinstance(found, Difference)


def test_selections_of_two_targets_are_not_compared(record_path, tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    selection = select(record_path)
    write_selection(old, selection)
    write_selection(new, replace(selection, target="thor"))
    with pytest.raises(SelectionError) as caught:
        compare_selections(old, new, [], tmp_path)
    assert str(caught.value) == f"{old} is for h200, {new} for thor; compare two of one target"


def test_what_was_compiled_here_is_weighed_compressed(tmp_path, monkeypatch):
    path = tmp_path / "x.o"
    path.write_bytes(b"a" * 10_000)
    keys = [KernelKey(BF16, x) for x in (PLAIN, SMALL)]
    artifact = Artifact(kernel(BF16, PLAIN), path)
    monkeypatch.setattr(pipeline.ArtifactStore, "get", lambda _self, key, _target: artifact if key == keys[0] else None)
    found = compiled_bytes(keys, H200, tmp_path)
    assert list(found) == [keys[0]]
    assert 10 < found[keys[0]] < 100


def test_a_selection_with_curves_weighs_the_records_kernels(record_path, monkeypatch):
    asked = []
    monkeypatch.setattr(pipeline, "compiled_bytes", lambda keys, target: asked.append((set(keys), target)) or {})
    select(record_path, Objective(with_curves=True), kernels="-*_swap")
    assert asked == [({KernelKey(BF16, PLAIN)}, H200)]
    select(record_path)
    assert len(asked) == 1


def test_times_behind_a_selection_are_those_it_rests_on(record_path, tmp_path):
    selection = select(record_path)
    folder = record_path.parent
    times = {BF16: {problem_of(1, 4096, 4096): {PLAIN: 20.0, SMALL: 10.0}}}
    found = times_behind(selection, None, folder)
    assert found[BF16][problem_of(1, 4096, 4096)] == times[BF16][problem_of(1, 4096, 4096)]
    assert times_behind(selection, None, folder, {BF16}) == {BF16: found[BF16]}
    assert times_behind(selection, None, folder, {Operation.FP16_KK}) == {}
    assert times_behind(selection, None, tmp_path) == {}
    assert times_behind(replace(selection, provenance="predicted"), None, folder) == {}
    other = replace(selection, conditions=(replace(CONDITIONS, date="2027-01-01"),))
    assert times_behind(other, None, folder) == {}
    assert times_behind(other, record_path, tmp_path) == found


@pytest.fixture
def built(monkeypatch):
    """Let quack's family and the fallback build every operation, whatever they do by themselves."""
    for name in ("sm90_quack", "simt"):
        monkeypatch.setattr(families()[name], "types", tuple(dict.fromkeys(x.types for x in Operation)))
        monkeypatch.setattr(families()[name], "epilogues", tuple(Epilogue))
    has_tuned_kernels.cache_clear()
    yield
    has_tuned_kernels.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_operations_are_imputed_where_an_equivalent_was_measured_and_else_predicted(record_path):
    asked = (BF16, Operation.BF16_KK_SILU, Operation.E4M3_BF16_KK)
    found = select(record_path, Objective(SelectionLimits(2), shapes=SHAPES, operations=asked), FEW)
    assert [x.operation for x in found.table.sections] == list(asked)
    assert [x.method.partition(", ")[2] for x in found.regrets] == ["", "by imputed times", "by the cost model"]
    rows = {x.operation: {row.provenance for y in x.ladders for row in y.rows} for x in found.table.sections}
    assert "measured" in rows[BF16]
    assert rows[Operation.BF16_KK_SILU] == rows[Operation.E4M3_BF16_KK] == {"predicted"}


@pytest.mark.slow
def test_what_no_tuned_kernel_computes_is_left_to_the_fallback(record_path, monkeypatch):
    monkeypatch.setattr(families()["simt"], "types", (FP32, BF16_TYPES))
    has_tuned_kernels.cache_clear()
    asked = (BF16, Operation.FP32_KK)
    found = select(record_path, Objective(SelectionLimits(2), shapes=SHAPES, operations=asked), FEW)
    predicted = select_predicted(SHAPES, H200, Objective(SelectionLimits(2), shapes=SHAPES, operations=asked), FEW)
    for selection in (found, predicted):
        assert [only_fallback(x) for x in selection.table.sections] == [False, True]
    has_tuned_kernels.cache_clear()


@pytest.mark.usefixtures("built")
def test_an_operation_is_chosen_by_the_record_that_has_enough_of_its_own_times(tmp_path, monkeypatch):
    first, other, silu = tmp_path / "h200.jsonl.gz", tmp_path / "h200_operands.jsonl.gz", Operation.BF16_KK_SILU
    write_record(first, RECORD)
    own = [
        replace(x, kernel=replace(x.kernel, operation=silu), problem=replace(x.problem, operation=silu))
        for x in RECORD.measurements
        if x.ok
    ]
    write_record(other, replace(RECORD, measurements=tuple(own)))
    problems = len({x.problem for x in own})
    for enough, path in ((problems, other), (problems + 1, first)):
        monkeypatch.setattr(pipeline, "MIN_MEASURED", enough)
        assert records_for([silu], H200, tmp_path) == {path: [silu]}
        assert records_for([BF16], H200, tmp_path) == {first: [BF16]}


@pytest.mark.usefixtures("built")
def test_an_operation_is_chosen_by_the_first_record_with_kernels_that_can_be_built_for_it(tmp_path, monkeypatch):
    own, other = tmp_path / "h200.jsonl.gz", tmp_path / "h200_quack.jsonl.gz"
    write_record(other, RECORD)
    lean = tuple(measured(named("sm90_prefetch_b_128x128_c1x1_pingpong"), m, 9.0) for m in (1, 64))
    write_record(own, replace(RECORD, measurements=lean))
    monkeypatch.setattr(families()["sm90_prefetch_b"], "epilogues", (Epilogue.NONE,))
    asked = [BF16, Operation.BF16_KK_SILU, Operation.E4M3_BF16_KK]
    assert records_for(asked, H200, tmp_path) == {own: [BF16], other: [asked[1]], None: [asked[2]]}
    assert records_for(asked, load_target("thor"), tmp_path) == {None: asked}
    assert timed_operations(H200, tmp_path) == {BF16}
    assert timed_operations(load_target("thor"), tmp_path) == frozenset()
    assert {key.candidate for key in recorded_kernels(other)} == {PLAIN, SMALL}
    (tmp_path / "bad.jsonl.gz").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"cannot read the record .*bad\.jsonl\.gz"):
        recorded_kernels(tmp_path / "bad.jsonl.gz")
