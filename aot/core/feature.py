"""What chips can do that kernels ask for: a target lists what its chip has, a family what it needs."""

from __future__ import annotations

from aot.core.constraints import Word


class Feature(Word):
    """One thing that a chip's instructions can do. Source: PTX ISA, the notes on target architectures."""

    CP_ASYNC = "cp_async"
    """`cp.async`: copies of 4 to 16 bytes to shared memory that a thread does not wait for. From sm_80 on."""
    MMA_SYNC = "mma_sync"
    """`mma.sync` of 16-bit elements with float32 sums, and `ldmatrix`. From sm_80 on."""
    FP8 = "fp8"
    """Conversions of e4m3 and e5m2 to wider elements and back. From sm_89 on."""
    DEPENDENT_LAUNCH = "dependent_launch"
    """`griddepcontrol`: a kernel may start before the one in front ends, and waits where it must. From sm_90 on."""
    TMA = "tma"
    """`cp.async.bulk.tensor`, with barriers in shared memory that count bytes. From sm_90 on."""
    CLUSTERS = "clusters"
    """Clusters of CTAs with distributed shared memory. From sm_90 on."""
    WGMMA = "wgmma"
    """Products of a warp group, from shared memory: sm_90a alone."""
    TCGEN05 = "tcgen05"
    """Products into tensor memory: sm_100 and sm_110."""
    BLOCK_SCALE = "block_scale"
    """Products of narrow elements with a scale factor for each block along k: sm_100, sm_110 and sm_120."""
    WARP_BLOCK_SCALE = "warp_block_scale"
    """Such products by a warp, `mma.sync` with .block_scale: sm_120, where tcgen05 has none."""
