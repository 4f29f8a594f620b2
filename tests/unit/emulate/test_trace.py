"""The line of each instruction that is traced."""

import numpy as np
import pytest

from aot.core.errors import CandidateError
from aot.emulate.launch import Launch
from aot.emulate.machine import Machine
from aot.emulate.memory import GlobalMemory
from aot.emulate.schedule import Schedule
from aot.emulate.trace import TracedWarp, trace_line
from tests.unit.emulate.snippets import compile_body

BODY = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, 7;
add.s32 %r3, %r2, 3;
setp.lt.u32 %p1, %r1, 8;
@%p1 mul.lo.s32 %r3, %r1, 16;
st.global.b32 [%rd0+4], %r3;
"""


def traced(block=64, grid=2):
    memory = GlobalMemory()
    address = memory.allocate(64, "a")
    found = []

    def trace(warp, instruction):
        found.append((warp.cta.ctaid[0], warp.index, trace_line(warp, instruction)))

    machine = Machine({"k": compile_body(BODY, name="k")}, memory, Schedule(), trace=trace)
    parameters = (address.to_bytes(8, "little"),)
    machine.run([Launch("k", (grid, 1, 1), (block, 1, 1), (1, 1, 1), 0, parameters, {})])
    assert memory.view(address + 4, 4).view(np.uint32)[0] in (10, 16 * 7)
    return address, found


def test_a_line_has_the_warp_its_lanes_the_text_and_the_values():
    address, found = traced(block=40, grid=1)
    of_warp = [[line for _, warp, line in found if warp == i] for i in range(2)]
    assert len(of_warp[0]) == len(of_warp[1]) == len(BODY.strip().splitlines()) + 2
    by_text = {line.split(": ", 1)[1].split("  ")[0]: line for line in of_warp[0]}
    add = by_text["add.s32 %r3, %r2, 3"]
    assert add.startswith("0,0,0:0 ffffffff  ")
    assert add.endswith("  %r3=deadbeef %r2=7")
    multiply = by_text["@%p1 mul.lo.s32 %r3, %r1, 16"]
    assert multiply.endswith("  %p1=1 1 1 1 ... %r3=a %r1=0 1 2 3 ...")
    assert f"%rd0={address:x}" in by_text["st.global.b32 [%rd0+4], %r3"]
    assert of_warp[1][0].startswith("0,0,0:1 000000ff  ")


def test_a_warp_is_told_by_its_cta_and_number():
    assert TracedWarp.parse("all") is None
    assert TracedWarp.parse("1,0,2:3") == TracedWarp((1, 0, 2), 3)
    for text in ("", "1", "1,2:3", "1,2,3:x", "-1,0,0:0"):
        with pytest.raises(CandidateError, match="is no warp; write X,Y,Z:WARP, such as 0,0,0:1, or all"):
            TracedWarp.parse(text)


def test_a_warp_is_its_own_only():
    wanted, seen = TracedWarp((1, 0, 0), 1), []
    machine_memory = GlobalMemory()
    address = machine_memory.allocate(64, "a")

    def trace(warp, _):
        seen.append((tuple(warp.cta.ctaid), warp.index, wanted.is_of(warp)))

    machine = Machine({"k": compile_body(BODY, name="k")}, machine_memory, Schedule(), trace=trace)
    machine.run([Launch("k", (2, 1, 1), (64, 1, 1), (1, 1, 1), 0, (address.to_bytes(8, "little"),), {})])
    assert {x[:2] for x in seen if x[2]} == {((1, 0, 0), 1)}
    assert {x[:2] for x in seen} == {((i, 0, 0), j) for i in range(2) for j in range(2)}
