"""The device's check of batches and groups, by stand-ins on the CPU: what is right passes, and each fault is found."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from tests.compiling import some
from tests.device.group_cases import TAILS, with_tail
from tests.device.groups import check, draws

pytestmark = pytest.mark.slow

COUNT = 5
"""Of each operation: enough that the worst comes near the bound. The GPU runs 300 of the same draws."""


class UnsupportedError(Exception):
    pass


def factors(values, scale, rows_of_block):
    if scale is None:
        return values.double()
    if scale.ndim < values.ndim:
        scale = scale[..., None]
    if scale.shape[-1] > 1 or scale.shape[-2] < values.shape[-2]:
        scale = scale.repeat_interleave(128, -1)[..., : values.shape[-1]]
        scale = scale.repeat_interleave(rows_of_block, -2)[..., : values.shape[-2], :]
    return values.double() * scale.double()


def read_past_k(x):
    """Return what is lost where whole pieces of 16 bytes are read: NaN for each row that has it behind its k."""
    behind = -x.shape[1] % (16 // x.element_size())
    if behind == 0 or x.stride(0) < x.shape[1] + behind:
        return torch.zeros(len(x), 1)
    past = x.as_strided((len(x) - 1, behind), (x.stride(0), 1), x.shape[1]).double()
    return torch.cat([(past * 0).sum(1, keepdim=True), torch.zeros(1, 1)])


def grouped_linear(x, weight, offsets, *, out, index=None, gate=None, scale_x=None, scale_w=None, fault=None):
    """Stand for the wheel's function, in float64; `fault` is what to do wrong."""
    if isinstance(weight, list):
        weight = torch.stack(weight if fault != "places" else weight[::-1])
    if weight.ndim == 2:
        ends = [0, *offsets.clamp(max=x.shape[1]).tolist()]
        for i, (a, b) in enumerate(itertools.pairwise(ends)):
            out[i] = (x[:, a:b].double() @ weight[:, a:b].double().T).to(out.dtype)
        return
    values, weights = factors(x, scale_x, 1), factors(weight, scale_w, 128)
    if fault == "tail":
        values = values + read_past_k(x)
    if index is not None:
        is_row = (index >= 0) & (index < len(x))
        values = values[index.long().clamp(0, len(x) - 1)] * (1 if fault == "index" else is_row[:, None])
    ends = offsets.clamp(max=out.shape[0]).tolist()
    ends = ends if len(ends) > len(weight) else [0, *ends]
    if fault == "last":
        ends[-1] = out.shape[0]
    for a, b, w in zip(ends, ends[1:], weights, strict=False):
        y = values[a:b] @ w.T
        if gate:
            y = torch.nn.functional.silu(y[:, : out.shape[1]]) * y[:, out.shape[1] :]
        if fault == "precision":
            y = y * (1 + 2**-6)
        out[a:b] = y.to(out.dtype)


def package(**options):
    def linear(*operands, **keywords):
        return grouped_linear(*operands, **keywords, **options)

    def matmul(a, b, out):
        out.copy_(torch.matmul(a.double(), b.double()))

    return SimpleNamespace(grouped_linear=linear, matmul=matmul, UnsupportedError=UnsupportedError)


@pytest.mark.parametrize("name", some(draws()))
def test_a_right_result_is_within_its_bound(name):
    tally = check(package(), name, COUNT, device="cpu")
    assert (tally.count, tally.unsupported, tally.wrong) == (COUNT, 0, 0), tally.told
    assert 0.3 < tally.worst <= 1


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("rows", "last"),
        ("rows gathered", "index"),
        ("rows", "precision"),
        ("fp8 blocks", "last"),
        ("rows listed", "places"),
        ("rows gathered", "tail"),
        ("fp8 rows gathered gated", "tail"),
    ],
)
def test_a_fault_is_found(name, fault):
    assert check(package(fault=fault), name, 3 * COUNT, device="cpu").wrong > 0


@pytest.mark.parametrize("tail", [*TAILS[1], *TAILS[2]], ids=str)
def test_behind_k_lies_what_a_tail_says_and_behind_the_last_row_nothing(tail):
    values = torch.arange(6 * tail.k, dtype=torch.float32).reshape(2, 3, tail.k).to(torch.bfloat16)
    found = with_tail(values, tail)
    assert torch.equal(found, values)
    assert found.stride() == (3 * tail.stride, tail.stride, 1)
    memory = torch.tensor([], dtype=torch.bfloat16).set_(found.untyped_storage())
    assert len(memory) == 6 * tail.stride - (tail.stride - tail.k)
    behind = torch.tensor(tail.value, dtype=torch.bfloat16).expand(tail.stride - tail.k)
    assert torch.equal(memory[tail.k : tail.stride].nan_to_num(), behind.nan_to_num())


def test_what_the_wheel_has_no_kernels_for_is_counted():
    def refused(*_operands, **_keywords):
        raise UnsupportedError

    tally = check(SimpleNamespace(matmul=refused, UnsupportedError=UnsupportedError), "batches", 3, device="cpu")
    assert (tally.count, tally.unsupported, tally.wrong) == (0, 3, 0)
