"""What the tests of asynchronous units share: descriptors, and lines of PTX that wait for an mbarrier."""

from __future__ import annotations

import numpy as np

HEADER = ".extern .shared .align 1024 .b8 smem[];"
FIRST_ARRAY = 0x6000_0000_0000
"""Where the first array of a test lies: see `GlobalMemory`."""
FIRST = "mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem;"
"""%p0 holds in the first thread; %r1 is the start of shared memory."""


def tensor_map(address, extents, strides, box, *, code=10, swizzle=0):
    """Encode a tiled TMA descriptor as an array of 128 bytes; strides in bytes, of the modes after the first."""
    bits = address | (len(extents) - 1) << 64 + 4 | code << 64 + 7 | swizzle << 64 + 13
    for i, stride in enumerate(strides):
        bits |= (stride >> 4) << 8 * (12 + 4 * i)
    for i, (extent, size) in enumerate(zip(extents, box, strict=True)):
        bits |= (extent - 1) << 8 * (32 + 4 * i) | (size - 1) << 8 * (55 + i)
    return np.frombuffer(bits.to_bytes(128, "little"), np.uint8)


def wait_for(barrier, parity=0, label="WAIT"):
    """Wait for a phase of the barrier at a register."""
    return (
        f"{label}: mbarrier.try_wait.parity.shared.b64 %p9, [{barrier}], {parity};\n@%p9 bra {label}_DONE;\n"
        f"bra {label};\n{label}_DONE:"
    )


def copy_out(pointer, num_bytes, *, threads=32):
    """Copy the first bytes of shared memory to a buffer, 16 at a time."""
    assert num_bytes % (16 * threads) == 0
    lines = ["mul.lo.u32 %r30, %r0, 16; cvt.u64.u32 %rd30, %r30;", f"add.s64 %rd31, {pointer}, %rd30;",
             "add.u32 %r31, %r1, %r30;"]  # fmt: skip
    for i in range(num_bytes // (16 * threads)):
        at = 16 * threads * i
        lines.append(f"ld.shared.v4.b32 {{%r32, %r33, %r34, %r35}}, [%r31+{at}];")
        lines.append(f"st.global.v4.b32 [%rd31+{at}], {{%r32, %r33, %r34, %r35}};")
    return "\n".join(lines)


def copy_in(pointer, num_bytes, *, threads=32, at=0):
    """Copy a buffer to shared memory, 16 bytes at a time, and let the async proxy see it."""
    assert num_bytes % (16 * threads) == 0
    lines = ["mul.lo.u32 %r30, %r0, 16; cvt.u64.u32 %rd30, %r30;", f"add.s64 %rd31, {pointer}, %rd30;",
             "add.u32 %r31, %r1, %r30;"]  # fmt: skip
    for i in range(num_bytes // (16 * threads)):
        lines.append(f"ld.global.v4.b32 {{%r32, %r33, %r34, %r35}}, [%rd31+{16 * threads * i}];")
        lines.append(f"st.shared.v4.b32 [%r31+{at + 16 * threads * i}], {{%r32, %r33, %r34, %r35}};")
    return "\n".join(lines)
