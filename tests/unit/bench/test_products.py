import pytest

from aot.bench.products import drawn, products_of
from aot.core.errors import ShapeFileError
from aot.core.operation import Operation
from aot.core.shape_set import load_shape_set


def test_a_draw_is_of_the_whole_set_and_the_same_each_time():
    sizes = [(n, 8, 1) for n in range(100)]
    assert sorted(drawn(sizes, None, 3)) == sizes
    first = drawn(sizes, 10, 3)
    assert first == drawn(sizes, 10, 3) == drawn(sizes, None, 3)[:10]
    assert max(first)[0] > 50


def test_products_are_drawn_of_each_operation():
    shapes = load_shape_set("atlas_heldout")
    found = products_of(shapes, (Operation.BF16_KK, Operation.FP16_KK), 40, 0)
    assert [x.operation for x in found] == [Operation.BF16_KK] * 40 + [Operation.FP16_KK] * 40
    assert [(x.m, x.n, x.k) for x in found[:40]] == [(x.m, x.n, x.k) for x in found[40:]]
    assert set(found[:40]) < set(shapes.problems(Operation.BF16_KK))
    assert products_of(shapes, (), None, 1) != products_of(shapes, (), None, 0)
    assert len(products_of(shapes, (), None, 0)) == len(shapes.sizes)


def test_a_set_of_batches_names_its_operations_and_groups():
    found = products_of(load_shape_set("batches_heldout"), (), 3, 0)
    assert {x.operation for x in found} == {Operation.BF16_KK_BATCHED, Operation.BF16_KN_BATCHED}
    assert max(x.num_groups for x in found) > 1


def test_operations_that_a_set_has_no_problem_of_are_refused():
    with pytest.raises(ShapeFileError, match="the shape set has no problem of tf32_kk"):
        products_of(load_shape_set("batches_heldout"), (Operation.TF32_KK,), None, 0)
