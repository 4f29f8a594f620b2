"""Kernels with a fault each, by which a sanitizer shows that it sees one here: `memcheck` of PTX past its operand."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING

from aot.measure.device import check, load_driver

if TYPE_CHECKING:
    from aot.measure.device import CudaGpu

NAME = b"kernel_cutlass_control"
"""As the names of the kernels that are watched begin, so that what chooses those chooses it."""

THREADS = 64
NUM_BYTES = 4 * THREADS

_BODIES = {
    "memcheck": b"""
  add.u64 %rd2, %rd2, 4;
  st.global.u32 [%rd2], %r1;
""",
    "racecheck": b"""
  st.shared.u32 [%r3], %r1;
  ld.shared.u32 %r5, [%r4];
  st.global.u32 [%rd2], %r5;
""",
    "synccheck": b"""
  setp.ge.u32 %p1, %r1, 48;
  @%p1 bra DONE;
  bar.sync 0;
DONE:
  st.global.u32 [%rd2], %r1;
""",
}
"""Of each tool, what a thread does: it writes one element past the operand; it reads what another one wrote, without a
barrier; it leaves out the barrier that the other half of its warp waits at."""


def control_ptx(tool: str) -> bytes:
    """Return the kernel with the fault that a tool is to find."""
    return b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry %s(.param .u64 data) {
  .reg .pred %%p<2>;
  .reg .b32 %%r<6>;
  .reg .b64 %%rd<4>;
  .shared .align 4 .b8 held[256];
  ld.param.u64 %%rd1, [data];
  cvta.to.global.u64 %%rd1, %%rd1;
  mov.u32 %%r1, %%tid.x;
  mul.wide.u32 %%rd2, %%r1, 4;
  add.u64 %%rd2, %%rd1, %%rd2;
  shl.b32 %%r2, %%r1, 2;
  mov.u32 %%r3, held;
  xor.b32 %%r4, %%r2, 128;
  add.u32 %%r4, %%r3, %%r4;
  add.u32 %%r3, %%r3, %%r2;
%s  ret;
}
""" % (NAME, _BODIES[tool].lstrip(b"\n"))


def launch_control(gpu: CudaGpu, tool: str) -> None:
    """Launch the kernel with the fault that a tool is to find, and wait for it.

    Raises:
        DeviceError: it could not be launched, or the tool made its launch fail.
    """
    driver, module, function = load_driver(), c_void_p(), c_void_p()
    check(driver, "cuModuleLoadData", driver.cuModuleLoadData(byref(module), control_ptx(tool)))
    check(driver, "cuModuleGetFunction", driver.cuModuleGetFunction(byref(function), module, NAME))
    data = c_uint64(gpu.alloc(NUM_BYTES))
    arguments = (c_void_p * 1)(ctypes.addressof(data))
    error = driver.cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, gpu.stream, arguments, None)
    check(driver, "cuLaunchKernel", error)
    gpu.synchronize()
