"""Prints, as JSON, what CuTe DSL itself says of layouts and descriptors: dsl_layouts.py ARCH FOLDER.

Layouts are evaluated while a function is traced, which takes no GPU. Products are traced into kernels whose PTX, kept
in FOLDER, has the descriptors that the compiler made of the layouts.
"""

import json
import os
import sys
from pathlib import Path

ARCH, FOLDER = sys.argv[1], Path(sys.argv[2])
os.environ |= {"CUTE_DSL_ARCH": ARCH, "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": str(FOLDER)}

import cutlass  # noqa: E402
from cutlass import cute  # noqa: E402
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05, warp, warpgroup  # noqa: E402
from cutlass.utils import LayoutEnum, blackwell_helpers, blockscaled_layout, hopper_helpers  # noqa: E402

TYPES = {
    "bf16": cutlass.BFloat16,
    "f16": cutlass.Float16,
    "tf32": cutlass.TFloat32,
    "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2,
    "s8": cutlass.Int8,
    "u8": cutlass.Uint8,
}
MAJORS = {"K": OperandMajorMode.K, "MN": OperandMajorMode.MN}
GROUPS = {1: tcgen05.CtaGroup.ONE, 2: tcgen05.CtaGroup.TWO}
# m, n, CTAs, major of A, major of B, type of A, of B, bytes of k in a row of shared memory
TCGEN05 = [
    (64, 64, 1, "K", "K", "bf16", "bf16", 128),
    (128, 96, 1, "MN", "K", "bf16", "bf16", 128),
    (128, 16, 1, "K", "MN", "f16", "f16", 64),
    (128, 32, 1, "K", "MN", "f16", "f16", 32),
    (128, 24, 1, "K", "K", "bf16", "bf16", 32),
    (128, 40, 1, "MN", "MN", "bf16", "bf16", 64),
    (128, 64, 1, "MN", "MN", "tf32", "tf32", 128),
    (128, 72, 1, "K", "K", "tf32", "tf32", 64),
    (128, 64, 1, "K", "K", "s8", "s8", 128),
    (128, 64, 1, "MN", "MN", "u8", "u8", 128),
    (64, 208, 1, "MN", "MN", "e4m3", "e4m3", 128),
    (128, 64, 1, "K", "K", "e5m2", "e4m3", 64),
    (128, 64, 2, "MN", "MN", "bf16", "bf16", 128),
    (128, 48, 2, "K", "K", "bf16", "bf16", 128),
    (256, 128, 2, "K", "MN", "e4m3", "e4m3", 128),
    (256, 256, 2, "MN", "K", "f16", "f16", 128),
    (128, 32, 1, "K", "K", "bf16", "bf16", 16),
    (64, 16, 1, "K", "K", "e4m3", "e4m3", 16),
]
WGMMA = [
    (64, 64, 1, "K", "K", "bf16", "bf16", 128),
    (64, 104, 1, "MN", "K", "bf16", "bf16", 128),
    (64, 16, 1, "K", "MN", "f16", "f16", 64),
    (64, 192, 1, "MN", "MN", "f16", "f16", 32),
    (64, 24, 1, "K", "K", "e4m3", "e5m2", 64),
    (64, 8, 1, "K", "K", "e5m2", "e4m3", 32),
]


def tcgen05_op(m, n, group, a_major, b_major, a, b):
    """Make the MMA operation of a case."""
    rest = (GROUPS[group], tcgen05.OperandSource.SMEM, MAJORS[a_major], MAJORS[b_major])
    if a in {"bf16", "f16"}:
        return tcgen05.MmaF16BF16Op(TYPES[a], cutlass.Float32, (m, n, 16), *rest)
    if a == "tf32":
        return tcgen05.MmaTF32Op((m, n, 8), *rest)
    if a in {"s8", "u8"}:
        return tcgen05.MmaI8Op(TYPES[a], (m, n, 32), *rest)
    return tcgen05.MmaF8F6F4Op(TYPES[a], TYPES[b], cutlass.Float32, (m, n, 32), *rest)


def wgmma_op(m, n, _, a_major, b_major, a, b):
    """Make the MMA operation of a case."""
    rest = (warpgroup.OperandSource.SMEM, MAJORS[a_major], MAJORS[b_major])
    if a in {"bf16", "f16"}:
        return warpgroup.MmaF16BF16Op(TYPES[a], cutlass.Float32, (m, n, 16), *rest)
    return warpgroup.MmaF8Op(TYPES[a], TYPES[b], cutlass.Float32, (m, n, 32), *rest)


def without_swizzle(shape, dtype):
    """Make a K-major layout without a swizzle, which the helpers never choose."""
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_INTER, dtype)
    return tcgen05.tile_to_mma_shape(atom, cute.append(shape, 1), order=(1, 2, 3))


products = []


def multiply(smem, is_tcgen05, *case):
    """Trace a product of one stage of shared memory, and note the layouts of its operands."""
    m, n, _, a_major, b_major, a, b, row_bytes = case
    mma = cute.make_tiled_mma((tcgen05_op if is_tcgen05 else wgmma_op)(*case[:-1]))
    tile = (m, n, 8 * (64 if row_bytes == 16 else row_bytes) // TYPES[a].width)
    if is_tcgen05 and row_bytes == 16:
        layouts = (
            without_swizzle(mma.partition_shape_A((m, tile[2])), TYPES[a]),
            without_swizzle(mma.partition_shape_B((n, tile[2])), TYPES[b]),
        )
    elif is_tcgen05:
        layouts = (
            blackwell_helpers.make_smem_layout_a(mma, tile, TYPES[a], 1),
            blackwell_helpers.make_smem_layout_b(mma, tile, TYPES[b], 1),
        )
    else:
        order = {"K": LayoutEnum.ROW_MAJOR, "MN": LayoutEnum.COL_MAJOR}
        layouts = (
            hopper_helpers.make_smem_layout_a(order[a_major], tile, TYPES[a], 1),
            hopper_helpers.make_smem_layout_b(order[b_major], tile, TYPES[b], 1),
        )
    tensors = [
        smem.allocate_tensor(TYPES[t], layout.outer, 1024, swizzle=layout.inner)
        for t, layout in zip((a, b), layouts, strict=True)
    ]
    if is_tcgen05:
        fragments = mma.make_fragment_A(tensors[0]), mma.make_fragment_B(tensors[1])
        accumulator = mma.make_fragment_C(mma.partition_shape_C((m, n)))
    else:
        thread = mma.get_slice(0)
        fragments = (
            mma.make_fragment_A(thread.partition_A(tensors[0])),
            mma.make_fragment_B(thread.partition_B(tensors[1])),
        )
        accumulator = cute.make_rmem_tensor(thread.partition_shape_C((m, n)), cutlass.Float32)
        accumulator.fill(0.0)
    num_steps = cute.size(fragments[0], mode=[2])
    for k in range(num_steps):
        cute.gemm(mma, accumulator, fragments[0][None, None, k, 0], fragments[1][None, None, k, 0], accumulator)
    names = ("m", "n", "group", "a_major", "b_major", "a", "b")
    products.append(
        dict(zip(names, case[:-1], strict=True))
        | {
            "layouts": [str(x) for x in layouts],
            "bytes": [cute.cosize(x.outer) * TYPES[t].width // 8 for x, t in zip(layouts, (a, b), strict=True)],
            "num_steps": num_steps,
        }
    )


def kernel_of(cases, is_tcgen05):
    """Make a jitted function that traces products."""

    @cute.kernel
    def kernel():
        smem = cutlass.utils.SmemAllocator()
        for i in cutlass.range_constexpr(len(cases)):
            multiply(smem, is_tcgen05, *cases[i])

    @cute.jit
    def host():
        kernel().launch(grid=(1, 1, 1), block=(128, 1, 1))

    return host


def compile_one(case, is_tcgen05):
    """Compile a product by itself and return its PTX."""
    for old in FOLDER.glob("*.ptx"):
        old.unlink()
    cute.compile(kernel_of([case], is_tcgen05))
    products[-1]["ptx"] = next(iter(FOLDER.glob("*.ptx"))).read_text()


def block_scaled_op(kind, group):
    """Make a block-scaled MMA operation; return it with types of elements and factors, and block and k of a stage."""
    rest = (GROUPS[group], tcgen05.OperandSource.SMEM)
    f4, f8 = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN
    if kind == "nvfp4":
        return tcgen05.MmaMXF4NVF4Op(f8, (128 * group, 128, 64), *rest), f4, f8, 16, 256
    if kind == "mxfp4":
        return tcgen05.MmaMXF4Op((128 * group, 128, 64), *rest), f4, cutlass.Float8E8M0FNU, 32, 256
    op = tcgen05.MmaMXF8Op(f8, (128 * group, 128, 32), *rest, MAJORS["K"], MAJORS["K"])
    return op, f8, cutlass.Float8E8M0FNU, 32, 128


def multiply_blocks(smem, kind, group):
    """Trace a block-scaled product of one stage, and the copy of its factors."""
    op, dtype, factor, block, num_k = block_scaled_op(kind, group)
    mma, tile = cute.make_tiled_mma(op), (128 * group, 128, num_k)
    layouts = (
        blackwell_helpers.make_smem_layout_a(mma, tile, dtype, 1),
        blackwell_helpers.make_smem_layout_b(mma, tile, dtype, 1),
    )
    a, b = (smem.allocate_tensor(dtype, x.outer, 1024, swizzle=x.inner) for x in layouts)
    a, b = mma.make_fragment_A(a), mma.make_fragment_B(b)
    accumulator = mma.make_fragment_C(mma.partition_shape_C(tile[:2]))
    factors = []
    for operand, column in (("a", 128), ("b", 160)):
        stages = getattr(blockscaled_layout, f"make_smem_layout_sf{operand}")(mma, tile, block, 1)
        stage = cute.slice_(stages, (None, None, None, 0))
        layout = getattr(blockscaled_layout, f"make_tmem_layout_sf{operand}")(mma, tile, block, stage)
        factors.append(cute.make_tensor(cute.recast_ptr(accumulator.iterator + column, dtype=factor), layout))
    num_steps = cute.size(a, mode=[2])
    for k in range(num_steps):
        mma.set(tcgen05.Field.SFA, factors[0][None, None, k].iterator)
        mma.set(tcgen05.Field.SFB, factors[1][None, None, k].iterator)
        cute.gemm(mma, accumulator, a[None, None, k, 0], b[None, None, k, 0], accumulator)
    scaled.append(
        {
            "kind": kind,
            "group": group,
            "layouts": [str(x) for x in layouts],
            "bytes": [cute.cosize(x.outer) * dtype.width // 8 for x in layouts],
            "bits": dtype.width,
            "num_steps": num_steps,
        }
    )


def compile_scaled(kind, group):
    """Compile a block-scaled product by itself and keep its PTX."""

    @cute.kernel
    def kernel():
        multiply_blocks(cutlass.utils.SmemAllocator(), kind, group)

    @cute.jit
    def host():
        kernel().launch(grid=(1, 1, 1), block=(128, 1, 1))

    for old in FOLDER.glob("*.ptx"):
        old.unlink()
    cute.compile(host)
    scaled[-1]["ptx"] = next(iter(FOLDER.glob("*.ptx"))).read_text()


scaled = []
layouts = {}


@cute.jit
def trace_warp():
    """Note the layouts of mma.sync, ldmatrix and stmatrix."""
    for name, op in {
        "m16n8k16 bf16": warp.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (16, 8, 16)),
        "m16n8k8 bf16": warp.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (16, 8, 8)),
        "m16n8k8 tf32": warp.MmaTF32Op((16, 8, 8)),
    }.items():
        mma = cute.make_tiled_mma(op)
        layouts[name] = [str(x) for x in (mma.tv_layout_A, mma.tv_layout_B, mma.tv_layout_C)]
    for name, op in {
        "ldmatrix": warp.LdMatrix8x8x16bOp(False, 4),
        "ldmatrix trans": warp.LdMatrix8x8x16bOp(True, 4),
        "stmatrix": warp.StMatrix8x8x16bOp(False, 4),
        "stmatrix trans": warp.StMatrix8x8x16bOp(True, 4),
    }.items():
        atom = cute.make_copy_atom(op, cutlass.BFloat16)
        layouts[name] = [str(atom.layout_src_tv), str(atom.layout_dst_tv)]


@cute.jit
def trace_wgmma():
    """Note the fragments of a warpgroup."""
    source = warpgroup.OperandSource.RMEM
    for name, op in {
        "wgmma bf16": warpgroup.MmaF16BF16Op(
            cutlass.BFloat16, cutlass.Float32, (64, 96, 16), source, MAJORS["K"], MAJORS["K"]
        ),
        "wgmma e4m3": warpgroup.MmaF8Op(
            TYPES["e4m3"], TYPES["e4m3"], cutlass.Float32, (64, 96, 32), source, MAJORS["K"], MAJORS["K"]
        ),
    }.items():
        mma = cute.make_tiled_mma(op)
        layouts[name] = [str(mma.tv_layout_A), str(mma.tv_layout_C)]


@cute.jit
def trace_tensor_memory():
    """Note where fragments, factors and copies lie in tensor memory."""
    shapes = {
        "32x32b": tcgen05.Ld32x32bOp,
        "16x64b": tcgen05.Ld16x64bOp,
        "16x128b": tcgen05.Ld16x128bOp,
        "16x256b": tcgen05.Ld16x256bOp,
        "16x32bx2": tcgen05.Ld16x32bx2Op,
    }
    for name, op in shapes.items():
        for repeat in (1, 4):
            atom = cute.make_copy_atom(op(tcgen05.Repetition(repeat)), cutlass.Float32)
            layouts[f"tcgen05.ld {name} x{repeat}"] = [str(atom.layout_dst_tv)]
    for m, group in ((64, 1), (128, 1), (128, 2), (256, 2)):
        mma = cute.make_tiled_mma(tcgen05_op(m, 64, group, "K", "K", "bf16", "bf16"))
        layouts[f"accumulator {m} {group}"] = [str(mma.make_fragment_C(mma.partition_shape_C((m, 64))).layout)]
    for m in (64, 128):
        rest = (GROUPS[1], tcgen05.OperandSource.TMEM, MAJORS["K"], MAJORS["K"])
        mma = cute.make_tiled_mma(tcgen05.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (m, 64, 16), *rest))
        layouts[f"operand {m}"] = [str(mma.make_fragment_A(mma.partition_shape_A((m, 16))).layout)]
    for name, block, op in (
        (
            "nvfp4",
            16,
            tcgen05.MmaMXF4NVF4Op(cutlass.Float8E4M3FN, (128, 256, 64), GROUPS[1], tcgen05.OperandSource.SMEM),
        ),
        ("mxfp4", 32, tcgen05.MmaMXF4Op((128, 256, 64), GROUPS[1], tcgen05.OperandSource.SMEM)),
    ):
        mma, tile = cute.make_tiled_mma(op), (128, 256, 256)
        for operand in "ab":
            smem = getattr(blockscaled_layout, f"make_smem_layout_sf{operand}")(mma, tile, block, 1)
            stage = cute.slice_(smem, (None, None, None, 0))
            tmem = getattr(blockscaled_layout, f"make_tmem_layout_sf{operand}")(mma, tile, block, stage)
            layouts[f"factors {name} {operand}"] = [str(stage), str(tmem)]
    atom = cute.make_copy_atom(warp.StMatrix16x8x8bOp(True, 4), cutlass.Int8)
    layouts["stmatrix b8"] = [str(atom.layout_src_tv), str(atom.layout_dst_tv)]


if ARCH == "sm_90a":
    for case in WGMMA:
        compile_one(case, is_tcgen05=False)
    trace_wgmma()
else:
    for case in TCGEN05:
        compile_one(case, is_tcgen05=True)
    for kind, group in (("nvfp4", 1), ("nvfp4", 2), ("mxfp4", 1), ("mxfp8", 1)):
        compile_scaled(kind, group)
    trace_tensor_memory()
trace_warp()
print(json.dumps({"products": products, "scaled": scaled, "layouts": layouts}))
