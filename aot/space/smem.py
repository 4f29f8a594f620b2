"""Shared memory of one CTA of a warp-specialised GEMM, in bytes, for every element type of Blackwell's tensor cores.

The families compile bf16 and fp16; this answers for the narrower and the wider types as well: what a stage takes, how
many stages fit, and what to do where they do not. Two kinds of kernel are modelled, docs/smem.md says how far:

- tcgen05 (sm_100, sm_103, sm_110): accumulators in tensor memory; NVIDIA's persistent kernels and quack's;
- warp mma (sm_120, sm_121): no tensor memory, no tcgen05; accumulators in registers; quack's kernel.

D and C are row-major, A and B are contiguous along k where their type demands it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from aot.core.element import ElementType
from aot.core.errors import CandidateError, TargetError
from aot.families._tcgen05 import (
    BARRIER_BYTES,
    MIN_STAGES,
    TILE_K_BYTES,
    TILE_M,
    TMEM_LANES_A_WARP,
    Shape,
    stages_that_fit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

KIB = 1024

SMEM_BYTES = {
    "sm_90": 227 * KIB,
    "sm_100": 227 * KIB,
    "sm_103": 227 * KIB,
    "sm_110": 227 * KIB,
    "sm_120": 99 * KIB,
    "sm_121": 99 * KIB,
}
"""Most shared memory a block can have. Source: CUDA C++ Programming Guide, table of technical specifications, row
"maximum amount of shared memory per thread block", compute capabilities 9.0, 10.0, 10.3, 11.0, 12.0 and 12.1."""

SCALE_ROWS = 128
SCALE_COLUMNS = 4
"""Scale factors lie in shared memory in atoms of 128 rows by 4 columns, one byte each, whole atoms always. Source: PTX
ISA, tcgen05.mma, layout of the scale factors; cutlass.utils.blockscaled_layout, `BlockScaledBasicChunk`."""

EPILOGUE_STAGES = 2
"""Stages of D, and of C where it is loaded. Source: `_compute_stages` of NVIDIA's kernels and of quack's."""

NARROW_EPILOGUE = (16, 4)
"""Columns up to which a stage of the epilogue counts as narrow, and the stages that it then has. Source: quack
gemm_sm100.py, `_compute_stages`."""

WARP_EPILOGUE = (64, 32)
"""Rows and columns of a stage of the warp mma's epilogue; twice the columns where D is of 8 bits. Source: quack
gemm_sm120.py, `_compute_tile_shape_or_override`."""

ALIGNMENT = 1024
"""The struct of the warp mma's kernel ends on a multiple of this. Source: quack gemm_sm90.py, `_compute_stages`."""

TILE_N = {False: tuple(range(32, 257, 32)), True: tuple(range(64, 257, 64))}
"""tile_n of tcgen05 without and with scale factors. Source: quack gemm_sm100.py,
`is_valid_mma_tiler_and_cluster_shape`; NVIDIA's block-scaled kernel takes the same."""

SCALED_TILE_M = {False: (128,), True: (256,)}
"""MMA tile_m with scale factors, without and with two CTAs. Source: the same."""

WARP_TILES = {False: ((64, 128, 192, 256), TILE_N[False]), True: ((128, 256), (128, 256))}
"""tile_m, tile_n of the warp mma without and with scale factors. Source: quack gemm_sm120.py, `GemmSm120.__init__`."""


class Engine(Enum):
    """What multiplies."""

    TCGEN05 = "tcgen05"
    WARP = "warp mma"


ENGINES = {
    "sm_100": Engine.TCGEN05,
    "sm_103": Engine.TCGEN05,
    "sm_110": Engine.TCGEN05,
    "sm_120": Engine.WARP,
    "sm_121": Engine.WARP,
}
"""Source: PTX ISA, target architectures of tcgen05.mma; `admissible_archs` of CuTe DSL's warp-level operations."""


@dataclass(frozen=True)
class Element:
    """An element type of A and B, with or without scale factors."""

    name: str
    element: ElementType
    scale_vector: int = 0
    """Elements along k that share a scale factor of one byte; 0 where there are none."""

    @property
    def bits(self) -> int:
        """Return the bits of one element in memory."""
        return self.element.bits


ELEMENTS = {
    element.name: element
    for element in (
        Element("nvfp4", ElementType.E2M1, 16),
        Element("mxfp4", ElementType.E2M1, 32),
        Element("mxfp8", ElementType.E4M3, 32),
        Element("fp8", ElementType.E4M3),
        Element("fp16", ElementType.FLOAT16),
        Element("bf16", ElementType.BFLOAT16),
        Element("fp32", ElementType.FLOAT32),
        Element("tf32", ElementType.TFLOAT32),
    )
}
"""nvfp4: e2m1, an e4m3 scale; mxfp4: e2m1, a ue8m0 scale; mxfp8: e4m3 or e5m2, a ue8m0 scale; fp8 has none; fp32 is
multiplied as tf32. Source: PTX ISA, tcgen05.mma, block scaling."""

OUTPUT_BYTES = {name: ELEMENTS[name].element.num_bytes for name in ("fp32", "fp16", "bf16", "fp8")}
"""Bytes of an element of D or C."""


@dataclass(frozen=True)
class Kernel:
    """A GEMM kernel, as far as its shared memory depends on it; tiles in elements."""

    arch: str
    """As ptxas names it, such as `sm_110a`."""
    element: str
    tile_m: int
    tile_n: int
    use_2cta: bool = False
    output: str = "bf16"
    source: str = ""
    """Type of the C that the epilogue loads; empty where it loads none."""
    k_bytes: int = TILE_K_BYTES
    """Bytes of k in a stage, of a row of A or B."""

    @property
    def tile_k(self) -> int:
        """Return the elements of k in a stage."""
        return self.k_bytes * 8 // ELEMENTS[self.element].bits

    @property
    def name(self) -> str:
        """Return the name used in messages, such as `nvfp4_256x256x256_2cta`."""
        return f"{self.element}_{self.tile_m}x{self.tile_n}x{self.tile_k}{'_2cta' if self.use_2cta else ''}"

    @property
    def shape(self) -> Shape:
        """Return the parts that bf16's kernels share; with D row-major."""
        return Shape(self.tile_m, self.tile_n, self.use_2cta, d_contiguous_m=False)


@dataclass(frozen=True)
class Usage:
    """Shared memory of one CTA of a kernel, part by part, in bytes."""

    kernel: Kernel
    limit_bytes: int
    num_stages: int
    """Stages of A and B: those asked for, or as many as fit, but two at least."""
    a_bytes: int
    b_bytes: int
    sfa_bytes: int
    sfb_bytes: int
    """A, B and their scale factors take this in every stage."""
    output_stage_bytes: int
    num_output_stages: int
    source_stage_bytes: int
    num_source_stages: int
    padding_bytes: int
    barrier_bytes: int = BARRIER_BYTES

    @property
    def stage_bytes(self) -> int:
        """Return the bytes of one stage."""
        return self.a_bytes + self.b_bytes + self.sfa_bytes + self.sfb_bytes

    @property
    def fixed_bytes(self) -> int:
        """Return the bytes that are taken whatever the number of stages: epilogue, barriers, alignment."""
        epilogue = self.output_stage_bytes * self.num_output_stages + self.source_stage_bytes * self.num_source_stages
        return epilogue + self.padding_bytes + self.barrier_bytes

    @property
    def needed_bytes(self) -> int:
        """Return the bytes that the kernel needs with its stages."""
        return self.fixed_bytes + self.num_stages * self.stage_bytes

    @property
    def num_stages_fit(self) -> int:
        """Count the stages that fit; may be 0 or 1."""
        return max(self.limit_bytes - self.fixed_bytes, 0) // self.stage_bytes

    @property
    def spare_bytes(self) -> int:
        """Return what is left of the limit; the kernels put more stages of the epilogue there."""
        return max(self.limit_bytes - self.needed_bytes, 0)

    @property
    def fits(self) -> bool:
        """Say whether the kernel can run: within the limit, with two stages at least."""
        return self.needed_bytes <= self.limit_bytes and self.num_stages >= MIN_STAGES


def base_arch(arch: str) -> str:
    """Return an architecture's name without its last letter: `sm_110a` and `sm_110f` are `sm_110`.

    Raises:
        TargetError: the limit is not known, or its kernels are counted elsewhere.
    """
    name = arch[:-1] if arch.endswith(("a", "f")) else arch
    if name in ENGINES:
        return name
    if name in SMEM_BYTES:
        raise TargetError(
            f"{arch} gives {SMEM_BYTES[name]:,} bytes a block, but its wgmma kernels are not counted here; "
            f"expected one of {', '.join(ENGINES)}; see `aot space --target h200 --explain`"
        )
    raise TargetError(f"no architecture {arch!r}; expected one of {', '.join(ENGINES)}; write for example sm_110a")


def tiles(arch: str, element: Element, *, use_2cta: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the values of tile_m and of tile_n that the kernels of an architecture have for an element type."""
    is_scaled = element.scale_vector > 0
    if ENGINES[base_arch(arch)] is Engine.WARP:
        return ((), ()) if use_2cta else WARP_TILES[is_scaled]
    return (SCALED_TILE_M if is_scaled else TILE_M)[use_2cta], TILE_N[is_scaled]


def _check(kernel: Kernel) -> None:
    engine = ENGINES[base_arch(kernel.arch)]
    if kernel.element not in ELEMENTS:
        raise CandidateError(f"no element type {kernel.element!r}; expected one of {', '.join(ELEMENTS)}")
    for what, name in (("D", kernel.output), ("C", kernel.source or kernel.output)):
        if name not in OUTPUT_BYTES:
            raise CandidateError(f"{what} cannot be {name!r}; expected one of {', '.join(OUTPUT_BYTES)}")
    if kernel.use_2cta and engine is Engine.WARP:
        raise CandidateError(f"{kernel.arch} has no MMA of two CTAs, got {kernel.name}; leave --two-cta out")
    if kernel.k_bytes < TILE_K_BYTES or kernel.k_bytes % TILE_K_BYTES:
        raise CandidateError(
            f"a stage cannot hold {kernel.k_bytes} bytes of k; expected a multiple of {TILE_K_BYTES}; "
            f"leave --k-bytes out for {TILE_K_BYTES}"
        )
    rows, columns = tiles(kernel.arch, ELEMENTS[kernel.element], use_2cta=kernel.use_2cta)
    if kernel.tile_m not in rows or kernel.tile_n not in columns:
        ctas = " with two CTAs" if kernel.use_2cta else ""
        raise CandidateError(
            f"no {engine.value} tile {kernel.tile_m}x{kernel.tile_n} of {kernel.element}{ctas}; expected tile_m "
            f"{' or '.join(map(str, rows))} and tile_n {', '.join(map(str, columns))}"
        )


def _scale_bytes(rows: int, kernel: Kernel) -> int:
    vector = ELEMENTS[kernel.element].scale_vector
    if not vector:
        return 0
    atoms = -(-rows // SCALE_ROWS) * -(-kernel.tile_k // (vector * SCALE_COLUMNS))
    return atoms * SCALE_ROWS * SCALE_COLUMNS


def _source_columns(kernel: Kernel) -> int:
    """Count the columns of a stage of the epilogue that also loads C. Source: `compute_epilogue_tile_size`."""
    widest = max(OUTPUT_BYTES[kernel.output], OUTPUT_BYTES[kernel.source])
    is_wide = kernel.tile_n > SCALE_ROWS
    columns = 64
    if widest == 4:
        columns = 32 if is_wide or kernel.shape.cta_m <= 64 else 16
    elif widest == 2:
        columns = 64 if is_wide else 32
    while kernel.tile_n % columns:
        columns //= 2
    warps_n = 2 if kernel.use_2cta and kernel.shape.cta_m == 64 else 1
    return max(columns, warps_n * 16 // min(OUTPUT_BYTES[kernel.output], OUTPUT_BYTES[kernel.source]))


def _epilogue_tile(kernel: Kernel) -> tuple[int, int]:
    """Return the rows and columns of D that one stage of the epilogue holds."""
    shape, output_bytes = kernel.shape, OUTPUT_BYTES[kernel.output]
    if ENGINES[base_arch(kernel.arch)] is Engine.WARP:
        rows, columns = WARP_EPILOGUE
        return math.gcd(rows, kernel.tile_m), max(
            math.gcd(columns * (2 if output_bytes == 1 else 1), kernel.tile_n), columns
        )
    warps_m = 2 if kernel.use_2cta and shape.cta_m == 64 else 4
    rows = min(shape.cta_m, TMEM_LANES_A_WARP * warps_m)
    return rows, _source_columns(kernel) if kernel.source else shape.epilogue_elements(output_bytes) // rows


def count(kernel: Kernel, num_stages: int | None = None) -> Usage:
    """Count the shared memory of one CTA.

    Args:
        kernel: what is counted.
        num_stages: stages of A and B; None for as many as fit.

    Raises:
        TargetError: the architecture is not known.
        CandidateError: no kernel has this tile or type.
    """
    _check(kernel)
    if num_stages is not None and num_stages < MIN_STAGES:
        raise CandidateError(
            f"--stages is {num_stages}; expected {MIN_STAGES} or more; leave it out for as many as fit"
        )
    shape = kernel.shape
    a_bytes = shape.cta_m * kernel.k_bytes
    sfa_bytes, sfb_bytes = _scale_bytes(shape.cta_m, kernel), _scale_bytes(kernel.tile_n, kernel)
    rows, columns = _epilogue_tile(kernel)
    is_warp = ENGINES[base_arch(kernel.arch)] is Engine.WARP
    stages = NARROW_EPILOGUE[1] if columns <= NARROW_EPILOGUE[0] else EPILOGUE_STAGES
    stages = min(stages, kernel.tile_m * kernel.tile_n // (rows * columns)) if is_warp else stages
    usage = Usage(
        kernel=kernel,
        limit_bytes=SMEM_BYTES[base_arch(kernel.arch)],
        num_stages=num_stages or 0,
        a_bytes=a_bytes,
        b_bytes=shape.stage_bytes * kernel.k_bytes // TILE_K_BYTES - a_bytes,
        sfa_bytes=sfa_bytes,
        sfb_bytes=sfb_bytes,
        output_stage_bytes=rows * columns * OUTPUT_BYTES[kernel.output],
        num_output_stages=stages,
        source_stage_bytes=rows * columns * OUTPUT_BYTES[kernel.source] if kernel.source else 0,
        num_source_stages=stages if kernel.source else 0,
        padding_bytes=ALIGNMENT if is_warp and (sfa_bytes + sfb_bytes) % ALIGNMENT else 0,
    )
    fit = stages_that_fit(usage.limit_bytes, usage.fixed_bytes, usage.stage_bytes)
    return replace(usage, num_stages=num_stages or fit)


def _smaller(kernel: Kernel) -> Iterator[Kernel]:
    """Return the kernels of smaller tiles: narrower ones first, then others, the largest first."""
    rows, columns = tiles(kernel.arch, ELEMENTS[kernel.element], use_2cta=kernel.use_2cta)
    for tile_n in sorted(columns, reverse=True):
        if tile_n < kernel.tile_n:
            yield replace(kernel, tile_n=tile_n)
    others = [(m, n) for m in rows for n in columns if m < kernel.tile_m]
    for tile_m, tile_n in sorted(others, key=lambda tile: (tile[0] * tile[1], tile[1]), reverse=True):
        yield replace(kernel, tile_m=tile_m, tile_n=tile_n)


def smaller_tile(kernel: Kernel, num_stages: int = MIN_STAGES) -> Kernel | None:
    """Find the largest smaller tile that holds so many stages: of the same tile_m if there is one."""
    return next((x for x in _smaller(kernel) if count(x).num_stages_fit >= num_stages), None)


def explain(usage: Usage) -> str:
    """Say that a kernel fits and what is left, or what it needs, what there is, what fits, and the next step."""
    kernel, fit = usage.kernel, usage.num_stages_fit
    if usage.fits:
        return (
            f"{kernel.name} fits: {usage.needed_bytes:,} of {usage.limit_bytes:,} bytes with {usage.num_stages} stages "
            f"of {usage.stage_bytes:,}; {fit} stages fit; {usage.spare_bytes:,} bytes are left"
        )
    fits = {0: "no stage fits", 1: "1 stage fits"}.get(fit, f"{fit} stages fit")
    steps = [f"take {fit} stages or fewer"] if fit >= MIN_STAGES else []
    smaller = smaller_tile(kernel, usage.num_stages)
    if smaller:
        steps.append(f"tile {smaller.tile_m}x{smaller.tile_n} holds {usage.num_stages}")
    if kernel.k_bytes > TILE_K_BYTES:
        steps.append(f"halve the {kernel.k_bytes} bytes of k in a stage")
    return (
        f"{kernel.name} needs {usage.needed_bytes:,} bytes of shared memory with {usage.num_stages} stages of "
        f"{usage.stage_bytes:,}; {kernel.arch} gives {usage.limit_bytes:,} a block; {fits}; "
        f"{', or '.join(steps) or 'no smaller tile fits either'}"
    )
