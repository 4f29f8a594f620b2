"""Triton kernels that write, or stand, in front of a product, and what they say to the kernel behind them.

`early` lets the kernel behind start at once: allowed at any time, since a kernel that depends on this one's writes has
to wait for its end. Behind a kernel that is launched with `launch_pdl=True` and never waits, nothing but the stream's
order says that what stands before it has ended.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, globaltimer


@triton.jit
def _spin(spin_ns):
    start = globaltimer()
    now = start
    while now - start < spin_ns:
        now = globaltimer()


@triton.jit
def write(target, value, num, spin_ns, early: tl.constexpr, wait: tl.constexpr, block: tl.constexpr):
    """Spin, then write `value`, one float32, to all `num` elements of a target that is contiguous."""
    if early:
        gdc_launch_dependents()
    if wait:
        gdc_wait()
    _spin(spin_ns)
    content = tl.load(value).to(target.dtype.element_ty)
    for first in range(tl.program_id(0) * block, num, tl.num_programs(0) * block):
        places = first + tl.arange(0, block)
        tl.store(target + places, tl.zeros([block], target.dtype.element_ty) + content, mask=places < num)


@triton.jit
def dequantise(target, quantised, scale, num, spin_ns, early: tl.constexpr, block: tl.constexpr):
    """Spin, then write quantised * scale: int8 by a float32 for the whole tensor."""
    if early:
        gdc_launch_dependents()
    _spin(spin_ns)
    factor = tl.load(scale)
    for first in range(tl.program_id(0) * block, num, tl.num_programs(0) * block):
        places = first + tl.arange(0, block)
        codes = tl.load(quantised + places, mask=places < num)
        tl.store(target + places, (codes.to(tl.float32) * factor).to(target.dtype.element_ty), mask=places < num)


@triton.jit
def stand(scratch, early: tl.constexpr, wait: tl.constexpr):
    """Write a few numbers of its own and end at once; wait for the kernel in front first, or never."""
    if early:
        gdc_launch_dependents()
    if wait:
        gdc_wait()
    tl.store(scratch + tl.program_id(0), tl.program_id(0))
