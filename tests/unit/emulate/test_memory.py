from __future__ import annotations

import itertools

import numpy as np
import pytest

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.memory import ALIGNMENT, DISTANCE, GlobalMemory, SharedMemory, chunk_cells
from aot.emulate.order import Agent, Knowledge, Shadow


def agent():
    return Agent(Knowledge(0, 1), "line 1", "warp 0", is_async_proxy=False, warp=0, epoch=1)


def test_buffers_end_where_they_are_said_to_and_lie_far_apart():
    memory = GlobalMemory()
    starts = [memory.allocate(n, f"buffer {n}") for n in (1, 300, 7)]
    assert all(x % ALIGNMENT == 0 for x in starts)
    assert all(y - x >= DISTANCE for x, y in itertools.pairwise(starts))
    assert [x.end - x.start for x in memory.allocations()] == [1, 300, 7]
    assert list(memory.view(starts[2], 7)) == [0xFF] * 7
    memory.view(starts[1], 300)[:] = 4
    assert memory.view(starts[1] + 100, 2).tolist() == [4, 4]


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (300, 1), (299, 2), (-4, 8), (10**6, 4)])
def test_what_is_in_no_buffer_is_a_fault(offset, size):
    memory = GlobalMemory()
    start = memory.allocate(300, "rows")
    with pytest.raises(Fault) as error:
        memory.view(start + offset, size)
    assert error.value.kind is FaultKind.ADDRESS
    assert f"bytes {start + offset:#x} to {start + offset + size:#x} are in no allocation" in str(error.value)
    assert f"the nearest is rows, {start:#x} to {start + 300:#x}" in str(error.value)
    with pytest.raises(Fault):
        memory.read(agent(), np.array([start + offset], np.uint64), size)
    with pytest.raises(Fault):
        memory.note_read(agent(), start + offset, size)


def test_a_buffer_that_was_freed_is_gone():
    memory = GlobalMemory()
    first, second = memory.allocate(8, "a"), memory.allocate(8, "b")
    memory.free(first)
    assert [x.name for x in memory.allocations()] == ["b"]
    with pytest.raises(Fault):
        memory.view(first, 1)
    with pytest.raises(Fault, match="no allocation starts at"):
        memory.free(second + 1)
    assert memory.allocate(8, "c") > second


def test_rows_of_several_buffers_are_read_and_written_at_once():
    memory = GlobalMemory()
    a, b = memory.allocate(16, "a"), memory.allocate(16, "b")
    addresses = np.array([a + 4, b, b + 12, a], np.uint64)
    data = np.arange(16, dtype=np.uint8).reshape(4, 4)
    memory.write(agent(), addresses, data)
    assert np.array_equal(memory.read(agent(), addresses, 4), data)
    assert memory.view(a, 8).tolist() == [12, 13, 14, 15, 0, 1, 2, 3]
    memory.protect(b, writable=False)
    with pytest.raises(Fault) as error:
        memory.write(agent(), addresses, data)
    assert error.value.kind is FaultKind.READ_ONLY
    assert str(error.value).endswith("line 1: writes b")


def shared(num_bytes=100, rank=0):
    return SharedMemory(rank, num_bytes, Shadow(28, {}, lambda *_: None, has_proxies=True))


@pytest.mark.parametrize("rank", [0, 3])
def test_shared_addresses_begin_behind_what_the_system_keeps(rank):
    memory = shared(rank=rank)
    base = rank << 24 | 1024
    assert memory.offsets(np.array([base, base + 96]), 4, "").tolist() == [0, 96]
    for address, size in ((base - 1, 1), (base + 100, 1), (base + 97, 4), (base + 96, 8)):
        with pytest.raises(Fault) as error:
            memory.offsets(np.array([address]), size, "here")
        assert error.value.kind is FaultKind.ADDRESS
    for address, size in ((base + 2, 4), (base + 8, 16), (base + 4, 8)):
        with pytest.raises(Fault) as error:
            memory.offsets(np.array([address]), size, "here")
        assert error.value.kind is FaultKind.ALIGNMENT


def test_shared_memory_holds_what_is_written():
    memory = shared()
    memory.write(agent(), np.array([8, 40]), np.arange(16, dtype=np.uint8).reshape(2, 8))
    assert memory.read(agent(), np.array([40, 12]), 4).tolist() == [[8, 9, 10, 11], [4, 5, 6, 7]]
    assert memory.read(agent(), np.array([0]), 2).tolist() == [[0xFF, 0xFF]]


def test_cells_of_chunks_of_16_bytes():
    cells, bits = chunk_cells(np.array([2, 1]))
    assert (cells, bits) == (slice(4, 12), 0xFF0)
    cells, bits = chunk_cells(np.array([3, 0, 3]))
    assert (list(cells), bits) == ([0, 1, 2, 3, 12, 13, 14, 15], 0xF00F)
