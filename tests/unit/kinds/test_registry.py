"""What the kinds state of themselves, and what is found in all of them."""

from dataclasses import fields

import pytest

from aot.core.candidate import Candidate
from aot.core.knobs import PlainKnobs
from aot.core.measurement import LibraryTime, Measurement, Record
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.strict_json import DecodeError
from aot.kinds.gemm.kind import GEMM
from aot.kinds.registry import KINDS, all_operations, kind_of, read_operation
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.kind import ROWS
from aot.kinds.rows.problem import RowProblem
from aot.kinds.trials import TRIALS
from tests.unit.row_twins import row_kernel_of
from tests.unit.twins import CONDITIONS, kernel_of, problem_of

BATCH = Problem(Operation.BF16_KK_BATCHED, 1, 64, 32, 7)
NORM = RowProblem(row_operation("bf16_rms_norm"), 16, 4096)

CANDIDATES = {"gemm": kernel_of().key, "rows": row_kernel_of().key}


def test_each_kind_is_tried_and_no_two_operations_have_one_tag():
    assert list(KINDS) == list(TRIALS) == ["gemm", "rows"]
    assert len(all_operations()) == sum(len(kind.operations) for kind in KINDS.values())
    for kind in KINDS.values():
        assert all(kind_of(operation) is kind and operation.kind == kind.name for operation in kind.operations)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_axes_and_features_are_fields(kind):
    assert [x.name for x in fields(kind.problem_type)] == ["operation", *(axis.name for axis in kind.axes)]
    values = kind.values(CANDIDATES[kind.name].candidate)
    assert next(iter(values)) == "family"
    assert set(values) >= set(kind.features.fields)
    operation = kind.operations[0]
    assert all(x in kind.operations and x is not operation for x in kind.imputed_from(operation))


def test_knobs_that_a_kind_does_not_know_are_compared_as_far_as_there_is_room():
    features = GEMM.features

    def own(**knobs):
        return GEMM.values(Candidate("own", PlainKnobs(tuple(knobs.items()))))

    values = own(columns=7, is_eager=True, order="rows", warps=3)
    assert values == {"family": "own", "columns": 7, "is_eager": True, "order": "rows", "warps": 3}
    assert features.numbers(values) == [3.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    assert features.words(values) == [("family", "own"), ("is_eager", True), ("order", "rows"), None, None, None]
    many = own(**{f"n_{x}": 1 for x in "abcdefgh"}, **{f"w_{x}": x for x in "abcdefg"})
    assert features.numbers(many) == [1.0] * features.num_numbers
    assert features.words(many) == [("family", "own"), *((f"w_{x}", x) for x in "abcde")]


@pytest.mark.parametrize("problem", [BATCH, NORM], ids=lambda x: x.name)
def test_a_problem_is_made_of_its_operation_and_sizes(problem):
    kind = kind_of(problem.operation)
    sizes = kind.sizes(problem)
    assert kind.problem(read_operation(problem.operation.tag), sizes) == problem
    stated = {name: sizes[name] for name in kind.stated_axes}
    usual = kind.problem(problem.operation, stated)
    assert kind.sizes(usual) == {**stated, **{axis.name: axis.usual for axis in kind.axes if axis.usual is not None}}
    with pytest.raises(DecodeError, match="expected a whole number from 1 to"):
        kind.problem(problem.operation, {**sizes, kind.stated_axes[0]: 0})
    with pytest.raises(DecodeError, match="there is no such key"):
        kind.problem(problem.operation, {**sizes, "heads": 1})
    with pytest.raises(DecodeError, match="expected an object of sizes by axis, got 7"):
        kind.problem(problem.operation, 7)


def test_a_tag_that_is_none_is_refused():
    with pytest.raises(DecodeError, match="expected the tag of an operation, such as bf16_kk, got 'bf17_kk'"):
        read_operation("bf17_kk")


def test_a_record_has_a_part_of_each_kind():
    product, rows, problem = kernel_of(), row_kernel_of(), problem_of(1, 64, 64)
    items = [Measurement(x.key, y, 2.0, 2.0, 2.0, 7, 0.0) for x, y in ((product, problem), (rows, NORM))]
    record = Record("h200", (CONDITIONS,), tuple(items), (LibraryTime("torch", problem, 3.0, 3.0, 3.0, 7),))
    assert GEMM.part(record) == Record("h200", (CONDITIONS,), (items[0],), record.library_times)
    assert ROWS.part(record) == Record("h200", (CONDITIONS,), (items[1],))


def test_work_is_counted_by_what_is_moved_and_computed():
    assert (NORM.num_bytes, NORM.flops) == (2 * 16 * 4096 * 2 + 2 * 4096, 4 * 16 * 4096)
    quantize = RowProblem(row_operation("bf16_e4m3_quantize"), 2, 8)
    assert (quantize.num_bytes, quantize.flops) == (16 * 2 + 16 + 8, 2 * 16)
    assert (BATCH.num_bytes, BATCH.flops) == (7 * 2 * (32 + 64 * 32 + 64), 7 * 2 * 64 * 32)
