"""A small kernel that takes no part in programmatic dependent launch, as a model's norms and activations take none.

It reads and writes 4,096 numbers, as torch's `add_` of as many does. It is PTX, which the driver compiles for any GPU.
A captured memset would order a graph alike, but which engine runs it is the driver's choice: a change of engines costs
time of its own, and the next kernel would find neither the shared-memory carve-out nor the kind of dependency that it
finds behind a kernel.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from aot.core.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_ELEMENTS = 4096
BLOCK = 256
NUM_BYTES = 4 * NUM_ELEMENTS

NAME = b"aot_separator"
PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry aot_separator(.param .u64 data) {
  .reg .b32 %r<5>;
  .reg .b64 %rd<4>;
  .reg .f32 %f<3>;
  ld.param.u64 %rd1, [data];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd3, %rd1, %rd2;
  ld.global.f32 %f1, [%rd3];
  add.f32 %f2, %f1, 0f3F800000;
  st.global.f32 [%rd3], %f2;
  ret;
}
"""


class Separator:
    """The kernel, loaded into the current context.

    Args:
        driver: the driver's functions.
        check: takes a function's name and what it gave, and raises DeviceError where that is an error.
        data: address of NUM_BYTES of device memory.

    Raises:
        DeviceError: the driver cannot compile PTX.
    """

    def __init__(self, driver: Any, check: Callable[[str, int], None], data: int) -> None:
        self._driver, self._check = driver, check
        module, self._function = c_void_p(), c_void_p()
        try:
            check("cuModuleLoadData", driver.cuModuleLoadData(byref(module), PTX))
        except DeviceError as error:
            raise DeviceError(
                f"the driver does not compile PTX: {error}; is "
                "libnvidia-ptxjitcompiler.so.1, a part of the driver, there?"
            ) from error
        check("cuModuleGetFunction", driver.cuModuleGetFunction(byref(self._function), module, NAME))
        self._data = c_uint64(data)
        self._arguments = (c_void_p * 1)(ctypes.addressof(self._data))

    def launch(self, stream: int) -> None:
        """Put the kernel on a stream."""
        grid, block = (NUM_ELEMENTS // BLOCK, 1, 1), (BLOCK, 1, 1)
        error = self._driver.cuLaunchKernel(self._function, *grid, *block, 0, stream, self._arguments, None)
        self._check("cuLaunchKernel", error)
