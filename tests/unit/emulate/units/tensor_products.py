"""Small products in tensor memory, as the tests of the tcgen05 units share them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.unit.emulate.layouts.cute_layout import Layout
from tests.unit.emulate.snippets import run
from tests.unit.emulate.units.asynchronous import FIRST, HEADER, copy_in, wait_for

RNG = np.random.default_rng(5)
M, N, K = 128, 16, 16
A_BYTES, B_BYTES = 2 * M * K, 2 * N * K
# Core matrices of 8 rows of 16 bytes; those along k follow each other: leading 128, stride 256 bytes.
CORES = {rows: Layout(((8, rows // 8), (8, 2)), ((8, 128), (1, 64))) for rows in (8, N, 64, M)}
DESCRIPTOR = 128 >> 4 << 16 | 256 >> 4 << 32 | 1 << 46
BARRIER, SLOT = 6144, 6208
"""Shared memory of the mbarrier, and of the address that the allocation writes."""
FIRST_WARP = "setp.lt.u32 %p1, %r0, 32;\n"


def instruction(m, n):
    """Describe a product of bfloat16 with sums in float32."""
    return 1 << 4 | 1 << 7 | 1 << 10 | n >> 3 << 17 | m >> 4 << 24


def image(a, b):
    """Lay the operands out as bfloat16, and pad them to what 128 threads copy."""
    found = np.zeros(3072, ml_dtypes.bfloat16)
    start = 0
    for matrix in (a, b):
        layout = CORES[len(matrix)]
        for index, x in np.ndenumerate(matrix):
            found[start + layout(*index)] = x
        start += matrix.size
    return found


def begin(group=1, columns=32):
    return (
        FIRST
        + FIRST_WARP
        + copy_in("%rd0", 6144, threads=128)
        + f"""
add.u32 %r2, %r1, {BARRIER}; add.u32 %r3, %r1, {SLOT};
@%p0 mbarrier.init.shared.b64 [%r2], 1;
fence.mbarrier_init.release.cluster;
@%p1 tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r3], {columns};
fence.proxy.async; bar.sync 0;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
ld.shared.b32 %r4, [%r3];
and.b32 %r5, %r1, 0xffffff; shr.u32 %r5, %r5, 4; cvt.u64.u32 %rd10, %r5; or.b64 %rd10, %rd10, {DESCRIPTOR};
mov.u32 %r9, 0;
"""
    )


def multiply(m=M, n=N, rows=M, group=1, accumulate=0):
    masks = ", ".join(["%r9"] * 4 * group)
    return (
        f"add.s64 %rd11, %rd10, {2 * rows * K >> 4}; mov.u32 %r6, {instruction(m, n)};"
        f"setp.ne.b32 %p5, {accumulate}, 0;\n"
        f"@%p0 tcgen05.mma.cta_group::{group}.kind::f16.collector::a::discard [%r4], %rd10, %rd11, %r6, "
        f"{{{masks}}}, %p5;\n"
    )


COMMIT = "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];\n"
WAIT = wait_for("%r2") + "\n"
LOAD = (
    "and.b32 %r7, %r0, 0xffffffe0; shl.b32 %r7, %r7, 16; add.u32 %r7, %r7, %r4;\n"
    f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{', '.join(f'%r{i}' for i in range(14, 30))}}}, [%r7];\n"
    "tcgen05.wait::ld.sync.aligned;\n"
)
STORE = "mul.wide.u32 %rd20, %r0, 4; add.s64 %rd21, %rd1, %rd20;\n" + "".join(
    f"st.global.b32 [%rd21+{512 * i}], %r{14 + i};\n" for i in range(16)
)
FREE = "bar.sync 0;\n@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;\n"
A = RNG.integers(-8, 9, (M, K))
B = RNG.integers(-8, 9, (N, K))


def run_products(body, a=A, b=B, schedule=None, **options):
    out = np.zeros((16, 128), np.float32)
    return run(body, image(a, b), out, header=HEADER, smem=8192, block=128, schedule=schedule, **options)
