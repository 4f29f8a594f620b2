"""Asks the CUDA driver for tensor maps of known arguments: `python tests/equivalence/driver_maps.py OUT.jsonl`.

Needs a GPU, Python and libcuda only. What it wrote on an H200 is `driver_maps.jsonl`, by which `descriptor.decode` is
tested where there is no driver.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from pathlib import Path

BF16, FP16 = 9, 6  # CUtensorMapDataType
BASE = {
    "dtype": BF16,
    "address": 0x7F1234500000,
    "dims": [264, 304],
    "strides": [528],
    "box": [64, 64],
    "element_strides": [1, 1],
    "interleave": 0,
    "swizzle": 3,
    "l2_promotion": 2,
    "oob_fill": 0,
}


def driver():
    """Open the driver and make a context of the first GPU current."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    for error in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
    ):
        if error:
            sys.exit(f"no usable GPU: CUDA error {error}")
    return cuda


def encode(cuda, case):
    """Give the first 64 bytes of a tensor map as hexadecimal digits."""
    buffer = (ctypes.c_ubyte * 256)()
    start = -ctypes.addressof(buffer) % 64
    rank = len(case["dims"])
    error = cuda.cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(buffer) + start),
        case["dtype"],
        rank,
        ctypes.c_void_p(case["address"]),
        (ctypes.c_uint64 * rank)(*case["dims"]),
        (ctypes.c_uint64 * max(rank - 1, 1))(*case["strides"]),
        (ctypes.c_uint32 * rank)(*case["box"]),
        (ctypes.c_uint32 * rank)(*case["element_strides"]),
        *(case[name] for name in ("interleave", "swizzle", "l2_promotion", "oob_fill")),
    )
    if error:
        sys.exit(f"the driver refused {case}: CUDA error {error}")
    return bytes(buffer[start : start + 64]).hex()


PLAIN = {**BASE, "swizzle": 0, "box": [16, 8], "dims": [16, 304], "strides": [256]}


def _with(case, name, mode, value):
    """Change one mode of one argument."""
    values = list(case[name])
    values[mode] = value
    return {**case, name: values}


def _numbers():
    """Vary address, strides, and each mode's extents."""
    yield BASE
    for bit in (4, 5, 31, 32, 46):
        yield {**BASE, "address": 1 << bit}
    for bit in (10, 31, 32, 35, 36, 39):
        yield {**BASE, "strides": [1 << bit]}
    for mode in range(2):
        for bit in (0, 1, 8, 16, 31):
            yield _with({**BASE, "strides": [1 << 34]}, "dims", mode, 1 << bit)
        for size in (8, 16, 32, 64, 128, 256):
            yield _with({**PLAIN, "box": [8, 8]}, "box", mode, size)
        for step in range(1, 9):
            yield _with(PLAIN, "element_strides", mode, step)


def _choices():
    """Vary what has a few values."""
    for dtype in (BF16, FP16):
        for fill in range(2):
            yield {**PLAIN, "dtype": dtype, "box": [8, 8], "oob_fill": fill}
    for swizzle, inner in enumerate((64, 16, 32, 64)):
        yield {**BASE, "swizzle": swizzle, "box": [inner, 64]}
    for promotion in range(4):
        yield {**BASE, "l2_promotion": promotion}
    three = {"dims": [16, 304, 7], "strides": [256, 1 << 20], "box": [8, 8, 1], "element_strides": [1, 1, 1]}
    for interleave, swizzle in ((0, 0), (1, 0), (2, 1)):
        yield {**PLAIN, **three, "interleave": interleave, "swizzle": swizzle}


def _ranks():
    """Vary the rank, and the last mode's stride with it."""
    for rank in range(1, 6):
        for bit in (4, 35, 36, 39):
            strides = [1 << 10, 1 << 14, 1 << 18, 1 << 22][: rank - 1]
            strides[-1:] = [1 << bit] if strides else []
            yield {
                **PLAIN,
                "dims": [3, 4, 5, 6, 7][:rank],
                "strides": strides,
                "box": [8, 2, 3, 4, 5][:rank],
                "element_strides": [1, 2, 3, 4, 5][:rank],
            }


def _at_random(rng, count):
    """Vary all arguments at once."""
    for _ in range(count):
        rank = rng.choice((2, 2, 2, 2, 3, 4, 5))
        swizzle = rng.randrange(4)
        inner = {0: 64, 1: 16, 2: 32, 3: 64}[swizzle]
        yield {
            "dtype": rng.choice((BF16, FP16)),
            "address": rng.randrange(1 << 43) * 16,
            "dims": [rng.randrange(1, 1 << rng.choice((4, 12, 32))) for _ in range(rank)],
            "strides": [rng.randrange(1, 1 << rng.choice((8, 20, 36))) * 16 for _ in range(rank - 1)],
            "box": [inner, rng.randrange(1, 129), *(rng.randrange(1, 3) for _ in range(rank - 2))],
            "element_strides": [rng.randrange(1, 9) for _ in range(rank)],
            "interleave": 0,
            "swizzle": swizzle,
            "l2_promotion": rng.randrange(4),
            "oob_fill": rng.randrange(2),
        }


def cases():
    """List what the driver is asked for."""
    return [*_numbers(), *_choices(), *_ranks(), *_at_random(random.Random(1), 60)]


def main(out):
    cuda = driver()
    lines = [json.dumps({**case, "map": encode(cuda, case)}) for case in cases()]
    out.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} cases: {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
