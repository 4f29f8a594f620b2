"""The emulated device: guarded memory, one stream in order, schedules in turn, and no clock."""

from dataclasses import replace

import numpy as np
import pytest

from aot.core.errors import DeviceError
from aot.emulate.code import DeviceCode
from aot.emulate.faults import Fault, FaultKind
from aot.emulate.gpu import Clear, EmulatedGpu, KernelLaunch
from aot.emulate.launch import Launch
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import module

ADD = "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd1, %r1, 4;\nadd.s64 %rd2, %rd0, %rd1;\nld.global.b32 %r2, [%rd2];\n"
ADD_ONE = f"{ADD}add.s32 %r2, %r2, 1;\nst.global.b32 [%rd2], %r2;\n"
DOUBLE = f"{ADD}add.s32 %r2, %r2, %r2;\nst.global.b32 [%rd2], %r2;\n"


def code(body, name="k"):
    return DeviceCode(name, module(body, 1), 16)


def launch_of(address, attributes=()):
    return Launch("kernel", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (address.to_bytes(8, "little"),), dict(attributes))


@pytest.fixture
def gpu():
    return EmulatedGpu(1 << 20)


def held(gpu, address):
    found = np.empty(32, np.uint32)
    gpu.download(address, found)
    return found


def numbers(gpu):
    address = gpu.alloc(128)
    gpu.upload(address, np.arange(32, dtype=np.uint32))
    return address


def test_memory_is_copied_filled_and_freed(gpu):
    first, second = numbers(gpu), gpu.alloc(128)
    gpu.copy(second, first, 128)
    gpu.fill(first, 0xAB, 64)
    assert held(gpu, second).tolist() == list(range(32))
    assert held(gpu, first).tolist() == [0xABABABAB] * 16 + list(range(16, 32))
    assert first % 256 == second % 256 == 0
    gpu.free(first)
    with pytest.raises(Fault, match="address outside of an allocation"):
        gpu.fill(first, 0, 1)
    assert held(gpu, second)[5] == 5


def test_what_is_on_the_stream_is_done_in_order(gpu):
    """A clearing between two kernels, a fill behind them, and kernels of one name in two objects."""
    address = numbers(gpu)
    gpu.enqueue(KernelLaunch(code(ADD_ONE, "a"), launch_of(address)))
    gpu.enqueue(KernelLaunch(code(DOUBLE, "b"), launch_of(address)))
    assert held(gpu, address).tolist() == [2 * (x + 1) for x in range(32)]
    gpu.enqueue(Clear(address, 64))
    gpu.enqueue(KernelLaunch(code(ADD_ONE, "a"), launch_of(address)))
    gpu.synchronize()
    assert held(gpu, address).tolist() == [1] * 16 + [2 * (x + 1) + 1 for x in range(16, 32)]
    assert [x.kernels for x in gpu.executions] == [("a", "b"), ("a",)]
    gpu.enqueue(KernelLaunch(code(ADD_ONE, "a"), launch_of(address)))
    gpu.fill(address, 0, 128)
    assert held(gpu, address).tolist() == [0] * 32
    assert len(gpu.executions) == 3


def test_a_separator_keeps_launches_apart(gpu):
    address = numbers(gpu)
    gpu.enqueue(KernelLaunch(code(ADD_ONE), launch_of(address)))
    gpu.launch_separator()
    gpu.enqueue(KernelLaunch(code(ADD_ONE), launch_of(address)))
    assert held(gpu, address).tolist() == list(range(2, 34))
    assert len(gpu.executions) == 2


def test_an_operand_that_is_read_must_not_be_written_and_has_its_name(gpu):
    address = numbers(gpu)
    gpu.declare({"a": address + 4, "bias": 0}, written=("d",))
    gpu.enqueue(KernelLaunch(code(ADD_ONE), launch_of(address)))
    with pytest.raises(Fault, match=r"write to an operand that is read only: .*: writes a$") as caught:
        gpu.synchronize()
    assert caught.value.kind is FaultKind.READ_ONLY
    gpu.declare({"a": address}, written=("a",))
    gpu.enqueue(KernelLaunch(code(ADD_ONE), launch_of(address)))
    assert held(gpu, address)[31] == 32


def test_an_access_behind_a_buffer_names_the_buffer(gpu):
    address = gpu.alloc(124)
    gpu.enqueue(KernelLaunch(code(ADD_ONE), launch_of(address)))
    with pytest.raises(Fault, match="the nearest is a buffer of 124 bytes"):
        gpu.synchronize()
    gpu.forget()
    gpu.synchronize()
    assert gpu.executions == []


def test_schedules_come_in_turn_and_the_last_one_stays(gpu):
    address = numbers(gpu)
    gpu.use([Schedule(Mode.LAZY, 1), Schedule(Mode.STRICT, 2)])
    for _ in range(3):
        gpu.enqueue(KernelLaunch(code(ADD_ONE), launch_of(address)))
        gpu.synchronize()
    assert [x.schedule for x in gpu.executions] == [Schedule(Mode.LAZY, 1), *[Schedule(Mode.STRICT, 2)] * 2]
    assert [x.report.num_instructions for x in gpu.executions] == [gpu.executions[0].report.num_instructions] * 3


def test_the_lines_of_the_last_kernel_are_known(gpu):
    address = numbers(gpu)
    text = module(ADD_ONE, 1, name="first") + module(DOUBLE, 1)
    both = DeviceCode("k", text, 16)
    for name in ("first", "kernel"):
        gpu.enqueue(KernelLaunch(both, replace(launch_of(address), kernel=name)))
    gpu.synchronize()
    (found,) = gpu.executions
    lines = text.splitlines()
    assert "add.s32 %r2, %r2, %r2;" in [lines[x - 1] for x in found.last_lines]
    assert "add.s32 %r2, %r2, 1;" not in [lines[x - 1] for x in found.last_lines]


@pytest.mark.parametrize(
    "ask",
    [
        lambda gpu: gpu.time_us(lambda: None),
        lambda gpu: gpu.flushed_us(lambda _: None, 1, 0, 0),
        lambda gpu: gpu.capture(lambda: None),
        lambda gpu: gpu.replay_us(None),
        lambda gpu: gpu.destroy(None),
    ],
)
def test_there_are_no_times(gpu, ask):
    with pytest.raises(DeviceError, match="it has no clock; measure on a GPU"):
        ask(gpu)
