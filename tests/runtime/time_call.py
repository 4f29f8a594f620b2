"""Time a call from Python over the recorder, on this machine: python -m tests.runtime.time_call [--seconds 3]

The tensors are torch's own, of memory of this host, which a copy of torch's exchange API says is of a GPU; kernels are
real ones up to the launch, which the recorder takes. So what is left out is the driver's launch and stream alone.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import torch

from aot.package.toolchain import dlpack_dir
from tests.objects import small_manifest
from tests.runtime import host
from tests.runtime.exchange import capsule_of

SHIM = """
#include <dlpack/dlpack.h>
#include <string.h>
static DLPackExchangeAPI api, real;
static int view(void* object, DLTensor* out) {
  const int status = real.dltensor_from_py_object_no_sync(object, out);
  out->device.device_type = kDLCUDA;
  return status;
}
static int stream(DLDeviceType type, int32_t device, void** out) {
  (void)type; (void)device;
  *out = (void*)0x5550;
  return 0;
}
const DLPackExchangeAPI* wrap(const DLPackExchangeAPI* of) {
  memcpy(&real, of, sizeof(real));
  memcpy(&api, of, sizeof(api));
  api.header.prev_api = 0;
  api.dltensor_from_py_object_no_sync = view;
  api.current_work_stream = stream;
  return &api;
}
"""


def pose_as_gpu(directory):
    """Have torch's tensors claim to be of a GPU wherever DLPack's exchange API asks."""
    (directory / "shim.c").write_text(SHIM)
    command = ["gcc", "-O2", "-shared", "-fPIC", f"-I{dlpack_dir()}", "shim.c", "-o", "shim.so"]
    subprocess.run(command, check=True, cwd=directory)
    shim = ctypes.CDLL(str(directory / "shim.so"))
    shim.wrap.restype, shim.wrap.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    real = pointer_of(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    torch.Tensor.__dlpack_c_exchange_api__ = capsule_of(shim.wrap(real), b"dlpack_exchange_api")


def build(directory):
    """Build the package of a few real kernels over the recorder, optimised as a wheel's library is, and import it."""
    manifest, objects = small_manifest("h200")
    flags = ("-O3", "-DNDEBUG", "-fvisibility=default", "-Wno-error")
    library = host.compile_library(manifest, directory, list(objects.values()), binding=True, flags=flags)
    shutil.copytree(directory / "include", library.parent / "include", dirs_exist_ok=True)
    host.record_build(library.parent)
    sys.path.insert(0, str(library.parent.parent))
    return import_module(manifest.module), ctypes.CDLL(str(library))


def best_ns(call, seconds):
    """Return the least and the median time of a call over batches, in nanoseconds."""
    times, end = [], time.perf_counter() + seconds
    gc.disable()
    while time.perf_counter() < end:
        start = time.perf_counter_ns()
        for _ in range(1000):
            call()
        times.append((time.perf_counter_ns() - start) / 1000)
    gc.enable()
    return min(times), statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each kind of call")
    parser.add_argument("--only", default="", help="one kind of call, to profile")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        pose_as_gpu(Path(scratch))
        package, library = build(Path(scratch))
        m, n, k = 256, 4096, 4096
        x, weight, out = (torch.zeros(*x, dtype=torch.bfloat16) for x in ((m, k), (n, k), (m, n)))
        with torch.no_grad():
            package.linear(x, weight, out=out)
            library.recorder_pause(True)
            promised = package.ConstantWeight(weight, weight.data_ptr())
            parameter = torch.nn.Parameter(weight, requires_grad=False)
            direct = package._products.linear
            for_torch = import_module(f"{package.__name__}.torch").linear
            is_served = package._torch_modules.is_served
            package._torch_modules.DEVICES.append("cpu")
            calls = {
                "the loop": lambda: None,
                "linear(x, w, out=)": lambda: package.linear(x, weight, out=out),
                "the binding's linear": lambda: direct(x, weight, None, out),
                "torch.linear(x, w, out=)": lambda: for_torch(x, weight, out=out),
                "torch.linear(x, constant, out=)": lambda: for_torch(x, promised, out=out),
                "torch.Linear's own checks": lambda: is_served(x, weight, None),
                "linear(x, parameter, out=)": lambda: package.linear(x, parameter, out=out),
                "linear(x, constant, out=)": lambda: package.linear(x, promised, out=out),
            }
            for name, call in calls.items():
                if arguments.only in name:
                    least, median = best_ns(call, arguments.seconds)
                    print(f"{name:32} {least:7.0f} ns at least, {median:7.0f} in the median", flush=True)


if __name__ == "__main__":
    main()
