"""What products in Python ask for after `preload`: run as `python -m tests.runtime.preloaded PACKAGE KIND WHAT`.

The operating system refuses, from `preload` on, every call that names a file. Prints what the calls did, as JSON.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import sys
import tracemalloc
from pathlib import Path

from tests.runtime import tensors
from tests.runtime.exchange import Framework

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD_NUMBER = (0x20, 0, 0, 0)
"""BPF_LD | BPF_W | BPF_ABS at offset 0: the call's number. Source: linux/seccomp.h and linux/bpf_common.h."""
JUMP_IF_EQUAL, RETURN = 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1
"""SECCOMP_RET_ALLOW, and SECCOMP_RET_ERRNO with EPERM."""
NAMING_FILES = {
    "open": 2,
    "stat": 4,
    "lstat": 6,
    "access": 21,
    "execve": 59,
    "getdents": 78,
    "readlink": 89,
    "getdents64": 217,
    "openat": 257,
    "newfstatat": 262,
    "readlinkat": 267,
    "faccessat": 269,
    "statx": 332,
    "openat2": 437,
    "faccessat2": 439,
}
"""Of x86-64. Source: asm/unistd_64.h."""

NUM_SHAPES = 2000


class _Filter(ctypes.Structure):
    """`struct sock_filter`."""

    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("count", ctypes.c_uint16), ("filters", ctypes.POINTER(_Filter)))


def refuse_files():
    """Have the kernel refuse this process every call that names a file."""
    numbers = sorted(NAMING_FILES.values())
    jumps = [(JUMP_IF_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    lines = [LOAD_NUMBER, *jumps, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    filters = (_Filter * len(lines))(*lines)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(_Program(len(lines), filters)), 0, 0) == 0


def held_bytes(folder):
    """Return the bytes that are held of what a package's functions, and the binding behind them, have allocated."""
    tensors._keep_alive.clear()  # what the framework of the tests holds of its own capsules
    gc.collect()
    own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{folder}/*")])
    return sum(x.size for x in own.statistics("filename"))


def tensors_of(kind):
    """Return a framework with DLPack's C exchange API, or nothing, and its tensors' type, or one asked in Python."""
    framework = Framework() if kind == "exchange" else None
    return framework, tensors.FakeTensor if framework is None else framework.Tensor


def main(folder, kind, what):
    sys.path.insert(0, str(Path(folder).parent))
    package = importlib.import_module(Path(folder).name)
    _framework, tensor = tensors_of(kind)

    def multiply(m):
        package.linear(tensor((m, 64)), tensor((32, 64)), out=tensor((m, 32)))

    if what != "cold":
        package.preload()
    recorder = ctypes.CDLL(str(next(Path(folder).glob("lib*.so.*"))))
    recorder.recorder_pause(True)
    events = []
    sys.addaudithook(lambda name, arguments: events.append(name) if name in ("open", "import") else None)
    refuse_files()
    refused = None
    try:
        multiply(1)
        first = list(events)
        for m in range(2, NUM_SHAPES // 10):
            multiply(m)
        tracemalloc.start()
        before = held_bytes(folder)
        for m in range(NUM_SHAPES // 10, NUM_SHAPES):
            multiply(m)
        grown = held_bytes(folder) - before
    except Exception as error:  # noqa: BLE001 - whatever it is, the test says
        first, grown, refused = events, None, f"{type(error).__name__}: {error}"
    try:
        Path("/proc/self/status").read_text()
        opens = True
    except PermissionError:
        opens = False
    print(json.dumps({"events": first, "refused": refused, "grown": grown, "opens": opens}))


if __name__ == "__main__":
    main(*sys.argv[1:])
