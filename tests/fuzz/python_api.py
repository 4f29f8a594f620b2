"""Calls the Python package with garbage tensors, in a process of its own that c_api.py starts under AddressSanitizer.

A framework's exchange API, and capsules, hand over whatever was drawn: shapes, strides, numbers of dimensions, element
types, null pointers. Nothing of it is read as memory, so that any address will do. Each call must return or raise an
error of the package.
"""

from __future__ import annotations

import collections
import ctypes
import json
import random
import sys
from importlib import import_module
from pathlib import Path

from tests.runtime.exchange import Framework, ManagedTensor, capsule_of
from tests.runtime.tensors import DLManagedTensor, DLTensor

EXTENTS = (0, 1, 2, 3, 8, 16, 64, 72, 100, 4096)
ODD_EXTENTS = (-1, -(2**63), 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
ODD_STRIDES = (0, -1, 2, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
DTYPES = ((4, 16), (2, 16))
ODD_DTYPES = ((2, 32), (0, 16), (1, 8), (6, 1), (5, 32), (17, 4), (255, 255), (4, 0))
ODD_DEVICES = ((13, 0), (2, 1), (1, 0), (2, -1), (0, 0), (2, 99))
ODD_DIMS = (-(2**31), -1, 65, 2**31 - 1)
MAX_DIMS = 65
BASE = 1 << 56


class Garbage:
    """A drawn tensor: its DLTensor, and what Python reads of it; kept alive with the object."""

    def __init__(self, rng, shape, dtype):
        self.rng = rng
        shape, strides = list(shape), None
        if rng.random() < 0.08:
            shape = [rng.choice(EXTENTS) for _ in range(rng.choice((0, 1, 2, 3, 5, 64, MAX_DIMS)))]
        if shape and rng.random() < 0.05:
            shape[rng.randrange(len(shape))] = rng.choice(ODD_EXTENTS)
        if rng.random() < 0.5:
            strides = self._draw_strides(shape)
        dims = rng.choice(ODD_DIMS) if rng.random() < 0.01 else len(shape)
        code, bits = rng.choice(ODD_DTYPES) if rng.random() < 0.03 else dtype
        self.extents = (ctypes.c_int64 * MAX_DIMS)(*shape)
        self.steps = (ctypes.c_int64 * MAX_DIMS)(*(strides or ()))
        address = (
            rng.choice((0, 1, 2**64 - 2)) if rng.random() < 0.05 else BASE * rng.randint(1, 6) + 2 * rng.randint(0, 4)
        )
        self.view = DLTensor(
            address,
            rng.choice(ODD_DEVICES) if rng.random() < 0.04 else (2, 0),
            dims,
            code,
            bits,
            rng.choice((0, 2, 65535)) if rng.random() < 0.01 else 1,
            None if rng.random() < 0.01 else self.extents,
            None if strides is None else self.steps,
            rng.choice((2, 2**40, 2**64 - 2)) if rng.random() < 0.05 else 0,
        )
        self.shape, self.strides, self.dtype = tuple(shape), strides and tuple(strides), dtype

    def _draw_strides(self, shape):
        strides, step = [], 1
        order = list(range(len(shape)))
        if self.rng.random() < 0.3:
            self.rng.shuffle(order)
        strides = [0] * len(shape)
        for i in reversed(order):
            strides[i] = (
                self.rng.choice(ODD_STRIDES) if self.rng.random() < 0.06 else max(-(2**63), min(step, 2**63 - 1))
            )
            step *= max(shape[i], 1) + (8 if self.rng.random() < 0.1 else 0)
        return strides

    def __dlpack_device__(self):
        return tuple(self.view.device)

    def __dlpack__(self, stream=None):
        draw = self.rng.random()
        if draw < 0.01:
            return self.rng.choice((None, 7, capsule_of(1, b"another")))
        if draw < 0.5:
            self.managed = DLManagedTensor(self.view, None, None)
            return capsule_of(ctypes.addressof(self.managed), b"dltensor")
        self.managed = ManagedTensor(
            (ctypes.c_uint32 * 2)(1, 0), None, type(ManagedTensor().deleter)(), draw < 0.55, self.view
        )
        return capsule_of(ctypes.addressof(self.managed), b"dltensor_versioned")


class GarbageFramework(Framework):
    """A framework that hands garbage over, and whose allocator gives what was asked for, or nothing."""

    def __init__(self, rng, **options):
        super().__init__(**options)
        self.rng = rng
        self.Tensor = type("Tensor", (Garbage,), {"__dlpack_c_exchange_api__": self.Tensor.__dlpack_c_exchange_api__})

    def _view(self, tensor, out):
        ctypes.memmove(out, ctypes.byref(tensor.view), ctypes.sizeof(DLTensor))
        return -1 if self.rng.random() < 0.005 else 0

    def _export(self, tensor, out):
        managed = ManagedTensor((ctypes.c_uint32 * 2)(1, 0), None, self._deleter, self.rng.random() < 0.05, tensor.view)
        out[0] = ctypes.addressof(managed)
        self._alive[out[0]] = (managed, None, None, tensor)
        return 0

    def _allocate(self, prototype, out, context, set_error):
        if self.rng.random() < 0.02:
            set_error(context, b"MemoryError", b"none left")
            return -1
        asked = prototype.contents
        tensor = self.Tensor(random.Random(0), [asked.shape[i] for i in range(asked.ndim)], (asked.code, asked.bits))
        tensor.view.data = BASE * 7
        return self._export(tensor, out)


def draw_shapes(rng, product):
    m, n, k = (rng.choice(EXTENTS) for _ in range(3))
    leading = [rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 0, 1, 3)))]
    right = (n, k) if product == "linear" else (k, n)
    return (*leading, m, k), right, (*leading, m, n)


def call(package, rng, kinds):
    """Make one call; gives the name of what it raised, or `ok`."""
    product = rng.choice(("linear", "matmul"))
    dtype = rng.choice(DTYPES)
    kind = rng.choice(kinds)
    left, right, out = (
        (kind if rng.random() < 0.8 else rng.choice(kinds))(rng, shape, dtype) for shape in draw_shapes(rng, product)
    )
    bias = kind(rng, out.shape[-1:], dtype) if product == "linear" and rng.random() < 0.4 else None
    if rng.random() < 0.02:
        right = rng.choice((None, 1, "text", [1], object()))
    if bias is not None and rng.random() < 0.02:
        bias = rng.choice((1, "text", [1], object(), out))
    try:
        if rng.random() < 0.1:
            right = package.constant(right)
        operands = (left, right) if bias is None else (left, right, bias)
        getattr(package, product)(*operands, out=None if rng.random() < 0.3 else out)
    except (package.AotGemmError, MemoryError) as error:
        return type(error).__name__
    return "ok"


def main():
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sys.path.insert(0, str(folder.parent))
    package = import_module(folder.name)
    library = ctypes.CDLL(str(package._library.LIBRARY))
    rng = random.Random(seed)
    frameworks = [GarbageFramework(rng), GarbageFramework(rng, views=False, stream=0x6660)]
    kinds = [*(x.Tensor for x in frameworks), Garbage]
    outcomes, launches = collections.Counter(), 0
    for i in range(count):
        if i % 500 == 0:
            launches += library.recorder_num_fake()
            library.recorder_reset()
            for framework in frameworks:
                for kept in (framework._alive, framework.deleted, framework.allocated):
                    kept.clear()
        outcomes[call(package, rng, kinds)] += 1
    print(json.dumps({**outcomes, "launches": launches + library.recorder_num_fake()}, sort_keys=True))


if __name__ == "__main__":
    main()
