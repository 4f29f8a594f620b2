"""Promises of weights: which tensors they are of, when they end, and that no later tensor inherits one."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.runtime.torch_reference import PROMISED, random_tensor


@pytest.fixture
def promises(every_package, calls):
    return every_package._torch_promises


def weight(*shape):
    return torch.nn.Parameter(random_tensor(*shape), requires_grad=False)


OTHERS = {
    "transposed": lambda w: w.t(),
    "in other bits": lambda w: w.view(torch.float16),
    "another": lambda w: w.clone(),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_promise_is_of_a_weight_and_not_of_what_lies_where_it_does(promises, case):
    own = weight(32, 32)
    promises.promise(own)
    assert promises.promised(own).tensor is own
    assert promises.promised(own.detach()).is_kept
    other = OTHERS[case](own.detach())
    assert promises.promised(other) is other


ENDS = {
    "a write": lambda w: w.add_(1),
    "other memory": lambda w: setattr(w, "data", w.data.clone()),
    "another type": lambda w: setattr(w, "data", w.data.half()),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_torch_counts_ends_a_promise(promises, case):
    own = weight(32, 48)
    place = own.data
    promises.promise(own)
    ENDS[case](own)
    assert promises.promised(own) is own
    assert promises.promised(place) is place


def test_the_end_of_a_weight_ends_its_promise_and_no_other(promises):
    first = weight(16, 32)
    place = first.data
    promises.promise(first)
    second = torch.nn.Parameter(place, requires_grad=False)
    promises.promise(second)
    del first
    gc.collect()
    assert promises.promised(second) is not second
    count = len(promises._KNOWN)
    del second
    gc.collect()
    assert len(promises._KNOWN) == count - 1
    assert promises.promised(place) is place


def test_a_promise_is_taken_back(promises):
    own = weight(16, 32)
    promises.promise(own)
    promises.release(weight(16, 32))
    assert promises.promised(own) is not own
    promises.release(own)
    assert promises.promised(own) is own


@torch.no_grad()
@pytest.mark.parametrize("is_compiled", [False, True])
def test_products_of_a_model_get_the_promise_that_was_made(module, calls, is_compiled):
    model, x = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 32)).bfloat16(), random_tensor(5, 32)
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
    for constant in (False, True):
        module.patch(model, constant=constant)
        PROMISED.clear()
        run(x)
        assert [constant] * 2 == PROMISED
    model[0].weight.neg_()
    PROMISED.clear()
    run(x)
    assert PROMISED == [False, True]
