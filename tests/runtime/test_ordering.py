"""What the binding does around a launch: other threads of Python run, and streams of other frameworks wait."""

from __future__ import annotations

import threading
import time

import pytest

from tests.runtime.exchange import Framework
from tests.runtime.host import SYNCHRONIZE
from tests.runtime.tensors import FakeTensor, install_cupy, install_old_torch

LAUNCH_S = 0.2
TRIES = 5
"""What waits for others waits each time; a busy machine may delay some."""
PLAIN = (65, 33, 65)  # m, n, k that only the fallback takes, which needs no workspace


def operands(*kinds):
    m, n, k = PLAIN
    return [kind(shape) for kind, shape in zip(kinds, ((m, k), (n, k), (m, n)), strict=True)]


def orders(library):
    return [(x.first or 0, x.second or 0, x.num_launches) for x in library.orders()]


class Progress(threading.Thread):
    """A thread that does what needs the GIL, and notes when."""

    def __init__(self):
        super().__init__(daemon=True)
        self.times, self.stopped = [], False

    def run(self):
        while not self.stopped:
            self.times.append(time.monotonic())
            time.sleep(0.001)


@pytest.fixture
def progress():
    thread = Progress()
    thread.start()
    while not thread.times:
        time.sleep(0.001)
    yield thread
    thread.stopped = True
    thread.join()


def ran_within(thread, began, ended):
    """Say whether a thread ran in the middle of a span: what waits for the whole of it runs at its ends only."""
    quarter = (ended - began) / 4
    return any(began + quarter < x < ended - quarter for x in list(thread.times))


@pytest.mark.parametrize("kinds", ["framework", "capsules", "mixed"])
def test_other_threads_run_while_a_launch_blocks(package, library, progress, kinds):
    framework = Framework()
    tensor = FakeTensor if kinds == "capsules" else framework.Tensor
    x, weight, out = operands(tensor, FakeTensor if kinds == "mixed" else tensor, tensor)
    package.linear(x, weight, out=out)
    library.c.recorder_set_launch_us(int(LAUNCH_S * 1e6))
    for _ in range(TRIES):
        began = time.monotonic()
        package.linear(x, weight, out=out)
        ended = time.monotonic()
        assert ended - began >= LAUNCH_S
        if ran_within(progress, began, ended):
            return
    pytest.fail("no other thread runs while a launch blocks")


def test_launches_of_several_threads_block_together(package, library):
    """One after the other they would take eight times as long."""
    framework = Framework()
    tensors = operands(*[framework.Tensor] * 3)
    package.linear(*tensors[:2], out=tensors[2])
    library.c.recorder_set_launch_us(int(LAUNCH_S * 1e6))
    for tried in range(1, 1 + TRIES):
        threads = [threading.Thread(target=lambda: package.linear(*tensors[:2], out=tensors[2])) for _ in range(8)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        assert len(library.fake_launches()) == 1 + 8 * tried
        assert seconds >= LAUNCH_S
        if seconds < 4 * LAUNCH_S:
            return
    pytest.fail(f"eight launches of {LAUNCH_S} s take {seconds} s")


def test_a_workspace_is_allocated_with_the_gil_in_a_launch_without_it(package, library, manifest, progress):
    """The framework's allocator is Python here: it would crash without the GIL."""
    ladders = manifest.tables[0].table.sections[0].ladders
    shapes = ((m, x.n, x.k) for x in ladders for m in x.m_edges)
    m, n, k = next(shape for shape in shapes if package.plan(*shape).workspace_bytes > 0)
    framework = Framework()
    library.c.recorder_set_launch_us(20000)
    for _ in range(5):
        package.linear(framework.Tensor((m, k)), framework.Tensor((n, k)))
    assert [x.workspace for x in library.fake_launches()] == [
        tensor.address for _, tensor in framework.allocated if tensor.shape != (m, n)
    ]


A_STREAM, B_STREAM, C_STREAM = 0xA0, 0xB0, 0xC0


def test_each_framework_waits_and_is_waited_for(package, library):
    a, b, c = (Framework(stream=x) for x in (A_STREAM, B_STREAM, C_STREAM))
    x, weight, out = operands(a.Tensor, b.Tensor, c.Tensor)
    assert package.linear(x, weight, out=out) is out
    assert orders(library) == [
        (B_STREAM, A_STREAM, 0),
        (C_STREAM, A_STREAM, 0),
        (A_STREAM, B_STREAM, 1),
        (A_STREAM, C_STREAM, 1),
    ]
    assert [x.stream for x in library.fake_launches()] == [A_STREAM]


@pytest.mark.parametrize("place", [1, 2])
def test_an_operand_of_another_framework_is_ordered(package, library, place):
    a, b = Framework(stream=A_STREAM), Framework(stream=B_STREAM)
    kinds = [a.Tensor] * 3
    kinds[place] = b.Tensor
    x, weight, out = operands(*kinds)
    package.linear(x, weight, out=out)
    assert orders(library) == [(B_STREAM, A_STREAM, 0), (A_STREAM, B_STREAM, 1)]


def test_an_allocated_out_needs_no_order(package, library):
    a, b = Framework(stream=A_STREAM), Framework(stream=B_STREAM)
    x, weight, _ = operands(a.Tensor, b.Tensor, a.Tensor)
    package.linear(x, weight)
    assert orders(library) == [(B_STREAM, A_STREAM, 0), (A_STREAM, B_STREAM, 1)]


def test_a_promised_weight_of_another_framework_is_ordered_too(package, library):
    a, b = Framework(stream=A_STREAM), Framework(stream=B_STREAM)
    x, weight, out = operands(a.Tensor, b.Tensor, a.Tensor)
    promised = package.constant(weight)
    assert (library.count(SYNCHRONIZE), orders(library)) == (1, [])
    package.linear(x, promised, out=out)
    assert orders(library) == [(B_STREAM, A_STREAM, 0), (A_STREAM, B_STREAM, 1)]


@pytest.mark.parametrize("stream", [0, A_STREAM])
def test_frameworks_of_one_stream_are_not_ordered(package, library, stream):
    a, b, c = (Framework(stream=stream) for _ in range(3))
    x, weight, out = operands(a.Tensor, b.Tensor, c.Tensor)
    package.linear(x, weight, out=out)
    package.linear(*operands(*[a.Tensor] * 3)[:2], out=out)
    assert (orders(library), len(library.fake_launches())) == ([], 2)


def test_a_launch_that_fails_leaves_no_order_behind_it(package, library):
    a, b = Framework(stream=A_STREAM), Framework(stream=B_STREAM)
    x, weight, _ = operands(a.Tensor, b.Tensor, a.Tensor)
    with pytest.raises(package.ShapeError):
        package.linear(x, weight, out=b.Tensor((1, 1)))
    assert [x[2] for x in orders(library)] == [0, 0]
    assert library.fake_launches() == []


NOT_ORDERED = [-1]
"""What a framework whose stream is known is told: it need not order it."""


def test_cupy_beside_a_framework_waits_and_is_waited_for(package, library, monkeypatch):
    cupy, framework = install_cupy(monkeypatch, B_STREAM), Framework(stream=A_STREAM)
    x, weight, out = operands(framework.Tensor, cupy.ndarray, cupy.ndarray)
    package.linear(x, weight, out=out)
    assert (weight.streams, out.streams) == (NOT_ORDERED, NOT_ORDERED)
    assert orders(library) == [(B_STREAM, A_STREAM, 0)] * 2 + [(A_STREAM, B_STREAM, 1)] * 2


@pytest.mark.parametrize(("stream", "told"), [(0, 1), (A_STREAM, A_STREAM)])
def test_a_framework_of_unknown_streams_is_told_the_launchs(package, library, stream, told):
    """The legacy stream by the number that DLPack gives it."""
    framework = Framework(stream=stream)
    x, weight, out = operands(framework.Tensor, FakeTensor, framework.Tensor)
    package.linear(x, weight, out=out)
    assert weight.streams == [told]
    assert orders(library) == ([(0, A_STREAM, 0)] if stream else [])


@pytest.mark.parametrize("captured", [A_STREAM, B_STREAM])
@pytest.mark.parametrize("kinds", ["api", "cupy", "cupy first", "other"])
def test_a_stream_that_is_captured_is_not_ordered_with_one_that_is_not(package, library, monkeypatch, kinds, captured):
    """An attempt would spoil the capture, whose end then fails in place of the call: so nobody is asked."""
    a, b, cupy = Framework(stream=A_STREAM), Framework(stream=B_STREAM), install_cupy(monkeypatch, B_STREAM)
    left, right = {
        "api": (a.Tensor, b.Tensor),
        "cupy": (a.Tensor, cupy.ndarray),
        "cupy first": (cupy.ndarray, install_old_torch(monkeypatch, A_STREAM).Tensor),
        "other": (a.Tensor, FakeTensor),
    }[kinds]
    x, weight, out = operands(left, right, left)
    library.c.recorder_capture(captured)
    if kinds == "other" and captured == B_STREAM:  # which is no stream of this call
        package.linear(x, weight, out=out)
        assert len(library.fake_launches()) == 1
        return
    with pytest.raises(package.AotGemmError, match="while one of them is captured into a CUDA graph"):
        package.linear(x, weight, out=out)
    assert (weight.streams, orders(library), library.fake_launches()) == ([], [], [])


def test_what_works_on_the_stream_that_is_captured_is_captured(package, library, monkeypatch):
    cupy, framework = install_cupy(monkeypatch, A_STREAM), Framework(stream=A_STREAM)
    library.c.recorder_capture(A_STREAM)
    x, weight, out = operands(framework.Tensor, cupy.ndarray, framework.Tensor)
    package.linear(x, weight, out=out)
    assert (orders(library), len(library.fake_launches())) == ([], 1)


def test_an_older_torch_hears_that_out_was_written(package, library, fresh_binding, monkeypatch):
    torch = install_old_torch(monkeypatch, A_STREAM)
    x, weight, out = operands(*[torch.Tensor] * 3)
    package.linear(x, weight, out=out)
    assert torch.written == [out]
    package.linear(x, weight)
    assert torch.written == [out]


def test_an_out_of_an_older_torch_beside_another_framework_was_written(package, library, fresh_binding, monkeypatch):
    torch, framework = install_old_torch(monkeypatch, B_STREAM), Framework(stream=A_STREAM)
    x, weight, out = operands(framework.Tensor, framework.Tensor, torch.Tensor)
    package.linear(x, weight, out=out)
    assert torch.written == [out]
    assert (out.streams, orders(library)) == (NOT_ORDERED, [(B_STREAM, A_STREAM, 0), (A_STREAM, B_STREAM, 1)])


class WithoutShape(Framework):
    """A framework whose tensors of three rows have dimensions and no extents."""

    def _view(self, tensor, out):
        status = super()._view(tensor, out)
        if tensor.shape[0] == 3:
            out.contents.shape = None
        return status


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_tensor_without_extents_is_refused(package, library, place):
    framework = WithoutShape()
    tensors = operands(*[framework.Tensor] * 3)
    tensors[place] = framework.Tensor((3, 3))
    with pytest.raises(package.ShapeError, match="has 2 dimensions; expected 0 to 64, with extents"):
        package.linear(*tensors[:2], out=tensors[2])
    assert library.fake_launches() == []
